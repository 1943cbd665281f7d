//! Requests that unload a model: an empty prompt with `keep_alive` 0.

use serde::Deserialize;
use serde_json::value::RawValue;

/// The worker's routes on which a request without a prompt unloads the model.
const PATHS: [&str; 3] = ["/api/chat", "/api/generate", "/api/embed"];
/// Longer bodies have a prompt.
const MAX_BYTES: usize = 4096;

#[derive(Deserialize)]
struct Fields<'a> {
    #[serde(borrow)]
    keep_alive: Option<&'a RawValue>,
    #[serde(borrow)]
    prompt: Option<&'a RawValue>,
    #[serde(borrow)]
    prompt_ids: Option<&'a RawValue>,
    #[serde(borrow)]
    messages: Option<&'a RawValue>,
    #[serde(borrow)]
    input: Option<&'a RawValue>,
}

/// Whether a request for a model, to a route of the worker, asks to unload it.
pub(crate) fn is_unload(path: &str, body: &[u8]) -> bool {
    if !PATHS.contains(&path) || body.len() > MAX_BYTES {
        return false;
    }
    let Ok(fields) = serde_json::from_slice::<Fields<'_>>(body) else { return false };
    fields.keep_alive.is_some_and(is_zero)
        && [fields.prompt, fields.prompt_ids, fields.messages, fields.input].into_iter().all(is_empty)
}

/// Whether a duration, in seconds or in Go's format, is zero.
fn is_zero(duration: &RawValue) -> bool {
    let text = duration.get().trim_matches('"');
    text.contains('0') && text.chars().all(|c| "0.hmsnuµ".contains(c))
}

fn is_empty(value: Option<&RawValue>) -> bool {
    let text: String = value.map_or("", RawValue::get).chars().filter(|c| !c.is_whitespace()).collect();
    ["", "null", "\"\"", "[]"].contains(&&*text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unloads_are_recognised() {
        for body in [
            r#"{"model":"m","keep_alive":0}"#,
            r#"{"model":"m","keep_alive":"0s","prompt":""}"#,
            r#"{"model":"m","keep_alive":"0","messages":[ ]}"#,
            r#"{"model":"m","keep_alive":0.0,"prompt":null}"#,
        ] {
            for path in PATHS {
                assert!(is_unload(path, body.as_bytes()), "{body}");
            }
            // Documents to rerank, texts to score: fields that are not read here.
            assert!(!is_unload("/api/rerank", body.as_bytes()), "{body}");
        }
        for body in [
            r#"{"model":"m"}"#,
            r#"{"model":"m","keep_alive":null}"#,
            r#"{"model":"m","keep_alive":5}"#,
            r#"{"model":"m","keep_alive":"10s"}"#,
            r#"{"model":"m","keep_alive":""}"#,
            r#"{"model":"m","keep_alive":-1}"#,
            r#"{"model":"m","keep_alive":0,"prompt":"x"}"#,
            r#"{"model":"m","keep_alive":0,"messages":[{}]}"#,
            r#"{"model":"m","keep_alive":0,"input":["x"]}"#,
            "[]",
        ] {
            assert!(!is_unload("/api/chat", body.as_bytes()), "{body}");
        }
    }
}

//! `POST /api/chat`: continue a conversation, or load and unload a model with an empty one.

use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::Api;
use super::generate::{format, load_or_unload, merged, think};
use super::options::{Common, Options};
use super::request::{Asked, with_model};
use super::stream::{self, Records, Shape};
use crate::error::Error;
use crate::runner::protocol::Input;
use crate::scheduler::KeepAlive;

#[derive(Deserialize)]
pub(super) struct Body {
    messages: Option<Vec<Map<String, Value>>>,
    tools: Option<Vec<Map<String, Value>>>,
    stream: Option<bool>,
    format: Option<Value>,
    keep_alive: Option<KeepAlive>,
    options: Option<Map<String, Value>>,
    think: Option<Value>,
    truncate: Option<bool>,
    shift: Option<bool>,
    logprobs: Option<bool>,
    top_logprobs: Option<i64>,
    #[serde(rename = "_debug_render_only")]
    debug_render_only: Option<bool>,
}

pub(super) async fn chat(State(api): State<Api>, asked: Asked<Body>) -> Result<Response, Error> {
    let started = Instant::now();
    let body = &asked.body;
    let mut options = Options::default();
    let asked_options = body.options.as_ref();
    asked_options.map(|asked| options.apply(asked)).transpose()?;
    let records = Records { shape: Shape::Chat, model: asked.name.clone(), started, load: Duration::ZERO };
    let messages = body.messages.as_deref().unwrap_or_default();
    if messages.is_empty() {
        return load_or_unload(&api, &asked, options.num_ctx, body.keep_alive, records).await;
    }
    let messages = messages
        .iter()
        .enumerate()
        .map(|(at, message)| self::message(&asked.name, at, message))
        .collect::<Result<Vec<Value>, Error>>()?;

    let common = Common {
        truncate: body.truncate,
        shift: body.shift,
        logprobs: body.logprobs,
        top_logprobs: body.top_logprobs,
        think: think(&body.think)?,
        format: format(&body.format)?,
    };
    let (common, records, messages) = (&common, &records, &messages);
    with_model(&api, asked.wanted(options.num_ctx, body.keep_alive), move |ticket| {
        Box::pin(async move {
            let model = ticket.model().model();
            // The model's own come first, and before them its system prompt unless the request has one.
            let asks_itself = messages.first().is_some_and(|message| message["role"] == "system");
            let mut messages = [&model.messages[..], messages].concat();
            if let Some(system) = &model.system
                && !asks_itself
            {
                messages.insert(0, json!({"role": "system", "content": system}));
            }
            let tools = body.tools.iter().flatten().cloned().map(Value::Object).collect();
            let input = Input::Chat { messages, tools };
            let request = merged(&model.params, asked_options)?.request(input, common)?;
            let records = Records { load: ticket.load_duration(), ..records.clone() };
            if body.debug_render_only == Some(true) {
                return stream::rendered(ticket, &request, &records).await;
            }
            stream::answer(ticket, request, records, body.stream.unwrap_or(true)).await
        })
    })
    .await
}

/// A message as templates expect it: a known role, content that is there, and nothing there that is not said.
fn message(model: &str, at: usize, message: &Map<String, Value>) -> Result<Value, Error> {
    let mut message = message.clone();
    // Templates that ask whether a key is there take an empty list of calls for a call.
    message.retain(|_, value| !value.is_null() && value.as_array().is_none_or(|list| !list.is_empty()));
    let role = message.get("role").and_then(Value::as_str).unwrap_or_default().to_lowercase();
    if !matches!(role.as_str(), "system" | "user" | "assistant" | "tool") {
        return Err(Error::Invalid(format!(
            "invalid role {role:?}: must be system, user, assistant or tool"
        )));
    }
    message.insert("role".into(), json!(role));
    if message.contains_key("images") {
        return Err(Error::Invalid(format!("{model:?} does not support images")));
    }
    message.entry("content").or_insert_with(|| json!(""));
    for key in ["content", "thinking", "tool_name", "tool_call_id"] {
        if message.get(key).is_some_and(|value| !value.is_string()) {
            return Err(Error::Invalid(format!("messages[{at}].{key} must be a string")));
        }
    }
    if message.get("tool_calls").is_some_and(|calls| !are_calls(calls)) {
        return Err(Error::Invalid(format!(
            "messages[{at}].tool_calls must be a list of calls, each with a function of a name and arguments"
        )));
    }
    Ok(Value::Object(message))
}

/// Arguments are an object, or one as text.
fn are_calls(calls: &Value) -> bool {
    let is_call = |call: &Value| {
        let arguments = call.pointer("/function/arguments");
        call.pointer("/function/name").is_some_and(Value::is_string)
            && arguments
                .is_none_or(|arguments| arguments.is_object() || arguments.is_string() || arguments.is_null())
    };
    calls.as_array().is_some_and(|calls| calls.iter().all(is_call))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages() {
        let check =
            |json: Value| message("m", 3, json.as_object().unwrap()).map_err(|error| error.to_string());
        assert_eq!(
            check(json!({"role": "User", "content": "x"})),
            Ok(json!({"role": "user", "content": "x"}))
        );
        let calls = json!({"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f"}}], "images": []});
        let expect = json!({"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f"}}]});
        assert_eq!(check(calls), Ok(expect));
        let unsaid =
            json!({"role": "assistant", "content": "x", "tool_calls": [], "thinking": null, "images": []});
        assert_eq!(check(unsaid), Ok(json!({"role": "assistant", "content": "x"})));
        for bad in [json!({}), json!({"role": "root"}), json!({"role": "user", "images": ["x"]})] {
            assert!(check(bad.clone()).is_err(), "{bad}");
        }
        for (key, value) in [
            ("content", json!(1)),
            ("content", json!(["x"])),
            ("thinking", json!({})),
            ("tool_name", json!(1)),
            ("tool_calls", json!("f")),
            ("tool_calls", json!([1])),
            ("tool_calls", json!([{"name": "f"}])),
            ("tool_calls", json!([{"function": {"name": "f", "arguments": 1}}])),
        ] {
            let mut bad = json!({"role": "assistant", "content": ""});
            bad[key] = value;
            let error = check(bad).unwrap_err();
            assert!(error.starts_with(&format!("messages[3].{key} must be")), "{error}");
        }
    }
}

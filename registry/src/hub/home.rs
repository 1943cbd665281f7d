//! `GET /`: ollama's greeting for programs that check for it, and a short page for people.

use axum::response::{IntoResponse, Response};
use http::{HeaderMap, header};

use crate::auth::{Action, Caller, Target, allow};
use crate::http::Failure;

const GREETING: &str = "Ollama is running";

const PAGE: &str = r#"<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Lode</title>
<style>body { font: 1rem/1.6 system-ui, sans-serif; max-width: 42rem; margin: 3rem auto; padding: 0 1rem }</style>
<h1>Lode</h1>
<p>Lode, an OCI model registry and inference server. At this address:</p>
<ul>
<li><code>/v2/</code>: OCI distribution, for docker, oras, skopeo, crane and ollama
<li><code>/api/</code>: the Ollama API, for example <a href="/api/tags">/api/tags</a>
<li><code>/v1/</code>: the OpenAI API, for example <a href="/v1/models">/v1/models</a>
<li><code>/lode/v1/</code>: Lode's own API, for example <a href="/lode/v1/models">/lode/v1/models</a>
<li><a href="/healthz">/healthz</a> and <a href="/readyz">/readyz</a>, for operators
</ul>
</html>
"#;

pub(crate) async fn get(caller: Caller, headers: HeaderMap) -> Result<Response, Failure> {
    allow(&caller, Action::Pull, Target::Server)?;
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let (kind, text) = if prefers_html(accept) {
        ("text/html; charset=utf-8", PAGE)
    } else {
        ("text/plain; charset=utf-8", GREETING)
    };
    Ok(([(header::CONTENT_TYPE, kind), (header::VARY, "accept")], text).into_response())
}

/// Whether HTML is accepted explicitly, and not with a lower weight than plain text.
fn prefers_html(accept: &str) -> bool {
    let weight = |wanted: &str| {
        let entry = accept
            .split(',')
            .find(|entry| entry.split(';').next().is_some_and(|kind| kind.trim() == wanted))?;
        let q = entry.split(';').find_map(|parameter| parameter.trim().strip_prefix("q="));
        Some(q.and_then(|q| q.parse().ok()).unwrap_or(1.0_f32))
    };
    weight("text/html").is_some_and(|html| html > 0.0 && html >= weight("text/plain").unwrap_or(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_get_html() {
        let cases = [
            ("", false),
            ("*/*", false),
            ("application/json", false),
            ("text/html", true),
            ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", true),
            ("text/plain, text/html;q=0.5", false),
            ("text/html;q=0", false),
        ];
        for (accept, expect) in cases {
            assert_eq!(prefers_html(accept), expect, "{accept}");
        }
    }
}

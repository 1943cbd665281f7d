//! `GET /`: ollama's greeting for programs that check for it, and a short page for people.

use askama::Template;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderValue, StatusCode, header};

use super::page::{Shell, render};
use crate::Registry;
use crate::auth::Caller;
use crate::http::Failure;

const GREETING: &str = "Ollama is running";

#[derive(Template)]
#[template(path = "home.html")]
struct HomePage {
    shell: Shell,
}

pub(crate) async fn get(
    State(registry): State<Registry>,
    caller: Caller,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let mut response = if prefers_html(accept) {
        render(StatusCode::OK, &HomePage { shell: Shell::of(&registry, &caller).await? })
    } else {
        ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], GREETING).into_response()
    };
    response.headers_mut().insert(header::VARY, HeaderValue::from_static("accept"));
    Ok(response)
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

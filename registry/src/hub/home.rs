//! `GET /`: ollama's greeting for programs that check for it, and a short page for people.

use askama::Template;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderValue, StatusCode, header};

use super::page::{Shell, render};
use crate::Registry;
use crate::auth::Caller;
use crate::http::Failure;
use crate::http::pages::prefers_html;

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
    let mut response = if prefers_html(&headers) {
        render(StatusCode::OK, &HomePage { shell: Shell::of(&registry, &caller).await? })
    } else {
        ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], GREETING).into_response()
    };
    response.headers_mut().insert(header::VARY, HeaderValue::from_static("accept"));
    Ok(response)
}

//! `GET /`: ollama's greeting for programs that check for it, and for people the search, the newest models and those
//! that run now.

use askama::Template;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, header};

use super::models::HitLine;
use super::page::{Shell, render_browsed};
use crate::Registry;
use crate::app::LoadedOnWorkers;
use crate::auth::Caller;
use crate::http::Failure;
use crate::http::links::own_base_url;
use crate::http::pages::prefers_html;

const GREETING: &str = "Ollama is running";
/// How many of the newest models are shown.
const NEWEST: u32 = 6;

#[derive(Template)]
#[template(path = "home.html")]
struct HomePage {
    shell: Shell,
    hits: Vec<HitLine>,
    loaded: Vec<LoadedOnWorkers>,
    host: String,
}

pub(crate) async fn get(
    State(registry): State<Registry>,
    caller: Caller,
    headers: HeaderMap,
    request: Parts,
) -> Result<Response, Failure> {
    if !prefers_html(&headers) {
        let text = [(header::CONTENT_TYPE, "text/plain; charset=utf-8"), (header::VARY, "accept")];
        return Ok((text, GREETING).into_response());
    }
    let hits = registry.search_newest(&caller, NEWEST).await?;
    let base = own_base_url(&request, registry.config()).unwrap_or_default();
    let page = HomePage {
        shell: Shell::of(&registry, &caller).await?,
        hits: hits.iter().map(HitLine::from).collect(),
        loaded: registry.loaded_on_workers(&caller).await?,
        host: base.split_once("://").map_or("localhost:5000", |(_, host)| host).to_owned(),
    };
    let mut response = render_browsed(&page);
    response.headers_mut().insert(header::VARY, HeaderValue::from_static("accept, cookie, authorization"));
    Ok(response)
}

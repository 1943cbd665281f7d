//! `GET /`: ollama's greeting for programs that check for it, and for people the search, the newest models, the most pulled
//! ones and those that run now.

use askama::Template;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, header};

use super::format::counted;
use super::models::HitLine;
use super::page::{Shell, render_browsed};
use crate::Registry;
use crate::app::{LoadedOnWorkers, SearchHit, SearchSort};
use crate::auth::Caller;
use crate::http::Failure;
use crate::http::links::own_base_url;
use crate::http::pages::prefers_html;

const GREETING: &str = "Ollama is running";
/// How many of the newest models are shown.
const NEWEST: u32 = 6;
const MOST_PULLED: u32 = 8;

#[derive(Template)]
#[template(path = "home.html")]
struct HomePage {
    shell: Shell,
    hits: Vec<HitLine>,
    loaded: Vec<LoadedOnWorkers>,
    pulled: Vec<PulledModel>,
    host: String,
}

/// A model that was pulled in the last 30 days.
struct PulledModel {
    name: String,
    url: String,
    pulls: String,
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
    let (hits, pulled) = tokio::try_join!(
        registry.search_first(&caller, SearchSort::Updated, NEWEST),
        registry.search_first(&caller, SearchSort::Pulls, MOST_PULLED)
    )?;
    let base = own_base_url(&request, registry.config()).unwrap_or_default();
    let page = HomePage {
        shell: Shell::of(&registry, &caller).await?,
        hits: hits.iter().map(HitLine::from).collect(),
        loaded: registry.loaded_on_workers(&caller).await?,
        pulled: pulled.iter().filter(|hit| hit.pulls > 0).map(PulledModel::from).collect(),
        host: base.split_once("://").map_or("localhost:5000", |(_, host)| host).to_owned(),
    };
    let mut response = render_browsed(&page);
    response.headers_mut().insert(header::VARY, HeaderValue::from_static("accept, cookie, authorization"));
    Ok(response)
}

impl From<&SearchHit> for PulledModel {
    fn from(hit: &SearchHit) -> PulledModel {
        let HitLine { name, url, .. } = hit.into();
        PulledModel { name, url, pulls: counted(hit.pulls, "pull", "pulls") }
    }
}

//! `GET /v2/_catalog`: the repositories that the caller may see, in byte order, page by page.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::header;
use lode_model::reference::Repository;
use serde::Serialize;

use super::MAX_PAGE;
use crate::Registry;
use crate::auth::Caller;
use crate::http::{Failure, Json, Links, Query};

#[derive(Serialize)]
struct Catalog {
    repositories: Vec<Repository>,
}

pub(crate) async fn list(
    State(registry): State<Registry>,
    caller: Caller,
    links: Links,
    query: Query,
) -> Result<Response, Failure> {
    let n = query.limit("n")?.unwrap_or(MAX_PAGE).min(MAX_PAGE);
    let page = registry.repository_list(&caller, Some(n), query.get("last")).await?;
    let next = page
        .items
        .last()
        .filter(|_| page.more)
        .map(|last| links.next("/v2/_catalog", &[("n", &n.to_string()), ("last", last.as_str())]));
    let mut response = Json(Catalog { repositories: page.items }).into_response();
    if let Some(next) = next {
        response.headers_mut().insert(header::LINK, next);
    }
    Ok(response)
}

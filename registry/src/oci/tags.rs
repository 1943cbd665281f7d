//! `GET /v2/{name}/tags/list`: the tags of a repository in byte order, page by page.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::header;
use lode_model::reference::{Repository, Tag};
use serde::Serialize;

use super::MAX_PAGE;
use crate::Registry;
use crate::app::Spellings;
use crate::auth::Caller;
use crate::http::{Failure, Json, Links, Path, Query};

#[derive(Serialize)]
struct TagList {
    name: Repository,
    tags: Vec<Tag>,
}

pub(crate) async fn list(
    State(registry): State<Registry>,
    caller: Caller,
    links: Links,
    Path(names): Path<Spellings>,
    query: Query,
) -> Result<Response, Failure> {
    let repository = registry.spelling_existing(&caller, &names).await?;
    let n = query.limit("n")?.unwrap_or(MAX_PAGE).min(MAX_PAGE);
    let page = registry.tag_list(&caller, &repository, Some(n), query.get("last")).await?;
    let next = page.items.last().filter(|_| page.more).map(|last| {
        links.next(&format!("/v2/{repository}/tags/list"), &[("n", &n.to_string()), ("last", last.as_str())])
    });
    let mut response = Json(TagList { name: repository, tags: page.items }).into_response();
    if let Some(next) = next {
        response.headers_mut().insert(header::LINK, next);
    }
    Ok(response)
}

//! `refs`, `commits`, `super-squash` and `auth-check` of a repository. Each tag is a revision whose commits are the
//! manifests to which it was moved.

use axum::extract::State;
use axum::response::Response;
use http::HeaderName;
use http::request::Parts;
use serde::Deserialize;
use serde_json::{Value, json};

use super::entries::{commit_title, hf_time};
use crate::Registry;
use crate::app::{FilesError, MAIN, RecordedCommit, commit_id, commit_message, main_tag};
use crate::auth::{Action, Caller};
use crate::http::extract::RequestBody;
use crate::http::{Failure, HfName, Json, JsonBody, Links, Path, Query, page};

const TOTAL_COUNT: HeaderName = HeaderName::from_static("x-total-count");
/// The commits of a page.
const PAGE: u32 = 100;
const MAX_PAGE: u32 = 1000;

pub(crate) async fn list(
    State(registry): State<Registry>,
    caller: Caller,
    Path(HfName(repository)): Path<HfName>,
    query: Query,
) -> Result<Json<Value>, Failure> {
    let tags = registry.revisions(&caller, &repository).await.map_err(FilesError::from)?;
    let branch = |digest| json!({"name": MAIN, "ref": format!("refs/heads/{MAIN}"), "targetCommit": commit_id(digest)});
    let branches: Vec<Value> = main_tag(&tags).map(|(_, digest)| branch(digest)).into_iter().collect();
    let refs: Vec<Value> = tags
        .iter()
        .map(|(tag, digest)| {
            json!({"name": tag, "ref": format!("refs/tags/{tag}"), "targetCommit": commit_id(digest)})
        })
        .collect();
    let mut body = json!({"branches": branches, "converts": [], "tags": refs});
    if query.is_true("include_prs") {
        body["pullRequests"] = json!([]);
    }
    Ok(Json(body))
}

pub(crate) async fn commits(
    State(registry): State<Registry>,
    caller: Caller,
    parts: Parts,
    Path((HfName(repository), name)): Path<(HfName, String)>,
    query: Query,
) -> Result<Response, Failure> {
    let revision = registry.revision(&caller, &repository, &name).await?;
    let commits = registry.commits(&caller, &revision).await?;
    let limit = query.limit("limit")?.unwrap_or(PAGE).clamp(1, MAX_PAGE) as usize;
    let nth = query.limit("p")?.unwrap_or_default() as usize;
    let from = nth.saturating_mul(limit);
    let next = (from.saturating_add(limit) < commits.len()).then(|| {
        let parameters = [("limit", &limit.to_string()[..]), ("p", &(nth + 1).to_string())];
        Links::absolute(&parts, registry.config()).next(parts.uri.path(), &parameters)
    });
    let object = |commit: &RecordedCommit| {
        let authors: Vec<Value> = commit.author.iter().map(|author| json!({ "user": author })).collect();
        json!({
            "id": commit.id(),
            "title": commit_title(&repository, commit),
            "message": commit.description(),
            "authors": authors,
            "date": hf_time(commit.at),
        })
    };
    let shown: Vec<Value> = commits.iter().skip(from).take(limit).map(object).collect();
    Ok(page(([(TOTAL_COUNT, commits.len().to_string())], Json(shown)), next))
}

#[derive(Deserialize)]
pub(crate) struct Squash {
    #[serde(default)]
    message: Option<String>,
}

impl RequestBody for Squash {
    const ACTION: Action = Action::Delete;
}

pub(crate) async fn squash(
    State(registry): State<Registry>,
    caller: Caller,
    Path((HfName(repository), branch)): Path<(HfName, String)>,
    body: JsonBody<Squash>,
) -> Result<Json<Value>, Failure> {
    let message = body.message.as_deref().and_then(|message| commit_message(message, ""));
    registry.branch_squash(&caller, &repository, &branch, message.as_deref()).await?;
    Ok(Json(json!({})))
}

/// Whether the caller may read the repository.
pub(crate) async fn auth_check(
    State(registry): State<Registry>,
    caller: Caller,
    Path(HfName(repository)): Path<HfName>,
) -> Result<Json<Value>, Failure> {
    registry.revisions(&caller, &repository).await.map_err(FilesError::from)?;
    Ok(Json(json!({})))
}

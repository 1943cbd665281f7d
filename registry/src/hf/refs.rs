//! `refs`, `commits` and `auth-check` of a repository. Each tag is a revision with one commit: its manifest.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::HeaderName;
use serde_json::{Value, json};

use super::entries::hub_time;
use crate::Registry;
use crate::app::{FilesError, commit_id, main_tag};
use crate::auth::Caller;
use crate::http::{Failure, HubName, Json, Path, Query};

const TOTAL_COUNT: HeaderName = HeaderName::from_static("x-total-count");

pub(crate) async fn list(
    State(registry): State<Registry>,
    caller: Caller,
    Path(HubName(repository)): Path<HubName>,
    query: Query,
) -> Result<Json<Value>, Failure> {
    let tags = registry.revisions(&caller, &repository).await.map_err(FilesError::from)?;
    let branch =
        |digest| json!({"name": "main", "ref": "refs/heads/main", "targetCommit": commit_id(digest)});
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
    Path((HubName(repository), name)): Path<(HubName, String)>,
) -> Result<Response, Failure> {
    let revision = registry.revision(&caller, &repository, &name).await?;
    let facts = registry.revision_facts(&revision).await?;
    let commit = json!([{
        "id": revision.commit(),
        "title": format!("{repository}@{}", revision.digest),
        "message": "",
        "authors": [],
        "date": hub_time(facts.modified_at),
    }]);
    Ok(([(TOTAL_COUNT, "1")], Json(commit)).into_response())
}

/// Whether the caller may read the repository.
pub(crate) async fn auth_check(
    State(registry): State<Registry>,
    caller: Caller,
    Path(HubName(repository)): Path<HubName>,
) -> Result<Json<Value>, Failure> {
    registry.revisions(&caller, &repository).await.map_err(FilesError::from)?;
    Ok(Json(json!({})))
}

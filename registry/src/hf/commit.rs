//! `commit`: the operations of a commit, one JSON object a line.

use axum::body::Body;
use axum::extract::State;
use http::request::Parts;
use lode_model::reference::Repository;
use serde_json::{Value, json};

use super::commit_body::read_commit;
use super::repositories::no_pull_requests;
use crate::Registry;
use crate::app::commit_id;
use crate::auth::Caller;
use crate::http::{Failure, HubName, Json, Links, Path, Query};

pub(crate) async fn post(
    State(registry): State<Registry>,
    caller: Caller,
    parts: Parts,
    Path((HubName(repository), branch)): Path<(HubName, String)>,
    query: Query,
    body: Body,
) -> Result<Json<Value>, Failure> {
    registry.commit_check(&caller, &repository, &branch).await?;
    if query.is_true("create_pr") {
        return Err(no_pull_requests());
    }
    let commit = read_commit(&registry, &caller, &repository, body).await?;
    let done = registry.commit(&caller, &repository, &branch, commit).await?;
    let oid = commit_id(&done.digest);
    Ok(Json(json!({
        "success": true,
        "commitOid": oid,
        "commitUrl": format!("{}/commit/{oid}", repository_url(&registry, &parts, &repository)),
        "hookOutput": done.notices.join("\n"),
    })))
}

/// The URL by which clients name a repository.
pub(super) fn repository_url(registry: &Registry, parts: &Parts, repository: &Repository) -> String {
    Links::absolute(parts, registry.config()).hub(repository.as_str())
}

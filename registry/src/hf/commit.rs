//! `commit`: the operations of a commit, one JSON object a line.

use axum::body::Body;
use axum::extract::State;
use http::request::Parts;
use serde_json::{Value, json};

use super::commit_body::read_commit;
use super::error::no_pull_requests;
use crate::Registry;
use crate::app::commit_id;
use crate::auth::Caller;
use crate::http::{Failure, HfName, Json, Links, Path, Query};

pub(crate) async fn post(
    State(registry): State<Registry>,
    caller: Caller,
    parts: Parts,
    Path((HfName(repository), branch)): Path<(HfName, String)>,
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
    let url = Links::absolute(&parts, registry.config()).hub(&format!("{repository}/commit/{oid}"));
    Ok(Json(json!({
        "success": true,
        "commitOid": oid,
        "commitUrl": url,
        "hookOutput": done.notices.join("\n"),
    })))
}

//! `preupload`: how each file of a commit is to be sent; and `validate-yaml`, a check of a card before that.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::entries::lfs_oid;
use super::error::no_pull_requests;
use super::gitignore::GitIgnore;
use crate::Registry;
use crate::auth::{Action, Caller};
use crate::card;
use crate::http::extract::RequestBody;
use crate::http::{Failure, HubName, Json, JsonBody, Path, Query};

/// The largest file that is accepted within a commit.
pub(crate) const MAX_INLINE_BYTES: u64 = 64 << 20;
/// Files up to this size are sent within a commit, as on the Hub. Clients hold these in memory, and send
/// larger ones by Xet or LFS.
const SMALL_BYTES: u64 = 10_000_000;
/// Clients send 256.
const MAX_FILES: usize = 1000;

#[derive(Deserialize)]
pub(crate) struct Preupload {
    files: Vec<NewFile>,
    #[serde(default, rename = "gitIgnore")]
    git_ignore: Option<String>,
}

#[derive(Deserialize)]
struct NewFile {
    path: String,
    size: u64,
}

impl RequestBody for Preupload {
    const ACTION: Action = Action::Push;
}

pub(crate) async fn post(
    State(registry): State<Registry>,
    caller: Caller,
    Path((HubName(repository), branch)): Path<(HubName, String)>,
    query: Query,
    body: JsonBody<Preupload>,
) -> Result<Json<Value>, Failure> {
    let known = registry.preupload_files(&caller, &repository, &branch).await?;
    if query.is_true("create_pr") {
        return Err(no_pull_requests());
    }
    if body.files.len() > MAX_FILES {
        return Err(Failure::field("files", format!("has more than {MAX_FILES} files")));
    }
    let ignored = match &body.git_ignore {
        Some(rules) => GitIgnore::parse(rules)?,
        // The stored ones were not refused when they were uploaded.
        None => {
            let rules = registry.preupload_rules(&caller, &repository, &known).await?;
            GitIgnore::parse(&rules).unwrap_or_default()
        }
    };
    let answers: Vec<Value> = body
        .files
        .iter()
        .map(|NewFile { path, size }| {
            let is_inline = *size <= SMALL_BYTES;
            let mut answer = json!({
                "path": path,
                "uploadMode": if is_inline { "regular" } else { "lfs" },
                "shouldIgnore": ignored.matches(path),
            });
            // The client compares it with the sha256 of a large file, and does not send the same again.
            if let Some(oid) = known.get(path).filter(|_| !is_inline).and_then(lfs_oid) {
                answer["oid"] = oid.into();
            }
            answer
        })
        .collect();
    Ok(Json(json!({ "files": answers })))
}

#[derive(Deserialize)]
pub(crate) struct CardText {
    content: String,
}

impl RequestBody for CardText {
    const ACTION: Action = Action::Push;
}

pub(crate) async fn validate_yaml(body: JsonBody<CardText>) -> Response {
    match card::check_front_matter(&body.content) {
        Ok(()) => Json(json!({ "errors": [], "warnings": [] })).into_response(),
        Err(message) => {
            let errors = json!({ "errors": [{ "message": message }], "warnings": [] });
            (StatusCode::BAD_REQUEST, Json(errors)).into_response()
        }
    }
}

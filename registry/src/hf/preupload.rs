//! `preupload`: how each file of a commit is to be sent; and `validate-yaml`, a check of a card before that.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use lode_model::files_view::check_path;
use serde::Deserialize;
use serde_json::{Value, json};

use super::entries::lfs_oid;
use super::error::no_pull_requests;
use super::gitignore::GitIgnore;
use crate::app::ManifestFile;
use crate::auth::{Action, Caller};
use crate::card;
use crate::http::extract::RequestBody;
use crate::http::{Failure, HfName, Json, JsonBody, Path, Query};
use crate::{Error, Registry};

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
    Path((HfName(repository), branch)): Path<(HfName, String)>,
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
    for NewFile { path, .. } in &body.files {
        check_path(path).map_err(|error| Failure::field("files", format!("has a wrong path: {error}")))?;
    }
    let stored_rules = match &body.git_ignore {
        Some(_) => String::new(),
        None => registry.preupload_rules(&caller, &repository, &known).await?,
    };
    let respond = move || {
        let rules = match &body.git_ignore {
            Some(rules) => GitIgnore::parse(rules)?,
            // The stored ones were not refused when they were uploaded.
            None => GitIgnore::parse(&stored_rules).unwrap_or_default(),
        };
        let excluded = rules.excluded(body.files.iter().map(|file| file.path.as_str()))?;
        let files = body.files.iter().zip(excluded);
        let files: Vec<Value> =
            files.map(|(file, is_excluded)| file_mode(file, is_excluded, &known)).collect();
        Ok(Json(json!({ "files": files })))
    };
    tokio::task::spawn_blocking(respond).await.map_err(|_| Error::Interrupted)?
}

/// How a file is to be sent to a branch with the files `known`.
fn file_mode(
    NewFile { path, size }: &NewFile,
    is_excluded: bool,
    known: &BTreeMap<String, ManifestFile>,
) -> Value {
    let is_inline = *size <= SMALL_BYTES;
    let mut mode = json!({
        "path": path,
        "uploadMode": if is_inline { "regular" } else { "lfs" },
        "shouldIgnore": is_excluded,
    });
    // The client compares it with the sha256 of a large file, and does not send the same again.
    if let Some(oid) = known.get(path).filter(|_| !is_inline).and_then(lfs_oid) {
        mode["oid"] = oid.into();
    }
    mode
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

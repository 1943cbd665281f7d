//! `GET /lode/v1/files`: the files of a manifest, whichever tool pushed it.

use axum::extract::State;
use axum::response::Response;
use lode_model::digest::Digest;
use lode_model::reference::{Reference, Repository};
use serde::Serialize;
use utoipa::ToSchema;

use super::MAX_PAGE;
use super::models::unknown;
use crate::Registry;
use crate::app::TreeFile;
use crate::auth::Caller;
use crate::card::encode_path;
use crate::http::{Failure, Json, Links, Path, Query, page};

#[derive(Serialize, ToSchema)]
pub(super) struct FileList {
    repository: Repository,
    /// Of the manifest.
    digest: Digest,
    files: Vec<FileEntry>,
    /// The number of files that are not listed: their paths are unsafe or repeated, or there are more than 20,000.
    unlisted: usize,
}

#[derive(Serialize, ToSchema)]
struct FileEntry {
    path: String,
    size_bytes: u64,
    /// Of the whole file, where it is known.
    digest: Option<Digest>,
    /// Of the layer that it is; null for a file that a checkpoint's tensors make up.
    media_type: Option<String>,
    /// Where its bytes are, on this server.
    url: String,
}

/// Pages end with a path.
pub(crate) async fn list(
    State(registry): State<Registry>,
    caller: Caller,
    links: Links,
    Path((repository, reference)): Path<(Repository, Reference)>,
    query: Query,
) -> Result<Response, Failure> {
    let n = query.limit("n")?.unwrap_or(MAX_PAGE).clamp(1, MAX_PAGE) as usize;
    let model = registry.model_show(&caller, &repository, &reference).await?;
    let model = model.ok_or_else(|| unknown(&repository, &reference))?;
    let tree = registry.tree(&caller, &repository, &model.manifest).await?;
    let digest = model.digest;
    let from = match query.get("last") {
        Some(last) => tree.files.partition_point(|file| file.path.as_str() <= last),
        None => 0,
    };
    let (shown, has_more) = (&tree.files[from..], tree.files.len() - from > n);
    let files: Vec<FileEntry> =
        shown.iter().take(n).map(|file| FileEntry::new(&repository, &digest, file)).collect();
    let next = files.last().filter(|_| has_more).map(|last| {
        // A tag may move between pages; a digest does not.
        let path = format!("/lode/v1/files/{repository}/{digest}");
        links.next(&path, &[("n", &n.to_string()), ("last", &last.path)])
    });
    let unlisted = tree.unlisted;
    Ok(page(Json(FileList { repository, digest, files, unlisted }), next))
}

impl FileEntry {
    fn new(repository: &Repository, digest: &Digest, file: &TreeFile) -> FileEntry {
        FileEntry {
            url: format!("/{repository}/-/raw/{digest}/{}", encode_path(&file.path)),
            path: file.path.clone(),
            size_bytes: file.size_bytes,
            digest: file.digest.clone(),
            media_type: file.media_type.clone(),
        }
    }
}

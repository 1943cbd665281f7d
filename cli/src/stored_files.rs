//! The files of a manifest in the registry: those of its file view, or else its named layers.

use std::collections::HashMap;

use lode_model::{
    digest::Digest,
    files_view::{FileEntry, FileView, FileViewError},
    manifest::Manifest,
    recognise::files,
};

use crate::{
    artifact,
    connect::Target,
    error::{Failure, Outcome},
    ui,
};

/// Limit in bytes for a file view, which contains the headers of its files.
const MAX_VIEW: u64 = 1 << 30;

/// The files of a model or another artifact, and the blobs that they consist of.
pub(crate) struct StoredFiles {
    /// The digest of the manifest.
    pub(crate) digest: Digest,
    pub(crate) entries: Vec<FileEntry>,
    /// The sizes of the layers.
    pub(crate) sizes: HashMap<Digest, u64>,
}

/// Reads the manifest of `target`, and lists its files. `command` is the one that a hint for an index repeats,
/// such as `lode pull`.
pub(crate) async fn list(target: &Target, command: &str) -> Outcome<StoredFiles> {
    let raw = target
        .registry
        .manifest_get(&target.repository, &target.reference)
        .await
        .map_err(|error| target.not_found(error))?;
    let manifest = Manifest::parse(Some(&raw.media_type), &raw.bytes)
        .map_err(|error| Failure::with_source(format!("the manifest of {target}"), &error))?;
    if manifest.is_index() {
        let mut failure = Failure::new(format!(
            "{target} is an index of {}",
            ui::counted(manifest.manifests.len() as u64, "manifest")
        ));
        for child in manifest.children().take(4) {
            failure = failure.hint(format!("`{command} {}@{}`", target.repository, child.digest));
        }
        return Err(failure);
    }
    let entries = entries(target, &manifest).await?;
    let sizes = manifest.layers.iter().map(|layer| (layer.digest.clone(), layer.size)).collect();
    Ok(StoredFiles { digest: raw.digest, entries, sizes })
}

/// The last part of the repository name, the default folder.
pub(crate) fn last_part(target: &Target) -> &str {
    let repository = target.repository.as_str();
    repository.rsplit_once('/').map_or(repository, |(_, last)| last)
}

/// The files of a model: those of its file view, or else every named layer and every named member of a plain
/// tar.
async fn entries(target: &Target, manifest: &Manifest) -> Outcome<Vec<FileEntry>> {
    let about = |error: FileViewError| Failure::with_source(format!("the files of {target}"), &error);
    if let Some(view) = FileView::find(manifest) {
        if view.size > MAX_VIEW {
            let (found, most) = (ui::format_size(view.size), ui::format_size(MAX_VIEW));
            return Err(Failure::new(format!(
                "the list of the files of {target} has {found}, expected at most {most}"
            ))
            .hint(format!("`lode tensor export {target} --to FILE` writes its tensors")));
        }
        let bytes = target.registry.blob_bytes(&target.repository, &view.digest, view.size).await?;
        let view = FileView::parse(&bytes).map_err(about)?;
        return files::from_view(view, manifest).map_err(about);
    }
    let artifact = artifact::read(target, manifest).await?;
    let entries = files::from_names(&artifact, last_part(target)).map_err(about)?;
    if entries.is_empty() {
        return Err(Failure::new(format!(
            "none of the layers of {target} has a file name ({} in all)",
            manifest.layers.len()
        ))
        .hint(format!(
            "`lode show {target}` describes it; `lode tensor export {target} --to FILE` writes its tensors"
        )));
    }
    Ok(entries)
}

/// The names of the files, for a hint.
pub(crate) fn shown(names: &[String]) -> String {
    const SHOWN: usize = 20;
    let list = names.iter().take(SHOWN).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => format!("its files are {list}"),
        more => format!("its files are {list} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use lode_model::{files_view::LAYER_NAME, media_type};
    use serde_json::json;

    use super::*;
    use crate::{args::Global, connect::Connection};

    #[tokio::test]
    async fn a_view_that_is_too_large_is_not_requested() {
        let connection =
            Connection::new(&Global { host: "http://127.0.0.1:1".to_owned(), ..Global::default() });
        let target = connection.unwrap().target("team/x").unwrap();
        let layer = |size: u64| json!({"mediaType": media_type::OLLAMA_JSON, "digest": Digest::sha256(b"x"), "size": size, "name": LAYER_NAME});
        let manifest = json!({"schemaVersion": 2, "mediaType": media_type::DOCKER_MANIFEST,
            "config": layer(2), "layers": [layer(MAX_VIEW + 1)]});
        let manifest = Manifest::parse(None, manifest.to_string().as_bytes()).unwrap();
        let error = entries(&target, &manifest).await.unwrap_err().to_string();
        assert!(error.contains("the list of the files of team/x:latest has 1.1 GB"), "{error}");
        assert!(error.contains("lode tensor export"), "{error}");
    }
}

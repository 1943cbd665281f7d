//! The files of a manifest in the registry: those of its file view, or else its named layers.

use std::collections::{BTreeSet, HashMap};

use lode_model::{
    digest::Digest,
    files_view::{self, FileEntry, FileView, Segment},
    manifest::{Descriptor, Manifest},
    recognise::{ModelFile, Role},
};

use crate::{
    artifact,
    connect::Target,
    error::{Failure, Outcome},
    ui,
};

/// Limit for a file view, which contains the headers of its files.
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
    let Some(view) = FileView::find(manifest) else { return named_layer_entries(target, manifest).await };
    let bytes = target.registry.blob_bytes(&target.repository, &view.digest, view.size.min(MAX_VIEW)).await?;
    let about =
        |error: files_view::FileViewError| Failure::with_source(format!("the file view of {target}"), &error);
    let view = FileView::parse(&bytes).map_err(about)?;
    view.check_layers(manifest).map_err(about)?;
    // Files that were added to the model after the import are layers with a path.
    let mut files = view.files;
    let known: BTreeSet<String> = files.iter().map(|entry| entry.path.clone()).collect();
    let is_extra = |layer: &&Descriptor| layer.file_path().is_some_and(is_extra_file);
    for layer in manifest.layers.iter().filter(is_extra) {
        let Some(path) = layer.file_path().filter(|path| !known.contains(*path)) else { continue };
        files_view::check_path(path)
            .map_err(|error| Failure::with_source(format!("a layer of {target}"), &error))?;
        files.push(layer_entry(path.to_owned(), layer));
    }
    Ok(files)
}

/// Whether the path is in a folder for adapters or draft models.
fn is_extra_file(path: &str) -> bool {
    path.starts_with("adapter/") || path.starts_with("draft/")
}

/// A file that consists of one layer.
fn layer_entry(path: String, layer: &Descriptor) -> FileEntry {
    let segments = vec![Segment::Blob { digest: layer.digest.clone(), offset: 0, length: layer.size }];
    let digest = Some(layer.digest.clone());
    FileEntry { path, size: layer.size, digest, assembled: false, segments }
}

async fn named_layer_entries(target: &Target, manifest: &Manifest) -> Outcome<Vec<FileEntry>> {
    let mut seen = BTreeSet::new();
    let mut entries = Vec::new();
    for file in artifact::read(target, manifest).await?.files {
        let Some(path) = file_name(target, &file) else { continue };
        files_view::check_path(&path)
            .map_err(|error| Failure::with_source(format!("a layer of {target}"), &error))?;
        if !seen.insert(path.clone()) {
            return Err(Failure::new(format!("{target} has two files named `{path}`")));
        }
        let digest = Some(file.layer.digest.clone()).filter(|_| file.is_layer());
        let ModelFile { layer, offset, size, .. } = file;
        let segments = vec![Segment::Blob { digest: layer.digest.clone(), offset, length: size }];
        entries.push(FileEntry { path, size, digest, assembled: false, segments });
    }
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

/// The file's path in the manifest, or a default name for a GGUF.
fn file_name(target: &Target, file: &ModelFile) -> Option<String> {
    let obvious = || (file.role == Role::Gguf).then(|| format!("{}.gguf", last_part(target)));
    file.path.clone().or_else(obvious)
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

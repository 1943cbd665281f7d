//! `lode pull NAME [--to DIR]`: downloads the files of a model or artifact to a folder and verifies each.

use std::{
    collections::{BTreeSet, HashMap},
    path::PathBuf,
};

use lode_model::{
    digest::Digest,
    files_view::{self, FileEntry, FileView, Segment},
    manifest::{Descriptor, Manifest},
    recognise::{ModelFile, Role},
};
use serde_json::json;

use crate::{
    args::Pull,
    artifact, assemble,
    connect::{Connection, Target},
    error::{Failure, Outcome},
    ui,
};

/// Limit for a file view, which contains the headers of its files.
const MAX_VIEW: u64 = 1 << 30;

pub(crate) async fn run(connection: &Connection, args: Pull) -> Outcome {
    let target = connection.target(&args.name)?;
    let raw = target
        .registry
        .manifest_get(&target.repository, &target.reference)
        .await
        .map_err(|error| target.not_found(error))?;
    let manifest = Manifest::parse(Some(&raw.media_type), &raw.bytes)
        .map_err(|error| Failure::with_source(format!("the manifest of {target}"), &error))?;
    if manifest.is_index() {
        let mut failure =
            Failure::new(format!("{target} is an index of {} manifests", manifest.manifests.len()));
        for child in manifest.children().take(4) {
            failure = failure.hint(format!("`lode pull {}@{}`", target.repository, child.digest));
        }
        return Err(failure);
    }
    let entries = entries(&target, &manifest).await?;
    let assembled: Vec<String> =
        entries.iter().filter(|entry| entry.assembled).map(|entry| entry.path.clone()).collect();
    let folder = args.to.unwrap_or_else(|| PathBuf::from(last_part(&target)));
    let sizes: HashMap<Digest, u64> =
        manifest.layers.iter().map(|layer| (layer.digest.clone(), layer.size)).collect();
    let names: Vec<String> = entries.iter().map(|entry| entry.path.clone()).collect();
    if let Some((file, below)) = file_used_as_folder(&names) {
        return Err(Failure::new(format!("{target} has both a file `{file}` and a file `{below}`")));
    }
    let written = assemble::write(&target, &folder, entries, &sizes).await?;
    if args.json {
        return ui::json(&json!({
            "name": target.model(), "digest": raw.digest, "folder": folder, "files": names,
            "bytes": written.bytes, "kept": written.kept, "assembled": !assembled.is_empty(),
        }));
    }
    let kept = if written.kept > 0 { format!(" ({} existed already)", written.kept) } else { String::new() };
    ui::print_message(format!(
        "pulled {target} to {}: {} files, {}{kept}",
        folder.display(),
        written.files,
        ui::format_size(written.bytes)
    ));
    match assembled.as_slice() {
        [] => {}
        [path] if path.ends_with(".gguf") => {
            ui::print_message(format!(
                "{path} was created during the import and replaces the original weights"
            ));
        }
        _ => ui::print_message(
            "the weights were quantised during the import: the safetensors files differ from the original files",
        ),
    }
    Ok(())
}

/// A file that another file's path needs as a folder, and that other file.
fn file_used_as_folder(paths: &[String]) -> Option<(&str, &str)> {
    let files: BTreeSet<&str> = paths.iter().map(String::as_str).collect();
    paths.iter().find_map(|path| {
        let mut folders = path.match_indices('/').map(|(end, _)| &path[..end]);
        folders.find(|folder| files.contains(folder)).map(|folder| (folder, path.as_str()))
    })
}

/// The last part of the repository name, the default folder.
fn last_part(target: &Target) -> &str {
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
            "none of the {} layers of {target} has a file name",
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_cannot_be_a_folder_too() {
        let found = |paths: &[&str]| {
            let paths: Vec<String> = paths.iter().map(|path| (*path).to_owned()).collect();
            file_used_as_folder(&paths).map(|(file, below)| (file.to_owned(), below.to_owned()))
        };
        assert_eq!(found(&["a", "b/a", "ab/c"]), None);
        assert_eq!(found(&["a/b/c", "a"]), Some(("a".to_owned(), "a/b/c".to_owned())));
        assert_eq!(found(&["x/y", "x/y/z"]), Some(("x/y".to_owned(), "x/y/z".to_owned())));
    }
}

//! `lode pull NAME [--to DIR]`: the files of a model or artifact into a folder, byte for byte as they were, each verified.

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

/// A file view carries the headers of its files.
const MAX_VIEW: u64 = 1 << 30;

pub(crate) async fn run(connection: &Connection, args: Pull) -> Outcome {
    let target = connection.target(&args.name)?;
    let raw = target
        .registry
        .manifest_get(&target.repository, &target.reference)
        .await
        .map_err(|error| target.not_found(error))?;
    let manifest = Manifest::parse(Some(&raw.media_type), &raw.bytes)
        .map_err(|error| Failure::because(format!("the manifest of {target}"), &error))?;
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
    let written = assemble::write(&target, &folder, entries, &sizes).await?;
    if args.json {
        return ui::json(&json!({
            "name": target.model(), "digest": raw.digest, "folder": folder, "files": names,
            "bytes": written.bytes, "kept": written.kept, "assembled": !assembled.is_empty(),
        }));
    }
    let kept =
        if written.kept > 0 { format!(" ({} were there already)", written.kept) } else { String::new() };
    ui::say(format!(
        "pulled {target} to {}: {} files, {}{kept}",
        folder.display(),
        written.files,
        ui::size(written.bytes)
    ));
    match assembled.as_slice() {
        [] => {}
        [path] if path.ends_with(".gguf") => {
            ui::say(format!("{path} was made on import, and takes the place of the original weights"));
        }
        _ => ui::say(
            "its weights were quantised on import: the safetensors files are assembled, not the original ones",
        ),
    }
    Ok(())
}

/// The last part of the repository's name, which is what the folder is called by default.
fn last_part(target: &Target) -> &str {
    let repository = target.repository.as_str();
    repository.rsplit_once('/').map_or(repository, |(_, last)| last)
}

/// What files there are: by the file view, or else each layer, and each member of a plain tar, that has a name for a file.
async fn entries(target: &Target, manifest: &Manifest) -> Outcome<Vec<FileEntry>> {
    let Some(view) = FileView::find(manifest) else { return titled(target, manifest).await };
    let bytes = target.registry.blob_bytes(&target.repository, &view.digest, view.size.min(MAX_VIEW)).await?;
    let about =
        |error: files_view::FileViewError| Failure::because(format!("the file view of {target}"), &error);
    let view = FileView::parse(&bytes).map_err(about)?;
    view.check_layers(manifest).map_err(about)?;
    // What was put to a model later has names of its own.
    let mut files = view.files;
    let known: BTreeSet<String> = files.iter().map(|entry| entry.path.clone()).collect();
    let is_extra = |layer: &&Descriptor| layer.file_path().is_some_and(is_put_beside);
    for layer in manifest.layers.iter().filter(is_extra) {
        let Some(path) = layer.file_path().filter(|path| !known.contains(*path)) else { continue };
        files_view::check_path(path)
            .map_err(|error| Failure::because(format!("a layer of {target}"), &error))?;
        files.push(whole(path.to_owned(), layer));
    }
    Ok(files)
}

/// Where the files of adapters and draft models lie.
fn is_put_beside(path: &str) -> bool {
    path.starts_with("adapter/") || path.starts_with("draft/")
}

/// The file that a layer is.
fn whole(path: String, layer: &Descriptor) -> FileEntry {
    let segments = vec![Segment::Blob { digest: layer.digest.clone(), offset: 0, length: layer.size }];
    let digest = Some(layer.digest.clone());
    FileEntry { path, size: layer.size, digest, assembled: false, segments }
}

async fn titled(target: &Target, manifest: &Manifest) -> Outcome<Vec<FileEntry>> {
    let mut seen = BTreeSet::new();
    let mut entries = Vec::new();
    for file in artifact::read(target, manifest).await?.files {
        let Some(path) = file_name(target, &file) else { continue };
        files_view::check_path(&path)
            .map_err(|error| Failure::because(format!("a layer of {target}"), &error))?;
        if !seen.insert(path.clone()) {
            return Err(Failure::new(format!("{target} has two files called `{path}`")));
        }
        let digest = Some(file.layer.digest.clone()).filter(|_| file.is_layer());
        let ModelFile { layer, offset, size, .. } = file;
        let segments = vec![Segment::Blob { digest: layer.digest.clone(), offset, length: size }];
        entries.push(FileEntry { path, size, digest, assembled: false, segments });
    }
    if entries.is_empty() {
        return Err(Failure::new(format!(
            "none of the {} layers of {target} has the name of a file",
            manifest.layers.len()
        ))
        .hint(format!(
            "`lode show {target}` says what it is; `lode tensor export {target} --to FILE` writes its tensors"
        )));
    }
    Ok(entries)
}

/// The path that the manifest gives it, or what it obviously is.
fn file_name(target: &Target, file: &ModelFile) -> Option<String> {
    let obvious = || (file.role == Role::Gguf).then(|| format!("{}.gguf", last_part(target)));
    file.path.clone().or_else(obvious)
}

//! Lists the files of a stored model, as `lode pull`, the Hugging Face API and the file pages show them: the original
//! files of an import by its file view, otherwise every layer and tar member that has a name.

use std::collections::BTreeSet;

use super::{Artifact, ModelFile, Role};
use crate::files_view::{FileEntry, FileView, FileViewError, Segment, check_path};
use crate::manifest::{Descriptor, Manifest};

/// The files of a model with a file view: those of the view, and the named layers that were added to the model
/// after its import, such as adapters.
pub fn from_view(view: FileView, manifest: &Manifest) -> Result<Vec<FileEntry>, FileViewError> {
    view.check_layers(manifest)?;
    let known: BTreeSet<String> = view.files.iter().map(|entry| entry.path.clone()).collect();
    let mut files = view.files;
    let is_extra = |layer: &&Descriptor| layer.file_path().is_some_and(is_extra_file);
    for layer in manifest.layers.iter().filter(is_extra) {
        let Some(path) = layer.file_path().filter(|path| !known.contains(*path)) else { continue };
        check_path(path)?;
        files.push(FileEntry::whole(path.to_owned(), layer.digest.clone(), layer.size));
    }
    Ok(files)
}

/// The named files of a manifest without a file view. Its tars have been replaced by their members. A GGUF without a
/// name is `STEM.gguf`.
pub fn from_names(artifact: &Artifact, stem: &str) -> Result<Vec<FileEntry>, FileViewError> {
    let (mut seen, mut entries) = (BTreeSet::new(), Vec::new());
    for file in &artifact.files {
        let default = || (file.role == Role::Gguf).then(|| format!("{stem}.gguf"));
        let named = file.path.clone().filter(|path| !path.is_empty());
        let Some(path) = named.or_else(default) else { continue };
        check_path(&path)?;
        if !seen.insert(path.clone()) {
            return Err(FileViewError::Duplicate { path });
        }
        let ModelFile { layer, offset, size, .. } = file;
        let digest = Some(layer.digest.clone()).filter(|_| file.is_layer());
        let segment = Segment::Blob { digest: layer.digest.clone(), offset: *offset, length: *size };
        entries.push(FileEntry::in_blob(path, digest, segment));
    }
    Ok(entries)
}

/// Whether the path is in a folder for adapters or draft models.
fn is_extra_file(path: &str) -> bool {
    path.starts_with("adapter/") || path.starts_with("draft/")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::digest::Digest;
    use crate::files_view::VERSION;
    use crate::media_type as mt;

    fn layer(media_type: &str, title: Option<&str>, size: u64) -> Descriptor {
        let mut layer =
            Descriptor::new(media_type, Digest::sha256(title.unwrap_or_default().as_bytes()), size);
        layer.annotations.extend(title.map(|title| (mt::TITLE_ANNOTATION.to_owned(), title.to_owned())));
        layer
    }

    fn manifest(layers: Vec<Descriptor>) -> Manifest {
        Manifest {
            media_type: mt::OCI_MANIFEST.into(),
            artifact_type: None,
            config: None,
            layers,
            manifests: vec![],
            subject: None,
            annotations: BTreeMap::new(),
        }
    }

    fn names(files: &[FileEntry]) -> Vec<(&str, u64)> {
        files.iter().map(|file| (file.path.as_str(), file.size)).collect()
    }

    #[test]
    fn named_layers_are_files() {
        let listed = |layers: Vec<Descriptor>| {
            let manifest = manifest(layers);
            from_names(&Artifact::read(&manifest, None), "mini").map_err(|error| error.to_string())
        };
        let files = listed(vec![layer("text/plain", Some("a/notes.txt"), 3), layer("x/y", None, 9)]).unwrap();
        assert_eq!(names(&files), [("a/notes.txt", 3)]);
        assert_eq!(files[0].digest, Some(Digest::sha256(b"a/notes.txt")));
        let files = listed(vec![layer(mt::OLLAMA_MODEL, None, 7)]).unwrap();
        assert_eq!(names(&files), [("mini.gguf", 7)]);
        let twice = vec![layer("x/y", Some("a"), 1), layer("x/y", Some("a"), 1)];
        assert_eq!(listed(twice).unwrap_err(), "two files are named `a`");
        assert!(listed(vec![layer("x/y", Some("../a"), 1)]).is_err());
    }

    #[test]
    fn layers_that_were_added_to_an_import_are_files() {
        let manifest =
            manifest(vec![layer("x/y", Some("adapter/lora.safetensors"), 4), layer("x/y", Some("other"), 5)]);
        let original =
            FileEntry::in_blob("config.json".to_owned(), None, Segment::Inline { inline: vec![b' '; 2] });
        let view = FileView { version: VERSION, files: vec![original] };
        let files = from_view(view, &manifest).unwrap();
        assert_eq!(names(&files), [("config.json", 2), ("adapter/lora.safetensors", 4)]);
    }
}

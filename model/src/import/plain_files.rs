//! The manifest of files that are not a model, or not yet: one layer for each, with its path as the title, as OCI
//! clients write and read files.

use crate::digest::Digest;
use crate::manifest::{Descriptor, MAX_MANIFEST_BYTES};
use crate::media_type;
use crate::modelfile::DerivedModel;
use crate::oci::new_manifest::{NewManifest, SmallBlob};

use super::finish::FinishError;

/// Makes the manifest of files that are blobs: the path, digest and size of each. `more` are layers that are no files,
/// such as the prompt template of a model that is to be completed. The same files always give the same manifest.
pub fn plain_files(
    files: impl IntoIterator<Item = (String, Digest, u64)>,
    more: &[Descriptor],
) -> Result<DerivedModel, FinishError> {
    let layer = |(path, digest, size)| {
        let mut layer = Descriptor::new(media_type::OCTET_STREAM, digest, size);
        layer.annotations.insert(media_type::TITLE_ANNOTATION.to_owned(), path);
        layer
    };
    let layers: Vec<Descriptor> = files.into_iter().map(layer).chain(more.iter().cloned()).collect();
    let config = SmallBlob::new(media_type::OCI_EMPTY, b"{}".to_vec());
    let mut manifest = NewManifest::new(media_type::OCI_MANIFEST, &config.descriptor, &layers);
    manifest.artifact_type = Some(media_type::LODE_FILES);
    let manifest = manifest.to_bytes();
    if manifest.len() > MAX_MANIFEST_BYTES {
        return Err(FinishError::ManifestTooLarge { len: manifest.len() });
    }
    Ok(DerivedModel {
        media_type: media_type::OCI_MANIFEST.to_owned(),
        digest: Digest::sha256(&manifest),
        manifest,
        blobs: vec![config],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Manifest;
    use crate::recognise::{Artifact, files};

    #[test]
    fn the_manifest_lists_the_files() {
        let of = |paths: &[&str]| {
            let files = paths.iter().map(|path| (path.to_string(), Digest::sha256(path.as_bytes()), 1));
            let template = Descriptor::new(media_type::OLLAMA_TEMPLATE, Digest::sha256(b"t"), 1);
            plain_files(files, &[template]).unwrap()
        };
        for paths in [&[][..], &["README.md", "a/b.bin"]] {
            let made = of(paths);
            let manifest = Manifest::parse(Some(&made.media_type), &made.manifest).unwrap();
            assert_eq!(made.digest, Digest::sha256(&made.manifest));
            let entries = files::from_names(&Artifact::read(&manifest, Some(b"{}")), "x").unwrap();
            let listed: Vec<&str> = entries.iter().map(|entry| entry.path.as_str()).collect();
            assert_eq!(listed, paths);
        }
        let many = (0..40_000).map(|number| (number.to_string(), Digest::sha256(b""), 0));
        assert!(matches!(plain_files(many, &[]), Err(FinishError::ManifestTooLarge { .. })));
    }
}

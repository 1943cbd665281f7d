//! Makes the config, file view and manifest from the digests of layers.

use std::collections::BTreeMap;

use super::plan::{Plan, PlannedLayer};
use super::recipe::{FileOrigin, FileRecipe, RecipeSegment};
use crate::digest::Digest;
use crate::files_view::{self, FileEntry, FileView, Segment};
use crate::manifest::{Descriptor, MAX_MANIFEST_BYTES};
use crate::media_type;
use crate::oci::new_manifest::{NewManifest, SmallBlob};

/// The blobs to push after the layers: config, file view, manifest, in this order.
#[derive(Clone, Debug, PartialEq)]
pub struct FinishedImport {
    pub config: SmallBlob,
    /// The file view, itself the last layer of the manifest.
    pub files: SmallBlob,
    /// Of type [`media_type::DOCKER_MANIFEST`], as ollama writes it.
    pub manifest: Vec<u8>,
    pub manifest_digest: Digest,
}

/// Why a plan cannot be finished.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FinishError {
    #[error("{found} layer digests were given, expected {expected}")]
    Layers { found: usize, expected: usize },
    #[error("no digest was given for file `{path}`")]
    File { path: String },
    #[error("manifest has {len} bytes, expected at most {MAX_MANIFEST_BYTES}: there are too many layers")]
    ManifestTooLarge { len: usize },
}

impl Plan {
    /// The files whose digests must be passed to [`Plan::finish`], because no layer has them: those of split
    /// checkpoints. [`super::hash_file`] computes them.
    pub fn files_to_hash(&self) -> impl Iterator<Item = &str> {
        self.files.iter().filter(|file| file.origin == FileOrigin::Pieces).map(|file| file.path.as_str())
    }

    /// Makes config, file view and manifest. `layers` are the digests of [`Plan::layers`] in their order,
    /// `files` those of [`Plan::files_to_hash`] by path. The same folder always gives the same manifest.
    pub fn finish(
        &self,
        layers: &[Digest],
        files: &BTreeMap<String, Digest>,
    ) -> Result<FinishedImport, FinishError> {
        if layers.len() != self.layers.len() {
            return Err(FinishError::Layers { found: layers.len(), expected: self.layers.len() });
        }
        let entries: Result<Vec<FileEntry>, FinishError> =
            self.files.iter().map(|file| file_entry(file, layers, files)).collect();
        let view = FileView { version: files_view::VERSION, files: entries? }.to_bytes();
        let mut view = SmallBlob::new(media_type::OLLAMA_JSON, view);
        view.descriptor.name = Some(files_view::LAYER_NAME.to_owned());

        let mut descriptors: Vec<Descriptor> = self
            .layers
            .iter()
            .zip(layers)
            .map(|(layer, digest)| Descriptor {
                name: layer.name.clone(),
                annotations: title(layer),
                ..Descriptor::new(layer.media_type, digest.clone(), layer.size)
            })
            .collect();
        descriptors.push(view.descriptor.clone());
        let config = SmallBlob::new(media_type::DOCKER_CONFIG, self.config.to_bytes());
        let mut manifest = NewManifest::new(media_type::DOCKER_MANIFEST, &config.descriptor, &descriptors);
        manifest.artifact_type = Some(media_type::LODE_MODEL);
        manifest.annotations =
            self.annotations.iter().map(|(key, text)| (key.clone(), text.as_str().into())).collect();
        let manifest = manifest.to_bytes();
        if manifest.len() > MAX_MANIFEST_BYTES {
            return Err(FinishError::ManifestTooLarge { len: manifest.len() });
        }
        Ok(FinishedImport { config, files: view, manifest_digest: Digest::sha256(&manifest), manifest })
    }
}

/// Returns the title annotation, by which an OCI client writes the layer to a file, if the layer is a file.
fn title(layer: &PlannedLayer) -> BTreeMap<String, String> {
    let path = layer.name.as_ref().filter(|_| layer.media_type != media_type::OLLAMA_TENSOR);
    path.map(|path| (media_type::TITLE_ANNOTATION.to_owned(), path.clone())).into_iter().collect()
}

fn file_entry(
    file: &FileRecipe,
    layers: &[Digest],
    files: &BTreeMap<String, Digest>,
) -> Result<FileEntry, FinishError> {
    let digest = match file.origin {
        FileOrigin::Whole { layer } => Some(layers[layer].clone()),
        FileOrigin::Pieces => {
            let given = files.get(&file.path).ok_or_else(|| FinishError::File { path: file.path.clone() });
            Some(given?.clone())
        }
        FileOrigin::Assembled => None,
    };
    let segments: Vec<Segment> = file
        .segments
        .iter()
        .map(|segment| match segment {
            RecipeSegment::Inline(bytes) => Segment::Inline { inline: bytes.clone() },
            RecipeSegment::Layer { layer, offset, length } => {
                Segment::Blob { digest: layers[*layer].clone(), offset: *offset, length: *length }
            }
        })
        .collect();
    Ok(FileEntry {
        path: file.path.clone(),
        size: segments.iter().map(Segment::len).sum(),
        digest,
        assembled: file.origin == FileOrigin::Assembled,
        segments,
    })
}

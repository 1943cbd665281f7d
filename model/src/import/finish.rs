//! Makes the config, file view and manifest from the digests of layers.

use std::collections::BTreeMap;

use super::plan::{Plan, PlannedLayer};
use super::recipe::{FileOrigin, FileRecipe, RecipeSegment};
use crate::digest::Digest;
use crate::files_view::{self, FileEntry, FileView, Segment};
use crate::manifest::{Descriptor, MAX_MANIFEST_BYTES, Manifest, ManifestError};
use crate::media_type;
use crate::modelfile::{Base, DeriveError, DerivedModel, Edits, derive};
use crate::oci::new_manifest::{NewManifest, SmallBlob};

/// The blobs of a plan that are not its layers, before a Modelfile's edits.
#[derive(Debug)]
pub(super) struct FinishedImport {
    pub(super) config: SmallBlob,
    /// The file view, itself the last layer of the manifest.
    pub(super) files: SmallBlob,
    /// Of type [`media_type::DOCKER_MANIFEST`], as ollama writes it.
    pub(super) manifest: Vec<u8>,
}

/// Why the model of a plan cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum FinishError {
    #[error("{found} layer digests were given, expected {expected}")]
    Layers { found: usize, expected: usize },
    #[error("no digest was given for file `{path}`")]
    File { path: String },
    #[error("manifest has {len} bytes, expected at most {MAX_MANIFEST_BYTES}: there are too many layers")]
    ManifestTooLarge { len: usize },
    #[error("the manifest would be invalid")]
    Manifest(#[from] ManifestError),
    #[error("cannot apply the Modelfile")]
    Derive(#[from] DeriveError),
}

impl Plan {
    /// Checks that [`Plan::model`] will succeed, before a layer is read. Digests do not change a manifest's
    /// length.
    pub fn check(&self, edits: &Edits) -> Result<(), FinishError> {
        let any = Digest::sha256(b"");
        let files = self.files_to_hash().map(|path| (path.to_owned(), any.clone())).collect();
        self.model(&vec![any; self.layers.len()], &files, edits).map(drop)
    }

    /// Makes the blobs to push after the layers, and the manifest, with the edits of a Modelfile applied.
    /// `layers` are the digests of [`Plan::layers`] in their order, `files` those of [`Plan::files_to_hash`] by
    /// path. The same folder and edits always give the same manifest.
    pub fn model(
        &self,
        layers: &[Digest],
        files: &BTreeMap<String, Digest>,
        edits: &Edits,
    ) -> Result<DerivedModel, FinishError> {
        let FinishedImport { config, files, manifest } = self.finish(layers, files)?;
        let manifest = Manifest::parse(None, &manifest)?;
        let base = Base { manifest: &manifest, config: &config.bytes, params: None, origin_name: None };
        let mut derived = derive(&base, edits)?;
        derived.blobs.splice(..0, [config, files]);
        Ok(derived)
    }

    /// The files whose digests must be passed to [`Plan::model`], because no layer has them: those of split
    /// checkpoints. [`super::hash_file`] computes them.
    pub fn files_to_hash(&self) -> impl Iterator<Item = &str> {
        self.files.iter().filter(|file| file.origin == FileOrigin::Pieces).map(|file| file.path.as_str())
    }

    /// Makes config, file view and manifest, without edits.
    pub(super) fn finish(
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
        Ok(FinishedImport { config, files: view, manifest })
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

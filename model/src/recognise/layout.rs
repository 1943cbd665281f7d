//! Detects which tool's layout a manifest follows, by the marks of each tool; the first match counts. Nothing
//! is refused here: an unrecognised manifest is an artifact like any other.

use serde::Deserialize;

use crate::manifest::{Descriptor, Manifest};
use crate::media_type as mt;

/// The layout of a manifest's layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// A signature, an SBOM or the like, for another manifest.
    Attachment,
    /// CNCF ModelPack, also under its former name.
    ModelPack,
    /// Docker's model tooling.
    DockerModel,
    /// A KitOps ModelKit.
    KitOps,
    /// ollama, and our own imports.
    Ollama,
    /// A container image that declares that it carries a model.
    Image,
    /// Files with titles, as oras pushes them.
    Files,
    Unknown,
}

/// Parts of the media types of artifacts that refer to other artifacts.
const ATTACHMENT_TYPES: [&str; 8] =
    ["sigstore", "cosign", "notary", "signature", "in-toto", "spdx", "cyclonedx", "sbom"];

impl Layout {
    pub(super) fn detect(manifest: &Manifest, config: Option<&[u8]>) -> Layout {
        let artifact_type = manifest.artifact_type.as_deref().unwrap_or_default();
        let config_type = manifest.config.as_ref().map_or("", |config| config.media_type.as_str());
        let any = |test: &dyn Fn(&Descriptor) -> bool| manifest.layers.iter().any(test);

        let about = if artifact_type.is_empty() { config_type } else { artifact_type };
        if manifest.subject.is_some() && ATTACHMENT_TYPES.iter().any(|mark| about.contains(mark)) {
            return Layout::Attachment;
        }
        if artifact_type == mt::MODELPACK_MANIFEST || config_type == mt::MODELPACK_CONFIG {
            return Layout::ModelPack;
        }
        if mt::is_docker_model_config(config_type) {
            return Layout::DockerModel;
        }
        if artifact_type == mt::KITOPS_MANIFEST || matches!(config_type, mt::KITOPS_CONFIG | mt::JOZU_CONFIG)
        {
            return Layout::KitOps;
        }
        if any(&|layer| mt::is_ollama(&layer.media_type)) {
            return Layout::Ollama;
        }
        let is_modelpack = mt::is_modelpack(artifact_type) || mt::is_modelpack(config_type);
        if is_modelpack || any(&|layer| mt::is_modelpack(&layer.media_type)) {
            return Layout::ModelPack;
        }
        if any(&|layer| layer.annotations.contains_key(mt::TITLE_ANNOTATION)) {
            return Layout::Files;
        }
        if matches!(config_type, mt::OCI_CONFIG | mt::DOCKER_CONFIG) && is_model_image(config) {
            return Layout::Image;
        }
        Layout::Unknown
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Layout::Attachment => "attachment",
            Layout::ModelPack => "modelpack",
            Layout::DockerModel => "docker",
            Layout::KitOps => "kitops",
            Layout::Ollama => "ollama",
            Layout::Image => "image",
            Layout::Files => "files",
            Layout::Unknown => "unknown",
        }
    }
}

/// The part of an image's config that distinguishes a model's image from others.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ImageConfig {
    config: Option<ConfigLabels>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ConfigLabels {
    #[serde(rename = "Labels")]
    labels: Option<std::collections::BTreeMap<String, String>>,
}

/// RamaLama's raw images and modelcars have a label; other images are not searched.
fn is_model_image(config: Option<&[u8]>) -> bool {
    let config =
        config.and_then(|bytes| serde_json::from_slice::<ImageConfig>(bytes).ok()).unwrap_or_default();
    let labels = config.config.and_then(|config| config.labels).unwrap_or_default();
    let kind = labels.get("org.containers.type");
    kind.is_some_and(|kind| kind.starts_with("ai.image.model"))
        || labels.contains_key("com.ramalama.model.file.location")
}

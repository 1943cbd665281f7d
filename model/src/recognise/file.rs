//! One file of a model: its role, its layer and its offset there; and the files in the layers of each layout.
//! Names come from the layout: annotations, ollama's `name`, or the fixed names that Docker's tooling unpacks
//! to.

use std::sync::Arc;

use serde::Deserialize;

use super::tar::Member;
use crate::formats::weight_format::WeightFormat;
use crate::manifest::{Descriptor, Manifest};
use crate::media_type as mt;

/// The role of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A blob of one tensor, or of one packed group of them.
    Tensor,
    Safetensors,
    Gguf,
    Onnx,
    /// A low-rank adapter for another model.
    Adapter,
    /// Turns images or sounds into embeddings.
    Projector,
    /// A small model that drafts tokens for a large one.
    Draft,
    Template,
    System,
    Params,
    Messages,
    License,
    /// `config.json`, `tokenizer.json`, `README.md`, ...
    File,
}

/// How a file is stored in its layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// The file is the layer, or a member of an uncompressed tar, so its bytes can be mapped.
    Plain,
    /// The layer is an uncompressed tar, whose members are not listed yet.
    Tar,
    /// The layer has to be unpacked before anything in it can be read.
    Compressed,
}

/// How the tensors of a file are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A safetensors file of one tensor or group, which may be keyed `data`.
    TensorBlob,
    Safetensors,
    Gguf,
    Onnx,
}

/// A file of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelFile {
    /// Shared by all files of a tar, because an untrusted descriptor may be large.
    pub layer: Arc<Descriptor>,
    /// The relative path, if the manifest gives one. The text is untrusted: check it before use.
    pub path: Option<String>,
    pub role: Role,
    pub packing: Packing,
    /// The offset in the layer; not 0 for a member of a tar.
    pub offset: u64,
    pub size: u64,
}

impl ModelFile {
    pub(super) fn new(layer: &Descriptor, path: Option<String>, role: Role, packing: Packing) -> ModelFile {
        let (layer, size) = (Arc::new(layer.clone()), layer.size);
        ModelFile { layer, path, role, packing, offset: 0, size }
    }

    pub(super) fn member(&self, member: Member) -> ModelFile {
        let Member { path, offset, size } = member;
        let role = Role::of_path(&path);
        let layer = Arc::clone(&self.layer);
        ModelFile { layer, path: Some(path), role, packing: Packing::Plain, offset, size }
    }

    pub fn is_plain(&self) -> bool {
        self.packing == Packing::Plain
    }

    /// Whether it is a whole layer, rather than a member of one.
    pub fn is_layer(&self) -> bool {
        self.is_plain() && self.offset == 0 && self.size == self.layer.size
    }

    /// How its tensors are listed; `None` if it has none or is packed.
    pub fn kind(&self) -> Option<FileKind> {
        if !self.is_plain() {
            return None;
        }
        let is_safetensors = self.path.as_deref().is_some_and(|path| path.ends_with(".safetensors"));
        match self.role {
            Role::Tensor => Some(FileKind::TensorBlob),
            Role::Safetensors => Some(FileKind::Safetensors),
            Role::Gguf => Some(FileKind::Gguf),
            Role::Onnx => Some(FileKind::Onnx),
            Role::Draft if self.layer.media_type == mt::OLLAMA_TENSOR => Some(FileKind::TensorBlob),
            Role::Adapter | Role::Projector | Role::Draft if is_safetensors => Some(FileKind::Safetensors),
            Role::Adapter | Role::Projector | Role::Draft => Some(FileKind::Gguf),
            _ => None,
        }
    }

    /// The name of the file in messages.
    pub fn label(&self) -> &str {
        self.path.as_deref().or(self.layer.name.as_deref()).unwrap_or(self.layer.digest.as_str())
    }
}

impl Role {
    /// Returns the role of a file by its name alone.
    pub fn of_path(path: &str) -> Role {
        let name = path.rsplit_once('/').map_or(path, |(_, name)| name).to_ascii_lowercase();
        match WeightFormat::of_path(&name) {
            Some(WeightFormat::Safetensors) if name.starts_with("adapter_") => Role::Adapter,
            Some(WeightFormat::Gguf) if name.contains("mmproj") => Role::Projector,
            Some(format) => Role::of_weights(format),
            None => Role::File,
        }
    }

    fn of_weights(format: WeightFormat) -> Role {
        match format {
            WeightFormat::Safetensors => Role::Safetensors,
            WeightFormat::Gguf => Role::Gguf,
            WeightFormat::Onnx => Role::Onnx,
        }
    }

    /// The format of the model's weights in a file of this role; `None` if it does not hold them.
    pub(super) fn weight_format(self) -> Option<WeightFormat> {
        match self {
            Role::Tensor | Role::Safetensors => Some(WeightFormat::Safetensors),
            Role::Gguf => Some(WeightFormat::Gguf),
            Role::Onnx => Some(WeightFormat::Onnx),
            _ => None,
        }
    }
}

/// Returns the packing of a layer by its media type.
pub(super) fn packing(media_type: &str) -> Packing {
    if ["gzip", "zstd", ".xz", "bzip2"].iter().any(|mark| media_type.ends_with(mark)) {
        Packing::Compressed
    } else if media_type.ends_with(".tar") {
        Packing::Tar
    } else {
        Packing::Plain
    }
}

/// Returns the path of the annotations, or the name in ModelPack's metadata of the file.
pub(super) fn annotated_path(layer: &Descriptor) -> Option<String> {
    #[derive(Deserialize)]
    struct Metadata {
        name: String,
    }
    let named = |key: &str| {
        let metadata = serde_json::from_str::<Metadata>(layer.annotations.get(key)?).ok()?;
        Some(metadata.name).filter(|name| !name.is_empty())
    };
    let path = layer.file_path().map(str::to_owned);
    path.or_else(|| mt::METADATA_ANNOTATIONS.iter().find_map(|key| named(key)))
}

pub(super) fn ollama_files(manifest: &Manifest) -> Vec<ModelFile> {
    let has = |kind: &str| manifest.layers.iter().any(|layer| layer.media_type == kind);
    let has_weights = has(mt::OLLAMA_TENSOR) || has(mt::OLLAMA_MODEL);
    let file = |layer: &Descriptor| {
        let path = annotated_path(layer);
        let is_draft = layer.name.as_deref().is_some_and(|name| name.starts_with("draft."));
        let role = match layer.media_type.as_str() {
            // The second model, which drafts for the first.
            mt::OLLAMA_TENSOR if is_draft => Role::Draft,
            mt::OLLAMA_TENSOR => Role::Tensor,
            mt::OLLAMA_MODEL => Role::Gguf,
            mt::OLLAMA_ADAPTER => Role::Adapter,
            mt::OLLAMA_PROJECTOR => Role::Projector,
            mt::OLLAMA_DRAFT => Role::Draft,
            mt::OLLAMA_TEMPLATE | mt::OLLAMA_PROMPT => Role::Template,
            mt::OLLAMA_SYSTEM => Role::System,
            mt::OLLAMA_PARAMS => Role::Params,
            mt::OLLAMA_MESSAGES => Role::Messages,
            mt::OLLAMA_LICENSE => Role::License,
            kind if mt::is_ollama(kind) => Role::File,
            mt::ONNX => Role::Onnx,
            // A file that an import stored whole in addition to the weights is not part of the model.
            _ if has_weights => Role::File,
            _ => path.as_deref().map_or(Role::File, Role::of_path),
        };
        ModelFile::new(layer, path, role, Packing::Plain)
    };
    manifest.layers.iter().map(file).collect()
}

pub(super) fn docker_files(manifest: &Manifest) -> Vec<ModelFile> {
    let count = |kind: &str| manifest.layers.iter().filter(|layer| layer.media_type == kind).count();
    let (n_gguf, n_safetensors) = (count(mt::DOCKER_MODEL_GGUF), count(mt::DOCKER_MODEL_SAFETENSORS));
    let (mut gguf, mut safetensors) = (0, 0);
    // Layers without a name get the names that Docker's tooling unpacks them to.
    let numbered = |at: &mut usize, of: usize, extension: &str| {
        *at += 1;
        match of {
            1 => format!("model.{extension}"),
            _ => format!("model-{at:05}-of-{of:05}.{extension}"),
        }
    };
    let mut files = Vec::with_capacity(manifest.layers.len());
    for layer in &manifest.layers {
        let path = annotated_path(layer);
        let kind = layer.media_type.strip_prefix(mt::DOCKER_MODEL_PREFIX).unwrap_or_default();
        let (role, fixed) = match kind {
            "gguf.v3" => (Role::Gguf, Some(numbered(&mut gguf, n_gguf, "gguf"))),
            "safetensors" => {
                let fixed = numbered(&mut safetensors, n_safetensors, "safetensors");
                let is_adapter = path.as_deref().is_some_and(|path| Role::of_path(path) == Role::Adapter);
                (if is_adapter { Role::Adapter } else { Role::Safetensors }, Some(fixed))
            }
            "gguf.v3.lora" => (Role::Adapter, None),
            "gguf.v3.mmproj" | "mmproj" => (Role::Projector, Some("model.mmproj".to_owned())),
            "chat.template.jinja" => (Role::File, Some("chat_template.jinja".to_owned())),
            "license" => (Role::License, None),
            _ if mt::is_modelpack(&layer.media_type) => {
                files.push(modelpack_file(layer, ""));
                continue;
            }
            _ => (path.as_deref().map_or(Role::File, Role::of_path), None),
        };
        files.push(ModelFile::new(layer, path.or(fixed), role, packing(&layer.media_type)));
    }
    files
}

/// The part of a ModelPack config that gives the format of unnamed weights.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Format {
    config: FormatConfig,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct FormatConfig {
    format: String,
}

pub(super) fn modelpack_files(manifest: &Manifest, config: Option<&[u8]>) -> Vec<ModelFile> {
    let config = config.and_then(|bytes| serde_json::from_slice::<Format>(bytes).ok()).unwrap_or_default();
    let format = config.config.format.to_ascii_lowercase();
    manifest.layers.iter().map(|layer| modelpack_file(layer, &format)).collect()
}

/// `application/vnd.cncf.model.KIND.v1.PACKING`; some tools write the file's format in place of the packing.
fn modelpack_file(layer: &Descriptor, format: &str) -> ModelFile {
    let path = annotated_path(layer);
    let kind = layer.media_type.as_str();
    let rest = kind.strip_prefix(mt::MODELPACK_PREFIX).or_else(|| kind.strip_prefix(mt::CNAI_PREFIX));
    let is_weight = rest.is_some_and(|rest| rest.starts_with("weight.v"));
    let by_name = path.as_deref().map_or(Role::File, Role::of_path);
    let format_name = if kind.ends_with(".gguf") || kind.ends_with(".safetensors") {
        kind.rsplit_once('.').map_or("", |(_, format)| format)
    } else {
        format
    };
    let role = match format_name {
        _ if rest.is_some() && !is_weight => Role::File,
        _ if by_name != Role::File || (path.is_some() && has_extension(path.as_deref())) => by_name,
        format_name => WeightFormat::of_name(format_name).map_or(by_name, Role::of_weights),
    };
    ModelFile::new(layer, path, role, packing(kind))
}

/// Whether a file name has an extension.
fn has_extension(path: Option<&str>) -> bool {
    let name = path.map(|path| path.rsplit_once('/').map_or(path, |(_, name)| name));
    name.is_some_and(|name| name.contains('.'))
}

/// Returns the layers of an image. Their files are searched for below `models/`.
pub(super) fn image_layers(manifest: &Manifest) -> Vec<ModelFile> {
    let file = |layer: &Descriptor| ModelFile::new(layer, None, Role::File, packing(&layer.media_type));
    manifest.layers.iter().map(file).collect()
}

/// Returns layers that are files by their title. A titled layer of the plain tar type is not a tar: oras uses
/// this type for any file that it gets without one.
pub(super) fn titled_files(manifest: &Manifest) -> Vec<ModelFile> {
    let file = |layer: &Descriptor| {
        let path = annotated_path(layer);
        let packing = match packing(&layer.media_type) {
            Packing::Tar if layer.media_type == mt::OCI_LAYER_TAR && path.is_some() => Packing::Plain,
            packing => packing,
        };
        let role = path.as_deref().map_or(Role::File, Role::of_path);
        let role = match layer.media_type.as_str() {
            _ if role != Role::File => role,
            mt::DOCKER_MODEL_GGUF => Role::Gguf,
            mt::DOCKER_MODEL_SAFETENSORS => Role::Safetensors,
            _ => role,
        };
        ModelFile::new(layer, path, role, packing)
    };
    manifest.layers.iter().map(file).collect()
}

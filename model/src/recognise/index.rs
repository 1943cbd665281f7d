//! Lists the tensors of a manifest's layers and summarises the model. It reads through [`ReadAt`], which the
//! caller implements over ranges of a stored blob, a mapped file, or bytes.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::Deserialize;

use super::{Artifact, FileKind, ModelFile, Role};
use crate::config::ModelConfig;
use crate::gguf;
use crate::manifest::{Descriptor, Manifest};
use crate::media_type;
use crate::onnx::{self, OnnxError};
use crate::read_at::ReadAt;
use crate::safetensors::{Dtype, Header, HeaderError, LENGTH_BYTES, byte_size, header_len};
use crate::tensor::{Part, Parts, Tensor, TensorError, TensorInfo, read_blob, read_plain};

/// A short description of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelSummary {
    /// `safetensors`, `gguf`, `onnx`, or the format in its config.
    pub format: String,
    pub architecture: Option<String>,
    /// The number of elements of all tensors. If no tensors can be read, the rounded number from the config.
    pub parameters: Option<u64>,
    /// The quantisation that the files state, else the quantisation with the fewest bits, else the dtype of
    /// most elements.
    pub quantization: Option<String>,
}

/// Why a file's tensors cannot be listed.
#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    #[error(transparent)]
    Header(#[from] HeaderError),
    #[error(transparent)]
    Tensor(#[from] TensorError),
    #[error(transparent)]
    Gguf(#[from] gguf::ReadError),
    #[error(transparent)]
    Onnx(#[from] OnnxError),
}

/// The longest header that is indexed, in bytes: some 300,000 tensors in one file. The format allows three
/// times as much, but an untrusted push would use this memory on the server.
pub const MAX_HEADER_BYTES: u64 = 32 * 1024 * 1024;

/// The longest GGUF header that is indexed, in bytes. Today's vocabularies need some 20 MB.
pub const MAX_GGUF_HEADER_BYTES: u64 = 64 * 1024 * 1024;

/// Facts that a file states besides its tensors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileFacts {
    pub architecture: Option<String>,
    pub parameters: Option<u64>,
    pub quantization: Option<String>,
    /// The name of the model.
    pub name: Option<String>,
}

/// The tensors of one file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TensorListing {
    /// Offsets count from the start of the file.
    pub tensors: Vec<Tensor>,
    /// Tensors whose bytes are in another file, with the location that this file gives. Their offsets count
    /// from the start of that file.
    pub external_tensors: Vec<(String, Tensor)>,
    pub facts: FileFacts,
}

/// Lists a file's tensors. It reads headers only. `bytes` are the bytes of the file, whatever its offset in
/// the layer.
pub fn list_tensors(file: &ModelFile, bytes: &dyn ReadAt) -> Result<TensorListing, IndexError> {
    let tensors = match file.kind() {
        Some(FileKind::TensorBlob) => match read_headerless_tensor(file, bytes.len()) {
            Some(tensor) => vec![tensor],
            None => safetensors(file.layer.name.as_deref(), bytes)?,
        },
        Some(FileKind::Safetensors) => safetensors(None, bytes)?,
        Some(FileKind::Gguf) => return gguf_file(bytes),
        Some(FileKind::Onnx) => return onnx_file(bytes),
        None => Vec::new(),
    };
    Ok(TensorListing { tensors, ..TensorListing::default() })
}

fn gguf_file(bytes: &dyn ReadAt) -> Result<TensorListing, IndexError> {
    let header = gguf::Header::read_up_to(bytes, MAX_GGUF_HEADER_BYTES)?;
    let metadata = &header.metadata;
    let facts = FileFacts {
        architecture: metadata.architecture().map(str::to_owned),
        parameters: None,
        quantization: header.quantisation().map(str::to_owned),
        name: metadata.str("general.name").map(str::to_owned),
    };
    Ok(TensorListing { tensors: header.to_tensors(), facts, ..TensorListing::default() })
}

/// Strings, and initializers that are not stored as an array, are left out.
fn onnx_file(bytes: &dyn ReadAt) -> Result<TensorListing, IndexError> {
    let mut listed = TensorListing::default();
    for initializer in onnx::Model::read(bytes)?.tensors {
        let (Some(dtype), Some(size_bytes)) = (initializer.dtype(), initializer.size_bytes()) else {
            continue;
        };
        let tensor = |offset| Tensor {
            name: initializer.name.clone(),
            dtype: dtype.to_string(),
            quantisation: None,
            shape: initializer.shape.clone(),
            parts: Parts {
                weight: Part { dtype, shape: initializer.shape.clone(), offset, size_bytes },
                scale: None,
                bias: None,
                global_scale: None,
            },
        };
        match &initializer.data {
            onnx::Data::Inline { offset, .. } => listed.tensors.push(tensor(*offset)),
            onnx::Data::External { location, offset, .. } => {
                listed.external_tensors.push((location.clone(), tensor(*offset)));
            }
            onnx::Data::Encoded => {}
        }
    }
    Ok(listed)
}

fn safetensors(name: Option<&str>, bytes: &dyn ReadAt) -> Result<Vec<Tensor>, IndexError> {
    let file_len = bytes.len();
    let mut first = [0; LENGTH_BYTES as usize];
    if file_len < LENGTH_BYTES {
        return Err(HeaderError::TooShort { len: file_len }.into());
    }
    bytes.read_at(0, &mut first).map_err(HeaderError::Read)?;
    let len = header_len(first, file_len)?;
    if len > MAX_HEADER_BYTES {
        return Err(HeaderError::Length { len, limit: MAX_HEADER_BYTES, file_len }.into());
    }
    let header = Header::read(bytes)?;
    match read_blob(name, &header) {
        // U32 tensors with scales, but no metadata that marks them as Lode's: list them as ordinary tensors.
        Err(TensorError::Ambiguous { .. }) => Ok(read_plain(&header)),
        read => Ok(read?),
    }
}

/// A layer that older writers made of a tensor's bytes alone, with its type and shape in the manifest. A
/// safetensors file is always longer than its tensors, so the length distinguishes the two.
fn read_headerless_tensor(file: &ModelFile, len: u64) -> Option<Tensor> {
    let dtype: Dtype = serde_json::from_value(file.layer.dtype.clone()?).ok()?;
    let shape: Vec<u64> = match file.layer.shape.as_ref()? {
        serde_json::Value::String(text) => {
            let dims = text.trim_matches(['[', ']']).split(',').map(|dim| dim.trim().parse().ok());
            dims.collect::<Option<_>>()?
        }
        list => serde_json::from_value(list.clone()).ok()?,
    };
    let size_bytes = byte_size(dtype, &shape).filter(|size_bytes| *size_bytes == len)?;
    let weight = Part { dtype, shape: shape.clone(), offset: 0, size_bytes };
    let parts = Parts { weight, scale: None, bias: None, global_scale: None };
    Some(Tensor {
        name: file.layer.name.clone()?,
        dtype: dtype.to_string(),
        quantisation: None,
        shape,
        parts,
    })
}

/// The index of one file of a model.
#[derive(Clone, Debug)]
pub struct FileIndex {
    /// Whether the file holds the model's weights, rather than those of an adapter or a projector.
    pub is_main: bool,
    pub tensors: Vec<TensorInfo>,
    pub facts: FileFacts,
}

/// The files of an artifact by path, collected once, because an untrusted manifest may have very many files.
pub struct ArtifactFiles<'a> {
    /// The folder of an image model.
    image_root: Option<&'a str>,
    by_path: HashMap<&'a str, &'a ModelFile>,
}

impl<'a> ArtifactFiles<'a> {
    pub fn new(artifact: &'a Artifact) -> ArtifactFiles<'a> {
        let mut by_path = HashMap::new();
        for file in &artifact.files {
            if let Some(path) = file.path.as_deref() {
                by_path.entry(path).or_insert(file);
            }
        }
        ArtifactFiles { image_root: artifact.is_image_model().then(|| artifact.root()), by_path }
    }

    /// The number of bytes in the names that [`Self::index`] gives to a file's tensors.
    pub fn name_bytes(&self, file: &ModelFile, listed: &TensorListing) -> u64 {
        let folder = self.component_folder(file).len() as u64;
        let inside = listed.tensors.iter().map(|tensor| folder.saturating_add(tensor.name.len() as u64));
        let outside = listed.external_tensors.iter().map(|(_, tensor)| tensor.name.len() as u64);
        inside.chain(outside).fold(0, u64::saturating_add)
    }

    /// Returns the folder of an image model's component, with a trailing slash; empty for other files.
    fn component_folder<'f>(&self, file: &'f ModelFile) -> &'f str {
        match (&file.path, file.role, self.image_root) {
            (Some(path), Role::Safetensors, Some(root)) => {
                let inside = path.strip_prefix(root).unwrap_or(path);
                inside.rfind('/').map_or("", |at| &inside[..=at])
            }
            _ => "",
        }
    }

    /// Converts a file's tensors to offsets in its layer. The tensors of an image model's components get
    /// their folder as a prefix, as in imports that store each tensor as a layer.
    pub fn index(&self, file: &ModelFile, is_main: bool, listed: TensorListing) -> FileIndex {
        let folder = self.component_folder(file);
        let place = |mut tensor: Tensor| {
            tensor.name.insert_str(0, folder);
            tensor.moved_by(file.offset).in_blob(file.layer.digest.clone())
        };
        // Tensors in another file are listed if that file exists and is long enough.
        let outside = listed.external_tensors.into_iter().filter_map(|(location, tensor)| {
            let path = onnx::Model::resolve_location(file.path.as_deref().unwrap_or_default(), &location);
            let home = self.by_path.get(path.as_str())?;
            let weight = &tensor.parts.weight;
            let end = weight.offset.checked_add(weight.size_bytes)?;
            let is_inside = home.is_plain() && end <= home.size;
            is_inside.then(|| tensor.moved_by(home.offset).in_blob(home.layer.digest.clone()))
        });
        let tensors = listed.tensors.into_iter().map(place).chain(outside).collect();
        FileIndex { is_main, tensors, facts: listed.facts }
    }
}

/// Summarises the model; `None` if the manifest is not a model.
///
/// `config` is the manifest's config blob and `config_json` the checkpoint's own; either may be absent or
/// unreadable. The files take precedence over the config, so that a model has the same summary whichever tool
/// pushed it.
pub fn summarise(
    manifest: &Manifest,
    artifact: &Artifact,
    config: Option<&[u8]>,
    config_json: Option<&[u8]>,
    files: &[FileIndex],
) -> Option<ModelSummary> {
    let config_facts =
        manifest.config.as_ref().map(|c| read_config_facts(manifest, c, config.unwrap_or_default()));
    let config_facts = config_facts.unwrap_or_default();
    let format = artifact.format().map(str::to_owned).or(config_facts.format)?;
    let checkpoint: Checkpoint =
        config_json.and_then(|json| serde_json::from_slice(json).ok()).unwrap_or_default();
    let class = checkpoint.architectures.into_iter().flatten().next();

    let main: Vec<&FileIndex> = files.iter().filter(|file| file.is_main).collect();
    let of_file =
        |fact: fn(&FileFacts) -> &Option<String>| main.iter().find_map(|file| fact(&file.facts).clone());
    let mut names = HashSet::new();
    let tensors: Vec<&TensorInfo> = main
        .iter()
        .flat_map(|file| &file.tensors)
        .filter(|tensor| names.insert(tensor.name.as_str()))
        .collect();
    let counted = tensors.iter().fold(0_u64, |sum, tensor| sum.saturating_add(tensor.elements()));
    let method = checkpoint.quantization_config.and_then(|quantization| quantization.quant_method);
    Some(ModelSummary {
        format,
        architecture: of_file(|facts| &facts.architecture)
            .or(checkpoint.model_type)
            .or(checkpoint.class_name)
            .or(config_facts.architecture)
            .or(class),
        parameters: match tensors.is_empty() {
            true => main.iter().find_map(|file| file.facts.parameters).or(config_facts.parameters),
            false => Some(counted),
        },
        quantization: of_file(|facts| &facts.quantization)
            .or(method)
            .or_else(|| main_dtype(&tensors))
            .or(config_facts.quantization),
    })
}

/// Returns the quantisation with the fewest bits, because a "4-bit" model keeps many tensors at more bits.
/// Without any, returns the dtype with the most elements; on a tie, the name that comes first.
fn main_dtype(tensors: &[&TensorInfo]) -> Option<String> {
    let kinds = tensors.iter().filter_map(|tensor| tensor.quantisation).map(|quantisation| quantisation.kind);
    if let Some(kind) = kinds.min_by_key(|kind| (kind.bits(), *kind)) {
        return Some(kind.to_string());
    }
    let mut sums = BTreeMap::<&str, u64>::new();
    for tensor in tensors {
        let sum = sums.entry(&tensor.dtype).or_default();
        *sum = sum.saturating_add(tensor.elements());
    }
    sums.into_iter().rev().max_by_key(|(_, sum)| *sum).map(|(dtype, _)| dtype.to_owned())
}

/// The part of a checkpoint's `config.json` that names its architecture.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Checkpoint {
    model_type: Option<String>,
    architectures: Option<Vec<String>>,
    /// From an image model's index, which replaces the config.
    #[serde(rename = "_class_name")]
    class_name: Option<String>,
    quantization_config: Option<QuantizationConfig>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct QuantizationConfig {
    quant_method: Option<String>,
}

/// The model facts in a config blob of any type.
#[derive(Default)]
struct ConfigFacts {
    format: Option<String>,
    architecture: Option<String>,
    parameters: Option<u64>,
    quantization: Option<String>,
}

fn read_config_facts(manifest: &Manifest, config: &Descriptor, bytes: &[u8]) -> ConfigFacts {
    let kind = config.media_type.as_str();
    let is_ollama = manifest.layers.iter().any(|layer| media_type::is_ollama(&layer.media_type));
    if is_ollama && let Ok(config) = ModelConfig::parse(bytes) {
        return ConfigFacts {
            format: non_empty(config.model_format),
            architecture: non_empty(config.model_family),
            parameters: parse_parameter_count(&config.model_type),
            quantization: non_empty(config.file_type),
        };
    }
    let has_more = media_type::is_docker_model_config(kind) || media_type::is_modelpack(kind);
    if has_more && let Ok(claims) = serde_json::from_slice::<NestedConfig>(bytes) {
        let ClaimedConfig { format, architecture, parameters, param_size, quantization } = claims.config;
        return ConfigFacts {
            format: non_empty(format),
            architecture: non_empty(architecture),
            parameters: parse_parameter_count(&parameters).or_else(|| parse_parameter_count(&param_size)),
            quantization: non_empty(quantization),
        };
    }
    ConfigFacts::default()
}

/// The config of a Docker model or a ModelPack: the same facts under different keys.
#[derive(Default, Deserialize)]
#[serde(default)]
struct NestedConfig {
    config: ClaimedConfig,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ClaimedConfig {
    format: String,
    architecture: String,
    parameters: String,
    #[serde(rename = "paramSize")]
    param_size: String,
    quantization: String,
}

fn non_empty(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

/// Parses a number of parameters as people write it: `8.0B`, `361.82 M`, `7b`.
fn parse_parameter_count(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let unit = match text[digits..].trim().to_ascii_uppercase().as_str() {
        "" => 1.0,
        "K" => 1e3,
        "M" => 1e6,
        "B" => 1e9,
        "T" => 1e12,
        "Q" => 1e15,
        _ => return None,
    };
    let number: f64 = text[..digits].parse().ok()?;
    Some((number * unit).round() as u64)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::digest::Digest;

    fn manifest(config_type: &str, layers: &[(&str, &str, &str)]) -> Manifest {
        let layer = |(kind, key, value): &(&str, &str, &str)| {
            let digest = Digest::sha256(value.as_bytes());
            match *key {
                "name" => json!({"mediaType": kind, "digest": digest, "size": 9, "name": value}),
                key => json!({"mediaType": kind, "digest": digest, "size": 9, "annotations": {key: value}}),
            }
        };
        let layers: Vec<_> = layers.iter().map(layer).collect();
        let config = json!({"mediaType": config_type, "digest": Digest::sha256(b"config"), "size": 2});
        let manifest = json!({"schemaVersion": 2, "config": config, "layers": layers});
        Manifest::parse(None, manifest.to_string().as_bytes()).unwrap()
    }

    fn blob(header: &str, data_len: usize) -> Vec<u8> {
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0; data_len]].concat()
    }

    fn read(artifact: &Artifact, at: usize, bytes: &dyn ReadAt) -> FileIndex {
        let file = &artifact.files[at];
        ArtifactFiles::new(artifact).index(file, true, list_tensors(file, bytes).unwrap())
    }

    #[test]
    fn a_tensor_model() {
        let manifest = manifest(
            media_type::DOCKER_CONFIG,
            &[
                (media_type::OLLAMA_TENSOR, "name", "a.weight"),
                (media_type::OLLAMA_JSON, "name", "config.json"),
            ],
        );
        let artifact = Artifact::read(&manifest, None);
        let blob = blob(r#"{"data":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]}}"#, 12);
        let files = [read(&artifact, 0, &blob)];
        let tensor = &files[0].tensors[0];
        assert_eq!((tensor.name.as_str(), &tensor.shape[..]), ("a.weight", &[2, 3][..]));
        assert_eq!(tensor.offset, blob.len() as u64 - 12);
        assert_eq!(artifact.find("config.json").map(|file| file.layer.as_ref()), Some(&manifest.layers[1]));
        let config_json = Some(&br#"{"model_type":"llama"}"#[..]);
        let summary = summarise(&manifest, &artifact, Some(b"{}"), config_json, &files).unwrap();
        assert_eq!(
            (summary.format.as_str(), summary.architecture.as_deref()),
            ("safetensors", Some("llama"))
        );
        assert_eq!((summary.parameters, summary.quantization.as_deref()), (Some(6), Some("BF16")));
    }

    #[test]
    fn a_gguf_model() {
        let mut metadata = gguf::Metadata::new();
        metadata.set("general.architecture", "qwen3");
        metadata.set("general.file_type", 15u32);
        metadata.set("general.name", "Tiny");
        let tensor = |name: &str, ty| gguf::NewTensor { name: name.to_owned(), dims: vec![256, 2], ty };
        let types = [("a", crate::quant::ggml::Type::Q4_K), ("b", crate::quant::ggml::Type::F32)];
        let header = gguf::Header::new(metadata, types.map(|(name, ty)| tensor(name, ty))).unwrap();
        let mut bytes = header.to_bytes();
        bytes.resize(header.file_len() as usize, 0);

        let manifest = manifest(media_type::DOCKER_CONFIG, &[(media_type::OLLAMA_MODEL, "name", "m.gguf")]);
        let artifact = Artifact::read(&manifest, None);
        let files = [read(&artifact, 0, &bytes)];
        let listed: Vec<_> =
            files[0].tensors.iter().map(|tensor| (tensor.dtype.as_str(), tensor.offset)).collect();
        assert_eq!(listed, [("Q4_K", header.data_start), ("F32", header.data_start + 288)]);
        assert_eq!(files[0].tensors[0].parts.weight.shape, [2, 144]);
        // The file takes precedence over the config.
        let config = br#"{"model_format":"gguf","model_family":"llama","file_type":"Q8_0"}"#;
        let summary = summarise(&manifest, &artifact, Some(config), None, &files).unwrap();
        assert_eq!((summary.format.as_str(), summary.architecture.as_deref()), ("gguf", Some("qwen3")));
        assert_eq!((summary.parameters, summary.quantization.as_deref()), (Some(1024), Some("Q4_K_M")));
        assert!(list_tensors(&artifact.files[0], &bytes[..40].to_vec()).is_err());
    }

    #[test]
    fn a_tensor_without_a_header_of_its_own() {
        let kind = "application/vnd.ollama.image.tensor; name=a.weight; dtype=F32; shape=2,3";
        let manifest = manifest(media_type::DOCKER_CONFIG, &[(kind, "x", "y")]);
        let artifact = Artifact::read(&manifest, None);
        let files = [read(&artifact, 0, &vec![0; 24])];
        let tensor = &files[0].tensors[0];
        assert_eq!((tensor.name.as_str(), &tensor.shape[..], tensor.offset), ("a.weight", &[2, 3][..], 0));
        // If there is a header, it takes precedence.
        let blob = blob(r#"{"data":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]}}"#, 12);
        assert_eq!(read(&artifact, 0, &blob).tensors[0].dtype, "BF16");
        assert!(list_tensors(&artifact.files[0], &vec![0; 23]).is_err());
    }

    #[test]
    fn component_folders_are_short_and_counted() {
        let index_of = |path: &str| {
            let layers = [("x/y", media_type::TITLE_ANNOTATION, "model_index.json")];
            let layers = [layers[0], ("x/y", media_type::TITLE_ANNOTATION, path)];
            let artifact = Artifact::read(&manifest(media_type::OCI_EMPTY, &layers), None);
            let bytes = blob(r#"{"w":{"dtype":"BF16","shape":[0],"data_offsets":[0,0]}}"#, 0);
            let listed = list_tensors(&artifact.files[1], &bytes).unwrap();
            let files = ArtifactFiles::new(&artifact);
            let name_bytes = files.name_bytes(&artifact.files[1], &listed);
            let index = files.index(&artifact.files[1], true, listed);
            assert_eq!(name_bytes, index.tensors[0].name.len() as u64);
            index.tensors[0].name.clone()
        };
        assert_eq!(index_of("unet/x.safetensors"), "unet/w");
        assert_eq!(index_of(&format!("{}/x.safetensors", "a".repeat(2000))), "w");
    }

    #[test]
    fn formats_are_recognised() {
        let title = media_type::TITLE_ANNOTATION;
        let tar = media_type::OCI_LAYER_TAR;
        let raw = "application/vnd.cncf.model.weight.v1.raw";
        let packed = "application/vnd.cncf.model.weight.v1.tar";
        let cases = [
            (media_type::DOCKER_CONFIG, media_type::OLLAMA_MODEL, "name", "", Some("gguf")),
            (media_type::OCI_EMPTY, tar, title, "model.safetensors", Some("safetensors")),
            (media_type::OCI_EMPTY, tar, title, "model.gguf", Some("gguf")),
            (media_type::OCI_EMPTY, tar, title, "model.onnx", Some("onnx")),
            (media_type::OCI_EMPTY, tar, title, "README.md", None),
            (media_type::OCI_CONFIG, tar, "x", "y", None),
            (
                media_type::MODELPACK_CONFIG,
                raw,
                media_type::FILEPATH_ANNOTATION,
                "m.safetensors",
                Some("safetensors"),
            ),
            (
                media_type::MODELPACK_CONFIG,
                packed,
                media_type::FILEPATH_ANNOTATION,
                "m.safetensors",
                Some("said"),
            ),
        ];
        for (config, kind, key, value, expect) in cases {
            let manifest = manifest(config, &[(kind, key, value)]);
            let config_json = br#"{"config":{"format":"said","paramSize":"8b"}}"#;
            let artifact = Artifact::read(&manifest, Some(config_json));
            let summary = summarise(&manifest, &artifact, Some(config_json), None, &[]);
            assert_eq!(summary.map(|summary| summary.format).as_deref(), expect, "{kind} {value}");
        }
    }

    #[test]
    fn untrusted_headers_are_checked() {
        let manifest = manifest(media_type::DOCKER_CONFIG, &[(media_type::OLLAMA_TENSOR, "name", "a")]);
        let artifact = Artifact::read(&manifest, None);
        let refused = |bytes: &Vec<u8>| list_tensors(&artifact.files[0], bytes).is_err();
        assert!(refused(&vec![0xff; 100]));
        assert!(refused(&[&93_u64.to_le_bytes()[..], &[b' '; 92]].concat()));
        assert!(refused(&blob(r#"{"a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]}}"#, 11)));
        assert!(refused(&Vec::new()) && refused(&vec![0; 7]));
        // Longer than the limit, whatever the file holds.
        struct Huge;
        impl ReadAt for Huge {
            fn len(&self) -> u64 {
                1 << 40
            }
            fn read_at(&self, _: u64, buf: &mut [u8]) -> std::io::Result<()> {
                buf.copy_from_slice(&(MAX_HEADER_BYTES + 1).to_le_bytes());
                Ok(())
            }
        }
        assert!(list_tensors(&artifact.files[0], &Huge).is_err());
    }

    #[test]
    fn parameters_as_written() {
        for (text, expect) in [
            ("8.0B", Some(8_000_000_000)),
            ("361.82 M", Some(361_820_000)),
            ("7b", Some(7_000_000_000)),
            ("12", Some(12)),
            ("", None),
            ("many", None),
            ("1.2.3B", None),
        ] {
            assert_eq!(parse_parameter_count(text), expect, "{text}");
        }
    }
}

//! What a manifest is as a model: which of its layers hold tensors, which tensors, and the few words that lists show.
//! Pure steps around the reads: the caller fetches the bytes asked for, by range, and hands them in.

use serde::Deserialize;

use crate::config::ModelConfig;
use crate::manifest::{Descriptor, Manifest};
use crate::media_type;
use crate::safetensors::{Header, HeaderError, LENGTH_BYTES};
use crate::tensor::{TensorError, TensorInfo, read_blob, read_plain};

/// The few words about a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelSummary {
    /// `safetensors`, `gguf`, `onnx`, or what its config says.
    pub format: String,
    pub architecture: Option<String>,
    /// Elements of all tensors; where none can be read, what the config says, rounded as it is there.
    pub parameters: Option<u64>,
    /// The quantisation or dtype of most of its elements, unless the config names one.
    pub quantization: Option<String>,
}

/// Why a layer's tensors cannot be listed.
#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    #[error(transparent)]
    Header(#[from] HeaderError),
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

/// Whether a layer is a safetensors file, by what the manifest says of it.
pub fn holds_tensors(layer: &Descriptor) -> bool {
    let kind = layer.media_type.as_str();
    if matches!(kind, media_type::OLLAMA_TENSOR | media_type::DOCKER_MODEL_SAFETENSORS) {
        return true;
    }
    // A file that import stored whole beside the checkpoint is not part of the model.
    if kind == media_type::OCTET_STREAM && layer.name.is_some() {
        return false;
    }
    // Some clients call every file a tar; only ModelPack and compressed types mean it.
    let packed = kind.ends_with("+gzip") || kind.ends_with("+zstd");
    let packed = packed || (media_type::is_modelpack(kind) && kind.ends_with(".tar"));
    !packed && has_extension(layer, ".safetensors")
}

/// The longest header that is indexed, in bytes: some 300,000 tensors in one file. The format allows three times as much, but
/// this is memory that a stranger's push takes on the server.
pub const MAX_HEADER_BYTES: u64 = 32 * 1024 * 1024;

/// How many bytes from the start of a blob hold its whole header, from its first eight.
pub fn header_len(first: [u8; LENGTH_BYTES as usize], blob_len: u64) -> Result<u64, IndexError> {
    let len = crate::safetensors::header_len(first, blob_len)?;
    if len > MAX_HEADER_BYTES {
        return Err(HeaderError::Length { len, limit: MAX_HEADER_BYTES, file_len: blob_len }.into());
    }
    Ok(LENGTH_BYTES + len)
}

/// The tensors of a layer, from the first [`header_len`] bytes of its blob of `blob_len`.
pub fn tensors_of_layer(
    layer: &Descriptor,
    header: &[u8],
    blob_len: u64,
) -> Result<Vec<TensorInfo>, IndexError> {
    let json =
        header.get(LENGTH_BYTES as usize..).ok_or(HeaderError::TooShort { len: header.len() as u64 })?;
    let data_len = blob_len
        .checked_sub(header.len() as u64)
        .ok_or(HeaderError::TooShort { len: header.len() as u64 })?;
    let header = Header::parse(json, data_len)?;
    let name = layer.name.as_deref().filter(|_| layer.media_type == media_type::OLLAMA_TENSOR);
    let tensors = match read_blob(name, &header) {
        // Words with a scale beside them, but nothing says that they are ours: they are listed as they are.
        Err(TensorError::Ambiguous { .. }) => read_plain(&header),
        read => read?,
    };
    Ok(tensors.into_iter().map(|tensor| tensor.in_blob(layer.digest.clone())).collect())
}

/// The checkpoint's `config.json`, where the manifest carries it as a file.
pub fn config_layer(manifest: &Manifest) -> Option<&Descriptor> {
    manifest.layers.iter().find(|layer| layer.file_path() == Some("config.json"))
}

/// What the model is; None where the manifest is no model.
///
/// `config` is the manifest's config blob and `config_json` the bytes of [`config_layer`]; either may be absent or unreadable.
pub fn summary(
    manifest: &Manifest,
    config: Option<&[u8]>,
    config_json: Option<&[u8]>,
    tensors: &[TensorInfo],
) -> Option<ModelSummary> {
    let said = manifest.config.as_ref().map(|c| said_by_config(manifest, c, config.unwrap_or_default()));
    let said = said.unwrap_or_default();
    let format = format_of_layers(manifest).map(str::to_owned).or(said.format)?;
    let checkpoint: Checkpoint =
        config_json.and_then(|json| serde_json::from_slice(json).ok()).unwrap_or_default();
    let class = checkpoint.architectures.into_iter().flatten().next();
    let counted = tensors.iter().fold(0_u64, |sum, tensor| sum.saturating_add(tensor.elements()));
    Some(ModelSummary {
        format,
        architecture: said.architecture.or(checkpoint.model_type).or(class),
        parameters: if tensors.is_empty() { said.parameters } else { Some(counted) },
        quantization: said.quantization.or_else(|| commonest_dtype(tensors)),
    })
}

fn format_of_layers(manifest: &Manifest) -> Option<&'static str> {
    let any = |test: &dyn Fn(&Descriptor) -> bool| manifest.layers.iter().any(test);
    let is_gguf = |layer: &Descriptor| {
        matches!(layer.media_type.as_str(), media_type::OLLAMA_MODEL | media_type::DOCKER_MODEL_GGUF)
            || has_extension(layer, ".gguf")
    };
    if any(&holds_tensors) {
        Some("safetensors")
    } else if any(&is_gguf) {
        Some("gguf")
    } else if any(&|layer| has_extension(layer, ".onnx")) {
        Some("onnx")
    } else {
        None
    }
}

fn has_extension(layer: &Descriptor, extension: &str) -> bool {
    layer.file_path().is_some_and(|path| path.ends_with(extension))
}

/// The dtype with the most elements; between equals, the name that comes first.
fn commonest_dtype(tensors: &[TensorInfo]) -> Option<String> {
    let mut sums = std::collections::BTreeMap::<&str, u64>::new();
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
}

/// What a config blob claims, whichever kind it is.
#[derive(Default)]
struct Said {
    format: Option<String>,
    architecture: Option<String>,
    parameters: Option<u64>,
    quantization: Option<String>,
}

fn said_by_config(manifest: &Manifest, config: &Descriptor, bytes: &[u8]) -> Said {
    let kind = config.media_type.as_str();
    let is_ollama = manifest.layers.iter().any(|layer| media_type::is_ollama(&layer.media_type));
    if is_ollama && let Ok(config) = ModelConfig::parse(bytes) {
        return Said {
            format: told(config.model_format),
            architecture: told(config.model_family),
            parameters: rounded(&config.model_type),
            quantization: told(config.file_type),
        };
    }
    let has_more = media_type::is_docker_model_config(kind) || media_type::is_modelpack(kind);
    if has_more && let Ok(artifact) = serde_json::from_slice::<Artifact>(bytes) {
        let ArtifactConfig { format, architecture, parameters, param_size, quantization } = artifact.config;
        return Said {
            format: told(format),
            architecture: told(architecture),
            parameters: rounded(&parameters).or_else(|| rounded(&param_size)),
            quantization: told(quantization),
        };
    }
    Said::default()
}

/// The config of a Docker model or a ModelPack: the same idea under different keys.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Artifact {
    config: ArtifactConfig,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ArtifactConfig {
    format: String,
    architecture: String,
    parameters: String,
    #[serde(rename = "paramSize")]
    param_size: String,
    quantization: String,
}

fn told(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

/// `8.0B`, `361.82 M`, `7b`: a number of parameters as people write it.
fn rounded(text: &str) -> Option<u64> {
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

    #[test]
    fn a_tensor_model() {
        let manifest = manifest(
            media_type::DOCKER_CONFIG,
            &[
                (media_type::OLLAMA_TENSOR, "name", "a.weight"),
                (media_type::OLLAMA_JSON, "name", "config.json"),
            ],
        );
        let layer = &manifest.layers[0];
        assert!(holds_tensors(layer) && !holds_tensors(&manifest.layers[1]));

        let blob = blob(r#"{"data":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]}}"#, 12);
        let len = header_len(*blob.first_chunk().unwrap(), blob.len() as u64).unwrap();
        let tensors = tensors_of_layer(layer, &blob[..len as usize], blob.len() as u64).unwrap();
        assert_eq!(
            (tensors[0].name.as_str(), &tensors[0].shape[..], tensors[0].offset),
            ("a.weight", &[2, 3][..], len)
        );

        assert_eq!(config_layer(&manifest), Some(&manifest.layers[1]));
        let summary = summary(&manifest, Some(b"{}"), Some(br#"{"model_type":"llama"}"#), &tensors).unwrap();
        assert_eq!(
            (summary.format.as_str(), summary.architecture.as_deref()),
            ("safetensors", Some("llama"))
        );
        assert_eq!((summary.parameters, summary.quantization.as_deref()), (Some(6), Some("BF16")));
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
            (media_type::DOCKER_CONFIG, media_type::OCTET_STREAM, "name", "sub/extra.safetensors", None),
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
            let said = br#"{"config":{"format":"said","paramSize":"8b"}}"#;
            let format = summary(&manifest, Some(said), None, &[]).map(|summary| summary.format);
            assert_eq!(format.as_deref(), expect, "{kind} {value}");
        }
    }

    #[test]
    fn a_strangers_header_is_checked() {
        let manifest = manifest(media_type::DOCKER_CONFIG, &[(media_type::OLLAMA_TENSOR, "name", "a")]);
        let layer = &manifest.layers[0];
        assert!(header_len(u64::MAX.to_le_bytes(), 100).is_err());
        assert!(header_len(93_u64.to_le_bytes(), 100).is_err());
        assert!(header_len((MAX_HEADER_BYTES + 1).to_le_bytes(), 1 << 40).is_err());
        let short = blob(r#"{"a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]}}"#, 11);
        assert!(tensors_of_layer(layer, &short[..short.len() - 11], short.len() as u64).is_err());
        assert!(tensors_of_layer(layer, &[], 0).is_err());
        assert!(tensors_of_layer(layer, &[0; 16], 4).is_err());
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
            assert_eq!(rounded(text), expect, "{text}");
        }
    }
}

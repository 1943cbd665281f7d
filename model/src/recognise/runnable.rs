//! Whether the workers of this version can run a model, as far as its files and headers show. A worker still checks
//! every shape when it loads the model.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::index::FileIndex;
use super::{Artifact, Layout, Role};
use crate::gguf::Metadata;

/// The classes in `architectures` of config.json that workers run. A test of the worker compares this list and the
/// next two with its families.
pub const CLASSES: [&str; 18] = [
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "MixtralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
    "Gemma2ForCausalLM",
    "Gemma3ForCausalLM",
    "Gemma3ForConditionalGeneration",
    "Gemma3TextModel",
    "Phi3ForCausalLM",
    "BertModel",
    "RobertaModel",
    "XLMRobertaModel",
    "NomicBertModel",
    "BertForSequenceClassification",
    "RobertaForSequenceClassification",
    "XLMRobertaForSequenceClassification",
];

/// The values of `model_type` in config.json that name such a class when `architectures` is absent.
pub const MODEL_TYPES: [&str; 14] = [
    "llama",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "gemma2",
    "gemma3_text",
    "gemma3",
    "phi3",
    "bert",
    "roberta",
    "xlm-roberta",
    "nomic_bert",
];

/// The values of `general.architecture` in GGUF files that workers run.
pub const GGUF_ARCHITECTURES: [&str; 10] = [
    "llama",
    "qwen2",
    "qwen3",
    "qwen3moe",
    "gemma2",
    "gemma3",
    "phi3",
    "bert",
    "nomic-bert",
    "gemma-embedding",
];

/// Why the workers cannot run a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Obstacle {
    NoTensors,
    Packed,
    Adapter,
    Projector,
    ImageModel,
    NoConfig,
    /// The class or the model type in config.json; empty if it names none.
    Architecture(String),
    /// `general.architecture`; empty if it is absent.
    GgufArchitecture(String),
    NoTokenizer,
}

/// What the header of a GGUF file says about running it.
#[derive(Clone, Debug)]
pub struct GgufFacts {
    architecture: String,
    has_tokenizer: bool,
}

impl GgufFacts {
    pub fn new(metadata: &Metadata) -> GgufFacts {
        let has_tokenizer = metadata.get("tokenizer.ggml.tokens").is_some();
        GgufFacts { architecture: metadata.architecture().unwrap_or_default().to_owned(), has_tokenizer }
    }
}

/// Why the workers cannot run a model. `None`: nothing in its files shows that they cannot. `config_json` is the
/// checkpoint's, `gguf` is of its GGUF file, and `files` has those weight files that could be read.
pub fn find_obstacle(
    artifact: &Artifact,
    config_json: Option<&[u8]>,
    gguf: Option<&GgufFacts>,
    files: &[FileIndex],
) -> Option<Obstacle> {
    let of_ollama = artifact.layout == Layout::Ollama;
    let has = |role: Role| artifact.files.iter().any(|file| file.is_plain() && file.role == role);
    let weights = artifact.weights().len();
    let main = files.iter().filter(|file| file.is_main);
    let are_all_empty = main.clone().count() == weights && main.clone().all(|file| file.tensors.is_empty());
    match artifact.format() {
        _ if weights == 0 && artifact.first_packed().is_some() => Some(Obstacle::Packed),
        _ if of_ollama && has(Role::Adapter) => Some(Obstacle::Adapter),
        _ if of_ollama && has(Role::Projector) => Some(Obstacle::Projector),
        _ if weights == 0 => Some(Obstacle::NoTensors),
        // The tensors of an ONNX file may be constants of its graph.
        Some("onnx") => checkpoint_obstacle(artifact, None),
        _ if are_all_empty => Some(Obstacle::NoTensors),
        Some("gguf") => gguf_obstacle(gguf?),
        _ if artifact.is_image_model() => Some(Obstacle::ImageModel),
        _ => checkpoint_obstacle(artifact, config_json),
    }
}

fn checkpoint_obstacle(artifact: &Artifact, config_json: Option<&[u8]>) -> Option<Obstacle> {
    if artifact.find("config.json").is_none() {
        return Some(Obstacle::NoConfig);
    }
    let config: Option<Value> = config_json.and_then(|json| serde_json::from_slice(json).ok());
    if let Some(config) = config {
        let class = config["architectures"][0].as_str().or(config["model_type"].as_str());
        let obstacle = Obstacle::Architecture(class.unwrap_or_default().to_owned());
        if obstacle.persists() {
            return Some(obstacle);
        }
    }
    artifact.find("tokenizer.json").is_none().then_some(Obstacle::NoTokenizer)
}

fn gguf_obstacle(gguf: &GgufFacts) -> Option<Obstacle> {
    let obstacle = Obstacle::GgufArchitecture(gguf.architecture.clone());
    if obstacle.persists() {
        return Some(obstacle);
    }
    (!gguf.has_tokenizer).then_some(Obstacle::NoTokenizer)
}

impl Obstacle {
    /// Whether it is one for this version: later versions know more architectures than the one that found it.
    pub fn persists(&self) -> bool {
        match self {
            Obstacle::Architecture(name) => {
                !CLASSES.contains(&&name[..]) && !MODEL_TYPES.contains(&&name[..])
            }
            Obstacle::GgufArchitecture(name) => !GGUF_ARCHITECTURES.contains(&&name[..]),
            _ => true,
        }
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Obstacle::NoTensors => f.write_str("it has no tensors"),
            Obstacle::Packed => f.write_str("its layers are packed, and only unpacked files can be mapped"),
            Obstacle::Adapter => f.write_str("it has an adapter, and workers do not run adapters"),
            Obstacle::Projector => {
                f.write_str("it has an image projector, and workers do not run projectors")
            }
            Obstacle::ImageModel => f.write_str("it is an image model, and workers run models for texts"),
            Obstacle::NoConfig => f.write_str("it has no `config.json`, so its architecture is unknown"),
            Obstacle::Architecture(name) if name.is_empty() => {
                f.write_str("its `config.json` names no architecture")
            }
            Obstacle::GgufArchitecture(name) if name.is_empty() => {
                f.write_str("its GGUF file lacks the key `general.architecture`")
            }
            Obstacle::Architecture(name) | Obstacle::GgufArchitecture(name) => {
                let name: String = name.chars().filter(|c| !c.is_control()).take(100).collect();
                write!(f, "workers do not support its architecture `{name}`")
            }
            Obstacle::NoTokenizer => {
                f.write_str("it has no tokenizer, so text cannot be turned into token ids")
            }
        }
    }
}

//! Facts from the JSON files of a checkpoint: its architecture, its vocabulary, and what is missing to run
//! it. Damage is an error; unknown or absent values are notices.

use std::collections::BTreeSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::checkpoint::{Checkpoint, IMAGE_INDEX};
use super::error::ImportError;
use super::files::{MAX_JSON_BYTES, parse_file};
use crate::config::ModelConfig;
use crate::files_view;
use crate::recognise::runnable::CLASSES;
use crate::source::{Source, SourceFile};
use crate::tensor::Tensor;

/// The oldest ollama that reads tensor models, as ollama writes it itself.
const OLLAMA_REQUIRED: &str = "0.19.0";
/// Files that loaders read: invalid JSON in one of these is an error, not a notice.
const READ_BY_LOADERS: [&str; 6] = [
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "modules.json",
    IMAGE_INDEX,
];
/// The hyper-parameters that every transformer has, by their usual names.
const HYPER_PARAMETERS: [&str; 4] = ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"];
/// The name endings of the tensors whose rows are the vocabulary.
const EMBEDDINGS: [&str; 4] =
    ["embed_tokens.weight", "word_embeddings.weight", "tok_embeddings.weight", "wte.weight"];

pub(super) struct Facts {
    pub(super) config: ModelConfig,
    /// The files that become JSON layers.
    pub(super) json_files: BTreeSet<String>,
    pub(super) notices: Vec<String>,
}

pub(super) fn read(
    source: &dyn Source,
    files: &[SourceFile],
    checkpoint: &Checkpoint,
) -> Result<Facts, ImportError> {
    let mut notices = checkpoint.notices.clone();
    let (mut config, mut image_index) = (None, None);
    let mut json_files = BTreeSet::new();
    let has_file = |path: &str| files.iter().any(|file| file.path == path);
    for file in files {
        let path = file.path.as_str();
        let is_json = path.ends_with(".json")
            && !path.ends_with(".safetensors.index.json")
            && path != files_view::LAYER_NAME
            && file.size <= MAX_JSON_BYTES;
        if !is_json {
            continue;
        }
        let malformed = |source| ImportError::Json { path: path.to_owned(), source };
        let parsed = match path {
            "config.json" => parse_file(source, file)?.map(|parsed| config = Some(parsed)),
            IMAGE_INDEX => parse_file::<ImageIndex>(source, file)?.map(|parsed| image_index = Some(parsed)),
            "tokenizer.json" => {
                let tokenizer = parse_file::<Tokenizer>(source, file)?.map_err(malformed)?;
                check_vocabulary(path, &tokenizer, checkpoint, &mut notices)?;
                Ok(())
            }
            _ => parse_file::<IgnoredAny>(source, file)?.map(drop),
        };
        match parsed {
            Ok(()) => {
                json_files.insert(file.path.clone());
            }
            Err(error) if READ_BY_LOADERS.contains(&path) => return Err(malformed(error)),
            Err(error) => notices.push(format!("`{path}` is not JSON ({error}) and is stored as it is")),
        }
    }

    let config: Option<serde_json::Map<String, Value>> = config;
    if checkpoint.tensors().next().is_none() {
        notices.push("there are no tensors: the model is stored, but cannot be run".to_owned());
    } else if image_index.is_some() {
        notices.push("it is an image model: it is stored, but cannot be run".to_owned());
    } else if let Some(config) = &config {
        notices.extend(config_notices(config));
    } else {
        notices.push("there is no `config.json`: the model is stored, but cannot be run".to_owned());
    }
    if !has_file("tokenizer.json") && config.is_some() {
        notices.push("there is no `tokenizer.json`: text cannot be turned into token ids".to_owned());
    }

    let text = |key: &str| config.as_ref().and_then(|config| config.get(key)?.as_str()).unwrap_or_default();
    let number = |key: &str| config.as_ref().and_then(|config| lookup(config, key)?.as_u64());
    let capability = match &image_index {
        Some(_) => "image",
        None if config.as_ref().is_some_and(is_cross_encoder) => "rerank",
        None if has_file("modules.json") => "embedding",
        None => "completion",
    };
    let family = image_index.map_or_else(|| text("model_type").to_owned(), |index| index.class_name);
    let config = ModelConfig {
        model_families: Some(family.clone()).filter(|family| !family.is_empty()).into_iter().collect(),
        model_family: family,
        requires: OLLAMA_REQUIRED.to_owned(),
        capabilities: vec![capability.to_owned()],
        context_length: number("max_position_embeddings"),
        embedding_length: number("hidden_size"),
        ..ModelConfig::default()
    };
    Ok(Facts { config, json_files, notices })
}

/// The field of an image model's index that names its pipeline.
#[derive(serde::Deserialize)]
struct ImageIndex {
    #[serde(default, rename = "_class_name")]
    class_name: String,
}

/// Whether config.json is that of a cross-encoder: a classifier with one class, as transformers counts them.
pub fn is_cross_encoder(config: &serde_json::Map<String, Value>) -> bool {
    let class = config.get("architectures").and_then(|all| all.get(0)?.as_str()).unwrap_or_default();
    let classes = match config.get("id2label").and_then(Value::as_object) {
        Some(labels) => Some(labels.len() as u64),
        None => config.get("num_labels").and_then(Value::as_u64),
    };
    class.ends_with("ForSequenceClassification") && classes == Some(1)
}

/// Whether a class of transformers is a decoder that generates text.
#[must_use]
pub fn is_text_generator(class: &str) -> bool {
    class.ends_with("ForCausalLM") || class.ends_with("LMHeadModel")
}

/// Returns a key of the config, or of the `text_config` of a multimodal model.
fn lookup<'a>(config: &'a serde_json::Map<String, Value>, key: &str) -> Option<&'a Value> {
    config.get(key).or_else(|| config.get("text_config")?.get(key))
}

fn config_notices(config: &serde_json::Map<String, Value>) -> Vec<String> {
    let mut notices = Vec::new();
    match config.get("architectures").and_then(|all| all.get(0)?.as_str()) {
        None => notices.push("`config.json` names no architecture in `architectures`".to_owned()),
        Some(name) if !CLASSES.contains(&name) => {
            let known = CLASSES.join(", ");
            notices.push(format!("architecture `{name}` is stored, but cannot be run (known: {known})"));
        }
        Some(_) => {}
    }
    let missing: Vec<&str> =
        HYPER_PARAMETERS.into_iter().filter(|key| lookup(config, key).is_none()).collect();
    if !missing.is_empty() {
        notices.push(format!("`config.json` lacks {}", missing.join(", ")));
    }
    notices
}

/// Checks that every id of the vocabulary has a row in the embedding. Added tokens without a row are common
/// in published checkpoints, which never use them, so those are a notice.
fn check_vocabulary(
    path: &str,
    tokenizer: &Tokenizer,
    checkpoint: &Checkpoint,
    notices: &mut Vec<String>,
) -> Result<(), ImportError> {
    let is_embedding = |tensor: &Tensor| {
        let ends = |name: &&str| {
            let front = tensor.name.strip_suffix(*name);
            front.is_some_and(|front| front.is_empty() || front.ends_with('.'))
        };
        tensor.shape.len() == 2 && EMBEDDINGS.iter().any(ends)
    };
    let Some((_, embedding)) = checkpoint.tensors().find(|(_, tensor)| is_embedding(tensor)) else {
        return Ok(());
    };
    let (tensor, rows) = (&embedding.name, embedding.shape[0]);
    if let Some(id) = tokenizer.model.vocab.largest_id.filter(|id| *id >= rows) {
        return Err(ImportError::Vocabulary { path: path.to_owned(), id, tensor: tensor.clone(), rows });
    }
    if let Some(id) = tokenizer.added_tokens.largest_id.filter(|id| *id >= rows) {
        notices.push(format!(
            "`{path}` adds token id {id}, but `{tensor}` has {rows} rows: that token cannot be used"
        ));
    }
    Ok(())
}

/// The part of a tokenizer.json that gives the size of its vocabulary.
#[derive(serde::Deserialize)]
struct Tokenizer {
    #[serde(default)]
    model: Model,
    #[serde(default)]
    added_tokens: AddedTokens,
}

#[derive(Default, serde::Deserialize)]
struct Model {
    #[serde(default)]
    vocab: Vocabulary,
}

#[derive(serde::Deserialize)]
struct AddedToken {
    id: u64,
}

/// A list of added tokens. Only the largest id is kept.
#[derive(Default)]
struct AddedTokens {
    largest_id: Option<u64>,
}

impl<'de> Deserialize<'de> for AddedTokens {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AddedTokensVisitor;

        impl<'de> Visitor<'de> for AddedTokensVisitor {
            type Value = AddedTokens;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of added tokens")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<AddedTokens, A::Error> {
                let mut largest_id = None;
                while let Some(token) = seq.next_element::<AddedToken>()? {
                    largest_id = largest_id.max(Some(token.id));
                }
                Ok(AddedTokens { largest_id })
            }
        }

        deserializer.deserialize_seq(AddedTokensVisitor)
    }
}

/// A map from token to id, or (Unigram) a list of tokens in the order of their ids. Only the largest id is
/// kept.
#[derive(Default)]
struct Vocabulary {
    largest_id: Option<u64>,
}

impl<'de> Deserialize<'de> for Vocabulary {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct VocabularyVisitor;

        impl<'de> Visitor<'de> for VocabularyVisitor {
            type Value = Vocabulary;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of token ids, or a list of tokens")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vocabulary, A::Error> {
                let mut largest_id = None;
                while let Some((_, id)) = map.next_entry::<IgnoredAny, u64>()? {
                    largest_id = largest_id.max(Some(id));
                }
                Ok(Vocabulary { largest_id })
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vocabulary, A::Error> {
                let mut count = 0u64;
                while seq.next_element::<IgnoredAny>()?.is_some() {
                    count += 1;
                }
                Ok(Vocabulary { largest_id: count.checked_sub(1) })
            }
        }

        deserializer.deserialize_any(VocabularyVisitor)
    }
}

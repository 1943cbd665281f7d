//! Short facts about a model, read from its GGUF header for listings. The names are llama.cpp's.

use std::collections::BTreeMap;

use super::file_type::file_type_name;
use super::header::Header;
use super::value::{Metadata, Value};
use crate::prompt_template::JinjaSource;

/// llama.cpp's `pooling_type` of a model that ranks texts.
const RANK_POOLING: u64 = 4;

/// Tokens that end a response regardless of their kind in the file, as in llama.cpp.
pub const END_TOKENS: [&str; 22] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<\u{ff5c}end\u{2581}of\u{2581}sentence\u{ff5c}>",
    "[e~[",
];

impl Header {
    /// The number of elements of all tensors.
    pub fn elements(&self) -> u64 {
        let elements = |dims: &[u64]| dims.iter().fold(1u64, |product, dim| product.saturating_mul(*dim));
        self.tensors.iter().fold(0, |sum, entry| sum.saturating_add(elements(&entry.dims)))
    }

    /// The type that most elements have; on a tie, the name that comes first.
    pub fn main_type(&self) -> Option<&'static str> {
        let mut sums = BTreeMap::<&str, u64>::new();
        for entry in &self.tensors {
            let elements = entry.dims.iter().fold(1u64, |product, dim| product.saturating_mul(*dim));
            let sum = sums.entry(entry.ty.as_str()).or_default();
            *sum = sum.saturating_add(elements);
        }
        sums.into_iter().rev().max_by_key(|(_, sum)| *sum).map(|(name, _)| name)
    }

    /// The quantisation that the file states, else the type of most elements.
    pub fn quantisation(&self) -> Option<&'static str> {
        self.metadata.u64("general.file_type").and_then(file_type_name).or_else(|| self.main_type())
    }
}

impl Metadata {
    /// Whether the file is a projector, which turns images or sounds into embeddings for another model.
    pub fn is_projector(&self) -> bool {
        self.str("general.type") == Some("mmproj") || self.architecture() == Some("clip")
    }

    /// Whether the file is an adapter for another model rather than a model.
    pub fn is_adapter(&self) -> bool {
        self.str("general.type") == Some("adapter")
    }

    /// The capabilities of a model with these keys, in ollama's terms, apart from those that its templates
    /// add.
    pub fn capabilities(&self) -> Vec<&'static str> {
        let pooling = self.architecture_value("pooling_type");
        let mut capabilities = vec![match pooling.map(Value::as_u64) {
            Some(Some(RANK_POOLING)) => "rerank",
            Some(_) => "embedding",
            None => "completion",
        }];
        if self.iter().any(|(key, _)| key.ends_with(".vision.block_count")) {
            capabilities.push("vision");
        }
        if self.iter().any(|(key, _)| key.ends_with(".audio.block_count")) {
            capabilities.push("audio");
        }
        capabilities
    }

    /// Returns the chat template, if there is one.
    pub fn chat_template(&self) -> Option<JinjaSource<'_>> {
        let tool_use = self.str("tokenizer.chat_template.tool_use");
        self.str("tokenizer.chat_template").map(|chat| JinjaSource { chat, tool_use })
    }

    /// Returns the keys as one JSON object, in their order as far as JSON keeps one. Arrays are null unless
    /// `arrays` is set, because a vocabulary is long.
    pub fn to_json(&self, arrays: bool) -> serde_json::Map<String, serde_json::Value> {
        let json = |value: &Value| match value {
            Value::Array(_) if !arrays => serde_json::Value::Null,
            value => value.to_json(),
        };
        self.iter().map(|(key, value)| (key.to_owned(), json(value))).collect()
    }
}

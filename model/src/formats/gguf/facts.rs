//! Short facts about a model, read from its GGUF header for listings. The names are llama.cpp's.

use std::collections::BTreeMap;

use super::header::Header;
use super::value::{Metadata, Value};
use crate::prompt_template::JinjaSource;

/// The flag that marks a file type as guessed.
const GUESSED: u64 = 1024;

/// Returns the name of a `general.file_type`.
pub fn file_type_name(file_type: u64) -> Option<&'static str> {
    Some(match file_type & !GUESSED {
        0 => "F32",
        1 => "F16",
        2 => "Q4_0",
        3 => "Q4_1",
        7 => "Q8_0",
        8 => "Q5_0",
        9 => "Q5_1",
        10 => "Q2_K",
        11 => "Q3_K_S",
        12 => "Q3_K_M",
        13 => "Q3_K_L",
        14 => "Q4_K_S",
        15 => "Q4_K_M",
        16 => "Q5_K_S",
        17 => "Q5_K_M",
        18 => "Q6_K",
        19 => "IQ2_XXS",
        20 => "IQ2_XS",
        21 => "Q2_K_S",
        22 => "IQ3_XS",
        23 => "IQ3_XXS",
        24 => "IQ1_S",
        25 => "IQ4_NL",
        26 => "IQ3_S",
        27 => "IQ3_M",
        28 => "IQ2_S",
        29 => "IQ2_M",
        30 => "IQ4_XS",
        31 => "IQ1_M",
        32 => "BF16",
        36 => "TQ1_0",
        37 => "TQ2_0",
        38 => "MXFP4_MOE",
        39 => "NVFP4",
        40 => "Q1_0",
        _ => return None,
    })
}

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
        let is_embedding = self.architecture_value("pooling_type").is_some();
        let mut capabilities = vec![if is_embedding { "embedding" } else { "completion" }];
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

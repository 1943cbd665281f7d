//! Converts a GGUF file to a checkpoint: the reverse of the rest of [`crate::convert`]. Floats keep their type
//! unless another one is requested; blocks are decoded.

mod config;
mod hyper;
mod keys;
mod pieces;
mod rope;
mod tensors;
mod tokenizer;

use std::sync::Arc;

use serde_json::{Map, Value as Json};

use super::error::ConvertError;
use super::float_type::FloatType;
use super::gguf_layout::Segment;
use crate::gguf::Header;
use crate::safetensors::Dtype;
use crate::source::Source;

/// A planned checkpoint.
pub(crate) struct ConvertedCheckpoint {
    /// In the order of the GGUF, except that experts are separate.
    pub(crate) tensors: Vec<ConvertedTensor>,
    /// The other files with their paths.
    pub(crate) files: Vec<(&'static str, Vec<u8>)>,
    pub(crate) notices: Vec<String>,
}

/// A tensor of the checkpoint, whose bytes are produced from its segment.
pub(crate) struct ConvertedTensor {
    pub(crate) name: String,
    /// Row-major.
    pub(crate) shape: Vec<u64>,
    pub(crate) dtype: Dtype,
    pub(crate) segment: Segment,
}

/// Plans the checkpoint of a GGUF. `parts` are its files in order; the first has the model's keys. Small tables
/// of the rotary embedding are read from `source`.
pub(crate) fn from_gguf(
    source: &dyn Source,
    parts: &[(Arc<str>, Header)],
    float: Option<FloatType>,
) -> Result<ConvertedCheckpoint, ConvertError> {
    let default = Header::new(Default::default(), Vec::new())?;
    let metadata = parts.first().map_or(&default.metadata, |(_, header)| &header.metadata);
    let listed = tensors::List::new(parts);
    let mut notices = Vec::new();
    let mut config = config::write(metadata, &listed, source, &mut notices)?;
    let tokenizer = tokenizer::write(metadata, config.hyper.vocab_size, config.hyper.context_length)?;
    let converted = tensors::convert(&listed, &config.hyper, float)?;
    notices.extend(converted.notice);

    config.set("torch_dtype", main_type(&converted.tensors).torch_name().into());
    for (key, id) in &tokenizer.ids {
        config.set(key, (*id).into());
    }
    let mut files =
        vec![("config.json", pretty(&Json::Object(config.json))), ("tokenizer.json", tokenizer.tokenizer)];
    files.push(("tokenizer_config.json", pretty(&tokenizer.config)));
    let ids = tokenizer.ids.into_iter().map(|(key, id)| (key.to_owned(), Json::from(id)));
    let mut generation: Map<String, Json> = ids.collect();
    if tokenizer.ends.iter().any(|id| generation.get("eos_token_id") != Some(&Json::from(*id))) {
        generation.insert("eos_token_id".to_owned(), tokenizer.ends.into());
    }
    if !generation.is_empty() {
        files.push(("generation_config.json", pretty(&Json::Object(generation))));
    }
    Ok(ConvertedCheckpoint { tensors: converted.tensors, files, notices })
}

/// The type of most elements.
fn main_type(tensors: &[ConvertedTensor]) -> FloatType {
    let elements = |float: &FloatType| {
        let of_type = tensors.iter().filter(|tensor| tensor.dtype == float.dtype());
        of_type.fold(0u64, |sum, tensor| sum.saturating_add(tensor.shape.iter().product()))
    };
    FloatType::ALL.into_iter().max_by_key(elements).unwrap_or(FloatType::BF16)
}

fn pretty(value: &Json) -> Vec<u8> {
    let mut bytes = serde_json::to_vec_pretty(value).unwrap_or_default();
    bytes.push(b'\n');
    bytes
}

#[cfg(test)]
mod tests;

//! Converts checkpoints of the known families, and GGUF files of floats, to any of llama.cpp's GGUF file
//! types, and GGUF files of these families to checkpoints (`from_gguf`). [`crate::import`] plans with it. The
//! bytes are produced only when the planned layer is read.
//!
//! ```text
//! config.json -> hyper    tokenizer.json -> vocabulary    tensors -> weights (names by family) -> mix -> rows
//! from_gguf: keys -> config.json    vocabulary -> tokenizer.json    tensors (names by family) -> rows
//! ```

mod error;
mod family;
mod file_type;
mod float_type;
mod from_gguf;
mod gguf_layout;
mod hyper;
pub mod mix;
mod names;
mod pieces;
mod rows;
mod vocabulary;
mod weights;

use std::sync::Arc;

use serde_json::Value as Json;

pub use error::ConvertError;
pub use file_type::{FileType, UnknownFileType};
pub use float_type::{FloatType, UnknownFloatType};
pub(crate) use from_gguf::{ConvertedCheckpoint, ConvertedTensor, from_gguf};
pub(crate) use gguf_layout::{ConvertedGguf, Segment, format_names};
pub(crate) use names::checkpoint_names;
pub(crate) use rows::{Rows, RowsReader};
pub(crate) use weights::CheckpointTensor;

use crate::gguf::{Header, Metadata};
use crate::source::SourceFile;

/// The JSON and template files that a conversion reads, as bytes.
#[derive(Default)]
pub(crate) struct SideFiles {
    pub(crate) config: Option<Vec<u8>>,
    pub(crate) tokenizer: Option<Vec<u8>>,
    pub(crate) tokenizer_config: Option<Vec<u8>>,
    pub(crate) generation_config: Option<Vec<u8>>,
    pub(crate) chat_template: Option<Vec<u8>>,
}

impl SideFiles {
    /// Returns the field for a file of this name.
    pub(crate) fn slot(&mut self, file: &SourceFile) -> Option<&mut Option<Vec<u8>>> {
        match file.path.as_str() {
            "config.json" => Some(&mut self.config),
            "tokenizer.json" => Some(&mut self.tokenizer),
            "tokenizer_config.json" => Some(&mut self.tokenizer_config),
            "generation_config.json" => Some(&mut self.generation_config),
            "chat_template.jinja" => Some(&mut self.chat_template),
            _ => None,
        }
    }
}

/// Plans the conversion of a checkpoint from its tensors, each with its source file, and its JSON and
/// template files.
pub(crate) fn checkpoint(
    tensors: &[CheckpointTensor],
    files: SideFiles,
    file_type: FileType,
) -> Result<ConvertedGguf, ConvertError> {
    let json = |path: &str, bytes: &[u8]| {
        serde_json::from_slice::<Json>(bytes)
            .map_err(|source| ConvertError::Json { path: path.to_owned(), source })
    };
    let optional = |path: &str, bytes: &Option<Vec<u8>>| match bytes {
        Some(bytes) => json(path, bytes),
        None => Ok(Json::Null),
    };
    let config = files.config.as_ref().ok_or(ConvertError::MissingFile { path: "config.json" })?;
    let config = json("config.json", config)?;
    let mut metadata = Metadata::new();
    let model_type = config.get("model_type").and_then(Json::as_str).unwrap_or_default();
    let architecture = family::Family::of(model_type).map_or("", |family| family.architecture);
    metadata.set("general.architecture", architecture);
    metadata.set("general.type", "model");
    let mut hyper = hyper::write(&mut metadata, &config)?;
    let side = vocabulary::Files {
        tokenizer_config: optional("tokenizer_config.json", &files.tokenizer_config)?,
        generation_config: optional("generation_config.json", &files.generation_config)?,
        tokenizer: files.tokenizer.ok_or(ConvertError::MissingFile { path: "tokenizer.json" })?,
        chat_template: files.chat_template.map(|text| String::from_utf8_lossy(&text).into_owned()),
        config,
    };
    let weights = weights::list_checkpoint_weights(tensors, &mut hyper)?;
    // Written after the weights: every id needs a token, and the number of ids is known only now.
    vocabulary::write(&mut metadata, &side, hyper.vocab_size)?;
    let mut converted = gguf_layout::lay_out(metadata, weights, file_type)?;
    converted.notices.append(&mut hyper.notices);
    Ok(converted)
}

/// Plans the quantisation of a GGUF of floats. `parts` are its files in order; the first has the model's
/// keys.
pub(crate) fn gguf(parts: &[(Arc<str>, Header)], file_type: FileType) -> Result<ConvertedGguf, ConvertError> {
    let mut metadata = parts.first().map(|(_, header)| header.metadata.clone()).unwrap_or_default();
    // The parts are merged into one file.
    for key in ["split.no", "split.count", "split.tensors.count"] {
        metadata.remove(key);
    }
    let weights = weights::list_gguf_weights(parts)?;
    gguf_layout::lay_out(metadata, weights, file_type)
}

#[cfg(test)]
mod tests;

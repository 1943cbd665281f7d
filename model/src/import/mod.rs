//! Import turns a checkpoint folder into layers, one blob per tensor, and a GGUF file into one layer, so that
//! every original file can be restored. It plans over [`Source`], a trait for reading files, and serves `lode
//! create`, the demo model and `/api/create`.
//!
//! ```text
//! plan(source) -> Plan -> read each layer (digest and push it) -> Plan::model(digests, edits) -> config, file view, manifest
//! ```

mod card;
mod check;
mod checked_reader;
mod checkpoint;
mod conversion;
mod error;
mod facts;
mod files;
mod finish;
mod gguf;
mod gguf_checkpoint;
mod gguf_conversion;
mod gguf_part;
mod layer;
mod mlx;
mod onnx;
mod place;
mod plain_files;
mod plan;
mod policy;
mod recipe;
mod scaled;
mod tensor_blobs;
mod whole_file;

pub use card::{CARD_NAME, attached_card, card_layer};
pub use checked_reader::CheckedReader;
pub use conversion::{Conversion, Format, UnknownConversion};
pub use error::ImportError;
pub use facts::{is_cross_encoder, is_text_generator};
pub use files::{MAX_JSON_BYTES, hash_file};
pub use finish::FinishError;
pub use layer::{Content, LayerPart, LayerReader};
pub use plain_files::plain_files;
pub use plan::{Options, Plan, PlannedLayer};

use crate::convert;
use crate::formats::weight_format::WeightFormat;
pub use crate::oci::new_manifest::SmallBlob;
pub use crate::read_at::ReadAt;
pub use crate::source::{Source, SourceFile};
use files::{check_files, check_pointers};

/// The extensions of weight files in formats that are not read.
const UNREADABLE_EXTENSIONS: [&str; 5] = [".bin", ".pt", ".pth", ".ckpt", ".h5"];

/// Plans the layers of a folder. It reads headers and JSON files, but no tensors.
pub fn plan(source: &dyn Source, options: &Options) -> Result<Plan, ImportError> {
    let mut files = source.files();
    files.sort_by(|a, b| a.path.cmp(&b.path));
    check_files(&files)?;
    check_pointers(source, &files)?;
    // A GGUF next to a checkpoint is another form of it and is stored like any other file; so is an ONNX file
    // next to either.
    let has = |format: WeightFormat| files.iter().any(|file| file.weight_format() == Some(format));
    let (has_checkpoint, has_gguf) = (has(WeightFormat::Safetensors), has(WeightFormat::Gguf));
    let mut plan = match options.conversion {
        Some(Conversion::Checkpoint(float)) => gguf_checkpoint::plan(source, &files, float)?,
        _ if !has_checkpoint && has_gguf => gguf::plan(source, &files, options)?,
        _ if !has_checkpoint && has(WeightFormat::Onnx) => onnx::plan(source, &files, options)?,
        Some(Conversion::Gguf(file_type)) => gguf_conversion::from_checkpoint(source, &files, file_type)?,
        _ => tensor_blobs::plan(source, &files, options)?,
    };
    let is_other_format = |file: &&SourceFile| match file.weight_format() {
        Some(WeightFormat::Gguf) => has_checkpoint,
        Some(WeightFormat::Onnx) => has_checkpoint || has_gguf,
        Some(WeightFormat::Safetensors) | None => false,
    };
    let other_formats: Vec<&str> =
        files.iter().filter(is_other_format).map(|file| file.path.as_str()).collect();
    if !other_formats.is_empty() {
        let listed = convert::format_names(&other_formats);
        plan.notices.push(format!(
            "{listed}: stored whole alongside the model; to import one of them, name the file"
        ));
    }
    if plan.tensors == 0 {
        plan.notices.extend(unreadable_weights_notice(&files));
    }
    Ok(plan)
}

fn unreadable_weights_notice(files: &[SourceFile]) -> Option<String> {
    let is_pickle = |file: &&SourceFile| UNREADABLE_EXTENSIONS.iter().any(|end| file.path.ends_with(end));
    let path = &files.iter().find(is_pickle)?.path;
    Some(format!("weights in the format of `{path}` are not read; save them as .safetensors"))
}

#[cfg(test)]
pub(crate) mod fp8_tests;
#[cfg(test)]
mod notice_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod whole_file_tests;

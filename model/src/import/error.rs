//! Why a folder cannot be imported.

use std::io;

use super::conversion::Conversion;
use crate::convert::ConvertError;
use crate::files_view::{MAX_FILES, PathError};
use crate::safetensors::HeaderError;
use crate::tensor::TensorError;
use crate::tensor::scaled::BlockError;

/// Why a folder cannot be imported. Each variant names the file, and the key if there is one.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    #[error("there are no files to import")]
    Empty,
    #[error(
        "there is no model in the folder: no .safetensors, .gguf or .onnx file, no config.json and no tokenizer"
    )]
    NoModel,
    #[error("`{path}` is a Git LFS pointer, not the file itself")]
    Pointer { path: String },
    #[error(transparent)]
    Path(#[from] PathError),
    #[error("there are {found} files to import, expected at most {MAX_FILES}")]
    TooManyFiles { found: usize },
    #[error("the folder lists `{path}` twice")]
    DuplicatePath { path: String },
    #[error("could not read `{path}`")]
    Read { path: String, source: io::Error },
    #[error("`{path}` is larger than {limit} bytes, the limit for such files")]
    TooLarge { path: String, limit: u64 },
    #[error(
        "the headers of the files up to `{path}` have more than {limit} bytes together, the limit of an import; import fewer files"
    )]
    HeadersTooLarge { path: String, limit: u64 },
    #[error("`{path}` is malformed")]
    Header { path: String, source: HeaderError },
    #[error("`{path}` is malformed")]
    Tensor { path: String, source: TensorError },
    #[error("`{path}` is not JSON of the expected form")]
    Json { path: String, source: serde_json::Error },
    #[error("`{index}` places tensor `{tensor}` in `{shard}`, which is missing")]
    MissingShard { index: String, tensor: String, shard: String },
    #[error("`{prefix}` is split over {count} files, and number {number} is missing")]
    MissingPart { prefix: String, count: u32, number: u32 },
    #[error("`{index}` places tensor `{tensor}` in `{shard}`, which does not have it")]
    MissingTensor { index: String, tensor: String, shard: String },
    #[error("tensor `{tensor}` is in `{first}` and in `{second}`, expected in one of them")]
    DuplicateTensor { tensor: String, first: String, second: String },
    #[error("`{path}` has token id {id} in `model.vocab`, but `{tensor}` has {rows} rows")]
    Vocabulary { path: String, id: u64, tensor: String, rows: u64 },
    #[error("`{path}` holds `{tensor}`, which is quantised already; import it as it is, without quantising")]
    AlreadyQuantised { path: String, tensor: String },
    #[error("`{path}` holds `{tensor}` of {dtype}, {problem}")]
    Scaled { path: String, tensor: String, dtype: String, problem: String },
    #[error(transparent)]
    Blocks(#[from] BlockError),
    #[error("`{path}` makes this an image model, whose components are not quantised; import it as it is")]
    ImageModel { path: &'static str },
    #[error("`{path}` is malformed")]
    Gguf { path: String, source: crate::gguf::HeaderError },
    #[error(transparent)]
    Split(#[from] crate::gguf::SplitError),
    #[error("`{path}` is malformed")]
    Onnx { path: String, source: crate::onnx::OnnxError },
    #[error("`{path}` has tensor `{tensor}` in `{location}`, which {problem}")]
    OnnxData { path: String, tensor: String, location: String, problem: &'static str },
    #[error("`{path}` is an ONNX file, which cannot be quantised to {conversion}")]
    ConvertOnnx { path: String, conversion: Conversion },
    #[error("`{path}` is a GGUF file, which cannot be quantised to {conversion}")]
    ConvertGguf { path: String, conversion: Conversion },
    #[error("`{path}` is a GGUF file already; name the type to convert its floats to")]
    AlreadyGguf { path: String },
    #[error("`{path}` is not a GGUF file, and only these are converted to a checkpoint")]
    NotGguf { path: String },
    #[error("`{path}` is a projector or an adapter, which is not converted to a checkpoint")]
    NotAModel { path: String },
    #[error("`{first}` and `{second}` are two models, expected one to convert to a checkpoint")]
    SeveralModels { first: String, second: String },
    #[error(transparent)]
    Convert(#[from] ConvertError),
}

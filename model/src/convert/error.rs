//! Why a conversion is refused.

use crate::gguf::HeaderError;

/// Why a model cannot be converted. Each variant names the file, the key or the tensor.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    #[error("`{path}` is missing; conversion to GGUF requires it")]
    MissingFile { path: &'static str },
    #[error("`{path}` is not JSON of the expected form")]
    Json { path: String, source: serde_json::Error },
    #[error("`config.json` lacks `{key}`")]
    MissingKey { key: String },
    #[error("`config.json` has `{key}` {found}, expected {expected}")]
    Key { key: String, found: String, expected: &'static str },
    #[error("`config.json` has model_type `{model_type}`, which is not converted to GGUF (known: {known})")]
    ModelType { model_type: String, known: String },
    #[error("`tokenizer.json` cannot be converted to GGUF: {reason}")]
    Tokenizer { reason: String },
    #[error("tensor `{tensor}` is not part of architecture {architecture}")]
    UnknownTensor { tensor: String, architecture: &'static str },
    #[error("tensor `{tensor}` is missing")]
    MissingTensor { tensor: String },
    #[error("tensor `{tensor}` has shape {found:?}, expected {expected}")]
    Shape { tensor: String, found: Vec<u64>, expected: &'static str },
    #[error(
        "tensor `{tensor}` has rows of {elements} elements, expected at most {max}; import it without quantising"
    )]
    LongRow { tensor: String, elements: u64, max: u64 },
    #[error("tensor `{tensor}` is {dtype}, expected BF16, F16 or F32")]
    NotFloat { tensor: String, dtype: String },
    #[error("tensor `{tensor}` of `{path}` is already {ty}; quantise from F32, F16 or BF16")]
    Quantised { path: String, tensor: String, ty: &'static str },
    #[error("architecture `{architecture}`{form} is not converted to a checkpoint (known: {known})")]
    Architecture { architecture: String, form: &'static str, known: String },
    #[error("the GGUF lacks the key `{key}`")]
    MissingGgufKey { key: String },
    #[error("the GGUF has `{key}` {found}, expected {expected}")]
    GgufKey { key: String, found: String, expected: &'static str },
    #[error("the vocabulary of the GGUF cannot be converted to tokenizer.json: {reason}")]
    Vocabulary { reason: String },
    #[error("tensor `{tensor}` of the GGUF has shape {found:?}, expected {expected:?} by its keys")]
    GgufShape { tensor: String, found: Vec<u64>, expected: Vec<u64> },
    #[error("the checkpoint would have more than {max} tensors")]
    TooManyTensors { max: usize },
    #[error("could not read tensor `{tensor}`")]
    Table { tensor: String, source: std::io::Error },
    #[error("the GGUF would be invalid")]
    Header(#[from] HeaderError),
}

//! The reasons for refusing a model at load.

use std::path::PathBuf;

use super::config::ConfigError;
use crate::files::blob_name;

/// Why a model was refused at load. Messages name the field, file or tensor at fault.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("config.json: {0}")]
    Config(#[from] ConfigError),
    /// The field is a metadata key, or the corresponding field of a checkpoint.
    #[error("the GGUF's metadata: {0}")]
    Metadata(ConfigError),
    #[error("architecture `{architecture}` is not supported (supported: {})", .supported.join(", "))]
    UnsupportedArchitecture { architecture: String, supported: &'static [&'static str] },
    #[error("cannot map {}", blob_name(.path))]
    File { path: PathBuf, source: std::io::Error },
    #[error("{}: {reason}", blob_name(.path))]
    Header { path: PathBuf, reason: String },
    #[error("tensor `{name}` occurs twice: in {} and in {}", blob_name(.first), blob_name(.second))]
    DuplicateTensor { name: String, first: PathBuf, second: PathBuf },
    #[error("tensor `{name}` is missing")]
    MissingTensor { name: String },
    #[error("tensor `{name}` has shape {found:?}, expected {expected:?}")]
    TensorShape { name: String, expected: Vec<u64>, found: Vec<u64> },
    #[error("tensor `{name}` has dtype {dtype}, which is not supported (supported: {})", lode_kernels::DTYPES.join(", "))]
    TensorDtype { name: String, dtype: String },
    #[error("tensor `{name}`: {reason}")]
    TensorData { name: String, reason: String },
    #[error("the configuration has a vocabulary of {config}, but tensor `{name}` has {found} rows")]
    Vocabulary { name: String, config: u64, found: u64 },
    /// The graph of an ONNX file must not be run.
    #[error("{file}")]
    Graph { file: String, source: lode_model::onnx::GraphError },
    #[error("{file}: {reason}")]
    Onnx { file: String, reason: String },
    #[error("an ONNX model needs the ONNX Runtime: {0}")]
    Runtime(String),
    #[error("the device failed: {0}")]
    Device(#[from] lode_kernels::DeviceError),
}

impl LoadError {
    /// Reports an embedding table with a wrong number of rows as a vocabulary mismatch.
    pub(super) fn of_vocabulary(self) -> Self {
        match self {
            Self::TensorShape { name, expected, found }
                if expected.len() == 2 && found.len() == 2 && expected[1] == found[1] =>
            {
                Self::Vocabulary { name, config: expected[0], found: found[0] }
            }
            other => other,
        }
    }
}

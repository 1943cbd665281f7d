//! The files of a model on this machine: the cache finds them, the runner's protocol names them, the engine
//! maps them.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// A model on disk: its configuration and the files that hold its tensors.
#[derive(Clone, Debug, Default)]
pub struct ModelFiles {
    /// The checkpoint's `config.json`. Empty for a GGUF, which has the configuration in its metadata.
    pub config_json: Vec<u8>,
    /// In any order.
    pub tensors: Vec<BlobFile>,
}

/// One file that is mapped into memory.
#[derive(Clone, Debug)]
pub struct BlobFile {
    pub path: PathBuf,
    /// The layer's name; also the tensor's name in a blob with the key `data`.
    pub name: Option<String>,
    /// Whether this is a whole model file rather than a tensor blob.
    pub whole_file: bool,
    /// The file's format.
    pub format: Format,
    /// The file's place within the mapped file, if it is not the whole.
    pub extent: Option<Extent>,
}

/// The format of a file with tensors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    #[default]
    Safetensors,
    /// A GGUF, or one file of a split GGUF. Its metadata has the model's configuration, vocabulary and
    /// template.
    Gguf,
    /// An ONNX file: a graph, with weights in it or in other files.
    Onnx,
    /// A file with weights of an ONNX file.
    OnnxData,
}

/// The place of a file within a larger one, such as a tar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    pub offset: u64,
    pub size: u64,
}

/// The name of a blob's file in messages for clients: its digest, without local folders.
pub(crate) fn blob_name(path: &Path) -> String {
    path.file_name().map_or_else(|| "a blob".to_owned(), |name| format!("blob {}", name.to_string_lossy()))
}

//! Why an ONNX file cannot be read.

use std::io;

/// Why bytes are not a readable ONNX file.
#[derive(Debug, thiserror::Error)]
pub enum OnnxError {
    #[error("field at byte {at} is damaged or exceeds its message")]
    Damaged { at: u64 },
    #[error("the file has no graph")]
    NoGraph,
    #[error("the file exceeds the limit on {what}")]
    LimitExceeded { what: &'static str },
    #[error("an initializer at byte {at} has no name")]
    Nameless { at: u64 },
    #[error("initializer `{name}` of shape {shape:?} has {found} bytes, expected {expected}")]
    Size { name: String, shape: Vec<u64>, found: u64, expected: u64 },
    #[error("initializer `{name}` has shape {shape:?}, whose size overflows")]
    Shape { name: String, shape: Vec<u64> },
    #[error("initializer `{name}` is stored outside the file, but does not give its location")]
    Location { name: String },
    #[error("reading failed")]
    Read(#[source] io::Error),
}

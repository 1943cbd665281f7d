//! The GGUF container: reads, checks and writes headers, and lists tensors in Lode's form. Supports versions
//! 2 and 3, little-endian. Every number of a file is checked before it is used (layout: ggml `docs/gguf.md`).
//!
//! ```text
//! "GGUF", u32 version, u64 tensors, u64 keys; keys and values; tensors; padding; data
//! ```

mod facts;
mod file_type;
mod header;
mod parse;
pub mod pre_tokeniser;
mod read;
mod split;
mod tensors;
mod value;
mod write;

pub use facts::END_TOKENS;
pub(crate) use file_type::file_type_id;
pub use file_type::file_type_name;
pub use header::{
    DEFAULT_ALIGNMENT, Header, MAGIC, MAX_ALIGNMENT, MAX_ENTRIES, MAX_HEADER_BYTES, MAX_KEY, MAX_STRING,
    MAX_TENSOR_NAME, TensorEntry, VERSION,
};
pub use parse::{HeaderError, KeyProblem, TensorProblem};
pub use read::ReadError;
pub use split::{PartName, SplitError, check_parts};
pub use value::{Array, Metadata, Strings, Value};
pub use write::NewTensor;

#[cfg(test)]
mod tests;

//! The GGUF container: reads, checks and writes headers, and lists tensors in Lode's form. Supports versions
//! 2 and 3, little-endian. Every number of a file is checked before it is used (layout: ggml `docs/gguf.md`).
//!
//! ```text
//! "GGUF", u32 version, u64 tensors, u64 keys; keys and values; tensors; padding; data
//! ```

mod facts;
mod parse;
mod split;
mod tensors;
mod value;
mod write;

use std::io;

pub use facts::file_type_name;
pub use parse::{HeaderError, KeyProblem, TensorProblem};
pub use split::{PartName, SplitError, check_parts};
pub use value::{Array, Metadata, Strings, Value};
pub use write::NewTensor;

use crate::quant::ggml::Type;
use crate::read_at::ReadAt;

/// The first bytes of a file.
pub const MAGIC: [u8; 4] = *b"GGUF";
/// The alignment of the data and of each tensor in it, unless `general.alignment` sets another.
pub const DEFAULT_ALIGNMENT: u64 = 32;
/// The version that is written.
pub const VERSION: u32 = 3;

/// The longest header that is read, in bytes; the vocabularies of today need some 20 MB.
pub const MAX_HEADER_BYTES: u64 = 512 * 1024 * 1024;
/// The most tensors and the most keys that a header may have.
pub const MAX_ENTRIES: u64 = 65_536;
/// The longest name of a tensor, in bytes, as in ggml.
pub const MAX_TENSOR_NAME: u64 = 63;
/// The longest key, in bytes.
pub const MAX_KEY: u64 = 65_535;
/// The longest string, in bytes.
pub const MAX_STRING: u64 = 64 * 1024 * 1024;
/// The largest alignment.
pub const MAX_ALIGNMENT: u64 = 1 << 20;

/// The size of the first read: the whole header of a model without a vocabulary.
const FIRST_READ_BYTES: u64 = 64 * 1024;

/// A checked header.
#[derive(Clone, Debug, PartialEq)]
pub struct Header {
    pub version: u32,
    /// The alignment of the data and the tensors: a power of two.
    pub alignment: u64,
    pub metadata: Metadata,
    /// In the order of the file.
    pub tensors: Vec<TensorEntry>,
    /// Where the data begins, counted from the start of the file.
    pub data_start: u64,
}

/// One tensor of a header.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorEntry {
    pub name: String,
    /// The fastest-varying axis first: the reverse of a row-major shape. Empty for a scalar.
    pub dims: Vec<u64>,
    pub ty: Type,
    /// Counted from the start of the data.
    pub offset: u64,
}

impl TensorEntry {
    /// The row-major shape, as used by the rest of Lode.
    pub fn shape(&self) -> Vec<u64> {
        self.dims.iter().rev().copied().collect()
    }

    /// The number of elements in a row.
    pub fn columns(&self) -> u64 {
        self.dims.first().copied().unwrap_or(1)
    }

    /// The number of rows, over all axes but the fastest; `None` if it overflows.
    pub fn rows(&self) -> Option<u64> {
        self.dims.iter().skip(1).try_fold(1u64, |product, dim| product.checked_mul(*dim))
    }

    /// The size in bytes; `None` if the rows are not whole blocks or the size overflows. Never `None` in a
    /// parsed header.
    pub fn size_bytes(&self) -> Option<u64> {
        self.rows()?.checked_mul(self.ty.row_bytes(self.columns())?)
    }
}

/// Why a header could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error(transparent)]
    Header(#[from] HeaderError),
    #[error("reading failed")]
    Read(#[source] io::Error),
}

impl Header {
    /// Reads and checks the header of a file. Its length is known only at its end, so the reads grow.
    pub fn read(file: &(impl ReadAt + ?Sized)) -> Result<Header, ReadError> {
        Header::read_up_to(file, MAX_HEADER_BYTES)
    }

    /// As [`Header::read`], for a header of at most `limit` bytes.
    pub fn read_up_to(file: &(impl ReadAt + ?Sized), limit: u64) -> Result<Header, ReadError> {
        let file_len = file.len();
        let limit = limit.min(MAX_HEADER_BYTES);
        let mut bytes = Vec::new();
        let mut wanted = FIRST_READ_BYTES.min(file_len);
        loop {
            let have = bytes.len();
            // At most the limit, so it fits a usize.
            bytes.resize(wanted as usize, 0);
            file.read_at(have as u64, &mut bytes[have..]).map_err(ReadError::Read)?;
            match Header::parse(&bytes, file_len) {
                Err(HeaderError::Incomplete { needed }) if needed > limit => {
                    return Err(HeaderError::TooLong { needed, limit }.into());
                }
                // Doubling bounds the total of all reads to twice the header, wherever it is cut.
                Err(HeaderError::Incomplete { needed }) => {
                    wanted = needed.max(wanted.saturating_mul(2)).min(limit).min(file_len);
                }
                done => return Ok(done?),
            }
        }
    }
}

fn align_up(at: u64, alignment: u64) -> Option<u64> {
    at.checked_next_multiple_of(alignment)
}

#[cfg(test)]
mod tests;

//! A header in memory: the limits of the format, the keys, and the entries of the tensors.

use super::value::Metadata;
use crate::quant::ggml::Type;

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

pub(super) fn align_up(at: u64, alignment: u64) -> Option<u64> {
    at.checked_next_multiple_of(alignment)
}

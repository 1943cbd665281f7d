//! Checks the scales of untrusted blocks: an infinite or NaN scale spoils every result that it affects. ggml
//! offers the same check of its files.

use super::dispatch;
use super::scales::{bfloat, double, first_non_finite, float, halves};
use super::types::Type;
use crate::quant::error::DecodeError;

/// Why blocks are invalid.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum InvalidBlocks {
    #[error(transparent)]
    Length {
        #[from]
        error: DecodeError,
    },
    #[error("block {block} has a scale of {value}, expected a finite number")]
    Scale {
        /// Its position in the given bytes; for plain numbers, that of the element.
        block: usize,
        value: f32,
    },
}

/// Checks that whole blocks hold finite scales, and plain floats are finite.
pub fn validate(ty: Type, bytes: &[u8]) -> Result<(), InvalidBlocks> {
    let size = ty.block_bytes() as usize;
    if !bytes.len().is_multiple_of(size) {
        let expected = bytes.len() / size * size;
        return Err(DecodeError::Length { part: "weight", found: bytes.len(), expected }.into());
    }
    let found = match ty {
        Type::F32 => first_non_finite(bytes, size, float),
        Type::F16 => first_non_finite(bytes, size, halves([0])),
        Type::BF16 => first_non_finite(bytes, size, bfloat),
        Type::F64 => first_non_finite(bytes, size, double),
        Type::I8 | Type::I16 | Type::I32 | Type::I64 => None,
        ty => dispatch::first_invalid_scale(ty, bytes),
    };
    match found {
        Some((block, value)) => Err(InvalidBlocks::Scale { block, value }),
        None => Ok(()),
    }
}

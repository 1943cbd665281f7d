//! Checks the scales of untrusted blocks: an infinite or NaN scale spoils every result that it affects. ggml
//! offers the same check of its files.

use half::{bf16, f16};

use super::iq1_m;
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
    let halves: &[usize] = match ty {
        Type::F16 => &[0],
        Type::Q4_0 | Type::Q5_0 | Type::Q8_0 | Type::Q1_0 | Type::Q2_0 => &[0],
        Type::Q4_1 | Type::Q5_1 | Type::Q8_1 | Type::Q4_K | Type::Q5_K => &[0, 2],
        Type::IQ2_XXS | Type::IQ2_XS | Type::IQ2_S | Type::IQ3_XXS | Type::IQ3_S => &[0],
        Type::IQ1_S | Type::IQ4_NL | Type::IQ4_XS => &[0],
        Type::Q2_K => &[80, 82],
        Type::Q3_K => &[108],
        Type::Q6_K => &[208],
        Type::TQ1_0 => &[52],
        Type::TQ2_0 => &[64],
        Type::F32 | Type::Q8_K => {
            return first(bytes, size, |b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        }
        Type::BF16 => return first(bytes, size, |b| bf16::from_le_bytes([b[0], b[1]]).to_f32()),
        Type::F64 => return first(bytes, size, f64_scale),
        Type::IQ1_M => return first(bytes, size, |b| b.as_array().map_or(0.0, iq1_m::scale)),
        Type::MXFP4 => return first(bytes, size, |b| if b[0] == 0xff { f32::NAN } else { 0.0 }),
        Type::NVFP4 => return first(bytes, size, nvfp4_scale),
        Type::I8 | Type::I16 | Type::I32 | Type::I64 => return Ok(()),
    };
    // A sum of finite halves is finite: two halves cannot reach the limit of float32.
    first(bytes, size, |b| halves.iter().map(|at| f16::from_le_bytes([b[*at], b[at + 1]]).to_f32()).sum())
}

/// Returns an error for the first block whose scale is not finite.
fn first(bytes: &[u8], size: usize, scale: impl Fn(&[u8]) -> f32) -> Result<(), InvalidBlocks> {
    let mut scales = bytes.chunks_exact(size).map(scale);
    match scales.by_ref().enumerate().find(|(_, value)| !value.is_finite()) {
        Some((block, value)) => Err(InvalidBlocks::Scale { block, value }),
        None => Ok(()),
    }
}

/// A double that is too large for float32 is still a finite number.
fn f64_scale(b: &[u8]) -> f32 {
    let value = f64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]);
    if value.is_finite() { 0.0 } else { value as f32 }
}

/// The code that other readers of E4M3 treat as NaN, with either sign.
fn nvfp4_scale(b: &[u8]) -> f32 {
    if b[..4].iter().any(|code| code & 0x7f == 0x7f) { f32::NAN } else { 0.0 }
}

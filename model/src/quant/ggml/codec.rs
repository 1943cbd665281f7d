//! Decoding and encoding of whole tensors of any type, blocks or plain numbers.

use half::{bf16, f16};

use super::dispatch;
use super::types::Type;
use super::validate::{InvalidBlocks, validate};
use crate::quant::affine::{NotFinite, check_finite};
use crate::quant::error::{DecodeError, check_len};
use crate::quant::float;
use crate::quant::kind::Kind;

/// Decodes whole blocks to float32 with one rounding per operation in the order of ggml's formulas, so that
/// the bits are ggml's.
pub fn decode_f32_into(ty: Type, bytes: &[u8], out: &mut [f32]) -> Result<(), DecodeError> {
    if let Some(dtype) = ty.dtype() {
        return float::decode_f32_into(dtype, bytes, out);
    }
    check_len("weight", bytes, blocks_of(ty, out.len())?)?;
    dispatch::decode(ty, bytes, out);
    Ok(())
}

/// Returns the size of the blocks of this many elements.
fn blocks_of(ty: Type, elements: usize) -> Result<usize, DecodeError> {
    let group_size = ty.block_elements();
    let bytes = ty.row_bytes(elements as u64).and_then(|bytes| usize::try_from(bytes).ok());
    bytes.ok_or(DecodeError::Group { kind: Kind::Ggml(ty), group_size, elements })
}

/// Why values cannot be quantised.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum EncodeError {
    #[error("quantisation to {ty} is not supported")]
    Type { ty: Type },
    #[error(transparent)]
    Length(#[from] DecodeError),
    #[error(transparent)]
    NotFinite(#[from] NotFinite),
    #[error("the values of block {block} are too large for {ty}")]
    TooLarge { ty: Type, block: usize },
}

/// Quantises whole blocks as ggml does without an importance matrix, with the same bytes on every processor.
///
/// `values` are whole rows, or blocks of one; `out` has exactly the size of their blocks. Where the format is
/// a closed formula, the bytes are ggml's own; where scales are searched for, the error is as small as
/// ggml's.
pub fn encode(ty: Type, values: &[f32], out: &mut [u8]) -> Result<(), EncodeError> {
    check_len("output", out, blocks_of(ty, values.len())?)?;
    check_finite(values)?;
    match ty {
        Type::F32 => each(values, out, f32::to_le_bytes),
        Type::F16 => each(values, out, |x| f16::from_f32(x).to_le_bytes()),
        Type::BF16 => each(values, out, |x| bf16::from_f32(x).to_le_bytes()),
        Type::F64 => each(values, out, |x| f64::from(x).to_le_bytes()),
        _ if ty.is_encodable() => dispatch::encode(ty, values, out),
        _ => return Err(EncodeError::Type { ty }),
    }
    // A scale that is stored as a half float may have become infinite.
    validate(ty, out).map_err(|error| match error {
        InvalidBlocks::Scale { block, .. } => EncodeError::TooLarge { ty, block },
        InvalidBlocks::Length { error } => error.into(),
    })
}

fn each<const N: usize>(values: &[f32], out: &mut [u8], bytes: impl Fn(f32) -> [u8; N]) {
    for (out, x) in out.as_chunks_mut::<N>().0.iter_mut().zip(values) {
        *out = bytes(*x);
    }
}

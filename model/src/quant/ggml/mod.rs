//! The block types of GGUF files: their table, exact decoding to float32, and quantisation as in ggml. Each
//! format has one file, which decodes and encodes one block at any address; `dispatch` selects among them.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod block;
mod codebooks;
mod dispatch;
mod fit;
mod lanes;
mod types;
mod validate;

mod iq1_m;
mod iq1_s;
mod iq2_s;
mod iq2_xs;
mod iq2_xxs;
mod iq3_s;
mod iq3_xxs;
mod iq4_nl;
mod iq4_xs;
mod mxfp4;
mod nvfp4;
mod q1_0;
mod q2_0;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;
mod q8_1;
mod q8_k;
mod tq1_0;
mod tq2_0;

pub use types::{Type, UnknownType};
pub use validate::{InvalidBlocks, validate};

use half::{bf16, f16};

use super::affine::{NotFinite, check_finite};
use super::{DecodeError, Kind, check_len, float};

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

#[cfg(test)]
mod golden;
#[cfg(test)]
mod tests;

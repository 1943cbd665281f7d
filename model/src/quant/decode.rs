//! Decodes stored tensors of every format to float32.

use safetensors::Dtype;

use super::error::{DecodeError, check_len};
use super::kind::{Kind, Quantisation};
use super::{affine, float, ggml};

/// The stored bytes of one tensor, or of whole rows of it. They may have any alignment.
#[derive(Clone, Copy, Debug)]
pub struct StoredTensor<'a> {
    /// The type of `weight`: U32 if it holds codes.
    pub dtype: Dtype,
    pub quantisation: Option<Quantisation>,
    pub weight: &'a [u8],
    /// `cols / group_size` per row, of `scale_dtype`; empty without quantisation.
    pub scale: &'a [u8],
    pub scale_dtype: Dtype,
    /// As `scale`; empty unless the format is affine.
    pub bias: &'a [u8],
    /// NVFP4's float32 factor for the whole tensor.
    pub global_scale: Option<f32>,
}

/// Decodes to float32 with one float32 rounding per operation: exact for every format that float32 can hold,
/// and `scale * code + bias` (product rounded, then sum) for the affine ones. Rows follow each other.
pub fn decode_f32(stored: &StoredTensor<'_>) -> Result<Vec<f32>, DecodeError> {
    let elements = match stored.quantisation {
        Some(Quantisation { kind: Kind::Ggml(ty), .. }) => {
            stored.weight.len() / ty.block_bytes() as usize * ty.block_elements() as usize
        }
        Some(Quantisation { kind, .. }) => stored.weight.len() * 8 / kind.bits() as usize,
        None => stored.weight.len() * 8 / stored.dtype.bitsize(),
    };
    let mut out = vec![0.0; elements];
    decode_f32_into(stored, &mut out)?;
    Ok(out)
}

/// As [`decode_f32`], into the caller's memory, one float per element.
pub fn decode_f32_into(stored: &StoredTensor<'_>, out: &mut [f32]) -> Result<(), DecodeError> {
    let Some(Quantisation { kind, group_size }) = stored.quantisation else {
        return float::decode_f32_into(stored.dtype, stored.weight, out);
    };
    let group = group_size as usize;
    if let Kind::Ggml(ty) = kind {
        if group_size != ty.block_elements() {
            return Err(DecodeError::Group { kind, group_size, elements: out.len() });
        }
        check_len("scale", stored.scale, 0)?;
        check_len("bias", stored.bias, 0)?;
        return ggml::decode_f32_into(ty, stored.weight, out);
    }
    if !kind.allows_scale(stored.scale_dtype) {
        return Err(DecodeError::Scale { kind, dtype: stored.scale_dtype });
    }
    if !kind.allows_group_size(group_size) || !out.len().is_multiple_of(group) {
        return Err(DecodeError::Group { kind, group_size, elements: out.len() });
    }
    let scales = out.len() / group * stored.scale_dtype.bitsize() / 8;
    check_len("weight", stored.weight, out.len() * kind.bits() as usize / 8)?;
    check_len("scale", stored.scale, scales)?;
    check_len("bias", stored.bias, if kind.is_affine() { scales } else { 0 })?;

    let code_bytes = group * kind.bits() as usize / 8;
    let groups = out.chunks_exact_mut(group).zip(stored.weight.chunks_exact(code_bytes));
    if kind.is_affine() {
        let scale = float::reader(stored.scale_dtype);
        let width = stored.scale_dtype.bitsize() / 8;
        let companions = stored.scale.chunks_exact(width).zip(stored.bias.chunks_exact(width));
        for ((out, codes), (s, b)) in groups.zip(companions) {
            match kind {
                Kind::Int4 => affine::dequantise_group_4(codes, scale(s), scale(b), out),
                _ => affine::dequantise_group_8(codes, scale(s), scale(b), out),
            }
        }
        return Ok(());
    }
    let global = stored.global_scale.unwrap_or(1.0);
    for ((out, codes), s) in groups.zip(stored.scale) {
        let scale = match kind {
            Kind::Nvfp4 => float::e4m3_to_f32(*s) * global,
            _ => float::e8m0_to_f32(*s),
        };
        match kind {
            Kind::Mxfp8 => out.iter_mut().zip(codes).for_each(|(x, q)| *x = scale * float::e4m3_to_f32(*q)),
            _ => out.chunks_exact_mut(2).zip(codes).for_each(|(pair, byte)| {
                pair[0] = scale * float::E2M1[usize::from(byte & 15)];
                pair[1] = scale * float::E2M1[usize::from(byte >> 4)];
            }),
        }
    }
    Ok(())
}

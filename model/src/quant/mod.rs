//! Quantised number formats: their names and parameters, and exact decoding of every stored tensor to float32.
//! The layouts are those of tensor blobs (MLX); each is written down here once.

pub mod affine;
pub mod float;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::safetensors::Dtype;

/// A quantised format of tensor blobs. Codes stand in U32 words, lowest bits first, so their bytes are simply the codes in
/// order; groups run along the last axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// 4-bit codes, `scale * code + bias` a group.
    Int4,
    /// 8-bit codes, `scale * code + bias` a group.
    Int8,
    /// E2M1 codes, an E8M0 scale for each 32.
    Mxfp4,
    /// E2M1 codes, an E4M3 scale for each 16, sometimes one float32 scale for the whole tensor.
    Nvfp4,
    /// E4M3 codes, an E8M0 scale for each 32.
    Mxfp8,
}

impl Kind {
    pub const ALL: [Kind; 5] = [Kind::Int4, Kind::Int8, Kind::Mxfp4, Kind::Nvfp4, Kind::Mxfp8];

    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Int4 => "int4",
            Kind::Int8 => "int8",
            Kind::Mxfp4 => "mxfp4",
            Kind::Nvfp4 => "nvfp4",
            Kind::Mxfp8 => "mxfp8",
        }
    }

    /// Bits a code.
    pub fn bits(self) -> u32 {
        match self {
            Kind::Int4 | Kind::Mxfp4 | Kind::Nvfp4 => 4,
            Kind::Int8 | Kind::Mxfp8 => 8,
        }
    }

    /// Whether a group has a bias beside its scale.
    pub fn is_affine(self) -> bool {
        matches!(self, Kind::Int4 | Kind::Int8)
    }

    /// The group size that we, and ollama, write.
    pub fn default_group_size(self) -> u32 {
        match self {
            Kind::Int4 | Kind::Int8 => 64,
            Kind::Mxfp4 | Kind::Mxfp8 => 32,
            Kind::Nvfp4 => 16,
        }
    }

    /// Whether a group size exists in this format.
    pub fn allows_group_size(self, group_size: u32) -> bool {
        if self.is_affine() {
            matches!(group_size, 32 | 64 | 128)
        } else {
            group_size == self.default_group_size()
        }
    }

    /// Whether a scale may be stored as this type.
    pub fn allows_scale(self, dtype: Dtype) -> bool {
        match self {
            Kind::Int4 | Kind::Int8 => matches!(dtype, Dtype::BF16 | Dtype::F16 | Dtype::F32),
            Kind::Nvfp4 => matches!(dtype, Dtype::U8 | Dtype::F8_E4M3),
            Kind::Mxfp4 | Kind::Mxfp8 => matches!(dtype, Dtype::U8 | Dtype::F8_E8M0),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A text that names no quantised format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a quantisation (expected int4, int8, nvfp4, mxfp4 or mxfp8)")]
pub struct UnknownKind {
    pub text: String,
}

impl FromStr for Kind {
    type Err = UnknownKind;

    /// In any case, and with the aliases seen in blobs: Q4 and FP4 are int4, Q8 and FP8 int8.
    fn from_str(text: &str) -> Result<Self, UnknownKind> {
        match text.to_ascii_lowercase().as_str() {
            "int4" | "q4" | "fp4" => Ok(Kind::Int4),
            "int8" | "q8" | "fp8" => Ok(Kind::Int8),
            "mxfp4" => Ok(Kind::Mxfp4),
            "nvfp4" => Ok(Kind::Nvfp4),
            "mxfp8" => Ok(Kind::Mxfp8),
            _ => Err(UnknownKind { text: text.chars().take(40).collect() }),
        }
    }
}

/// How a tensor is quantised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Quantisation {
    #[serde(rename = "type", with = "kind_as_text")]
    pub kind: Kind,
    /// How many consecutive elements of a row share a scale.
    pub group_size: u32,
}

mod kind_as_text {
    use super::Kind;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(kind: &Kind, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(kind.as_str())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Kind, D::Error> {
        String::deserialize(d)?.parse().map_err(D::Error::custom)
    }
}

/// The stored bytes of one tensor, or of whole rows of it. They may lie at any address.
#[derive(Clone, Copy, Debug)]
pub struct Stored<'a> {
    /// The type of `weight`: U32 where it holds codes.
    pub dtype: Dtype,
    pub quantisation: Option<Quantisation>,
    pub weight: &'a [u8],
    /// `cols / group_size` a row, of `scale_dtype`; empty where there is no quantisation.
    pub scale: &'a [u8],
    pub scale_dtype: Dtype,
    /// As `scale`; empty unless the format is affine.
    pub bias: &'a [u8],
    /// NVFP4's float32 factor over the whole tensor.
    pub global_scale: Option<f32>,
}

/// Why stored bytes cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("values of {dtype} cannot be decoded to float32")]
    Dtype { dtype: Dtype },
    #[error("{part} has {found} bytes, expected {expected}")]
    Length { part: &'static str, found: usize, expected: usize },
    #[error("scales of {dtype} do not belong to {kind}")]
    Scale { kind: Kind, dtype: Dtype },
    #[error("{elements} elements of {kind} do not fall into groups of {group_size}")]
    Group { kind: Kind, group_size: u32, elements: usize },
}

/// Decodes to float32, with one float32 rounding an operation: exact for every format that float32 can hold, and
/// `scale * code + bias` (product rounded, then sum) for the affine ones. Rows follow each other.
pub fn decode_f32(stored: &Stored<'_>) -> Result<Vec<f32>, DecodeError> {
    let elements = match stored.quantisation {
        Some(Quantisation { kind, .. }) => stored.weight.len() * 8 / kind.bits() as usize,
        None => stored.weight.len() * 8 / stored.dtype.bitsize(),
    };
    let mut out = vec![0.0; elements];
    decode_f32_into(stored, &mut out)?;
    Ok(out)
}

/// As [`decode_f32`], into memory of the caller, one float for each element.
pub fn decode_f32_into(stored: &Stored<'_>, out: &mut [f32]) -> Result<(), DecodeError> {
    let Some(Quantisation { kind, group_size }) = stored.quantisation else {
        return float::decode_f32_into(stored.dtype, stored.weight, out);
    };
    let group = group_size as usize;
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

fn check_len(part: &'static str, bytes: &[u8], expected: usize) -> Result<(), DecodeError> {
    if bytes.len() == expected {
        Ok(())
    } else {
        Err(DecodeError::Length { part, found: bytes.len(), expected })
    }
}

#[cfg(test)]
mod golden;

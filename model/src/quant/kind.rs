//! The quantised formats, and what each allows: group sizes and the types of its scales. Two families share
//! one enum: the formats of tensor blobs (MLX) and the block types of GGUF files (ggml).

use std::fmt;
use std::str::FromStr;

use safetensors::Dtype;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::ggml::Type;

/// A quantised format. In tensor blobs, codes are stored in U32 words, lowest bits first, so that the bytes
/// are simply the codes in order; groups run along the last axis. In GGUF files, a row is a sequence of
/// blocks that hold codes and scales together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// 4-bit codes, `scale * code + bias` per group.
    Int4,
    /// 8-bit codes, `scale * code + bias` per group.
    Int8,
    /// E2M1 codes, an E8M0 scale for each 32.
    Mxfp4,
    /// E2M1 codes, an E4M3 scale for each 16, sometimes one float32 scale for the whole tensor.
    Nvfp4,
    /// E4M3 codes, an E8M0 scale for each 32.
    Mxfp8,
    /// Blocks of a GGUF file. The weight is U8 with rows of `row_bytes` bytes; there are no other parts.
    Ggml(Type),
}

impl Kind {
    /// The formats of tensor blobs.
    pub const BLOB: [Kind; 5] = [Kind::Int4, Kind::Int8, Kind::Nvfp4, Kind::Mxfp4, Kind::Mxfp8];

    /// Lists the formats of tensor blobs for a message: `int4, int8 or mxfp8`.
    pub(crate) fn list_blob_kinds(conjunction: &str) -> String {
        let [others @ .., last] = Kind::BLOB.map(Kind::as_str);
        format!("{} {conjunction} {last}", others.join(", "))
    }

    /// Both families have a format of the same name, distinguished by case: `mxfp4` is that of tensor blobs,
    /// `MXFP4` that of ggml.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Int4 => "int4",
            Kind::Int8 => "int8",
            Kind::Mxfp4 => "mxfp4",
            Kind::Nvfp4 => "nvfp4",
            Kind::Mxfp8 => "mxfp8",
            Kind::Ggml(ty) => ty.as_str(),
        }
    }

    /// The bits per code; for a block type, the bits of the block per element, rounded down.
    pub fn bits(self) -> u32 {
        match self {
            Kind::Int4 | Kind::Mxfp4 | Kind::Nvfp4 => 4,
            Kind::Int8 | Kind::Mxfp8 => 8,
            Kind::Ggml(ty) => ty.block_bytes() * 8 / ty.block_elements(),
        }
    }

    /// Whether a group has a bias in addition to its scale.
    pub fn is_affine(self) -> bool {
        matches!(self, Kind::Int4 | Kind::Int8)
    }

    /// The group size that Lode and ollama write; for a block type, its only one.
    pub fn default_group_size(self) -> u32 {
        match self {
            Kind::Int4 | Kind::Int8 => 64,
            Kind::Mxfp4 | Kind::Mxfp8 => 32,
            Kind::Nvfp4 => 16,
            Kind::Ggml(ty) => ty.block_elements(),
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

    /// Whether a scale that is stored apart from the weight may have this type.
    pub fn allows_scale(self, dtype: Dtype) -> bool {
        match self {
            Kind::Int4 | Kind::Int8 => matches!(dtype, Dtype::BF16 | Dtype::F16 | Dtype::F32),
            Kind::Nvfp4 => matches!(dtype, Dtype::U8 | Dtype::F8_E4M3),
            Kind::Mxfp4 | Kind::Mxfp8 => matches!(dtype, Dtype::U8 | Dtype::F8_E8M0),
            Kind::Ggml(_) => false,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The error for a text that is not the name of a quantised format of tensor blobs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a quantisation (expected {})", Kind::list_blob_kinds("or"))]
pub struct UnknownKind {
    pub text: String,
}

impl FromStr for Kind {
    type Err = UnknownKind;

    /// Parses a format of tensor blobs as their metadata spells it: in any case, and with the aliases seen in
    /// blobs (Q4 and FP4 are int4, Q8 and FP8 int8). Block types are parsed by [`Type`].
    fn from_str(text: &str) -> Result<Self, UnknownKind> {
        let lower = text.to_ascii_lowercase();
        let name = match lower.as_str() {
            "q4" | "fp4" => "int4",
            "q8" | "fp8" => "int8",
            name => name,
        };
        let found = Kind::BLOB.into_iter().find(|kind| kind.as_str() == name);
        found.ok_or_else(|| UnknownKind { text: text.chars().take(40).collect() })
    }
}

/// How a tensor is quantised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
pub struct Quantisation {
    #[serde(rename = "type", with = "kind_as_text")]
    #[schema(value_type = String, example = "int4")]
    pub kind: Kind,
    /// The number of consecutive elements of a row that share a scale; for a block type, those of a block.
    pub group_size: u32,
}

impl Quantisation {
    /// The quantisation with the format's default group size.
    pub fn of(kind: Kind) -> Quantisation {
        Quantisation { kind, group_size: kind.default_group_size() }
    }
}

mod kind_as_text {
    use super::{Kind, Type};
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(kind: &Kind, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(kind.as_str())
    }

    /// Reads exactly what `serialize` writes, where case distinguishes the families, else the spellings of
    /// blobs.
    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Kind, D::Error> {
        let text = String::deserialize(d)?;
        match Type::ALL.iter().find(|ty| ty.as_str() == text) {
            Some(ty) => Ok(Kind::Ggml(*ty)),
            None => text.parse().map_err(D::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_comes_back_from_json() {
        let kinds = Kind::BLOB.into_iter().chain(Type::ALL.iter().map(|ty| Kind::Ggml(*ty)));
        for kind in kinds {
            let quantisation = Quantisation::of(kind);
            let json = serde_json::to_string(&quantisation).unwrap();
            assert_eq!(serde_json::from_str::<Quantisation>(&json).unwrap(), quantisation, "{json}");
            assert!(kind.allows_group_size(quantisation.group_size));
        }
        let json = serde_json::to_string(&Quantisation::of(Kind::Ggml(Type::Q4_K))).unwrap();
        assert_eq!(json, r#"{"type":"Q4_K","group_size":256}"#);
    }

    #[test]
    fn blobs_name_their_own_formats_only() {
        for (text, expect) in [
            ("int4", Some(Kind::Int4)),
            ("FP8", Some(Kind::Int8)),
            ("MXFP4", Some(Kind::Mxfp4)),
            ("NVFP4", Some(Kind::Nvfp4)),
            ("Q4_K", None),
            ("", None),
        ] {
            assert_eq!(text.parse::<Kind>().ok(), expect, "{text}");
        }
    }
}

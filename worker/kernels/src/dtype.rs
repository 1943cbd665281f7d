//! The formats in which values are stored, in weights and in rows of the cache: the size of a row, and the
//! names in model files and settings.

use lode_model::quant::ggml::Type;
use lode_model::quant::{self, Quantisation};
use lode_model::safetensors::Dtype as StoredDtype;

/// The formats of tensors that [`Dtype::of`] supports, by their names in a tensor index.
pub const DTYPES: &[&str] = &[
    "F32",
    "F16",
    "BF16",
    "F8_E4M3 and I8 with scales",
    "int4",
    "int8",
    "nvfp4",
    "mxfp4",
    "mxfp8",
    "the block types of GGUF",
];

/// A floating-point storage type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Float {
    F32,
    F16,
    BF16,
}

impl Float {
    /// The float that a file stores as this type.
    pub fn of(stored: StoredDtype) -> Option<Self> {
        match stored {
            StoredDtype::F32 => Some(Self::F32),
            StoredDtype::F16 => Some(Self::F16),
            StoredDtype::BF16 => Some(Self::BF16),
            _ => None,
        }
    }

    pub const fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
        }
    }
}

/// The small floats of tensor blobs: codes as a byte stream, the even element of two in the low nibble, and a
/// one-byte scale per group of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scaled {
    /// E2M1 with an E4M3 scale per 16 codes.
    Nvfp4,
    /// E2M1 with an E8M0 scale per 32 codes.
    Mxfp4,
    /// E4M3 with an E8M0 scale per 32 codes.
    Mxfp8,
}

impl Scaled {
    const ALL: [Self; 3] = [Self::Nvfp4, Self::Mxfp4, Self::Mxfp8];

    /// The corresponding kind in `lode_model`.
    pub const fn kind(self) -> quant::Kind {
        match self {
            Self::Nvfp4 => quant::Kind::Nvfp4,
            Self::Mxfp4 => quant::Kind::Mxfp4,
            Self::Mxfp8 => quant::Kind::Mxfp8,
        }
    }

    pub const fn bits(self) -> usize {
        match self {
            Self::Nvfp4 | Self::Mxfp4 => 4,
            Self::Mxfp8 => 8,
        }
    }

    pub const fn group(self) -> usize {
        match self {
            Self::Nvfp4 => 16,
            Self::Mxfp4 | Self::Mxfp8 => 32,
        }
    }
}

/// The codes of checkpoints with one byte per value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteCode {
    E4m3,
    /// A signed integer.
    I8,
}

impl ByteCode {
    /// The codes that a file stores as this type.
    pub fn of(stored: StoredDtype) -> Option<Self> {
        match stored {
            StoredDtype::F8_E4M3 => Some(Self::E4m3),
            StoredDtype::I8 => Some(Self::I8),
            _ => None,
        }
    }
}

/// The storage format of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    Float(Float),
    /// MLX's affine codes: value = `scale * q + bias`, with `bits` (4 or 8) per code, and one scale and bias
    /// per `group` codes of a row. The codes are a byte stream; with 4 bits, the even element is in the low
    /// nibble. Scales and biases are stored separately.
    Affine {
        bits: u8,
        group: usize,
        scales: Float,
    },
    /// Codes with separate one-byte scales.
    Scaled(Scaled),
    /// Codes of one byte: value = `scale * code`. A row has a separate f32 scale for each `group` of its
    /// codes, a multiple of 32; the last group may be shorter.
    ByteCodes {
        code: ByteCode,
        group: usize,
    },
    /// ggml's blocks of codes and scales, one after the other. Its plain types are floats here.
    Ggml(Type),
}

/// Values per block of Q8_0.
pub(super) const QK8_0: usize = 32;
/// Bytes per block of Q8_0: `d` as f16, then 32 signed bytes; value = `d * q`.
pub(super) const BLOCK_Q8_0: usize = 2 + QK8_0;

impl Dtype {
    /// The format of a quantised tensor; `None` if it is not supported. `scales` is the type of its scales
    /// and biases, which only affine formats need.
    pub fn of(quantisation: &Quantisation, scales: Option<Float>) -> Option<Self> {
        let affine =
            |bits| Some(Self::Affine { bits, group: quantisation.group_size as usize, scales: scales? });
        match quantisation.kind {
            quant::Kind::Int4 => affine(4),
            quant::Kind::Int8 => affine(8),
            // These two are types of activations and do not occur in model files.
            quant::Kind::Ggml(Type::Q8_1 | Type::Q8_K) => None,
            quant::Kind::Ggml(ty) => Some(Self::Ggml(ty)),
            kind => Scaled::ALL.into_iter().find(|format| format.kind() == kind).map(Self::Scaled),
        }
    }

    /// Bytes of a row's codes. `cols` must suit the format: see [`Dtype::multiple`].
    #[inline]
    pub fn row_bytes(self, cols: usize) -> usize {
        match self {
            Self::Float(float) => cols * float.size(),
            Self::Affine { bits, .. } => cols / 8 * usize::from(bits),
            Self::Scaled(format) => cols / 8 * format.bits(),
            Self::ByteCodes { .. } => cols,
            // Constants, because attention asks for each page of the cache.
            Self::Ggml(Type::Q8_0) => cols / QK8_0 * BLOCK_Q8_0,
            Self::Ggml(ty) => cols / ty.block_elements() as usize * ty.block_bytes() as usize,
        }
    }

    /// Row lengths are multiples of this number.
    #[inline]
    pub fn multiple(self) -> usize {
        match self {
            Self::Float(_) => 1,
            Self::Affine { group, .. } => group,
            // The operations read 32 values at a time.
            Self::Scaled(_) | Self::ByteCodes { .. } => 32,
            Self::Ggml(Type::Q8_0) => QK8_0,
            Self::Ggml(ty) => ty.block_elements() as usize,
        }
    }

    /// As [`Dtype::row_bytes`]; `None` if the row length or the parameters do not fit the format.
    pub fn checked_row_bytes(self, cols: usize) -> Option<usize> {
        match self {
            Self::Float(float) => cols.checked_mul(float.size()),
            Self::Affine { bits: 4 | 8, group: 32 | 64 | 128, .. } | Self::Scaled(_) => {
                cols.is_multiple_of(self.multiple()).then(|| self.row_bytes(cols))
            }
            Self::Affine { .. } => None,
            Self::ByteCodes { group, .. } => {
                let is_valid = group > 0 && group.is_multiple_of(32) && cols.is_multiple_of(32);
                is_valid.then_some(cols)
            }
            Self::Ggml(ty) => usize::try_from(ty.row_bytes(cols as u64)?).ok(),
        }
    }

    /// Values per separate scale, in formats that have it as a parameter.
    pub fn scale_group(self) -> Option<usize> {
        match self {
            Self::Affine { group, .. } | Self::ByteCodes { group, .. } => Some(group),
            Self::Float(_) | Self::Scaled(_) | Self::Ggml(_) => None,
        }
    }

    /// Bytes of one row's scales.
    #[inline]
    pub fn row_scale_bytes(self, cols: usize) -> usize {
        match self {
            Self::Float(_) | Self::Ggml(_) => 0,
            Self::Affine { group, scales, .. } => cols / group * scales.size(),
            Self::Scaled(format) => cols / format.group(),
            Self::ByteCodes { group, .. } => cols.div_ceil(group) * Float::F32.size(),
        }
    }

    /// Bytes of one row's biases.
    #[inline]
    pub fn row_bias_bytes(self, cols: usize) -> usize {
        if matches!(self, Self::Affine { .. }) { self.row_scale_bytes(cols) } else { 0 }
    }
}

/// The data type of the KV cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvType {
    F32,
    #[default]
    F16,
    /// Blocks of 32 signed bytes with an f16 scale; a head's last block is padded with zeros.
    Q8_0,
}

impl KvType {
    /// Every type, its name in settings, and the format of its rows.
    const ALL: [(Self, &str, Dtype); 3] = [
        (Self::F32, "f32", Dtype::Float(Float::F32)),
        (Self::F16, "f16", Dtype::Float(Float::F16)),
        (Self::Q8_0, "q8_0", Dtype::Ggml(Type::Q8_0)),
    ];

    fn entry(self) -> (Self, &'static str, Dtype) {
        Self::ALL[self as usize]
    }

    /// The format of the cache's rows.
    pub fn dtype(self) -> Dtype {
        self.entry().2
    }
}

impl std::str::FromStr for KvType {
    type Err = UnknownKvType;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|(_, name, _)| *name == text);
        found.map(|(ty, ..)| ty).ok_or_else(|| UnknownKvType(text.to_owned()))
    }
}

impl std::fmt::Display for KvType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.entry().1)
    }
}

/// An invalid value for `LODE_KV_CACHE_TYPE` or its flag.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a cache type: use f32, f16 or q8_0")]
pub struct UnknownKvType(pub String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listed_formats_are_supported() {
        for kind in quant::Kind::BLOB {
            let dtype = Dtype::of(&Quantisation::of(kind), Some(Float::F16));
            assert_eq!(dtype.is_some(), DTYPES.contains(&kind.as_str()), "{kind}");
            assert_eq!(Dtype::of(&Quantisation::of(kind), None).is_some(), !kind.is_affine(), "{kind}");
        }
        for stored in
            [StoredDtype::F64, StoredDtype::F32, StoredDtype::F16, StoredDtype::BF16, StoredDtype::U8]
        {
            assert_eq!(
                Float::of(stored).is_some(),
                DTYPES.contains(&stored.to_string().as_str()),
                "{stored}"
            );
        }
    }

    #[test]
    fn cache_types_are_in_the_order_of_the_table() {
        for (ty, name, dtype) in KvType::ALL {
            assert_eq!((ty.to_string().as_str(), ty.dtype(), name.parse()), (name, dtype, Ok(ty)));
        }
        let error = "q4_0".parse::<KvType>().unwrap_err().to_string();
        assert!(KvType::ALL.iter().all(|(_, name, _)| error.contains(name)), "{error}");
    }
}

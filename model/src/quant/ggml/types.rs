//! The type table of GGUF tensors: names, numbers, and how many elements and bytes a block has.
//! Source: ggml `include/ggml.h` (numbers) and `src/ggml-common.h` (block structs).

use std::fmt;
use std::str::FromStr;

use safetensors::Dtype;

macro_rules! types {
    ($($(#[$doc:meta])* $name:ident = $id:literal, $elements:literal, $bytes:literal;)+) => {
        /// The type of a GGUF tensor. Plain numbers are blocks of one element.
        #[allow(non_camel_case_types)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Type {
            $($(#[$doc])* $name,)+
        }

        impl Type {
            pub const ALL: &[Type] = &[$(Type::$name),+];

            /// Returns the type with this number in a file; `None` for unknown numbers and types that ggml
            /// removed (4, 5, 31-33, 36-38).
            pub fn from_id(id: u32) -> Option<Type> {
                match id {
                    $($id => Some(Type::$name),)+
                    _ => None,
                }
            }

            /// Its number in a file.
            pub fn id(self) -> u32 {
                match self {
                    $(Type::$name => $id,)+
                }
            }

            pub fn as_str(self) -> &'static str {
                match self {
                    $(Type::$name => stringify!($name),)+
                }
            }

            /// The number of elements in a block. Rows are whole blocks.
            pub fn block_elements(self) -> u32 {
                match self {
                    $(Type::$name => $elements,)+
                }
            }

            /// The size of a block in bytes. Blocks follow each other without padding, even if that leaves
            /// them unaligned.
            pub fn block_bytes(self) -> u32 {
                match self {
                    $(Type::$name => $bytes,)+
                }
            }
        }
    };
}

types! {
    F32 = 0, 1, 4;
    F16 = 1, 1, 2;
    Q4_0 = 2, 32, 18;
    Q4_1 = 3, 32, 20;
    Q5_0 = 6, 32, 22;
    Q5_1 = 7, 32, 24;
    Q8_0 = 8, 32, 34;
    /// For activations; files do not have it.
    Q8_1 = 9, 32, 36;
    Q2_K = 10, 256, 84;
    Q3_K = 11, 256, 110;
    Q4_K = 12, 256, 144;
    Q5_K = 13, 256, 176;
    Q6_K = 14, 256, 210;
    /// For activations; files do not have it.
    Q8_K = 15, 256, 292;
    IQ2_XXS = 16, 256, 66;
    IQ2_XS = 17, 256, 74;
    IQ3_XXS = 18, 256, 98;
    IQ1_S = 19, 256, 50;
    IQ4_NL = 20, 32, 18;
    IQ3_S = 21, 256, 110;
    IQ2_S = 22, 256, 82;
    IQ4_XS = 23, 256, 136;
    I8 = 24, 1, 1;
    I16 = 25, 1, 2;
    I32 = 26, 1, 4;
    I64 = 27, 1, 8;
    F64 = 28, 1, 8;
    IQ1_M = 29, 256, 56;
    BF16 = 30, 1, 2;
    TQ1_0 = 34, 256, 54;
    TQ2_0 = 35, 256, 66;
    MXFP4 = 39, 32, 17;
    NVFP4 = 40, 64, 36;
    Q1_0 = 41, 128, 18;
    Q2_0 = 42, 64, 18;
}

impl Type {
    /// The size of a row of `cols` elements in bytes; `None` if it is not whole blocks or the size overflows.
    pub fn row_bytes(self, cols: u64) -> Option<u64> {
        let elements = u64::from(self.block_elements());
        let blocks = cols.is_multiple_of(elements).then_some(cols / elements)?;
        blocks.checked_mul(u64::from(self.block_bytes()))
    }

    /// The dtype of a type that is plain numbers; `None` for the quantised ones.
    pub fn dtype(self) -> Option<Dtype> {
        Some(match self {
            Type::F32 => Dtype::F32,
            Type::F16 => Dtype::F16,
            Type::BF16 => Dtype::BF16,
            Type::F64 => Dtype::F64,
            Type::I8 => Dtype::I8,
            Type::I16 => Dtype::I16,
            Type::I32 => Dtype::I32,
            Type::I64 => Dtype::I64,
            _ => return None,
        })
    }

    /// Whether its blocks hold codes and scales rather than plain numbers.
    pub fn is_quantised(self) -> bool {
        self.dtype().is_none()
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The error for a text that is not the name of a GGML type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a GGML type")]
pub struct UnknownType {
    pub text: String,
}

impl FromStr for Type {
    type Err = UnknownType;

    /// Ignores case.
    fn from_str(text: &str) -> Result<Self, UnknownType> {
        let found = Type::ALL.iter().find(|ty| ty.as_str().eq_ignore_ascii_case(text));
        found.copied().ok_or_else(|| UnknownType { text: text.chars().take(40).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_inverse() {
        for ty in Type::ALL {
            assert_eq!(Type::from_id(ty.id()), Some(*ty));
            assert_eq!(ty.as_str().parse(), Ok(*ty));
            assert_eq!(ty.as_str().to_lowercase().parse(), Ok(*ty));
        }
        for removed in [4, 5, 31, 32, 33, 36, 37, 38, 43, u32::MAX] {
            assert_eq!(Type::from_id(removed), None);
        }
        assert!("Q4_K_M".parse::<Type>().is_err());
    }

    #[test]
    fn rows_are_whole_blocks() {
        for (ty, cols, expect) in [
            (Type::Q4_K, 4096, Some(2304)),
            (Type::Q4_K, 4000, None),
            (Type::Q8_0, 0, Some(0)),
            (Type::F32, 3, Some(12)),
            (Type::F64, u64::MAX, None),
            (Type::MXFP4, 32, Some(17)),
        ] {
            assert_eq!(ty.row_bytes(cols), expect, "{ty} {cols}");
        }
    }

    #[test]
    fn plain_types_are_their_dtype() {
        for ty in Type::ALL {
            if let Some(dtype) = ty.dtype() {
                assert_eq!(ty.block_elements(), 1);
                assert_eq!(dtype.bitsize(), ty.block_bytes() as usize * 8);
                assert_eq!(dtype.to_string(), ty.as_str());
            }
        }
    }
}

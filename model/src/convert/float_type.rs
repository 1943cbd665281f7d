//! The types of floats that a checkpoint stores.

use std::fmt;
use std::str::FromStr;

use crate::quant::ggml::Type;
use crate::safetensors::Dtype;

/// A type of floats in a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FloatType {
    F32,
    F16,
    BF16,
}

impl FloatType {
    pub const ALL: [FloatType; 3] = [FloatType::F32, FloatType::F16, FloatType::BF16];

    pub fn as_str(self) -> &'static str {
        match self {
            FloatType::F32 => "F32",
            FloatType::F16 => "F16",
            FloatType::BF16 => "BF16",
        }
    }

    /// Its name in PyTorch, which config.json has.
    pub(super) fn torch_name(self) -> &'static str {
        match self {
            FloatType::F32 => "float32",
            FloatType::F16 => "float16",
            FloatType::BF16 => "bfloat16",
        }
    }

    /// The type of a tensor of floats; `None` for blocks, integers and wider floats.
    pub(super) fn of(ty: Type) -> Option<FloatType> {
        match ty {
            Type::F32 => Some(FloatType::F32),
            Type::F16 => Some(FloatType::F16),
            Type::BF16 => Some(FloatType::BF16),
            _ => None,
        }
    }

    pub(super) fn dtype(self) -> Dtype {
        match self {
            FloatType::F32 => Dtype::F32,
            FloatType::F16 => Dtype::F16,
            FloatType::BF16 => Dtype::BF16,
        }
    }

    pub(super) fn ggml(self) -> Type {
        match self {
            FloatType::F32 => Type::F32,
            FloatType::F16 => Type::F16,
            FloatType::BF16 => Type::BF16,
        }
    }
}

impl fmt::Display for FloatType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The error for a text that is not the name of a [`FloatType`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a type of floats (expected F32, F16 or BF16)")]
pub struct UnknownFloatType {
    pub text: String,
}

impl FromStr for FloatType {
    type Err = UnknownFloatType;

    /// Ignores case.
    fn from_str(text: &str) -> Result<Self, UnknownFloatType> {
        let found = FloatType::ALL.into_iter().find(|float| float.as_str().eq_ignore_ascii_case(text));
        found.ok_or_else(|| UnknownFloatType { text: text.chars().take(40).collect() })
    }
}

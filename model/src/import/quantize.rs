//! The formats to which an import can quantise float weights: those of tensor blobs, and the file types of
//! GGUF.

use std::fmt;
use std::str::FromStr;

use crate::convert::FileType;
use crate::quant::Kind;

/// A format of float weights after an import.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantize {
    /// One of [`Kind::BLOB`].
    Blobs(Kind),
    /// A GGUF file in place of all weights.
    Gguf(FileType),
}

impl Quantize {
    /// Returns the format of tensor blobs; `None` for a GGUF.
    pub fn kind(self) -> Option<Kind> {
        match self {
            Quantize::Blobs(kind) => Some(kind),
            Quantize::Gguf(_) => None,
        }
    }
}

impl fmt::Display for Quantize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Quantize::Gguf(file_type) => file_type.fmt(f),
            Quantize::Blobs(kind) => kind.fmt(f),
        }
    }
}

/// The error for a text that names no format of an import.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not a supported quantisation (tensor blobs: {}; GGUF: {})",
    Kind::BLOB.map(Kind::as_str).join(", "),
    FileType::ALL.map(FileType::as_str).join(", ")
)]
pub struct UnknownQuantize {
    pub text: String,
}

impl FromStr for Quantize {
    type Err = UnknownQuantize;

    /// Ignores case. The aliases Q4 and Q8 are int4 and int8 as in ollama, and Q4_K is Q4_K_M.
    fn from_str(text: &str) -> Result<Self, UnknownQuantize> {
        if let Ok(file_type) = text.parse() {
            return Ok(Quantize::Gguf(file_type));
        }
        let kind = text.parse::<Kind>().map(Quantize::Blobs);
        kind.map_err(|_| UnknownQuantize { text: text.chars().take(40).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for (text, expect) in [
            ("int4", Some(Quantize::Blobs(Kind::Int4))),
            ("Q8", Some(Quantize::Blobs(Kind::Int8))),
            ("nvfp4", Some(Quantize::Blobs(Kind::Nvfp4))),
            ("q8_0", Some(Quantize::Gguf(FileType::Q8_0))),
            ("q4_K_M", Some(Quantize::Gguf(FileType::Q4_K_M))),
            ("Q4_K", Some(Quantize::Gguf(FileType::Q4_K_M))),
            ("bf16", Some(Quantize::Gguf(FileType::BF16))),
            ("q9", None),
            ("", None),
        ] {
            assert_eq!(text.parse().ok(), expect, "{text}");
        }
        assert_eq!(Quantize::Gguf(FileType::Q5_K_S).to_string(), "Q5_K_S");
        assert_eq!(Quantize::Blobs(Kind::Mxfp8).to_string(), "mxfp8");
    }
}

//! The formats to which an import can quantise float weights: those of tensor blobs, and the file types of
//! GGUF.

use std::fmt;
use std::str::FromStr;

use crate::convert::FileType;
use crate::quant::Kind;

/// A format of float weights after an import.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantize {
    Int4,
    Int8,
    Mxfp4,
    Nvfp4,
    Mxfp8,
    /// A GGUF file in place of all weights.
    Gguf(FileType),
}

const BLOBS: [(Quantize, Kind); 5] = [
    (Quantize::Int4, Kind::Int4),
    (Quantize::Int8, Kind::Int8),
    (Quantize::Mxfp4, Kind::Mxfp4),
    (Quantize::Nvfp4, Kind::Nvfp4),
    (Quantize::Mxfp8, Kind::Mxfp8),
];

impl Quantize {
    /// Returns the format of tensor blobs; `None` for a GGUF.
    pub fn kind(self) -> Option<Kind> {
        BLOBS.iter().find(|(quantize, _)| *quantize == self).map(|(_, kind)| *kind)
    }
}

impl fmt::Display for Quantize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Quantize::Gguf(file_type) => file_type.fmt(f),
            blobs => f.write_str(blobs.kind().map_or("", Kind::as_str)),
        }
    }
}

/// The error for a text that names no format of an import.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not a supported quantisation (tensor blobs: int4, int8, nvfp4, mxfp4, mxfp8; GGUF: {})",
    file_types()
)]
pub struct UnknownQuantize {
    pub text: String,
}

fn file_types() -> String {
    FileType::ALL.map(FileType::as_str).join(", ")
}

impl FromStr for Quantize {
    type Err = UnknownQuantize;

    /// Ignores case. The aliases Q4 and Q8 are int4 and int8 as in ollama, and Q4_K is Q4_K_M.
    fn from_str(text: &str) -> Result<Self, UnknownQuantize> {
        if let Ok(file_type) = text.parse() {
            return Ok(Quantize::Gguf(file_type));
        }
        let kind = text.parse::<Kind>().ok();
        let found = BLOBS.iter().find(|(_, of)| Some(*of) == kind).map(|(quantize, _)| *quantize);
        found.ok_or_else(|| UnknownQuantize { text: text.chars().take(40).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for (text, expect) in [
            ("int4", Some(Quantize::Int4)),
            ("Q8", Some(Quantize::Int8)),
            ("nvfp4", Some(Quantize::Nvfp4)),
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
        assert_eq!(Quantize::Mxfp8.to_string(), "mxfp8");
    }
}

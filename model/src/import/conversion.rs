//! What an import makes of the weights instead of storing them as they are.

use std::fmt;
use std::str::FromStr;

use crate::convert::{FileType, FloatType};
use crate::quant::Kind;

/// A conversion of the weights during an import.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conversion {
    /// Tensor blobs of a quantised type, one of [`Kind::BLOB`].
    Blobs(Kind),
    /// A GGUF file in place of all weights. Without a type it has the float type of most weights.
    Gguf(Option<FileType>),
    /// A checkpoint in place of a GGUF file. Without a type, floats keep theirs and blocks are decoded to BF16.
    Checkpoint(Option<FloatType>),
}

/// A form of model files that a conversion produces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One GGUF file.
    Gguf,
    /// Safetensors files with `config.json` and `tokenizer.json`.
    Checkpoint,
}

impl Conversion {
    /// Reads the conversion that a request names by its format and its type.
    pub fn read(
        format: Option<Format>,
        number_type: Option<&str>,
    ) -> Result<Option<Conversion>, UnknownConversion> {
        let unknown = |text: &str| text.chars().take(40).collect();
        Ok(Some(match (format, number_type) {
            (None, None) => return Ok(None),
            (None, Some(text)) => text.parse()?,
            (Some(Format::Gguf), None) => Conversion::Gguf(None),
            (Some(Format::Gguf), Some(text)) => {
                let file_type = text.parse().map_err(|_| UnknownConversion::Gguf { text: unknown(text) })?;
                Conversion::Gguf(Some(file_type))
            }
            (Some(Format::Checkpoint), None) => Conversion::Checkpoint(None),
            (Some(Format::Checkpoint), Some(text)) => {
                let float =
                    text.parse().map_err(|_| UnknownConversion::Checkpoint { text: unknown(text) })?;
                Conversion::Checkpoint(Some(float))
            }
        }))
    }

    /// The format and the type that [`Conversion::read`] reads.
    pub fn named(self) -> (Option<Format>, Option<String>) {
        match self {
            Conversion::Blobs(kind) => (None, Some(kind.to_string())),
            Conversion::Gguf(file_type) => (Some(Format::Gguf), file_type.map(|to| to.to_string())),
            Conversion::Checkpoint(float) => (Some(Format::Checkpoint), float.map(|to| to.to_string())),
        }
    }

    /// Whether a quantisation names it, rather than a format alone.
    pub fn is_quantisation(self) -> bool {
        matches!(self, Conversion::Blobs(_) | Conversion::Gguf(Some(_)))
    }

    /// Returns the format of tensor blobs; `None` for files.
    pub fn kind(self) -> Option<Kind> {
        match self {
            Conversion::Blobs(kind) => Some(kind),
            Conversion::Gguf(_) | Conversion::Checkpoint(_) => None,
        }
    }
}

impl fmt::Display for Conversion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Conversion::Blobs(kind) => kind.fmt(f),
            Conversion::Gguf(Some(file_type)) => file_type.fmt(f),
            Conversion::Gguf(None) => f.write_str("GGUF"),
            Conversion::Checkpoint(Some(float)) => write!(f, "{float} checkpoint"),
            Conversion::Checkpoint(None) => f.write_str("checkpoint"),
        }
    }
}

/// The error for a text that names no conversion.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownConversion {
    #[error(
        "`{text}` is not a supported quantisation (tensor blobs: {}; GGUF: {})",
        Kind::BLOB.map(Kind::as_str).join(", "),
        FileType::ALL.map(FileType::as_str).join(", ")
    )]
    Any { text: String },
    #[error("`{text}` is not a type of GGUF files (expected {})", FileType::ALL.map(FileType::as_str).join(", "))]
    Gguf { text: String },
    #[error(
        "`{text}` is not a type of a checkpoint's floats (expected {})",
        FloatType::ALL.map(FloatType::as_str).join(", ")
    )]
    Checkpoint { text: String },
    #[error("`{text}` is not a format of models (expected gguf or checkpoint)")]
    Format { text: String },
}

impl FromStr for Conversion {
    type Err = UnknownConversion;

    /// Parses a quantisation. Ignores case. The aliases Q4 and Q8 are int4 and int8 as in ollama, and Q4_K is
    /// Q4_K_M.
    fn from_str(text: &str) -> Result<Self, UnknownConversion> {
        if let Ok(file_type) = text.parse() {
            return Ok(Conversion::Gguf(Some(file_type)));
        }
        let kind = text.parse::<Kind>().map(Conversion::Blobs);
        kind.map_err(|_| UnknownConversion::Any { text: text.chars().take(40).collect() })
    }
}

impl Format {
    pub fn as_str(self) -> &'static str {
        match self {
            Format::Gguf => "gguf",
            Format::Checkpoint => "checkpoint",
        }
    }
}

impl FromStr for Format {
    type Err = UnknownConversion;

    /// Ignores case.
    fn from_str(text: &str) -> Result<Self, UnknownConversion> {
        let all = [Format::Gguf, Format::Checkpoint];
        let found = all.into_iter().find(|format| format.as_str().eq_ignore_ascii_case(text));
        found.ok_or_else(|| UnknownConversion::Format { text: text.chars().take(40).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantisations() {
        for (text, expect) in [
            ("int4", Some(Conversion::Blobs(Kind::Int4))),
            ("Q8", Some(Conversion::Blobs(Kind::Int8))),
            ("nvfp4", Some(Conversion::Blobs(Kind::Nvfp4))),
            ("q8_0", Some(Conversion::Gguf(Some(FileType::Q8_0)))),
            ("q4_K_M", Some(Conversion::Gguf(Some(FileType::Q4_K_M)))),
            ("Q4_K", Some(Conversion::Gguf(Some(FileType::Q4_K_M)))),
            ("bf16", Some(Conversion::Gguf(Some(FileType::BF16)))),
            ("checkpoint", None),
            ("q9", None),
            ("", None),
        ] {
            assert_eq!(text.parse().ok(), expect, "{text}");
        }
        assert_eq!(Conversion::Gguf(Some(FileType::Q5_K_S)).to_string(), "Q5_K_S");
        assert_eq!(Conversion::Blobs(Kind::Mxfp8).to_string(), "mxfp8");
    }

    #[test]
    fn formats_have_their_types() {
        let read = |format: &str, number_type| Conversion::read(Some(format.parse().unwrap()), number_type);
        for (format, number_type, expect) in [
            ("gguf", None, Conversion::Gguf(None)),
            ("GGUF", Some("q8_0"), Conversion::Gguf(Some(FileType::Q8_0))),
            ("checkpoint", None, Conversion::Checkpoint(None)),
            ("checkpoint", Some("bf16"), Conversion::Checkpoint(Some(FloatType::BF16))),
        ] {
            let conversion = read(format, number_type).unwrap().unwrap();
            assert_eq!(conversion, expect);
            let (format, number_type) = conversion.named();
            assert_eq!(Conversion::read(format, number_type.as_deref()), Ok(Some(expect)), "as stored");
        }
        let blobs = Conversion::Blobs(Kind::Int8);
        assert_eq!(Conversion::read(None, blobs.named().1.as_deref()), Ok(Some(blobs)));
        assert_eq!(Conversion::read(None, None), Ok(None));
        for (format, number_type, expect) in [
            ("gguf", "int8", "`int8` is not a type of GGUF files (expected F32"),
            ("checkpoint", "q8_0", "`q8_0` is not a type of a checkpoint's floats (expected F32, F16, BF16)"),
        ] {
            let error = read(format, Some(number_type)).unwrap_err().to_string();
            assert!(error.starts_with(expect), "{error}");
        }
        assert!("onnx".parse::<Format>().unwrap_err().to_string().contains("gguf or checkpoint"));
    }
}

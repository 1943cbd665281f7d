//! The names of whole-file quantisations, such as Q4_K_M, and their values of `general.file_type`. A name
//! stands for a recipe: [`super::mix`] chooses the type of each tensor.

use std::fmt;
use std::str::FromStr;

use crate::quant::ggml::Type;

/// A quantisation of a whole GGUF file that Lode can produce.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types, reason = "the established names of these quantisations")]
pub enum FileType {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K_S,
    Q3_K_M,
    Q3_K_L,
    Q4_K_S,
    Q4_K_M,
    Q5_K_S,
    Q5_K_M,
    Q6_K,
}

impl FileType {
    pub const ALL: [FileType; 17] = [
        FileType::F32,
        FileType::F16,
        FileType::BF16,
        FileType::Q4_0,
        FileType::Q4_1,
        FileType::Q5_0,
        FileType::Q5_1,
        FileType::Q8_0,
        FileType::Q2_K,
        FileType::Q3_K_S,
        FileType::Q3_K_M,
        FileType::Q3_K_L,
        FileType::Q4_K_S,
        FileType::Q4_K_M,
        FileType::Q5_K_S,
        FileType::Q5_K_M,
        FileType::Q6_K,
    ];

    pub fn as_str(self) -> &'static str {
        self.row().0
    }

    /// The value of `general.file_type`, llama.cpp's `llama_ftype`.
    pub fn id(self) -> u32 {
        self.row().1
    }

    /// The type of every tensor for which the mix makes no exception.
    pub fn base_type(self) -> Type {
        self.row().2
    }

    /// Whether tensors are quantised to blocks rather than stored as plain floats.
    pub fn is_quantised(self) -> bool {
        !matches!(self, FileType::F32 | FileType::F16 | FileType::BF16)
    }

    fn row(self) -> (&'static str, u32, Type) {
        match self {
            FileType::F32 => ("F32", 0, Type::F32),
            FileType::F16 => ("F16", 1, Type::F16),
            FileType::BF16 => ("BF16", 32, Type::BF16),
            FileType::Q4_0 => ("Q4_0", 2, Type::Q4_0),
            FileType::Q4_1 => ("Q4_1", 3, Type::Q4_1),
            FileType::Q5_0 => ("Q5_0", 8, Type::Q5_0),
            FileType::Q5_1 => ("Q5_1", 9, Type::Q5_1),
            FileType::Q8_0 => ("Q8_0", 7, Type::Q8_0),
            FileType::Q2_K => ("Q2_K", 10, Type::Q2_K),
            FileType::Q3_K_S => ("Q3_K_S", 11, Type::Q3_K),
            FileType::Q3_K_M => ("Q3_K_M", 12, Type::Q3_K),
            FileType::Q3_K_L => ("Q3_K_L", 13, Type::Q3_K),
            FileType::Q4_K_S => ("Q4_K_S", 14, Type::Q4_K),
            FileType::Q4_K_M => ("Q4_K_M", 15, Type::Q4_K),
            FileType::Q5_K_S => ("Q5_K_S", 16, Type::Q5_K),
            FileType::Q5_K_M => ("Q5_K_M", 17, Type::Q5_K),
            FileType::Q6_K => ("Q6_K", 18, Type::Q6_K),
        }
    }
}

impl fmt::Display for FileType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The error for a text that is not the name of a [`FileType`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a supported quantisation of GGUF files")]
pub struct UnknownFileType {
    pub text: String,
}

impl FromStr for FileType {
    type Err = UnknownFileType;

    /// Ignores case. Q3_K, Q4_K and Q5_K are short for the mixes that end in _M.
    fn from_str(text: &str) -> Result<Self, UnknownFileType> {
        let upper = text.to_ascii_uppercase();
        let name = match upper.as_str() {
            "Q3_K" => "Q3_K_M",
            "Q4_K" => "Q4_K_M",
            "Q5_K" => "Q5_K_M",
            name => name,
        };
        let found = FileType::ALL.into_iter().find(|file_type| file_type.as_str() == name);
        found.ok_or_else(|| UnknownFileType { text: text.chars().take(40).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_in_any_case() {
        for file_type in FileType::ALL {
            assert_eq!(file_type.as_str().parse(), Ok(file_type));
            assert_eq!(file_type.as_str().to_lowercase().parse(), Ok(file_type));
        }
        assert_eq!("q4_K".parse(), Ok(FileType::Q4_K_M));
        assert!("Q4".parse::<FileType>().is_err());
        assert_eq!((FileType::Q4_K_M.id(), FileType::BF16.id()), (15, 32));
    }
}

//! The whole-file quantisations that can be produced, such as Q4_K_M. A name stands for a recipe:
//! [`super::mix`] chooses the type of each tensor.

use std::fmt;
use std::str::FromStr;

use crate::gguf;
use crate::quant::ggml::Type;

macro_rules! file_types {
    ($($name:ident: $base:ident;)+) => {
        /// A quantisation of a whole GGUF file that Lode can produce.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(non_camel_case_types, reason = "the established names of these quantisations")]
        pub enum FileType {
            $($name,)+
        }

        impl FileType {
            pub const ALL: [FileType; [$(Type::$base),+].len()] = [$(FileType::$name),+];

            pub fn as_str(self) -> &'static str {
                match self {
                    $(FileType::$name => stringify!($name),)+
                }
            }

            /// The type of every tensor for which the mix makes no exception.
            pub fn base_type(self) -> Type {
                match self {
                    $(FileType::$name => Type::$base,)+
                }
            }
        }
    };
}

file_types! {
    F32: F32;
    F16: F16;
    BF16: BF16;
    Q4_0: Q4_0;
    Q4_1: Q4_1;
    Q5_0: Q5_0;
    Q5_1: Q5_1;
    Q8_0: Q8_0;
    Q2_K: Q2_K;
    Q3_K_S: Q3_K;
    Q3_K_M: Q3_K;
    Q3_K_L: Q3_K;
    Q4_K_S: Q4_K;
    Q4_K_M: Q4_K;
    Q5_K_S: Q5_K;
    Q5_K_M: Q5_K;
    Q6_K: Q6_K;
}

impl FileType {
    /// The value of `general.file_type`.
    pub fn id(self) -> u32 {
        gguf::file_type_id(self.as_str()).expect("every recipe has a file type")
    }

    /// Whether tensors are quantised to blocks rather than stored as plain floats.
    pub fn is_quantised(self) -> bool {
        self.base_type().is_quantised()
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
        for file_type in FileType::ALL {
            assert_eq!(gguf::file_type_name(file_type.id().into()), Some(file_type.as_str()));
        }
    }
}

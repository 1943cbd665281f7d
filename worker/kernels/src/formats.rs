//! The formats that the instruction sets read, in one table for each way of reading them. Where an
//! instruction set uses a table, a type of each name in it is in scope. The scalar versions handle all other
//! formats.

/// The formats with integer codes, which are multiplied with eight-bit columns.
macro_rules! integer_formats {
    ($then:ident [$($args:tt)*]) => {
        $crate::formats::$then! {
            [$($args)*]
            Dtype::Ggml(Type::Q8_0) => Q8_0,
            Dtype::Ggml(Type::Q4_0) => Q4_0,
            Dtype::Ggml(Type::Q4_1) => Q4_1,
            Dtype::Ggml(Type::Q5_0) => Q5_0,
            Dtype::Ggml(Type::Q5_1) => Q5_1,
            Dtype::Ggml(Type::Q2_K) => Q2K,
            Dtype::Ggml(Type::Q3_K) => Q3K,
            Dtype::Ggml(Type::Q4_K) => Q4K,
            Dtype::Ggml(Type::Q5_K) => Q5K,
            Dtype::Ggml(Type::Q6_K) => Q6K,
            Dtype::Ggml(Type::IQ4_NL) => Iq4Nl,
            Dtype::Ggml(Type::IQ4_XS) => Iq4Xs,
            Dtype::Ggml(Type::MXFP4) => Mxfp4Block,
            Dtype::Ggml(Type::NVFP4) => Nvfp4Block,
            Dtype::Affine { bits: 4, group, scales } => Affine::<4> { shift: group.trailing_zeros(), scales },
            Dtype::Affine { group, scales, .. } => Affine::<8> { shift: group.trailing_zeros(), scales },
            Dtype::Scaled(Scaled::Nvfp4) => Nvfp4,
            Dtype::Scaled(Scaled::Mxfp4) => Mxfp4,
        }
    };
}
pub(crate) use integer_formats;

/// ggml's types with one to three bits, which only AVX2 multiplies as integers; the levels above it use its version.
#[cfg(target_arch = "x86_64")]
macro_rules! small_formats {
    ($then:ident [$($args:tt)*]) => {
        $crate::formats::$then! {
            [$($args)*]
            Dtype::Ggml(Type::IQ1_S) => Iq1S,
            Dtype::Ggml(Type::IQ1_M) => Iq1M,
            Dtype::Ggml(Type::IQ2_XXS) => Iq2Xxs,
            Dtype::Ggml(Type::IQ2_XS) => Iq2Xs,
            Dtype::Ggml(Type::IQ2_S) => Iq2S,
            Dtype::Ggml(Type::IQ3_XXS) => Iq3Xxs,
            Dtype::Ggml(Type::IQ3_S) => Iq3S,
            Dtype::Ggml(Type::TQ1_0) => Tq1,
            Dtype::Ggml(Type::TQ2_0) => Tq2,
            Dtype::Ggml(Type::Q1_0) => Q1_0,
            Dtype::Ggml(Type::Q2_0) => Q2_0,
        }
    };
}
#[cfg(target_arch = "x86_64")]
pub(crate) use small_formats;

/// The formats that are multiplied with floats without decoding them to memory first, if there are few
/// columns. The cache's formats are among them.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! formats_in_place {
    ($then:ident [$($args:tt)*]) => {
        $crate::formats::$then! {
            [$($args)*]
            Dtype::Float(Float::F32) => F32,
            Dtype::Float(Float::F16) => F16,
            Dtype::Float(Float::BF16) => BF16,
            Dtype::Ggml(Type::Q8_0) => Q8_0,
        }
    };
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) use formats_in_place;

/// Evaluates an expression with the format of a dtype: `formats!(choose[dtype, format => expression, else
/// other])`.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! choose {
    ([$dtype:expr, $format:ident => $run:expr, else $other:expr] $($pattern:pat => $value:expr,)+) => {{
        use lode_model::quant::ggml::Type;
        #[allow(unused_imports, reason = "no table has all of them")]
        use $crate::dtype::{Dtype, Float, Scaled};
        match $dtype {
            $($pattern => {
                let $format = $value;
                $run
            })+
            _ => $other,
        }
    }};
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) use choose;

/// Whether a table has a dtype: `formats!(contains[dtype])`.
macro_rules! contains {
    ([$dtype:expr] $($pattern:pat => $value:expr,)+) => {{
        use lode_model::quant::ggml::Type;
        #[allow(unused_imports, reason = "no table has all of them")]
        use $crate::dtype::{Dtype, Float, Scaled};
        match $dtype {
            $($pattern => true,)+
            _ => false,
        }
    }};
}
pub(crate) use contains;

//! The sources of the kernels as programs, the unit of compilation. The program of a format has the kernels
//! that read it, so that a model compiles only what it uses.

use lode_model::quant::ggml::Type;

use super::planes::scale_name;
use super::{args, tables};
use crate::dtype::{Dtype, Float, Scaled};

/// A program: a name for messages, and a complete source text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    name: String,
    source: String,
    kernels: &'static [&'static str],
}

/// The kernels of the program of a format.
const WEIGHT_KERNELS: &[&str] = &["decode_rows", "dot_rows_1", "dot_rows_2", "dot_rows_4", "dot_rows_8"];
/// The kernels that process rows of floats.
const ROW_KERNELS: &[&str] =
    &["rms_norm", "layer_norm", "rotate", "swiglu", "geglu", "gelu", "softmax", "soft_cap"];

/// The kernel of `dot_rows` for a number of columns: its name, the rows of the matrix per block, and the columns
/// per block.
pub fn dot_rows_kernel(columns: usize) -> (&'static str, u32, u32) {
    match columns {
        0 | 1 => ("dot_rows_1", 8, 1),
        2 => ("dot_rows_2", 8, 2),
        3 | 4 => ("dot_rows_4", 4, 4),
        _ => ("dot_rows_8", 4, 8),
    }
}

impl Program {
    /// The kernels that read matrices of a format; `None` if the device does not support it.
    pub fn of_format(dtype: Dtype) -> Option<Self> {
        let (format, formats) = format(dtype)?;
        let codebook = match dtype {
            Dtype::Ggml(ty) => tables::codebook(ty).unwrap_or_default(),
            _ => String::new(),
        };
        let parts = [
            tables::code_values(),
            tables::plane_bytes(dtype),
            codebook,
            include_str!("../decode/decode.cuh").to_owned(),
            formats.to_owned(),
            format!("typedef {format} Format;\n"),
            include_str!("../decode/decode.cu").to_owned(),
            include_str!("../dot_rows/dot_rows.cu").to_owned(),
        ];
        Some(Self::new(format!("weights {format}"), &parts, WEIGHT_KERNELS))
    }

    /// The kernels that process rows of floats: norms, rotations and activations.
    pub fn of_rows() -> Self {
        let parts = [
            include_str!("../rms_norm/rms_norm.cu").to_owned(),
            include_str!("../layer_norm/layer_norm.cu").to_owned(),
            include_str!("../rope/rope.cu").to_owned(),
            include_str!("../swiglu/swiglu.cu").to_owned(),
            include_str!("../geglu/geglu.cu").to_owned(),
            include_str!("../gelu/gelu.cu").to_owned(),
            include_str!("../softmax/softmax.cu").to_owned(),
            include_str!("../soft_cap/soft_cap.cu").to_owned(),
        ];
        Self::new("rows".to_owned(), &parts, ROW_KERNELS)
    }

    fn new(name: String, parts: &[String], kernels: &'static [&'static str]) -> Self {
        let prelude = [
            include_str!("types.cuh").to_owned(),
            args::definitions(),
            include_str!("prelude.cuh").to_owned(),
        ];
        Self { name, source: prelude.iter().chain(parts).map(String::as_str).collect(), kernels }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn source(&self) -> &str {
        &self.source
    }

    /// The names of its kernels.
    pub fn kernels(&self) -> &'static [&'static str] {
        self.kernels
    }
}

/// The struct of a format, and the file that defines it if it is not decode.cuh.
fn format(dtype: Dtype) -> Option<(String, &'static str)> {
    const NONE: &str = "";
    const BLOCKS: &str = include_str!("../decode/blocks.cuh");
    const K_BLOCKS: &str = include_str!("../decode/k_blocks.cuh");
    const SMALL_CODES: &str = include_str!("../decode/small_codes.cuh");
    let (name, file) = match dtype {
        Dtype::Float(Float::F32) => ("F32", NONE),
        Dtype::Float(Float::F16) => ("F16", NONE),
        Dtype::Float(Float::BF16) => ("BF16", NONE),
        Dtype::Affine { bits, scales, .. } => {
            return Some((format!("Affine<{bits}, Scale{}>", scale_name(scales)), NONE));
        }
        Dtype::Scaled(Scaled::Nvfp4) => ("Nvfp4", NONE),
        Dtype::Scaled(Scaled::Mxfp4) => ("Mxfp4", NONE),
        Dtype::Scaled(Scaled::Mxfp8) => ("Mxfp8", NONE),
        Dtype::Ggml(ty) => match ty {
            Type::Q4_0 => ("Q4_0", BLOCKS),
            Type::Q4_1 => ("Q4_1", BLOCKS),
            Type::Q5_0 => ("Q5_0", BLOCKS),
            Type::Q5_1 => ("Q5_1", BLOCKS),
            Type::Q8_0 => ("Q8_0", BLOCKS),
            Type::Q1_0 => ("Q1_0", BLOCKS),
            Type::Q2_0 => ("Q2_0", BLOCKS),
            Type::IQ4_NL => ("Iq4Nl", BLOCKS),
            Type::MXFP4 => ("Mxfp4Block", BLOCKS),
            Type::NVFP4 => ("Nvfp4Block", BLOCKS),
            Type::Q2_K => ("Q2K", K_BLOCKS),
            Type::Q3_K => ("Q3K", K_BLOCKS),
            Type::Q4_K => ("Q4K", K_BLOCKS),
            Type::Q5_K => ("Q5K", K_BLOCKS),
            Type::Q6_K => ("Q6K", K_BLOCKS),
            Type::IQ4_XS => ("Iq4Xs", K_BLOCKS),
            Type::TQ1_0 => ("Tq1", K_BLOCKS),
            Type::TQ2_0 => ("Tq2", K_BLOCKS),
            Type::IQ1_S => ("Iq1S", SMALL_CODES),
            Type::IQ1_M => ("Iq1M", SMALL_CODES),
            Type::IQ2_XXS => ("Iq2Xxs", SMALL_CODES),
            Type::IQ2_XS => ("Iq2Xs", SMALL_CODES),
            Type::IQ2_S => ("Iq2S", SMALL_CODES),
            Type::IQ3_XXS => ("Iq3Xxs", SMALL_CODES),
            Type::IQ3_S => ("Iq3S", SMALL_CODES),
            _ => return None,
        },
    };
    Some((name.to_owned(), file))
}

//! The sources of the kernels as programs, the unit of compilation. The program of a format has the kernels
//! that read it, so that a model compiles only what it uses.

use std::ops::Range;

use lode_model::quant::ggml::Type;

use super::planes::scale_name;
use super::{args, tables};
use crate::batch::PAGE_LEN;
use crate::dtype::{ByteCode, Dtype, Float, Scaled};

/// A program: a name for messages, and a complete source text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    name: String,
    source: String,
    kernels: &'static [&'static str],
}

/// The kernels of the program of a format.
const WEIGHT_KERNELS: &[&str] =
    &["decode_rows", "dot_rows_1", "dot_rows_2", "dot_rows_4", "dot_rows_8", "dot_experts", "dot_tiles"];
/// The kernels of the program of a format for tensor cores.
const TENSOR_KERNELS: &[&str] = &["dot_tensor_tiles_32", "dot_tensor_tiles_128"];
/// The kernels that process rows of floats.
const ROW_KERNELS: &[&str] =
    &["rms_norm", "layer_norm", "swiglu", "geglu", "gelu", "softmax", "soft_cap", "route", "mix_experts"];

/// The kernels over the cache.
const CACHE_KERNELS: &[&str] =
    &["store_heads", "attention_128", "attention_256", "attention_512", "merge_sections"];
/// The kernels of sampling.
const SAMPLE_KERNELS: &[&str] = &["argmax", "log_sum_exp", "top_k"];

/// The attention kernel for heads of this size; `None` if they are too large.
pub fn attention_kernel(head_dim: usize) -> Option<&'static str> {
    match head_dim {
        0..=128 => Some("attention_128"),
        129..=256 => Some("attention_256"),
        257..=512 => Some("attention_512"),
        _ => None,
    }
}

/// Pages of a section of attention, which may have a block of its own.
const SECTION_PAGES: usize = 8;

/// The number of sections of the keys that a row sees, see attention.cu.
pub(super) fn attention_sections(keys: &Range<usize>) -> u32 {
    let tokens = SECTION_PAGES * PAGE_LEN;
    (keys.end.div_ceil(tokens) - keys.start / tokens) as u32
}

/// Bytes per row of the cache for heads of this size: whole loads of sixteen bytes.
pub fn cache_row_bytes(dtype: Dtype, head_dim: usize) -> usize {
    dtype.row_bytes(head_dim.next_multiple_of(dtype.multiple())).next_multiple_of(16)
}

/// How a product is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DotRowsKernel {
    pub name: &'static str,
    /// Whether it is in [`Program::of_tensor_tiles`], and rounds both operands to BF16.
    pub uses_tensor_cores: bool,
    /// Rows of the matrix per block.
    rows: u32,
    /// Columns per block.
    columns: u32,
    /// Threads per block.
    pub threads: u32,
}

impl DotRowsKernel {
    /// The number of blocks for a matrix with `rows` rows. On tensor cores, the blocks of the same rows follow
    /// each other, so that weights come from memory once, and for the other columns from the second-level cache.
    pub fn grid(&self, rows: usize, columns: usize) -> [u32; 3] {
        let (rows, columns) = (rows as u32, columns as u32);
        let (rows, columns) = (rows.div_ceil(self.rows), columns.div_ceil(self.columns));
        if self.uses_tensor_cores { [columns, rows, 1] } else { [rows, columns, 1] }
    }
}

/// The kernel of the product of a matrix with `rows` rows with a number of columns.
///
/// Up to `FEW_COLUMNS`, a column has the same bits whatever the others are, and so it has with F32 weights up to
/// `MIN_TILE_COLUMNS`. With more columns, tiles of the weights are decoded to shared memory: on tensor cores,
/// except for weights of F32, which are multiplied exactly.
pub fn dot_rows_kernel(dtype: Dtype, rows: usize, columns: usize, has_tensor_cores: bool) -> DotRowsKernel {
    let has_tensor_cores = has_tensor_cores && dtype != Dtype::Float(Float::F32);
    let of_warps = |name, rows_a_warp, columns| DotRowsKernel {
        name,
        uses_tensor_cores: false,
        rows: WARPS * rows_a_warp,
        columns,
        threads: 32 * WARPS,
    };
    let tile = |name, size, threads| DotRowsKernel {
        name,
        uses_tensor_cores: has_tensor_cores,
        rows: size,
        columns: size,
        threads,
    };
    match columns {
        0 | 1 => of_warps("dot_rows_1", rows_a_warp(dtype), 1),
        2 => of_warps("dot_rows_2", rows_a_warp(dtype), 2),
        3 | 4 => of_warps("dot_rows_4", 1, 4),
        5..=FEW_COLUMNS => of_warps("dot_rows_8", 1, 8),
        _ if has_tensor_cores => {
            let large = tile("dot_tensor_tiles_128", 128, 256);
            let [across, down, _] = large.grid(rows, columns);
            match columns > MAX_SMALL_COLUMNS && across * down >= MIN_LARGE_TILES {
                true => large,
                false => tile("dot_tensor_tiles_32", 32, 128),
            }
        }
        ..MIN_TILE_COLUMNS => of_warps("dot_rows_8", 1, 8),
        _ => tile("dot_tiles", 64, 256),
    }
}

/// The most columns that one warp multiplies with a row.
pub(super) const FEW_COLUMNS: usize = 8;
/// With fewer columns, most of a tile would be idle.
const MIN_TILE_COLUMNS: usize = 17;
/// Up to this number of columns, small tiles waste fewer of them, and there are more blocks. Not measured.
const MAX_SMALL_COLUMNS: usize = 64;
/// With fewer blocks than that, most of the 108 or 132 multiprocessors of an A100 or H100 would be idle. Not measured.
const MIN_LARGE_TILES: u32 = 64;

/// Warps per block of `dot_rows`.
const WARPS: u32 = 4;

/// Rows per warp of the products with one or two columns. A second row uses each activation twice, but
/// formats with many bytes per unit have no registers for it.
fn rows_a_warp(dtype: Dtype) -> u32 {
    match dtype {
        Dtype::Float(Float::F32) => 1,
        Dtype::Ggml(ty) if ty.block_elements() == 256 => 1,
        _ => 2,
    }
}

impl Program {
    /// The kernels that read matrices of a format; `None` if the device does not support it.
    pub fn of_format(dtype: Dtype) -> Option<Self> {
        let (format, mut parts) = decoder(dtype)?;
        parts.extend([
            format!("static const u32 ROWS = {};\n", rows_a_warp(dtype)),
            include_str!("../decode/decode.cu").to_owned(),
            include_str!("../dot_rows/dot_rows.cu").to_owned(),
            include_str!("../dot_rows/dot_tiles.cu").to_owned(),
        ]);
        Some(Self::new(format!("weights {format}"), &parts, WEIGHT_KERNELS))
    }

    /// The products of matrices of a format on tensor cores, for devices that have them; `None` if there are none:
    /// weights of F32 are multiplied exactly.
    pub fn of_tensor_tiles(dtype: Dtype) -> Option<Self> {
        if dtype == Dtype::Float(Float::F32) {
            return None;
        }
        let (format, mut parts) = decoder(dtype)?;
        parts.push(include_str!("../dot_rows/dot_tensor_tiles.cu").to_owned());
        Some(Self::new(format!("tensor tiles {format}"), &parts, TENSOR_KERNELS))
    }

    /// The kernels that process rows of floats: norms, rotations and activations.
    pub fn of_rows() -> Self {
        let parts = [
            include_str!("../rms_norm/rms_norm.cu").to_owned(),
            include_str!("../layer_norm/layer_norm.cu").to_owned(),
            include_str!("../swiglu/swiglu.cu").to_owned(),
            include_str!("../geglu/geglu.cu").to_owned(),
            include_str!("../gelu/gelu.cu").to_owned(),
            include_str!("../softmax/softmax.cu").to_owned(),
            include_str!("../soft_cap/soft_cap.cu").to_owned(),
            include_str!("../cpu/experts.cu").to_owned(),
        ];
        Self::new("rows".to_owned(), &parts, ROW_KERNELS)
    }

    /// The kernels that store and read keys and values of a format; `None` if the cache does not support it.
    pub fn of_cache(dtype: Dtype) -> Option<Self> {
        let format = match dtype {
            Dtype::Float(Float::F32) => "CacheF32",
            Dtype::Float(Float::F16) => "CacheF16",
            Dtype::Ggml(Type::Q8_0) => "CacheQ8_0",
            _ => return None,
        };
        // The formats are defined in the file, after the name.
        let parts = [
            format!(
                "struct {format};\ntypedef {format} Cache;\nstatic const u32 SECTION_PAGES = {SECTION_PAGES};\n"
            ),
            include_str!("../cpu/attention.cu").to_owned(),
            include_str!("../cpu/store_heads.cu").to_owned(),
        ];
        Some(Self::new(format!("cache {format}"), &parts, CACHE_KERNELS))
    }

    /// The kernels that reduce rows of logits.
    pub fn of_samples() -> Self {
        Self::new("samples".to_owned(), &[include_str!("sample.cu").to_owned()], SAMPLE_KERNELS)
    }

    /// A program of a test.
    #[cfg(test)]
    pub(super) fn of_text(text: &str) -> Self {
        Self::new("a test".to_owned(), &[text.to_owned()], &[])
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

/// The name of a format, and the sources that define it as `Format`.
fn decoder(dtype: Dtype) -> Option<(String, Vec<String>)> {
    let (format, formats) = format(dtype)?;
    let codebook = match dtype {
        Dtype::Ggml(ty) => tables::codebook(ty).unwrap_or_default(),
        _ => String::new(),
    };
    let parts = vec![
        tables::code_values(),
        tables::plane_bytes(dtype),
        codebook,
        include_str!("../decode/decode.cuh").to_owned(),
        formats.to_owned(),
        format!("typedef {format} Format;\n"),
        include_str!("../dot_rows/activations.cuh").to_owned(),
    ];
    Some((format, parts))
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
        Dtype::ByteCodes { code: ByteCode::E4m3, .. } => ("ByteCodes<false>", NONE),
        Dtype::ByteCodes { code: ByteCode::I8, .. } => ("ByteCodes<true>", NONE),
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

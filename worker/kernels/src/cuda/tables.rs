//! The tables and block sizes of the formats as C++, generated from their definitions in `lode_model`.

use std::fmt::Write as _;

use lode_model::quant::float::E2M1;
use lode_model::quant::ggml::{Type, codebooks};

use super::planes::{Layout, MAX_PLANES};
use crate::dtype::Dtype;

/// Sixteen signed bytes as two words.
fn sixteen(name: &str, values: [i8; 16]) -> String {
    let word =
        |values: &[i8]| values.iter().rev().fold(0u64, |word, v| word << 8 | u64::from(v.cast_unsigned()));
    let (low, high) = (word(&values[..8]), word(&values[8..]));
    format!("static const u64 {name}_LOW = {low:#x}ull, {name}_HIGH = {high:#x}ull;\n")
}

/// The tables of small codes. The values of E2M1 are doubled, so that they are integers.
pub(super) fn code_values() -> String {
    sixteen("E2M1", E2M1.map(|v| (v * 2.0) as i8)) + &sixteen("IQ4", codebooks::IQ4_NL)
}

/// The bytes per block in each plane of a format.
pub(super) fn plane_bytes(dtype: Dtype) -> String {
    let layout = Layout::of(dtype, 1, dtype.multiple());
    let planes = layout.map(|layout| layout.planes).unwrap_or_default();
    let bytes = |i: usize| planes.get(i).map_or(0, |plane| plane.block_bytes);
    (0..MAX_PLANES).map(|i| format!("static const u32 BYTES_{i} = {};\n", bytes(i))).collect()
}

/// The lattice points of a type, one word per row.
pub(super) fn codebook(ty: Type) -> Option<String> {
    let (table, width): (&[u8], usize) = match ty {
        Type::IQ1_S | Type::IQ1_M => (codebooks::IQ1_S, 8),
        Type::IQ2_XXS => (codebooks::IQ2_XXS, 8),
        Type::IQ2_XS => (codebooks::IQ2_XS, 8),
        Type::IQ2_S => (codebooks::IQ2_S, 8),
        Type::IQ3_XXS => (codebooks::IQ3_XXS, 4),
        Type::IQ3_S => (codebooks::IQ3_S, 4),
        _ => return None,
    };
    let (element, suffix) = if width == 8 { ("u64", "ull") } else { ("u32", "u") };
    let mut text = format!("TABLE({element}, CODEBOOK, {}) = {{", table.len() / width);
    for row in table.chunks_exact(width) {
        let word = row.iter().rev().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
        // Writing to a string does not fail.
        let _ = write!(text, "{word:#x}{suffix},");
    }
    text += "};\n#define CODEBOOK CODEBOOK\n";
    Some(text)
}

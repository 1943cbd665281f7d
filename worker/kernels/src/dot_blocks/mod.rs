//! Products of packed rows with columns in eight bits: codes are multiplied as integers. Called through
//! `Ops`. Activations are packed once for all rows of all matrices that they are multiplied with.
//!
//! A sum over 16 or 32 codes is exact in any order. These sums are scaled and added in an order that depends
//! only on the row length.

use super::dtype::Dtype;
use super::formats::integer_formats;
#[cfg(target_arch = "x86_64")]
use super::formats::small_formats;
use super::rows::Rows;
use super::window::Window;

#[cfg(target_arch = "x86_64")]
pub(super) mod amx;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx2_block;
#[cfg(target_arch = "x86_64")]
mod avx2_panel;
#[cfg(target_arch = "x86_64")]
mod avx2_wide;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
#[cfg(target_arch = "x86_64")]
mod blocks;
mod columns;
#[cfg(target_arch = "x86_64")]
mod four_rows;
#[cfg(target_arch = "x86_64")]
mod groups;
#[cfg(target_arch = "x86_64")]
mod k_blocks;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon;
#[cfg(target_arch = "aarch64")]
mod neon_formats;
#[cfg(target_arch = "x86_64")]
mod panel;
#[cfg(test)]
mod tests;

pub(super) use columns::{Block, Columns};

/// Whether products with rows of this format use integers; `dot_rows` handles the other formats.
#[allow(unused_variables, reason = "the patterns of the table bind what the formats need")]
pub(super) fn uses_integers(dtype: Dtype) -> bool {
    integer_formats!(contains[dtype]) || has_small_codes(dtype)
}

/// Whether this is one of the formats that only AVX2 multiplies.
#[cfg(target_arch = "x86_64")]
fn has_small_codes(dtype: Dtype) -> bool {
    small_formats!(contains[dtype])
}

#[cfg(not(target_arch = "x86_64"))]
fn has_small_codes(_: Dtype) -> bool {
    false
}

/// Quantises the columns of a tile to eight bits: the largest of each 32 values becomes 127 or -127, the
/// others are rounded to multiples of a 127th of it.
pub(super) fn pack_scalar(x: &[f32], cols: usize, tile: &mut [Block]) {
    columns::pack(x, cols, tile);
}

/// `out[j][i] = rows[i] . x[j]` for all rows and columns. `out` has a row per column of x, and a column per
/// row of `rows`.
///
/// The result for one (i, j) is bit-identical whatever else is computed in the same call. `scratch` is
/// working space.
pub(super) fn scalar(rows: &Rows<'_>, x: &Columns, out: &mut Window<'_>, scratch: &mut Vec<f32>) {
    let cols = rows.cols();
    assert!(x.cols() == cols);
    scratch.resize(cols, 0.0);
    for i in 0..rows.len() {
        super::decode::scalar(rows, i, scratch);
        for j in 0..x.len() {
            out.row(j)[i] = (0..cols).fold(0.0, |sum, k| sum + scratch[k] * x.at(j, k));
        }
    }
}

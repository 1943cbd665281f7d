//! Packed rows times columns in eight bits: the products of weights, whose codes are multiplied as the integers that they are.
//! Called through `Ops`; activations are packed once and meet all rows of all matrices that they are multiplied with.
//!
//! A sum over 16 or 32 codes is exact, whatever order it is taken in. Such sums are scaled and added in an order that
//! depends on the row length alone.

use lode_model::quant::ggml::Type;

use super::rows::{Kind, Rows};
use super::weight::Scaled;
use super::window::Window;

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
#[cfg(target_arch = "x86_64")]
mod blocks;
mod columns;
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

pub(super) use columns::{Block, Columns, TILE};

/// Numbers of a block of columns, and of the longest blocks of weights.
const QK: usize = 256;

/// Whether products with rows of this kind are taken in integers; the others are `dot_rows`'.
pub(super) fn takes(kind: Kind) -> bool {
    match kind {
        Kind::Q8_0 => true,
        Kind::Ggml(ty) => matches!(
            ty,
            Type::Q4_0
                | Type::Q4_1
                | Type::Q5_0
                | Type::Q5_1
                | Type::Q2_K
                | Type::Q3_K
                | Type::Q4_K
                | Type::Q5_K
                | Type::Q6_K
                | Type::IQ4_NL
                | Type::IQ4_XS
                | Type::MXFP4
                | Type::NVFP4
        ),
        // The codes of MXFP8 are no integers.
        Kind::Scaled(format) => format != Scaled::Mxfp8,
        Kind::Affine { .. } => true,
        Kind::Float(_) => false,
    }
}

/// Which lane has the sums of which codes of a block: adding four vectors of 64 codes each, pairwise, leaves them in this order.
struct Order;

impl Order {
    /// The group of 32 in each lane.
    const COARSE: [u8; 8] = [0, 2, 4, 6, 1, 3, 5, 7];
    /// The group of sixteen in each lane.
    const FINE: [u8; 16] = [0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15];

    const fn lane(group: usize) -> usize {
        4 * (group % 2) + group / 2
    }

    const fn fine_lane(group: usize) -> usize {
        4 * (group % 4) + group / 4
    }
}

/// Columns of a tile in eight bits: of each 32 numbers the largest is 127 or -127, the others are rounded to its 127th parts.
pub(super) fn pack_scalar(x: &[f32], cols: usize, tile: &mut [Block]) {
    columns::pack(x, cols, tile);
}

/// `out[j][i] = rows[i] . x[j]` for all rows and columns; `out` has a row a column of x and a column a row of `rows`.
///
/// The result for one (i, j) is the same bit for bit whatever else is computed with it. `scratch` is free space.
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

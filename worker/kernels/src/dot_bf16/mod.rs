//! Products of BF16 rows with columns that are rounded to BF16: `out[j][i] = rows[i] . x[j]`, as in `dot_rows`, for
//! processors that multiply pairs of BF16 values. Called through `Ops`.
//!
//! The result for one (i, j) is bit-identical whatever else is computed in the same call. There is no scalar version:
//! the other instruction levels multiply BF16 rows with floats. The tests compare with float64.

use super::columns::ColumnBlock;

#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
#[cfg(test)]
mod tests;

/// Values per block of columns: a vector of 512 bits.
const VALUES: usize = 32;
/// Columns per tile.
const TILE: usize = 4;

/// 32 values of a column, rounded to the nearest BF16, ties to even.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug)]
pub(super) struct Rounded([u16; VALUES]);

impl ColumnBlock for Rounded {
    const VALUES: usize = VALUES;
    const TILE: usize = TILE;
    const ZERO: Self = Self([0; VALUES]);
}

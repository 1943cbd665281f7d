//! Prefetching of rows that are multiplied several at a time. Memory is fastest if it is read in order, and the
//! processor's own prefetching follows each row instead and ends with each page.

use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};

use super::super::decode::load::RowAt;
use super::super::rows::Rows;

/// Prefetches the rows after those that are multiplied together, in the order of their addresses, to the L2 cache.
#[derive(Clone, Copy)]
pub(super) struct Ahead {
    /// Bytes of 32 values.
    bytes: usize,
    /// Bytes of the rows that are multiplied together.
    tile_bytes: usize,
    rows: usize,
}

impl Ahead {
    pub(super) fn new(rows: &Rows<'_>, at_once: usize) -> Self {
        let bytes = |values| rows.dtype().row_bytes(values);
        Self { bytes: bytes(32), tile_bytes: at_once * bytes(rows.cols()), rows: at_once }
    }

    /// Prefetches as many bytes as `n` values from `first` have in all rows that are multiplied together. `row` is the
    /// first of these rows.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn prefetch(self, row: RowAt, first: usize, n: usize) {
        let bytes = |values: usize| self.rows * values.div_ceil(32) * self.bytes;
        let start = row.codes.wrapping_add(self.tile_bytes + bytes(first));
        for line in 0..bytes(n).div_ceil(64) {
            // Prefetching invalid addresses is harmless.
            _mm_prefetch::<_MM_HINT_T1>(start.wrapping_add(64 * line).cast());
        }
    }
}

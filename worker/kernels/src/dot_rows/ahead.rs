//! Prefetching of rows that are multiplied several at a time. The processor's own prefetching ends with each page.

use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

use super::super::decode::load::RowAt;
use super::super::rows::Rows;

/// Prefetch distance in bytes, in each of the rows.
const PREFETCH_BYTES: usize = 1024;

/// Where to prefetch.
#[derive(Clone, Copy)]
pub(super) struct Ahead {
    row_bytes: usize,
    /// Bytes of 32 values.
    bytes: usize,
    /// Distance from the end of a row to the next one that is multiplied in its place.
    skipped_bytes: usize,
}

impl Ahead {
    pub(super) fn new(rows: &Rows<'_>, at_once: usize) -> Self {
        let row_bytes = rows.dtype().row_bytes(rows.cols());
        Self { row_bytes, bytes: rows.dtype().row_bytes(32), skipped_bytes: (at_once - 1) * row_bytes }
    }

    /// Prefetches as many bytes as `n` values from `first` have, further on in this row and in the one after it.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn prefetch(self, row: RowAt, first: usize, n: usize) {
        let (done, bytes) = (first / 32 * self.bytes, n.div_ceil(32) * self.bytes);
        let skipped = if done + PREFETCH_BYTES < self.row_bytes { 0 } else { self.skipped_bytes };
        for line in 0..bytes.div_ceil(64) {
            let at = row.codes.wrapping_add(done + PREFETCH_BYTES + skipped + 64 * line);
            // Prefetching invalid addresses is harmless.
            _mm_prefetch::<_MM_HINT_T0>(at.cast());
        }
    }
}

//! Prefetching of rows that are multiplied several at a time. Memory is fastest if it is read in order, and the
//! processor's own prefetching follows each row instead and ends with each page.

use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};

/// Maximum size in bytes of short rows, all that are multiplied together.
const MAX_SHORT_BYTES: usize = 1 << 13;
/// Prefetch distance in bytes for short rows (measured; 2 and 4 KiB are slower).
const SHORT_DISTANCE: usize = 3072;

/// Prefetches `bytes` for rows from `rows` on that are multiplied together and have `all` bytes, after the same for the
/// first `done` bytes of these. Long rows are followed by as many other rows: these are prefetched to the L2 cache.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn prefetch_rows(rows: *const u8, all: usize, done: usize, bytes: usize) {
    if all > MAX_SHORT_BYTES {
        return prefetch(rows.wrapping_add(all + done), bytes);
    }
    for line in 0..bytes.div_ceil(64) {
        // Prefetching invalid addresses is harmless.
        _mm_prefetch::<_MM_HINT_T0>(rows.wrapping_add(done + SHORT_DISTANCE + 64 * line).cast());
    }
}

/// Prefetches bytes to the L2 cache.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn prefetch(at: *const u8, bytes: usize) {
    for line in 0..bytes.div_ceil(64) {
        // Prefetching invalid addresses is harmless.
        _mm_prefetch::<_MM_HINT_T1>(at.wrapping_add(64 * line).cast());
    }
}

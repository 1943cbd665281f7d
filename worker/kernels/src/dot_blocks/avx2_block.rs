//! 256 values of a row, unpacked for products with AVX2. Called only by `avx2` and `avx2_panel`.
//!
//! The multiplication needs one unsigned factor. Codes of less than eight bits are made unsigned by an excess;
//! the sum of the column's codes times the excess is subtracted. For codes of eight bits, the sign of the
//! weight's code is transferred to the column's code.
#![allow(unsafe_code)] // Reads packed bytes through pointers at any alignment.

use std::arch::x86_64::*;
use std::sync::LazyLock;

use super::super::decode::blocks::{Codes, Scales, look_up, scales_of_groups};
use super::super::decode::load::RowAt;

/// The bytes of a format by which columns are multiplied.
pub(super) struct Factors {
    /// Looked up by the lowest four bits of each code.
    table: Option<[i8; 16]>,
    /// Whether only the lowest four bits of each code count, without a table.
    is_masked: bool,
    /// Whether bytes may be negative.
    pub(super) is_signed: bool,
    /// How much bytes are above their values, as a right shift of 128.
    pub(super) excess_shift: Option<u32>,
    /// How many products of two bytes, in pairs, have a sum of sixteen bits: 1, 2, 4 or 8.
    pub(super) pairs: usize,
}

impl Factors {
    pub(super) const fn of<C: Codes>() -> Self {
        let (mut table, mut is_masked, mut bits, mut excess) = (C::TABLE, false, C::BITS, C::EXCESS);
        if let Some(mut values) = table {
            let (mut is_count, mut least) = (true, 0);
            let mut code = 0;
            while code < 16 {
                is_count &= values[code] as i32 == code as i32 - excess as i32;
                least = if values[code] < least { values[code] } else { least };
                code += 1;
            }
            (is_masked, table) = (is_count, if is_count { None } else { table });
            if !is_count && least >= -16 {
                code = 0;
                while code < 16 {
                    values[code] += 16;
                    code += 1;
                }
                (table, bits, excess) = (Some(values), 5, 16);
            } else if !is_count {
                bits = 8;
            }
        }
        let largest = if bits == 8 { 128 } else { (1 << bits) - 1 };
        let pairs = i16::MAX as u32 / (largest * 127 * 2);
        let pairs = if pairs >= 8 { 8 } else { 1 << pairs.ilog2() };
        let excess_shift = if excess == 0 { None } else { Some(7 - excess.ilog2()) };
        Self { table, is_masked, is_signed: bits == 8, excess_shift, pairs }
    }
}

/// How far ahead of the codes memory is read, into the L1 cache and, unless zero, into the L2 cache. The processor's own
/// prefetching ends with each page. With pages of 4 KiB, two distances are faster on Intel's processors (Sapphire Rapids,
/// 1.1 to 1.2 times), and one is on AMD's (Zen 4, 1.1 to 1.2 times).
static PREFETCH_BYTES: LazyLock<[usize; 2]> =
    LazyLock::new(|| if is_made_by_intel() { [1024, 4096] } else { [3072, 0] });

fn is_made_by_intel() -> bool {
    let vendor = __cpuid(0);
    [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).as_flattened() == b"GenuineIntel"
}

/// Prefetches as many bytes as 256 codes have, further on in this row and those after it.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn prefetch(codes: *const u8, bytes: usize) {
    let [near, far] = *PREFETCH_BYTES;
    for line in 0..bytes.div_ceil(64) {
        // Prefetching invalid addresses is harmless.
        _mm_prefetch::<_MM_HINT_T0>(codes.wrapping_add(near + 64 * line).cast());
        if far > 0 {
            _mm_prefetch::<_MM_HINT_T1>(codes.wrapping_add(far + 64 * line).cast());
        }
    }
}

/// 256 unpacked values of a row: factors in groups of 32, with scales and offsets in lane order. A scale per
/// group is in the first of two vectors; scales per sixteen are in both.
pub(super) struct Unpacked {
    pub(super) factors: [__m256i; 8],
    pub(super) scales: [__m256; 2],
    pub(super) offsets: [__m256; 2],
}

/// Unpacks at most this many groups from value `first` on.
///
/// # Safety
/// The groups exist.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn unpack_part<C: Codes>(format: C, at: RowAt, first: usize, groups: usize) -> Unpacked {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match groups {
            0..8 => unpack::<C, false>(format, at, first, groups),
            _ => unpack::<C, true>(format, at, first, 8),
        }
    }
}

/// # Safety
/// The groups exist, and there are at most eight; all eight if this is a whole block.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn unpack<C: Codes, const WHOLE: bool>(format: C, at: RowAt, first: usize, groups: usize) -> Unpacked {
    let kind = const { Factors::of::<C>() };
    let mut factors = [_mm256_setzero_si256(); 8];
    for (g, factors) in factors.iter_mut().enumerate().take(if WHOLE { 8 } else { groups }) {
        // SAFETY: there are 32 values in this group.
        let codes = unsafe { format.codes(at, first + 32 * g) };
        *factors = match kind.table {
            Some(table) => look_up(table, codes),
            None if kind.is_masked => _mm256_and_si256(codes, _mm256_set1_epi8(15)),
            None => codes,
        };
    }
    // SAFETY: guaranteed by the caller.
    let Scales { scales, offsets } =
        unsafe { if WHOLE { format.scales(at, first) } else { scales_of_groups(format, at, first, groups) } };
    let mut scales = in_lane_order::<C>(scales);
    if C::HAS_FACTOR {
        let factor = _mm256_set1_ps(at.factor);
        scales = scales.map(|scales| _mm256_mul_ps(scales, factor));
    }
    Unpacked { factors, scales, offsets: if C::HAS_OFFSET { in_lane_order::<C>(offsets) } else { scales } }
}

/// Orders values per group, or per sixteen, as [`LaneOrder`](super::columns::LaneOrder) does.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn in_lane_order<C: Codes>([a, b]: [__m256; 2]) -> [__m256; 2] {
    if C::ONE_SCALE {
        return [_mm256_permutevar8x32_ps(a, _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7)), b];
    }
    let pairs = _mm256_setr_epi32(0, 4, 2, 6, 1, 5, 3, 7);
    let [a, b] = [a, b].map(|of| _mm256_castps_pd(_mm256_permutevar8x32_ps(of, pairs)));
    [_mm256_castpd_ps(_mm256_unpacklo_pd(a, b)), _mm256_castpd_ps(_mm256_unpackhi_pd(a, b))]
}

/// Multiplies bytes by the codes of a column, and adds neighbours: at most 128 * 127 * 2, which fits in sixteen
/// bits.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn multiply_pairs(factors: __m256i, x: __m256i, is_signed: bool) -> __m256i {
    if is_signed {
        return _mm256_maddubs_epi16(_mm256_abs_epi8(factors), _mm256_sign_epi8(x, factors));
    }
    _mm256_maddubs_epi16(factors, x)
}

/// Adds neighbouring lanes of sixteen bits.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn widen(pairs: __m256i) -> __m256i {
    _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))
}

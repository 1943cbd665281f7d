//! ggml's blocks of 256 values with AVX2, for `blocks`. The scales of a block are unpacked once, into lanes.
#![allow(unsafe_code)] // Reads packed bytes through pointers at any alignment.

use std::arch::x86_64::*;

use super::super::dtype::Float;
use super::blocks::{
    COUNT, Codes, NON_LINEAR, Scales, Terms, broadcast_scale, lane, nibble_halves, without_offsets,
};
use super::load::{RowAt, broadcast};

/// Values per block.
const QK: usize = 256;

/// Converts eight bytes to floats.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn floats(bytes: u64) -> __m256 {
    _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_cvtsi64_si128(bytes.cast_signed())))
}

/// Computes the scales and minima of the eight groups of Q4_K and Q5_K.
///
/// # Safety
/// There are sixteen bytes: d, dmin and twelve bytes of 6-bit numbers.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn scales_and_minima(at: *const u8) -> (__m256, __m256) {
    // SAFETY: guaranteed by the caller.
    let (d, dmin, [a, b, c]) = unsafe {
        (
            broadcast(Float::F16, at, 0),
            broadcast(Float::F16, at, 1),
            at.add(4).cast::<[u32; 3]>().read_unaligned(),
        )
    };
    // Layout: see Q4_K in `lode_model::quant::ggml`. Four groups have six bits each; above them are the high
    // bits of the other four.
    const SIX: u32 = 0x3f3f_3f3f;
    const FOUR: u32 = 0x0f0f_0f0f;
    const TWO: u32 = 0x3030_3030;
    let scales = u64::from(a & SIX) | u64::from((c & FOUR) | ((a >> 2) & TWO)) << 32;
    let minima = u64::from(b & SIX) | u64::from(((c >> 4) & FOUR) | ((b >> 2) & TWO)) << 32;
    (_mm256_mul_ps(d, floats(scales)), _mm256_mul_ps(dmin, floats(minima)))
}

/// The group that contains 32 values of a block.
#[inline(always)]
fn group_of(k: usize) -> usize {
    k % QK / 32
}

/// Shifts 32 bytes right. Bits of the neighbouring byte enter from above.
///
/// # Safety
/// There are 32 bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn shifted(at: *const u8, by: usize) -> __m256i {
    // SAFETY: guaranteed by the caller.
    _mm256_srl_epi16(unsafe { _mm256_loadu_si256(at.cast()) }, _mm_cvtsi32_si128(by as i32))
}

#[derive(Clone, Copy)]
pub(crate) struct Q4K;

impl Codes for Q4K {
    type Group = (__m256, __m256);
    const GROUP: usize = QK;
    const TABLE: Option<[i8; 16]> = Some(COUNT);
    const HAS_OFFSET: bool = true;
    const BITS: u32 = 4;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales(self, row: RowAt, k: usize) -> Scales {
        // SAFETY: the same contract.
        let (scales, minima) = unsafe { Codes::group(self, row, k) };
        let none = _mm256_setzero_ps();
        Scales { scales: [scales, none], offsets: [minima, none] }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn group(self, row: RowAt, k: usize) -> (__m256, __m256) {
        // SAFETY: block k / 256 belongs to the row.
        unsafe { scales_and_minima(row.codes.add(k / QK * 144)) }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn codes(self, row: RowAt, k: usize) -> __m256i {
        let j = group_of(k);
        // SAFETY: 32 of the bytes of block k / 256.
        unsafe { shifted(row.codes.add(k / QK * 144 + 16 + 32 * (j / 2)), 4 * (j % 2)) }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn terms(self, (scales, minima): (__m256, __m256), k: usize) -> [Terms; 2] {
        let j = group_of(k);
        [Terms { scale: lane(scales, j), offset: lane(minima, j) }; 2]
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Q5K;

impl Codes for Q5K {
    type Group = (__m256, __m256);
    const GROUP: usize = QK;
    const HAS_OFFSET: bool = true;
    const BITS: u32 = 5;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales(self, row: RowAt, k: usize) -> Scales {
        // SAFETY: the same contract.
        let (scales, minima) = unsafe { Codes::group(self, row, k) };
        let none = _mm256_setzero_ps();
        Scales { scales: [scales, none], offsets: [minima, none] }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn group(self, row: RowAt, k: usize) -> (__m256, __m256) {
        // SAFETY: block k / 256 belongs to the row.
        unsafe { scales_and_minima(row.codes.add(k / QK * 176)) }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn codes(self, row: RowAt, k: usize) -> __m256i {
        let j = group_of(k);
        let block = row.codes.wrapping_add(k / QK * 176);
        // SAFETY: 32 of the bytes of block k / 256, twice.
        let (low, fifth) =
            unsafe { (shifted(block.add(48 + 32 * (j / 2)), 4 * (j % 2)), shifted(block.add(16), j)) };
        let low = _mm256_and_si256(low, _mm256_set1_epi8(15));
        let fifth = _mm256_slli_epi16::<4>(_mm256_and_si256(fifth, _mm256_set1_epi8(1)));
        _mm256_or_si256(low, fifth)
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn terms(self, group: (__m256, __m256), k: usize) -> [Terms; 2] {
        // SAFETY: the same contract.
        unsafe { Q4K.terms(group, k) }
    }
}

/// A scale per sixteen values of a block: the first eight and the last eight.
type Sixteen = [__m256; 2];

/// The scales of the two sixteens from k, from `[first eight, last eight]`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn sixteens(scales: Sixteen, k: usize) -> [__m256; 2] {
    let j = k % QK / 16;
    let half = scales[j / 8];
    [lane(half, j % 8), lane(half, j % 8 + 1)]
}

#[derive(Clone, Copy)]
pub(crate) struct Q6K;

impl Codes for Q6K {
    type Group = Sixteen;
    const GROUP: usize = QK;
    const ONE_SCALE: bool = false;
    const BITS: u32 = 6;
    const EXCESS: u8 = 32;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales(self, row: RowAt, k: usize) -> Scales {
        // SAFETY: the same contract.
        without_offsets(unsafe { Codes::group(self, row, k) })
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn group(self, row: RowAt, k: usize) -> Sixteen {
        let block = row.codes.wrapping_add(k / QK * 210);
        // SAFETY: block k / 256 belongs to the row: sixteen scales and d end it.
        let (d, scales) = unsafe {
            (broadcast(Float::F16, block.add(208), 0), block.add(192).cast::<[u64; 2]>().read_unaligned())
        };
        [_mm256_mul_ps(d, floats(scales[0])), _mm256_mul_ps(d, floats(scales[1]))]
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn codes(self, row: RowAt, k: usize) -> __m256i {
        let block = row.codes.wrapping_add(k / QK * 210);
        let (n, j) = (k % QK / 128, k % 128 / 32);
        // SAFETY: 32 of the bytes of block k / 256, twice.
        let (low, high) = unsafe {
            (shifted(block.add(64 * n + 32 * (j % 2)), 4 * (j / 2)), shifted(block.add(128 + 32 * n), 2 * j))
        };
        let low = _mm256_and_si256(low, _mm256_set1_epi8(15));
        let high = _mm256_slli_epi16::<4>(_mm256_and_si256(high, _mm256_set1_epi8(3)));
        _mm256_or_si256(low, high)
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn terms(self, scales: Sixteen, k: usize) -> [Terms; 2] {
        sixteens(scales, k).map(|scale| Terms { scale, offset: _mm256_setzero_ps() })
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Q2K;

impl Codes for Q2K {
    /// Scales and minima.
    type Group = (Sixteen, Sixteen);
    const GROUP: usize = QK;
    const ONE_SCALE: bool = false;
    const HAS_OFFSET: bool = true;
    const BITS: u32 = 2;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales(self, row: RowAt, k: usize) -> Scales {
        // SAFETY: the same contract.
        let (scales, offsets) = unsafe { Codes::group(self, row, k) };
        Scales { scales, offsets }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn group(self, row: RowAt, k: usize) -> (Sixteen, Sixteen) {
        let block = row.codes.wrapping_add(k / QK * 84);
        // SAFETY: block k / 256 belongs to the row: sixteen scales begin it, d and dmin end it.
        let (d, dmin, packed) = unsafe {
            (
                broadcast(Float::F16, block.add(80), 0),
                broadcast(Float::F16, block.add(80), 1),
                block.cast::<[u64; 2]>().read_unaligned(),
            )
        };
        const NIBBLES: u64 = 0x0f0f_0f0f_0f0f_0f0f;
        (
            packed.map(|scales| _mm256_mul_ps(d, floats(scales & NIBBLES))),
            packed.map(|minima| _mm256_mul_ps(dmin, floats((minima >> 4) & NIBBLES))),
        )
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn codes(self, row: RowAt, k: usize) -> __m256i {
        let (n, j) = (k % QK / 128, k % 128 / 32);
        // SAFETY: 32 of the bytes of block k / 256.
        let codes = unsafe { shifted(row.codes.add(k / QK * 84 + 16 + 32 * n), 2 * j) };
        _mm256_and_si256(codes, _mm256_set1_epi8(3))
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn terms(self, (scales, minima): (Sixteen, Sixteen), k: usize) -> [Terms; 2] {
        let (scales, minima) = (sixteens(scales, k), sixteens(minima, k));
        std::array::from_fn(|v| Terms { scale: scales[v], offset: minima[v] })
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Q3K;

impl Codes for Q3K {
    type Group = Sixteen;
    const GROUP: usize = QK;
    const ONE_SCALE: bool = false;
    const BITS: u32 = 3;
    const EXCESS: u8 = 4;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales(self, row: RowAt, k: usize) -> Scales {
        // SAFETY: the same contract.
        without_offsets(unsafe { Codes::group(self, row, k) })
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn group(self, row: RowAt, k: usize) -> Sixteen {
        let block = row.codes.wrapping_add(k / QK * 110);
        // SAFETY: block k / 256 belongs to the row: twelve bytes of scales and d end it.
        let (d, [a, b, c]) = unsafe {
            (broadcast(Float::F16, block.add(108), 0), block.add(96).cast::<[u32; 3]>().read_unaligned())
        };
        // The low nibbles of scales 0 to 7 are in the low nibbles of eight bytes, those of scales 8 to 15 in
        // the high ones. The two high bits of scale k are in byte k % 4 of the last four bytes, from bit 2 (k
        // / 4) on.
        const FOUR: u32 = 0x0f0f_0f0f;
        let high = |by: u32| ((c >> by) & 0x0303_0303) << 4;
        let join = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let first = join((a & FOUR) | high(0), (b & FOUR) | high(2));
        let last = join(((a >> 4) & FOUR) | high(4), ((b >> 4) & FOUR) | high(6));
        let around = _mm256_set1_ps(32.0);
        [first, last].map(|scales| _mm256_mul_ps(d, _mm256_sub_ps(floats(scales), around)))
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn codes(self, row: RowAt, k: usize) -> __m256i {
        let block = row.codes.wrapping_add(k / QK * 110);
        let (n, j) = (k % QK / 128, k % 128 / 32);
        // SAFETY: 32 of the bytes of block k / 256, twice.
        let (low, mask) = unsafe { (shifted(block.add(32 + 32 * n), 2 * j), shifted(block, 4 * n + j)) };
        let low = _mm256_and_si256(low, _mm256_set1_epi8(3));
        let third = _mm256_slli_epi16::<2>(_mm256_and_si256(mask, _mm256_set1_epi8(1)));
        _mm256_or_si256(low, third)
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn terms(self, scales: Sixteen, k: usize) -> [Terms; 2] {
        sixteens(scales, k).map(|scale| Terms { scale, offset: _mm256_setzero_ps() })
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Iq4Xs;

impl Codes for Iq4Xs {
    type Group = __m256;
    const GROUP: usize = QK;
    const TABLE: Option<[i8; 16]> = Some(NON_LINEAR);
    const BITS: u32 = 4;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales(self, row: RowAt, k: usize) -> Scales {
        // SAFETY: the same contract.
        without_offsets([unsafe { Codes::group(self, row, k) }, _mm256_setzero_ps()])
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn group(self, row: RowAt, k: usize) -> __m256 {
        let block = row.codes.wrapping_add(k / QK * 136);
        // SAFETY: block k / 256 belongs to the row and begins with d, high and low bits of the scales.
        let (d, high, low) = unsafe {
            (
                broadcast(Float::F16, block, 0),
                block.add(2).cast::<u16>().read_unaligned(),
                block.add(4).cast::<i32>().read_unaligned(),
            )
        };
        let low = _mm256_srlv_epi32(_mm256_set1_epi32(low), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
        let high = _mm256_srlv_epi32(
            _mm256_set1_epi32(i32::from(high)),
            _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14),
        );
        let low = _mm256_and_si256(low, _mm256_set1_epi32(15));
        let high = _mm256_slli_epi32::<4>(_mm256_and_si256(high, _mm256_set1_epi32(3)));
        let scales = _mm256_sub_epi32(_mm256_or_si256(low, high), _mm256_set1_epi32(32));
        _mm256_mul_ps(d, _mm256_cvtepi32_ps(scales))
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn codes(self, row: RowAt, k: usize) -> __m256i {
        // SAFETY: sixteen of the bytes of block k / 256.
        unsafe { nibble_halves(row.codes.add(k / QK * 136 + 8 + 16 * group_of(k))) }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn terms(self, scales: __m256, k: usize) -> [Terms; 2] {
        broadcast_scale(lane(scales, group_of(k)))
    }
}

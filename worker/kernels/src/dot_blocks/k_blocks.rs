//! ggml's blocks of 256 values with AVX-512, one block of each of four rows at a time.
#![allow(unsafe_code)] // Reads packed bytes through pointers at any alignment.

use std::arch::x86_64::*;

use super::blocks::{NON_LINEAR, look_up, nibbles};
use super::four_rows::{BlockOfFourRows, Unpack};

/// Selects the bits of `a` where `mask` is set, and the bits of `b` elsewhere.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn select(mask: i8, a: __m512i, b: __m512i) -> __m512i {
    _mm512_ternarylogic_epi32::<0xca>(_mm512_set1_epi8(mask), a, b)
}

/// Shifts bytes left, or right if `by` is negative. Bits of the neighbouring byte enter at the ends.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn shift_left(bytes: __m512i, by: i32) -> __m512i {
    match by {
        0 => bytes,
        1.. => _mm512_sll_epi16(bytes, _mm_cvtsi32_si128(by)),
        _ => _mm512_srl_epi16(bytes, _mm_cvtsi32_si128(-by)),
    }
}

/// Broadcasts f16 number `n` of each row's eight to all lanes of the row.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn half(rows: __m512i, n: i16) -> __m512 {
    let rows_of_lanes = _mm256_setr_epi16(0, 0, 0, 0, 8, 8, 8, 8, 16, 16, 16, 16, 24, 24, 24, 24);
    let places = _mm512_castsi256_si512(_mm256_add_epi16(rows_of_lanes, _mm256_set1_epi16(n)));
    _mm512_cvtph_ps(_mm512_castsi512_si256(_mm512_permutexvar_epi16(places, rows)))
}

/// Shifts each of a row's four lanes right.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn shift_lanes_right(rows: __m512i, by: [i32; 4]) -> __m512i {
    _mm512_srlv_epi32(rows, _mm512_broadcast_i32x4(_mm_setr_epi32(by[0], by[1], by[2], by[3])))
}

/// Multiplies sixteen scales of each row by d, in lane order.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn scale_sixteens(bytes: __m512i, d: __m512) -> [__m512; 4] {
    let by = |left: u32| {
        let lanes = _mm512_sll_epi32(bytes, _mm_cvtsi32_si128(left.cast_signed()));
        _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_srai_epi32::<24>(lanes)))
    };
    [by(24), by(16), by(8), by(0)]
}

/// Computes the scales and minima of Q4_K and Q5_K.
///
/// # Safety
/// Each row has sixteen bytes: d, dmin and twelve bytes of 6-bit numbers.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
unsafe fn scales_and_minima(at: BlockOfFourRows) -> ([__m512; 2], [__m512; 2]) {
    // SAFETY: guaranteed by the caller.
    let head = unsafe { at.codes.sixteen(0) };
    let (d, dmin) = (half(head, 0), half(head, 1));
    // Lanes 1 and 2 have four scales and four minima of six bits each; above them are the high bits of the
    // other four, whose low bits are in lane 3. Lanes 0 and 3 get their values here.
    let low = _mm512_shuffle_epi32::<0b11_10_01_11>(head);
    let high = _mm512_srli_epi32::<2>(_mm512_shuffle_epi32::<0b10_00_00_01>(head));
    let masks = |a, b, c, d| _mm512_broadcast_i32x4(_mm_setr_epi32(a, b, c, d));
    const SIX: i32 = 0x3f3f_3f3f;
    const FOUR: i32 = 0x0f0f_0f0f;
    const TWO: i32 = 0x3030_3030;
    let low = _mm512_and_si512(shift_lanes_right(low, [0, 0, 0, 4]), masks(FOUR, SIX, SIX, FOUR));
    let all = _mm512_or_si512(low, _mm512_and_si512(high, masks(TWO, 0, 0, TWO)));
    let pick = |a: i32, b: i32, c: i32, e: i32, d| {
        // Keep only the selected byte.
        let places = masks(a, b, c, e);
        let bytes = _mm512_shuffle_epi8(
            all,
            _mm512_or_si512(places, _mm512_set1_epi32(0x8080_8000u32.cast_signed())),
        );
        _mm512_mul_ps(d, _mm512_cvtepi32_ps(bytes))
    };
    ([pick(4, 6, 0, 2, d), pick(5, 7, 1, 3, d)], [pick(8, 10, 12, 14, dmin), pick(9, 11, 13, 15, dmin)])
}

#[derive(Clone, Copy)]
pub(super) struct Q4K;

impl Unpack for Q4K {
    type Lanes = [__m512; 2];
    const EXCESS_SHIFT: Option<u32> = None;
    const BYTES: usize = 144;

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    unsafe fn codes(self, at: BlockOfFourRows) -> [__m512i; 16] {
        let mut codes = [_mm512_setzero_si512(); 16];
        for (v, codes) in codes.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            for half in 0..2 {
                // SAFETY: sixteen of the block's bytes.
                let bytes = unsafe { at.codes.sixteen(16 + 32 * v + 16 * half) };
                [codes[half], codes[2 + half]] = nibbles(bytes);
            }
        }
        codes
    }

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    unsafe fn scales(self, at: BlockOfFourRows) -> ([__m512; 2], [__m512; 2]) {
        // SAFETY: there is a block.
        unsafe { scales_and_minima(at) }
    }
}

#[derive(Clone, Copy)]
pub(super) struct Q5K;

impl Unpack for Q5K {
    type Lanes = [__m512; 2];
    const EXCESS_SHIFT: Option<u32> = None;
    const BYTES: usize = 176;

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    unsafe fn codes(self, at: BlockOfFourRows) -> [__m512i; 16] {
        // SAFETY: 32 of the block's bytes.
        let fifth = [0, 1].map(|half| unsafe { at.codes.sixteen(16 + 16 * half) });
        let mut codes = [_mm512_setzero_si512(); 16];
        for (v, codes) in codes.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            for half in 0..2 {
                // SAFETY: sixteen of the block's bytes.
                let bytes = unsafe { at.codes.sixteen(48 + 32 * v + 16 * half) };
                let join = |low, n: i32| {
                    let high = shift_left(fifth[half], 4 - n);
                    _mm512_and_si512(select(15, low, high), _mm512_set1_epi8(31))
                };
                let n = 2 * v as i32;
                codes[half] = join(bytes, n);
                codes[2 + half] = join(shift_left(bytes, -4), n + 1);
            }
        }
        codes
    }

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    unsafe fn scales(self, at: BlockOfFourRows) -> ([__m512; 2], [__m512; 2]) {
        // SAFETY: there is a block.
        unsafe { scales_and_minima(at) }
    }
}

#[derive(Clone, Copy)]
pub(super) struct Q6K;

impl Unpack for Q6K {
    type Lanes = [__m512; 4];
    /// An excess of 32.
    const EXCESS_SHIFT: Option<u32> = Some(2);
    const BYTES: usize = 210;

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    unsafe fn codes(self, at: BlockOfFourRows) -> [__m512i; 16] {
        let mut codes = [_mm512_setzero_si512(); 16];
        for (n, codes) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            for half in 0..2 {
                // SAFETY: 48 of the block's bytes.
                let (low, high) = unsafe {
                    let low = |r: usize| at.codes.sixteen(64 * n + 32 * r + 16 * half);
                    ([low(0), low(1)], at.codes.sixteen(128 + 32 * n + 16 * half))
                };
                for r in 0..4 {
                    // The two high bits go to bits 4 and 5.
                    let high = shift_left(high, 4 - 2 * r as i32);
                    let low = shift_left(low[r % 2], if r < 2 { 0 } else { -4 });
                    codes[2 * r + half] = _mm512_and_si512(select(15, low, high), _mm512_set1_epi8(63));
                }
            }
        }
        codes
    }

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    unsafe fn scales(self, at: BlockOfFourRows) -> ([__m512; 4], [__m512; 4]) {
        // SAFETY: sixteen scales and d end the block.
        let (scales, end) = unsafe { (at.codes.sixteen(192), at.codes.sixteen(194)) };
        let scales = scale_sixteens(scales, half(end, 7));
        (scales, scales)
    }
}

/// Codes of two bits, with unmasked bits above them: sixteen codes of 128, from code 32 r + 16 h on.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn two_bits(bytes: [__m512i; 2], r: usize, half: usize) -> __m512i {
    shift_left(bytes[half], -2 * r as i32)
}

#[derive(Clone, Copy)]
pub(super) struct Q2K;

impl Unpack for Q2K {
    type Lanes = [__m512; 4];
    const EXCESS_SHIFT: Option<u32> = None;
    const BYTES: usize = 84;

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    unsafe fn codes(self, at: BlockOfFourRows) -> [__m512i; 16] {
        let mut codes = [_mm512_setzero_si512(); 16];
        for (n, codes) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            // SAFETY: 32 of the block's bytes.
            let bytes = [0, 1].map(|half| unsafe { at.codes.sixteen(16 + 32 * n + 16 * half) });
            for (place, code) in codes.iter_mut().enumerate() {
                *code = _mm512_and_si512(two_bits(bytes, place / 2, place % 2), _mm512_set1_epi8(3));
            }
        }
        codes
    }

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    unsafe fn scales(self, at: BlockOfFourRows) -> ([__m512; 4], [__m512; 4]) {
        // SAFETY: sixteen scales begin the block, d and dmin end it.
        let (packed, end) = unsafe { (at.codes.sixteen(0), at.codes.sixteen(68)) };
        let [scales, minima] = nibbles(packed);
        (scale_sixteens(scales, half(end, 6)), scale_sixteens(minima, half(end, 7)))
    }
}

#[derive(Clone, Copy)]
pub(super) struct Q3K;

impl Unpack for Q3K {
    type Lanes = [__m512; 4];
    /// An excess of four: a set bit subtracts nothing, a clear bit subtracts four.
    const EXCESS_SHIFT: Option<u32> = Some(5);
    const BYTES: usize = 110;

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    unsafe fn codes(self, at: BlockOfFourRows) -> [__m512i; 16] {
        // SAFETY: 32 of the block's bytes.
        let kept = [0, 1].map(|half| unsafe { at.codes.sixteen(16 * half) });
        let mut codes = [_mm512_setzero_si512(); 16];
        for (n, codes) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            // SAFETY: 32 other bytes of the block.
            let bytes = [0, 1].map(|half| unsafe { at.codes.sixteen(32 + 32 * n + 16 * half) });
            for (place, code) in codes.iter_mut().enumerate() {
                let (r, half) = (place / 2, place % 2);
                let kept = shift_left(kept[half], 2 - (4 * n + r) as i32);
                *code = _mm512_and_si512(select(3, two_bits(bytes, r, half), kept), _mm512_set1_epi8(7));
            }
        }
        codes
    }

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    unsafe fn scales(self, at: BlockOfFourRows) -> ([__m512; 4], [__m512; 4]) {
        // SAFETY: twelve bytes of scales and d end the block.
        let end = unsafe { at.codes.sixteen(94) };
        // The low nibbles of scales 0 to 7 are in the low nibbles of eight bytes, those of scales 8 to 15 in
        // the high ones. The two high bits of scale k are in byte k % 4 of the last four bytes, from bit 2 (k
        // / 4) on.
        let packed = _mm512_bsrli_epi128::<2>(end);
        let low = shift_lanes_right(_mm512_shuffle_epi32::<0b01_00_01_00>(packed), [0, 0, 4, 4]);
        let high = shift_lanes_right(_mm512_shuffle_epi32::<0b10_10_10_10>(packed), [0, 2, 4, 6]);
        let high = _mm512_slli_epi32::<4>(_mm512_and_si512(high, _mm512_set1_epi8(3)));
        let scales = _mm512_sub_epi8(select(15, low, high), _mm512_set1_epi8(32));
        let scales = scale_sixteens(scales, half(end, 7));
        (scales, scales)
    }
}

#[derive(Clone, Copy)]
pub(super) struct Iq4Xs;

impl Unpack for Iq4Xs {
    type Lanes = [__m512; 2];
    const EXCESS_SHIFT: Option<u32> = Some(0);
    const BYTES: usize = 136;

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    unsafe fn codes(self, at: BlockOfFourRows) -> [__m512i; 16] {
        let mut codes = [_mm512_setzero_si512(); 16];
        for (group, codes) in codes.as_chunks_mut::<2>().0.iter_mut().enumerate() {
            // SAFETY: sixteen of the block's bytes.
            let bytes = unsafe { at.codes.sixteen(8 + 16 * group) };
            *codes = nibbles(bytes).map(|codes| look_up(&NON_LINEAR, codes));
        }
        codes
    }

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    unsafe fn scales(self, at: BlockOfFourRows) -> ([__m512; 2], [__m512; 2]) {
        // SAFETY: the block begins with d, high and low bits of the scales.
        let head = unsafe { at.codes.sixteen(0) };
        let (high, low) =
            (_mm512_shuffle_epi32::<0b00_00_00_00>(head), _mm512_shuffle_epi32::<0b01_01_01_01>(head));
        let d = half(head, 0);
        let scale = |by_low: [i32; 4], by_high: [i32; 4]| {
            let low = _mm512_and_si512(shift_lanes_right(low, by_low), _mm512_set1_epi32(15));
            let high = _mm512_and_si512(shift_lanes_right(high, by_high), _mm512_set1_epi32(3));
            let scales = _mm512_or_si512(low, _mm512_slli_epi32::<4>(high));
            _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_sub_epi32(scales, _mm512_set1_epi32(32))))
        };
        let scales = [scale([0, 8, 16, 24], [16, 20, 24, 28]), scale([4, 12, 20, 28], [18, 22, 26, 30])];
        (scales, scales)
    }
}

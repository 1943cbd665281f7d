//! ggml's blocks of 256 with AVX-512.
#![allow(unsafe_code)] // Reads packed bytes through pointers at any alignment.

use std::arch::x86_64::*;

use super::Order;
use super::avx512::{At, Unpack, half, ordered};
use super::blocks::{NON_LINEAR, look_up, nibbles_of};

/// 32 bytes twice, the second time from another bit on.
///
/// # Safety
/// The bytes are there.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
unsafe fn twice(at: *const u8, by: [i64; 2]) -> __m512i {
    // SAFETY: by the caller's promise.
    let bytes = _mm512_broadcast_i64x4(unsafe { _mm256_loadu_si256(at.cast()) });
    let [low, high] = by.map(|by| by * 0x0001_0001_0001_0001);
    _mm512_srlv_epi16(bytes, _mm512_setr_epi64(low, low, low, low, high, high, high, high))
}

/// Of 64 codes, those whose bit of 32 bytes is set: bit 2 v of each for the first 32, bit 2 v + 1 for the others.
///
/// # Safety
/// The bytes are there.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
unsafe fn bit(at: *const u8, v: usize) -> __mmask64 {
    // SAFETY: by the caller's promise.
    let bytes = _mm512_broadcast_i64x4(unsafe { _mm256_loadu_si256(at.cast()) });
    let bit = |n: usize| 0x0101_0101_0101_0101i64 << n;
    let (low, high) = (bit(2 * v), bit(2 * v + 1));
    _mm512_test_epi8_mask(bytes, _mm512_setr_epi64(low, low, low, low, high, high, high, high))
}

/// Sixteen bytes times d, in the order of lanes.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn sixteen(bytes: __m128i, d: __m512) -> __m512 {
    _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(ordered(bytes, &Order::FINE))))
}

/// Scales and minima of Q4_K and Q5_K.
///
/// # Safety
/// Sixteen bytes are there: d, dmin and twelve with 6-bit numbers.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
unsafe fn scales_and_minima(at: *const u8) -> (__m256, __m256) {
    // SAFETY: by the caller's promise.
    let (d, dmin, [a, b, c]) =
        unsafe { (half(at), half(at.add(2)), at.add(4).cast::<[u32; 3]>().read_unaligned()) };
    // Four groups in six bits each, and the high bits of the other four above them.
    const SIX: u32 = 0x3f3f_3f3f;
    const FOUR: u32 = 0x0f0f_0f0f;
    const TWO: u32 = 0x3030_3030;
    let scales = u64::from(a & SIX) | u64::from((c & FOUR) | ((a >> 2) & TWO)) << 32;
    let minima = u64::from(b & SIX) | u64::from(((c >> 4) & FOUR) | ((b >> 2) & TWO)) << 32;
    let both = _mm_set_epi64x(minima.cast_signed(), scales.cast_signed());
    // Lane by lane, scales and then minima.
    const BOTH: [u8; 16] = {
        let mut order = [0; 16];
        let mut n = 0;
        while n < 16 {
            order[n] = Order::COARSE[n % 8] + if n < 8 { 0 } else { 8 };
            n += 1;
        }
        order
    };
    let numbers = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(ordered(both, &BOTH)));
    let high = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(numbers)));
    (
        _mm256_mul_ps(_mm512_castps512_ps256(d), _mm512_castps512_ps256(numbers)),
        _mm256_mul_ps(_mm512_castps512_ps256(dmin), high),
    )
}

#[derive(Clone, Copy)]
pub(super) struct Q4K;

impl Unpack for Q4K {
    type Lanes = __m256;
    const SIGNED: bool = false;
    const BYTES: usize = 144;

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    unsafe fn codes(self, at: At) -> [__m512i; 4] {
        std::array::from_fn(|v| {
            // SAFETY: 32 of the block's bytes.
            let codes = unsafe { twice(at.codes.add(16 + 32 * v), [0, 4]) };
            _mm512_and_si512(codes, _mm512_set1_epi8(15))
        })
    }

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    unsafe fn scales(self, at: At) -> (__m256, __m256) {
        // SAFETY: a block is there.
        unsafe { scales_and_minima(at.codes) }
    }
}

#[derive(Clone, Copy)]
pub(super) struct Q5K;

impl Unpack for Q5K {
    type Lanes = __m256;
    const SIGNED: bool = false;
    const BYTES: usize = 176;

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    unsafe fn codes(self, at: At) -> [__m512i; 4] {
        std::array::from_fn(|v| {
            // SAFETY: 32 of the block's bytes, twice.
            let (low, fifth) =
                unsafe { (twice(at.codes.add(48 + 32 * v), [0, 4]), bit(at.codes.add(16), v)) };
            let low = _mm512_and_si512(low, _mm512_set1_epi8(15));
            _mm512_mask_add_epi8(low, fifth, low, _mm512_set1_epi8(16))
        })
    }

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    unsafe fn scales(self, at: At) -> (__m256, __m256) {
        // SAFETY: a block is there.
        unsafe { scales_and_minima(at.codes) }
    }
}

#[derive(Clone, Copy)]
pub(super) struct Q6K;

impl Unpack for Q6K {
    type Lanes = __m512;
    const SIGNED: bool = true;
    const BYTES: usize = 210;

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    unsafe fn codes(self, at: At) -> [__m512i; 4] {
        let part = |n: usize| {
            // SAFETY: 64 of the block's bytes, and 32 others.
            let (low, high) = unsafe {
                (
                    _mm512_loadu_si512(at.codes.add(64 * n).cast()),
                    _mm512_broadcast_i64x4(_mm256_loadu_si256(at.codes.add(128 + 32 * n).cast())),
                )
            };
            let by = |low: i64, high: i64| {
                let [low, high] = [low, high].map(|by| by * 0x0001_0001_0001_0001);
                _mm512_setr_epi64(low, low, low, low, high, high, high, high)
            };
            // The two bits above go to bits 4 and 5.
            let join = |low, high| {
                let low = _mm512_and_si512(low, _mm512_set1_epi8(15));
                // low | (high & 0x30)
                let codes = _mm512_ternarylogic_epi32::<0xf8>(low, high, _mm512_set1_epi8(0x30));
                // 128 - 32
                _mm512_add_epi8(codes, _mm512_set1_epi8(96))
            };
            (
                join(low, _mm512_sllv_epi16(high, by(4, 2))),
                join(_mm512_srli_epi16::<4>(low), _mm512_srlv_epi16(high, by(0, 2))),
            )
        };
        let (a, b) = (part(0), part(1));
        [a.0, a.1, b.0, b.1]
    }

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    unsafe fn scales(self, at: At) -> (__m512, __m512) {
        // SAFETY: sixteen scales and d end the block.
        let (d, scales) = unsafe { (half(at.codes.add(208)), _mm_loadu_si128(at.codes.add(192).cast())) };
        (sixteen(scales, d), d)
    }
}

#[derive(Clone, Copy)]
pub(super) struct Q2K;

impl Unpack for Q2K {
    type Lanes = __m512;
    const SIGNED: bool = false;
    const BYTES: usize = 84;

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    unsafe fn codes(self, at: At) -> [__m512i; 4] {
        std::array::from_fn(|v| {
            // SAFETY: 32 of the block's bytes.
            unsafe { two_bits(at.codes.add(16), v) }
        })
    }

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    unsafe fn scales(self, at: At) -> (__m512, __m512) {
        // SAFETY: sixteen scales begin the block, d and dmin end it.
        let (d, dmin, packed) =
            unsafe { (half(at.codes.add(80)), half(at.codes.add(82)), _mm_loadu_si128(at.codes.cast())) };
        let four = |bytes| _mm_and_si128(bytes, _mm_set1_epi8(15));
        (sixteen(four(packed), d), sixteen(four(_mm_srli_epi16::<4>(packed)), dmin))
    }
}

/// Codes of two bits: 64 from 64 v on.
///
/// # Safety
/// 64 bytes are there.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
unsafe fn two_bits(at: *const u8, v: usize) -> __m512i {
    let by = [[0, 2], [4, 6]][v % 2];
    // SAFETY: 32 of those bytes.
    _mm512_and_si512(unsafe { twice(at.add(32 * (v / 2)), by) }, _mm512_set1_epi8(3))
}

#[derive(Clone, Copy)]
pub(super) struct Q3K;

impl Unpack for Q3K {
    type Lanes = __m512;
    const SIGNED: bool = true;
    const BYTES: usize = 110;

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    unsafe fn codes(self, at: At) -> [__m512i; 4] {
        std::array::from_fn(|v| {
            // SAFETY: 64 of the block's bytes, and 32 others.
            let (low, kept) = unsafe { (two_bits(at.codes.add(32), v), bit(at.codes, v)) };
            // A bit that is set takes nothing off, one that is not takes four: 128 - 4.
            let low = _mm512_add_epi8(low, _mm512_set1_epi8(124));
            _mm512_mask_add_epi8(low, kept, low, _mm512_set1_epi8(4))
        })
    }

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    unsafe fn scales(self, at: At) -> (__m512, __m512) {
        // SAFETY: twelve bytes of scales and d end the block.
        let (d, [a, b, c]) =
            unsafe { (half(at.codes.add(108)), at.codes.add(96).cast::<[u32; 3]>().read_unaligned()) };
        // Low nibbles of scales 0 to 7 in the low nibbles of eight bytes, of 8 to 15 in the high ones; two more bits of
        // each in the last four bytes, of scale k in byte k % 4, from bit 2 (k / 4) on.
        const FOUR: u32 = 0x0f0f_0f0f;
        let high = |by: u32| ((c >> by) & 0x0303_0303) << 4;
        let join = |low: u32, high: u32| (u64::from(low) | u64::from(high) << 32).cast_signed();
        let first = join((a & FOUR) | high(0), (b & FOUR) | high(2));
        let last = join(((a >> 4) & FOUR) | high(4), ((b >> 4) & FOUR) | high(6));
        (sixteen(_mm_sub_epi8(_mm_set_epi64x(last, first), _mm_set1_epi8(32)), d), d)
    }
}

#[derive(Clone, Copy)]
pub(super) struct Iq4Xs;

impl Unpack for Iq4Xs {
    type Lanes = __m256;
    const SIGNED: bool = true;
    const BYTES: usize = 136;

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    unsafe fn codes(self, at: At) -> [__m512i; 4] {
        std::array::from_fn(|v| {
            // SAFETY: 32 of the block's bytes.
            let bytes = unsafe { _mm256_loadu_si256(at.codes.add(8 + 32 * v).cast()) };
            let doubled = _mm512_permutexvar_epi64(
                _mm512_setr_epi64(0, 1, 0, 1, 2, 3, 2, 3),
                _mm512_castsi256_si512(bytes),
            );
            look_up(&NON_LINEAR, nibbles_of(doubled))
        })
    }

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    unsafe fn scales(self, at: At) -> (__m256, __m256) {
        // SAFETY: the block begins with d, high and low bits of the scales.
        let (d, high, low) = unsafe {
            (
                half(at.codes),
                at.codes.add(2).cast::<u16>().read_unaligned(),
                at.codes.add(4).cast::<i32>().read_unaligned(),
            )
        };
        let low = _mm256_srlv_epi32(_mm256_set1_epi32(low), _mm256_setr_epi32(0, 8, 16, 24, 4, 12, 20, 28));
        let high = _mm256_srlv_epi32(
            _mm256_set1_epi32(i32::from(high)),
            _mm256_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14),
        );
        let low = _mm256_and_si256(low, _mm256_set1_epi32(15));
        let high = _mm256_slli_epi32::<4>(_mm256_and_si256(high, _mm256_set1_epi32(3)));
        let scales = _mm256_sub_epi32(_mm256_or_si256(low, high), _mm256_set1_epi32(32));
        let d = _mm512_castps512_ps256(d);
        (_mm256_mul_ps(d, _mm256_cvtepi32_ps(scales)), d)
    }
}

//! The codes of tensor blobs with AVX-512, whose scales lie elsewhere, and ggml's NVFP4, which has the same small floats.
#![allow(unsafe_code)] // Reads packed bytes through pointers at any alignment.

use std::arch::x86_64::*;

use super::super::weight::Float;
use super::Order;
use super::avx512::{At, Unpack, ordered};
use super::blocks::{E2M1, e8m0, look_up};

/// Affine codes. A group has `1 << shift` of them.
#[derive(Clone, Copy)]
pub(super) struct Affine<const BITS: usize> {
    pub(super) shift: u32,
    pub(super) scales: Float,
}

impl<const BITS: usize> Affine<BITS> {
    /// What each 32 of 256 numbers have of so many packed floats.
    ///
    /// # Safety
    /// As many floats are there as 256 numbers have groups.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    unsafe fn spread(self, at: *const u8) -> __m256 {
        let there = ((1u16 << (256 >> self.shift)) - 1) as u8;
        let floats = match self.scales {
            // SAFETY: the mask ends with the floats.
            Float::F32 => unsafe { _mm256_maskz_loadu_ps(there, at.cast()) },
            Float::F16 | Float::BF16 => {
                // SAFETY: as above.
                let halves = unsafe { _mm_maskz_loadu_epi16(there, at.cast()) };
                match self.scales {
                    Float::F16 => _mm256_cvtph_ps(halves),
                    _ => _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(halves))),
                }
            }
        };
        let lanes = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(i64::from_le_bytes(Order::COARSE)));
        let lanes = _mm256_srl_epi32(lanes, _mm_cvtsi32_si128(self.shift.cast_signed() - 5));
        _mm256_permutevar8x32_ps(floats, lanes)
    }
}

impl<const BITS: usize> Unpack for Affine<BITS> {
    type Lanes = __m256;
    const SIGNED: bool = false;
    const BYTES: usize = 32 * BITS;

    #[inline]
    fn beside(self) -> (usize, usize) {
        let bytes = (256 >> self.shift) * self.scales.size();
        (bytes, bytes)
    }

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    unsafe fn codes(self, at: At) -> [__m512i; 4] {
        std::array::from_fn(|v| {
            if BITS == 4 {
                // SAFETY: 32 of the codes' 128 bytes.
                unsafe { neighbours(at.codes.add(32 * v)) }
            } else {
                // SAFETY: 64 of the codes' 256 bytes.
                unsafe { _mm512_loadu_si512(at.codes.add(64 * v).cast()) }
            }
        })
    }

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    unsafe fn scales(self, at: At) -> (__m256, __m256) {
        // SAFETY: each group has both.
        let (scales, biases) = unsafe { (self.spread(at.scales), self.spread(at.biases)) };
        (scales, _mm256_xor_ps(biases, _mm256_set1_ps(-0.0)))
    }
}

/// The nibbles of 32 bytes, low and high in turns.
///
/// # Safety
/// The bytes are there.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
unsafe fn neighbours(at: *const u8) -> __m512i {
    // SAFETY: by the caller's promise.
    let bytes = _mm512_cvtepu8_epi16(unsafe { _mm256_loadu_si256(at.cast()) });
    // (bytes | bytes << 4) & 15
    let fifteen = _mm512_set1_epi8(15);
    _mm512_ternarylogic_epi32::<0xa8>(bytes, _mm512_slli_epi16::<4>(bytes), fifteen)
}

#[derive(Clone, Copy)]
pub(super) struct Mxfp4;

impl Unpack for Mxfp4 {
    type Lanes = __m256;
    const SIGNED: bool = true;
    const BYTES: usize = 128;

    #[inline]
    fn beside(self) -> (usize, usize) {
        (8, 0)
    }

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    unsafe fn codes(self, at: At) -> [__m512i; 4] {
        // SAFETY: 32 of the codes' 128 bytes.
        std::array::from_fn(|v| look_up(&E2M1, unsafe { neighbours(at.codes.add(32 * v)) }))
    }

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    unsafe fn scales(self, at: At) -> (__m256, __m256) {
        const LANES: [u8; 16] = {
            let mut lanes = [0; 16];
            let mut n = 0;
            while n < 8 {
                lanes[n] = Order::COARSE[n];
                n += 1;
            }
            lanes
        };
        // SAFETY: a scale for each 32.
        let codes = ordered(unsafe { _mm_loadl_epi64(at.scales.cast()) }, &LANES);
        let scales = e8m0(_mm256_cvtepu8_epi32(codes));
        (_mm256_mul_ps(scales, _mm256_set1_ps(0.5)), scales)
    }
}

#[derive(Clone, Copy)]
pub(super) struct Nvfp4;

impl Unpack for Nvfp4 {
    type Lanes = __m512;
    const SIGNED: bool = true;
    const BYTES: usize = 128;

    #[inline]
    fn beside(self) -> (usize, usize) {
        (16, 0)
    }

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    unsafe fn codes(self, at: At) -> [__m512i; 4] {
        // SAFETY: 32 of the codes' 128 bytes.
        std::array::from_fn(|v| look_up(&E2M1, unsafe { neighbours(at.codes.add(32 * v)) }))
    }

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    unsafe fn scales(self, at: At) -> (__m512, __m512) {
        // SAFETY: a scale for each sixteen.
        let codes = ordered(unsafe { _mm_loadu_si128(at.scales.cast()) }, &Order::FINE);
        let scales = _mm512_mul_ps(e4m3(codes), _mm512_set1_ps(at.factor));
        (_mm512_mul_ps(scales, _mm512_set1_ps(0.5)), scales)
    }
}

/// The values of sixteen codes of E4M3; what would be more than 448 is no number.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn e4m3(codes: __m128i) -> __m512 {
    let magnitudes = magnitudes(_mm_and_si128(codes, _mm_set1_epi8(0x7f)));
    let none = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(magnitudes, _mm512_set1_ps(448.0));
    let magnitudes = _mm512_mask_blend_ps(none, magnitudes, _mm512_set1_ps(f32::NAN));
    let signs = _mm512_slli_epi32::<24>(_mm512_cvtepu8_epi32(_mm_and_si128(codes, _mm_set1_epi8(-128))));
    _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(magnitudes), signs))
}

/// Of codes without signs, all taken as numbers.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn magnitudes(codes: __m128i) -> __m512 {
    // Exponent and fraction stand where a half has them, with a bias that is eight less.
    let halves = _mm256_slli_epi16::<7>(_mm256_cvtepu8_epi16(codes));
    _mm512_mul_ps(_mm512_cvtph_ps(halves), _mm512_set1_ps(256.0))
}

/// ggml's NVFP4: 64 codes a block, the halves of each sixteen in low and high nibbles.
#[derive(Clone, Copy)]
pub(super) struct Nvfp4Block;

impl Unpack for Nvfp4Block {
    type Lanes = __m512;
    const SIGNED: bool = true;
    const BYTES: usize = 4 * 36;

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    unsafe fn codes(self, at: At) -> [__m512i; 4] {
        std::array::from_fn(|v| {
            // SAFETY: 32 of the bytes of block v.
            let bytes = unsafe { _mm256_loadu_si256(at.codes.add(36 * v + 4).cast()) };
            let doubled = _mm512_permutexvar_epi64(
                _mm512_setr_epi64(0, 0, 1, 1, 2, 2, 3, 3),
                _mm512_castsi256_si512(bytes),
            );
            let by = 0x0004_0004_0004_0004;
            let nibbles = _mm512_srlv_epi16(doubled, _mm512_setr_epi64(0, by, 0, by, 0, by, 0, by));
            look_up(&E2M1, _mm512_and_si512(nibbles, _mm512_set1_epi8(15)))
        })
    }

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    unsafe fn scales(self, at: At) -> (__m512, __m512) {
        // SAFETY: four blocks are there, each of which begins with four scales.
        let four = |block: usize| unsafe { at.codes.add(36 * block).cast::<i32>().read_unaligned() };
        let codes = _mm_setr_epi32(four(0), four(1), four(2), four(3));
        // There is no sign; the code that is no number elsewhere is zero, and with a sign it is an ordinary one.
        let zeros = _mm_cmpeq_epi8_mask(codes, _mm_set1_epi8(0x7f));
        let codes = _mm_maskz_mov_epi8(!zeros, _mm_and_si128(codes, _mm_set1_epi8(0x7f)));
        let scales = _mm512_mul_ps(magnitudes(ordered(codes, &Order::FINE)), _mm512_set1_ps(at.factor));
        (_mm512_mul_ps(scales, _mm512_set1_ps(0.5)), scales)
    }
}

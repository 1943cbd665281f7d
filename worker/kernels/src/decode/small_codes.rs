//! ggml's types with one to three bits per value, with AVX2. The codes of IQ types select points of a table: four or
//! eight values at once. The others store values from -1 to 2.
#![allow(unsafe_code)] // Reads packed bytes through pointers at any alignment.

use std::arch::x86_64::*;

use lode_model::quant::ggml::codebooks::{IQ1_S, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS};

use super::blocks::{Codes, Scales, Terms, expand_bits, without_offsets};
use super::load::RowAt;

/// Values per block.
const QK: usize = 256;

/// A format with blocks of 256 values, whose scales are unpacked for a whole block.
pub(crate) trait SmallCodes: Copy {
    /// The bytes of a block.
    type Block;
    /// See [`Codes`] for these three.
    const BITS: u32;
    const EXCESS: u8;
    const ONE_SCALE: bool = true;

    /// The scales, one per 32 values in the first eight places or one per sixteen values.
    ///
    /// # Safety
    /// The processor has AVX2 and F16C.
    unsafe fn scales(block: &Self::Block) -> [f32; 16];

    /// The codes of group `g` of 32 values.
    ///
    /// # Safety
    /// As for `scales`.
    unsafe fn codes(block: &Self::Block, g: usize) -> __m256i;
}

/// The block that has value k.
///
/// # Safety
/// The row is of this format and has the value.
#[inline(always)]
unsafe fn block<'a, S: SmallCodes>(row: RowAt, k: usize) -> &'a S::Block {
    // SAFETY: guaranteed by the caller; a block is an array of bytes.
    unsafe { &*row.codes.add(k / QK * size_of::<S::Block>()).cast() }
}

impl<S: SmallCodes> Codes for S {
    type Group = [f32; 16];
    const GROUP: usize = QK;
    const BITS: u32 = S::BITS;
    const EXCESS: u8 = S::EXCESS;
    const ONE_SCALE: bool = S::ONE_SCALE;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales(self, row: RowAt, k: usize) -> Scales {
        // SAFETY: the row has the block.
        let scales = unsafe { S::scales(block::<S>(row, k)) };
        // SAFETY: sixteen values.
        without_offsets(unsafe {
            [_mm256_loadu_ps(&raw const scales[0]), _mm256_loadu_ps(&raw const scales[8])]
        })
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn group(self, row: RowAt, k: usize) -> [f32; 16] {
        // SAFETY: the row has the block.
        unsafe { S::scales(block::<S>(row, k)) }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn codes(self, row: RowAt, k: usize) -> __m256i {
        // SAFETY: the row has the block.
        unsafe { S::codes(block::<S>(row, k), k % QK / 32) }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn terms(self, scales: [f32; 16], k: usize) -> [Terms; 2] {
        let g = k % QK / 32;
        let places = if S::ONE_SCALE { [g, g] } else { [2 * g, 2 * g + 1] };
        places.map(|at| Terms { scale: _mm256_set1_ps(scales[at]), offset: _mm256_setzero_ps() })
    }
}

/// The f16 number at `at`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn half<const N: usize>(block: &[u8; N], at: usize) -> f32 {
    from_half(short(block, at))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn from_half(bits: u16) -> f32 {
    _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits.into())))
}

#[inline(always)]
fn short<const N: usize>(block: &[u8; N], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

#[inline(always)]
fn word<const N: usize>(block: &[u8; N], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

/// One scale per 32 values.
#[inline(always)]
fn eight(scale: impl Fn(usize) -> f32) -> [f32; 16] {
    std::array::from_fn(|g| if g < 8 { scale(g) } else { 0.0 })
}

/// Four points of eight values.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn points_of_eight(table: &[u8], number: impl Fn(usize) -> usize) -> __m256i {
    let (points, _) = table.as_chunks::<8>();
    let point = |l| i64::from_le_bytes(points[number(l)]);
    _mm256_setr_epi64x(point(0), point(1), point(2), point(3))
}

/// Eight points of four values.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn points_of_four(table: &[u8], number: impl Fn(usize) -> usize) -> __m256i {
    let (points, _) = table.as_chunks::<4>();
    let point = |l| i32::from_le_bytes(points[number(l)]);
    _mm256_setr_epi32(point(0), point(1), point(2), point(3), point(4), point(5), point(6), point(7))
}

/// For each seven stored signs, the eight signs: the last one makes the number of minus signs even.
static EVEN_SIGNS: [u8; 128] = {
    let mut signs = [0; 128];
    let mut stored = 0;
    while stored < 128 {
        signs[stored] = stored as u8 | ((stored.count_ones() as u8 & 1) << 7);
        stored += 1;
    }
    signs
};

/// The signs of 32 values, from four times seven.
#[inline(always)]
fn even_signs(stored: impl Fn(usize) -> u32) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|l| EVEN_SIGNS[(stored(l) & 127) as usize]))
}

/// Negates the values whose bits are set, and adds the excess.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn with_signs(values: __m256i, signs: u32, excess: u8) -> __m256i {
    let minus = expand_bits(signs);
    let values = _mm256_sub_epi8(_mm256_xor_si256(values, minus), minus);
    _mm256_add_epi8(values, _mm256_set1_epi8(excess.cast_signed()))
}

/// Defines a format: its block, bits and excess, and whether a scale has 32 values.
macro_rules! small_codes {
    ($($name:ident: $bytes:literal, $bits:literal, $excess:literal, $one_scale:literal,
        |$block:ident| $scales:expr, |$g:ident, $offset:pat_param| $codes:expr;)+) => {$(
        #[derive(Clone, Copy)]
        pub(crate) struct $name;

        impl SmallCodes for $name {
            type Block = [u8; $bytes];
            const BITS: u32 = $bits;
            const EXCESS: u8 = $excess;
            const ONE_SCALE: bool = $one_scale;

            #[inline]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn scales($block: &[u8; $bytes]) -> [f32; 16] {
                $scales
            }

            #[inline]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn codes($block: &[u8; $bytes], $g: usize) -> __m256i {
                let $offset: u8 = $excess;
                $codes
            }
        }
    )+};
}

small_codes! {
    Iq2Xxs: 66, 7, 64, true, |block| {
        let d = half(block, 0);
        eight(|g| (d * (0.5 + (word(block, 6 + 8 * g) >> 28) as f32)) * 0.25)
    }, |g, excess| {
        let values = points_of_eight(IQ2_XXS, |l| block[2 + 8 * g + l].into());
        let signs = word(block, 6 + 8 * g);
        with_signs(values, even_signs(|l| signs >> (7 * l)), excess)
    };
    Iq2Xs: 74, 7, 64, false, |block| {
        let d = half(block, 0);
        std::array::from_fn(|s| (d * (0.5 + f32::from((block[66 + s / 2] >> (4 * (s % 2))) & 15))) * 0.25)
    }, |g, excess| {
        let codes: [u16; 4] = std::array::from_fn(|l| short(block, 2 + 8 * g + 2 * l));
        let values = points_of_eight(IQ2_XS, |l| (codes[l] & 511).into());
        with_signs(values, even_signs(|l| (codes[l] >> 9).into()), excess)
    };
    Iq2S: 82, 7, 64, false, |block| {
        let d = half(block, 0);
        std::array::from_fn(|s| (d * (0.5 + f32::from((block[74 + s / 2] >> (4 * (s % 2))) & 15))) * 0.25)
    }, |g, excess| {
        let high = usize::from(block[66 + g]);
        let number = |l: usize| usize::from(block[2 + 4 * g + l]) | ((high >> (2 * l)) & 3) << 8;
        with_signs(points_of_eight(IQ2_S, number), word(block, 34 + 4 * g), excess)
    };
    Iq3Xxs: 98, 7, 64, true, |block| {
        let d = half(block, 0);
        eight(|g| (d * (0.5 + (word(block, 66 + 4 * g) >> 28) as f32)) * 0.5)
    }, |g, excess| {
        let values = points_of_four(IQ3_XXS, |l| block[2 + 8 * g + l].into());
        let signs = word(block, 66 + 4 * g);
        with_signs(values, even_signs(|l| signs >> (7 * l)), excess)
    };
    Iq3S: 110, 5, 16, true, |block| {
        let d = half(block, 0);
        eight(|g| d * (1.0 + 2.0 * f32::from((block[106 + g / 2] >> (4 * (g % 2))) & 15)))
    }, |g, excess| {
        let high = usize::from(block[66 + g]);
        let number = |l: usize| usize::from(block[2 + 8 * g + l]) | ((high >> l) & 1) << 8;
        with_signs(points_of_four(IQ3_S, number), word(block, 74 + 4 * g), excess)
    };
    Iq1S: 50, 5, 16, true, |block| {
        let d = half(block, 0);
        eight(|g| d * f32::from(2 * ((short(block, 34 + 2 * g) >> 12) & 7) + 1) * EIGHTH)
    }, |g, excess| {
        let high = usize::from(short(block, 34 + 2 * g));
        let number = |l: usize| usize::from(block[2 + 4 * g + l]) | ((high >> (3 * l)) & 7) << 8;
        let delta = _mm256_set1_epi8(if high & 0x8000 == 0 { 1 } else { -1 });
        eighths(points_of_eight(IQ1_S, number), delta, excess)
    };
    Iq1M: 56, 5, 16, false, |block| {
        let bits = (0..4).fold(0, |bits, t| bits | (short(block, 48 + 2 * t) >> 12) << (4 * t));
        let d = from_half(bits);
        std::array::from_fn(|s| {
            let scale = (short(block, 48 + s / 4 * 2) >> (3 * (s % 4))) & 7;
            d * f32::from(2 * scale + 1) * EIGHTH
        })
    }, |g, excess| {
        let nibble = |l: usize| usize::from(block[32 + 2 * g + l / 2] >> (4 * (l % 2))) & 15;
        let number = |l: usize| usize::from(block[4 * g + l]) | (nibble(l) & 7) << 8;
        let delta = |l| if nibble(l) & 8 == 0 { 0x0101_0101_0101_0101 } else { -1 };
        let delta = _mm256_setr_epi64x(delta(0), delta(1), delta(2), delta(3));
        eighths(points_of_eight(IQ1_S, number), delta, excess)
    };
    Tq1: 54, 2, 1, true, |block| {
        let d = half(block, 52);
        eight(|_| d)
    }, |g, _| base_three(block, g);
    Tq2: 66, 2, 1, true, |block| {
        let d = half(block, 64);
        eight(|_| d)
    }, |g, _| {
        // SAFETY: 32 of the block's bytes.
        let bytes = unsafe { _mm256_loadu_si256(block[32 * (g / 4)..][..32].as_ptr().cast()) };
        let codes = _mm256_srl_epi16(bytes, _mm_cvtsi32_si128(2 * (g % 4) as i32));
        _mm256_and_si256(codes, _mm256_set1_epi8(3))
    };
}

/// The values of IQ1 types are eighths: eight times the point, plus or minus one.
const EIGHTH: f32 = 0.125;

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn eighths(points: __m256i, delta: __m256i, excess: u8) -> __m256i {
    // Mask the bits of the neighbouring byte.
    let values = _mm256_and_si256(_mm256_slli_epi16::<3>(points), _mm256_set1_epi8(-8));
    _mm256_add_epi8(_mm256_add_epi8(values, delta), _mm256_set1_epi8(excess.cast_signed()))
}

/// The factors that bring a digit of each byte to the front, for the groups of TQ1_0.
static DIGITS: [[u8; 32]; 8] = {
    const POWERS: [u8; 5] = [1, 3, 9, 27, 81];
    let mut digits = [[0; 32]; 8];
    let mut k = 0;
    while k < 256 {
        // 160 values have 32 bytes, 80 have sixteen and sixteen have four.
        let power = match k {
            0..160 => k / 32,
            160..240 => (k - 160) / 16,
            _ => (k - 240) / 4,
        };
        digits[k / 32][k % 32] = POWERS[power];
        k += 1;
    }
    digits
};

/// The codes of TQ1_0: digits of base three, of which each byte has up to five.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn base_three(block: &[u8; 54], g: usize) -> __m256i {
    // SAFETY: sixteen of the block's bytes.
    let sixteen = |at: usize| unsafe { _mm_loadu_si128(block[at..][..16].as_ptr().cast()) };
    let bytes = match g {
        0..5 => _mm256_set_m128i(sixteen(16), sixteen(0)),
        5 | 6 => _mm256_set_m128i(sixteen(32), sixteen(32)),
        _ => _mm256_set_m128i(_mm_set1_epi32(word(block, 48).cast_signed()), sixteen(32)),
    };
    // SAFETY: 32 bytes.
    let factors = unsafe { _mm256_loadu_si256(DIGITS[g].as_ptr().cast()) };
    let low = _mm256_set1_epi16(0xff);
    // The front of a byte is three times the byte, without its lowest eight bits.
    let digits = |bytes, factors| {
        let shifted = _mm256_and_si256(_mm256_mullo_epi16(bytes, factors), low);
        _mm256_srli_epi16::<8>(_mm256_mullo_epi16(shifted, _mm256_set1_epi16(3)))
    };
    let even = digits(_mm256_and_si256(bytes, low), _mm256_and_si256(factors, low));
    let odd = digits(_mm256_srli_epi16::<8>(bytes), _mm256_srli_epi16::<8>(factors));
    _mm256_or_si256(even, _mm256_slli_epi16::<8>(odd))
}

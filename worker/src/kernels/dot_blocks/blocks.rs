//! ggml's blocks of 32 with AVX-512, eight at a time.
#![allow(unsafe_code)] // Reads packed bytes through pointers at any alignment.

use std::arch::x86_64::*;

use super::avx512::{At, Unpack};

/// A half from each of eight blocks of so many bytes, in the order of lanes.
///
/// # Safety
/// The blocks are there.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
unsafe fn halves(at: *const u8, bytes: usize) -> __m256 {
    let half = |block: usize| {
        // SAFETY: by the caller's promise; an unaligned read.
        i32::from(unsafe { at.add(block * bytes).cast::<i16>().read_unaligned() })
    };
    let halves = _mm_cvtsi32_si128(half(0) & 0xffff);
    let halves = _mm_insert_epi16::<1>(halves, half(2));
    let halves = _mm_insert_epi16::<2>(halves, half(4));
    let halves = _mm_insert_epi16::<3>(halves, half(6));
    let halves = _mm_insert_epi16::<4>(halves, half(1));
    let halves = _mm_insert_epi16::<5>(halves, half(3));
    let halves = _mm_insert_epi16::<6>(halves, half(5));
    _mm256_cvtph_ps(_mm_insert_epi16::<7>(halves, half(7)))
}

/// The nibbles of sixteen bytes and of sixteen others, the low ones of each first, and nothing above.
///
/// # Safety
/// The bytes are there.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
unsafe fn nibbles(first: *const u8, second: *const u8) -> __m512i {
    // SAFETY: by the caller's promise.
    let (first, second) = unsafe { (_mm_loadu_si128(first.cast()), _mm_loadu_si128(second.cast())) };
    let both = _mm512_mask_broadcast_i32x4(_mm512_broadcast_i32x4(first), 0xff00, second);
    nibbles_of(both)
}

/// Low nibbles in lanes 0 and 2 of four, high ones in 1 and 3.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn nibbles_of(bytes: __m512i) -> __m512i {
    let by = _mm512_setr_epi64(
        0,
        0,
        0x0004_0004_0004_0004,
        0x0004_0004_0004_0004,
        0,
        0,
        0x0004_0004_0004_0004,
        0x0004_0004_0004_0004,
    );
    _mm512_and_si512(_mm512_srlv_epi16(bytes, by), _mm512_set1_epi8(15))
}

/// Each code's entry of a table of sixteen.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn look_up(table: &[u8; 16], codes: __m512i) -> __m512i {
    // SAFETY: sixteen bytes.
    let table = unsafe { _mm_loadu_si128(table.as_ptr().cast()) };
    _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), codes)
}

/// A table of signed bytes, 128 above their values.
const fn above(values: [i8; 16]) -> [u8; 16] {
    let mut table = [0; 16];
    let mut n = 0;
    while n < 16 {
        table[n] = values[n].cast_unsigned() ^ 0x80;
        n += 1;
    }
    table
}

const AROUND_8: [u8; 16] = above([-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7]);
/// Twice the values of E2M1.
pub(super) const E2M1: [u8; 16] = above([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12]);
/// The values of IQ4_NL and IQ4_XS.
pub(super) const NON_LINEAR: [u8; 16] =
    above([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]);

/// Bits of two blocks, one a code.
///
/// # Safety
/// Four bytes are there, twice.
#[inline]
unsafe fn bits(first: *const u8, second: *const u8) -> u64 {
    // SAFETY: by the caller's promise; unaligned reads.
    unsafe {
        u64::from(first.cast::<u32>().read_unaligned())
            | u64::from(second.cast::<u32>().read_unaligned()) << 32
    }
}

/// Formats under one half, or a half and another that is added, which begin a block. `$codes` makes 64 codes of two blocks.
macro_rules! thirty_two {
    ($($name:ident: $bytes:literal, $signed:literal, |$first:ident, $second:ident| $codes:expr;)+) => {$(
        #[derive(Clone, Copy)]
        pub(super) struct $name;

        impl Unpack for $name {
            type Lanes = __m256;
            const SIGNED: bool = $signed;
            const BYTES: usize = 8 * $bytes;

            #[inline]
            #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
            unsafe fn codes(self, at: At) -> [__m512i; 4] {
                std::array::from_fn(|v| {
                    // SAFETY: eight blocks are there, and what is read lies in two of them.
                    unsafe {
                        let $first = at.codes.add(2 * v * $bytes);
                        let $second = $first.add($bytes);
                        $codes
                    }
                })
            }

            #[inline]
            #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
            unsafe fn scales(self, at: At) -> (__m256, __m256) {
                // SAFETY: eight blocks are there, which begin with d and perhaps m.
                let d = unsafe { halves(at.codes, $bytes) };
                if Self::SIGNED {
                    return (d, d);
                }
                // SAFETY: as above.
                let m = unsafe { halves(at.codes.add(2), $bytes) };
                (d, _mm256_xor_ps(m, _mm256_set1_ps(-0.0)))
            }
        }
    )+};
}

thirty_two! {
    Q8_0: 34, true, |a, b| {
        let codes = _mm512_castsi256_si512(_mm256_loadu_si256(a.add(2).cast()));
        let codes = _mm512_inserti64x4::<1>(codes, _mm256_loadu_si256(b.add(2).cast()));
        _mm512_xor_si512(codes, _mm512_set1_epi8(-128))
    };
    Q4_0: 18, true, |a, b| look_up(&AROUND_8, nibbles(a.add(2), b.add(2)));
    Q4_1: 20, false, |a, b| nibbles(a.add(4), b.add(4));
    Q5_0: 22, true, |a, b| {
        // A fifth bit that is set takes nothing off.
        let codes = _mm512_or_si512(nibbles(a.add(6), b.add(6)), _mm512_set1_epi8(112));
        _mm512_mask_blend_epi8(
            bits(a.add(2), b.add(2)),
            codes,
            _mm512_xor_si512(codes, _mm512_set1_epi8((112u8 ^ 128).cast_signed())),
        )
    };
    Q5_1: 24, false, |a, b| {
        let codes = nibbles(a.add(8), b.add(8));
        _mm512_mask_add_epi8(codes, bits(a.add(4), b.add(4)), codes, _mm512_set1_epi8(16))
    };
    Iq4Nl: 18, true, |a, b| look_up(&NON_LINEAR, nibbles(a.add(2), b.add(2)));
}

/// ggml's MXFP4.
#[derive(Clone, Copy)]
pub(super) struct Mxfp4;

impl Unpack for Mxfp4 {
    type Lanes = __m256;
    const SIGNED: bool = true;
    const BYTES: usize = 8 * 17;

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    unsafe fn codes(self, at: At) -> [__m512i; 4] {
        std::array::from_fn(|v| {
            // SAFETY: eight blocks are there; sixteen bytes after the first of each are codes.
            let codes = unsafe { nibbles(at.codes.add(34 * v + 1), at.codes.add(34 * v + 18)) };
            look_up(&E2M1, codes)
        })
    }

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    unsafe fn scales(self, at: At) -> (__m256, __m256) {
        // SAFETY: eight blocks are there.
        let e = |block: usize| i32::from(unsafe { *at.codes.add(17 * block) });
        let scales = e8m0(_mm256_setr_epi32(e(0), e(2), e(4), e(6), e(1), e(3), e(5), e(7)));
        (_mm256_mul_ps(scales, _mm256_set1_ps(0.5)), scales)
    }
}

/// Powers of two from exponents; the last one is no number.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn e8m0(codes: __m256i) -> __m256 {
    // The smallest is half of what a float without leading zeros can be.
    let bits = _mm256_max_epi32(_mm256_slli_epi32::<23>(codes), _mm256_set1_epi32(0x0040_0000));
    let none = _mm256_cmpeq_epi32(codes, _mm256_set1_epi32(255));
    _mm256_castsi256_ps(_mm256_or_si256(bits, none))
}

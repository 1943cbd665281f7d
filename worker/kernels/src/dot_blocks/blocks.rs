//! ggml's blocks of 32 values with AVX-512, eight blocks of each of four rows at a time.
#![allow(unsafe_code)] // Reads packed bytes through pointers at any alignment.

use std::arch::x86_64::*;

use super::four_rows::{BlockOfFourRows, Unpack};

/// The low nibbles of bytes, and the high nibbles.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn nibbles(bytes: __m512i) -> [__m512i; 2] {
    let fifteen = _mm512_set1_epi8(15);
    [_mm512_and_si512(bytes, fifteen), _mm512_and_si512(_mm512_srli_epi16::<4>(bytes), fifteen)]
}

/// Looks up each code in a table of sixteen.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn look_up(table: &[u8; 16], codes: __m512i) -> __m512i {
    // SAFETY: sixteen bytes.
    let table = unsafe { _mm_loadu_si128(table.as_ptr().cast()) };
    _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), codes)
}

/// Converts a table of signed bytes to excess 128.
const fn above(values: [i8; 16]) -> [u8; 16] {
    let mut table = [0; 16];
    let mut n = 0;
    while n < 16 {
        table[n] = values[n].cast_unsigned() ^ 0x80;
        n += 1;
    }
    table
}

/// Twice the values of E2M1.
pub(super) const E2M1: [u8; 16] = above([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12]);
/// The values of IQ4_NL and IQ4_XS.
pub(super) const NON_LINEAR: [u8; 16] =
    above([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]);

/// Converts the low f16 of each lane to a float.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn halves(lanes: __m512i) -> __m512 {
    _mm512_cvtph_ps(_mm512_cvtepi32_epi16(lanes))
}

/// The same, negated.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn negative(of: __m512) -> __m512 {
    _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(of), _mm512_set1_epi32(i32::MIN)))
}

/// Adds the fifth bits to codes, as 16. The bits are four bytes at `place` in each block, for the first and
/// the last sixteen codes.
///
/// # Safety
/// The bytes exist.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
unsafe fn add_fifth_bits(at: BlockOfFourRows, place: usize, codes: [__m512i; 2]) -> [__m512i; 2] {
    // SAFETY: guaranteed by the caller.
    let bits = |row: usize| u64::from(unsafe { at.codes.row(row).add(place).cast::<u32>().read_unaligned() });
    let rows = [0, 1, 2, 3].map(bits);
    let mask =
        |by: u32| rows.iter().enumerate().fold(0, |m, (row, bits)| m | (bits >> by & 0xffff) << (16 * row));
    let add = |codes, mask| _mm512_mask_add_epi8(codes, mask, codes, _mm512_set1_epi8(16));
    [add(codes[0], mask(0)), add(codes[1], mask(16))]
}

/// Formats with an f16 scale, or an f16 scale and minimum, at the start of each block. `$codes` unpacks the
/// 32 codes of the block at this byte offset, by sixteens.
macro_rules! thirty_two {
    ($($name:ident: $bytes:literal, $excess_shift:expr, |$at:ident, $place:ident| $codes:expr;)+) => {$(
        #[derive(Clone, Copy)]
        pub(super) struct $name;

        impl Unpack for $name {
            type Lanes = [__m512; 2];
            const EXCESS_SHIFT: Option<u32> = $excess_shift;
            const BYTES: usize = 8 * $bytes;

            #[inline]
            #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
            unsafe fn codes(self, $at: BlockOfFourRows) -> [__m512i; 16] {
                let mut codes = [_mm512_setzero_si512(); 16];
                for (block, codes) in codes.as_chunks_mut::<2>().0.iter_mut().enumerate() {
                    let $place = block * $bytes;
                    // SAFETY: the read is within that block of each row.
                    *codes = unsafe { $codes };
                }
                codes
            }

            #[inline]
            #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
            unsafe fn scales(self, at: BlockOfFourRows) -> ([__m512; 2], [__m512; 2]) {
                // SAFETY: there are eight blocks, which begin with d and, in some formats, m.
                let heads = unsafe { [at.codes.heads(0, 2 * $bytes), at.codes.heads($bytes, 2 * $bytes)] };
                let d = heads.map(|head| halves(head));
                if Self::EXCESS_SHIFT.is_some() {
                    return (d, d);
                }
                (d, heads.map(|head| negative(halves(_mm512_srli_epi32::<16>(head)))))
            }
        }
    )+};
}

thirty_two! {
    Q8_0: 34, Some(0), |at, place| {
        let sixteen = |n: usize| _mm512_xor_si512(at.codes.sixteen(place + 2 + 16 * n), _mm512_set1_epi8(-128));
        [sixteen(0), sixteen(1)]
    };
    Q4_0: 18, Some(4), |at, place| nibbles(at.codes.sixteen(place + 2));
    Q4_1: 20, None, |at, place| nibbles(at.codes.sixteen(place + 4));
    Q5_0: 22, Some(3), |at, place| add_fifth_bits(at, place + 2, nibbles(at.codes.sixteen(place + 6)));
    Q5_1: 24, None, |at, place| add_fifth_bits(at, place + 4, nibbles(at.codes.sixteen(place + 8)));
    Iq4Nl: 18, Some(0), |at, place| nibbles(at.codes.sixteen(place + 2)).map(|codes| look_up(&NON_LINEAR, codes));
}

/// ggml's MXFP4.
#[derive(Clone, Copy)]
pub(super) struct Mxfp4Block;

impl Unpack for Mxfp4Block {
    type Lanes = [__m512; 2];
    const EXCESS_SHIFT: Option<u32> = Some(0);
    const BYTES: usize = 8 * 17;

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    unsafe fn codes(self, at: BlockOfFourRows) -> [__m512i; 16] {
        let mut codes = [_mm512_setzero_si512(); 16];
        for (block, codes) in codes.as_chunks_mut::<2>().0.iter_mut().enumerate() {
            // SAFETY: sixteen bytes after the first of a block are codes.
            let bytes = unsafe { at.codes.sixteen(17 * block + 1) };
            *codes = nibbles(bytes).map(|codes| look_up(&E2M1, codes));
        }
        codes
    }

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    unsafe fn scales(self, at: BlockOfFourRows) -> ([__m512; 2], [__m512; 2]) {
        // SAFETY: there are eight blocks.
        let exponents = unsafe { [at.codes.heads(0, 34), at.codes.heads(17, 34)] };
        let scale = |head| half_of_e8m0(_mm512_and_si512(head, _mm512_set1_epi32(255)));
        let scales = exponents.map(scale);
        (scales, scales)
    }
}

/// Half of each power of two, for codes that are twice their values. The last exponent is NaN.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn half_of_e8m0(exponents: __m512i) -> __m512 {
    // The smallest is half the smallest normal float.
    let bits = _mm512_max_epi32(_mm512_slli_epi32::<23>(exponents), _mm512_set1_epi32(0x0040_0000));
    let none = _mm512_cmpeq_epi32_mask(exponents, _mm512_set1_epi32(255));
    let powers = _mm512_castsi512_ps(_mm512_mask_set1_epi32(bits, none, 0x7fc0_0000));
    _mm512_mul_ps(powers, _mm512_set1_ps(0.5))
}

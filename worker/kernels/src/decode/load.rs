//! Reading of packed rows with AVX2 and F16C, 32 values at a time: the trait of a format, and the formats
//! without blocks.
#![allow(unsafe_code)] // Reads packed bytes through pointers at any alignment.

use std::arch::x86_64::*;

use super::super::dtype::Float;
use super::super::rows::Rows;
use super::blocks::e4m3;

/// Pointers to the parts of one row.
#[derive(Clone, Copy)]
pub(crate) struct RowAt {
    pub(crate) codes: *const u8,
    pub(crate) scales: *const u8,
    pub(crate) biases: *const u8,
    pub(crate) factor: f32,
}

impl RowAt {
    #[inline]
    pub(crate) fn new(rows: &Rows<'_>, row: usize) -> Self {
        let (codes, scales, biases) = rows.row(row);
        let (scales, biases) = (scales.as_ptr(), biases.as_ptr());
        Self { codes: codes.as_ptr(), scales, biases, factor: rows.factor() }
    }

    /// The next row of a format without separate scales. Use it only if it exists.
    #[inline]
    pub(crate) fn next(self, row_bytes: usize) -> Self {
        Self { codes: self.codes.wrapping_add(row_bytes), ..self }
    }
}

/// Decodes rows of one format.
pub(crate) trait Load: Copy {
    /// The data that the values of a group share, prepared for use.
    type Group: Copy;

    /// Values per group, a multiple of 32.
    fn group_len(self) -> usize;

    /// Reads the group that begins at value k, a multiple of the group length.
    ///
    /// # Safety
    /// The processor has AVX2 and F16C. The row is of this format and contains the group.
    unsafe fn group(self, row: RowAt, k: usize) -> Self::Group;

    /// Decodes values k..k + 32 of a group; k is a multiple of 32.
    ///
    /// # Safety
    /// As for `group`. `group` is the group that contains k.
    unsafe fn block(self, row: RowAt, group: Self::Group, k: usize) -> [__m256; 4];

    /// Decodes values k..k + n, n < 32, followed by zeros.
    ///
    /// # Safety
    /// As for `block`, with k + n values. Only rows of floats have tails.
    unsafe fn tail(self, row: RowAt, k: usize, n: usize) -> [__m256; 4];
}

#[derive(Clone, Copy)]
pub(crate) struct F32;
#[derive(Clone, Copy)]
pub(crate) struct F16;
#[derive(Clone, Copy)]
pub(crate) struct BF16;
/// Affine codes with groups of `1 << shift` codes.
#[derive(Clone, Copy)]
pub(crate) struct Affine<const BITS: u8> {
    pub(crate) shift: u32,
    pub(crate) scales: Float,
}

/// Codes of one byte, E4M3 or signed integers, with an f32 scale for each `group` of them, a multiple of 32.
#[derive(Clone, Copy)]
pub(crate) struct ByteCodes<const INTEGERS: bool> {
    pub(crate) group: usize,
}

/// The common part of float loaders of this size: no groups, and tails through a padded copy.
macro_rules! float_rows {
    ($size:literal) => {
        type Group = ();

        #[inline(always)]
        fn group_len(self) -> usize {
            32
        }

        #[inline(always)]
        unsafe fn group(self, _: RowAt, _: usize) {}

        #[inline]
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn tail(self, row: RowAt, k: usize, n: usize) -> [__m256; 4] {
            let mut padded = [0u8; 32 * $size];
            // SAFETY: the row has n < 32 values of this size from k; the copy is as large as a block.
            unsafe {
                std::ptr::copy_nonoverlapping(row.codes.add(k * $size), padded.as_mut_ptr(), n * $size)
            };
            // SAFETY: the copy is a whole block.
            unsafe { self.block(RowAt { codes: padded.as_ptr(), ..row }, (), 0) }
        }
    };
}

impl Load for F32 {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn block(self, row: RowAt, (): (), k: usize) -> [__m256; 4] {
        // SAFETY: 128 bytes from 4 k belong to the row; the load accepts any alignment.
        std::array::from_fn(|v| unsafe { _mm256_loadu_ps(row.codes.add(4 * (k + 8 * v)).cast()) })
    }
    float_rows!(4);
}

impl Load for F16 {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn block(self, row: RowAt, (): (), k: usize) -> [__m256; 4] {
        // SAFETY: 64 bytes from 2 k belong to the row.
        std::array::from_fn(|v| unsafe {
            _mm256_cvtph_ps(_mm_loadu_si128(row.codes.add(2 * (k + 8 * v)).cast()))
        })
    }
    float_rows!(2);
}

impl Load for BF16 {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn block(self, row: RowAt, (): (), k: usize) -> [__m256; 4] {
        std::array::from_fn(|v| {
            // SAFETY: 64 bytes from 2 k belong to the row.
            let halves = unsafe { _mm_loadu_si128(row.codes.add(2 * (k + 8 * v)).cast()) };
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(halves)))
        })
    }
    float_rows!(2);
}

impl<const BITS: u8> Load for Affine<BITS> {
    /// Scale and bias, each in eight lanes.
    type Group = (__m256, __m256);

    #[inline(always)]
    fn group_len(self) -> usize {
        1 << self.shift
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn group(self, row: RowAt, k: usize) -> (__m256, __m256) {
        let group = k >> self.shift;
        // SAFETY: a row has a scale and a bias for each of its groups.
        unsafe { (broadcast(self.scales, row.scales, group), broadcast(self.scales, row.biases, group)) }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn block(self, row: RowAt, (scale, bias): (__m256, __m256), k: usize) -> [__m256; 4] {
        std::array::from_fn(|v| {
            let codes = if BITS == 4 {
                // SAFETY: four bytes, eight codes, from (k + 8 v) / 2 belong to the row.
                let eight = unsafe { row.codes.add(k / 2 + 4 * v).cast::<i32>().read_unaligned() };
                // The lowest bits come first: code n of the eight is in bits 4 n and up.
                let shifted = _mm256_srlv_epi32(
                    _mm256_set1_epi32(eight),
                    _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28),
                );
                _mm256_and_si256(shifted, _mm256_set1_epi32(15))
            } else {
                // SAFETY: eight bytes from k + 8 v belong to the row.
                _mm256_cvtepu8_epi32(unsafe { _mm_loadl_epi64(row.codes.add(k + 8 * v).cast()) })
            };
            _mm256_add_ps(_mm256_mul_ps(scale, _mm256_cvtepi32_ps(codes)), bias)
        })
    }

    unsafe fn tail(self, _: RowAt, _: usize, _: usize) -> [__m256; 4] {
        unreachable!("rows of affine codes are whole groups")
    }
}

impl<const INTEGERS: bool> Load for ByteCodes<INTEGERS> {
    type Group = __m256;

    /// A part of a group, because the last group of a row may be shorter.
    #[inline(always)]
    fn group_len(self) -> usize {
        32
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn group(self, row: RowAt, k: usize) -> __m256 {
        // SAFETY: a row has a scale for each of its groups, also for a shorter one.
        unsafe { broadcast(Float::F32, row.scales, k / self.group) }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn block(self, row: RowAt, scale: __m256, k: usize) -> [__m256; 4] {
        std::array::from_fn(|v| {
            // SAFETY: eight bytes from k + 8 v belong to the row.
            let codes = unsafe { _mm_loadl_epi64(row.codes.add(k + 8 * v).cast()) };
            let numbers = match INTEGERS {
                true => _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes)),
                false => e4m3(_mm_cvtepu8_epi16(codes)),
            };
            _mm256_mul_ps(scale, numbers)
        })
    }

    unsafe fn tail(self, _: RowAt, _: usize, _: usize) -> [__m256; 4] {
        unreachable!("rows have multiples of 32 codes")
    }
}

/// Broadcasts value `index` of packed floats to eight lanes.
///
/// # Safety
/// The value exists.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn broadcast(float: Float, at: *const u8, index: usize) -> __m256 {
    if float == Float::F32 {
        // SAFETY: guaranteed by the caller; the read is unaligned.
        return _mm256_set1_ps(unsafe { at.cast::<f32>().add(index).read_unaligned() });
    }
    // SAFETY: as above.
    let bits = _mm256_set1_epi16(unsafe { at.cast::<i16>().add(index).read_unaligned() });
    match float {
        Float::F16 => _mm256_cvtph_ps(_mm256_castsi256_si128(bits)),
        _ => _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits)),
    }
}

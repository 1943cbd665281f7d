//! Decoding with AVX-512: 32 packed values to two vectors, for products with few columns. The values are
//! bit-identical with those of `decode`.
#![allow(unsafe_code)] // Reads packed bytes through pointers at any alignment.

use std::arch::x86_64::*;

use super::blocks::{Codes, Terms, values};
use super::load::{BF16, F16, F32, RowAt};

/// Like `load::Load`, with vectors of sixteen lanes.
pub(crate) trait Load: super::load::Load {
    type Group: Copy;

    /// # Safety
    /// As for `load::Load::group`, with AVX-512.
    unsafe fn group(self, row: RowAt, k: usize) -> <Self as Load>::Group;

    /// # Safety
    /// As for `load::Load::block`, with AVX-512.
    unsafe fn block(self, row: RowAt, group: <Self as Load>::Group, k: usize) -> [__m512; 2];
}

impl Load for F32 {
    type Group = ();

    #[inline(always)]
    unsafe fn group(self, _: RowAt, _: usize) {}

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl")]
    unsafe fn block(self, row: RowAt, (): (), k: usize) -> [__m512; 2] {
        // SAFETY: 128 bytes from 4 k belong to the row; the load accepts any alignment.
        std::array::from_fn(|v| unsafe { _mm512_loadu_ps(row.codes.add(4 * (k + 16 * v)).cast()) })
    }
}

impl Load for F16 {
    type Group = ();

    #[inline(always)]
    unsafe fn group(self, _: RowAt, _: usize) {}

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl")]
    unsafe fn block(self, row: RowAt, (): (), k: usize) -> [__m512; 2] {
        // SAFETY: 64 bytes from 2 k belong to the row.
        std::array::from_fn(|v| unsafe {
            _mm512_cvtph_ps(_mm256_loadu_si256(row.codes.add(2 * (k + 16 * v)).cast()))
        })
    }
}

impl Load for BF16 {
    type Group = ();

    #[inline(always)]
    unsafe fn group(self, _: RowAt, _: usize) {}

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl")]
    unsafe fn block(self, row: RowAt, (): (), k: usize) -> [__m512; 2] {
        std::array::from_fn(|v| {
            // SAFETY: 64 bytes from 2 k belong to the row.
            let halves = unsafe { _mm256_loadu_si256(row.codes.add(2 * (k + 16 * v)).cast()) };
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves)))
        })
    }
}

impl<C: Codes> Load for C {
    type Group = C::Group;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl")]
    unsafe fn group(self, row: RowAt, k: usize) -> C::Group {
        // SAFETY: the same contract.
        unsafe { Codes::group(self, row, k) }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl")]
    unsafe fn block(self, row: RowAt, group: C::Group, k: usize) -> [__m512; 2] {
        // SAFETY: the same contract.
        let (codes, terms) = unsafe {
            let codes = if C::TABLE.is_some() { self.codes(row, k) } else { values(self, row, k) };
            (codes, self.terms(group, k))
        };
        let sixteens = [_mm256_castsi256_si128(codes), _mm256_extracti128_si256::<1>(codes)];
        let spread = |v: __m256| _mm512_broadcastss_ps(_mm256_castps256_ps128(v));
        std::array::from_fn(|v| {
            let numbers = |codes: __m512i| {
                let Terms { scale, offset } = terms[v];
                let mut numbers = _mm512_mul_ps(spread(scale), _mm512_cvtepi32_ps(codes));
                if C::HAS_OFFSET {
                    numbers = _mm512_sub_ps(numbers, spread(offset));
                }
                if C::HAS_FACTOR {
                    numbers = _mm512_mul_ps(numbers, _mm512_set1_ps(row.factor));
                }
                numbers
            };
            let Some(table) = C::TABLE else { return numbers(_mm512_cvtepi8_epi32(sixteens[v])) };
            // Compute the values of all sixteen codes, then look them up by the lowest four bits of each
            // lane.
            // SAFETY: sixteen bytes.
            let table = unsafe { _mm_loadu_si128(table.as_ptr().cast()) };
            let values = numbers(_mm512_cvtepi8_epi32(table));
            _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(sixteens[v]), values)
        })
    }
}

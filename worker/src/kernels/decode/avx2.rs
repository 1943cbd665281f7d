//! Decoding with AVX2 and F16C: 32 packed numbers to four vectors, shared by the other operations.
#![allow(unsafe_code)] // Reads packed bytes through pointers at any alignment.

use std::arch::x86_64::*;

use super::super::rows::{BLOCK_Q8_0, Kind, Rows};
use super::super::weight::Float;

/// Where the parts of one row begin.
#[derive(Clone, Copy)]
pub(in super::super) struct RowAt {
    codes: *const u8,
    scales: *const u8,
    biases: *const u8,
}

impl RowAt {
    #[inline]
    pub(in super::super) fn new(rows: &Rows<'_>, row: usize) -> Self {
        let (codes, scales, biases) = rows.row(row);
        Self { codes: codes.as_ptr(), scales: scales.as_ptr(), biases: biases.as_ptr() }
    }
}

/// Decodes one kind of row.
pub(in super::super) trait Load: Copy {
    /// Numbers k..k + 32, k a multiple of 32.
    ///
    /// # Safety
    /// AVX2 and F16C are there, and the row is of this kind and has k + 32 numbers.
    unsafe fn block(self, row: RowAt, k: usize) -> [__m256; 4];

    /// Numbers k..k + n, n < 32, and zeros after them.
    ///
    /// # Safety
    /// As for `block`, with k + n numbers. Only rows of floats have tails.
    unsafe fn tail(self, row: RowAt, k: usize, n: usize) -> [__m256; 4];
}

#[derive(Clone, Copy)]
pub(in super::super) struct F32;
#[derive(Clone, Copy)]
pub(in super::super) struct F16;
#[derive(Clone, Copy)]
pub(in super::super) struct BF16;
#[derive(Clone, Copy)]
pub(in super::super) struct Q8_0;
/// Affine codes; a group has `1 << shift` of them.
#[derive(Clone, Copy)]
pub(in super::super) struct Affine<const BITS: u8> {
    pub(in super::super) shift: u32,
    pub(in super::super) scales: Float,
}

/// Runs an expression with the loader of a kind.
macro_rules! with_loader {
    ($kind:expr, $loader:ident => $run:expr) => {{
        use $crate::kernels::decode::avx2 as loaders;
        use $crate::kernels::rows::Kind;
        use $crate::kernels::weight::Float;
        match $kind {
            Kind::Float(Float::F32) => {
                let $loader = loaders::F32;
                $run
            }
            Kind::Float(Float::F16) => {
                let $loader = loaders::F16;
                $run
            }
            Kind::Float(Float::BF16) => {
                let $loader = loaders::BF16;
                $run
            }
            Kind::Q8_0 => {
                let $loader = loaders::Q8_0;
                $run
            }
            Kind::Affine { bits: 4, group, scales } => {
                let $loader = loaders::Affine::<4> { shift: group.trailing_zeros(), scales };
                $run
            }
            Kind::Affine { group, scales, .. } => {
                let $loader = loaders::Affine::<8> { shift: group.trailing_zeros(), scales };
                $run
            }
        }
    }};
}
pub(in super::super) use with_loader;

/// The tail of a row of floats of `SIZE` bytes, by way of a padded copy.
macro_rules! float_tail {
    ($size:literal) => {
        #[inline]
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn tail(self, row: RowAt, k: usize, n: usize) -> [__m256; 4] {
            let mut padded = [0u8; 32 * $size];
            // SAFETY: the row has n < 32 more numbers of this size from k; the copy is as large as a block.
            unsafe {
                std::ptr::copy_nonoverlapping(row.codes.add(k * $size), padded.as_mut_ptr(), n * $size)
            };
            // SAFETY: a whole block of zeros and numbers.
            unsafe { self.block(RowAt { codes: padded.as_ptr(), ..row }, 0) }
        }
    };
}

impl Load for F32 {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn block(self, row: RowAt, k: usize) -> [__m256; 4] {
        // SAFETY: 128 bytes from 4 k belong to the row; the load takes any alignment.
        std::array::from_fn(|v| unsafe { _mm256_loadu_ps(row.codes.add(4 * (k + 8 * v)).cast()) })
    }
    float_tail!(4);
}

impl Load for F16 {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn block(self, row: RowAt, k: usize) -> [__m256; 4] {
        // SAFETY: 64 bytes from 2 k belong to the row.
        std::array::from_fn(|v| unsafe {
            _mm256_cvtph_ps(_mm_loadu_si128(row.codes.add(2 * (k + 8 * v)).cast()))
        })
    }
    float_tail!(2);
}

impl Load for BF16 {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn block(self, row: RowAt, k: usize) -> [__m256; 4] {
        std::array::from_fn(|v| {
            // SAFETY: 64 bytes from 2 k belong to the row.
            let halves = unsafe { _mm_loadu_si128(row.codes.add(2 * (k + 8 * v)).cast()) };
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(halves)))
        })
    }
    float_tail!(2);
}

impl Load for Q8_0 {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn block(self, row: RowAt, k: usize) -> [__m256; 4] {
        // SAFETY: block k / 32 belongs to the row.
        let block = unsafe { row.codes.add(k / 32 * BLOCK_Q8_0) };
        // SAFETY: its first two bytes.
        let d = _mm256_set1_ps(unsafe { float(Float::F16, block, 0) });
        std::array::from_fn(|v| {
            // SAFETY: eight of the 32 bytes after them.
            let codes = _mm256_cvtepi8_epi32(unsafe { _mm_loadl_epi64(block.add(2 + 8 * v).cast()) });
            _mm256_mul_ps(d, _mm256_cvtepi32_ps(codes))
        })
    }

    unsafe fn tail(self, _: RowAt, _: usize, _: usize) -> [__m256; 4] {
        unreachable!("rows of Q8_0 are whole blocks")
    }
}

impl<const BITS: u8> Load for Affine<BITS> {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn block(self, row: RowAt, k: usize) -> [__m256; 4] {
        let group = k >> self.shift;
        // SAFETY: a row has a scale and a bias for each group of its numbers.
        let scale = _mm256_set1_ps(unsafe { float(self.scales, row.scales, group) });
        // SAFETY: as above.
        let bias = _mm256_set1_ps(unsafe { float(self.scales, row.biases, group) });
        let codes: [__m128i; 4] = if BITS == 4 {
            // SAFETY: 16 bytes from k / 2 belong to the row.
            let bytes = unsafe { _mm_loadu_si128(row.codes.add(k / 2).cast()) };
            let mask = _mm_set1_epi8(15);
            let even = _mm_and_si128(bytes, mask);
            let odd = _mm_and_si128(_mm_srli_epi16::<4>(bytes), mask);
            let (low, high) = (_mm_unpacklo_epi8(even, odd), _mm_unpackhi_epi8(even, odd));
            [low, _mm_srli_si128::<8>(low), high, _mm_srli_si128::<8>(high)]
        } else {
            // SAFETY: 32 bytes from k belong to the row.
            std::array::from_fn(|v| unsafe { _mm_loadl_epi64(row.codes.add(k + 8 * v).cast()) })
        };
        codes.map(|codes| {
            let q = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(codes));
            _mm256_add_ps(_mm256_mul_ps(scale, q), bias)
        })
    }

    unsafe fn tail(self, _: RowAt, _: usize, _: usize) -> [__m256; 4] {
        unreachable!("rows of affine codes are whole groups")
    }
}

/// Number `index` of packed floats.
///
/// # Safety
/// It is there.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn float(float: Float, at: *const u8, index: usize) -> f32 {
    // SAFETY: by the caller's promise; unaligned reads.
    unsafe {
        match float {
            Float::F32 => at.cast::<f32>().add(index).read_unaligned(),
            Float::BF16 => f32::from_bits(u32::from(at.cast::<u16>().add(index).read_unaligned()) << 16),
            Float::F16 => {
                let bits = at.cast::<u16>().add(index).read_unaligned();
                _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(bits))))
            }
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(in super::super) fn decode_row(rows: &Rows<'_>, row: usize, to: &mut [f32]) {
    assert!(to.len() >= rows.cols());
    with_loader!(rows.kind(), loader => decode(loader, RowAt::new(rows, row), &mut to[..rows.cols()]));
}

#[target_feature(enable = "avx2,fma,f16c")]
fn decode<L: Load>(loader: L, row: RowAt, to: &mut [f32]) {
    let whole = to.len() / 32 * 32;
    for k in (0..whole).step_by(32) {
        // SAFETY: the row has as many numbers as `to`, and k + 32 is within both.
        let block = unsafe { loader.block(row, k) };
        for (v, numbers) in block.into_iter().enumerate() {
            // SAFETY: as above.
            unsafe { _mm256_storeu_ps(to.as_mut_ptr().add(k + 8 * v), numbers) };
        }
    }
    if whole < to.len() {
        // SAFETY: fewer than 32 numbers are left in the row.
        let block = unsafe { loader.tail(row, whole, to.len() - whole) };
        let mut padded = [0.0f32; 32];
        for (v, numbers) in block.into_iter().enumerate() {
            // SAFETY: 8 v + 8 <= 32.
            unsafe { _mm256_storeu_ps(padded.as_mut_ptr().add(8 * v), numbers) };
        }
        let tail = &mut to[whole..];
        tail.copy_from_slice(&padded[..tail.len()]);
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(in super::super) fn encode_row(kind: Kind, from: &[f32], to: &mut [u8]) {
    if kind != Kind::Float(Float::F16) || !from.len().is_multiple_of(8) {
        return super::encode_scalar(kind, from, to);
    }
    assert!(to.len() >= 2 * from.len());
    for k in (0..from.len()).step_by(8) {
        // SAFETY: k + 8 numbers are there.
        let numbers = unsafe { _mm256_loadu_ps(from.as_ptr().add(k)) };
        let halves = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(numbers);
        // SAFETY: 2 k + 16 bytes are there, by the assertion.
        unsafe { _mm_storeu_si128(to.as_mut_ptr().add(2 * k).cast(), halves) };
    }
}

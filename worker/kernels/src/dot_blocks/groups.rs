//! Codes of tensor blobs with AVX-512, whose scales are stored separately, and ggml's NVFP4, which has the
//! same small floats.
#![allow(unsafe_code)] // Reads packed bytes through pointers at any alignment.

use std::arch::x86_64::*;

use super::super::dtype::Float;
use super::blocks::{E2M1, half_of_e8m0, halves, look_up, negative, nibbles};
use super::four_rows::{BlockOfFourRows, StridedBytes, Unpack};

/// Affine codes with groups of `1 << shift` codes.
#[derive(Clone, Copy)]
pub(super) struct Affine<const BITS: usize> {
    pub(super) shift: u32,
    pub(super) scales: Float,
}

impl<const BITS: usize> Affine<BITS> {
    /// Expands packed floats to one per 32 of 256 values: those of even groups, and those of odd groups.
    ///
    /// # Safety
    /// Each row has as many floats as 256 values have groups.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    unsafe fn expand_floats(self, at: StridedBytes) -> [__m512; 2] {
        let bytes = (256 >> self.shift) * self.scales.size();
        // SAFETY: guaranteed by the caller.
        let floats = unsafe { at.load_partial(0, bytes.min(16)) };
        if bytes == 32 {
            // SAFETY: as above.
            let more = unsafe { at.load_partial(16, 16) };
            let (first, last) = (_mm512_castsi512_ps(floats), _mm512_castsi512_ps(more));
            return [
                _mm512_shuffle_ps::<0b10_00_10_00>(first, last),
                _mm512_shuffle_ps::<0b11_01_11_01>(first, last),
            ];
        }
        [
            self.select_floats(floats, _mm_setr_epi32(0, 2, 4, 6)),
            self.select_floats(floats, _mm_setr_epi32(1, 3, 5, 7)),
        ]
    }

    /// The floats of four groups of 32 values of each row.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    fn select_floats(self, floats: __m512i, of: __m128i) -> __m512 {
        let groups = _mm_srl_epi32(of, _mm_cvtsi32_si128(self.shift.cast_signed() - 5));
        // The source bytes of each lane; the upper bytes are zero.
        let (size, bytes) = match self.scales {
            Float::F32 => (0x0404_0404, 0x0302_0100),
            Float::F16 => (0x0000_0202, 0x8080_0100u32.cast_signed()),
            Float::BF16 => (0x0202_0000, 0x0100_8080),
        };
        let places = _mm_add_epi32(_mm_mullo_epi32(groups, _mm_set1_epi32(size)), _mm_set1_epi32(bytes));
        let floats = _mm512_shuffle_epi8(floats, _mm512_broadcast_i32x4(places));
        match self.scales {
            Float::F16 => halves(floats),
            _ => _mm512_castsi512_ps(floats),
        }
    }
}

impl<const BITS: usize> Unpack for Affine<BITS> {
    type Lanes = [__m512; 2];
    const EXCESS_SHIFT: Option<u32> = None;
    const BYTES: usize = 32 * BITS;

    #[inline]
    fn separate_scale_bytes(self) -> (usize, usize) {
        let bytes = (256 >> self.shift) * self.scales.size();
        (bytes, bytes)
    }

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    unsafe fn codes(self, at: BlockOfFourRows) -> [__m512i; 16] {
        if BITS == 4 {
            // SAFETY: the codes have 128 bytes.
            return unsafe { interleave_nibbles(at.codes, |codes| codes) };
        }
        // SAFETY: sixteen of the codes' 256 bytes.
        std::array::from_fn(|n| unsafe { at.codes.sixteen(16 * n) })
    }

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    unsafe fn scales(self, at: BlockOfFourRows) -> ([__m512; 2], [__m512; 2]) {
        // SAFETY: each group has both.
        let (scales, biases) = unsafe { (self.expand_floats(at.scales), self.expand_floats(at.biases)) };
        (scales, biases.map(|biases| negative(biases)))
    }
}

/// The nibbles of 128 bytes, alternating low and high, each vector mapped by `meaning`.
///
/// # Safety
/// There are 128 bytes.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
unsafe fn interleave_nibbles(codes: StridedBytes, meaning: impl Fn(__m512i) -> __m512i) -> [__m512i; 16] {
    let mut to = [_mm512_setzero_si512(); 16];
    for (n, to) in to.as_chunks_mut::<2>().0.iter_mut().enumerate() {
        // SAFETY: guaranteed by the caller.
        let [low, high] = nibbles(unsafe { codes.sixteen(16 * n) }).map(&meaning);
        *to = [_mm512_unpacklo_epi8(low, high), _mm512_unpackhi_epi8(low, high)];
    }
    to
}

/// Converts scales to four vectors; vector q uses byte q of each lane. For codes that are twice their values.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn byte_by_byte(bytes: __m512i, factor: f32, meaning: impl Fn(__m512i) -> __m512) -> [__m512; 4] {
    let by = |down: u32| {
        let codes = _mm512_srl_epi32(bytes, _mm_cvtsi32_si128(down.cast_signed()));
        let scales = meaning(_mm512_and_si512(codes, _mm512_set1_epi32(255)));
        _mm512_mul_ps(_mm512_mul_ps(scales, _mm512_set1_ps(factor)), _mm512_set1_ps(0.5))
    };
    [by(0), by(8), by(16), by(24)]
}

/// E2M1 codes of tensor blobs: MXFP4, with a scale per 32 codes.
#[derive(Clone, Copy)]
pub(super) struct Mxfp4;

/// NVFP4 of tensor blobs, with a scale per sixteen codes.
#[derive(Clone, Copy)]
pub(super) struct Nvfp4;

/// The codes of both formats.
///
/// # Safety
/// Each row has 128 bytes.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
unsafe fn e2m1(at: BlockOfFourRows) -> [__m512i; 16] {
    // SAFETY: guaranteed by the caller.
    unsafe { interleave_nibbles(at.codes, |codes| look_up(&E2M1, codes)) }
}

impl Unpack for Mxfp4 {
    type Lanes = [__m512; 2];
    const EXCESS_SHIFT: Option<u32> = Some(0);
    const BYTES: usize = 128;

    #[inline]
    fn separate_scale_bytes(self) -> (usize, usize) {
        (8, 0)
    }

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    unsafe fn codes(self, at: BlockOfFourRows) -> [__m512i; 16] {
        // SAFETY: there are 256 codes.
        unsafe { e2m1(at) }
    }

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    unsafe fn scales(self, at: BlockOfFourRows) -> ([__m512; 2], [__m512; 2]) {
        // SAFETY: there is a scale per 32 codes.
        let bytes = _mm512_shuffle_epi32::<0b01_01_00_00>(unsafe { at.scales.load_partial(0, 8) });
        let scales = [_mm_setr_epi32(0, 16, 0, 16), _mm_setr_epi32(8, 24, 8, 24)].map(|by| {
            let exponents = _mm512_srlv_epi32(bytes, _mm512_broadcast_i32x4(by));
            half_of_e8m0(_mm512_and_si512(exponents, _mm512_set1_epi32(255)))
        });
        (scales, scales)
    }
}

impl Unpack for Nvfp4 {
    type Lanes = [__m512; 4];
    const EXCESS_SHIFT: Option<u32> = Some(0);
    const BYTES: usize = 128;

    #[inline]
    fn separate_scale_bytes(self) -> (usize, usize) {
        (16, 0)
    }

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    unsafe fn codes(self, at: BlockOfFourRows) -> [__m512i; 16] {
        // SAFETY: there are 256 codes.
        unsafe { e2m1(at) }
    }

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    unsafe fn scales(self, at: BlockOfFourRows) -> ([__m512; 4], [__m512; 4]) {
        // SAFETY: there is a scale per sixteen codes.
        let scales = byte_by_byte(unsafe { at.scales.sixteen(0) }, at.factor, |codes| e4m3(codes));
        (scales, scales)
    }
}

/// Decodes E4M3 codes. A code above 448 is NaN.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn e4m3(codes: __m512i) -> __m512 {
    let magnitudes = magnitudes(_mm512_and_si512(codes, _mm512_set1_epi32(0x7f)));
    let none = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(magnitudes, _mm512_set1_ps(448.0));
    let magnitudes = _mm512_mask_blend_ps(none, magnitudes, _mm512_set1_ps(f32::NAN));
    let signs = _mm512_slli_epi32::<24>(_mm512_and_si512(codes, _mm512_set1_epi32(0x80)));
    _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(magnitudes), signs))
}

/// Decodes codes without sign; none of them is NaN.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn magnitudes(codes: __m512i) -> __m512 {
    // Exponent and fraction are moved to the place of an f16's, whose bias is eight larger.
    _mm512_mul_ps(halves(_mm512_slli_epi32::<7>(codes)), _mm512_set1_ps(256.0))
}

/// ggml's NVFP4: 64 codes per block. The two halves of each sixteen are in the low and high nibbles.
#[derive(Clone, Copy)]
pub(super) struct Nvfp4Block;

impl Unpack for Nvfp4Block {
    type Lanes = [__m512; 4];
    const EXCESS_SHIFT: Option<u32> = Some(0);
    const BYTES: usize = 4 * 36;

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    unsafe fn codes(self, at: BlockOfFourRows) -> [__m512i; 16] {
        let mut codes = [_mm512_setzero_si512(); 16];
        for (n, codes) in codes.as_chunks_mut::<2>().0.iter_mut().enumerate() {
            // SAFETY: half of the bytes of block n / 2.
            let bytes = unsafe { at.codes.sixteen(n / 2 * 36 + 4 + n % 2 * 16) };
            let [low, high] = nibbles(bytes).map(|codes| look_up(&E2M1, codes));
            *codes = [_mm512_unpacklo_epi64(low, high), _mm512_unpackhi_epi64(low, high)];
        }
        codes
    }

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    unsafe fn scales(self, at: BlockOfFourRows) -> ([__m512; 4], [__m512; 4]) {
        // SAFETY: there are four blocks, each of which begins with four scales.
        let bytes = unsafe { at.codes.heads(0, 36) };
        // The scales have no sign. The code that is NaN in other formats is zero; with the sign bit set it is
        // an ordinary code.
        let zeros = _mm512_cmpeq_epi8_mask(bytes, _mm512_set1_epi8(0x7f));
        let codes = _mm512_maskz_mov_epi8(!zeros, _mm512_and_si512(bytes, _mm512_set1_epi8(0x7f)));
        let scales = byte_by_byte(codes, at.factor, |codes| magnitudes(codes));
        (scales, scales)
    }
}

//! ggml's blocks and the small floats of tensor blobs, with AVX2: unpacks 32 codes to signed bytes in order,
//! with their scales and offsets. There is one small implementation per format; both vector widths convert
//! the result to values in the same way.
#![allow(unsafe_code)] // Reads packed bytes through pointers at any alignment.

use std::arch::x86_64::*;

use lode_model::quant::float::{e4m3_to_f32, e8m0_to_f32};

use super::super::dtype::Float;
use super::load::{Load, RowAt, broadcast};

/// The scale and offset of sixteen codes, in every lane: value = `scale * code - offset`.
#[derive(Clone, Copy)]
pub(crate) struct Terms {
    pub(crate) scale: __m256,
    pub(crate) offset: __m256,
}

/// A format whose values are byte-sized integers times a scale.
pub(crate) trait Codes: Copy {
    /// The data that the values of a group share, prepared for use.
    type Group: Copy;
    /// Values per group, a multiple of 32.
    const GROUP: usize;
    /// Whether there are offsets.
    const HAS_OFFSET: bool = false;
    /// Whether codes k..k + 16 and k + 16..k + 32 have the same scale and offset.
    const ONE_SCALE: bool = true;
    /// Bits of a code. Codes of eight bits are signed bytes, others are not negative.
    const BITS: u32;
    /// How much codes are above their values.
    const EXCESS: u8 = 0;
    /// Whether all values are multiplied by the factor of the rows.
    const HAS_FACTOR: bool = false;
    /// For 4-bit codes, the value of each code.
    const TABLE: Option<[i8; 16]> = None;

    /// # Safety
    /// As for `Load::group`.
    unsafe fn group(self, row: RowAt, k: usize) -> Self::Group;

    /// Unpacks codes k..k + 32. With a table, only the lowest four bits of each code count.
    ///
    /// # Safety
    /// As for `Load::block`.
    unsafe fn codes(self, row: RowAt, k: usize) -> __m256i;

    /// The scale and offset of codes k..k + 16, and of k + 16..k + 32.
    ///
    /// # Safety
    /// The processor has AVX2.
    unsafe fn terms(self, group: Self::Group, k: usize) -> [Terms; 2];

    /// The scales and offsets of values k..k + 256, in order.
    ///
    /// # Safety
    /// As for `Load::group`: the row contains these values, and k is a multiple of 256.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales(self, row: RowAt, k: usize) -> Scales {
        // SAFETY: guaranteed by the caller.
        unsafe { scales_of_groups(self, row, k, 8) }
    }
}

/// The scales and offsets of 256 values. With one scale per 32 values they are in the first vector, with one
/// per sixteen in both.
#[derive(Clone, Copy)]
pub(crate) struct Scales {
    pub(crate) scales: [__m256; 2],
    pub(crate) offsets: [__m256; 2],
}

/// The scales and offsets of at most eight groups of 32 values from value k on, followed by zeros.
///
/// # Safety
/// As for `Load::group`: the row contains these groups, and k is a multiple of 256.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn scales_of_groups<C: Codes>(format: C, row: RowAt, k: usize, groups: usize) -> Scales {
    let (mut scales, mut offsets) = ([0.0f32; 16], [0.0f32; 16]);
    // SAFETY: a group begins at each multiple of 256.
    let mut group = unsafe { Codes::group(format, row, k) };
    for g in 0..groups {
        if g > 0 && (32 * g).is_multiple_of(C::GROUP) {
            // SAFETY: a group begins here.
            group = unsafe { Codes::group(format, row, k + 32 * g) };
        }
        // SAFETY: there are 32 values inside that group.
        let terms = unsafe { format.terms(group, k + 32 * g) };
        if C::ONE_SCALE {
            (scales[g], offsets[g]) = (first(terms[0].scale), first(terms[0].offset));
        } else {
            for (half, terms) in terms.iter().enumerate() {
                (scales[2 * g + half], offsets[2 * g + half]) = (first(terms.scale), first(terms.offset));
            }
        }
    }
    // SAFETY: sixteen values each.
    let vectors =
        |of: &[f32; 16]| unsafe { [_mm256_loadu_ps(&raw const of[0]), _mm256_loadu_ps(&raw const of[8])] };
    Scales { scales: vectors(&scales), offsets: vectors(&offsets) }
}

/// The first lane.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn first(of: __m256) -> f32 {
    _mm256_cvtss_f32(of)
}

/// Scales without offsets.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn without_offsets(scales: [__m256; 2]) -> Scales {
    Scales { scales, offsets: [_mm256_setzero_ps(); 2] }
}

/// Reads eight f16 numbers at this distance.
///
/// # Safety
/// The numbers exist.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn eight_halves(at: *const u8, distance: usize) -> __m256 {
    // SAFETY: guaranteed by the caller.
    let bits: [u16; 8] =
        std::array::from_fn(|n| unsafe { at.add(n * distance).cast::<u16>().read_unaligned() });
    // SAFETY: sixteen bytes.
    _mm256_cvtph_ps(unsafe { _mm_loadu_si128(bits.as_ptr().cast()) })
}

impl<C: Codes> Load for C {
    type Group = C::Group;

    #[inline(always)]
    fn group_len(self) -> usize {
        C::GROUP
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn group(self, row: RowAt, k: usize) -> C::Group {
        // SAFETY: the same contract.
        unsafe { Codes::group(self, row, k) }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn block(self, row: RowAt, group: C::Group, k: usize) -> [__m256; 4] {
        // SAFETY: the same contract.
        let (codes, terms) = unsafe { (values(self, row, k), self.terms(group, k)) };
        let (low, high) = (_mm256_castsi256_si128(codes), _mm256_extracti128_si256::<1>(codes));
        let eights = [low, _mm_srli_si128::<8>(low), high, _mm_srli_si128::<8>(high)];
        std::array::from_fn(|v| {
            let Terms { scale, offset } = terms[v / 2];
            let mut numbers = _mm256_mul_ps(scale, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eights[v])));
            if C::HAS_OFFSET {
                numbers = _mm256_sub_ps(numbers, offset);
            }
            if C::HAS_FACTOR {
                numbers = _mm256_mul_ps(numbers, _mm256_set1_ps(row.factor));
            }
            numbers
        })
    }

    unsafe fn tail(self, _: RowAt, _: usize, _: usize) -> [__m256; 4] {
        unreachable!("rows of blocks are whole blocks")
    }
}

/// Converts codes k..k + 32 to their integer values.
///
/// # Safety
/// As for [`Codes::codes`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn values<C: Codes>(format: C, row: RowAt, k: usize) -> __m256i {
    // SAFETY: the same contract.
    let codes = unsafe { format.codes(row, k) };
    match C::TABLE {
        Some(table) => look_up(table, codes),
        None if C::EXCESS > 0 => _mm256_sub_epi8(codes, _mm256_set1_epi8(C::EXCESS.cast_signed())),
        None => codes,
    }
}

/// The scale of codes that share one, without an offset.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn broadcast_scale(scale: __m256) -> [Terms; 2] {
    [Terms { scale, offset: _mm256_setzero_ps() }; 2]
}

/// Broadcasts lane `j` of a vector.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn lane(of: __m256, j: usize) -> __m256 {
    _mm256_permutevar8x32_ps(of, _mm256_set1_epi32(j as i32))
}

/// The low nibbles of sixteen bytes, then the high nibbles. The upper bits of each byte are undefined.
///
/// # Safety
/// There are sixteen bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn nibble_halves(at: *const u8) -> __m256i {
    // SAFETY: guaranteed by the caller.
    let bytes = unsafe { _mm_loadu_si128(at.cast()) };
    _mm256_set_m128i(_mm_srli_epi16::<4>(bytes), bytes)
}

/// Like `halves`, but with zero upper bits.
///
/// # Safety
/// There are sixteen bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn clean_halves(at: *const u8) -> __m256i {
    // SAFETY: guaranteed by the caller.
    _mm256_and_si256(unsafe { nibble_halves(at) }, _mm256_set1_epi8(15))
}

/// The nibbles of sixteen bytes, alternating low and high. The upper bits of each byte are undefined.
///
/// # Safety
/// There are sixteen bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn interleave_nibbles(at: *const u8) -> __m256i {
    // SAFETY: guaranteed by the caller.
    let bytes = unsafe { _mm_loadu_si128(at.cast()) };
    let high = _mm_srli_epi16::<4>(bytes);
    _mm256_set_m128i(_mm_unpackhi_epi8(bytes, high), _mm_unpacklo_epi8(bytes, high))
}

/// Looks up the lowest four bits of each byte in a table of sixteen.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn look_up(table: [i8; 16], codes: __m256i) -> __m256i {
    // SAFETY: sixteen bytes.
    let table = unsafe { _mm_loadu_si128(table.as_ptr().cast()) };
    let codes = _mm256_and_si256(codes, _mm256_set1_epi8(15));
    _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), codes)
}

/// Values of codes that are integers themselves.
pub(super) const COUNT: [i8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
/// Values of Q4_0.
const AROUND_8: [i8; 16] = [-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7];
/// Twice the values of E2M1.
const E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];
/// The values of IQ4_NL and IQ4_XS.
pub(super) const NON_LINEAR: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Expands the bits of four bytes: see [`expand_bits`].
///
/// # Safety
/// There are four bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn bits(at: *const u8) -> __m256i {
    // SAFETY: guaranteed by the caller.
    expand_bits(unsafe { at.cast::<u32>().read_unaligned() })
}

/// Expands 32 bits to bytes: byte n is all ones or zero.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn expand_bits(word: u32) -> __m256i {
    let word = _mm256_set1_epi32(word.cast_signed());
    let eighth = |n: i64| n * 0x0101_0101_0101_0101;
    let bytes = _mm256_shuffle_epi8(word, _mm256_setr_epi64x(eighth(0), eighth(1), eighth(2), eighth(3)));
    let masks = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64.cast_signed());
    _mm256_cmpeq_epi8(_mm256_and_si256(bytes, masks), masks)
}

/// Pointer to block k / 32 of a row of blocks of this size.
#[inline(always)]
fn block(row: RowAt, k: usize, bytes: usize) -> *const u8 {
    row.codes.wrapping_add(k / 32 * bytes)
}

/// Reads the f16 at the start of a block.
///
/// # Safety
/// There are two bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn half(at: *const u8) -> __m256 {
    // SAFETY: guaranteed by the caller.
    unsafe { broadcast(Float::F16, at, 0) }
}

/// Formats with one scale per 32 codes: the bits of a code, its excess and table, and for value k of a row the
/// scale and the codes of its 32. Blocks that begin with an f16 scale also have their length.
macro_rules! one_scale {
    ($($(#[$doc:meta])* $name:ident: $bits:literal, $excess:literal, $table:expr,
        |$row:ident, $k:ident| $scale:expr, $codes:expr $(, $block_bytes:literal)?;)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(crate) struct $name;

        impl Codes for $name {
            type Group = __m256;
            const GROUP: usize = 32;
            const BITS: u32 = $bits;
            const EXCESS: u8 = $excess;
            const TABLE: Option<[i8; 16]> = $table;

            $(
                #[inline]
                #[target_feature(enable = "avx2,fma,f16c")]
                unsafe fn scales(self, row: RowAt, k: usize) -> Scales {
                    // SAFETY: the blocks of the 256 values belong to the row.
                    let scales = unsafe { eight_halves(block(row, k, $block_bytes), $block_bytes) };
                    without_offsets([scales, _mm256_setzero_ps()])
                }
            )?

            #[inline]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn group(self, $row: RowAt, $k: usize) -> __m256 {
                // SAFETY: the row has a scale for the 32 values from k, in their block or separately.
                unsafe { $scale }
            }

            #[inline]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn codes(self, $row: RowAt, $k: usize) -> __m256i {
                // SAFETY: the read is within the block of the 32 values from k, which belongs to the row.
                unsafe { $codes }
            }

            #[inline]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn terms(self, scale: __m256, _: usize) -> [Terms; 2] {
                broadcast_scale(scale)
            }
        }
    )+};
}

one_scale! {
    Q8_0: 8, 0, None, |row, k| half(block(row, k, 34)), _mm256_loadu_si256(block(row, k, 34).add(2).cast()), 34;
    Q4_0: 4, 8, Some(AROUND_8), |row, k| half(block(row, k, 18)), nibble_halves(block(row, k, 18).add(2)), 18;
    Q5_0: 5, 16, None, |row, k| half(block(row, k, 22)), _mm256_or_si256(
        clean_halves(block(row, k, 22).add(6)),
        _mm256_and_si256(bits(block(row, k, 22).add(2)), _mm256_set1_epi8(16)),
    ), 22;
    Iq4Nl: 4, 0, Some(NON_LINEAR), |row, k| half(block(row, k, 18)), nibble_halves(block(row, k, 18).add(2)), 18;
    /// ggml's MXFP4.
    Mxfp4Block: 4, 0, Some(E2M1),
        |row, k| half_of_e8m0(*block(row, k, 17)), nibble_halves(block(row, k, 17).add(1));
    /// MXFP4 of tensor blobs.
    Mxfp4: 4, 0, Some(E2M1),
        |row, k| half_of_e8m0(*row.scales.add(k / 32)), interleave_nibbles(row.codes.add(k / 2));
    /// Blocks of 128 values: the scale or its negative.
    Q1_0: 2, 1, None, |row, k| half(row.codes.add(k / 128 * 18)), twos(row.codes.add(k / 128 * 18 + 2 + k % 128 / 8));
    /// Blocks of 64 values from -1 to 2.
    Q2_0: 2, 1, None, |row, k| half(row.codes.add(k / 64 * 18)), quarters(row.codes.add(k / 64 * 18 + 2 + k % 64 / 4));
}

/// A byte for each bit of four bytes: two if it is set, else zero.
///
/// # Safety
/// There are four bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn twos(at: *const u8) -> __m256i {
    // SAFETY: guaranteed by the caller.
    _mm256_and_si256(unsafe { bits(at) }, _mm256_set1_epi8(2))
}

/// The codes of two bits in eight bytes.
///
/// # Safety
/// There are eight bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn quarters(at: *const u8) -> __m256i {
    // SAFETY: guaranteed by the caller.
    let bytes = _mm256_cvtepu8_epi32(unsafe { _mm_loadl_epi64(at.cast()) });
    // Shift each code to the start of a byte of its own.
    let codes = _mm256_or_si256(bytes, _mm256_slli_epi32::<6>(bytes));
    let codes = _mm256_or_si256(codes, _mm256_slli_epi32::<12>(codes));
    _mm256_and_si256(codes, _mm256_set1_epi8(3))
}

/// Formats with an f16 scale and an f16 minimum per 32 codes, at the start of the block.
macro_rules! thirty_two_and_minimum {
    ($($name:ident: $bits:literal, $bytes:literal, |$at:ident| $codes:expr;)+) => {$(
        #[derive(Clone, Copy)]
        pub(crate) struct $name;

        impl Codes for $name {
            type Group = (__m256, __m256);
            const GROUP: usize = 32;
            const HAS_OFFSET: bool = true;
            const BITS: u32 = $bits;

            #[inline]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn scales(self, row: RowAt, k: usize) -> Scales {
                let (at, none) = (block(row, k, $bytes), _mm256_setzero_ps());
                // SAFETY: the blocks of the 256 values belong to the row.
                let (d, m) = unsafe { (eight_halves(at, $bytes), eight_halves(at.add(2), $bytes)) };
                Scales { scales: [d, none], offsets: [_mm256_sub_ps(_mm256_set1_ps(-0.0), m), none] }
            }

            #[inline]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn group(self, row: RowAt, k: usize) -> (__m256, __m256) {
                let at = block(row, k, $bytes);
                // SAFETY: block k / 32 belongs to the row; it begins with d and m.
                let (d, m) = unsafe { (broadcast(Float::F16, at, 0), broadcast(Float::F16, at, 1)) };
                (d, _mm256_sub_ps(_mm256_set1_ps(-0.0), m))
            }

            #[inline]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn codes(self, row: RowAt, k: usize) -> __m256i {
                let $at = block(row, k, $bytes);
                // SAFETY: the read is within block k / 32, which belongs to the row.
                unsafe { $codes }
            }

            #[inline]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn terms(self, (scale, offset): (__m256, __m256), _: usize) -> [Terms; 2] {
                [Terms { scale, offset }; 2]
            }
        }
    )+};
}

thirty_two_and_minimum! {
    Q4_1: 4, 20, |at| clean_halves(at.add(4));
    Q5_1: 5, 24, |at| _mm256_or_si256(
        clean_halves(at.add(8)),
        _mm256_and_si256(bits(at.add(4)), _mm256_set1_epi8(16)),
    );
}

/// The E8M0 scale of 32 values whose codes are twice their values.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn half_of_e8m0(code: u8) -> __m256 {
    _mm256_set1_ps(e8m0_to_f32(code) * 0.5)
}

/// NVFP4 of tensor blobs.
#[derive(Clone, Copy)]
pub(crate) struct Nvfp4;

impl Codes for Nvfp4 {
    type Group = [__m256; 2];
    const GROUP: usize = 32;
    const BITS: u32 = 4;
    const ONE_SCALE: bool = false;
    const TABLE: Option<[i8; 16]> = Some(E2M1);

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn group(self, row: RowAt, k: usize) -> [__m256; 2] {
        // SAFETY: a row has a scale per sixteen values.
        let scale = |n: usize| e4m3_to_f32(unsafe { *row.scales.add(k / 16 + n) }) * row.factor * 0.5;
        [_mm256_set1_ps(scale(0)), _mm256_set1_ps(scale(1))]
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn codes(self, row: RowAt, k: usize) -> __m256i {
        // SAFETY: sixteen bytes from k / 2 belong to the row.
        unsafe { interleave_nibbles(row.codes.add(k / 2)) }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn terms(self, scales: [__m256; 2], _: usize) -> [Terms; 2] {
        scales.map(|scale| Terms { scale, offset: _mm256_setzero_ps() })
    }
}

/// MXFP8 of tensor blobs. Its codes are floats, not integers.
#[derive(Clone, Copy)]
pub(crate) struct Mxfp8;

impl Load for Mxfp8 {
    type Group = __m256;

    #[inline(always)]
    fn group_len(self) -> usize {
        32
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn group(self, row: RowAt, k: usize) -> __m256 {
        // SAFETY: a row has a scale per 32 values.
        _mm256_set1_ps(e8m0_to_f32(unsafe { *row.scales.add(k / 32) }))
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn block(self, row: RowAt, scale: __m256, k: usize) -> [__m256; 4] {
        std::array::from_fn(|v| {
            // SAFETY: eight bytes from k + 8 v belong to the row.
            let codes = _mm_cvtepu8_epi16(unsafe { _mm_loadl_epi64(row.codes.add(k + 8 * v).cast()) });
            _mm256_mul_ps(scale, e4m3(codes))
        })
    }

    unsafe fn tail(self, _: RowAt, _: usize, _: usize) -> [__m256; 4] {
        unreachable!("rows of groups are whole groups")
    }
}

/// Decodes eight E4M3 codes, one in each 16 bits. Exponent and fraction are moved to the place of an f16's,
/// whose bias is eight larger; a factor of 2^8 compensates. A code above 448 is NaN.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn e4m3(codes: __m128i) -> __m256 {
    let magnitude = _mm_slli_epi16::<7>(_mm_and_si128(codes, _mm_set1_epi16(0x7f)));
    let magnitude = _mm256_mul_ps(_mm256_cvtph_ps(magnitude), _mm256_set1_ps(256.0));
    let none = _mm256_cmp_ps::<_CMP_GT_OQ>(magnitude, _mm256_set1_ps(448.0));
    let sign = _mm256_slli_epi32::<24>(_mm256_cvtepu16_epi32(_mm_and_si128(codes, _mm_set1_epi16(0x80))));
    // All ones are NaN, too.
    _mm256_or_ps(_mm256_or_ps(magnitude, _mm256_castsi256_ps(sign)), none)
}

/// ggml's NVFP4: four times sixteen codes. The two halves of each sixteen are in the low and high nibbles.
#[derive(Clone, Copy)]
pub(crate) struct Nvfp4Block;

impl Codes for Nvfp4Block {
    type Group = __m256;
    const GROUP: usize = 64;
    const BITS: u32 = 4;
    const ONE_SCALE: bool = false;
    const TABLE: Option<[i8; 16]> = Some(E2M1);
    const HAS_FACTOR: bool = true;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn group(self, row: RowAt, k: usize) -> __m256 {
        let scale = |n: usize| {
            // SAFETY: block k / 64 begins with four scales.
            match unsafe { *row.codes.add(k / 64 * 36 + n) } {
                0x7f => 0.0,
                0xff => 240.0,
                code => e4m3_to_f32(code & 0x7f) * 0.5,
            }
        };
        _mm256_setr_ps(scale(0), scale(1), scale(2), scale(3), 0.0, 0.0, 0.0, 0.0)
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn codes(self, row: RowAt, k: usize) -> __m256i {
        // SAFETY: sixteen of the bytes of block k / 64.
        let codes = unsafe { nibble_halves(row.codes.add(k / 64 * 36 + 4 + k % 64 / 2)) };
        // low 0, low 1, high 0, high 1 -> low 0, high 0, low 1, high 1
        _mm256_permute4x64_epi64::<0b11_01_10_00>(codes)
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn terms(self, scales: __m256, k: usize) -> [Terms; 2] {
        let first = k % 64 / 16;
        let terms = |j| Terms { scale: lane(scales, j), offset: _mm256_setzero_ps() };
        [terms(first), terms(first + 1)]
    }
}

//! `dot_blocks` with AVX2. With few columns, 256 values of a row are unpacked once for all of them; with many
//! columns, eight rows are first arranged as a panel. Both ways add in the same order.
#![allow(unsafe_code)] // Reads packed bytes through pointers at any alignment.

use std::arch::x86_64::*;

use super::super::decode::blocks::{
    Codes, Iq4Nl, Mxfp4, Mxfp4Block, Nvfp4, Nvfp4Block, Q1_0, Q2_0, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Scales,
    Terms, interleave_nibbles,
};
use super::super::decode::k_blocks::{Iq4Xs, Q2K, Q3K, Q4K, Q5K, Q6K};
use super::super::decode::load::{RowAt, broadcast};
use super::super::decode::small_codes::{Iq1M, Iq1S, Iq2S, Iq2Xs, Iq2Xxs, Iq3S, Iq3Xxs, Tq1, Tq2};
use super::super::dtype::Float;
use super::super::formats::{integer_formats, small_formats};
use super::super::rows::Rows;
use super::super::window::Window;
use super::avx2_block::{Factors, Unpacked, multiply_pairs, prefetch, unpack_part, widen};
use super::avx2_panel as panel;
use super::columns::{Block, Columns, QK, TILE};

/// Minimum number of columns for panels. Codes of more than five bits are unpacked too fast for panels to save time with
/// few columns (measured).
const fn min_panel_columns<C: Codes>() -> usize {
    if C::BITS > 5 { 9 } else { 4 }
}

/// `pack_scalar` with vectors.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn pack(x: &[f32], cols: usize, tile: &mut [Block]) {
    super::columns::pack(x, cols, tile);
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn dot_blocks(rows: &Rows<'_>, x: &Columns, out: &mut Window<'_>, scratch: &mut Vec<f32>) {
    assert!(x.cols() == rows.cols() && out.rows() >= x.len() && out.cols() >= rows.len());
    integer_formats!(choose[rows.dtype(), format => products(format, rows, x, out, scratch), else {
        small_formats!(choose[rows.dtype(), format => products(format, rows, x, out, scratch), else {
            super::scalar(rows, x, out, scratch)
        }])
    }]);
}

/// Affine codes of tensor blobs, with groups of `1 << shift` codes. 8-bit codes are stored minus 128.
#[derive(Clone, Copy)]
struct Affine<const BITS: u8> {
    shift: u32,
    scales: Float,
}

impl<const BITS: u8> Affine<BITS> {
    /// The value is `scale * code - offset`.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn offset(scale: __m256, bias: __m256) -> __m256 {
        let below = if BITS == 4 { 0.0 } else { 128.0 };
        _mm256_fnmsub_ps(scale, _mm256_set1_ps(below), bias)
    }
}

/// Reads `n` packed floats from `first` on, at most eight.
///
/// # Safety
/// The floats exist.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn up_to_eight(float: Float, at: *const u8, first: usize, n: usize) -> __m256 {
    let mut bits = [0u32; 8];
    for (n, bits) in bits.iter_mut().enumerate().take(n) {
        *bits = match float {
            // SAFETY: guaranteed by the caller; the read is unaligned.
            Float::F32 => unsafe { at.cast::<u32>().add(first + n).read_unaligned() },
            // SAFETY: as above.
            Float::F16 | Float::BF16 => unsafe { at.cast::<u16>().add(first + n).read_unaligned() }.into(),
        };
    }
    // SAFETY: 32 bytes.
    let bits = unsafe { _mm256_loadu_si256(bits.as_ptr().cast()) };
    match float {
        Float::F32 => _mm256_castsi256_ps(bits),
        Float::BF16 => _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits)),
        Float::F16 => {
            let halves = _mm256_packus_epi32(bits, bits);
            _mm256_cvtph_ps(_mm256_castsi256_si128(_mm256_permute4x64_epi64::<0b10_00>(halves)))
        }
    }
}

impl<const BITS: u8> Codes for Affine<BITS> {
    type Group = Terms;
    const GROUP: usize = 32;
    const HAS_OFFSET: bool = true;
    const BITS: u32 = BITS as u32;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales(self, row: RowAt, k: usize) -> Scales {
        let (first, n) = (k >> self.shift, QK >> self.shift);
        // Lane g has the scale of the group of values 32 g.
        let groups = _mm256_srl_epi32(
            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
            _mm_cvtsi32_si128(self.shift.cast_signed() - 5),
        );
        // SAFETY: a row has a scale and a bias for each of its groups.
        let of = |at| _mm256_permutevar8x32_ps(unsafe { up_to_eight(self.scales, at, first, n) }, groups);
        let (scales, none) = (of(row.scales), _mm256_setzero_ps());
        Scales { scales: [scales, none], offsets: [Self::offset(scales, of(row.biases)), none] }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn group(self, row: RowAt, k: usize) -> Terms {
        let group = k >> self.shift;
        // SAFETY: a row has a scale and a bias for each of its groups.
        let (scale, bias) =
            unsafe { (broadcast(self.scales, row.scales, group), broadcast(self.scales, row.biases, group)) };
        Terms { scale, offset: Self::offset(scale, bias) }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn codes(self, row: RowAt, k: usize) -> __m256i {
        if BITS == 4 {
            // SAFETY: sixteen bytes from k / 2 belong to the row.
            return _mm256_and_si256(
                unsafe { interleave_nibbles(row.codes.add(k / 2)) },
                _mm256_set1_epi8(15),
            );
        }
        // SAFETY: 32 bytes from k belong to the row.
        _mm256_xor_si256(unsafe { _mm256_loadu_si256(row.codes.add(k).cast()) }, _mm256_set1_epi8(-128))
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn terms(self, group: Terms, _: usize) -> [Terms; 2] {
        [group; 2]
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn products<C: Codes>(format: C, rows: &Rows<'_>, x: &Columns, out: &mut Window<'_>, scratch: &mut Vec<f32>) {
    let in_panels =
        if x.len() < const { min_panel_columns::<C>() } { 0 } else { rows.len() / panel::R * panel::R };
    if in_panels > 0 {
        let rows = rows.range(0, in_panels);
        match const { Factors::of::<C>() }.is_signed {
            true => super::avx2_wide::products(format, &rows, x, out, scratch),
            false => panel::products(format, &rows, x, out, scratch),
        }
    }
    let (depth, block_bytes) = (x.depth(), rows.dtype().row_bytes(QK));
    for (j, tile) in x.tiles() {
        let t = tile.len() / depth;
        for i in in_panels..rows.len() {
            let sums = match t {
                1 => multiply_row::<C, true>(format, rows, i, block_bytes, tile, t),
                _ => multiply_row::<C, false>(format, rows, i, block_bytes, tile, t),
            };
            for (c, [a, b]) in sums.iter().take(t).enumerate() {
                out.row(j + c)[i] = total(if C::ONE_SCALE { *a } else { _mm256_add_ps(*a, *b) });
            }
        }
    }
}

/// The products of a row with a tile of `t` columns. 256 of its codes have `block_bytes` bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn multiply_row<C: Codes, const ONE_COLUMN: bool>(
    format: C,
    rows: &Rows<'_>,
    i: usize,
    block_bytes: usize,
    tile: &[Block],
    t: usize,
) -> [[__m256; 2]; TILE] {
    let at = RowAt::new(rows, i);
    let t = if ONE_COLUMN { 1 } else { t };
    let mut sums = [[_mm256_setzero_ps(); 2]; TILE];
    for (b, columns) in tile.chunks_exact(t).enumerate() {
        prefetch(at.codes.wrapping_add(b * block_bytes), block_bytes);
        // SAFETY: the row is of this format and as long as the columns.
        let block = unsafe { unpack_part(format, at, b * QK, (rows.cols() - b * QK) / 32) };
        for (x, sums) in columns.iter().zip(&mut sums) {
            add::<C>(&block, x, sums);
        }
    }
    sums
}

/// Adds the products with 256 values of a column.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add<C: Codes>(block: &Unpacked, x: &Block, sums: &mut [__m256; 2]) {
    let kind = const { Factors::of::<C>() };
    let pairs = |g: usize| {
        // SAFETY: 32 of the 256 codes of a block.
        let others = unsafe { _mm256_loadu_si256(x.codes.as_ptr().add(32 * g).cast()) };
        multiply_pairs(block.factors[g], others, kind.is_signed)
    };
    // The halves of a vector belong to groups.
    let mut even = fold([pairs(0), pairs(2), pairs(4), pairs(6)], kind.pairs);
    let mut odd = fold([pairs(1), pairs(3), pairs(5), pairs(7)], kind.pairs);
    // SAFETY: eight or sixteen values each.
    let eight = |of: &[f32], n: usize| unsafe { _mm256_loadu_ps(of[8 * n..8 * n + 8].as_ptr()) };
    // SAFETY: as above.
    let less = |of: &[i32], n: usize| unsafe { _mm256_loadu_si256(of[8 * n..8 * n + 8].as_ptr().cast()) };
    let subtract = |dots: &mut __m256i, less: __m256i| {
        if let Some(shift) = kind.excess_shift {
            let less = _mm256_sra_epi32(less, _mm_cvtsi32_si128(shift.cast_signed()));
            *dots = _mm256_add_epi32(*dots, less);
        }
    };
    let d = eight(&x.d, 0);
    if C::ONE_SCALE {
        let halves =
            (_mm256_permute2x128_si256::<0x20>(even, odd), _mm256_permute2x128_si256::<0x31>(even, odd));
        let mut dots = _mm256_add_epi32(halves.0, halves.1);
        subtract(&mut dots, less(&x.less, 0));
        let dots = _mm256_cvtepi32_ps(dots);
        sums[0] = _mm256_fmadd_ps(_mm256_mul_ps(dots, d), block.scales[0], sums[0]);
        if C::HAS_OFFSET {
            sums[0] = _mm256_fnmadd_ps(block.offsets[0], eight(&x.sums, 0), sums[0]);
        }
        return;
    }
    subtract(&mut even, less(&x.fine_less, 0));
    subtract(&mut odd, less(&x.fine_less, 1));
    let d = [_mm256_permute2f128_ps::<0x00>(d, d), _mm256_permute2f128_ps::<0x11>(d, d)];
    for (n, dots) in [even, odd].into_iter().enumerate() {
        let dots = _mm256_mul_ps(_mm256_cvtepi32_ps(dots), d[n]);
        sums[n] = _mm256_fmadd_ps(dots, block.scales[n], sums[n]);
        if C::HAS_OFFSET {
            sums[n] = _mm256_fnmadd_ps(block.offsets[n], eight(&x.fine_sums, n), sums[n]);
        }
    }
}

/// Adds groups of eight lanes of sixteen bits: lane v of each half of the result has the sum of vector v's.
/// `pairs` is the number of lanes whose sum has sixteen bits.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn fold(vectors: [__m256i; 4], pairs: usize) -> __m256i {
    let add = |a, b, is_narrow| if is_narrow { _mm256_add_epi16(a, b) } else { _mm256_add_epi32(a, b) };
    let [a, b, c, d] = if pairs < 2 { vectors.map(|pairs| widen(pairs)) } else { vectors };
    let two = |a, b| add(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b), pairs >= 2);
    let mut halves = [two(a, b), two(c, d)];
    if (2..4).contains(&pairs) {
        halves = halves.map(|pairs| widen(pairs));
    }
    let [ab, cd] = halves;
    let all = add(_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd), pairs >= 4);
    if pairs >= 4 { widen(all) } else { all }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn total(sums: __m256) -> f32 {
    let four = _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps::<1>(sums));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
}

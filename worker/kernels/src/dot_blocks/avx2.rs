//! `dot_blocks` with AVX2: 256 values of a row are unpacked once for all columns of a tile. The sums over
//! groups are scaled as in the AVX-512 version. Weight codes are signed, but the multiplication needs one
//! unsigned factor, so the sign of the weight's code is transferred to the column's code.
#![allow(unsafe_code)] // Reads packed bytes through pointers at any alignment.

use std::arch::x86_64::*;

use super::super::decode::blocks::{
    Codes, Iq4Nl, Mxfp4, Mxfp4Block, Nvfp4, Nvfp4Block, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Terms,
    interleave_nibbles, values,
};
use super::super::decode::k_blocks::{Iq4Xs, Q2K, Q3K, Q4K, Q5K, Q6K};
use super::super::decode::load::{RowAt, broadcast};
use super::super::dtype::Float;
use super::super::formats::integer_formats;
use super::super::rows::Rows;
use super::super::window::Window;
use super::columns::{Block, Columns, QK, TILE};

/// `pack_scalar` with vectors.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn pack(x: &[f32], cols: usize, tile: &mut [Block]) {
    super::columns::pack(x, cols, tile);
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn dot_blocks(rows: &Rows<'_>, x: &Columns, out: &mut Window<'_>, scratch: &mut Vec<f32>) {
    assert!(x.cols() == rows.cols() && out.rows() >= x.len() && out.cols() >= rows.len());
    integer_formats!(choose[rows.dtype(), format => products(format, rows, x, out), else {
        super::scalar(rows, x, out, scratch)
    }]);
}

/// Affine codes of tensor blobs, with groups of `1 << shift` codes. 8-bit codes are stored minus 128.
#[derive(Clone, Copy)]
struct Affine<const BITS: u8> {
    shift: u32,
    scales: Float,
}

impl<const BITS: u8> Codes for Affine<BITS> {
    type Group = Terms;
    const GROUP: usize = 32;
    const HAS_OFFSET: bool = true;
    const HAS_SIGN: bool = BITS == 8;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn group(self, row: RowAt, k: usize) -> Terms {
        let group = k >> self.shift;
        // SAFETY: a row has a scale and a bias for each of its groups.
        let (scale, bias) =
            unsafe { (broadcast(self.scales, row.scales, group), broadcast(self.scales, row.biases, group)) };
        let below = if BITS == 4 { 0.0 } else { 128.0 };
        Terms { scale, offset: _mm256_fnmsub_ps(scale, _mm256_set1_ps(below), bias) }
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
fn products<C: Codes>(format: C, rows: &Rows<'_>, x: &Columns, out: &mut Window<'_>) {
    let depth = x.depth();
    for (j, tile) in x.tiles() {
        let t = tile.len() / depth;
        for i in 0..rows.len() {
            let at = RowAt::new(rows, i);
            let mut sums = [[_mm256_setzero_ps(); 2]; TILE];
            for (b, columns) in tile.chunks_exact(t).enumerate() {
                let (first, left) = (b * QK, (rows.cols() - b * QK) / 32);
                // SAFETY: the row is of this format and as long as the columns, which have this many groups
                // left.
                let block = unsafe {
                    match left {
                        0..8 => unpack::<C, false>(format, at, first, left),
                        _ => unpack::<C, true>(format, at, first, 8),
                    }
                };
                for (x, sums) in columns.iter().zip(&mut sums) {
                    add::<C>(&block, x, sums);
                }
            }
            for (c, [a, b]) in sums.iter().take(t).enumerate() {
                out.row(j + c)[i] = total(if C::ONE_SCALE { *a } else { _mm256_add_ps(*a, *b) });
            }
        }
    }
}

/// 256 unpacked values of a row: codes in groups of 32, with scales and offsets in lane order. A scale per
/// group is in the first of two vectors; scales per sixteen are in both.
struct Unpacked {
    codes: [__m256i; 8],
    scales: [__m256; 2],
    offsets: [__m256; 2],
}

/// Unpacks this many groups from value `first` on.
///
/// # Safety
/// The groups exist, and there are at most eight.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn unpack<C: Codes, const WHOLE: bool>(format: C, at: RowAt, first: usize, groups: usize) -> Unpacked {
    let groups = if WHOLE { 8 } else { groups };
    let (none, zeros) = (_mm256_setzero_ps(), _mm256_setzero_si256());
    let (mut codes, mut scales, mut offsets) = ([zeros; 8], [[none; 8]; 2], [[none; 8]; 2]);
    // SAFETY: a group begins with each block of the columns.
    let mut group = unsafe { Codes::group(format, at, first) };
    for (g, codes) in codes.iter_mut().enumerate().take(groups) {
        let k = first + 32 * g;
        if g > 0 && (32 * g).is_multiple_of(C::GROUP) {
            // SAFETY: a group begins here.
            group = unsafe { Codes::group(format, at, k) };
        }
        // SAFETY: there are 32 values inside that group.
        let [a, b] = unsafe { format.terms(group, k) };
        // SAFETY: as above.
        *codes = unsafe { values(format, at, k) };
        (scales[0][g], scales[1][g]) = (a.scale, b.scale);
        (offsets[0][g], offsets[1][g]) = (a.offset, b.offset);
    }
    let mut scales = in_lane_order::<C>(&scales);
    if C::HAS_FACTOR {
        let factor = _mm256_set1_ps(at.factor);
        scales = [_mm256_mul_ps(scales[0], factor), _mm256_mul_ps(scales[1], factor)];
    }
    let offsets = if C::HAS_OFFSET { in_lane_order::<C>(&offsets) } else { scales };
    Unpacked { codes, scales, offsets }
}

/// The scale and offset of the first sixteen codes of each group and of the other sixteen, in all lanes, as
/// [`Unpacked`] stores them.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn in_lane_order<C: Codes>([a, b]: &[[__m256; 8]; 2]) -> [__m256; 2] {
    let (even, odd) = (four([a[0], a[2], a[4], a[6]]), four([a[1], a[3], a[5], a[7]]));
    if C::ONE_SCALE {
        return [_mm256_blend_ps::<0xf0>(even, odd), _mm256_setzero_ps()];
    }
    let others = (four([b[0], b[2], b[4], b[6]]), four([b[1], b[3], b[5], b[7]]));
    [_mm256_blend_ps::<0xf0>(even, others.0), _mm256_blend_ps::<0xf0>(odd, others.1)]
}

/// Combines four broadcast vectors: one lane of each.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn four([a, b, c, d]: [__m256; 4]) -> __m256 {
    let (ab, cd) = (_mm256_unpacklo_ps(a, b), _mm256_unpacklo_ps(c, d));
    _mm256_shuffle_ps::<0b01_00_01_00>(ab, cd)
}

/// Adds the products with 256 values of a column.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add<C: Codes>(block: &Unpacked, x: &Block, sums: &mut [__m256; 2]) {
    let dot = |g: usize| {
        // SAFETY: 32 of the 256 codes of a block.
        let others = unsafe { _mm256_loadu_si256(x.codes.as_ptr().add(32 * g).cast()) };
        let codes = block.codes[g];
        // At most 128 * 127 * 2, which fits in sixteen bits.
        let pairs = if C::HAS_SIGN {
            _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(others, codes))
        } else {
            _mm256_maddubs_epi16(codes, others)
        };
        _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))
    };
    // The halves of a vector belong to groups.
    let even = fold([dot(0), dot(2), dot(4), dot(6)]);
    let odd = fold([dot(1), dot(3), dot(5), dot(7)]);
    // SAFETY: eight or sixteen values each.
    let eight = |of: &[f32], n: usize| unsafe { _mm256_loadu_ps(of[8 * n..8 * n + 8].as_ptr()) };
    let d = eight(&x.d, 0);
    if C::ONE_SCALE {
        let halves =
            (_mm256_permute2x128_si256::<0x20>(even, odd), _mm256_permute2x128_si256::<0x31>(even, odd));
        let dots = _mm256_cvtepi32_ps(_mm256_add_epi32(halves.0, halves.1));
        sums[0] = _mm256_fmadd_ps(_mm256_mul_ps(dots, d), block.scales[0], sums[0]);
        if C::HAS_OFFSET {
            sums[0] = _mm256_fnmadd_ps(block.offsets[0], eight(&x.sums, 0), sums[0]);
        }
        return;
    }
    let d = [_mm256_permute2f128_ps::<0x00>(d, d), _mm256_permute2f128_ps::<0x11>(d, d)];
    for (n, dots) in [even, odd].into_iter().enumerate() {
        let dots = _mm256_mul_ps(_mm256_cvtepi32_ps(dots), d[n]);
        sums[n] = _mm256_fmadd_ps(dots, block.scales[n], sums[n]);
        if C::HAS_OFFSET {
            sums[n] = _mm256_fnmadd_ps(block.offsets[n], eight(&x.fine_sums, n), sums[n]);
        }
    }
}

/// Adds groups of four lanes: lane v of each half of the result has the sum of vector v's.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn fold([a, b, c, d]: [__m256i; 4]) -> __m256i {
    let ab = _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    let cd = _mm256_add_epi32(_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
    _mm256_add_epi32(_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn total(sums: __m256) -> f32 {
    let four = _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps::<1>(sums));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
}

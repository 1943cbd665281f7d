//! `dot_blocks` with AVX2: eight partial sums a product, group by group. Codes keep their signs, and what a weight's code has of
//! one goes over to the column's, as the instruction takes one factor without.
#![allow(unsafe_code)] // Reads packed bytes through pointers at any alignment.

use std::arch::x86_64::*;

use super::super::decode::avx2::{RowAt, broadcast, with_loader_of};
use super::super::decode::blocks::{Codes, Terms, neighbours, values};
use super::super::rows::Rows;
use super::super::weight::{Float, Scaled};
use super::super::window::Window;
use super::columns::{Block, TILE};
use super::{Columns, Order, QK};

/// `pack_scalar`, in wider vectors.
#[target_feature(enable = "avx2,fma,f16c")]
pub(in super::super) fn pack(x: &[f32], cols: usize, tile: &mut [Block]) {
    super::columns::pack(x, cols, tile);
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(in super::super) fn dot_blocks(
    rows: &Rows<'_>,
    x: &Columns,
    out: &mut Window<'_>,
    scratch: &mut Vec<f32>,
) {
    use super::super::decode::{blocks, k_blocks};
    use super::super::rows::Kind;
    use lode_model::quant::ggml::Type;
    assert!(x.cols() == rows.cols() && out.rows() >= x.len() && out.cols() >= rows.len());
    with_loader_of! {
        rows.kind(), codes => products(codes, rows, x, out), else super::scalar(rows, x, out, scratch),
        Kind::Q8_0 = blocks::Q8_0,
        Kind::Ggml(Type::Q4_0) = blocks::Q4_0,
        Kind::Ggml(Type::Q4_1) = blocks::Q4_1,
        Kind::Ggml(Type::Q5_0) = blocks::Q5_0,
        Kind::Ggml(Type::Q5_1) = blocks::Q5_1,
        Kind::Ggml(Type::Q2_K) = k_blocks::Q2K,
        Kind::Ggml(Type::Q3_K) = k_blocks::Q3K,
        Kind::Ggml(Type::Q4_K) = k_blocks::Q4K,
        Kind::Ggml(Type::Q5_K) = k_blocks::Q5K,
        Kind::Ggml(Type::Q6_K) = k_blocks::Q6K,
        Kind::Ggml(Type::IQ4_NL) = blocks::Iq4Nl,
        Kind::Ggml(Type::IQ4_XS) = k_blocks::Iq4Xs,
        Kind::Ggml(Type::MXFP4) = blocks::Mxfp4Block,
        Kind::Ggml(Type::NVFP4) = blocks::Nvfp4Block,
        Kind::Affine { bits: 4, group, scales } = Affine::<4> { shift: group.trailing_zeros(), scales },
        Kind::Affine { group, scales, .. } = Affine::<8> { shift: group.trailing_zeros(), scales },
        Kind::Scaled(Scaled::Nvfp4) = blocks::Nvfp4,
        Kind::Scaled(Scaled::Mxfp4) = blocks::Mxfp4,
    }
}

/// Affine codes of tensor blobs; those of eight bits are taken 128 lower. A group has `1 << shift` of them.
#[derive(Clone, Copy)]
struct Affine<const BITS: u8> {
    shift: u32,
    scales: Float,
}

impl<const BITS: u8> Codes for Affine<BITS> {
    type Group = Terms;
    const GROUP: usize = 32;
    const HAS_OFFSET: bool = true;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn group(self, row: RowAt, k: usize) -> Terms {
        let group = k >> self.shift;
        // SAFETY: a row has a scale and a bias for each group of its numbers.
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
            return _mm256_and_si256(unsafe { neighbours(row.codes.add(k / 2)) }, _mm256_set1_epi8(15));
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
    for (j, tile) in x.tiles() {
        for i in 0..rows.len() {
            let at = RowAt::new(rows, i);
            let mut sums = [_mm256_setzero_ps(); TILE];
            if tile.len() == x.depth() {
                // SAFETY: the row has as many numbers as the columns, and is of this kind.
                unsafe { row::<C, true>(format, at, rows.cols(), tile, &mut sums) };
            } else {
                // SAFETY: as above.
                unsafe { row::<C, false>(format, at, rows.cols(), tile, &mut sums) };
            }
            for (c, sum) in sums.iter().take(tile.len() / x.depth()).enumerate() {
                out.row(j + c)[i] = total(*sum);
            }
        }
    }
}

/// A row times the columns of a tile, or the one that there is.
///
/// # Safety
/// AVX2 is there, and the row has `cols` numbers of this format.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn row<C: Codes, const ONE: bool>(
    format: C,
    at: RowAt,
    cols: usize,
    tile: &[Block],
    sums: &mut [__m256; TILE],
) {
    let t = if ONE { 1 } else { tile.len() / cols.div_ceil(QK) };
    for first in (0..cols).step_by(C::GROUP) {
        // SAFETY: a group begins here.
        let group = unsafe { format.group(at, first) };
        for k in (first..first + C::GROUP).step_by(32) {
            // SAFETY: k + 32 <= cols, inside that group.
            let (codes, terms) = unsafe { (values(format, at, k), format.terms(group, k)) };
            let magnitudes = _mm256_abs_epi8(codes);
            let mut scale = _mm256_blend_ps::<0xf0>(terms[0].scale, terms[1].scale);
            if C::HAS_FACTOR {
                scale = _mm256_mul_ps(scale, _mm256_set1_ps(at.factor));
            }
            let g = k % QK / 32;
            for (c, x) in tile[k / QK * t..][..t].iter().enumerate() {
                // SAFETY: 32 of the codes of a block.
                let others = unsafe { _mm256_loadu_si256(x.codes.as_ptr().add(32 * g).cast()) };
                // At most 128 * 127 * 2, which sixteen bits hold.
                let pairs = _mm256_maddubs_epi16(magnitudes, _mm256_sign_epi8(others, codes));
                let dots = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
                let dots = _mm256_mul_ps(_mm256_cvtepi32_ps(dots), _mm256_set1_ps(x.d[Order::lane(g)]));
                let mut sum = _mm256_fmadd_ps(dots, scale, sums[c]);
                if C::HAS_OFFSET {
                    let offset = _mm256_blend_ps::<0xf0>(terms[0].offset, terms[1].offset);
                    // A quarter of it in each of four lanes.
                    let part = |n| _mm256_set1_ps(0.25 * x.fine_sums[Order::fine_lane(2 * g + n)]);
                    sum = _mm256_fnmadd_ps(offset, _mm256_blend_ps::<0xf0>(part(0), part(1)), sum);
                }
                sums[c] = sum;
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn total(sums: __m256) -> f32 {
    let four = _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps::<1>(sums));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
}

//! Products with many columns for signed codes of eight bits: as in `avx2_panel`, but codes are widened to sixteen bits.
//! One instruction then multiplies two codes of a column with those of eight rows. Called only by `avx2`.
//!
//! Two such instructions replace three on bytes (one transfers signs, one multiplies, one adds pairs), and processors have
//! two ports for either kind.
#![allow(unsafe_code)] // Reads codes and scales through pointers.

use std::arch::x86_64::*;

use super::super::decode::blocks::Codes;
use super::super::rows::Rows;
use super::super::window::Window;
use super::avx2_block::Factors;
use super::avx2_panel::{
    PANELS, R, add_scaled, fill_rows, finish, in_register, scale_count, transpose, vectors,
};
use super::columns::{Block, Columns, LaneOrder, QK};

/// Bytes of panels that stay in the L2 cache while all columns are processed.
const PANELS_BYTES: usize = 1 << 19;
/// Columns of a tile that are multiplied together: with more, the blocks and sums do not fit the L1 cache.
const T: usize = 8;
/// Vectors for the codes of a block in a panel: two codes of each row in each.
const CODES: usize = QK / 2;
/// Vectors for the codes of a block of a column.
const WIDE: usize = QK / 16;

/// Vectors per block in a panel: codes in twos, then scales, then offsets.
const fn block_len<C: Codes>() -> usize {
    CODES + if C::HAS_OFFSET { 2 * scale_count::<C>() } else { scale_count::<C>() }
}

/// Multiplies all columns with rows that are whole panels.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn products<C: Codes>(
    format: C,
    rows: &Rows<'_>,
    x: &Columns,
    out: &mut Window<'_>,
    scratch: &mut Vec<f32>,
) {
    let kind = const { Factors::of::<C>() };
    let (n, depth) = (rows.len() / R, x.depth());
    assert!(kind.is_signed && kind.excess_shift.is_none() && rows.len() == n * R);
    let panel_len = depth * block_len::<C>();
    let at_once = (PANELS_BYTES / (panel_len * size_of::<__m256i>()) / PANELS * PANELS).max(PANELS).min(n);
    let (wide, panels) =
        vectors(scratch, depth * T * WIDE + at_once * panel_len).split_at_mut(depth * T * WIDE);
    for first in (0..n).step_by(at_once) {
        let panels = &mut panels[..at_once.min(n - first) * panel_len];
        for (p, panel) in panels.chunks_exact_mut(panel_len).enumerate() {
            fill_panel(format, rows, (first + p) * R, panel);
        }
        for (j, tile) in x.tiles() {
            let t = tile.len() / depth;
            for c in (0..t).step_by(T) {
                let columns = T.min(t - c);
                let part = tile.chunks_exact(t).flat_map(|blocks| &blocks[c..c + columns]);
                for (x, wide) in part.zip(wide.as_chunks_mut::<WIDE>().0) {
                    widen_column(x, wide);
                }
                let x = (tile, t, c, columns);
                for (pair, panels) in panels.chunks(PANELS * panel_len).enumerate() {
                    let to = (j + c, (first + PANELS * pair) * R);
                    match (panels.len() / panel_len, C::ONE_SCALE) {
                        (PANELS, true) => multiply::<C, PANELS, 8>(panels, x, wide, out, to),
                        (PANELS, false) => multiply::<C, PANELS, 16>(panels, x, wide, out, to),
                        (_, true) => multiply::<C, 1, 8>(panels, x, wide, out, to),
                        (_, false) => multiply::<C, 1, 16>(panels, x, wide, out, to),
                    }
                }
            }
        }
    }
}

/// Unpacks eight rows from row `first`.
#[target_feature(enable = "avx2,fma,f16c")]
fn fill_panel<C: Codes>(format: C, rows: &Rows<'_>, first: usize, panel: &mut [__m256i]) {
    fill_rows(format, rows, first, panel, block_len::<C>(), CODES);
    for block in panel.chunks_exact_mut(block_len::<C>()) {
        let (codes, scales) = block.split_at_mut(CODES);
        for eight in codes[..CODES / 2].as_chunks_mut::<R>().0.iter_mut().chain(scales.as_chunks_mut::<R>().0)
        {
            *eight = transpose(*eight);
        }
        for four in (0..CODES / 2).rev() {
            [codes[2 * four], codes[2 * four + 1]] = widen_codes(codes[four]);
        }
    }
}

/// Widens four codes in each lane to sixteen bits: the first two of each lane, and the others.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn widen_codes(fours: __m256i) -> [__m256i; 2] {
    // Into the high bytes of sixteen bits.
    let first = _mm_setr_epi8(-1, 0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13);
    let others = _mm_setr_epi8(-1, 2, -1, 3, -1, 6, -1, 7, -1, 10, -1, 11, -1, 14, -1, 15);
    [first, others]
        .map(|places| _mm256_srai_epi16::<8>(_mm256_shuffle_epi8(fours, _mm256_broadcastsi128_si256(places))))
}

/// The codes of a block of a column in sixteen bits.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn widen_column(x: &Block, wide: &mut [__m256i; WIDE]) {
    for (codes, wide) in x.codes.as_chunks::<16>().0.iter().zip(wide) {
        // SAFETY: sixteen codes.
        *wide = _mm256_cvtepi8_epi16(unsafe { _mm_loadu_si128(codes.as_ptr().cast()) });
    }
}

/// Sums of the products of PN panels with the columns, for each of the N scales of a block; a lane per row.
type Sums<const PN: usize, const N: usize> = [[[__m256; T]; PN]; N];

/// Multiplies PN panels of a format with N scales per block by `columns` columns from column `c` of a tile of `t`.
#[target_feature(enable = "avx2,fma,f16c")]
fn multiply<C: Codes, const PN: usize, const N: usize>(
    panels: &[__m256i],
    (x, t, c, columns): (&[Block], usize, usize, usize),
    wide: &[__m256i],
    out: &mut Window<'_>,
    (j, i): (usize, usize),
) {
    let len = const { block_len::<C>() };
    let depth = panels.len() / len / PN;
    assert!(N == scale_count::<C>() && panels.len() == PN * depth * len && x.len() == depth * t);
    assert!(c + columns <= t && columns <= T && wide.len() >= depth * columns * WIDE);
    let mut sums: Sums<PN, N> = [[[_mm256_setzero_ps(); _]; _]; _];
    let wide = wide.as_chunks::<WIDE>().0.chunks_exact(columns);
    for (b, (x, wide)) in x.chunks_exact(t).zip(wide).enumerate() {
        let x = &x[c..c + columns];
        let blocks: [*const __m256i; PN] =
            std::array::from_fn(|p| panels[(p * depth + b) * len..(p * depth + b + 1) * len].as_ptr());
        let mut c = 0;
        // SAFETY: whole blocks of panels of this format.
        unsafe {
            for (x, wide) in x.as_chunks::<4>().0.iter().zip(wide.as_chunks::<4>().0) {
                multiply_block::<C, PN, 4, N>(blocks, x, wide, &mut sums, c);
                c += 4;
            }
            for (x, wide) in x[c..].as_chunks::<1>().0.iter().zip(wide[c..].as_chunks::<1>().0) {
                multiply_block::<C, PN, 1, N>(blocks, x, wide, &mut sums, c);
                c += 1;
            }
        }
    }
    finish(&mut sums, columns, out, (j, i));
}

/// Adds the products of a block of PN panels with CN columns from column `c` of the sums.
///
/// # Safety
/// The blocks are whole and of this format.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn multiply_block<C: Codes, const PN: usize, const CN: usize, const N: usize>(
    blocks: [*const __m256i; PN],
    x: &[Block; CN],
    wide: &[[__m256i; WIDE]; CN],
    sums: &mut Sums<PN, N>,
    c: usize,
) {
    for (lane, sums) in sums.iter_mut().enumerate() {
        // SAFETY: guaranteed by the caller; a block has this lane.
        unsafe {
            let dots = multiply_lane::<C, PN, CN>(blocks, wide, lane);
            add_scaled::<C, PN, CN, N, T>(dots, blocks.map(|block| block.add(CODES)), x, lane, sums, c);
        }
    }
}

/// The sums of products of the codes that share scale `lane`, by panel and column; a lane per row.
///
/// # Safety
/// The panels have whole blocks of the format.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn multiply_lane<C: Codes, const PN: usize, const CN: usize>(
    panels: [*const __m256i; PN],
    x: &[[__m256i; WIDE]; CN],
    lane: usize,
) -> [[__m256i; CN]; PN] {
    let (group, steps) =
        if C::ONE_SCALE { (LaneOrder::GROUPS_OF_32[lane], 16) } else { (LaneOrder::GROUPS_OF_16[lane], 8) };
    let first = usize::from(group) * steps;
    let mut dots = [[_mm256_setzero_si256(); CN]; PN];
    for two in first..first + steps {
        // SAFETY: guaranteed by the caller.
        let factors = panels.map(|panel| unsafe { *panel.add(two) });
        for (c, x) in x.iter().enumerate() {
            // SAFETY: two of the block's 256 codes.
            let x = _mm256_set1_epi32(unsafe { *x.as_ptr().cast::<i32>().add(two) });
            for (dots, factors) in dots.iter_mut().zip(factors) {
                dots[c] = _mm256_add_epi32(dots[c], _mm256_madd_epi16(factors, x));
            }
        }
        for dots in dots.as_flattened_mut() {
            in_register(dots);
        }
    }
    dots
}

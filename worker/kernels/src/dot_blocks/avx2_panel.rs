//! Products with many columns: eight rows are unpacked once and arranged as a panel with one lane per row. One
//! instruction then multiplies four codes of a column with those of eight rows. Called only by `avx2`, for unsigned codes.
#![allow(unsafe_code)] // Reads codes and scales through pointers.

use std::arch::x86_64::*;

use super::super::decode::blocks::Codes;
use super::super::decode::load::RowAt;
use super::super::rows::Rows;
use super::super::window::Window;
use super::avx2_block::{Factors, Unpacked, prefetch, unpack_part, widen};
use super::columns::{Block, Columns, LaneOrder, QK, TILE};

/// Rows per panel: the lanes of a vector.
pub(super) const R: usize = 8;
/// Panels that are multiplied together, and share the loads of the columns.
pub(super) const PANELS: usize = 2;
/// Bytes of panels that stay in the L2 cache while all columns are processed.
const PANELS_BYTES: usize = 1 << 18;
/// Vectors for the codes of a block in a panel: four codes of each row in each.
const CODES: usize = QK / 4;

/// Scales per 256 values of a row.
pub(super) const fn scale_count<C: Codes>() -> usize {
    if C::ONE_SCALE { 8 } else { 16 }
}

/// Vectors per block in a panel: codes in fours, then scales, then offsets.
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
    let (n, depth) = (rows.len() / R, x.depth());
    assert!(rows.len() == n * R);
    let panel_len = depth * block_len::<C>();
    let at_once = (PANELS_BYTES / (panel_len * size_of::<__m256i>()) / PANELS * PANELS).max(PANELS);
    for first in (0..n).step_by(at_once) {
        let panels = vectors(scratch, at_once.min(n - first) * panel_len);
        for (p, panel) in panels.chunks_exact_mut(panel_len).enumerate() {
            fill_panel(format, rows, (first + p) * R, panel);
        }
        for (j, tile) in x.tiles() {
            let x = (tile, tile.len() / depth);
            for (pair, panels) in panels.chunks(PANELS * panel_len).enumerate() {
                let to = (j, (first + PANELS * pair) * R);
                match (panels.len() / panel_len, C::ONE_SCALE) {
                    (PANELS, true) => multiply::<C, PANELS, 8>(panels, x, out, to),
                    (PANELS, false) => multiply::<C, PANELS, 16>(panels, x, out, to),
                    (_, true) => multiply::<C, 1, 8>(panels, x, out, to),
                    (_, false) => multiply::<C, 1, 16>(panels, x, out, to),
                }
            }
        }
    }
}

/// Working space for this many vectors.
pub(super) fn vectors(scratch: &mut Vec<f32>, n: usize) -> &mut [__m256i] {
    if scratch.len() < R * n + R - 1 {
        scratch.resize(R * n + R - 1, 0.0);
    }
    // SAFETY: any bits are a vector of integers.
    let (_, vectors, _) = unsafe { scratch.align_to_mut::<__m256i>() };
    &mut vectors[..n]
}

/// Unpacks eight rows from row `first`.
#[target_feature(enable = "avx2,fma,f16c")]
fn fill_panel<C: Codes>(format: C, rows: &Rows<'_>, first: usize, panel: &mut [__m256i]) {
    fill_rows(format, rows, first, panel, block_len::<C>(), CODES);
    for eight in panel.as_chunks_mut::<R>().0 {
        *eight = transpose(*eight);
    }
}

/// Unpacks eight rows from row `first` into blocks of `len` vectors, which begin with space for `codes` vectors of codes.
/// Of each eight vectors, vector n belongs to row n.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn fill_rows<C: Codes>(
    format: C,
    rows: &Rows<'_>,
    first: usize,
    panel: &mut [__m256i],
    len: usize,
    codes: usize,
) {
    let block_bytes = rows.dtype().row_bytes(QK);
    for row in 0..R {
        let at = RowAt::new(rows, first + row);
        for (b, panel) in panel.chunks_exact_mut(len).enumerate() {
            prefetch(at.codes.wrapping_add(b * block_bytes), block_bytes);
            // SAFETY: the row is of this format and has these values.
            let block = unsafe { unpack_part(format, at, b * QK, (rows.cols() - b * QK) / 32) };
            let Unpacked { factors, scales, offsets } = block;
            let (to_codes, to_scales) = panel.split_at_mut(codes);
            for (factors, to) in factors.iter().zip(to_codes.chunks_exact_mut(R)) {
                to[row] = *factors;
            }
            let n = scale_count::<C>() / R;
            for (lanes, to) in scales[..n].iter().chain(&offsets[..n]).zip(to_scales.chunks_exact_mut(R)) {
                to[row] = _mm256_castps_si256(*lanes);
            }
        }
    }
}

/// Transposes eight vectors of eight lanes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn transpose(rows: [__m256i; R]) -> [__m256i; R] {
    let pairs: [__m256i; R] = std::array::from_fn(|n| {
        let (a, b) = (rows[n / 2 * 2], rows[n / 2 * 2 + 1]);
        if n.is_multiple_of(2) { _mm256_unpacklo_epi32(a, b) } else { _mm256_unpackhi_epi32(a, b) }
    });
    // Lanes n and n + 4 of four rows.
    let four = |first: usize, n: usize| {
        let (a, b) = (pairs[first + n / 2], pairs[first + 2 + n / 2]);
        if n.is_multiple_of(2) { _mm256_unpacklo_epi64(a, b) } else { _mm256_unpackhi_epi64(a, b) }
    };
    std::array::from_fn(|lane| {
        let (a, b) = (four(0, lane % 4), four(4, lane % 4));
        if lane < 4 {
            _mm256_permute2x128_si256::<0x20>(a, b)
        } else {
            _mm256_permute2x128_si256::<0x31>(a, b)
        }
    })
}

/// Sums of the products of PN panels with the columns of a tile, for each of the N scales of a block; a lane per row.
type Sums<const PN: usize, const N: usize> = [[[__m256; TILE]; PN]; N];

/// Multiplies PN panels of a format with N scales per block by a tile of `t` columns.
#[target_feature(enable = "avx2,fma,f16c")]
fn multiply<C: Codes, const PN: usize, const N: usize>(
    panels: &[__m256i],
    (x, t): (&[Block], usize),
    out: &mut Window<'_>,
    (j, i): (usize, usize),
) {
    let len = const { block_len::<C>() };
    let depth = panels.len() / len / PN;
    assert!(N == scale_count::<C>() && panels.len() == PN * depth * len && x.len() == depth * t);
    let mut sums: Sums<PN, N> = [[[_mm256_setzero_ps(); _]; _]; _];
    for (b, x) in x.chunks_exact(t).enumerate() {
        // All columns use a block while it is in the L1 cache.
        let blocks: [*const __m256i; PN] =
            std::array::from_fn(|p| panels[(p * depth + b) * len..(p * depth + b + 1) * len].as_ptr());
        let (fours, others) = x.as_chunks::<4>();
        // SAFETY: whole blocks of panels of this format.
        unsafe {
            for (n, x) in fours.iter().enumerate() {
                multiply_block::<C, PN, 4, N>(blocks, x, &mut sums, 4 * n);
            }
            let (twos, others) = others.as_chunks::<2>();
            let mut c = 4 * fours.len();
            for x in twos {
                multiply_block::<C, PN, 2, N>(blocks, x, &mut sums, c);
                c += 2;
            }
            for x in others.as_chunks::<1>().0 {
                multiply_block::<C, PN, 1, N>(blocks, x, &mut sums, c);
            }
        }
    }
    finish(&mut sums, t, out, (j, i));
}

/// Adds the sums of all scales for `t` columns. The results go to columns `i`.. of `out`, in rows `j`...
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn finish<const T: usize, const PN: usize, const N: usize>(
    sums: &mut [[[__m256; T]; PN]; N],
    t: usize,
    out: &mut Window<'_>,
    (j, i): (usize, usize),
) {
    // The same order as in `avx2::total`.
    let mut left = N;
    while left > 1 {
        left /= 2;
        let (kept, others) = sums.split_at_mut(left);
        for (kept, others) in kept.as_flattened_mut().iter_mut().zip(others.as_flattened()) {
            for (sum, other) in kept[..t].iter_mut().zip(others) {
                *sum = _mm256_add_ps(*sum, *other);
            }
        }
    }
    for (p, sums) in sums[0].iter().enumerate() {
        for (c, sum) in sums.iter().enumerate().take(t) {
            let mut numbers = [0.0; R];
            // SAFETY: eight values.
            unsafe { _mm256_storeu_ps(numbers.as_mut_ptr(), *sum) };
            out.row(j + c)[i + p * R..i + (p + 1) * R].copy_from_slice(&numbers);
        }
    }
}

/// Adds the products of a block of PN panels with CN columns from column `c` of a tile.
///
/// # Safety
/// The blocks are whole and of this format.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn multiply_block<C: Codes, const PN: usize, const CN: usize, const N: usize>(
    blocks: [*const __m256i; PN],
    x: &[Block; CN],
    sums: &mut Sums<PN, N>,
    c: usize,
) {
    for (lane, sums) in sums.iter_mut().enumerate() {
        // SAFETY: guaranteed by the caller; a block has this lane.
        unsafe {
            let dots = multiply_lane::<C, PN, CN>(blocks, x, lane);
            add_scaled::<C, PN, CN, N, TILE>(dots, blocks.map(|block| block.add(CODES)), x, lane, sums, c);
        }
    }
}

/// Scales the sums of products of the codes that share scale `lane`, and adds them to the sums from column `c` on.
///
/// # Safety
/// The blocks have N scales at `scales`, and then the offsets.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn add_scaled<
    C: Codes,
    const PN: usize,
    const CN: usize,
    const N: usize,
    const T: usize,
>(
    dots: [[__m256i; CN]; PN],
    scales: [*const __m256i; PN],
    x: &[Block; CN],
    lane: usize,
    sums: &mut [[__m256; T]; PN],
    c: usize,
) {
    let coarse = if C::ONE_SCALE { lane } else { lane / 8 * 4 + lane % 4 };
    for ((sums, dots), scales) in sums.iter_mut().zip(dots).zip(scales) {
        // Without checks of bounds: after a branch, the compiler would keep all columns in memory.
        // SAFETY: guaranteed by the caller.
        let (scale, offset) = unsafe {
            let scale = scales.add(lane);
            let offset = if C::HAS_OFFSET { scale.add(N) } else { scale };
            (_mm256_castsi256_ps(*scale), _mm256_castsi256_ps(*offset))
        };
        for ((sum, dots), x) in sums[c..c + CN].iter_mut().zip(dots).zip(x) {
            let dots = _mm256_mul_ps(_mm256_cvtepi32_ps(dots), _mm256_set1_ps(x.d[coarse]));
            *sum = _mm256_fmadd_ps(dots, scale, *sum);
            if C::HAS_OFFSET {
                let of_x = if C::ONE_SCALE { x.sums[lane] } else { x.fine_sums[lane] };
                *sum = _mm256_fnmadd_ps(offset, _mm256_set1_ps(of_x), *sum);
            }
        }
    }
}

/// Requires a sum to be in a register here. Otherwise the compiler multiplies one panel after the other, and keeps the
/// columns for the others in memory.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn in_register(sum: &mut __m256i) {
    // SAFETY: the text is a comment.
    unsafe { std::arch::asm!("/* {} */", inout(ymm_reg) * sum, options(nomem, nostack, preserves_flags)) };
}

/// The sums of products of the codes that share scale `lane`, by panel and column; a lane per row.
///
/// # Safety
/// The panels have whole blocks of the format.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn multiply_lane<C: Codes, const PN: usize, const CN: usize>(
    panels: [*const __m256i; PN],
    x: &[Block; CN],
    lane: usize,
) -> [[__m256i; CN]; PN] {
    let kind = const { Factors::of::<C>() };
    let (group, steps) =
        if C::ONE_SCALE { (LaneOrder::GROUPS_OF_32[lane], 8) } else { (LaneOrder::GROUPS_OF_16[lane], 4) };
    let first = usize::from(group) * steps;
    let narrow_steps = if kind.pairs < steps { kind.pairs } else { steps };
    let mut dots = [x.each_ref().map(|x| match kind.excess_shift {
        Some(shift) => {
            let less = if C::ONE_SCALE { x.less[lane] } else { x.fine_less[lane] };
            _mm256_set1_epi32(less >> shift)
        }
        None => _mm256_setzero_si256(),
    }); PN];
    // SAFETY: the block has this lane's codes.
    let panels = panels.map(|panel| unsafe { panel.add(first) });
    // SAFETY: as above; four codes at a time.
    let codes = x.each_ref().map(|x| unsafe { x.codes.as_ptr().cast::<i32>().add(first) });
    for narrow in (0..steps).step_by(narrow_steps) {
        let mut pairs = [[_mm256_setzero_si256(); CN]; PN];
        for four in narrow..narrow + narrow_steps {
            // SAFETY: guaranteed by the caller.
            let factors = panels.map(|panel| unsafe { *panel.add(four) });
            for (c, codes) in codes.iter().enumerate() {
                // SAFETY: four of the block's 256 codes.
                let x = _mm256_set1_epi32(unsafe { codes.add(four).read_unaligned() });
                for (pairs, factors) in pairs.iter_mut().zip(factors) {
                    pairs[c] = _mm256_add_epi16(pairs[c], _mm256_maddubs_epi16(factors, x));
                }
            }
            for pairs in pairs.as_flattened_mut() {
                in_register(pairs);
            }
        }
        for (dots, pairs) in dots.as_flattened_mut().iter_mut().zip(pairs.as_flattened()) {
            *dots = _mm256_add_epi32(*dots, widen(*pairs));
        }
    }
    dots
}

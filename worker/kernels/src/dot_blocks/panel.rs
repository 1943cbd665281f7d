//! Products with many columns: sixteen rows are unpacked once and arranged as a panel with one lane per row.
//! One instruction then multiplies four codes of a column with those of sixteen rows. Called only by
//! `avx512` and `amx`.
#![allow(unsafe_code)] // Reads packed bytes through pointers at any alignment.

use std::arch::x86_64::*;

use super::super::prefetch::prefetch;
use super::super::rows::Rows;
use super::super::window::Window;
use super::columns::{Block, Columns, LaneOrder};
use super::four_rows::{FOUR, FourRows, Lanes, Unpack};

/// Rows per panel: the lanes of a vector.
pub(super) const R: usize = 16;
/// Bytes of panels that stay in the L2 cache while all columns are processed.
const PANELS_BYTES: usize = 1 << 19;
/// Vectors for the codes of a block in a panel.
pub(super) const CODES: usize = 64;

/// Vectors per block in a panel: codes in fours, then scales, then minima.
pub(super) const fn block_len(lanes: usize, has_minima: bool) -> usize {
    CODES + if has_minima { 2 * lanes } else { lanes }
}

/// Multiplies a panel by the columns of a tile, with some instructions.
pub(super) trait MultiplyTile {
    /// Multiplies a panel with `N` scales per block of a row by a tile of `t` columns. The codes are above their
    /// values by 128 shifted right by `above`, or there are minima. The results go to columns `i`.. of `out`, in rows
    /// `j`...
    ///
    /// # Safety
    /// The processor has the instructions.
    unsafe fn multiply<const N: usize, const IS_ABOVE: bool>(
        panel: &[__m512i],
        x: (&[Block], usize),
        above: u32,
        out: &mut Window<'_>,
        to: (usize, usize),
    );
}

/// Multiplies all columns with rows that are whole panels. The processor must have the instructions of `M`.
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn products<U: Unpack, M: MultiplyTile>(
    unpack: U,
    rows: &Rows<'_>,
    x: &Columns,
    out: &mut Window<'_>,
    scratch: &mut Vec<f32>,
) {
    let (n, depth) = (rows.len() / R, x.depth());
    assert!(rows.len() == n * R);
    let panel_len = depth * block_len(U::Lanes::N, U::EXCESS_SHIFT.is_none());
    let at_once = (PANELS_BYTES / (panel_len * size_of::<__m512i>())).max(1);
    for first in (0..n).step_by(at_once) {
        let panels = vectors(scratch, at_once.min(n - first) * panel_len);
        for (p, panel) in panels.chunks_exact_mut(panel_len).enumerate() {
            fill_panel(unpack, rows, (first + p) * R, panel);
        }
        for (j, tile) in x.tiles() {
            let t = tile.len() / depth;
            for (p, panel) in panels.chunks_exact(panel_len).enumerate() {
                let (x, to) = ((tile, t), (j, (first + p) * R));
                // SAFETY: guaranteed by the caller.
                unsafe {
                    match (U::Lanes::N, U::EXCESS_SHIFT) {
                        (8, None) => M::multiply::<8, false>(panel, x, 0, out, to),
                        (8, Some(above)) => M::multiply::<8, true>(panel, x, above, out, to),
                        (_, None) => M::multiply::<16, false>(panel, x, 0, out, to),
                        (_, Some(above)) => M::multiply::<16, true>(panel, x, above, out, to),
                    }
                }
            }
        }
    }
}

/// Working space for this many vectors.
fn vectors(scratch: &mut Vec<f32>, n: usize) -> &mut [__m512i] {
    if scratch.len() < 16 * n + 15 {
        scratch.resize(16 * n + 15, 0.0);
    }
    // SAFETY: any bits are a vector of integers.
    let (_, vectors, _) = unsafe { scratch.align_to_mut::<__m512i>() };
    &mut vectors[..n]
}

/// Unpacks sixteen rows from row `first`.
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn fill_panel<U: Unpack>(unpack: U, rows: &Rows<'_>, first: usize, panel: &mut [__m512i]) {
    let len = block_len(U::Lanes::N, U::EXCESS_SHIFT.is_none());
    let vectors = U::Lanes::N / FOUR;
    let codes = rows.row(first).0;
    let depth = panel.len() / len;
    for q in 0..FOUR {
        // Take rows at a distance of four, so that they come out in order.
        let four = FourRows::new(unpack, rows, first + q, FOUR);
        for (b, (at, to)) in four.blocks(unpack).zip(panel.chunks_exact_mut(len)).enumerate() {
            // The rows of the next panel, in the order of their addresses.
            let after = R * codes.len() + (q * depth + b) * FOUR * U::BYTES;
            prefetch(codes.as_ptr().wrapping_add(after), FOUR * U::BYTES);
            // SAFETY: a block of the rows.
            let (codes, (scales, minima)) = unsafe { (unpack.codes(at), unpack.scales(at)) };
            let (to_codes, to_scales) = to.split_at_mut(CODES);
            for (codes, to) in codes.iter().zip(to_codes.chunks_exact_mut(FOUR)) {
                to[q] = *codes;
            }
            for (n, to) in to_scales.chunks_exact_mut(FOUR).enumerate() {
                let lanes = if n < vectors { scales.as_ref()[n] } else { minima.as_ref()[n - vectors] };
                to[q] = _mm512_castps_si512(lanes);
            }
        }
    }
    for four in panel.as_chunks_mut::<FOUR>().0 {
        *four = interleave(*four);
    }
}

/// Transposes four vectors with four lanes of each of four rows: lane l of all rows becomes vector l, in
/// which row r of vector v is lane 4 r + v.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn interleave([a, b, c, d]: [__m512i; FOUR]) -> [__m512i; FOUR] {
    let low = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
    let high = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
    [
        _mm512_unpacklo_epi64(low.0, low.1),
        _mm512_unpackhi_epi64(low.0, low.1),
        _mm512_unpacklo_epi64(high.0, high.1),
        _mm512_unpackhi_epi64(high.0, high.1),
    ]
}

/// Multiplies up to sixteen columns at a time, with VNNI.
pub(super) struct Vnni;

impl MultiplyTile for Vnni {
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    unsafe fn multiply<const N: usize, const IS_ABOVE: bool>(
        panel: &[__m512i],
        (x, t): (&[Block], usize),
        above: u32,
        out: &mut Window<'_>,
        (j, i): (usize, usize),
    ) {
        let mut c = 0;
        while c < t {
            let step = 1 << (t - c).ilog2().min(3);
            let run = match step {
                8 => tile::<N, IS_ABOVE, 8>,
                4 => tile::<N, IS_ABOVE, 4>,
                2 => tile::<N, IS_ABOVE, 2>,
                _ => tile::<N, IS_ABOVE, 1>,
            };
            run(panel, (x, t, c), above, out, (j + c, i));
            c += step;
        }
    }
}

/// Multiplies a panel by CN columns from column `c` of a tile of `t`.
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn tile<const N: usize, const IS_ABOVE: bool, const CN: usize>(
    panel: &[__m512i],
    (x, t, c): (&[Block], usize, usize),
    above: u32,
    out: &mut Window<'_>,
    (j, i): (usize, usize),
) {
    let len = const { block_len(N, !IS_ABOVE) };
    let depth = panel.len() / len;
    assert!(panel.len() == depth * len && x.len() == depth * t && c + CN <= t);
    let mut sums = [[_mm512_setzero_ps(); CN]; N];
    for (panel, x) in panel.chunks_exact(len).zip(x.chunks_exact(t)) {
        let Some((x, _)) = x[c..].split_first_chunk::<CN>() else { unreachable!("c + CN <= t") };
        for (lane, sums) in sums.iter_mut().enumerate() {
            let first =
                if N == 16 { 4 * LaneOrder::GROUPS_OF_16[lane] } else { 8 * LaneOrder::GROUPS_OF_32[lane] };
            let first = usize::from(first);
            let coarse = if N == 16 { lane / 8 * 4 + lane % 4 } else { lane };
            let mut dots: [__m512i; CN] = std::array::from_fn(|c| match IS_ABOVE {
                true => {
                    _mm512_set1_epi32(if N == 16 { x[c].fine_less[lane] } else { x[c].less[lane] } >> above)
                }
                false => _mm512_setzero_si512(),
            });
            for (four, &w) in (first..).zip(&panel[first..first + CODES / N]) {
                for (dots, x) in dots.iter_mut().zip(x) {
                    // SAFETY: four of the block's 256 codes.
                    let x = unsafe { x.codes.as_ptr().cast::<i32>().add(four).read_unaligned() };
                    *dots = _mm512_dpbusd_epi32(*dots, w, _mm512_set1_epi32(x));
                }
            }
            let scale = _mm512_castsi512_ps(panel[CODES + lane]);
            let minimum = if IS_ABOVE { scale } else { _mm512_castsi512_ps(panel[CODES + N + lane]) };
            // Not an iterator over all of them, which the compiler does not unroll.
            for c in 0..CN {
                let dots = _mm512_mul_ps(_mm512_cvtepi32_ps(dots[c]), _mm512_set1_ps(x[c].d[coarse]));
                sums[c] = _mm512_fmadd_ps(dots, scale, sums[c]);
                if !IS_ABOVE {
                    let of_x = if N == 16 { x[c].fine_sums[lane] } else { x[c].sums[lane] };
                    sums[c] = _mm512_fnmadd_ps(minimum, _mm512_set1_ps(of_x), sums[c]);
                }
            }
        }
    }
    add_lanes(&mut sums);
    for (c, sum) in sums[0].into_iter().enumerate() {
        store(sum, &mut out.row(j + c)[i..i + R]);
    }
}

/// Adds the sums of all lanes to the first one, in the same order as `avx512::totals`.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn add_lanes<const N: usize, const CN: usize>(sums: &mut [[__m512; CN]; N]) {
    let mut left = N;
    while left > 1 {
        left /= 2;
        let (kept, others) = sums.split_at_mut(left);
        for (kept, others) in kept.iter_mut().zip(others) {
            for (sum, other) in kept.iter_mut().zip(others) {
                *sum = _mm512_add_ps(*sum, *other);
            }
        }
    }
}

/// Writes the lanes of a vector.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn store(sum: __m512, to: &mut [f32]) {
    let mut numbers = [0.0; R];
    // SAFETY: sixteen values.
    unsafe { _mm512_storeu_ps(numbers.as_mut_ptr(), sum) };
    to.copy_from_slice(&numbers);
}

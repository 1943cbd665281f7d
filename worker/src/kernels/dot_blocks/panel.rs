//! Products with many columns: sixteen rows are unpacked once and laid out so that each has a lane of its own, then every
//! column's four codes meet those of sixteen rows in one instruction. Called by `avx512` alone.
#![allow(unsafe_code)] // Reads packed bytes through pointers at any alignment.

use std::arch::x86_64::*;

use super::super::rows::Rows;
use super::super::window::Window;
use super::avx512::{Lanes, RowBlocks, Unpack};
use super::columns::Block;
use super::{Columns, Order};

/// Rows of a panel: lanes of a vector.
const R: usize = 16;
/// Bytes of panels that stay in the second-level cache while all columns pass by.
const PANELS_BYTES: usize = 1 << 19;
/// Vectors of a block's codes in a panel.
const CODES: usize = 64;

/// 256 numbers of sixteen rows, a row's in each vector: codes, scales and minima.
type Raw = [[__m512i; R]; 6];

/// Vectors of a block in a panel: codes by fours, then scales, then minima.
const fn block_len(lanes: usize, signed: bool) -> usize {
    CODES + if signed { lanes } else { 2 * lanes }
}

#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn products<U: Unpack>(
    unpack: U,
    rows: &Rows<'_>,
    x: &Columns,
    out: &mut Window<'_>,
    scratch: &mut Vec<f32>,
) {
    let (n, depth) = (rows.len(), x.depth());
    let panel_len = depth * block_len(U::Lanes::N, U::SIGNED);
    let at_once = (PANELS_BYTES / (panel_len * size_of::<__m512i>())).max(1);
    for first in (0..n).step_by(at_once * R) {
        let some = rows.range(first, (at_once * R).min(n - first));
        let panels = vectors(scratch, some.len().div_ceil(R) * panel_len);
        for (p, panel) in panels.chunks_exact_mut(panel_len).enumerate() {
            lay_out(unpack, &some, p * R, panel);
        }
        for (j, tile) in x.tiles() {
            let t = tile.len() / depth;
            let mut c = 0;
            while c < t {
                let step = 1 << (t - c).ilog2();
                for (p, panel) in panels.chunks_exact(panel_len).enumerate() {
                    let to = (j + c, first + p * R);
                    let run = match step {
                        16 => times::<16>,
                        8 => times::<8>,
                        4 => times::<4>,
                        2 => times::<2>,
                        _ => times::<1>,
                    };
                    let shape = (U::Lanes::N, U::SIGNED);
                    run(shape, panel, (tile, t, c), out, to, (n_rows(some.len(), p), depth));
                }
                c += step;
            }
        }
    }
}

/// Rows of panel p of so many rows.
fn n_rows(n: usize, p: usize) -> usize {
    (n - p * R).min(R)
}

/// Space for so many vectors.
fn vectors(scratch: &mut Vec<f32>, n: usize) -> &mut [__m512i] {
    if scratch.len() < 16 * n + 15 {
        scratch.resize(16 * n + 15, 0.0);
    }
    // SAFETY: any bits are a vector of integers.
    let (_, vectors, _) = unsafe { scratch.align_to_mut::<__m512i>() };
    &mut vectors[..n]
}

/// Unpacks up to sixteen rows from row `first`; those that are not there are zero.
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn lay_out<U: Unpack>(unpack: U, rows: &Rows<'_>, first: usize, panel: &mut [__m512i]) {
    let len = block_len(U::Lanes::N, U::SIGNED);
    let n = n_rows(rows.len(), first / R);
    let blocks: [RowBlocks<'_>; R] =
        std::array::from_fn(|r| RowBlocks::new(unpack, rows, first + r.min(n - 1)));
    let mut raw: Raw = [[_mm512_setzero_si512(); R]; 6];
    let mut to = panel.chunks_exact_mut(len);
    for run in 0..2 {
        for (b, to) in (0..blocks[0].runs()[run].1).zip(&mut to) {
            for (r, row) in blocks.iter().enumerate().take(n) {
                let at = row.runs()[run].0.block(unpack, b);
                // SAFETY: a block of the row.
                let (codes, (scale, minimum)) = unsafe { (unpack.codes(at), unpack.scales(at)) };
                codes.into_iter().enumerate().for_each(|(v, codes)| raw[v][r] = codes);
                // SAFETY: as this function's.
                let (scale, minimum) = unsafe { (scale.wide(), minimum.wide()) };
                (raw[4][r], raw[5][r]) = (_mm512_castps_si512(scale), _mm512_castps_si512(minimum));
            }
            interleave(&raw, U::Lanes::N, to);
        }
    }
}

/// A block of a panel from its rows.
#[inline(never)]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn interleave(raw: &Raw, lanes: usize, to: &mut [__m512i]) {
    for (rows, to) in raw[..4].iter().zip(to.chunks_exact_mut(R)) {
        to.copy_from_slice(&transpose(rows));
    }
    for (rows, to) in raw[4..].iter().zip(to[CODES..].chunks_exact_mut(lanes)) {
        to.copy_from_slice(&transpose(rows)[..lanes]);
    }
}

/// Lane l of vector r becomes lane r of vector l.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn transpose(rows: &[__m512i; R]) -> [__m512i; R] {
    let mut fours = [[_mm512_setzero_si512(); 4]; 4];
    for (fours, rows) in fours.iter_mut().zip(rows.as_chunks::<4>().0) {
        let [a, b] = [(0, 1), (2, 3)]
            .map(|(a, b)| (_mm512_unpacklo_epi32(rows[a], rows[b]), _mm512_unpackhi_epi32(rows[a], rows[b])));
        *fours = [
            _mm512_unpacklo_epi64(a.0, b.0),
            _mm512_unpackhi_epi64(a.0, b.0),
            _mm512_unpacklo_epi64(a.1, b.1),
            _mm512_unpackhi_epi64(a.1, b.1),
        ];
    }
    // Lane q of each four of every row's lanes is in the fours' vectors q; what is left is to turn those fours around.
    let mut to = [_mm512_setzero_si512(); R];
    for q in 0..4 {
        let [a, b, c, d] = fours.map(|four| four[q]);
        let even = (_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0x88>(c, d));
        let odd = (_mm512_shuffle_i32x4::<0xdd>(a, b), _mm512_shuffle_i32x4::<0xdd>(c, d));
        to[q] = _mm512_shuffle_i32x4::<0x88>(even.0, even.1);
        to[4 + q] = _mm512_shuffle_i32x4::<0x88>(odd.0, odd.1);
        to[8 + q] = _mm512_shuffle_i32x4::<0xdd>(even.0, even.1);
        to[12 + q] = _mm512_shuffle_i32x4::<0xdd>(odd.0, odd.1);
    }
    to
}

/// A panel times CN columns of a tile of `t` from column `c` of it.
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn times<const CN: usize>(
    shape: (usize, bool),
    panel: &[__m512i],
    x: (&[Block], usize, usize),
    out: &mut Window<'_>,
    to: (usize, usize),
    size: (usize, usize),
) {
    match shape {
        (8, false) => tile::<8, false, CN>(panel, x, out, to, size),
        (8, true) => tile::<8, true, CN>(panel, x, out, to, size),
        (_, false) => tile::<16, false, CN>(panel, x, out, to, size),
        (_, true) => tile::<16, true, CN>(panel, x, out, to, size),
    }
}

#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn tile<const N: usize, const SIGNED: bool, const CN: usize>(
    panel: &[__m512i],
    (x, t, c): (&[Block], usize, usize),
    out: &mut Window<'_>,
    (j, i): (usize, usize),
    (n, depth): (usize, usize),
) {
    let len = const { block_len(N, SIGNED) };
    assert!(panel.len() == depth * len && x.len() == depth * t && c + CN <= t);
    let mut sums = [[_mm512_setzero_ps(); CN]; N];
    for (panel, x) in panel.chunks_exact(len).zip(x.chunks_exact(t)) {
        let Some((x, _)) = x[c..].split_first_chunk::<CN>() else { unreachable!("c + CN <= t") };
        for (lane, sums) in sums.iter_mut().enumerate() {
            let first = if N == 16 { 4 * Order::FINE[lane] } else { 8 * Order::COARSE[lane] };
            let first = usize::from(first);
            let coarse = if N == 16 { lane / 8 * 4 + lane % 4 } else { lane };
            let mut dots: [__m512i; CN] = std::array::from_fn(|c| match SIGNED {
                true => _mm512_set1_epi32(if N == 16 { x[c].fine_less[lane] } else { x[c].less[lane] }),
                false => _mm512_setzero_si512(),
            });
            for (four, &w) in (first..).zip(&panel[first..first + CODES / N]) {
                for (dots, x) in dots.iter_mut().zip(x) {
                    // SAFETY: four of the block's 256 codes, as there are 64 fours.
                    let x = unsafe { x.codes.as_ptr().cast::<i32>().add(four).read_unaligned() };
                    *dots = _mm512_dpbusd_epi32(*dots, w, _mm512_set1_epi32(x));
                }
            }
            let scale = _mm512_castsi512_ps(panel[CODES + lane]);
            for ((dots, x), sum) in dots.into_iter().zip(x).zip(sums) {
                let dots = _mm512_mul_ps(_mm512_cvtepi32_ps(dots), _mm512_set1_ps(x.d[coarse]));
                *sum = _mm512_fmadd_ps(dots, scale, *sum);
                if !SIGNED {
                    let minimum = _mm512_castsi512_ps(panel[CODES + N + lane]);
                    let of_x = if N == 16 { x.fine_sums[lane] } else { x.sums[lane] };
                    *sum = _mm512_fnmadd_ps(minimum, _mm512_set1_ps(of_x), *sum);
                }
            }
        }
    }
    // In the order of `Lanes::total`.
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
    for (c, sum) in sums[0].into_iter().enumerate() {
        let mut numbers = [0.0; R];
        // SAFETY: sixteen numbers.
        unsafe { _mm512_storeu_ps(numbers.as_mut_ptr(), sum) };
        out.row(j + c)[i..i + n].copy_from_slice(&numbers[..n]);
    }
}

//! `dot_rows` with AVX-512: sixteen partial sums per product. Value k is added to sum k mod 16, in ascending
//! order.
#![allow(unsafe_code)] // Reads packed bytes through pointers at any alignment.

use std::arch::x86_64::*;

use super::super::decode::avx2::decode_row;
use super::super::decode::avx512::Load;
use super::super::decode::blocks::Q8_0;
use super::super::decode::load::{BF16, F16, F32, RowAt};
use super::super::dtype::Dtype;
use super::super::formats::formats_in_place;
use super::super::prefetch::prefetch_rows;
use super::super::rows::Rows;
use super::super::window::Window;
use super::avx2::store;
use super::decoded::{Shape, Tile, by_tiles};

/// Packed rows that share the loads of x.
const R: usize = 4;
/// Columns that share a decoded row.
const C: usize = 4;
/// Decoded rows that share the loads of C columns: 6 x 4 sums and 5 operands of the 32 registers.
const D: usize = 6;
/// Partial sums of a product.
const LANES: usize = 16;
/// Values of decoded rows that are multiplied at a time (measured).
const BLOCK: usize = 2048;
/// Minimum number of columns for decoding codes to memory first (measured; floats decode in one or two
/// instructions).
const DECODE_CODES: usize = 12;
/// The same for floats.
const DECODE_FLOATS: usize = 48;

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl")]
pub(crate) fn dot_rows(rows: &Rows<'_>, x: &[f32], out: &mut Window<'_>, scratch: &mut Vec<f32>) {
    let (n, cols) = (rows.len(), rows.cols());
    let m = x.len() / cols;
    assert!(x.len() == m * cols && out.rows() >= m && out.cols() >= n);
    let decode_first = match rows.dtype() {
        Dtype::Float(_) => DECODE_FLOATS,
        dtype if super::is_read_in_place(dtype) => DECODE_CODES,
        _ => 0,
    };
    if m < decode_first {
        let panel = super::panel_rows(rows.dtype().row_bytes(cols), R);
        for first in (0..n).step_by(panel) {
            let some = rows.range(first, panel.min(n - first));
            formats_in_place!(choose[rows.dtype(), format => block(format, &some, x, out, first), else {
                unreachable!("{:?} is decoded first", rows.dtype())
            }]);
        }
    } else {
        let decode = |rows: &Rows<'_>, i: usize, to: &mut [f32]| decode_row(rows, i, to);
        let multiply = |tile: &Tile<'_>, sums: &mut [f32]| decoded(tile, sums, out);
        let shape = Shape { rows: D, columns: C, lanes: LANES, block: BLOCK };
        by_tiles(rows, x, scratch, shape, decode, multiply);
    }
}

/// Computes all products of packed rows; they are columns of `out` from `first`.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl")]
fn block<L: Load>(loader: L, rows: &Rows<'_>, x: &[f32], out: &mut Window<'_>, first: usize) {
    let cols = rows.cols();
    let whole = rows.len() / R * R;
    for (b, x) in x.chunks(C * cols).enumerate() {
        let j = b * C;
        for i in (0..whole).step_by(R) {
            match x.len() / cols {
                1 => tile::<L, R, 1>(loader, rows, i, x, out, (j, first + i)),
                2 => tile::<L, R, 2>(loader, rows, i, x, out, (j, first + i)),
                3 => tile::<L, R, 3>(loader, rows, i, x, out, (j, first + i)),
                _ => tile::<L, R, C>(loader, rows, i, x, out, (j, first + i)),
            }
        }
        for i in whole..rows.len() {
            for (c, x) in x.chunks(cols).enumerate() {
                tile::<L, 1, 1>(loader, rows, i, x, out, (j + c, first + i));
            }
        }
    }
}

/// Multiplies `RN` rows from row `i` by the `CN` columns of x. The results go to columns of `out` from
/// `column`, in rows from `j`.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl")]
fn tile<L: Load, const RN: usize, const CN: usize>(
    loader: L,
    rows: &Rows<'_>,
    i: usize,
    x: &[f32],
    out: &mut Window<'_>,
    (j, column): (usize, usize),
) {
    let cols = rows.cols();
    assert!(x.len() == CN * cols);
    let at: [RowAt; RN] = std::array::from_fn(|r| RowAt::new(rows, i + r));
    let mut sums = [[_mm512_setzero_ps(); RN]; CN];
    let group = loader.group_len();
    let whole = cols / group * group;
    let bytes = |values| RN * rows.dtype().row_bytes(values);
    let (all, step) = (bytes(cols), bytes(group));
    for first in (0..whole).step_by(group) {
        prefetch_rows(at[0].codes, all, first / group * step, step);
        for r in 0..RN {
            // SAFETY: `RowAt` points at a row of `cols` values, a group of which begins at `first`.
            let parts = unsafe { Load::group(loader, at[r], first) };
            for k in (first..first + group).step_by(32) {
                // SAFETY: k + 32 <= cols, inside that group.
                let w = unsafe { Load::block(loader, at[r], parts, k) };
                for (v, w) in w.into_iter().enumerate() {
                    for (c, sums) in sums.iter_mut().enumerate() {
                        // SAFETY: column c has `cols` values from c * cols, by the assertion above.
                        let x = unsafe { _mm512_loadu_ps(x.as_ptr().add(c * cols + k + 16 * v)) };
                        sums[r] = _mm512_fmadd_ps(w, x, sums[r]);
                    }
                }
            }
        }
    }
    if whole < cols {
        // Products of the padding are zero and do not change the sums.
        for r in 0..RN {
            // SAFETY: the row has `cols - whole` < 32 values from `whole`.
            let w = unsafe { loader.tail(at[r], whole, cols - whole) };
            let w = [join(w[0], w[1]), join(w[2], w[3])];
            for c in 0..CN {
                let mut padded = [0.0; 32];
                padded[..cols - whole].copy_from_slice(&x[c * cols + whole..(c + 1) * cols]);
                for (v, w) in w.into_iter().enumerate() {
                    // SAFETY: 16 v + 16 <= 32.
                    let x = unsafe { _mm512_loadu_ps(padded.as_ptr().add(16 * v)) };
                    sums[c][r] = _mm512_fmadd_ps(w, x, sums[c][r]);
                }
            }
        }
    }
    for (c, sums) in sums.iter().enumerate() {
        finish(sums, &mut out.row(j + c)[column..column + RN]);
    }
}

/// Multiplies up to D decoded rows by up to C columns. The columns in the inner loop share the loads of the
/// rows.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl")]
fn decoded(tile: &Tile<'_>, sums: &mut [f32], out: &mut Window<'_>) {
    match (tile.rows, tile.columns) {
        (D, C) => decoded_tile::<D, C>(tile, sums, out),
        (D, 1) => decoded_tile::<D, 1>(tile, sums, out),
        (D, 2) => decoded_tile::<D, 2>(tile, sums, out),
        (D, 3) => decoded_tile::<D, 3>(tile, sums, out),
        (n, C) => {
            for (r, sums) in sums.chunks_exact_mut(C * LANES).enumerate().take(n) {
                decoded_tile::<1, C>(&tile.row(r), sums, out);
            }
        }
        (n, m) => {
            for (at, sum) in sums.chunks_exact_mut(LANES).enumerate().take(n * m) {
                decoded_tile::<1, 1>(&tile.row(at / m).column(at % m), sum, out);
            }
        }
    }
}

#[expect(clippy::needless_range_loop, reason = "rows and columns index the sums alike")]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl")]
fn decoded_tile<const RN: usize, const CN: usize>(
    tile: &Tile<'_>,
    partial: &mut [f32],
    out: &mut Window<'_>,
) {
    assert!(tile.rows == RN && tile.columns == CN && tile.is_whole());
    assert!(partial.len() >= RN * CN * LANES);
    let Tile { w, w_stride, x, x_stride, values, .. } = *tile;
    let mut sums = [[_mm512_setzero_ps(); RN]; CN];
    if !tile.is_first {
        for (sum, partial) in sums.as_flattened_mut().iter_mut().zip(partial.chunks_exact(LANES)) {
            // SAFETY: as many values as the vector has.
            *sum = unsafe { _mm512_loadu_ps(partial.as_ptr()) };
        }
    }
    let mut add = |k: usize, lanes: __mmask16| {
        // SAFETY: the tile has the values of all rows and columns, by the assertion above, and the mask ends with them.
        let load = |of: &[f32], at: usize| unsafe { _mm512_maskz_loadu_ps(lanes, of.as_ptr().add(at + k)) };
        let x: [__m512; CN] = std::array::from_fn(|c| load(x, c * x_stride));
        for r in 0..RN {
            let w = load(w, r * w_stride);
            for c in 0..CN {
                sums[c][r] = _mm512_fmadd_ps(w, x[c], sums[c][r]);
            }
        }
    };
    let whole = values / 16 * 16;
    for k in (0..whole).step_by(16) {
        add(k, u16::MAX);
    }
    // A row that is not a multiple of sixteen is padded with zeros.
    if whole < values {
        add(whole, (1 << (values - whole)) - 1);
    }
    if !tile.is_last {
        for (sum, partial) in sums.as_flattened().iter().zip(partial.chunks_exact_mut(LANES)) {
            // SAFETY: as many values as the vector has.
            unsafe { _mm512_storeu_ps(partial.as_mut_ptr(), *sum) };
        }
        return;
    }
    let (j, i) = tile.to;
    for (c, sums) in sums.iter().enumerate() {
        finish(sums, &mut out.row(j + c)[i..i + RN]);
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl")]
fn join(low: __m256, high: __m256) -> __m512 {
    let low = _mm512_castpd256_pd512(_mm256_castps_pd(low));
    _mm512_castpd_ps(_mm512_insertf64x4::<1>(low, _mm256_castps_pd(high)))
}

/// Adds the sixteen partial sums of each product: first n and n + 8, then as in the AVX2 version.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl")]
pub(crate) fn finish<const RN: usize>(sums: &[__m512; RN], to: &mut [f32]) {
    let mut folded = [_mm256_setzero_ps(); RN];
    for (folded, sums) in folded.iter_mut().zip(sums) {
        let high = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(*sums)));
        *folded = _mm256_add_ps(_mm512_castps512_ps256(*sums), high);
    }
    store(&folded, to);
}

//! `dot_rows` with AVX2: eight partial sums per product. Value k is added to sum k mod 8, in ascending order.
#![allow(unsafe_code)] // Reads packed bytes through pointers at any alignment.

use std::arch::x86_64::*;

use super::super::decode::avx2::decode_row;
use super::super::decode::blocks::Q8_0;
use super::super::decode::load::{BF16, F16, F32, Load, RowAt};
use super::super::dtype::Dtype;
use super::super::formats::formats_in_place;
use super::super::prefetch::prefetch_rows;
use super::super::rows::Rows;
use super::super::window::Window;
use super::decoded::{Shape, Tile, by_tiles};

/// Rows that share the loads of x.
const R: usize = 4;
/// Columns that share a decoded row: 4 x 3 sums and 4 operands use the 16 registers.
const C: usize = 3;
/// Partial sums of a product.
const LANES: usize = 8;
/// Values of decoded rows that are multiplied at a time (measured).
const BLOCK: usize = 512;
/// Minimum number of columns for decoding codes to memory first (measured; floats decode in one or two
/// instructions).
const DECODE_CODES: usize = 8;
/// The same for floats.
const DECODE_FLOATS: usize = 16;

#[target_feature(enable = "avx2,fma,f16c")]
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
        let shape = Shape { rows: R, columns: C, lanes: LANES, block: BLOCK };
        by_tiles(rows, x, scratch, shape, decode, multiply);
    }
}

/// Computes all products of packed rows; they are columns of `out` from `first`.
#[target_feature(enable = "avx2,fma,f16c")]
fn block<L: Load>(loader: L, rows: &Rows<'_>, x: &[f32], out: &mut Window<'_>, first: usize) {
    let cols = rows.cols();
    let whole = rows.len() / R * R;
    for (b, x) in x.chunks(C * cols).enumerate() {
        let j = b * C;
        for i in (0..whole).step_by(R) {
            match x.len() / cols {
                1 => tile::<L, R, 1>(loader, rows, i, x, out, (j, first + i)),
                2 => tile::<L, R, 2>(loader, rows, i, x, out, (j, first + i)),
                _ => tile::<L, R, C>(loader, rows, i, x, out, (j, first + i)),
            }
        }
        for i in whole..rows.len() {
            match x.len() / cols {
                1 => tile::<L, 1, 1>(loader, rows, i, x, out, (j, first + i)),
                2 => tile::<L, 1, 2>(loader, rows, i, x, out, (j, first + i)),
                _ => tile::<L, 1, C>(loader, rows, i, x, out, (j, first + i)),
            }
        }
    }
}

/// Multiplies `RN` rows from row `i` by the `CN` columns of x. The results go to columns of `out` from
/// `column`, in rows from `j`.
#[target_feature(enable = "avx2,fma,f16c")]
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
    let mut sums = [[_mm256_setzero_ps(); RN]; CN];
    let group = loader.group_len();
    let whole = cols / group * group;
    let bytes = |values| RN * rows.dtype().row_bytes(values);
    let (all, step) = (bytes(cols), bytes(group));
    for first in (0..whole).step_by(group) {
        // SAFETY: `RowAt` points at a row of `cols` values, a group of which begins at `first`.
        let parts: [_; RN] = std::array::from_fn(|r| unsafe { loader.group(at[r], first) });
        prefetch_rows(at[0].codes, all, first / group * step, step);
        for k in (first..first + group).step_by(32) {
            // Eight values at a time, so that the registers suffice for all rows to share the loads of x.
            for v in 0..4 {
                // SAFETY: column c has `cols` values from c * cols, by the assertion above.
                let x: [_; CN] =
                    std::array::from_fn(|c| unsafe { _mm256_loadu_ps(x.as_ptr().add(c * cols + k + 8 * v)) });
                for r in 0..RN {
                    // SAFETY: k + 32 <= cols, inside that group.
                    let w = unsafe { loader.block(at[r], parts[r], k)[v] };
                    for c in 0..CN {
                        sums[c][r] = _mm256_fmadd_ps(w, x[c], sums[c][r]);
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
            for c in 0..CN {
                let mut padded = [0.0; 32];
                padded[..cols - whole].copy_from_slice(&x[c * cols + whole..(c + 1) * cols]);
                for (v, w) in w.into_iter().enumerate() {
                    // SAFETY: 8 v + 8 <= 32.
                    let x = unsafe { _mm256_loadu_ps(padded.as_ptr().add(8 * v)) };
                    sums[c][r] = _mm256_fmadd_ps(w, x, sums[c][r]);
                }
            }
        }
    }
    for (c, sums) in sums.iter().enumerate() {
        store(sums, &mut out.row(j + c)[column..column + RN]);
    }
}

/// Multiplies up to R decoded rows by up to C columns. The columns in the inner loop share the loads of the
/// rows.
#[target_feature(enable = "avx2,fma,f16c")]
fn decoded(tile: &Tile<'_>, sums: &mut [f32], out: &mut Window<'_>) {
    match (tile.rows, tile.columns) {
        (R, 1) => decoded_tile::<R, 1>(tile, sums, out),
        (R, 2) => decoded_tile::<R, 2>(tile, sums, out),
        (R, C) => decoded_tile::<R, C>(tile, sums, out),
        (n, m) => {
            for (at, sum) in sums.chunks_exact_mut(LANES).enumerate().take(n * m) {
                decoded_tile::<1, 1>(&tile.row(at / m).column(at % m), sum, out);
            }
        }
    }
}

#[expect(clippy::needless_range_loop, reason = "rows and columns index the sums alike")]
#[target_feature(enable = "avx2,fma,f16c")]
fn decoded_tile<const RN: usize, const CN: usize>(
    tile: &Tile<'_>,
    partial: &mut [f32],
    out: &mut Window<'_>,
) {
    assert!(tile.rows == RN && tile.columns == CN && tile.is_whole());
    assert!(partial.len() >= RN * CN * LANES);
    let Tile { w, w_stride, x, x_stride, values, .. } = *tile;
    let mut sums = [[_mm256_setzero_ps(); RN]; CN];
    if !tile.is_first {
        for (sum, partial) in sums.as_flattened_mut().iter_mut().zip(partial.chunks_exact(LANES)) {
            // SAFETY: as many values as the vector has.
            *sum = unsafe { _mm256_loadu_ps(partial.as_ptr()) };
        }
    }
    let whole = values / 8 * 8;
    // A loop over a range is unrolled, so that sums no longer fit the registers.
    let mut k = 0;
    while k < whole {
        // SAFETY: the tile has the values of all rows and columns, by the assertion above.
        let load = |of: &[f32], at: usize| unsafe { _mm256_loadu_ps(of.as_ptr().add(at + k)) };
        let x: [__m256; CN] = std::array::from_fn(|c| load(x, c * x_stride));
        for r in 0..RN {
            let w = load(w, r * w_stride);
            for c in 0..CN {
                sums[c][r] = _mm256_fmadd_ps(w, x[c], sums[c][r]);
            }
        }
        k += 8;
    }
    if whole < values {
        let pad = |of: &[f32], at: usize| {
            let mut padded = [0.0; 8];
            padded[..values - whole].copy_from_slice(&of[at + whole..at + values]);
            // SAFETY: eight values.
            unsafe { _mm256_loadu_ps(padded.as_ptr()) }
        };
        for (c, sums) in sums.iter_mut().enumerate() {
            let x = pad(x, c * x_stride);
            for (r, sum) in sums.iter_mut().enumerate() {
                *sum = _mm256_fmadd_ps(pad(w, r * w_stride), x, *sum);
            }
        }
    }
    if !tile.is_last {
        for (sum, partial) in sums.as_flattened().iter().zip(partial.chunks_exact_mut(LANES)) {
            // SAFETY: as many values as the vector has.
            unsafe { _mm256_storeu_ps(partial.as_mut_ptr(), *sum) };
        }
        return;
    }
    let (j, i) = tile.to;
    for (c, sums) in sums.iter().enumerate() {
        store(sums, &mut out.row(j + c)[i..i + RN]);
    }
}

/// Adds the eight partial sums of each product: ((0+1)+(2+3)) + ((4+5)+(6+7)).
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn store<const RN: usize>(sums: &[__m256; RN], to: &mut [f32]) {
    for (sums, to) in sums.chunks(4).zip(to.chunks_mut(4)) {
        let sum = |r: usize| if r < sums.len() { sums[r] } else { _mm256_setzero_ps() };
        let pairs = _mm256_hadd_ps(_mm256_hadd_ps(sum(0), sum(1)), _mm256_hadd_ps(sum(2), sum(3)));
        let four = _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps::<1>(pairs));
        let mut found = [0.0; 4];
        // SAFETY: four values.
        unsafe { _mm_storeu_ps(found.as_mut_ptr(), four) };
        to.copy_from_slice(&found[..to.len()]);
    }
}

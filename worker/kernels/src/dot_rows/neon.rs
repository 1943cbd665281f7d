//! `dot_rows` with NEON: eight partial sums per product. Value k is added to sum k mod 8, in ascending order.
#![allow(unsafe_code)] // Reads packed bytes through pointers at any alignment.

use std::arch::aarch64::*;

use super::super::decode::neon::{BF16, F16, F32, Load, Q8_0, decode_row, tail};
use super::super::dtype::{Dtype, Float};
use super::super::formats::formats_in_place;
use super::super::rows::Rows;
use super::super::window::Window;

/// Rows that share the loads of x.
const R: usize = 4;
/// Columns that share the loads of a row: 4 x 2 products of two vectors each use half of the 32 registers.
const C: usize = 2;
/// Minimum number of columns for decoding values to memory first; f32 is never decoded first.
const DECODE_FIRST: usize = 8;

#[target_feature(enable = "neon")]
pub(crate) fn dot_rows(rows: &Rows<'_>, x: &[f32], out: &mut Window<'_>, scratch: &mut Vec<f32>) {
    let (n, cols) = (rows.len(), rows.cols());
    let m = x.len() / cols;
    assert!(x.len() == m * cols && out.rows() >= m && out.cols() >= n);
    let is_f32 = rows.dtype() == Dtype::Float(Float::F32);
    if is_f32 || (super::is_read_in_place(rows.dtype()) && m < DECODE_FIRST) {
        let panel = super::panel_rows(rows.dtype().row_bytes(cols), R);
        for first in (0..n).step_by(panel) {
            let some = rows.range(first, panel.min(n - first));
            formats_in_place!(choose[rows.dtype(), format => block(format, &some, x, out, (0, first)), else {
                unreachable!("{:?} is decoded first", rows.dtype())
            }]);
        }
    } else {
        let tile =
            |w: &[f32], x: &[f32], j: usize, i: usize| block(F32, &Rows::f32s(cols, w), x, out, (j, i));
        by_panels(rows, x, scratch, (R, C), |rows, i, to| decode_row(rows, i, to), tile);
    }
}

/// Processes many columns by panels: decodes a panel of rows, each once, and multiplies a few columns at a
/// time with all its rows, while the columns are in the L1 cache.
///
/// `decode(rows, i, to)` decodes a row; `tile(w, x, j, i)` multiplies up to `tile_rows` decoded rows from row
/// `i` with up to `tile_cols` columns from column `j`.
fn by_panels(
    rows: &Rows<'_>,
    x: &[f32],
    scratch: &mut Vec<f32>,
    (tile_rows, tile_cols): (usize, usize),
    decode: impl Fn(&Rows<'_>, usize, &mut [f32]),
    mut tile: impl FnMut(&[f32], &[f32], usize, usize),
) {
    let (n, cols) = (rows.len(), rows.cols());
    // With few columns, decoding more than a tile has no advantage.
    let is_one = x.len() <= tile_cols * cols;
    let panel = if is_one { tile_rows } else { super::panel_rows(4 * cols, tile_rows) };
    for first in (0..n).step_by(panel) {
        let some = rows.range(first, panel.min(n - first));
        scratch.resize(some.len() * cols, 0.0);
        for (i, to) in scratch.chunks_exact_mut(cols).enumerate() {
            decode(&some, i, to);
        }
        for (j, x) in x.chunks(tile_cols * cols).enumerate() {
            for (i, w) in scratch.chunks(tile_rows * cols).enumerate() {
                tile(w, x, j * tile_cols, first + i * tile_rows);
            }
        }
    }
}

/// Computes all products of some rows, to columns of `out` from `first`, in rows from `j`.
#[target_feature(enable = "neon")]
fn block<L: Load>(loader: L, rows: &Rows<'_>, x: &[f32], out: &mut Window<'_>, (j, first): (usize, usize)) {
    let cols = rows.cols();
    let whole = rows.len() / R * R;
    for (b, x) in x.chunks(C * cols).enumerate() {
        let j = j + b * C;
        for i in (0..whole).step_by(R) {
            match x.len() / cols {
                1 => tile::<L, R, 1>(loader, rows, i, x, out, (j, first + i)),
                _ => tile::<L, R, C>(loader, rows, i, x, out, (j, first + i)),
            }
        }
        for i in whole..rows.len() {
            match x.len() / cols {
                1 => tile::<L, 1, 1>(loader, rows, i, x, out, (j, first + i)),
                _ => tile::<L, 1, C>(loader, rows, i, x, out, (j, first + i)),
            }
        }
    }
}

/// Multiplies `RN` rows from row `i` by the `CN` columns of x. The results go to columns of `out` from
/// `column`, in rows from `j`.
#[expect(clippy::needless_range_loop, reason = "rows and columns index the sums alike")]
#[target_feature(enable = "neon")]
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
    let codes: [*const u8; RN] = std::array::from_fn(|r| rows.row(i + r).0.as_ptr());
    let mut sums = [[[vdupq_n_f32(0.0); 2]; RN]; CN];
    let whole = cols / 8 * 8;
    for k in (0..whole).step_by(8) {
        // SAFETY: column c has `cols` values from c * cols, by the assertion above.
        let x: [[float32x4_t; 2]; CN] =
            std::array::from_fn(|c| unsafe { pair(x.as_ptr().add(c * cols + k)) });
        for r in 0..RN {
            // SAFETY: k + 8 <= cols, and `codes` belong to a row of that many values.
            let w = unsafe { loader.eight(codes[r], k) };
            for c in 0..CN {
                sums[c][r] = multiply(w, x[c], sums[c][r]);
            }
        }
    }
    if whole < cols {
        // Products of the padding are zero and do not change the sums.
        for r in 0..RN {
            let w = tail(rows, i + r);
            for c in 0..CN {
                let mut padded = [0.0; 8];
                padded[..cols - whole].copy_from_slice(&x[c * cols + whole..(c + 1) * cols]);
                // SAFETY: eight values each.
                let (w, x) = unsafe { (pair(w.as_ptr()), pair(padded.as_ptr())) };
                sums[c][r] = multiply(w, x, sums[c][r]);
            }
        }
    }
    for (c, sums) in sums.iter().enumerate() {
        for ([low, high], to) in sums.iter().zip(&mut out.row(j + c)[column..column + RN]) {
            *to = vaddvq_f32(*low) + vaddvq_f32(*high);
        }
    }
}

/// # Safety
/// There are eight values.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn pair(at: *const f32) -> [float32x4_t; 2] {
    // SAFETY: guaranteed by the caller.
    unsafe { [vld1q_f32(at), vld1q_f32(at.add(4))] }
}

#[inline]
#[target_feature(enable = "neon")]
fn multiply(w: [float32x4_t; 2], x: [float32x4_t; 2], sum: [float32x4_t; 2]) -> [float32x4_t; 2] {
    [vfmaq_f32(sum[0], w[0], x[0]), vfmaq_f32(sum[1], w[1], x[1])]
}

//! `dot_bf16` with AVX-512 BF16: sixteen partial sums per product. Values k and k + 1 are added to sum k / 2 mod 16, in
//! ascending order of k. Rows are read in place: neither rows nor sums are stored between.
#![allow(unsafe_code)] // Reads packed bytes through pointers at any alignment.

use std::arch::x86_64::*;

use super::super::columns::Columns;
use super::super::decode::load::RowAt;
use super::super::dot_rows::{avx512::finish, panel_rows};
use super::super::dtype::{Dtype, Float};
use super::super::prefetch::prefetch_rows;
use super::super::rows::Rows;
use super::super::window::Window;
use super::{Rounded, TILE, VALUES};

/// Rows that share the loads of a tile of columns: 6 x 4 sums and 5 operands of the 32 registers.
const R: usize = 6;

/// Rounds the `x.len() / cols` columns of a tile.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512bf16")]
pub(crate) fn round(x: &[f32], cols: usize, tile: &mut [Rounded]) {
    let t = x.len() / cols;
    assert!(x.len() == t * cols && tile.len() == t * cols.div_ceil(VALUES));
    for (c, x) in x.chunks_exact(cols).enumerate() {
        for (b, x) in x.chunks(VALUES).enumerate() {
            let mut padded = [0.0; VALUES];
            let x = x.as_array().unwrap_or_else(|| {
                padded[..x.len()].copy_from_slice(x);
                &padded
            });
            // SAFETY: 32 values.
            let [low, high] = [0, 16].map(|first| unsafe { _mm512_loadu_ps(x.as_ptr().add(first)) });
            // SAFETY: a block has the size and the alignment of the vector.
            unsafe { (&raw mut tile[b * t + c]).cast::<__m512bh>().write(_mm512_cvtne2ps_pbh(high, low)) };
        }
    }
}

/// `out[j][i] = rows[i] . x[j]` for all rows and columns. `out` has a row per column of x, and a column per row of
/// `rows`.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512bf16")]
pub(crate) fn dot_bf16(rows: &Rows<'_>, x: &Columns<Rounded>, out: &mut Window<'_>) {
    let (n, cols) = (rows.len(), rows.cols());
    assert!(rows.dtype() == Dtype::Float(Float::BF16) && x.cols() == cols);
    assert!(out.rows() >= x.len() && out.cols() >= n);
    let panel = panel_rows(rows.dtype().row_bytes(cols), R);
    for first in (0..n).step_by(panel) {
        for (j, blocks) in x.tiles() {
            for i in (first..n.min(first + panel)).step_by(R) {
                let some = rows.range(i, R.min(n - i));
                match blocks.len() / x.depth() {
                    1 => some_rows::<1>(&some, blocks, out, (j, i)),
                    2 => some_rows::<2>(&some, blocks, out, (j, i)),
                    3 => some_rows::<3>(&some, blocks, out, (j, i)),
                    _ => some_rows::<TILE>(&some, blocks, out, (j, i)),
                }
            }
        }
    }
}

/// Multiplies up to R rows by the `CN` columns of a tile. The results go to columns of `out` from `to.1`, in rows from
/// `to.0`.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512bf16")]
fn some_rows<const CN: usize>(rows: &Rows<'_>, x: &[Rounded], out: &mut Window<'_>, to: (usize, usize)) {
    match rows.len() {
        1 => tile::<1, CN>(rows, x, out, to),
        2 => tile::<2, CN>(rows, x, out, to),
        3 => tile::<3, CN>(rows, x, out, to),
        4 => tile::<4, CN>(rows, x, out, to),
        5 => tile::<5, CN>(rows, x, out, to),
        _ => tile::<R, CN>(rows, x, out, to),
    }
}

#[expect(clippy::needless_range_loop, reason = "rows and columns index the sums alike")]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512bf16")]
fn tile<const RN: usize, const CN: usize>(
    rows: &Rows<'_>,
    x: &[Rounded],
    out: &mut Window<'_>,
    (j, i): (usize, usize),
) {
    let cols = rows.cols();
    assert!(rows.len() == RN && x.len() == CN * cols.div_ceil(VALUES));
    let at: [*const u8; RN] = std::array::from_fn(|r| RowAt::new(rows, r).codes);
    let all = RN * rows.dtype().row_bytes(cols);
    let mut sums = [[_mm512_setzero_ps(); RN]; CN];
    let whole = cols / VALUES;
    for b in 0..whole {
        prefetch_rows(at[0], all, RN * 2 * VALUES * b, RN * 2 * VALUES);
        // SAFETY: the tile has block b of all columns, by the assertion above. A block is a vector.
        let x: [__m512bh; CN] =
            std::array::from_fn(|c| unsafe { x.as_ptr().add(b * CN + c).cast::<__m512bh>().read() });
        for r in 0..RN {
            // SAFETY: the row has 64 bytes from 64 b.
            let w = unsafe { at[r].add(2 * VALUES * b).cast::<__m512bh>().read_unaligned() };
            for c in 0..CN {
                sums[c][r] = _mm512_dpbf16_ps(sums[c][r], w, x[c]);
            }
        }
    }
    let rest = cols % VALUES;
    if rest > 0 {
        // Products of the padding are zero and do not change the sums.
        for r in 0..RN {
            let mut padded = Rounded([0; VALUES]);
            // SAFETY: the row has `rest` < 32 values of two bytes from block `whole`; the copy is as large as a block.
            let w = unsafe {
                let from = at[r].add(2 * VALUES * whole);
                std::ptr::copy_nonoverlapping(from, (&raw mut padded).cast::<u8>(), 2 * rest);
                (&raw const padded).cast::<__m512bh>().read()
            };
            for c in 0..CN {
                // SAFETY: as above.
                let x = unsafe { x.as_ptr().add(whole * CN + c).cast::<__m512bh>().read() };
                sums[c][r] = _mm512_dpbf16_ps(sums[c][r], w, x);
            }
        }
    }
    for (c, sums) in sums.iter().enumerate() {
        finish(sums, &mut out.row(j + c)[i..i + RN]);
    }
}

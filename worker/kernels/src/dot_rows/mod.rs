//! Products of packed rows with columns of f32: dense matrix products and the scores of attention. Called
//! through `Ops`. The order in which the terms of a product are added depends only on the row length.

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use super::dtype::Dtype;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use super::formats::formats_in_place;
use super::rows::Rows;
use super::window::Window;

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
#[cfg(target_arch = "x86_64")]
mod decoded;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon;

/// `out[j][i] = rows[i] . x[j]` for all rows and `x.len() / rows.cols()` columns. `out` has a row per column
/// of x, and a column per row of `rows`.
///
/// The result for one (i, j) is bit-identical whatever else is computed in the same call. `scratch` is
/// working space.
pub(super) fn scalar(rows: &Rows<'_>, x: &[f32], out: &mut Window<'_>, scratch: &mut Vec<f32>) {
    let cols = rows.cols();
    scratch.resize(cols, 0.0);
    for i in 0..rows.len() {
        super::decode::scalar(rows, i, scratch);
        for (j, x) in x.chunks_exact(cols).enumerate() {
            out.row(j)[i] = scratch.iter().zip(x).fold(0.0, |sum, (w, x)| sum + w * x);
        }
    }
}

/// Bytes of rows that stay in the L2 cache while all columns are processed.
const PANEL_BYTES: usize = 1 << 19;

/// Whether rows of this format are read without decoding them first if there are few columns. Rows of other
/// formats are always decoded first, because reading them takes longer than storing them.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn is_read_in_place(dtype: Dtype) -> bool {
    formats_in_place!(contains[dtype])
}

/// Rows per panel, a multiple of `multiple`.
pub(super) fn panel_rows(row_bytes: usize, multiple: usize) -> usize {
    (PANEL_BYTES / row_bytes / multiple).max(1) * multiple
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::{Dtype, Float};
    use crate::ops::Ops;
    use crate::testing::{EXAMPLES, Packed, random};

    fn product(ops: &Ops, rows: &Rows<'_>, x: &[f32]) -> Vec<f32> {
        let m = x.len() / rows.cols();
        let mut out = vec![f32::NAN; m * rows.len()];
        ops.dot_rows(rows, x, &mut Window::new(&mut out, rows.len(), 0, rows.len()), &mut Vec::new());
        out
    }

    /// In both orders, adding K products has an error of at most K/2 ulp of the sum of their magnitudes.
    #[test]
    fn every_version_agrees_with_float64() {
        for ops in Ops::all() {
            for &dtype in EXAMPLES {
                for (n, cols, m) in
                    [(1, 1, 1), (3, 7, 2), (4, 32, 1), (5, 33, 3), (9, 96, 4), (8, 256, 13), (33, 320, 53)]
                {
                    let cols = cols.max(dtype.multiple()).next_multiple_of(dtype.multiple());
                    let packed = Packed::random(dtype, n, cols, 7);
                    let x = random(m * cols, 11);
                    let out = product(ops, &packed.rows(), &x);
                    for (j, x) in x.chunks_exact(cols).enumerate() {
                        for i in 0..n {
                            let row = packed.decoded(i);
                            let terms = row.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x));
                            let (sum, size) = terms.fold((0.0, 0.0), |(s, a), t| (s + t, a + t.abs()));
                            let bound = (cols as f64 + 1.0) * f64::from(f32::EPSILON) * size;
                            let found = f64::from(out[j * n + i]);
                            let name = ops.name;
                            assert!(
                                (found - sum).abs() <= bound,
                                "{name} {dtype:?} {n}x{cols} {i},{j}: {found} {sum}"
                            );
                        }
                    }
                }
            }
        }
    }

    /// The result of a product does not depend on other rows or columns in the same call.
    #[test]
    fn other_rows_and_columns_change_no_bit() {
        for ops in Ops::all() {
            for &dtype in EXAMPLES {
                let cols =
                    200usize.next_multiple_of(dtype.multiple()) + if dtype.multiple() == 1 { 11 } else { 0 };
                let (n, m) = (11, 53);
                let packed = Packed::random(dtype, n, cols, 3);
                let x = random(m * cols, 5);
                let all = product(ops, &packed.rows(), &x);
                for i in 0..n {
                    for j in 0..m {
                        let one = product(ops, &packed.rows().range(i, 1), &x[j * cols..(j + 1) * cols]);
                        assert_eq!(
                            one[0].to_bits(),
                            all[j * n + i].to_bits(),
                            "{} {dtype:?} {i},{j}",
                            ops.name
                        );
                    }
                }
            }
        }
    }

    /// Products of long rows with many columns keep partial sums between blocks of values.
    #[test]
    fn long_rows_give_the_same_bits_with_many_columns() {
        let (n, cols, m) = (13, 3 * 1024 + 5, 70);
        let x = random(m * cols, 5);
        for ops in Ops::all() {
            for dtype in [Dtype::Float(Float::F32), Dtype::Float(Float::F16), Dtype::Float(Float::BF16)] {
                let packed = Packed::random(dtype, n, cols, 3);
                let all = product(ops, &packed.rows(), &x);
                for (j, x) in x.chunks_exact(cols).enumerate() {
                    let one = product(ops, &packed.rows(), x);
                    let same = one.iter().zip(&all[j * n..]).all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(same, "{} {dtype:?} {j}", ops.name);
                }
            }
        }
    }

    /// A model file may have rows of any length.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn the_working_space_of_long_rows_is_bounded() {
        let (n, cols, m) = (64, 40_000, 48);
        let packed = Packed::random(Dtype::Float(Float::F16), n, cols, 3);
        let x = random(m * cols, 5);
        // The scalar version decodes one row.
        for ops in Ops::all() {
            let (mut out, mut scratch) = (vec![f32::NAN; m * n], Vec::new());
            ops.dot_rows(&packed.rows(), &x, &mut Window::new(&mut out, n, 0, n), &mut scratch);
            assert!(out.iter().all(|v| v.is_finite()), "{}", ops.name);
            let most = decoded::DECODED_BYTES + decoded::SUMS_BYTES + 64;
            assert!(4 * scratch.len() <= most, "{}: {}", ops.name, scratch.len());
        }
    }

    #[test]
    fn nan_is_preserved() {
        for ops in Ops::all() {
            for &dtype in EXAMPLES.iter().filter(|dtype| matches!(dtype, Dtype::Float(_))) {
                let packed = Packed::random(dtype, 4, 40, 3);
                let mut x = random(40, 5);
                x[39] = f32::NAN;
                assert!(product(ops, &packed.rows(), &x).iter().all(|v| v.is_nan()));
            }
        }
    }
}

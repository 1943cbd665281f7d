//! Compares products with those of rounded columns in float64.

use lode_model::quant::ggml::Type;

use super::*;
use crate::dtype::{Dtype, Float};
use crate::ops::{Input, Ops};
use crate::rows::Rows;
use crate::testing::{Packed, random};
use crate::window::Window;

const BF16: Dtype = Dtype::Float(Float::BF16);

/// The instruction levels that round columns. The test in `ops` reports those that this processor lacks.
fn levels() -> impl Iterator<Item = &'static Ops> {
    Ops::all().into_iter().filter(|ops| ops.rounds_columns(BF16))
}

fn product(ops: &Ops, rows: &Rows<'_>, x: &[f32]) -> Vec<f32> {
    let packed = ops.pack_columns(x, rows.cols(), rows.dtype());
    let mut out = vec![f32::NAN; x.len() / rows.cols() * rows.len()];
    let x = Input { numbers: x, packed: &packed };
    ops.product(rows, x, &mut Window::new(&mut out, rows.len(), 0, rows.len()), &mut Vec::new());
    out
}

#[test]
fn columns_are_rounded_to_nearest_even() {
    let (m, cols) = (7, 75);
    let mut x = random(m * cols, 2);
    x[..6].copy_from_slice(&[1.003_906_2, 1.011_718_8, -3.4e38, f32::INFINITY, -0.0, 1e-30]);
    for ops in levels() {
        let columns = ops.pack_columns(&x, cols, BF16).rounded;
        for (j, x) in x.chunks_exact(cols).enumerate() {
            for k in 0..cols.next_multiple_of(VALUES) {
                let expect = x.get(k).map_or(0, |v| half::bf16::from_f32(*v).to_bits());
                assert_eq!(columns.block(j, k).0[k % VALUES], expect, "{} {j},{k}", ops.name);
            }
        }
    }
}

/// Adding K products, two at a time, has an error of at most K ulp of the sum of their magnitudes.
#[test]
fn every_version_agrees_with_float64() {
    for ops in levels() {
        for (n, cols, m) in [
            (1, 1, 1),
            (3, 7, 2),
            (4, 32, 1),
            (5, 33, 3),
            (6, 64, 4),
            (9, 96, 5),
            (13, 256, 13),
            (34, 331, 54),
            (65, 4100, 7),
        ] {
            let packed = Packed::random(BF16, n, cols, 7);
            let x = random(m * cols, 11);
            let out = product(ops, &packed.rows(), &x);
            for (j, x) in x.chunks_exact(cols).enumerate() {
                let x: Vec<f64> = x.iter().map(|v| half::bf16::from_f32(*v).to_f64()).collect();
                for i in 0..n {
                    let row = packed.decoded(i);
                    let terms = row.iter().zip(&x).map(|(w, x)| f64::from(*w) * x);
                    let (sum, size) = terms.fold((0.0, 0.0), |(s, a), t| (s + t, a + t.abs()));
                    let bound = (cols as f64 + 1.0) * f64::from(f32::EPSILON) * size;
                    let found = f64::from(out[j * n + i]);
                    assert!((found - sum).abs() <= bound, "{} {n}x{cols} {i},{j}: {found} {sum}", ops.name);
                }
            }
        }
    }
}

/// Rounding to BF16 adds a fifth of the error of columns in eight bits, which quantised formats use.
#[test]
fn the_error_is_below_that_of_eight_bits() {
    let (n, cols, m) = (64, 2048, 16);
    let packed = Packed::random(BF16, n, cols, 7);
    let x = random(m * cols, 11);
    let blocks = Ops::scalar().pack_columns(&x, cols, Dtype::Ggml(Type::Q8_0)).blocks;
    let rows: Vec<Vec<f32>> = (0..n).map(|i| packed.decoded(i)).collect();
    let dot = |row: &[f32], x: &dyn Fn(usize) -> f32| -> f64 {
        row.iter().enumerate().map(|(k, w)| f64::from(*w) * f64::from(x(k))).sum()
    };
    for ops in levels() {
        let out = product(ops, &packed.rows(), &x);
        let (mut size, mut error, mut of_eight_bits) = (0.0, 0.0, 0.0);
        for j in 0..m {
            for (i, row) in rows.iter().enumerate() {
                let exact = dot(row, &|k| x[j * cols + k]);
                size += exact.powi(2);
                error += (f64::from(out[j * n + i]) - exact).powi(2);
                of_eight_bits += (dot(row, &|k| blocks.at(j, k)) - exact).powi(2);
            }
        }
        let (error, of_eight_bits) = (error / size, of_eight_bits / size);
        assert!(error < 4e-6 && error < 0.25 * of_eight_bits, "{}: {error:e} {of_eight_bits:e}", ops.name);
    }
}

/// The result of a product does not depend on other rows or columns in the same call.
#[test]
fn other_rows_and_columns_change_no_bit() {
    for ops in levels() {
        for (n, cols, m) in [(13, 211, 19), (11, 40_000, 5)] {
            let packed = Packed::random(BF16, n, cols, 3);
            let x = random(m * cols, 5);
            let all = product(ops, &packed.rows(), &x);
            for i in 0..n {
                for j in 0..m {
                    let one = product(ops, &packed.rows().range(i, 1), &x[j * cols..(j + 1) * cols]);
                    assert_eq!(one[0].to_bits(), all[j * n + i].to_bits(), "{} {i},{j}", ops.name);
                }
            }
        }
    }
}

#[test]
fn nan_is_preserved() {
    for ops in levels() {
        for m in [1, 6] {
            let packed = Packed::random(BF16, 7, 40, 3);
            let mut x = random(m * 40, 5);
            x[39] = f32::NAN;
            let found = product(ops, &packed.rows(), &x);
            assert!(found[..7].iter().all(|v| v.is_nan()), "{}", ops.name);
            assert!(found[7..].iter().all(|v| v.is_finite()), "{}", ops.name);
        }
    }
}

//! The kernels that read packed matrices, for every format.

use super::super::args::{DecodeRows, DotRows};
use super::super::program::{DotRowsKernel, Program, dot_rows_kernel};
use super::harness::Harness;
use lode_model::quant::ggml::Type;

use crate::dtype::{Dtype, Float};
use crate::testing::{EXAMPLES, Packed, random};
use crate::weight::Weight;
use bytes::Bytes;
use half::bf16;

/// The weight of random packed rows.
pub(super) fn weight(packed: &Packed) -> Weight {
    let rows = packed.rows();
    let (mut codes, mut scales, mut biases) = (Vec::new(), Vec::new(), Vec::new());
    for row in 0..rows.len() {
        let parts = rows.row(row);
        codes.extend_from_slice(parts.0);
        scales.extend_from_slice(parts.1);
        biases.extend_from_slice(parts.2);
    }
    let (codes, scales, biases) = (Bytes::from(codes), Bytes::from(scales), Bytes::from(biases));
    let weight = Weight::new(rows.dtype(), (rows.len(), rows.cols()), codes, scales, biases);
    weight.unwrap().with_factor(rows.factor())
}

/// Row lengths with incomplete units for floats, and for the others fewer units than lanes and more.
fn lengths(dtype: Dtype) -> Vec<usize> {
    match dtype {
        Dtype::Float(_) => vec![1, 31, 40, 1056, 1100],
        _ if dtype.multiple() == 256 => vec![256, 2304],
        _ => vec![dtype.multiple(), 3 * dtype.multiple(), 1152_usize.next_multiple_of(dtype.multiple())],
    }
}

#[test]
fn every_format_decodes_to_the_bits_of_the_scalar_version() {
    for &dtype in EXAMPLES {
        let program = Program::of_format(dtype).unwrap();
        let Some(mut harness) = Harness::new(&program) else { return };
        for cols in lengths(dtype) {
            let packed = Packed::random(dtype, 3, cols, 5);
            let (ids, stride) = ([2u32, 0, 1, 2], cols + 3);
            let table = harness.matrix(&weight(&packed));
            let (ids_at, out) = (harness.upload(&ids), harness.floats(4 * stride));
            let args = DecodeRows {
                table,
                ids: ids_at.0,
                out: out.0,
                out_stride: stride as u32,
                scale: 1.0,
                ..DecodeRows::default()
            };
            harness.launch("decode_rows", [4, 1, 1], 128, &args);
            let found: Vec<f32> = harness.read(out, 4 * stride);
            for (id, found) in ids.iter().zip(found.chunks_exact(stride)) {
                assert_eq!(found[..cols], packed.decoded(*id as usize), "{dtype:?} {cols}");
                assert!(found[cols..].iter().all(|v| v.is_nan()), "{dtype:?} {cols}: wrote behind the row");
            }
        }
    }
}

#[test]
fn a_grid_of_tiles_covers_the_matrix() {
    let dtype = Dtype::Ggml(Type::Q8_0);
    let Some(mut harness) = Harness::new(&Program::of_format(dtype).unwrap()) else { return };
    let (rows, columns, cols) = (130, 66, 64);
    let packed = Packed::random(dtype, rows, cols, 9);
    let matrix = harness.matrix(&weight(&packed));
    let x = random(columns * cols, 1);
    let (x_at, out) = (harness.upload(&x), harness.floats(rows * columns));
    let (x_stride, out_stride, n) = (cols as u32, rows as u32, columns as u32);
    let args =
        DotRows { matrix, x: x_at.0, out: out.0, x_stride, out_stride, columns: n, ..DotRows::default() };
    harness.launch("dot_tiles", [3, 2, 1], 256, &args);
    let found: Vec<f32> = harness.read(out, rows * columns);
    for row in 0..rows {
        let w = packed.decoded(row);
        for c in 0..columns {
            // The additions are fused and in the order of the row, so the bits are known.
            let x = &x[c * cols..][..cols];
            let expect = w.iter().zip(x).fold(0.0f32, |sum, (w, x)| w.mul_add(*x, sum));
            assert_eq!(found[c * rows + row], expect, "{row} {c}");
        }
    }
}

#[test]
fn every_format_multiplies_like_the_scalar_version() {
    for &dtype in EXAMPLES {
        let program = Program::of_format(dtype).unwrap();
        let Some(mut harness) = Harness::new(&program) else { return };
        for cols in lengths(dtype) {
            for columns in [1, 2, 3, 8, 9, 67] {
                let kernel = dot_rows_kernel(dtype, ROWS, columns, false);
                for is_added in [false, true] {
                    check_product(&mut harness, dtype, cols, columns, kernel, is_added);
                }
            }
        }
    }
}

/// The product of both operands rounded to BF16, within the error of float32 sums. The rounding itself changes a
/// product by at most `2^-8 + 2^-18` of its size.
#[test]
fn tensor_cores_multiply_rounded_operands() {
    for &dtype in EXAMPLES {
        let Some(program) = Program::of_tensor_tiles(dtype) else { continue };
        let Some(mut harness) = Harness::new(&program) else { return };
        for cols in lengths(dtype) {
            let small = dot_rows_kernel(dtype, ROWS, 9, true);
            check_product(&mut harness, dtype, cols, 9, small, false);
            // The kernel of a matrix with many rows.
            let large = dot_rows_kernel(dtype, 16_384, 67, true);
            check_product(&mut harness, dtype, cols, 67, large, true);
        }
    }
}

/// Rows of the matrix of [`check_product`].
const ROWS: usize = 11;

/// A product, or one with a bias that is added to `out`, against float64.
fn check_product(
    harness: &mut Harness,
    dtype: Dtype,
    cols: usize,
    columns: usize,
    kernel: DotRowsKernel,
    is_added: bool,
) {
    let rounded = |values: &[f32]| -> Vec<f32> {
        let round = |v: &f32| if kernel.uses_tensor_cores { bf16::from_f32(*v).to_f32() } else { *v };
        values.iter().map(round).collect()
    };
    let packed = Packed::random(dtype, ROWS, cols, 9);
    let decoded: Vec<Vec<f32>> = (0..ROWS).map(|row| rounded(&packed.decoded(row))).collect();
    let matrix = harness.matrix(&weight(&packed));
    let bias = random(ROWS, 3);
    let x_stride = cols.next_multiple_of(4);
    // Behind a row of x is NaN, which would show in the result.
    let x: Vec<f32> = (0..columns)
        .flat_map(|c| {
            let mut row = random(cols, 20 + c as u64);
            row.resize(x_stride, f32::NAN);
            row
        })
        .collect();
    let start = random(columns * (ROWS + 1), 40);
    let (x_at, bias_at, out) = (harness.upload(&x), harness.upload(&bias), harness.upload(&start));
    let args = DotRows {
        matrix,
        x: x_at.0,
        out: out.0,
        bias: if is_added { bias_at.0 } else { 0 },
        x_stride: x_stride as u32,
        out_stride: ROWS as u32 + 1,
        columns: columns as u32,
        accumulate: is_added.into(),
    };
    harness.launch(kernel.name, kernel.grid(ROWS, columns), kernel.threads, &args);
    let found: Vec<f32> = harness.read(out, start.len());
    let x = rounded(&x);
    for c in 0..columns {
        // Behind the rows, nothing is written.
        assert_eq!(found[c * (ROWS + 1) + ROWS], start[c * (ROWS + 1) + ROWS]);
        for (row, row_bias) in bias.iter().enumerate() {
            let at = c * (ROWS + 1) + row;
            let (first, first_bias) =
                if is_added { (f64::from(start[at]), f64::from(*row_bias)) } else { (0.0, 0.0) };
            let begin = (first + first_bias, first.abs() + first_bias.abs());
            let terms = decoded[row].iter().zip(&x[c * x_stride..]);
            let (sum, size) = terms.fold(begin, |(sum, size), (w, x)| {
                let term = f64::from(*w) * f64::from(*x);
                (sum + term, size + term.abs())
            });
            // A lane adds at most cols / 32 terms, rounded up to whole units of 256; then there are five additions
            // in the warp, the bias, and the addition to `out`. In a tile, all terms are added one after the other.
            let of_a_lane = cols.div_ceil(32).max(256.min(cols));
            let terms = if kernel.name.contains("tiles") { cols } else { of_a_lane };
            let bound = (terms as f64 + 7.0) * f64::from(f32::EPSILON) * size;
            let error = (f64::from(found[at]) - sum).abs();
            let name = kernel.name;
            assert!(
                error <= bound,
                "{dtype:?} {cols} {name} {columns}: row {row}, column {c}: {} {sum}",
                found[at]
            );
        }
    }
}

/// Tiles at the edges of a grid of several blocks, with both sizes. The sums are of integers, so the bits are known.
#[test]
fn a_grid_of_tensor_tiles_covers_the_matrix() {
    let dtype = Dtype::Float(Float::BF16);
    let Some(mut harness) = Harness::new(&Program::of_tensor_tiles(dtype).unwrap()) else { return };
    let (rows, columns, cols) = (143, 133, 88);
    let integers =
        |n, seed| -> Vec<f32> { random(n, seed).into_iter().map(|v| (v * 100.0).round()).collect() };
    let (w, x) = (integers(rows * cols, 5), integers(columns * cols, 6));
    let bytes: Vec<u8> = w.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect();
    let matrix = harness.matrix(&Weight::floats(Float::BF16, (rows, cols), bytes.into()).unwrap());
    let x_at = harness.upload(&x);
    for (kernel, grid) in [
        (dot_rows_kernel(dtype, rows, columns, true), [5, 5, 1]),
        (dot_rows_kernel(dtype, 16_384, columns, true), [2, 2, 1]),
    ] {
        let out = harness.floats(rows * columns);
        let (x_stride, out_stride) = (cols as u32, rows as u32);
        let args = DotRows {
            matrix,
            x: x_at.0,
            out: out.0,
            x_stride,
            out_stride,
            columns: columns as u32,
            ..DotRows::default()
        };
        assert_eq!(kernel.grid(rows, columns), grid);
        harness.launch(kernel.name, grid, kernel.threads, &args);
        let found: Vec<f32> = harness.read(out, rows * columns);
        for (at, found) in found.into_iter().enumerate() {
            let (column, row) = (at / rows, at % rows);
            let terms = w[row * cols..][..cols].iter().zip(&x[column * cols..]);
            assert_eq!(found, terms.map(|(w, x)| w * x).sum::<f32>(), "{} {row} {column}", kernel.name);
        }
    }
}

/// In `dot_rows`, the result of a column does not depend on the others, so small batches do not change a
/// single bit.
#[test]
fn a_column_has_the_same_bits_in_every_batch() {
    let dtype = Dtype::Float(Float::BF16);
    let Some(mut harness) = Harness::new(&Program::of_format(dtype).unwrap()) else { return };
    let packed = Packed::random(dtype, 9, 1100, 9);
    let matrix = harness.matrix(&weight(&packed));
    let x = random(9 * 1100, 1);
    let x_at = harness.upload(&x);
    let mut results = Vec::new();
    for columns in [1, 2, 4, 8, 9] {
        let out = harness.floats(9 * columns);
        let kernel = dot_rows_kernel(dtype, 9, columns, false);
        let args = DotRows {
            matrix,
            x: x_at.0,
            out: out.0,
            x_stride: 1100,
            out_stride: 9,
            columns: columns as u32,
            ..DotRows::default()
        };
        harness.launch(kernel.name, kernel.grid(9, columns), kernel.threads, &args);
        results.push(harness.read::<f32>(out, 9 * columns));
    }
    for result in &results {
        assert_eq!(result[..], results[4][..result.len()]);
    }
}

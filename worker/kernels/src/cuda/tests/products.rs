//! The kernels that read packed matrices, for every format.

use super::super::args::{DecodeRows, DotRows};
use super::super::program::{Program, dot_rows_kernel};
use super::harness::Harness;
use crate::dtype::{Dtype, Float};
use crate::testing::{EXAMPLES, Packed, random};
use crate::weight::Weight;
use bytes::Bytes;

/// The weight of random packed rows.
fn weight(packed: &Packed) -> Weight {
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
fn every_format_multiplies_like_the_scalar_version() {
    for &dtype in EXAMPLES {
        let program = Program::of_format(dtype).unwrap();
        let Some(mut harness) = Harness::new(&program) else { return };
        for cols in lengths(dtype) {
            let rows = 11;
            let packed = Packed::random(dtype, rows, cols, 9);
            let matrix = harness.matrix(&weight(&packed));
            let bias = random(rows, 3);
            let bias_at = harness.upload(&bias);
            for columns in [1, 2, 3, 8, 9] {
                let x_stride = cols.next_multiple_of(4);
                // Behind a row of x is NaN, which would show in the result.
                let x: Vec<f32> = (0..columns)
                    .flat_map(|c| {
                        let mut row = random(cols, 20 + c as u64);
                        row.resize(x_stride, f32::NAN);
                        row
                    })
                    .collect();
                let x_at = harness.upload(&x);
                for (has_bias, accumulate) in [(false, false), (true, true)] {
                    let start = random(columns * (rows + 1), 40);
                    let out = harness.upload(&start);
                    let args = DotRows {
                        matrix,
                        x: x_at.0,
                        out: out.0,
                        bias: if has_bias { bias_at.0 } else { 0 },
                        x_stride: x_stride as u32,
                        out_stride: rows as u32 + 1,
                        columns: columns as u32,
                        accumulate: accumulate.into(),
                    };
                    let (kernel, rows_a_block, columns_a_block) = dot_rows_kernel(columns);
                    let grid =
                        [(rows as u32).div_ceil(rows_a_block), (columns as u32).div_ceil(columns_a_block), 1];
                    harness.launch(kernel, grid, 128, &args);
                    let found: Vec<f32> = harness.read(out, start.len());
                    for c in 0..columns {
                        assert_eq!(found[c * (rows + 1) + rows], start[c * (rows + 1) + rows]);
                        for row in 0..rows {
                            let w = packed.decoded(row);
                            let at = c * (rows + 1) + row;
                            let first = if accumulate { f64::from(start[at]) } else { 0.0 };
                            let first_bias = if has_bias { f64::from(bias[row]) } else { 0.0 };
                            let begin = (first + first_bias, first.abs() + first_bias.abs());
                            let terms = w.iter().zip(&x[c * x_stride..]);
                            let (sum, size) = terms.fold(begin, |(sum, size), (w, x)| {
                                let term = f64::from(*w) * f64::from(*x);
                                (sum + term, size + term.abs())
                            });
                            // A lane adds at most cols / 32 terms, rounded up to whole units of 256; then
                            // there are five additions in the warp, the bias, and the addition to `out`.
                            let roundings = cols.div_ceil(32).max(256.min(cols)) as f64 + 7.0;
                            let bound = roundings * f64::from(f32::EPSILON) * size;
                            let error = (f64::from(found[at]) - sum).abs();
                            assert!(
                                error <= bound,
                                "{dtype:?} {cols} {columns}: row {row}, column {c}: {} {sum}",
                                found[at]
                            );
                        }
                    }
                }
            }
        }
    }
}

/// The result of a column does not depend on the others, so batching does not change a single bit.
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
        let (kernel, rows, group) = dot_rows_kernel(columns);
        let args = DotRows {
            matrix,
            x: x_at.0,
            out: out.0,
            x_stride: 1100,
            out_stride: 9,
            columns: columns as u32,
            ..DotRows::default()
        };
        harness.launch(kernel, [9u32.div_ceil(rows), (columns as u32).div_ceil(group), 1], 128, &args);
        results.push(harness.read::<f32>(out, 9 * columns));
    }
    for result in &results {
        assert_eq!(result[..], results[4][..result.len()]);
    }
}

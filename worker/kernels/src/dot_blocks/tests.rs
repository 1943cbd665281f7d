//! Compares each version with the values that blocks and columns represent.

use lode_model::quant::ggml::Type;

use super::*;
use crate::ops::{Input, Ops};
use crate::testing::{EXAMPLES, Packed, random};

fn dtypes() -> impl Iterator<Item = Dtype> {
    EXAMPLES.iter().copied().filter(|dtype| uses_integers(*dtype))
}

fn product(ops: &Ops, rows: &Rows<'_>, x: &[f32]) -> Vec<f32> {
    let packed = ops.pack_columns(x, rows.cols(), rows.dtype());
    let mut out = vec![f32::NAN; x.len() / rows.cols() * rows.len()];
    let x = Input { numbers: &[], packed: &packed };
    ops.product(rows, x, &mut Window::new(&mut out, rows.len(), 0, rows.len()), &mut Vec::new());
    out
}

/// Sums of integers are exact. Scaling and adding K / 16 of them, and as many minima, has an error of a few
/// ulp of the largest.
#[test]
fn every_version_agrees_with_float64() {
    for ops in Ops::all() {
        for dtype in dtypes() {
            for (n, cols, m) in [
                (1, 32, 1),
                (5, 64, 2),
                (3, 256, 3),
                (17, 288, 4),
                (24, 288, 7),
                (33, 544, 37),
                (40, 1024, 16),
            ] {
                let cols = cols.max(dtype.multiple()).next_multiple_of(dtype.multiple());
                let packed = Packed::random(dtype, n, cols, 7);
                let x = random(m * cols, 11);
                let columns = ops.pack_columns(&x, cols, dtype).blocks;
                let out = product(ops, &packed.rows(), &x);
                for i in 0..n {
                    let row = packed.decoded(i);
                    let largest = row.iter().fold(0.0f32, |largest, w| largest.max(w.abs()));
                    for j in 0..m {
                        let x: Vec<f32> = (0..cols).map(|k| columns.at(j, k)).collect();
                        let terms = row.iter().zip(&x).map(|(w, x)| f64::from(*w) * f64::from(*x));
                        let (sum, size) = (terms.sum::<f64>(), x.iter().map(|x| x.abs()).sum::<f32>());
                        let bound = cols as f32 * f32::EPSILON * largest * size;
                        let found = out[j * n + i];
                        let name = ops.name;
                        assert!(
                            (f64::from(found) - sum).abs() <= f64::from(bound),
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
        for dtype in dtypes() {
            let cols = 544usize.next_multiple_of(dtype.multiple());
            let (n, m) = (19, 37);
            let packed = Packed::random(dtype, n, cols, 3);
            let x = random(m * cols, 5);
            let all = product(ops, &packed.rows(), &x);
            for i in 0..n {
                for j in 0..m {
                    let one = product(ops, &packed.rows().range(i, 1), &x[j * cols..(j + 1) * cols]);
                    assert_eq!(one[0].to_bits(), all[j * n + i].to_bits(), "{} {dtype:?} {i},{j}", ops.name);
                }
            }
            for (first, m) in [(0, 2), (3, 3), (7, 7), (5, 12)] {
                let some = product(ops, &packed.rows(), &x[first * cols..(first + m) * cols]);
                assert_eq!(some, all[first * n..(first + m) * n], "{} {dtype:?}", ops.name);
            }
        }
    }
}

#[test]
fn columns_are_within_half_a_step() {
    for ops in Ops::all() {
        let (m, cols) = (21, 288);
        let mut x = random(m * cols, 2);
        x[40..72].fill(0.0);
        x[7] = 1e-42;
        x[cols..cols + 32].fill(1e-42);
        x[300] = -3e38;
        let columns = ops.pack_columns(&x, cols, Dtype::Ggml(Type::Q8_0)).blocks;
        for (j, x) in x.chunks(cols).enumerate() {
            for (g, x) in x.chunks(32).enumerate() {
                let largest = x.iter().fold(0.0f32, |m, v| m.max(v.abs()));
                for (k, v) in x.iter().enumerate() {
                    let found = columns.at(j, 32 * g + k);
                    assert!((v - found).abs() <= largest * (0.5 / 127.0 + 1e-5) + 1e-36, "{v} {found}");
                }
            }
        }
        let scalar = Ops::scalar().pack_columns(&x, cols, Dtype::Ggml(Type::Q8_0)).blocks;
        assert_eq!(format!("{columns:?}"), format!("{scalar:?}"), "{}", ops.name);
    }
}

#[test]
fn nan_is_preserved() {
    for ops in Ops::all() {
        for dtype in dtypes() {
            for none in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                for m in [1, 4] {
                    let cols = 256;
                    let packed = Packed::random(dtype, 4, cols, 3);
                    let mut x = random(m * cols, 5);
                    x[39] = none;
                    let found = product(ops, &packed.rows(), &x);
                    assert!(found[..4].iter().all(|v| !v.is_finite()), "{} {dtype:?}: {found:?}", ops.name);
                    assert!(found[4..].iter().all(|v| v.is_finite()), "{} {dtype:?}", ops.name);
                }
            }
        }
    }
}

/// The products of ggml's golden vectors, within the bound of ggml's own tests.
#[test]
fn products_are_near_those_of_ggml() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/ggml-quant");
    let part = |file: &[u8], name: &str| {
        let header = lode_model::safetensors::Header::read(file).unwrap();
        let entry = header.get(name)?;
        let begin = (header.data_start() + entry.begin) as usize;
        Some(file[begin..begin + entry.size_bytes() as usize].to_vec())
    };
    let act = part(&std::fs::read(folder.join("input.safetensors")).unwrap(), "act").unwrap();
    let act: Vec<f32> = act.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    let mut sets = 0;
    for &ty in Type::ALL.iter().filter(|ty| ty.is_quantised()) {
        let Ok(file) = std::fs::read(folder.join(format!("{}.safetensors", ty.as_str().to_lowercase())))
        else {
            continue;
        };
        let part = |name| part(&file, name);
        let (Some(dot), Some(blocks)) = (part("dot"), part("blocks")) else { continue };
        let dot: Vec<f64> = dot.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect();
        let (dtype, rows) = (crate::Dtype::Ggml(ty), dot.len() / 2);
        let (blocks, none) = (bytes::Bytes::from(blocks), bytes::Bytes::new());
        let weight = crate::Weight::new(dtype, (rows, 256), blocks, none.clone(), none).unwrap();
        for ops in Ops::all() {
            // `dot` has a row per row of the blocks.
            let found = ops.matmul(&weight, &act);
            let (mut error, mut size) = (0.0, 0.0);
            for (n, expect) in dot.iter().enumerate() {
                error += (f64::from(found[n % 2 * rows + n / 2]) - expect).powi(2);
                size += expect.powi(2);
            }
            assert!(error <= 5e-4 * size, "{} {ty}: {}", ops.name, error / size);
        }
        sets += 1;
    }
    assert!(sets > 12, "{sets}");
}

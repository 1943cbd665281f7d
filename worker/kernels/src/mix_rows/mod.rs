//! A weighted sum of packed rows, the second half of attention: the values of a page, weighted by their
//! probabilities. Called through `Ops`. Rows are added in order, so splitting a range of rows does not change
//! the result.

use super::rows::Rows;

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon;

/// `out[d] += sum over t of weights[t] * rows[t][d]`, for the first `weights.len()` rows.
pub(super) fn scalar(rows: &Rows<'_>, weights: &[f32], out: &mut [f32], scratch: &mut Vec<f32>) {
    scratch.resize(rows.cols(), 0.0);
    for (t, weight) in weights.iter().enumerate() {
        super::decode::scalar(rows, t, scratch);
        for (out, value) in out.iter_mut().zip(scratch.iter()) {
            *out += weight * value;
        }
    }
}

#[cfg(test)]
mod tests {
    use lode_model::quant::ggml::Type;

    use crate::dtype::{Dtype, Float};
    use crate::ops::Ops;
    use crate::testing::{Packed, random};

    #[test]
    fn every_version_agrees_with_float64() {
        for ops in Ops::all() {
            for dtype in [Dtype::Float(Float::F32), Dtype::Float(Float::F16), Dtype::Ggml(Type::Q8_0)] {
                for (n, cols) in [(1, 4), (3, 16), (32, 64), (7, 80), (20, 96), (32, 128)] {
                    let cols = usize::max(cols, dtype.multiple()).next_multiple_of(dtype.multiple());
                    let packed = Packed::random(dtype, n, cols, 7);
                    let (weights, start) = (random(n, 3), random(cols, 4));
                    let mut out = start.clone();
                    ops.mix_rows(&packed.rows(), &weights, &mut out, &mut Vec::new());
                    for d in 0..cols {
                        let terms = (0..n).map(|t| f64::from(weights[t]) * f64::from(packed.decoded(t)[d]));
                        let begin = f64::from(start[d]);
                        let (sum, size) = terms.fold((begin, begin.abs()), |(s, a), t| (s + t, a + t.abs()));
                        let bound = (n as f64 + 1.0) * f64::from(f32::EPSILON) * size;
                        assert!(
                            (f64::from(out[d]) - sum).abs() <= bound,
                            "{} {dtype:?} {n}x{cols} {d}",
                            ops.name
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn cutting_the_rows_changes_no_bit() {
        for ops in Ops::all() {
            let packed = Packed::random(Dtype::Float(Float::F16), 32, 80, 7);
            let weights = random(32, 3);
            let (mut whole, mut cut) = (vec![0.0; 80], vec![0.0; 80]);
            ops.mix_rows(&packed.rows(), &weights, &mut whole, &mut Vec::new());
            ops.mix_rows(&packed.rows(), &weights[..13], &mut cut, &mut Vec::new());
            ops.mix_rows(&packed.rows().range(13, 19), &weights[13..], &mut cut, &mut Vec::new());
            assert_eq!(whole, cut, "{}", ops.name);
        }
    }
}

//! The kernels that process rows of floats, compared with float64 or with the scalar version.

use super::super::args::{Route, RowOp, Sample};
use super::super::program::Program;
use super::harness::Harness;
use crate::cpu::route;
use crate::ops::Ops;
use crate::testing::random;

const EPSILON: f64 = f32::EPSILON as f64;
const ROWS: usize = 3;
const LENGTHS: [usize; 5] = [1, 33, 256, 300, 1025];

/// Runs a kernel on rows of random numbers. Returns the inputs `x`, `other`, `weight` and `bias`, and the
/// result.
fn run(
    harness: &mut Harness,
    kernel: &str,
    cols: usize,
    spread: f32,
    by_row: bool,
    more: RowOp,
) -> [Vec<f32>; 5] {
    let scaled = |n, seed| random(n, seed).into_iter().map(|v| v * spread).collect::<Vec<f32>>();
    let inputs = [scaled(ROWS * cols, 1), random(ROWS * cols, 2), random(cols, 3), random(cols, 4)];
    let [x, other, weight, bias] = inputs.each_ref().map(|values| harness.upload(values).0);
    let out = harness.upload(&random(ROWS * cols, 5));
    let stride = cols as u32;
    let args = RowOp {
        x,
        other,
        weight,
        bias,
        out: out.0,
        cols: stride,
        x_stride: stride,
        other_stride: stride,
        out_stride: stride,
        ..more
    };
    let grid = if by_row { [ROWS as u32, 1, 1] } else { [stride.div_ceil(256), ROWS as u32, 1] };
    harness.launch(kernel, grid, 256, &args);
    let [x, other, weight, bias] = inputs;
    [x, other, weight, bias, harness.read(out, ROWS * cols)]
}

/// Asserts that each value is within its bound.
fn check(kernel: &str, found: &[f32], expect: impl Iterator<Item = (f64, f64)>) {
    let mut n = 0;
    for (i, (found, (expect, bound))) in found.iter().zip(expect).enumerate() {
        assert!((f64::from(*found) - expect).abs() <= bound, "{kernel} {i}: {found}, expected {expect}");
        n += 1;
    }
    assert_eq!(n, found.len());
}

#[test]
fn norms() {
    let Some(mut harness) = Harness::new(&Program::of_rows()) else { return };
    for cols in LENGTHS {
        let n = cols as f64;
        for accumulate in [0, 1] {
            let more = RowOp { scale: 1e-5, accumulate, ..RowOp::default() };
            let [x, _, weight, _, found] = run(&mut harness, "rms_norm", cols, 1.0, true, more);
            let before = random(ROWS * cols, 5);
            let expect = (0..x.len()).map(|i| {
                let row = &x[i / cols * cols..][..cols];
                let mean = row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / n;
                let value = f64::from(x[i]) / (mean + 1e-5).sqrt() * f64::from(weight[i % cols]);
                let start = if accumulate == 1 { f64::from(before[i]) } else { 0.0 };
                // As for the scalar version: the sum of n squares, which the root halves, and a few
                // roundings.
                (start + value, EPSILON * ((n / 4.0 + 6.0) * value.abs() + start.abs()))
            });
            check("rms_norm", &found, expect);
        }
        let more = RowOp { scale: 1e-5, ..RowOp::default() };
        let [x, _, weight, bias, found] = run(&mut harness, "layer_norm", cols, 1.0, true, more);
        let expect = (0..x.len()).map(|i| {
            let row = &x[i / cols * cols..][..cols];
            let mean = row.iter().map(|v| f64::from(*v)).sum::<f64>() / n;
            let variance = row.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / n;
            let factor = f64::from(weight[i % cols]) / (variance + 1e-5).sqrt();
            let value = (f64::from(x[i]) - mean) * factor + f64::from(bias[i % cols]);
            // The mean of values below 2 has an error of n/2 ulp, which moves each value; one value alone is
            // its mean, where the difference is only an error.
            (value, EPSILON * (n / 2.0 + 8.0) * (2.0 * factor.abs() + value.abs() + 1.0))
        });
        check("layer_norm", &found, expect);
    }
}

#[test]
fn activations() {
    let Some(mut harness) = Harness::new(&Program::of_rows()) else { return };
    for (cols, spread) in [(1, 1.0), (300, 4.0), (257, 30.0)] {
        let none = RowOp::default();
        let [x, up, .., found] = run(&mut harness, "swiglu", cols, spread, false, none);
        let expect = x.iter().zip(&up).map(|(g, u)| {
            let value = f64::from(*g) / (1.0 + f64::from(-g).exp()) * f64::from(*u);
            (value, 8.0 * EPSILON * value.abs() + 1e-35)
        });
        check("swiglu", &found, expect);

        let [x, up, .., found] = run(&mut harness, "geglu", cols, spread, false, none);
        let expect = x.iter().zip(&up).map(|(g, u)| {
            let g = f64::from(*g);
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (g + 0.044715 * g.powi(3));
            let value = g / (1.0 + (-2.0 * inner).exp()) * f64::from(*u);
            // Rounding the exponent's argument has an error of its size in ulps.
            (value, EPSILON * (8.0 + 8.0 * inner.abs()) * value.abs() + 1e-33)
        });
        check("geglu", &found, expect);

        let [x, .., found] = run(&mut harness, "gelu", cols, spread, false, none);
        let mut scalar = x.clone();
        crate::gelu::scalar(&mut scalar);
        let expect = x.iter().zip(scalar).map(|(x, value)| {
            // The scalar version's fit has an error of 1.2e-7 of the distribution function. Rounding the
            // argument of erfc changes its tail by the square of the argument in ulps.
            let size = f64::from(*x).abs();
            (
                f64::from(value),
                f64::from(value).abs() * (2e-7 + EPSILON * (8.0 + 2.0 * size * size))
                    + 2e-7 * size.min(1e-3)
                    + 1e-37,
            )
        });
        check("gelu", &found, expect);

        let more = RowOp { scale: 0.25, cap: 5.0, ..none };
        let [x, .., found] = run(&mut harness, "soft_cap", cols, spread, false, more);
        let expect = x.iter().map(|x| {
            let value = 5.0 * (f64::from(*x) * 0.25 / 5.0).tanh();
            (value, 8.0 * EPSILON * value.abs())
        });
        check("soft_cap", &found, expect);
    }
}

#[test]
fn softmax_of_rows() {
    let Some(mut harness) = Harness::new(&Program::of_rows()) else { return };
    for (cols, spread) in [(1, 1.0), (33, 30.0), (1025, 300.0)] {
        let more = RowOp { scale: 0.125, ..RowOp::default() };
        let [x, .., found] = run(&mut harness, "softmax", cols, spread, true, more);
        let expect = (0..x.len()).map(|i| {
            let row = x[i / cols * cols..][..cols].iter().map(|v| f64::from(*v) * 0.125);
            let max = row.clone().fold(f64::MIN, f64::max);
            let value = f64::from(x[i]) * 0.125;
            let expect = (value - max).exp() / row.map(|v| (v - max).exp()).sum::<f64>();
            let bound = EPSILON * (2.0 * max.abs().max(value.abs()) + cols as f64 + 8.0);
            (expect, bound * expect + 1e-37)
        });
        check("softmax", &found, expect);
    }
    let mut x = random(300, 1);
    x[299] = f32::NAN;
    let (at, out) = (harness.upload(&x), harness.floats(300));
    let args = RowOp { x: at.0, out: out.0, cols: 300, scale: 1.0, ..RowOp::default() };
    harness.launch("softmax", [1, 1, 1], 256, &args);
    assert!(harness.read::<f32>(out, 300).iter().all(|v| v.is_nan()));
}

/// The choices are those of the host, which are the specification, from the probabilities of the device.
#[test]
fn experts_are_chosen() {
    let Some(mut harness) = Harness::new(&Program::of_rows()) else { return };
    for (count, used, renormalise) in
        [(1, 1, true), (8, 2, true), (64, 8, false), (300, 8, true), (256, 256, true)]
    {
        let stride = usize::next_multiple_of(count, 32);
        let mut scores: Vec<f32> = random(ROWS * stride, 9).iter().map(|v| v * 4.0).collect();
        // The second row has equal scores, the third a NaN.
        scores[stride..2 * stride].iter_mut().for_each(|v| *v = v.round());
        scores[2 * stride] = f32::NAN;
        let n = ROWS * used;
        let [at, choices, slots, weights] =
            [harness.upload(&scores), harness.floats(n), harness.floats(n), harness.floats(n)];
        let args = Route {
            scores: at.0,
            choices: choices.0,
            slots: slots.0,
            weights: weights.0,
            count: count as u32,
            stride: stride as u32,
            used: used as u32,
            renormalise: renormalise.into(),
        };
        harness.launch("route", [ROWS as u32, 1, 1], 256, &args);
        let (found, found_weights) = (harness.read::<u32>(choices, n), harness.read::<f32>(weights, n));
        assert_eq!(harness.read::<u32>(slots, n), (0..n as u32).collect::<Vec<_>>());
        let probabilities = harness.read::<f32>(at, ROWS * stride);
        for row in 0..ROWS {
            let of_row = &probabilities[row * stride..][..count];
            let expect: Vec<(usize, f32)> = route(of_row, used, renormalise).collect();
            let found = found[row * used..].iter().zip(&found_weights[row * used..]);
            for ((expert, weight), (expect, expect_weight)) in found.zip(expect) {
                assert_eq!(*expert as usize, expect, "{count} {used} row {row}");
                assert!(weight.to_bits() == expect_weight.to_bits() || row == 2, "{count} {used} row {row}");
            }
            let mut scalar = scores[row * stride..][..count].to_vec();
            Ops::scalar().softmax(&mut scalar, 1.0);
            for (found, expect) in of_row.iter().zip(scalar) {
                assert!((found - expect).abs() <= 1e-6 || row == 2, "{count} row {row}: {found} {expect}");
            }
        }
    }
}

#[test]
fn samples() {
    let Some(mut harness) = Harness::new(&Program::of_samples()) else { return };
    for cols in [1, 37, 256, 1000] {
        let mut x: Vec<f32> = random(ROWS * cols, 7).iter().map(|v| v * 10.0).collect();
        // The largest value twice, and NaN, which is not chosen.
        x[cols / 2] = 50.0;
        x[cols - 1] = 50.0;
        x[ROWS * cols - 1] = f32::NAN;
        let (logits, ids, values) = (harness.upload(&x), harness.floats(ROWS), harness.floats(ROWS));
        let n = cols as u32;
        let args = Sample {
            logits: logits.0,
            ids: ids.0,
            values: values.0,
            cols: n,
            stride: n,
            ..Sample::default()
        };
        harness.launch("argmax", [ROWS as u32, 1, 1], 256, &args);
        let (found, largest) = (harness.read::<u32>(ids, ROWS), harness.read::<f32>(values, ROWS));
        for (row, x) in x.chunks_exact(cols).enumerate() {
            let first = (0..cols).filter(|i| !x[*i].is_nan()).reduce(|a, b| if x[b] > x[a] { b } else { a });
            assert_eq!(found[row], first.map_or(u32::MAX, |i| i as u32), "{cols} {row}");
            assert_eq!(largest[row], first.map_or(f32::NEG_INFINITY, |i| x[i]));
        }
        harness.launch("log_sum_exp", [ROWS as u32, 1, 1], 256, &args);
        let found = harness.read::<f32>(values, ROWS);
        for (row, x) in x.chunks_exact(cols).enumerate().take(ROWS - 1) {
            let max = x.iter().fold(f64::MIN, |m, v| m.max(f64::from(*v)));
            let expect = max + x.iter().map(|v| (f64::from(*v) - max).exp()).sum::<f64>().ln();
            // The sum has a relative error of n ulp, which its logarithm has as an absolute one.
            let bound = EPSILON * (cols as f64 + 4.0 + 4.0 * expect.abs());
            assert!((f64::from(found[row]) - expect).abs() <= bound, "{cols} {row}: {} {expect}", found[row]);
        }
        assert!(found[ROWS - 1].is_nan());
    }
}

#[test]
fn top_k_is_sorted_and_prefers_small_ids() {
    let Some(mut harness) = Harness::new(&Program::of_samples()) else { return };
    for (cols, k, spread) in
        [(1, 1, 1.0), (40, 40, 1.0), (700, 50, 1.0), (3000, 1024, 0.0), (2500, 1000, 3.0)]
    {
        let mut x: Vec<f32> = random(ROWS * cols, 7).iter().map(|v| v * spread).collect();
        // Many equal values, also around the last rank, and values that are not finite.
        x[2 * cols..].iter_mut().for_each(|v| *v = (*v * 4.0).round());
        x[cols / 2] = f32::INFINITY;
        x[cols - 1] = f32::NEG_INFINITY;
        x[cols / 3] = f32::NAN;
        let (logits, ids, values) = (harness.upload(&x), harness.floats(ROWS * k), harness.floats(ROWS * k));
        let (n, k_arg) = (cols as u32, k as u32);
        let args = Sample {
            logits: logits.0,
            ids: ids.0,
            values: values.0,
            cols: n,
            stride: n,
            k: k_arg,
            reserved: 0,
        };
        harness.launch("top_k", [ROWS as u32, 1, 1], 256, &args);
        let (found, of) = (harness.read::<u32>(ids, ROWS * k), harness.read::<f32>(values, ROWS * k));
        for (row, x) in x.chunks_exact(cols).enumerate() {
            let mut expect: Vec<u32> = (0..n).collect();
            let rank = |id: &u32| (x[*id as usize].is_nan(), -x[*id as usize]);
            expect.sort_by(|a, b| {
                let (a_rank, b_rank) = (rank(a), rank(b));
                let by_value = a_rank.1.partial_cmp(&b_rank.1).unwrap_or(std::cmp::Ordering::Equal);
                // Zeros with and without a sign are different keys.
                let by_sign = a_rank.1.is_sign_positive().cmp(&b_rank.1.is_sign_positive());
                a_rank.0.cmp(&b_rank.0).then(by_value).then(by_sign).then(a.cmp(b))
            });
            assert_eq!(found[row * k..][..k], expect[..k], "{cols} {k} row {row}");
            for (id, value) in found[row * k..][..k].iter().zip(&of[row * k..]) {
                assert_eq!(value.to_bits(), x[*id as usize].to_bits());
            }
        }
    }
}

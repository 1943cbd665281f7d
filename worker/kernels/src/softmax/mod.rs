//! The softmax of a row of attention scores. Called through `Ops`.

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon;

/// `x[i] = exp(scale * x[i] - max) / sum`. A NaN score makes the whole row NaN.
pub(super) fn scalar(x: &mut [f32], scale: f32) {
    let max = x.iter().fold(f32::NEG_INFINITY, |m, v| m.max(scale * v));
    let mut sum = 0.0;
    for x in x.iter_mut() {
        *x = (scale * *x - max).exp();
        sum += *x;
    }
    let inverse = 1.0 / sum;
    x.iter_mut().for_each(|x| *x *= inverse);
}

#[cfg(test)]
mod tests {
    use crate::ops::Ops;
    use crate::testing::random;

    #[test]
    fn every_version_agrees_with_float64() {
        for ops in Ops::all() {
            for n in [1, 2, 7, 8, 9, 31, 200, 1025] {
                for spread in [1.0, 30.0, 1000.0] {
                    let x: Vec<f32> = random(n, 1).iter().map(|v| v * spread).collect();
                    let scale = 0.125f32;
                    let mut out = x.clone();
                    ops.softmax(&mut out, scale);
                    let scaled: Vec<f64> = x.iter().map(|v| f64::from(*v) * f64::from(scale)).collect();
                    let max = scaled.iter().fold(f64::MIN, |m, v| m.max(*v));
                    let sum: f64 = scaled.iter().map(|v| (v - max).exp()).sum();
                    for i in 0..n {
                        let expect = (scaled[i] - max).exp() / sum;
                        // Rounding the exponent's argument has an error of its size in ulps, the sum an error
                        // of n/2 ulp.
                        let bound =
                            f64::from(f32::EPSILON) * (2.0 * max.abs().max(scaled[i].abs()) + n as f64 + 6.0);
                        let error = (f64::from(out[i]) - expect).abs();
                        assert!(error <= bound * expect + 1e-37, "{} {n} {spread} {i}: {error:e}", ops.name);
                    }
                }
            }
        }
    }

    #[test]
    fn nan_spreads_to_the_whole_row() {
        for ops in Ops::all() {
            for bad in [f32::NAN, f32::INFINITY] {
                for at in [0, 3, 12, 18] {
                    let mut x = random(19, 1);
                    x[at] = bad;
                    ops.softmax(&mut x, 1.0);
                    assert!(x.iter().any(|v| v.is_nan()), "{} {bad} {at}: {x:?}", ops.name);
                }
            }
        }
    }
}

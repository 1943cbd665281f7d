//! The root-mean-square norm of a row. Called through `Ops`.

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon;

/// `out = x / sqrt(mean(x^2) + eps) * weight`; all have the same length.
pub(super) fn scalar(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let squares = x.iter().fold(0.0, |sum, v| sum + v * v);
    let scale = 1.0 / (squares / x.len() as f32 + eps).sqrt();
    for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
        *out = x * scale * weight;
    }
}

#[cfg(test)]
mod tests {
    use crate::ops::Ops;
    use crate::testing::random;

    #[test]
    fn every_version_agrees_with_float64() {
        for ops in Ops::all() {
            for n in [1, 5, 8, 9, 64, 257, 4096] {
                let (x, weight) = (random(n, 1), random(n, 2));
                let mut out = vec![f32::NAN; n];
                ops.rms_norm(&x, &weight, 1e-5, &mut out);
                let mean = x.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / n as f64;
                for i in 0..n {
                    let expect = f64::from(x[i]) / (mean + 1e-5).sqrt() * f64::from(weight[i]);
                    // The sum of n squares has an error of at most n/2 ulp, which the root halves. There are
                    // four more roundings.
                    let bound = (n as f64 / 4.0 + 4.0) * f64::from(f32::EPSILON) * expect.abs();
                    assert!((f64::from(out[i]) - expect).abs() <= bound, "{} {n} {i}", ops.name);
                }
            }
        }
    }
}

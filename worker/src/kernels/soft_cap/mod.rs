//! The soft cap of the gemma family, on attention scores and on logits.
//! Called through `Ops`.

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;

/// `x = cap * tanh(scale * x / cap)`.
pub(super) fn scalar(x: &mut [f32], scale: f32, cap: f32) {
    for x in x {
        *x = (*x * scale / cap).tanh() * cap;
    }
}

#[cfg(test)]
mod tests {
    use crate::kernels::ops::Ops;
    use crate::kernels::testing::random;

    #[test]
    fn every_version_agrees_with_float64() {
        for ops in Ops::all() {
            for n in [1, 7, 8, 9, 200] {
                for spread in [1e-5, 0.01, 1.0, 30.0, 200.0, 1e6] {
                    let x: Vec<f32> = random(n, 1).iter().map(|v| v * spread).collect();
                    let mut out = x.clone();
                    ops.soft_cap(&mut out, 0.25, 50.0);
                    for (x, found) in x.iter().zip(&out) {
                        let expect = 50.0 * (f64::from(*x) * 0.25 / 50.0).tanh();
                        let error = (f64::from(*found) - expect).abs();
                        // A few roundings and, with vectors, an approximation that errs by less than 4 ulp.
                        assert!(
                            error <= 8.0 * f64::from(f32::EPSILON) * expect.abs(),
                            "{} {x}: {found} {expect}",
                            ops.name
                        );
                    }
                }
            }
            let mut x = [0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1.0];
            ops.soft_cap(&mut x, 1.0, 30.0);
            assert!(x[0] == 0.0 && (x[1] - 30.0).abs() < 1e-4 && (x[2] + 30.0).abs() < 1e-4, "{x:?}");
            assert!(x[3].is_nan(), "{} {x:?}", ops.name);
        }
    }
}

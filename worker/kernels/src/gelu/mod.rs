//! GELU in its exact form, `x` times the normal distribution function of `x`: the activation of encoders.
//! Called through `Ops`.

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon;

/// Coefficients of the logarithm of `erfc(z) * exp(z^2) / t` for `t = 1 / (1 + z / 2)`, as a polynomial in t,
/// highest power first. This is the Chebyshev fit of Numerical Recipes' `erfcc`; its relative error is below
/// 1.2e-7 for every z >= 0.
const FIT: [f32; 10] = [
    0.170_872_77,
    -0.822_152_23,
    1.488_515_9,
    -1.135_204,
    0.278_868_07,
    -0.186_288_06,
    0.096_784_18,
    0.374_091_96,
    1.000_023_7,
    -1.265_512_2,
];

/// `x = x * (1 + erf(x / sqrt(2))) / 2`.
pub(super) fn scalar(x: &mut [f32]) {
    for x in x {
        let z = f64::from(*x) * std::f64::consts::FRAC_1_SQRT_2;
        let t = 1.0 / (1.0 + 0.5 * z.abs());
        let fit = FIT.iter().fold(0.0, |sum, c| sum * t + f64::from(*c));
        let tail = 0.5 * t * (fit - z * z).exp();
        *x = (f64::from(*x) * if z < 0.0 { tail } else { 1.0 - tail }) as f32;
    }
}

#[cfg(test)]
mod tests {
    use crate::ops::Ops;
    use crate::testing::random;

    /// The normal distribution function, computed by its series.
    fn normal(x: f64) -> f64 {
        let (mut term, mut sum) = (x, x);
        for n in 1..200 {
            term *= x * x / (2 * n + 1) as f64;
            sum += term;
        }
        0.5 + sum * (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt()
    }

    #[test]
    fn every_version_agrees_with_float64() {
        for ops in Ops::all() {
            for n in [1, 8, 13, 64, 100] {
                for spread in [0.01, 1.0, 2.5, 4.0] {
                    let x: Vec<f32> = random(n, 1).iter().map(|v| v * spread).collect();
                    let mut out = x.clone();
                    ops.gelu(&mut out);
                    for (x, found) in x.iter().zip(&out) {
                        let x = f64::from(*x);
                        let error = (f64::from(*found) - x * normal(x)).abs();
                        // The error of the fit is 1.2e-7 of the distribution function; beyond 4 the series is
                        // inaccurate.
                        assert!(error <= 1e-6 * x.abs() + 1e-12, "{} {x}: {found}", ops.name);
                    }
                }
            }
            let mut x = [f32::NAN, -100.0, 100.0, 0.0];
            ops.gelu(&mut x);
            assert!(x[0].is_nan() && x[1].abs() < 1e-30 && x[2] == 100.0 && x[3] == 0.0, "{x:?}");
        }
    }
}

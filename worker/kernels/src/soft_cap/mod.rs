//! The soft cap of the gemma family, for attention scores and logits. Called through `Ops`.

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon;

/// The hyperbolic tangent for vectors as a ratio of two polynomials, with an error below 4 ulp, up to the
/// point where it is 1. Coefficients (highest power first) and the bound are those of Eigen's `ptanh_float`
/// (MathFunctionsImpl.h). The ratio may exceed 1 by an ulp.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
const ABOVE: [f32; 7] = [
    -2.760_768_5e-16,
    2.000_188e-13,
    -8.604_672e-11,
    5.122_297e-8,
    1.485_722_4e-5,
    6.372_619e-4,
    4.893_524_6e-3,
];
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
const BELOW: [f32; 4] = [1.198_258_4e-6, 1.185_347_1e-4, 2.268_434_6e-3, 4.893_525e-3];
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
const BOUND: f32 = 7.905_311;
/// Below this, tanh(x) is x.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
const TINY: f32 = 4e-4;

/// `x = cap * tanh(scale * x / cap)`.
pub(super) fn scalar(x: &mut [f32], scale: f32, cap: f32) {
    for x in x {
        *x = (*x * scale / cap).tanh() * cap;
    }
}

#[cfg(test)]
mod tests {
    use crate::ops::Ops;
    use crate::testing::random;

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
                        // A few roundings and, with vectors, an approximation with an error below 4 ulp.
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

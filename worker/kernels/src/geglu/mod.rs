//! The gated activation of the gemma family: GELU in its tanh form. Called through `Ops`.

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon;

/// The square root of 2 / pi, doubled.
const TWO_ROOT: f32 = 1.595_769;
const CUBIC: f32 = 0.044_715;

/// `gate = 0.5 * gate * (1 + tanh(sqrt(2 / pi) * (gate + 0.044715 * gate^3))) * up`, where
/// `0.5 * (1 + tanh(u))` is `1 / (1 + exp(-2 u))`.
pub(super) fn scalar(gate: &mut [f32], up: &[f32]) {
    for (gate, up) in gate.iter_mut().zip(up) {
        let inner = TWO_ROOT * (*gate + CUBIC * *gate * *gate * *gate);
        *gate = *gate / (1.0 + (-inner).exp()) * up;
    }
}

#[cfg(test)]
mod tests {
    use crate::ops::Ops;
    use crate::testing::random;

    #[test]
    fn every_version_agrees_with_float64() {
        for ops in Ops::all() {
            for n in [1, 8, 13, 64, 100] {
                for spread in [0.01, 1.0, 4.0, 20.0, 1e4] {
                    let gate: Vec<f32> = random(n, 1).iter().map(|v| v * spread).collect();
                    let up = random(n, 2);
                    let mut out = gate.clone();
                    ops.geglu(&mut out, &up);
                    for i in 0..n {
                        let (g, u) = (f64::from(gate[i]), f64::from(up[i]));
                        let inner = (2.0 / std::f64::consts::PI).sqrt() * (g + 0.044715 * g.powi(3));
                        let expect = g / (1.0 + (-2.0 * inner).exp()) * u;
                        // Rounding the exponent's argument has an error of its size in ulps, unless the
                        // result is 0 or 1.
                        let bound = f64::from(f32::EPSILON) * (8.0 + 8.0 * inner.abs()) * expect.abs();
                        let error = (f64::from(out[i]) - expect).abs();
                        assert!(error <= bound + 1e-33, "{} {g} {u}: {}", ops.name, out[i]);
                    }
                }
            }
            let mut gate = [f32::NAN, 1.0];
            ops.geglu(&mut gate, &[1.0, f32::NAN]);
            assert!(gate.iter().all(|v| v.is_nan()), "{}", ops.name);
        }
    }
}

//! The gated activation between the two halves of a feed-forward block. Called through `Ops`.

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon;

/// `gate = gate / (1 + exp(-gate)) * up`.
pub(super) fn scalar(gate: &mut [f32], up: &[f32]) {
    for (gate, up) in gate.iter_mut().zip(up) {
        *gate = *gate / (1.0 + (-*gate).exp()) * up;
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
                for spread in [1.0, 20.0, 200.0] {
                    let gate: Vec<f32> = random(n, 1).iter().map(|v| v * spread).collect();
                    let up = random(n, 2);
                    let mut out = gate.clone();
                    ops.swiglu(&mut out, &up);
                    for i in 0..n {
                        let (g, u) = (f64::from(gate[i]), f64::from(up[i]));
                        let expect = g / (1.0 + (-g).exp()) * u;
                        let bound = 8.0 * f64::from(f32::EPSILON) * expect.abs() + 1e-35;
                        assert!(
                            (f64::from(out[i]) - expect).abs() <= bound,
                            "{} {g} {u}: {}",
                            ops.name,
                            out[i]
                        );
                    }
                }
            }
            let mut gate = [f32::NAN, 1.0];
            ops.swiglu(&mut gate, &[1.0, f32::NAN]);
            assert!(gate.iter().all(|v| v.is_nan()), "{}", ops.name);
        }
    }
}

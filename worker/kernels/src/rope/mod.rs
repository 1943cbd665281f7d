//! Rotary position embedding of one head. Called through `Ops`. Cosines and sines of a position are computed
//! once per step.

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon;

/// Which two dimensions of a head are rotated together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// p and p + n/2, as in Hugging Face checkpoints.
    Halves,
    /// 2p and 2p + 1, as in GGUF files of the llama family.
    Adjacent,
}

/// Rotates the first `2 * cos.len()` values of `head`, pair p by the angle with `cos[p]` and `sin[p]`.
pub(super) fn scalar(head: &mut [f32], cos: &[f32], sin: &[f32], pairing: Pairing) {
    for p in 0..cos.len() {
        let (a, b) = match pairing {
            Pairing::Halves => (p, p + cos.len()),
            Pairing::Adjacent => (2 * p, 2 * p + 1),
        };
        let (x, y) = (head[a], head[b]);
        head[a] = x * cos[p] - y * sin[p];
        head[b] = y * cos[p] + x * sin[p];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::Ops;
    use crate::testing::random;

    #[test]
    fn every_version_agrees_with_scalar() {
        for ops in Ops::all() {
            for pairing in [Pairing::Halves, Pairing::Adjacent] {
                for (head_dim, pairs) in [(2, 1), (16, 8), (80, 40), (96, 32), (128, 64), (20, 10)] {
                    let head = random(head_dim, 1);
                    let angles = random(pairs, 2);
                    let (cos, sin): (Vec<f32>, Vec<f32>) = angles.iter().map(|a| (a.cos(), a.sin())).unzip();
                    let (mut expect, mut found) = (head.clone(), head.clone());
                    scalar(&mut expect, &cos, &sin, pairing);
                    ops.rotate(&mut found, &cos, &sin, pairing);
                    for (k, (expect, found)) in expect.iter().zip(&found).enumerate() {
                        // Two products and a sum of values below 4: three roundings.
                        assert!((expect - found).abs() <= 8.0 * f32::EPSILON, "{} {head_dim} {k}", ops.name);
                    }
                    assert_eq!(found[2 * pairs..], head[2 * pairs..]);
                }
            }
        }
    }

    #[test]
    fn pairs() {
        let mut head = [1.0, 2.0, 3.0, 4.0];
        scalar(&mut head, &[0.0, 0.0], &[1.0, 1.0], Pairing::Halves);
        assert_eq!(head, [-3.0, -4.0, 1.0, 2.0]);
        let mut head = [1.0, 2.0, 3.0, 4.0];
        scalar(&mut head, &[0.0, 0.0], &[1.0, 1.0], Pairing::Adjacent);
        assert_eq!(head, [-2.0, 1.0, -4.0, 3.0]);
    }
}

//! Rotary position embedding as the arch modules state it: the inverse frequency of every pair of dimensions.
//! Computed once at load; a step turns it into cosines and sines of its positions.

use crate::kernels::{Pairing, Rope};

/// The rotary embedding of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeConfig {
    pub theta: f64,
    pub kind: RopeKind,
}

/// How a model stretches its positions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeKind {
    Default,
    /// Every angle divided by `factor`.
    Linear {
        factor: f64,
    },
    /// Slow pairs divided by `factor`, fast ones left alone, those between interpolated
    /// (transformers `modeling_rope_utils.py: _compute_llama3_parameters`).
    Llama3 {
        factor: f64,
        low_freq_factor: f64,
        high_freq_factor: f64,
        original_context: f64,
    },
}

impl RopeConfig {
    /// The table for heads of `dims` dimensions (all of them rotated), `dims` even.
    /// Frequencies are rounded to f32 where the reference does.
    pub fn table(&self, dims: usize, pairing: Pairing) -> Rope {
        let inverse_frequencies = (0..dims / 2)
            .map(|p| {
                let exponent = (2 * p) as f32 / dims as f32;
                let plain = 1.0 / (self.theta as f32).powf(exponent);
                self.stretch(plain)
            })
            .collect();
        Rope { inverse_frequencies, scale: 1.0, pairing }
    }

    fn stretch(&self, plain: f32) -> f32 {
        match self.kind {
            RopeKind::Default => plain,
            RopeKind::Linear { factor } => plain / factor as f32,
            RopeKind::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                let (factor, low, high) = (factor as f32, low_freq_factor as f32, high_freq_factor as f32);
                let original = original_context as f32;
                let wavelength = 2.0 * std::f32::consts::PI / plain;
                if wavelength > original / low {
                    plain / factor
                } else if wavelength < original / high {
                    plain
                } else {
                    let smooth = (original / wavelength - low) / (high - low);
                    (1.0 - smooth) * plain / factor + smooth * plain
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequencies() {
        let check = |kind: RopeKind, expect: [f32; 4]| {
            let rope = RopeConfig { theta: 10_000.0, kind }.table(8, Pairing::Halves);
            for (found, expect) in rope.inverse_frequencies.iter().zip(expect) {
                assert!((found - expect).abs() <= 1e-6 * expect, "{kind:?}: {found} {expect}");
            }
        };
        check(RopeKind::Default, [1.0, 0.1, 0.01, 0.001]);
        check(RopeKind::Linear { factor: 4.0 }, [0.25, 0.025, 0.0025, 0.00025]);
        // Wavelengths 6.28, 62.8, 628, 6283 against 1024/4 = 256 and 1024/1: fast, fast, between, slow.
        let smooth = (1024.0 / (2.0 * std::f32::consts::PI / 0.01) - 1.0) / 3.0;
        check(
            RopeKind::Llama3 {
                factor: 8.0,
                low_freq_factor: 1.0,
                high_freq_factor: 4.0,
                original_context: 1024.0,
            },
            [1.0, 0.1, (1.0 - smooth) * 0.01 / 8.0 + smooth * 0.01, 0.000125],
        );
    }
}

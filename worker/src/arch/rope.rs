//! Rotary position embedding for the arch modules: the inverse frequency of every pair of dimensions.
//! Computed once at load; each step derives the cosines and sines of its positions from it.

use std::f32::consts::PI;

use lode_kernels::{Pairing, Rope};

use super::config::ConfigError;

/// The rotary embedding of a checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    pub theta: f64,
    pub kind: RopeKind,
}

/// How a model scales its positions, computed as in transformers' `modeling_rope_utils.py`.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeKind {
    Default,
    /// Every angle divided by `factor`.
    Linear {
        factor: f64,
    },
    /// Slow pairs divided by `factor`, fast ones unchanged, those in between interpolated
    /// (`_compute_llama3_parameters`).
    Llama3 {
        factor: f64,
        low_freq_factor: f64,
        high_freq_factor: f64,
        original_context: f64,
    },
    /// Similar, with a ramp between two numbers of turns and scaled scores (`_compute_yarn_parameters`).
    Yarn {
        factor: f64,
        beta_fast: f64,
        beta_slow: f64,
        original_context: f64,
        /// Multiplies cosines and sines.
        attention_factor: f64,
        /// Whether the ends of the ramp are whole pairs.
        truncate: bool,
    },
    /// A divisor of each pair, from one list up to the original context and from another beyond
    /// (`_compute_longrope_parameters`).
    LongRope {
        short: Vec<f32>,
        long: Vec<f32>,
        original_context: f64,
        /// Multiplies cosines and sines.
        attention_factor: f64,
    },
}

impl RopeConfig {
    /// Fails unless lists of factors have one for each pair of the `dims` dimensions that rotate.
    pub fn check(&self, dims: usize) -> Result<(), ConfigError> {
        let RopeKind::LongRope { short, long, .. } = &self.kind else { return Ok(()) };
        match [short, long].into_iter().find(|list| list.len() != dims / 2) {
            None => Ok(()),
            Some(list) => {
                let rule = format!("{} factors for {} pairs", list.len(), dims / 2);
                Err(ConfigError::Relation { field: "rope_scaling", rule })
            }
        }
    }

    /// The table for heads whose first `dims` dimensions rotate, `dims` even, in a model loaded for sequences
    /// of up to `context_length`. That length selects the list of [`RopeKind::LongRope`] once: switching
    /// lists for a growing sequence would make the cached keys wrong.
    ///
    /// Frequencies are rounded to f32 in the same places as in the reference.
    pub fn table(&self, dims: usize, pairing: Pairing, context_length: usize) -> Rope {
        let inverse_frequencies = (0..dims / 2)
            .map(|p| {
                let exponent = (2 * p) as f32 / dims as f32;
                let turn = (self.theta as f32).powf(exponent);
                self.stretch(p, dims, turn, context_length)
            })
            .collect();
        let scale = match self.kind {
            RopeKind::Yarn { attention_factor, .. } | RopeKind::LongRope { attention_factor, .. } => {
                attention_factor as f32
            }
            _ => 1.0,
        };
        Rope { inverse_frequencies, scale, pairing }
    }

    /// The inverse frequency of pair `p` of `dims / 2`, from its unscaled inverse `turn`.
    fn stretch(&self, p: usize, dims: usize, turn: f32, context_length: usize) -> f32 {
        let plain = 1.0 / turn;
        match &self.kind {
            RopeKind::Default => plain,
            RopeKind::Linear { factor } => plain / *factor as f32,
            RopeKind::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                let (factor, low, high) = (*factor as f32, *low_freq_factor as f32, *high_freq_factor as f32);
                let original = *original_context as f32;
                let wavelength = 2.0 * PI / plain;
                if wavelength > original / low {
                    plain / factor
                } else if wavelength < original / high {
                    plain
                } else {
                    let smooth = (original / wavelength - low) / (high - low);
                    (1.0 - smooth) * plain / factor + smooth * plain
                }
            }
            RopeKind::Yarn { factor, beta_fast, beta_slow, original_context, truncate, .. } => {
                // The pair that makes this number of turns within the original context.
                let pair = |turns: f64| {
                    let turns = original_context / (turns * 2.0 * std::f64::consts::PI);
                    dims as f64 * turns.ln() / (2.0 * self.theta.ln())
                };
                let (mut low, mut high) = (pair(*beta_fast), pair(*beta_slow));
                if *truncate {
                    (low, high) = (low.floor(), high.ceil());
                }
                let (low, mut high) = (low.max(0.0), high.min(dims as f64 - 1.0));
                if low == high {
                    high += 0.001;
                }
                let ramp = ((p as f64 - low) / (high - low)).clamp(0.0, 1.0) as f32;
                1.0 / (*factor as f32 * turn) * ramp + plain * (1.0 - ramp)
            }
            RopeKind::LongRope { short, long, original_context, .. } => {
                let factors = if context_length as f64 > *original_context { long } else { short };
                1.0 / (factors[p] * turn)
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
            let rope = RopeConfig { theta: 10_000.0, kind: kind.clone() }.table(8, Pairing::Halves, 4096);
            for (found, expect) in rope.inverse_frequencies.iter().zip(expect) {
                assert!((found - expect).abs() <= 1e-6 * expect, "{kind:?}: {found} {expect}");
            }
        };
        check(RopeKind::Default, [1.0, 0.1, 0.01, 0.001]);
        check(RopeKind::Linear { factor: 4.0 }, [0.25, 0.025, 0.0025, 0.00025]);
        // Wavelengths 6.28, 62.8, 628, 6283 against 1024/4 = 256 and 1024/1: fast, fast, between, slow.
        let smooth = (1024.0 / (2.0 * PI / 0.01) - 1.0) / 3.0;
        check(
            RopeKind::Llama3 {
                factor: 8.0,
                low_freq_factor: 1.0,
                high_freq_factor: 4.0,
                original_context: 1024.0,
            },
            [1.0, 0.1, (1.0 - smooth) * 0.01 / 8.0 + smooth * 0.01, 0.000125],
        );
        // Turns in 1024 tokens: 163, 16.3, 1.63, 0.163. The ramp goes from pair floor(0.71) to pair
        // ceil(2.21).
        check(
            RopeKind::Yarn {
                factor: 4.0,
                beta_fast: 32.0,
                beta_slow: 1.0,
                original_context: 1024.0,
                attention_factor: 1.0,
                truncate: true,
            },
            [1.0, 0.1 * (2.0 / 3.0 + 1.0 / 12.0), 0.01 * (1.0 / 3.0 + 1.0 / 6.0), 0.00025],
        );
        let long = |original_context| RopeKind::LongRope {
            short: vec![1.0, 2.0, 4.0, 5.0],
            long: vec![2.0, 4.0, 8.0, 10.0],
            original_context,
            attention_factor: 1.25,
        };
        check(long(4096.0), [1.0, 0.05, 0.0025, 0.0002]);
        check(long(4095.0), [0.5, 0.025, 0.00125, 0.0001]);
        let rope = RopeConfig { theta: 10_000.0, kind: long(1.0) }.table(8, Pairing::Halves, 1);
        assert_eq!(rope.scale, 1.25);
    }
}

//! `swiglu` with NEON.

use std::arch::aarch64::*;

use super::super::exp::neon::{each_with, exp};

#[target_feature(enable = "neon")]
pub(crate) fn swiglu(gate: &mut [f32], up: &[f32]) {
    each_with(gate, up, |gate, up| {
        let below = vaddq_f32(vdupq_n_f32(1.0), exp(vnegq_f32(gate)));
        vmulq_f32(vdivq_f32(gate, below), up)
    });
}

//! `geglu` with NEON.

use std::arch::aarch64::*;

use super::super::exp::neon::{each_with, exp};
use super::{CUBIC, TWO_ROOT};

#[target_feature(enable = "neon")]
pub(crate) fn geglu(gate: &mut [f32], up: &[f32]) {
    each_with(gate, up, |gate, up| {
        let cube = vmulq_f32(vmulq_f32(gate, gate), gate);
        let inner = vfmaq_f32(gate, vdupq_n_f32(CUBIC), cube);
        let below = vaddq_f32(vdupq_n_f32(1.0), exp(vmulq_f32(vdupq_n_f32(-TWO_ROOT), inner)));
        vmulq_f32(vdivq_f32(gate, below), up)
    });
}

//! `gelu` with NEON.

use std::arch::aarch64::*;

use super::super::exp::neon::{each, exp};
use super::FIT;

#[target_feature(enable = "neon")]
pub(crate) fn gelu(x: &mut [f32]) {
    each(x, |x| {
        let one = vdupq_n_f32(1.0);
        let z = vmulq_f32(x, vdupq_n_f32(std::f32::consts::FRAC_1_SQRT_2));
        let t = vdivq_f32(one, vfmaq_f32(one, vdupq_n_f32(0.5), vabsq_f32(z)));
        let mut fit = vdupq_n_f32(0.0);
        for c in FIT {
            fit = vfmaq_f32(vdupq_n_f32(c), fit, t);
        }
        let tail = exp(vfmsq_f32(fit, z, z));
        let tail = vmulq_f32(vmulq_f32(vdupq_n_f32(0.5), t), tail);
        // For negative x, the tail is the distribution function; for other x it is the distribution function
        // subtracted from 1.
        let share = vbslq_f32(vcltq_f32(z, vdupq_n_f32(0.0)), tail, vsubq_f32(one, tail));
        vmulq_f32(x, share)
    });
}

//! `soft_cap` with NEON.

use std::arch::aarch64::*;

use super::super::exp::neon::each;
use super::{ABOVE, BELOW, BOUND, TINY};

#[target_feature(enable = "neon")]
pub(crate) fn soft_cap(x: &mut [f32], scale: f32, cap: f32) {
    let (scales, caps) = (vdupq_n_f32(scale / cap), vdupq_n_f32(cap));
    each(x, |x| vmulq_f32(tanh(vmulq_f32(x, scales)), caps));
}

/// The hyperbolic tangent; see [`ABOVE`].
#[inline]
#[target_feature(enable = "neon")]
fn tanh(x: float32x4_t) -> float32x4_t {
    // Minimum and maximum preserve NaN.
    let x = vminq_f32(vdupq_n_f32(BOUND), vmaxq_f32(vdupq_n_f32(-BOUND), x));
    let square = vmulq_f32(x, x);
    let mut above = vdupq_n_f32(ABOVE[0]);
    for c in &ABOVE[1..] {
        above = vfmaq_f32(vdupq_n_f32(*c), above, square);
    }
    let mut below = vdupq_n_f32(BELOW[0]);
    for c in &BELOW[1..] {
        below = vfmaq_f32(vdupq_n_f32(*c), below, square);
    }
    let ratio = vdivq_f32(vmulq_f32(x, above), below);
    let ratio = vminq_f32(vdupq_n_f32(1.0), vmaxq_f32(vdupq_n_f32(-1.0), ratio));
    vbslq_f32(vcltq_f32(vabsq_f32(x), vdupq_n_f32(TINY)), x, ratio)
}

//! `rms_norm` with NEON: sixteen partial sums of squares.
#![allow(unsafe_code)] // Vector loads at any alignment.

use std::arch::aarch64::*;

use super::super::exp::neon::each_with;

#[target_feature(enable = "neon")]
pub(crate) fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    assert!(x.len() == weight.len() && x.len() == out.len());
    let (runs, rest) = x.as_chunks::<16>();
    let mut squares = [vdupq_n_f32(0.0); 4];
    for run in runs {
        for (v, sum) in squares.iter_mut().enumerate() {
            // SAFETY: 4 v + 4 <= 16.
            let four = unsafe { vld1q_f32(run.as_ptr().add(4 * v)) };
            *sum = vfmaq_f32(*sum, four, four);
        }
    }
    let [a, b, c, d] = squares;
    let sum = vaddvq_f32(vaddq_f32(vaddq_f32(a, b), vaddq_f32(c, d)));
    let sum = rest.iter().fold(sum, |sum, v| sum + v * v);
    let scale = vdupq_n_f32(1.0 / (sum / x.len() as f32 + eps).sqrt());
    out.copy_from_slice(x);
    each_with(out, weight, |x, weight| vmulq_f32(vmulq_f32(x, scale), weight));
}

//! `rotate` with NEON for [`Pairing::Halves`]; adjacent pairs use the scalar version.
#![allow(unsafe_code)] // Vector loads and stores at any alignment.

use std::arch::aarch64::*;

use super::Pairing;

#[target_feature(enable = "neon")]
pub(crate) fn rotate(head: &mut [f32], cos: &[f32], sin: &[f32], pairing: Pairing) {
    let pairs = cos.len();
    if pairing == Pairing::Adjacent || !pairs.is_multiple_of(4) {
        return super::scalar(head, cos, sin, pairing);
    }
    assert!(sin.len() == pairs && head.len() >= 2 * pairs);
    for p in (0..pairs).step_by(4) {
        // SAFETY: p + 4 <= pairs; `sin` is as long and `head` twice as long, by the assertion.
        unsafe {
            let (low, high) = (head.as_mut_ptr().add(p), head.as_mut_ptr().add(p + pairs));
            let (x, y) = (vld1q_f32(low), vld1q_f32(high));
            let (cos, sin) = (vld1q_f32(cos.as_ptr().add(p)), vld1q_f32(sin.as_ptr().add(p)));
            vst1q_f32(low, vfmsq_f32(vmulq_f32(x, cos), y, sin));
            vst1q_f32(high, vfmaq_f32(vmulq_f32(x, sin), y, cos));
        }
    }
}

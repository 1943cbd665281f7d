//! `softmax` with NEON.
#![allow(unsafe_code)] // Vector loads and stores at any alignment.

use std::arch::aarch64::*;

use super::super::exp::neon::exp;

#[target_feature(enable = "neon")]
pub(crate) fn softmax(x: &mut [f32], scale: f32) {
    let scales = vdupq_n_f32(scale);
    let (fours, rest) = x.as_chunks::<4>();
    let mut largest = vdupq_n_f32(f32::NEG_INFINITY);
    for four in fours {
        // SAFETY: four values. If one operand is NaN, the result is the other: the maximum ignores NaN.
        largest = vmaxnmq_f32(vmulq_f32(unsafe { vld1q_f32(four.as_ptr()) }, scales), largest);
    }
    let max = rest.iter().fold(vmaxnmvq_f32(largest), |max, v| max.max(scale * v));
    let maxima = vdupq_n_f32(max);
    let mut sums = vdupq_n_f32(0.0);
    let (fours, rest) = x.as_chunks_mut::<4>();
    for four in fours {
        // SAFETY: four values.
        unsafe {
            let v = exp(vsubq_f32(vmulq_f32(vld1q_f32(four.as_ptr()), scales), maxima));
            sums = vaddq_f32(sums, v);
            vst1q_f32(four.as_mut_ptr(), v);
        }
    }
    if !rest.is_empty() {
        let mut padded = [f32::NEG_INFINITY; 4];
        for (to, from) in padded.iter_mut().zip(rest.iter()) {
            *to = scale * from - max;
        }
        // SAFETY: four values.
        unsafe {
            let v = exp(vld1q_f32(padded.as_ptr()));
            sums = vaddq_f32(sums, v);
            vst1q_f32(padded.as_mut_ptr(), v);
        }
        rest.copy_from_slice(&padded[..rest.len()]);
    }
    let inverse = 1.0 / vaddvq_f32(sums);
    x.iter_mut().for_each(|x| *x *= inverse);
}

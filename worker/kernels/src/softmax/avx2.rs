//! `softmax` with AVX2.
#![allow(unsafe_code)] // Vector loads and stores at any alignment.

use std::arch::x86_64::*;

use super::super::exp::avx2::exp;

#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn softmax(x: &mut [f32], scale: f32) {
    let whole = x.len() / 8 * 8;
    let scales = _mm256_set1_ps(scale);
    let mut largest = _mm256_set1_ps(f32::NEG_INFINITY);
    for k in (0..whole).step_by(8) {
        // SAFETY: k + 8 <= len.
        let v = _mm256_mul_ps(unsafe { _mm256_loadu_ps(x.as_ptr().add(k)) }, scales);
        // If one operand is NaN, this returns the second: the maximum ignores NaN.
        largest = _mm256_max_ps(v, largest);
    }
    let mut max = x[whole..].iter().fold(f32::NEG_INFINITY, |m, v| m.max(scale * v));
    let mut lanes = [0.0; 8];
    // SAFETY: eight values.
    unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), largest) };
    max = lanes.iter().fold(max, |m, v| m.max(*v));

    let maxima = _mm256_set1_ps(max);
    let mut sums = _mm256_setzero_ps();
    for k in (0..whole).step_by(8) {
        // SAFETY: k + 8 <= len.
        let at = unsafe { x.as_mut_ptr().add(k) };
        // SAFETY: as above.
        let v = unsafe { _mm256_loadu_ps(at) };
        let v = exp(_mm256_sub_ps(_mm256_mul_ps(v, scales), maxima));
        sums = _mm256_add_ps(sums, v);
        // SAFETY: as above.
        unsafe { _mm256_storeu_ps(at, v) };
    }
    if whole < x.len() {
        let tail = &mut x[whole..];
        let mut padded = [f32::NEG_INFINITY; 8];
        for (to, from) in padded.iter_mut().zip(tail.iter()) {
            *to = scale * from - max;
        }
        // SAFETY: eight values.
        let v = exp(unsafe { _mm256_loadu_ps(padded.as_ptr()) });
        sums = _mm256_add_ps(sums, v);
        // SAFETY: as above.
        unsafe { _mm256_storeu_ps(padded.as_mut_ptr(), v) };
        tail.copy_from_slice(&padded[..tail.len()]);
    }
    let inverse = 1.0 / sum(sums);
    x.iter_mut().for_each(|x| *x *= inverse);
}

/// Adds the eight values of a vector in a fixed order.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn sum(v: __m256) -> f32 {
    let four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
}

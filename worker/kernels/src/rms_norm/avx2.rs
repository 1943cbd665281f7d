//! `rms_norm` with AVX2: eight partial sums of squares.
#![allow(unsafe_code)] // Vector loads and stores at any alignment.

use std::arch::x86_64::*;

use super::super::softmax::avx2::sum;

#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    assert!(x.len() == weight.len() && x.len() == out.len());
    let whole = x.len() / 8 * 8;
    let mut squares = _mm256_setzero_ps();
    for k in (0..whole).step_by(8) {
        // SAFETY: k + 8 <= len.
        let v = unsafe { _mm256_loadu_ps(x.as_ptr().add(k)) };
        squares = _mm256_fmadd_ps(v, v, squares);
    }
    let tail = x[whole..].iter().fold(0.0, |sum, v| sum + v * v);
    let scale = 1.0 / ((sum(squares) + tail) / x.len() as f32 + eps).sqrt();
    let scales = _mm256_set1_ps(scale);
    for k in (0..whole).step_by(8) {
        // SAFETY: k + 8 <= len; all three have the same length.
        unsafe {
            let v = _mm256_mul_ps(_mm256_loadu_ps(x.as_ptr().add(k)), scales);
            _mm256_storeu_ps(
                out.as_mut_ptr().add(k),
                _mm256_mul_ps(v, _mm256_loadu_ps(weight.as_ptr().add(k))),
            );
        }
    }
    for k in whole..x.len() {
        out[k] = x[k] * scale * weight[k];
    }
}

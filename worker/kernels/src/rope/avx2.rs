//! `rotate` with AVX2 for [`Pairing::Halves`]; adjacent pairs use the scalar version.
#![allow(unsafe_code)] // Vector loads and stores at any alignment.

use std::arch::x86_64::*;

use super::Pairing;

#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn rotate(head: &mut [f32], cos: &[f32], sin: &[f32], pairing: Pairing) {
    let pairs = cos.len();
    if pairing == Pairing::Adjacent || !pairs.is_multiple_of(8) {
        return super::scalar(head, cos, sin, pairing);
    }
    assert!(sin.len() == pairs && head.len() >= 2 * pairs);
    for p in (0..pairs).step_by(8) {
        // SAFETY: p + 8 <= pairs; `sin` is as long and `head` twice as long, by the assertion.
        unsafe {
            let (low, high) = (head.as_mut_ptr().add(p), head.as_mut_ptr().add(p + pairs));
            let (x, y) = (_mm256_loadu_ps(low), _mm256_loadu_ps(high));
            let (cos, sin) = (_mm256_loadu_ps(cos.as_ptr().add(p)), _mm256_loadu_ps(sin.as_ptr().add(p)));
            _mm256_storeu_ps(low, _mm256_fmsub_ps(x, cos, _mm256_mul_ps(y, sin)));
            _mm256_storeu_ps(high, _mm256_fmadd_ps(y, cos, _mm256_mul_ps(x, sin)));
        }
    }
}

//! `gelu` with AVX2.

use std::arch::x86_64::*;

use super::super::exp::avx2::{each, exp};
use super::FIT;

#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn gelu(x: &mut [f32]) {
    each(x, |x| {
        let (one, sign) = (_mm256_set1_ps(1.0), _mm256_set1_ps(-0.0));
        let z = _mm256_mul_ps(x, _mm256_set1_ps(std::f32::consts::FRAC_1_SQRT_2));
        let t = _mm256_div_ps(one, _mm256_fmadd_ps(_mm256_set1_ps(0.5), _mm256_andnot_ps(sign, z), one));
        let mut fit = _mm256_setzero_ps();
        for c in FIT {
            fit = _mm256_fmadd_ps(fit, t, _mm256_set1_ps(c));
        }
        let tail = exp(_mm256_fnmadd_ps(z, z, fit));
        let tail = _mm256_mul_ps(_mm256_mul_ps(_mm256_set1_ps(0.5), t), tail);
        // For negative x, the tail is the distribution function; for other x it is the distribution function
        // subtracted from 1.
        let share = _mm256_blendv_ps(_mm256_sub_ps(one, tail), tail, z);
        _mm256_mul_ps(x, share)
    });
}

//! `soft_cap` with AVX2.

use std::arch::x86_64::*;

use super::super::exp::avx2::each;
use super::{ABOVE, BELOW, BOUND, TINY};

#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn soft_cap(x: &mut [f32], scale: f32, cap: f32) {
    let (scales, caps) = (_mm256_set1_ps(scale / cap), _mm256_set1_ps(cap));
    each(x, |x| _mm256_mul_ps(tanh(_mm256_mul_ps(x, scales)), caps));
}

/// The hyperbolic tangent; see [`ABOVE`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn tanh(x: __m256) -> __m256 {
    // If one operand is NaN, min and max return the second, so NaN is preserved.
    let x = _mm256_min_ps(_mm256_set1_ps(BOUND), _mm256_max_ps(_mm256_set1_ps(-BOUND), x));
    let square = _mm256_mul_ps(x, x);
    let mut above = _mm256_set1_ps(ABOVE[0]);
    for c in &ABOVE[1..] {
        above = _mm256_fmadd_ps(above, square, _mm256_set1_ps(*c));
    }
    let mut below = _mm256_set1_ps(BELOW[0]);
    for c in &BELOW[1..] {
        below = _mm256_fmadd_ps(below, square, _mm256_set1_ps(*c));
    }
    let ratio = _mm256_div_ps(_mm256_mul_ps(x, above), below);
    let one = _mm256_set1_ps(1.0);
    let ratio = _mm256_min_ps(one, _mm256_max_ps(_mm256_set1_ps(-1.0), ratio));
    let size = _mm256_andnot_ps(_mm256_set1_ps(-0.0), x);
    let tiny = _mm256_cmp_ps::<_CMP_LT_OQ>(size, _mm256_set1_ps(TINY));
    _mm256_blendv_ps(ratio, x, tiny)
}

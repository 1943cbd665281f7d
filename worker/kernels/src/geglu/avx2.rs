//! `geglu` with AVX2.

use std::arch::x86_64::*;

use super::super::exp::avx2::{each_with, exp};
use super::{CUBIC, TWO_ROOT};

#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn geglu(gate: &mut [f32], up: &[f32]) {
    each_with(gate, up, |gate, up| {
        let cube = _mm256_mul_ps(_mm256_mul_ps(gate, gate), gate);
        let inner = _mm256_fmadd_ps(_mm256_set1_ps(CUBIC), cube, gate);
        let inner = _mm256_mul_ps(_mm256_set1_ps(-TWO_ROOT), inner);
        let below = _mm256_add_ps(_mm256_set1_ps(1.0), exp(inner));
        _mm256_mul_ps(_mm256_div_ps(gate, below), up)
    });
}

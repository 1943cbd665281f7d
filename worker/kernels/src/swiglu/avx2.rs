//! `swiglu` with AVX2.

use std::arch::x86_64::*;

use super::super::exp::avx2::{each_with, exp};

#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn swiglu(gate: &mut [f32], up: &[f32]) {
    each_with(gate, up, |gate, up| {
        let one = _mm256_set1_ps(1.0);
        let below = _mm256_add_ps(one, exp(_mm256_sub_ps(_mm256_setzero_ps(), gate)));
        _mm256_mul_ps(_mm256_div_ps(gate, below), up)
    });
}

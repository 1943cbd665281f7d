//! `geglu` with AVX2.
#![allow(unsafe_code)] // Vector loads and stores at any alignment.

use std::arch::x86_64::*;

use super::super::exp::avx2::exp;
use super::{CUBIC, TWO_ROOT};

#[target_feature(enable = "avx2,fma,f16c")]
pub(in super::super) fn geglu(gate: &mut [f32], up: &[f32]) {
    assert!(gate.len() == up.len());
    let whole = gate.len() / 8 * 8;
    for k in (0..whole).step_by(8) {
        // SAFETY: k + 8 <= len, and the two are of one length.
        unsafe {
            let at = gate.as_mut_ptr().add(k);
            _mm256_storeu_ps(at, eight(_mm256_loadu_ps(at), _mm256_loadu_ps(up.as_ptr().add(k))));
        }
    }
    if whole < gate.len() {
        let (mut g, mut u) = ([0.0; 8], [0.0; 8]);
        let n = gate.len() - whole;
        g[..n].copy_from_slice(&gate[whole..]);
        u[..n].copy_from_slice(&up[whole..]);
        // SAFETY: eight numbers each.
        unsafe {
            _mm256_storeu_ps(g.as_mut_ptr(), eight(_mm256_loadu_ps(g.as_ptr()), _mm256_loadu_ps(u.as_ptr())))
        };
        gate[whole..].copy_from_slice(&g[..n]);
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn eight(gate: __m256, up: __m256) -> __m256 {
    let cube = _mm256_mul_ps(_mm256_mul_ps(gate, gate), gate);
    let inner = _mm256_fmadd_ps(_mm256_set1_ps(CUBIC), cube, gate);
    let inner = _mm256_mul_ps(_mm256_set1_ps(-TWO_ROOT), inner);
    let below = _mm256_add_ps(_mm256_set1_ps(1.0), exp(inner));
    _mm256_mul_ps(_mm256_div_ps(gate, below), up)
}

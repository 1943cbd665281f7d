//! `exp` with AVX2: 2^n times a polynomial on [-ln 2 / 2, ln 2 / 2]. Also iteration over rows, eight values
//! at a time.
#![allow(unsafe_code)] // Vector loads and stores at any alignment.

use std::arch::x86_64::*;

/// e^x within 2 ulp for normal results; 0 below them, infinity above, NaN for NaN.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn exp(x: __m256) -> __m256 {
    // ln of the largest f32 is 88.72; results outside these bounds are corrected below. If one operand is
    // NaN, min and max return the second, so NaN is preserved.
    let clamped = _mm256_min_ps(_mm256_set1_ps(89.0), _mm256_max_ps(_mm256_set1_ps(-88.0), x));
    let n = _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(_mm256_mul_ps(
        clamped,
        _mm256_set1_ps(std::f32::consts::LOG2_E),
    ));
    // ln 2 in two parts; the first has few enough digits for n times it to be exact.
    let r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693_359_4), clamped);
    let r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.121_944_4e-4), r);
    // Minimax coefficients of Cephes' expf (netlib.org/cephes, single/expf.c).
    let mut p = _mm256_set1_ps(1.987_569_1e-4);
    for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(c));
    }
    let p = _mm256_fmadd_ps(_mm256_mul_ps(p, r), r, _mm256_add_ps(r, _mm256_set1_ps(1.0)));
    // 2^n in two factors, because n may be 128.
    let n = _mm256_cvtps_epi32(n);
    let half = _mm256_srai_epi32::<1>(n);
    let power = |n: __m256i| {
        _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(n, _mm256_set1_epi32(127))))
    };
    let result = _mm256_mul_ps(_mm256_mul_ps(p, power(half)), power(_mm256_sub_epi32(n, half)));
    let tiny = _mm256_cmp_ps::<_CMP_LT_OQ>(x, _mm256_set1_ps(-87.3));
    _mm256_andnot_ps(tiny, result)
}

/// `x = change(x)`; the last values are padded with zeros.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn each(x: &mut [f32], change: impl Fn(__m256) -> __m256) {
    let (eights, rest) = x.as_chunks_mut::<8>();
    for eight in eights {
        // SAFETY: eight values.
        unsafe { _mm256_storeu_ps(eight.as_mut_ptr(), change(_mm256_loadu_ps(eight.as_ptr()))) };
    }
    if !rest.is_empty() {
        let mut padded = [0.0; 8];
        padded[..rest.len()].copy_from_slice(rest);
        // SAFETY: eight values.
        unsafe { _mm256_storeu_ps(padded.as_mut_ptr(), change(_mm256_loadu_ps(padded.as_ptr()))) };
        rest.copy_from_slice(&padded[..rest.len()]);
    }
}

/// `x = change(x, y)`; both have the same length.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn each_with(x: &mut [f32], y: &[f32], change: impl Fn(__m256, __m256) -> __m256) {
    assert!(x.len() == y.len());
    let ((eights, rest), (others, other)) = (x.as_chunks_mut::<8>(), y.as_chunks::<8>());
    for (eight, y) in eights.iter_mut().zip(others) {
        // SAFETY: eight values each.
        unsafe {
            let changed = change(_mm256_loadu_ps(eight.as_ptr()), _mm256_loadu_ps(y.as_ptr()));
            _mm256_storeu_ps(eight.as_mut_ptr(), changed);
        }
    }
    if !rest.is_empty() {
        let (mut padded, mut y) = ([0.0; 8], [0.0; 8]);
        padded[..rest.len()].copy_from_slice(rest);
        y[..rest.len()].copy_from_slice(other);
        // SAFETY: eight values each.
        unsafe {
            let changed = change(_mm256_loadu_ps(padded.as_ptr()), _mm256_loadu_ps(y.as_ptr()));
            _mm256_storeu_ps(padded.as_mut_ptr(), changed);
        }
        rest.copy_from_slice(&padded[..rest.len()]);
    }
}

#[cfg(test)]
mod tests {
    #![allow(unsafe_code)] // Calls AVX2 functions after checking for AVX2.

    use super::*;
    use crate::report;

    fn exp_of(x: f32) -> f32 {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn run(x: f32) -> f32 {
            _mm256_cvtss_f32(exp(_mm256_set1_ps(x)))
        }
        // SAFETY: the test checked the features.
        unsafe { run(x) }
    }

    #[test]
    fn within_two_ulp() {
        if !(is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c"))
        {
            return report::skip_optional(&report::current_test(), "this processor lacks AVX2");
        }
        let mut x = -87.2f32;
        while x < 88.7 {
            let (expect, found) = (f64::from(x).exp(), f64::from(exp_of(x)));
            assert!(
                (found - expect).abs() <= 2.0 * f64::from(f32::EPSILON) * expect,
                "{x}: {found:e} {expect:e}"
            );
            x += 0.003_17;
        }
        for (x, expect) in
            [(0.0, 1.0), (-200.0, 0.0), (f32::NEG_INFINITY, 0.0), (f32::INFINITY, f32::INFINITY)]
        {
            assert_eq!(exp_of(x), expect, "{x}");
        }
        assert!(exp_of(f32::NAN).is_nan());
    }
}

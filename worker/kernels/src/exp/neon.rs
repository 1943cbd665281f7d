//! `exp` with NEON: 2^n times a polynomial on [-ln 2 / 2, ln 2 / 2]. Also iteration over rows, four values at
//! a time.
#![allow(unsafe_code)] // Vector loads and stores at any alignment.

use std::arch::aarch64::*;

/// e^x within 2 ulp for normal results; 0 below them, infinity above, NaN for NaN.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn exp(x: float32x4_t) -> float32x4_t {
    // ln of the largest f32 is 88.72; results outside these bounds are corrected below. Both operations
    // preserve NaN.
    let clamped = vminq_f32(vdupq_n_f32(89.0), vmaxq_f32(vdupq_n_f32(-88.0), x));
    let n = vrndnq_f32(vmulq_f32(clamped, vdupq_n_f32(std::f32::consts::LOG2_E)));
    // ln 2 in two parts; the first has few enough digits for n times it to be exact.
    let r = vfmsq_f32(clamped, n, vdupq_n_f32(0.693_359_4));
    let r = vfmsq_f32(r, n, vdupq_n_f32(-2.121_944_4e-4));
    // Minimax coefficients of Cephes' expf (netlib.org/cephes, single/expf.c).
    let mut p = vdupq_n_f32(1.987_569_1e-4);
    for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = vfmaq_f32(vdupq_n_f32(c), p, r);
    }
    let p = vfmaq_f32(vaddq_f32(r, vdupq_n_f32(1.0)), vmulq_f32(p, r), r);
    // 2^n in two factors, because n may be 128.
    let n = vcvtq_s32_f32(n);
    let half = vshrq_n_s32::<1>(n);
    let result = vmulq_f32(vmulq_f32(p, power(half)), power(vsubq_s32(n, half)));
    vbslq_f32(vcltq_f32(x, vdupq_n_f32(-87.3)), vdupq_n_f32(0.0), result)
}

/// 2^n for an n with a normal result.
#[inline]
#[target_feature(enable = "neon")]
fn power(n: int32x4_t) -> float32x4_t {
    vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(n, vdupq_n_s32(127))))
}

/// `x = change(x)`; the last values are padded with zeros.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn each(x: &mut [f32], change: impl Fn(float32x4_t) -> float32x4_t) {
    let (fours, rest) = x.as_chunks_mut::<4>();
    for four in fours {
        // SAFETY: four values.
        unsafe { vst1q_f32(four.as_mut_ptr(), change(vld1q_f32(four.as_ptr()))) };
    }
    if !rest.is_empty() {
        let mut padded = [0.0; 4];
        padded[..rest.len()].copy_from_slice(rest);
        // SAFETY: four values.
        unsafe { vst1q_f32(padded.as_mut_ptr(), change(vld1q_f32(padded.as_ptr()))) };
        rest.copy_from_slice(&padded[..rest.len()]);
    }
}

/// `x = change(x, y)`; both have the same length.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn each_with(x: &mut [f32], y: &[f32], change: impl Fn(float32x4_t, float32x4_t) -> float32x4_t) {
    assert!(x.len() == y.len());
    let ((fours, rest), (others, other)) = (x.as_chunks_mut::<4>(), y.as_chunks::<4>());
    for (four, y) in fours.iter_mut().zip(others) {
        // SAFETY: four values each.
        unsafe { vst1q_f32(four.as_mut_ptr(), change(vld1q_f32(four.as_ptr()), vld1q_f32(y.as_ptr()))) };
    }
    if !rest.is_empty() {
        let (mut padded, mut y) = ([0.0; 4], [0.0; 4]);
        padded[..rest.len()].copy_from_slice(rest);
        y[..rest.len()].copy_from_slice(other);
        // SAFETY: four values each.
        unsafe {
            vst1q_f32(padded.as_mut_ptr(), change(vld1q_f32(padded.as_ptr()), vld1q_f32(y.as_ptr())));
        }
        rest.copy_from_slice(&padded[..rest.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exp_of(x: f32) -> f32 {
        let mut numbers = [x; 4];
        // SAFETY: every aarch64 processor has NEON.
        unsafe { each(&mut numbers, |x| exp(x)) };
        numbers[0]
    }

    #[test]
    fn agrees_with_float64() {
        let mut x = -87.0f32;
        while x < 88.7 {
            let (expect, found) = (f64::from(x).exp(), f64::from(exp_of(x)));
            let bound = 2.0 * f64::from(f32::EPSILON) * expect;
            assert!((found - expect).abs() <= bound, "{x}: {found:e} {expect:e}");
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

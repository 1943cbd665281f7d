//! MXFP4: 32 codes of E2M1 under a power of two. Block: e E8M0, `qs[16]`.

use super::block::{largest, nibble};
use crate::quant::float;

/// The value of each E2M1 code. ggml's table has integers, so code 8 is zero without a minus sign.
pub(super) const VALUES: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

pub(super) fn decode(block: &[u8; 17], out: &mut [f32; 32]) {
    let scale = float::e8m0_to_f32(block[0]);
    for (i, x) in out.iter_mut().enumerate() {
        *x = scale * VALUES[usize::from(nibble(&block[1..], i))];
    }
}

#[inline(always)]
pub(super) fn encode(x: &[f32; 32], block: &mut [u8; 17]) {
    let largest = largest(x);
    // The largest value of a code is 6, between 4 and 8: two powers of two above the scale.
    block[0] = if largest == 0.0 { 0 } else { (largest.log2().floor() + 125.0) as u8 };
    let scale = float::e8m0_to_f32(block[0]);
    for (j, byte) in block[1..].iter_mut().enumerate() {
        *byte = nearest(x[j], scale) | nearest(x[j + 16], scale) << 4;
    }
}

/// Returns the first code whose value is nearest to `x`: on a tie the smaller, and zero never with a minus
/// sign.
#[inline(always)]
pub(super) fn nearest(x: f32, scale: f32) -> u8 {
    let magnitude = x.abs();
    let (mut code, mut error) = (0, magnitude);
    for (candidate, value) in VALUES[..8].iter().enumerate().skip(1) {
        let distance = (scale * value - magnitude).abs();
        (code, error) = if distance < error { (candidate as u8, distance) } else { (code, error) };
    }
    if x < 0.0 && code != 0 { code | 8 } else { code }
}

//! Q4_1: 32 codes of 4 bits above a minimum. Block: d f16, m f16, `qs[16]`.

use super::block::{half, inverse, nibble, put_half, range};

pub(super) fn decode(block: &[u8; 20], out: &mut [f32; 32]) {
    let (d, m) = (half(block, 0), half(block, 2));
    for (i, x) in out.iter_mut().enumerate() {
        *x = d * f32::from(nibble(&block[4..], i)) + m;
    }
}

#[inline(always)]
pub(super) fn encode(x: &[f32; 32], block: &mut [u8; 20]) {
    let (low, high) = range(x);
    let d = (high - low) / 15.0;
    let id = inverse(d);
    put_half(block, 0, d);
    put_half(block, 2, low);
    let code = |x: f32| (((x - low) * id + 0.5) as u8).min(15);
    for (j, byte) in block[4..].iter_mut().enumerate() {
        *byte = code(x[j]) | code(x[j + 16]) << 4;
    }
}

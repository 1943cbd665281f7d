//! Q8_1: Q8_0 with the sum of its values, a format of activations. Block: d f16, s f16, `qs[32]`.

use super::block::{half, inverse, largest, nearest_away, put_half};

pub(super) fn decode(block: &[u8; 36], out: &mut [f32; 32]) {
    let d = half(block, 0);
    for (x, code) in out.iter_mut().zip(&block[4..]) {
        *x = d * f32::from(*code as i8);
    }
}

#[inline(always)]
pub(super) fn encode(x: &[f32; 32], block: &mut [u8; 36]) {
    let d = largest(x) / 127.0;
    let id = inverse(d);
    let mut sum = 0;
    for (code, x) in block[4..].iter_mut().zip(x) {
        let nearest = nearest_away(x * id);
        *code = nearest as u8;
        sum += nearest;
    }
    put_half(block, 0, d);
    put_half(block, 2, sum as f32 * d);
}

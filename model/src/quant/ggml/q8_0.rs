//! Q8_0: 32 signed codes of 8 bits. Block: d f16, qs[32].

use super::block::{half, inverse, largest, nearest_away, put_half};

pub(super) fn decode(block: &[u8; 34], out: &mut [f32; 32]) {
    let d = half(block, 0);
    for (x, code) in out.iter_mut().zip(&block[2..]) {
        *x = d * f32::from(*code as i8);
    }
}

#[inline(always)]
pub(super) fn encode(x: &[f32; 32], block: &mut [u8; 34]) {
    let d = largest(x) / 127.0;
    let id = inverse(d);
    put_half(block, 0, d);
    for (code, x) in block[2..].iter_mut().zip(x) {
        *code = nearest_away(x * id) as u8;
    }
}

//! TQ2_0: 256 ternary values of 2 bits each. Block: `qs[64]`, d f16.

use super::block::{half, inverse, largest, nearest_away, put_half};

pub(super) fn decode(block: &[u8; 66], out: &mut [f32; 256]) {
    let d = half(block, 64);
    for (i, x) in out.iter_mut().enumerate() {
        let code = (block[32 * (i / 128) + i % 32] >> (2 * ((i % 128) / 32))) & 3;
        *x = d * (f32::from(code) - 1.0);
    }
}

#[inline(always)]
pub(super) fn encode(x: &[f32; 256], block: &mut [u8; 66]) {
    let d = largest(x);
    let id = inverse(d);
    put_half(block, 64, d);
    for (j, byte) in block[..64].iter_mut().enumerate() {
        let first = 128 * (j / 32) + j % 32;
        *byte = (0..4).fold(0, |bits, n| {
            let code = (nearest_away(x[first + 32 * n] * id) + 1).clamp(0, 2) as u8;
            bits | code << (2 * n)
        });
    }
}

//! Q2_0: 64 codes of 2 bits that stand for -1, 0, 1 and 2. Block: d f16, `qs[16]`.

use super::block::{half, inverse, largest, nearest_away, put_half};

pub(super) fn decode(block: &[u8; 18], out: &mut [f32; 64]) {
    let d = half(block, 0);
    for (i, x) in out.iter_mut().enumerate() {
        let code = (block[2 + i / 4] >> (2 * (i % 4))) & 3;
        *x = d * (f32::from(code) - 1.0);
    }
}

#[inline(always)]
pub(super) fn encode(x: &[f32; 64], block: &mut [u8; 18]) {
    let d = largest(x);
    let id = inverse(d);
    put_half(block, 0, d);
    for (byte, x) in block[2..].iter_mut().zip(x.as_chunks::<4>().0) {
        *byte = x.iter().enumerate().fold(0, |bits, (i, x)| {
            let code = (nearest_away(x * id) + 1).clamp(0, 3) as u8;
            bits | code << (2 * i)
        });
    }
}

//! Q1_0: 128 signs and their mean magnitude. Block: d f16, `qs[16]`.

use super::block::{half, put_half};

pub(super) fn decode(block: &[u8; 18], out: &mut [f32; 128]) {
    let d = half(block, 0);
    for (i, x) in out.iter_mut().enumerate() {
        *x = if (block[2 + i / 8] >> (i % 8)) & 1 == 1 { d } else { -d };
    }
}

#[inline(always)]
pub(super) fn encode(x: &[f32; 128], block: &mut [u8; 18]) {
    let sum = x.iter().fold(0.0, |sum, x| sum + x.abs());
    put_half(block, 0, sum / 128.0);
    for (byte, x) in block[2..].iter_mut().zip(x.as_chunks::<8>().0) {
        *byte = x.iter().enumerate().fold(0, |bits, (i, x)| bits | u8::from(*x >= 0.0) << i);
    }
}

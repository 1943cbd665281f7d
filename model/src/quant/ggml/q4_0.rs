//! Q4_0: 32 codes of 4 bits around 8. Block: d f16, `qs[16]`.

use super::block::{half, inverse, nibble, peak, put_half};

pub(super) fn decode(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = half(block, 0);
    for (i, x) in out.iter_mut().enumerate() {
        *x = d * (f32::from(nibble(&block[2..], i)) - 8.0);
    }
}

#[inline(always)]
pub(super) fn encode(x: &[f32; 32], block: &mut [u8; 18]) {
    let d = peak(x) / -8.0;
    let id = inverse(d);
    put_half(block, 0, d);
    let code = |x: f32| ((x * id + 8.5) as u8).min(15);
    for (j, byte) in block[2..].iter_mut().enumerate() {
        *byte = code(x[j]) | code(x[j + 16]) << 4;
    }
}

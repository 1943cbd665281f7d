//! Q5_1: 32 codes of 5 bits above a minimum. Block: d f16, m f16, qh u32, `qs[16]`.

use super::block::{half, inverse, nibble, put_half, range, u32_at};
use super::q5_0::fifth_bits;

pub(super) fn decode(block: &[u8; 24], out: &mut [f32; 32]) {
    let (d, m, high) = (half(block, 0), half(block, 2), u32_at(block, 4));
    for (i, x) in out.iter_mut().enumerate() {
        let code = nibble(&block[8..], i) | (((high >> i) & 1) as u8) << 4;
        *x = d * f32::from(code) + m;
    }
}

#[inline(always)]
pub(super) fn encode(x: &[f32; 32], block: &mut [u8; 24]) {
    let (low, high) = range(x);
    let d = (high - low) / 31.0;
    let id = inverse(d);
    put_half(block, 0, d);
    put_half(block, 2, low);
    let codes = x.map(|x| (((x - low) * id + 0.5) as u8).min(31));
    block[4..8].copy_from_slice(&fifth_bits(&codes).to_le_bytes());
    for (j, byte) in block[8..].iter_mut().enumerate() {
        *byte = (codes[j] & 15) | codes[j + 16] << 4;
    }
}

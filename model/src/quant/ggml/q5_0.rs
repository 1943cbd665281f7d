//! Q5_0: 32 codes of 5 bits around 16, the fifth bits in a word of their own. Block: d f16, qh u32, `qs[16]`.

use super::block::{half, inverse, nibble, peak, put_half, u32_at};

pub(super) fn decode(block: &[u8; 22], out: &mut [f32; 32]) {
    let (d, high) = (half(block, 0), u32_at(block, 2));
    for (i, x) in out.iter_mut().enumerate() {
        let code = nibble(&block[6..], i) | (((high >> i) & 1) as u8) << 4;
        *x = d * (f32::from(code) - 16.0);
    }
}

#[inline(always)]
pub(super) fn encode(x: &[f32; 32], block: &mut [u8; 22]) {
    let d = peak(x) / -16.0;
    let id = inverse(d);
    put_half(block, 0, d);
    let codes = x.map(|x| ((x * id + 16.5) as u8).min(31));
    block[2..6].copy_from_slice(&fifth_bits(&codes).to_le_bytes());
    for (j, byte) in block[6..].iter_mut().enumerate() {
        *byte = (codes[j] & 15) | codes[j + 16] << 4;
    }
}

#[inline(always)]
pub(super) fn fifth_bits(codes: &[u8; 32]) -> u32 {
    codes.iter().enumerate().fold(0, |bits, (i, code)| bits | u32::from(code >> 4) << i)
}

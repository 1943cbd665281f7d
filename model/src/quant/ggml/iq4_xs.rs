//! IQ4_XS: 8 groups of 32 codes with IQ4_NL's values, each with a signed 6-bit scale.
//! Block: d f16, scales_h u16, `scales_l[4]`, `qs[128]`.

use super::block::{half, inverse, nibble, peak, put_half, u16_at};
use super::fit::Nearest;
use super::iq4_nl::{Code, VALUES, scales};
use super::lanes::{Lanes, groups_of_32};

pub(super) fn decode(block: &[u8; 136], out: &mut [f32; 256]) {
    let (d, high) = (half(block, 0), u16_at(block, 2));
    for (k, group) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let low = (block[4 + k / 2] >> (4 * (k % 2))) & 15;
        let scale = d * f32::from((low | (((high >> (2 * k)) & 3) as u8) << 4) as i8 - 32);
        let codes = &block[8 + 16 * k..][..16];
        for (i, x) in group.iter_mut().enumerate() {
            *x = scale * f32::from(VALUES[usize::from(nibble(codes, i))]);
        }
    }
}

#[inline(always)]
pub(super) fn encode<L: Lanes>(x: &[f32; 256], block: &mut [u8; 136]) {
    let x = groups_of_32::<L>(x);
    let scales = scales(&x);
    let d = peak(&scales.to_array()) / -32.0;
    put_half(block, 0, d);
    let scales = (scales * L::splat(inverse(d))).code(-32.0, 31.0);
    let (mut high, mut low) = (0u16, [0; 4]);
    for (k, scale) in (scales + L::splat(32.0)).to_bytes().into_iter().enumerate() {
        low[k / 2] |= (scale & 15) << (4 * (k % 2));
        high |= u16::from(scale >> 4) << (2 * k);
    }
    block[2..4].copy_from_slice(&high.to_le_bytes());
    block[4..8].copy_from_slice(&low);
    let inverse = (L::splat(d) * scales).inverse();
    for j in 0..16 {
        let low = Code::nearest(inverse * x[j]).to_bytes();
        let high = Code::nearest(inverse * x[j + 16]).to_bytes();
        for k in 0..8 {
            block[8 + 16 * k + j] = low[k] | high[k] << 4;
        }
    }
}

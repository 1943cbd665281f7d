//! Q5_K: Q4_K with a fifth bit for each code. Block: d f16, dmin f16, `scales[12]`, `qh[32]`, `qs[128]`.

use super::block::half;
use super::fit::Search;
use super::lanes::Lanes;
use super::q4_k::{encode_groups, scale_and_min};

pub(super) fn decode(block: &[u8; 176], out: &mut [f32; 256]) {
    let (d, dmin) = (half(block, 0), half(block, 2));
    for (k, group) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, min) = scale_and_min(&block[4..16], k);
        let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
        let codes = block[48 + 32 * (k / 2)..][..32].iter().zip(&block[16..48]);
        for (x, (low, high)) in group.iter_mut().zip(codes) {
            let code = ((low >> (4 * (k % 2))) & 15) | ((high >> k) & 1) << 4;
            *x = scale * f32::from(code) - min;
        }
    }
}

#[inline(always)]
pub(super) fn encode<L: Lanes>(x: &[f32; 256], block: &mut [u8; 176]) {
    let search = Search { levels: 31.0, first: -0.5, step: 0.1, steps: 15, magnitudes: false };
    let (header, rest) = block.split_at_mut(16);
    let fitted = encode_groups::<L>(x, &search, header.as_mut_array().expect("sixteen bytes"));
    let (high, low) = rest.split_at_mut(32);
    for (byte, codes) in high.iter_mut().zip(&fitted) {
        *byte = codes.iter().enumerate().fold(0, |bits, (k, code)| bits | (code >> 4) << k);
    }
    for (pair, bytes) in low.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        for (byte, codes) in bytes.iter_mut().zip(&fitted) {
            *byte = (codes[2 * pair] & 15) | codes[2 * pair + 1] << 4;
        }
    }
}

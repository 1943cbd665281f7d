//! Q3_K: 16 groups of 16 codes of 3 bits around 4, each with a signed 6-bit scale. Block: `hmask[32]`,
//! `qs[64]`, `scales[12]`, d f16. If the third bit of a code is set, 4 is not subtracted.

use super::block::{half, inverse, peak, put_half};
use super::fit::refine_codes;
use super::lanes::{LANES, Lanes, groups_of_16};

pub(super) fn decode(block: &[u8; 110], out: &mut [f32; 256]) {
    let d = half(block, 108);
    for (k, group) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = d * f32::from(scale(block, k));
        // The position in the 128 elements that share bytes of codes: the quarter, and its half of 16.
        let (quarter, start) = ((k % 8) / 2, 16 * (k % 2));
        for (l, x) in group.iter_mut().enumerate() {
            let low = (block[32 + 32 * (k / 8) + start + l] >> (2 * quarter)) & 3;
            let high = (block[start + l] >> (4 * (k / 8) + quarter)) & 1;
            *x = scale * f32::from((low | high << 2) as i8 - 4);
        }
    }
}

/// Returns scale `k`: four low bits in a nibble of the first eight bytes, two high bits in the last four.
#[inline(always)]
fn scale(block: &[u8; 110], k: usize) -> i8 {
    let scales = &block[96..108];
    let low = (scales[k % 8] >> (4 * (k / 8))) & 15;
    let high = (scales[8 + k % 4] >> (2 * (k / 4))) & 3;
    (low | high << 4) as i8 - 32
}

#[inline(always)]
pub(super) fn encode<L: Lanes>(x: &[f32; 256], block: &mut [u8; 110]) {
    let halves = groups_of_16::<L>(x);
    let scales = [refine_codes(&halves[0]), refine_codes(&halves[1])];
    let peak = peak([scales[0].to_array(), scales[1].to_array()].as_flattened());
    let step = if peak == 0.0 { 0.0 } else { -32.0 / peak };
    *block = [0; 110];
    put_half(block, 108, inverse(step));
    let d = L::splat(half(block, 108));
    for (n, (x, scales)) in halves.iter().zip(scales).enumerate() {
        let scales = (scales * L::splat(step)).code(-32.0, 31.0);
        for (lane, scale) in (scales + L::splat(32.0)).to_bytes().into_iter().enumerate() {
            let k = LANES * n + lane;
            block[96 + k % 8] |= (scale & 15) << (4 * (k / 8));
            block[104 + k % 4] |= (scale >> 4) << (2 * (k / 4));
        }
        let scale = d * scales;
        for (l, x) in x.iter().enumerate() {
            let codes = ((*x / scale).code(-4.0, 3.0) + L::splat(4.0)).to_bytes();
            for (lane, code) in codes.into_iter().enumerate() {
                let (quarter, start) = (lane / 2, 16 * (lane % 2));
                block[32 + 32 * n + start + l] |= (code & 3) << (2 * quarter);
                block[start + l] |= (code >> 2) << (4 * n + quarter);
            }
        }
    }
}

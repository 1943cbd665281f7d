//! IQ1_M: as IQ1_S, with a 3-bit scale for every two rows and a direction for each. Block: `qs[32]`,
//! `qh[16]`, `scales[4]` u16. The scale of the block is spread over the top nibbles of the four words.

use half::f16;

use super::block::u16_at;
use super::codebooks::{IQ1_S, row};
use super::iq1_s::DELTA;

pub(super) fn decode(block: &[u8; 56], out: &mut [f32; 256]) {
    let d = scale(block);
    for (k, eight) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let (g, l) = (k / 4, k % 4);
        let sub = (u16_at(block, 48 + 2 * (g / 2)) >> (6 * (g % 2) + 3 * (l / 2))) & 7;
        let scale = d * f32::from(2 * sub + 1);
        let nibble = (block[32 + k / 2] >> (4 * (k % 2))) & 15;
        let delta = if nibble & 8 == 0 { DELTA } else { -DELTA };
        let values = row::<8>(IQ1_S, usize::from(block[k]) | usize::from(nibble & 7) << 8);
        for (x, value) in eight.iter_mut().zip(values) {
            *x = scale * (value + delta);
        }
    }
}

/// The scale of the whole block.
#[inline(always)]
pub(super) fn scale(block: &[u8; 56]) -> f32 {
    let bits = (0..4).fold(0, |bits, t| bits | (u16_at(block, 48 + 2 * t) >> 12) << (4 * t));
    f16::from_bits(bits).to_f32()
}

//! IQ1_S: 32 rows of 8 from a table of 2048 with values -1, 0 and 1, moved up or down by an eighth; a 3-bit
//! scale for every four. Block: d f16, `qs[32]`, `qh[8]` u16.

use super::block::{half, u16_at};
use super::codebooks::{IQ1_S, row};

/// How far the values of a row are moved.
pub(super) const DELTA: f32 = 0.125;

pub(super) fn decode(block: &[u8; 50], out: &mut [f32; 256]) {
    let d = half(block, 0);
    for (k, eight) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let (g, l) = (k / 4, k % 4);
        let high = u16_at(block, 34 + 2 * g);
        let scale = d * f32::from(2 * ((high >> 12) & 7) + 1);
        let delta = if high & 0x8000 == 0 { DELTA } else { -DELTA };
        let number = usize::from(block[2 + k]) | usize::from((high >> (3 * l)) & 7) << 8;
        let values = row::<8>(IQ1_S, number);
        for (x, value) in eight.iter_mut().zip(values) {
            *x = scale * (value + delta);
        }
    }
}

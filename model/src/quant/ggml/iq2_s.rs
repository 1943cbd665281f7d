//! IQ2_S: 32 rows of 8 from a table of 1024, each with 8 signs, and a 4-bit scale for every two.
//! Block: d f16, `qs[32]`, `signs[32]`, `qh[8]`, `scales[8]`.

use super::block::{half, sign};
use super::codebooks::{IQ2_S, row};

pub(super) fn decode(block: &[u8; 82], out: &mut [f32; 256]) {
    let d = half(block, 0);
    for (k, eight) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let (g, l) = (k / 4, k % 4);
        let nibble = (block[74 + g] >> (4 * (l / 2))) & 15;
        let scale = (d * (0.5 + f32::from(nibble))) * 0.25;
        let high = (block[66 + g] >> (2 * l)) & 3;
        let values = row::<8>(IQ2_S, usize::from(block[2 + k]) | usize::from(high) << 8);
        for (j, x) in eight.iter_mut().enumerate() {
            *x = scale * values[j] * sign(block[34 + k], j);
        }
    }
}

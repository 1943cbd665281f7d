//! IQ3_S: 64 rows of 4 from a table of 512, with a bit of sign for each element and a 4-bit scale for every 8
//! rows. Block: d f16, `qs[64]`, `qh[8]`, `signs[32]`, `scales[4]`.

use super::block::{half, sign};
use super::codebooks::{IQ3_S, row};

pub(super) fn decode(block: &[u8; 110], out: &mut [f32; 256]) {
    let d = half(block, 0);
    for (k, four) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let g = k / 8;
        let nibble = (block[106 + g / 2] >> (4 * (g % 2))) & 15;
        let scale = d * (1.0 + 2.0 * f32::from(nibble));
        let high = (block[66 + g] >> (k % 8)) & 1;
        let values = row::<4>(IQ3_S, usize::from(block[2 + k]) | usize::from(high) << 8);
        for (j, x) in four.iter_mut().enumerate() {
            *x = scale * values[j] * sign(block[74 + k / 2], 4 * (k % 2) + j);
        }
    }
}

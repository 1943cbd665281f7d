//! IQ2_XS: 32 rows of 8 from a table of 512, each with 7 signs, and a 4-bit scale for every two. Block: d
//! f16, `qs[32]` u16, `scales[8]`.

use super::block::{even_signs, half, sign, u16_at};
use super::codebooks::{IQ2_XS, row};

pub(super) fn decode(block: &[u8; 74], out: &mut [f32; 256]) {
    let d = half(block, 0);
    for (k, eight) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let nibble = (block[66 + k / 4] >> (4 * ((k % 4) / 2))) & 15;
        let scale = (d * (0.5 + f32::from(nibble))) * 0.25;
        let code = u16_at(block, 2 + 2 * k);
        let values = row::<8>(IQ2_XS, (code & 511).into());
        let signs = even_signs((code >> 9) as u8);
        for (j, x) in eight.iter_mut().enumerate() {
            *x = scale * values[j] * sign(signs, j);
        }
    }
}

//! IQ3_XXS: 64 rows of 4 from a table of 256; for every 8 rows a word of four times 7 signs and a 4-bit
//! scale. Block: d f16, `qs[64]`, `scales_and_signs[8]` u32.

use super::block::{even_signs, half, sign, u32_at};
use super::codebooks::{IQ3_XXS, row};

pub(super) fn decode(block: &[u8; 98], out: &mut [f32; 256]) {
    let d = half(block, 0);
    for (k, four) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let signs_and_scale = u32_at(block, 66 + 4 * (k / 8));
        let scale = (d * (0.5 + (signs_and_scale >> 28) as f32)) * 0.5;
        let signs = even_signs(((signs_and_scale >> (7 * ((k % 8) / 2))) & 127) as u8);
        let values = row::<4>(IQ3_XXS, block[2 + k].into());
        for (j, x) in four.iter_mut().enumerate() {
            *x = scale * values[j] * sign(signs, 4 * (k % 2) + j);
        }
    }
}

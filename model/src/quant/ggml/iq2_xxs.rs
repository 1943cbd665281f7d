//! IQ2_XXS: 8 groups of 32, four rows of 8 from a table of 256, signs and a 4-bit scale. Block: d f16, then
//! for each group four row numbers and a word of four times 7 signs and the scale.

use super::block::{even_signs, half, sign, u32_at};
use super::codebooks::{IQ2_XXS, row};

pub(super) fn decode(block: &[u8; 66], out: &mut [f32; 256]) {
    let d = half(block, 0);
    for (g, group) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let signs_and_scale = u32_at(block, 6 + 8 * g);
        let scale = (d * (0.5 + (signs_and_scale >> 28) as f32)) * 0.25;
        for (l, eight) in group.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let values = row::<8>(IQ2_XXS, block[2 + 8 * g + l].into());
            let signs = even_signs(((signs_and_scale >> (7 * l)) & 127) as u8);
            for (j, x) in eight.iter_mut().enumerate() {
                *x = scale * values[j] * sign(signs, j);
            }
        }
    }
}

//! NVFP4: four groups of 16 E2M1 codes, each with its own scale. Block: `d[4]` UE4M3, `qs[32]`. The halves of
//! a group are in the low and high nibbles, unlike in tensor blobs, where neighbours share a byte.

use super::block::largest;
use super::mxfp4::{VALUES, nearest};
use crate::quant::float::e4m3_to_f32;

pub(super) fn decode(block: &[u8; 36], out: &mut [f32; 64]) {
    let (scales, codes) = block.split_at(4);
    for (i, x) in out.iter_mut().enumerate() {
        let (group, l) = (i / 16, i % 16);
        let code = (codes[8 * group + l % 8] >> (4 * (l / 8))) & 15;
        *x = ue4m3_to_f32(scales[group]) * VALUES[usize::from(code)];
    }
}

#[inline(always)]
pub(super) fn encode(x: &[f32; 64], block: &mut [u8; 36]) {
    let (scales, codes) = block.split_at_mut(4);
    for (group, x) in x.as_chunks::<16>().0.iter().enumerate() {
        scales[group] = f32_to_ue4m3(largest(x) / 6.0);
        let scale = ue4m3_to_f32(scales[group]);
        for (l, byte) in codes[8 * group..][..8].iter_mut().enumerate() {
            *byte = nearest(x[l], scale) | nearest(x[l + 8], scale) << 4;
        }
    }
}

/// E4M3 without its sign; the code that is NaN elsewhere is zero here.
#[inline(always)]
fn ue4m3_to_f32(code: u8) -> f32 {
    match code {
        0x7f => 0.0,
        // The largest exponent is an ordinary one.
        0xff => 480.0,
        code => e4m3_to_f32(code & 0x7f),
    }
}

/// Rounds as ggml does: half up rather than to even. Values of 256 or more become the largest value, 448.
#[inline(always)]
fn f32_to_ue4m3(x: f32) -> u8 {
    const LARGEST: u8 = 0x7e;
    if x.is_nan() || x <= 0.0 {
        return 0;
    }
    let bits = x.to_bits();
    let exponent = (bits >> 23) as i32 - 120;
    if exponent <= 0 {
        return ((x * 512.0 + 0.5) as u8).min(7);
    }
    // Exponent and three bits of fraction, and the next bit added: it may carry into the exponent.
    let code = ((exponent as u32) << 3 | ((bits >> 20) & 7)) + ((bits >> 19) & 1);
    if code >= 15 << 3 { LARGEST } else { code as u8 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_round_as_ggml_does() {
        for (x, expect) in [
            (0.0, 0),
            (-1.0, 0),
            (2f32.powi(-9), 1),
            (2f32.powi(-10), 1),
            (2f32.powi(-7), 4),
            (2f32.powi(-6), 8),
            (1.0, 0x38),
            (1.0625, 0x39),
            (1.05, 0x38),
            (240.0, 0x77),
            (247.9, 0x77),
            (248.0, 0x7e),
            (256.0, 0x7e),
            (1e9, 0x7e),
        ] {
            assert_eq!(f32_to_ue4m3(x), expect, "{x}");
        }
    }
}

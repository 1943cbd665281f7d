//! Q2_K: 16 groups of 16 codes of 2 bits, each with a 4-bit scale and minimum. Block: `scales[16]`, `qs[64]`,
//! d f16, dmin f16.

use super::block::{half, put_half};
use super::fit::{Search, fit_scale_and_min};
use super::lanes::{LANES, Lanes, groups_of_16};

pub(super) fn decode(block: &[u8; 84], out: &mut [f32; 256]) {
    let (d, dmin) = (half(block, 80), half(block, 82));
    for (k, group) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = d * f32::from(block[k] & 15);
        let min = dmin * f32::from(block[k] >> 4);
        for (x, code) in group.iter_mut().zip(codes(block, k)) {
            *x = scale * f32::from(code) - min;
        }
    }
}

/// Returns the codes of group `k`: of each byte, the two bits that belong to this quarter of 128.
#[inline(always)]
fn codes(block: &[u8; 84], k: usize) -> impl Iterator<Item = u8> {
    let shift = 2 * ((k % 8) / 2);
    block[16 + 32 * (k / 8) + 16 * (k % 2)..][..16].iter().map(move |byte| (byte >> shift) & 3)
}

#[inline(always)]
pub(super) fn encode<L: Lanes>(x: &[f32; 256], block: &mut [u8; 84]) {
    let search = Search { levels: 3.0, first: -0.5, step: 0.1, steps: 15, magnitudes: true };
    let halves = groups_of_16::<L>(x);
    let (mut scales, mut mins) = ([L::zero(); 2], [L::zero(); 2]);
    for (n, x) in halves.iter().enumerate() {
        let mut weights = *x;
        for weight in &mut weights {
            *weight = weight.abs();
        }
        (scales[n], mins[n]) = fit_scale_and_min(x, &weights, &search);
    }
    let (scale, min) = (largest(scales), largest(mins));
    put_half(block, 80, scale / 15.0);
    put_half(block, 82, min / 15.0);
    let (d, dmin) = (L::splat(half(block, 80)), L::splat(half(block, 82)));
    for (n, x) in halves.iter().enumerate() {
        let (scales, mins) = (four_bits(scales[n], scale), four_bits(mins[n], min));
        for (k, (scale, min)) in scales.to_bytes().into_iter().zip(mins.to_bytes()).enumerate() {
            block[LANES * n + k] = scale | min << 4;
        }
        let (scale, min) = (d * scales, dmin * mins);
        for (l, x) in x.iter().enumerate() {
            let codes = ((*x + min) / scale).code(0.0, 3.0).to_bytes();
            // Groups come in pairs that share 32 bytes; the pair selects the two bits.
            for start in 0..2 {
                block[16 + 32 * n + 16 * start + l] =
                    codes[start] | codes[2 + start] << 2 | codes[4 + start] << 4 | codes[6 + start] << 6;
            }
        }
    }
}

#[inline(always)]
fn largest<L: Lanes>(x: [L; 2]) -> f32 {
    x[0].max(x[1]).to_array().into_iter().fold(0.0, f32::max)
}

/// Rounds to steps of which the largest value has 15.
#[inline(always)]
fn four_bits<L: Lanes>(x: L, largest: f32) -> L {
    let inverse = if largest > 0.0 { 15.0 / largest } else { 0.0 };
    (x * L::splat(inverse)).code(0.0, 15.0)
}

//! Q2_K: 16 groups of 16 codes of 2 bits, each with a 4-bit scale and minimum. Block: scales[16], qs[64], d f16, dmin f16.

use super::block::{half, put_half};
use super::fit::{Search, asymmetric};
use super::lanes::{LANES, Lanes, sixteens};

#[inline(always)]
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

/// The codes of group `k`: of each byte, the two bits that belong to this quarter of 128.
#[inline(always)]
fn codes(block: &[u8; 84], k: usize) -> impl Iterator<Item = u8> {
    let shift = 2 * ((k % 8) / 2);
    block[16 + 32 * (k / 8) + 16 * (k % 2)..][..16].iter().map(move |byte| (byte >> shift) & 3)
}

#[inline(always)]
pub(super) fn encode(x: &[f32; 256], block: &mut [u8; 84]) {
    let search = Search { levels: 3.0, first: -0.5, step: 0.1, steps: 15, magnitudes: true };
    let halves = sixteens(x);
    let fits = halves.each_ref().map(|x| asymmetric(x, &x.map(Lanes::abs), &search));
    let largest =
        |pick: fn(&(Lanes, Lanes)) -> &Lanes| fits.iter().flat_map(|fit| pick(fit).0).fold(0.0, f32::max);
    let (scale, min) = (largest(|fit| &fit.0), largest(|fit| &fit.1));
    put_half(block, 80, scale / 15.0);
    put_half(block, 82, min / 15.0);
    let (d, dmin) = (Lanes::splat(half(block, 80)), Lanes::splat(half(block, 82)));
    let four_bits = |x: Lanes, largest: f32| {
        let inverse = if largest > 0.0 { 15.0 / largest } else { 0.0 };
        (x * Lanes::splat(inverse)).code(0.0, 15.0)
    };
    for (n, (x, (scales, mins))) in halves.iter().zip(fits).enumerate() {
        let (scales, mins) = (four_bits(scales, scale), four_bits(mins, min));
        for k in 0..LANES {
            block[LANES * n + k] = scales.0[k] as u8 | (mins.0[k] as u8) << 4;
        }
        let (scale, min) = (d * scales, dmin * mins);
        for (l, x) in x.iter().enumerate() {
            let codes = ((*x + min) / scale).code(0.0, 3.0).0.map(|code| code as u8);
            // Groups come in pairs that share 32 bytes; the pair says which two bits.
            for start in 0..2 {
                block[16 + 32 * n + 16 * start + l] =
                    (0..4).fold(0, |bits, quarter| bits | codes[2 * quarter + start] << (2 * quarter));
            }
        }
    }
}

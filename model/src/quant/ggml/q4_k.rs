//! Q4_K: 8 groups of 32 codes of 4 bits, each with a 6-bit scale and minimum. Block: d f16, dmin f16,
//! `scales[12]`, `qs[128]`.

use super::block::{half, put_half};
use super::fit::{Search, fit_scale_and_min};
use super::lanes::{Lanes, groups_of_32};

pub(super) fn decode(block: &[u8; 144], out: &mut [f32; 256]) {
    let (d, dmin) = (half(block, 0), half(block, 2));
    for (k, group) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, min) = scale_and_min(&block[4..16], k);
        let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
        let codes = &block[16 + 32 * (k / 2)..][..32];
        for (x, byte) in group.iter_mut().zip(codes) {
            *x = scale * f32::from((byte >> (4 * (k % 2))) & 15) - min;
        }
    }
}

/// Returns the scale and minimum of group `k`, 6 bits each, from 12 bytes. The first eight bytes hold those
/// of the first four groups in six bits each and, above them, the high bits of the last four groups, whose
/// low bits are the nibbles of the last four bytes.
#[inline(always)]
pub(super) fn scale_and_min(packed: &[u8], k: usize) -> (u8, u8) {
    if k < 4 {
        (packed[k] & 63, packed[k + 4] & 63)
    } else {
        ((packed[k + 4] & 15) | (packed[k - 4] >> 6) << 4, (packed[k + 4] >> 4) | (packed[k] >> 6) << 4)
    }
}

/// Packs what [`scale_and_min`] reads. All values are below 64.
#[inline(always)]
pub(super) fn pack_scales_and_mins(scales: &[u8; 8], mins: &[u8; 8], packed: &mut [u8]) {
    for k in 0..4 {
        packed[k] = scales[k] | (scales[k + 4] >> 4) << 6;
        packed[k + 4] = mins[k] | (mins[k + 4] >> 4) << 6;
        packed[k + 8] = (scales[k + 4] & 15) | (mins[k + 4] & 15) << 4;
    }
}

#[inline(always)]
pub(super) fn encode<L: Lanes>(x: &[f32; 256], block: &mut [u8; 144]) {
    let search = Search { levels: 15.0, first: -1.0, step: 0.1, steps: 20, magnitudes: false };
    let (header, codes) = block.split_at_mut(16);
    let header = header.as_mut_array().expect("sixteen bytes");
    let fitted = encode_groups::<L>(x, &search, header);
    for (pair, bytes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        for (byte, codes) in bytes.iter_mut().zip(&fitted) {
            *byte = codes[2 * pair] | codes[2 * pair + 1] << 4;
        }
    }
}

/// Writes `d`, `dmin` and the packed scales and minima, which Q5_K has too. Returns the codes: element `l` of
/// all groups together.
#[inline(always)]
pub(super) fn encode_groups<L: Lanes>(
    x: &[f32; 256],
    search: &Search,
    header: &mut [u8; 16],
) -> [[u8; 8]; 32] {
    let x = groups_of_32::<L>(x);
    let mut squares = L::zero();
    for x in &x {
        squares = squares + *x * *x;
    }
    let mean = (squares / L::splat(32.0)).sqrt();
    let mut weights = [mean; 32];
    for (weight, x) in weights.iter_mut().zip(&x) {
        *weight = mean + x.abs();
    }
    let (scales, mins) = fit_scale_and_min(&x, &weights, search);

    let (scale, scales) = six_bits(scales);
    let (min, mins) = six_bits(mins);
    put_half(header, 0, scale);
    put_half(header, 2, min);
    let (d, dmin) = (L::splat(half(header, 0)), L::splat(half(header, 2)));
    let (scale, min) = (d * scales, dmin * mins);
    pack_scales_and_mins(&scales.to_bytes(), &mins.to_bytes(), &mut header[4..]);
    let mut codes = [[0; 8]; 32];
    for (codes, x) in codes.iter_mut().zip(&x) {
        *codes = ((*x + min) / scale).code(0.0, search.levels).to_bytes();
    }
    codes
}

/// Returns the step of which the largest value has 63, and each value in such steps.
#[inline(always)]
fn six_bits<L: Lanes>(x: L) -> (f32, L) {
    let largest = x.to_array().into_iter().fold(0.0, f32::max);
    let inverse = if largest > 0.0 { 63.0 / largest } else { 0.0 };
    (largest / 63.0, (x * L::splat(inverse)).code(0.0, 63.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_is_inverse() {
        let scales = std::array::from_fn(|k| (k * 37 % 64) as u8);
        let mins = std::array::from_fn(|k| (63 - k * 11 % 64) as u8);
        let mut packed = [0; 12];
        pack_scales_and_mins(&scales, &mins, &mut packed);
        for k in 0..8 {
            assert_eq!(scale_and_min(&packed, k), (scales[k], mins[k]));
        }
    }
}

//! Q8_K: 256 signed codes of 8 bits and their sums, a format of activations. Block: d f32, `qs[256]`,
//! `bsums[16]` i16.

use super::block::{nearest_even, peak};

pub(super) fn decode(block: &[u8; 292], out: &mut [f32; 256]) {
    let d = f32::from_le_bytes([block[0], block[1], block[2], block[3]]);
    for (x, code) in out.iter_mut().zip(&block[4..260]) {
        *x = d * f32::from(*code as i8);
    }
}

/// The peak becomes -127, so the scale has the other sign.
#[inline(always)]
pub(super) fn encode(x: &[f32; 256], block: &mut [u8; 292]) {
    let peak = peak(x);
    if peak == 0.0 {
        *block = [0; 292];
        return;
    }
    let inverse = -127.0 / peak;
    block[..4].copy_from_slice(&(1.0 / inverse).to_le_bytes());
    let (codes, sums) = block[4..].split_at_mut(256);
    for (code, x) in codes.iter_mut().zip(x) {
        *code = nearest_even(x * inverse).min(127.0) as i8 as u8;
    }
    for (sum, codes) in sums.as_chunks_mut::<2>().0.iter_mut().zip(codes.as_chunks::<16>().0) {
        *sum = codes.iter().map(|code| i16::from(*code as i8)).sum::<i16>().to_le_bytes();
    }
}

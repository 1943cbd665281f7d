//! IQ4_NL: 32 codes of 4 bits that stand for unevenly spaced values. Block: d f16, qs[16].

use super::block::{half, nibble, put_half};
use super::fit::{best_scale, peaks};
use super::lanes::{LANES, Lanes, side_by_side};

/// The value of each code.
pub(super) const VALUES: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

#[inline(always)]
pub(super) fn decode(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = half(block, 0);
    for (i, x) in out.iter_mut().enumerate() {
        *x = d * f32::from(VALUES[usize::from(nibble(&block[2..], i))]);
    }
}

/// Makes any number of blocks, eight at a time.
#[inline(always)]
pub(super) fn encode(values: &[f32], out: &mut [u8]) {
    let (values, blocks) = (values.as_chunks::<32>().0, out.as_chunks_mut::<18>().0);
    for (values, blocks) in values.chunks(LANES).zip(blocks.chunks_mut(LANES)) {
        let mut groups = [[0.0; 32]; LANES];
        groups[..values.len()].copy_from_slice(values);
        let x = side_by_side(&groups);
        let scales = scales(&x);
        let inverse = scales.inverse();
        for (block, scale) in blocks.iter_mut().zip(scales.0) {
            put_half(block, 0, scale);
        }
        for j in 0..16 {
            let (low, high) = (codes(inverse * x[j]), codes(inverse * x[j + 16]));
            for (lane, block) in blocks.iter_mut().enumerate() {
                block[2 + j] = low[lane] | high[lane] << 4;
            }
        }
    }
}

/// The scales that fit eight groups of 32.
#[inline(always)]
pub(super) fn scales(x: &[Lanes; 32]) -> Lanes {
    let peaks = peaks(x);
    let first = Lanes::splat(1.0) / (peaks * Lanes::splat(1.0 / 127.0));
    let others = (-7..=7).map(|t| Lanes::splat((t - 127) as f32) / peaks);
    best_scale(x, first, others, |x| nearest(x, |code| f32::from(VALUES[code])))
}

/// The codes of the nearest values.
#[inline(always)]
pub(super) fn codes(x: Lanes) -> [u8; LANES] {
    nearest(x, |code| code as f32).0.map(|code| code as u8)
}

/// What `of` says of the code with the nearest value; of two as near the larger.
#[inline(always)]
fn nearest(x: Lanes, of: impl Fn(usize) -> f32) -> Lanes {
    let mut found = Lanes::splat(of(0));
    for code in 1..VALUES.len() {
        let middle = f32::from(i16::from(VALUES[code - 1]) + i16::from(VALUES[code])) / 2.0;
        found = x.less(Lanes::splat(middle)).select(found, Lanes::splat(of(code)));
    }
    found
}

//! IQ4_NL: 32 codes of 4 bits for unevenly spaced values. Block: d f16, `qs[16]`.

use super::block::{half, nibble, put_half};
use super::fit::{Nearest, best_scale};
use super::lanes::{LANES, Lanes, side_by_side};

/// The value of each code.
pub const VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

pub(super) fn decode(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = half(block, 0);
    for (i, x) in out.iter_mut().enumerate() {
        *x = d * f32::from(VALUES[usize::from(nibble(&block[2..], i))]);
    }
}

/// Encodes any number of blocks, eight at a time.
#[inline(always)]
pub(super) fn encode<L: Lanes>(values: &[f32], out: &mut [u8]) {
    let (values, blocks) = (values.as_chunks::<32>().0, out.as_chunks_mut::<18>().0);
    for (values, blocks) in values.chunks(LANES).zip(blocks.chunks_mut(LANES)) {
        let mut groups = [[0.0; 32]; LANES];
        groups[..values.len()].copy_from_slice(values);
        let x: [L; 32] = side_by_side(&groups);
        let scales = scales(&x);
        let inverse = scales.inverse();
        for (block, scale) in blocks.iter_mut().zip(scales.to_array()) {
            put_half(block, 0, scale);
        }
        for j in 0..16 {
            let low = Code::nearest(inverse * x[j]).to_bytes();
            let high = Code::nearest(inverse * x[j + 16]).to_bytes();
            for (lane, block) in blocks.iter_mut().enumerate() {
                block[2 + j] = low[lane] | high[lane] << 4;
            }
        }
    }
}

/// Returns the scales that fit eight groups of 32.
#[inline(always)]
pub(super) fn scales<L: Lanes>(x: &[L; 32]) -> L {
    // The candidates map the peak to the lowest value, first negated, or to a little more or less than that.
    let mut levels = [127.0; 16];
    for (level, t) in levels[1..].iter_mut().zip(-7..=7) {
        *level = (t - 127) as f32;
    }
    best_scale::<L, Value, 32>(x, &levels)
}

/// Rounds to the nearest value; on a tie to the larger.
struct Value;

/// The code of the nearest value.
pub(super) struct Code;

impl Nearest for Value {
    #[inline(always)]
    fn nearest<L: Lanes>(x: L) -> L {
        let mut found = L::splat(f32::from(VALUES[0]));
        for pair in VALUES.windows(2) {
            found = L::select(x.less(middle(pair)), found, L::splat(f32::from(pair[1])));
        }
        found
    }
}

impl Nearest for Code {
    #[inline(always)]
    fn nearest<L: Lanes>(x: L) -> L {
        let mut found = L::zero();
        for (below, pair) in VALUES.windows(2).enumerate() {
            found = L::select(x.less(middle(pair)), found, L::splat((below + 1) as f32));
        }
        found
    }
}

#[inline(always)]
fn middle<L: Lanes>(pair: &[i8]) -> L {
    L::splat(f32::from(i16::from(pair[0]) + i16::from(pair[1])) / 2.0)
}

//! Q6_K: 16 groups of 16 codes of 6 bits around 32, each with a signed 8-bit scale. Block: `ql[128]`,
//! `qh[64]`, `scales[16]`, d f16.

use super::block::{half, peak, put_half};
use super::fit::{Nearest, SMALLEST, best_scale};
use super::lanes::{LANES, Lanes, groups_of_16};

pub(super) fn decode(block: &[u8; 210], out: &mut [f32; 256]) {
    let d = half(block, 208);
    for (k, group) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = d * f32::from(block[192 + k] as i8);
        // The position in the 128 elements that share bytes: the quarter, and its half of 16.
        let (n, quarter, start) = (k / 8, (k % 8) / 2, 16 * (k % 2));
        for (l, x) in group.iter_mut().enumerate() {
            let low = (block[64 * n + 32 * (quarter % 2) + start + l] >> (4 * (quarter / 2))) & 15;
            let high = (block[128 + 32 * n + start + l] >> (2 * quarter)) & 3;
            *x = scale * f32::from((low | high << 4) as i8 - 32);
        }
    }
}

/// Codes from -32 to 31.
struct SixBits;

impl Nearest for SixBits {
    #[inline(always)]
    fn nearest<L: Lanes>(x: L) -> L {
        x.code(-32.0, 31.0)
    }
}

#[inline(always)]
pub(super) fn encode<L: Lanes>(x: &[f32; 256], block: &mut [u8; 210]) {
    let halves = groups_of_16::<L>(x);
    // The candidates map the peak to the lowest code, or to a little more or less than that.
    let mut levels = [-32.0; 19];
    for (level, t) in levels[1..].iter_mut().zip((-9..=9).filter(|t| *t != 0)) {
        *level = -(32.0 + 0.1 * t as f32);
    }
    let scales = [
        best_scale::<L, SixBits, 16>(&halves[0], &levels),
        best_scale::<L, SixBits, 16>(&halves[1], &levels),
    ];
    let peak = peak([scales[0].to_array(), scales[1].to_array()].as_flattened());
    if peak.abs() < SMALLEST {
        *block = [0; 210];
        return;
    }
    let inverse = -128.0 / peak;
    put_half(block, 208, 1.0 / inverse);
    let d = L::splat(half(block, 208));
    for (n, (x, scales)) in halves.iter().zip(scales).enumerate() {
        let scales = (L::splat(inverse) * scales).code(-128.0, 127.0);
        block[192 + LANES * n..][..LANES].copy_from_slice(&scales.to_bytes());
        let scale = d * scales;
        for (l, x) in x.iter().enumerate() {
            let codes = (SixBits::nearest(*x / scale) + L::splat(32.0)).to_bytes();
            // Group `2 * quarter + start`: see `decode`.
            for start in 0..2 {
                let [a, b, c, d] = [codes[start], codes[start + 2], codes[start + 4], codes[start + 6]];
                block[64 * n + 16 * start + l] = (a & 15) | c << 4;
                block[64 * n + 32 + 16 * start + l] = (b & 15) | d << 4;
                block[128 + 32 * n + 16 * start + l] = a >> 4 | (b >> 4) << 2 | (c >> 4) << 4 | (d >> 4) << 6;
            }
        }
    }
}

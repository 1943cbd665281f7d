//! Q6_K: 16 groups of 16 codes of 6 bits around 32, each with a signed 8-bit scale. Block: ql[128], qh[64], scales[16], d f16.

use super::block::{half, nearest_even, peak, put_half};
use super::fit::{SMALLEST, best_scale, peaks};
use super::lanes::{LANES, Lanes, sixteens};

#[inline(always)]
pub(super) fn decode(block: &[u8; 210], out: &mut [f32; 256]) {
    let d = half(block, 208);
    for (k, group) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = d * f32::from(block[192 + k] as i8);
        // Within the 128 that share bytes: the quarter, and the half of 16.
        let (n, quarter, start) = (k / 8, (k % 8) / 2, 16 * (k % 2));
        for (l, x) in group.iter_mut().enumerate() {
            let low = (block[64 * n + 32 * (quarter % 2) + start + l] >> (4 * (quarter / 2))) & 15;
            let high = (block[128 + 32 * n + start + l] >> (2 * quarter)) & 3;
            *x = scale * f32::from((low | high << 4) as i8 - 32);
        }
    }
}

#[inline(always)]
pub(super) fn encode(x: &[f32; 256], block: &mut [u8; 210]) {
    let halves = sixteens(x);
    let scales = halves.each_ref().map(|x| {
        let peaks = peaks(x);
        let inverse = |levels: f32| Lanes::splat(-levels) / peaks;
        let others = (-9..=9).filter(|t| *t != 0).map(|t| inverse(32.0 + 0.1 * t as f32));
        best_scale(x, inverse(32.0), others, |x| x.code(-32.0, 31.0))
    });
    let peak = peak([scales[0].0, scales[1].0].as_flattened());
    if peak.abs() < SMALLEST {
        *block = [0; 210];
        return;
    }
    let inverse = -128.0 / peak;
    put_half(block, 208, 1.0 / inverse);
    let d = Lanes::splat(half(block, 208));
    for (n, (x, scales)) in halves.iter().zip(scales).enumerate() {
        let scales = scales.map(|scale| nearest_even(inverse * scale).min(127.0));
        for k in 0..LANES {
            block[192 + LANES * n + k] = scales.0[k] as i8 as u8;
        }
        let scale = d * scales;
        for (l, x) in x.iter().enumerate() {
            let codes = (*x / scale).code(-32.0, 31.0).0.map(|code| (code as i8 + 32) as u8);
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

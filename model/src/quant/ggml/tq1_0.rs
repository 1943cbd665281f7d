//! TQ1_0: 256 ternary values, five to a byte as a fraction of 256, so that a digit is read without a
//! division. Block: `qs[48]` (32 bytes of 5, then 16 of 5), `qh[4]` of 4, d f16.

use super::block::{half, inverse, largest, nearest_away, put_half};

const POWERS: [u8; 5] = [1, 3, 9, 27, 81];

/// A run of bytes: its offset, the position of its first element, and the number of digits per byte. Digit
/// `n` of byte `j` is the element `j + n * length`.
struct Run {
    bytes: std::ops::Range<usize>,
    first: usize,
    digits: usize,
}

const RUNS: [Run; 3] = [
    Run { bytes: 0..32, first: 0, digits: 5 },
    Run { bytes: 32..48, first: 160, digits: 5 },
    Run { bytes: 48..52, first: 240, digits: 4 },
];

pub(super) fn decode(block: &[u8; 54], out: &mut [f32; 256]) {
    let d = half(block, 52);
    for Run { bytes, first, digits } in RUNS {
        let bytes = &block[bytes];
        for (n, power) in POWERS[..digits].iter().enumerate() {
            for (j, byte) in bytes.iter().enumerate() {
                let digit = (u16::from(byte.wrapping_mul(*power)) * 3) >> 8;
                out[first + n * bytes.len() + j] = d * (f32::from(digit) - 1.0);
            }
        }
    }
}

#[inline(always)]
pub(super) fn encode(x: &[f32; 256], block: &mut [u8; 54]) {
    let d = largest(x);
    let id = inverse(d);
    put_half(block, 52, d);
    for Run { bytes, first, digits } in RUNS {
        let bytes = &mut block[bytes];
        let stride = bytes.len();
        for (j, byte) in bytes.iter_mut().enumerate() {
            let value = (0..5).fold(0u16, |value, n| {
                let digit = if n < digits {
                    (nearest_away(x[first + n * stride + j] * id) + 1).clamp(0, 2)
                } else {
                    0
                };
                value * 3 + digit as u16
            });
            *byte = (value * 256).div_ceil(243) as u8;
        }
    }
}

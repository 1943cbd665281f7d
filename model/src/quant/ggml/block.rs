//! Helpers that the formats share: half floats at any address, signs, peaks, and rounding without library
//! calls. Everything is inlined, so that it is compiled for the instruction set of its caller; see
//! `dispatch`.

use half::f16;

/// Adding this to a small float and subtracting it again rounds to an integer, nearest and ties to even.
pub(super) const ROUND: f32 = 12_582_912.0;

/// The largest float below a half. Adding it instead of a half does not round up values just below a tie.
pub(super) const BELOW_HALF: f32 = 0.499_999_97;

#[inline(always)]
pub(super) fn half<const B: usize>(block: &[u8; B], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

#[inline(always)]
pub(super) fn put_half<const B: usize>(block: &mut [u8; B], at: usize, x: f32) {
    block[at..at + 2].copy_from_slice(&f16::from_f32(x).to_le_bytes());
}

#[inline(always)]
pub(super) fn u16_at<const B: usize>(block: &[u8; B], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

#[inline(always)]
pub(super) fn u32_at<const B: usize>(block: &[u8; B], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

/// Returns element `i` of 32 codes of four bits: the first half is in the low nibbles, the second in the high
/// ones.
#[inline(always)]
pub(super) fn nibble(codes: &[u8], i: usize) -> u8 {
    (codes[i % 16] >> (4 * (i / 16))) & 15
}

/// Returns minus one if bit `j` is set, else one.
#[inline(always)]
pub(super) fn sign(bits: u8, j: usize) -> f32 {
    if (bits >> j) & 1 == 1 { -1.0 } else { 1.0 }
}

/// Returns seven stored signs and the eighth, which makes the number of minus signs even.
#[inline(always)]
pub(super) fn even_signs(pattern: u8) -> u8 {
    pattern | ((pattern.count_ones() as u8 & 1) << 7)
}

/// The largest magnitude.
#[inline(always)]
pub(super) fn largest(x: &[f32]) -> f32 {
    let mut lanes = [0.0f32; 8];
    let (chunks, rest) = x.as_chunks::<8>();
    for chunk in chunks {
        for (largest, x) in lanes.iter_mut().zip(chunk) {
            let x = x.abs();
            *largest = if x > *largest { x } else { *largest };
        }
    }
    lanes.into_iter().chain(rest.iter().map(|x| x.abs())).fold(0.0, f32::max)
}

/// The first element of the largest magnitude, with its sign.
#[inline(always)]
pub(super) fn peak(x: &[f32]) -> f32 {
    let largest = largest(x);
    x.iter().copied().find(|x| x.abs() == largest).unwrap_or(0.0)
}

/// The smallest and the largest element.
#[inline(always)]
pub(super) fn range<const N: usize>(x: &[f32; N]) -> (f32, f32) {
    let (mut lows, mut highs) = ([f32::INFINITY; 8], [f32::NEG_INFINITY; 8]);
    for chunk in x.as_chunks::<8>().0 {
        for (x, (low, high)) in chunk.iter().zip(lows.iter_mut().zip(&mut highs)) {
            *low = if x < low { *x } else { *low };
            *high = if x > high { *x } else { *high };
        }
    }
    (lows.into_iter().fold(f32::INFINITY, f32::min), highs.into_iter().fold(f32::NEG_INFINITY, f32::max))
}

/// `1 / d`, and zero for zero.
#[inline(always)]
pub(super) fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

/// Rounds to the nearest integer, ties to even. The magnitude must be well below 2^22.
#[inline(always)]
pub(super) fn nearest_even(x: f32) -> f32 {
    (x + ROUND) - ROUND
}

/// Rounds to the nearest integer, ties away from zero.
#[inline(always)]
pub(super) fn nearest_away(x: f32) -> i32 {
    (x + BELOW_HALF.copysign(x)) as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding() {
        for x in [0.0f32, 0.49999997, 0.5, 0.50000006, 1.5, 2.5, 3.4999998, 126.5, 127.0, 8388607.5] {
            for x in [x, -x] {
                assert_eq!(nearest_away(x), x.round() as i32, "{x}");
                if x.abs() < 4_194_304.0 {
                    assert_eq!(nearest_even(x), x.round_ties_even(), "{x}");
                }
            }
        }
    }

    #[test]
    fn the_first_of_equal_peaks() {
        assert_eq!(peak(&[0.0, -2.0, 2.0, 1.0, 0.0, 0.0, 0.0, 0.0, 2.0]), -2.0);
        assert_eq!(peak(&[0.0; 16]), 0.0);
        assert_eq!(range(&[3.0, -1.0, 2.0, 0.0, 3.0, 3.0, 3.0, -0.5]), (-1.0, 3.0));
    }

    #[test]
    fn signs_are_even() {
        for pattern in 0..128u8 {
            assert_eq!(even_signs(pattern).count_ones() % 2, 0);
        }
    }
}

//! nvfp4, mxfp4 and mxfp8: small float codes with a scale for each group of a row. Quantisation follows MLX:
//! an nvfp4 scale is rounded to nearest, a power of two is rounded up, so that nothing saturates.

use half::{bf16, f16};
use safetensors::Dtype;

use super::Kind;
use super::float::{self, E2M1};

/// The largest magnitudes of E2M1 and E4M3, as a fraction from one to two and a power of two.
const LARGEST_E2M1: (f32, i32) = (1.5, 2);
const LARGEST_E4M3: (f32, i32) = (1.75, 8);

/// The largest scale that rounds to an E4M3 value: half a step above the largest value.
const LARGEST_SCALE: f32 = 464.0;

/// Appends codes and scales of whole groups of finite values; `dtype` is the type of their source. Fails with
/// the number of the first group whose values are too large for the format.
pub(super) fn quantise(
    kind: Kind,
    dtype: Dtype,
    values: &[f32],
    codes: &mut Vec<u8>,
    scales: &mut Vec<u8>,
) -> Result<(), usize> {
    for (index, group) in values.chunks_exact(kind.default_group_size() as usize).enumerate() {
        let largest = group.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
        let scale = match kind {
            Kind::Nvfp4 => float::f32_to_e4m3(round_to(dtype, largest / 6.0)),
            Kind::Mxfp4 => power_above(largest, LARGEST_E2M1),
            _ => power_above(largest, LARGEST_E4M3),
        };
        scales.push(scale);
        let value = match kind {
            Kind::Nvfp4 => float::e4m3_to_f32(scale),
            _ => float::e8m0_to_f32(scale),
        };
        let inverse = |x: f32| if value == 0.0 { 0.0 } else { x / value };
        let is_held = match kind {
            Kind::Nvfp4 => largest / 6.0 <= LARGEST_SCALE,
            Kind::Mxfp4 => (E2M1[usize::from(nearest_e2m1(inverse(largest)))] * value).is_finite(),
            _ => (float::e4m3_to_f32(float::f32_to_e4m3(inverse(largest))) * value).is_finite(),
        };
        if !is_held {
            return Err(index);
        }
        match kind {
            Kind::Mxfp8 => codes.extend(group.iter().map(|x| float::f32_to_e4m3(inverse(*x)))),
            _ => codes.extend(
                group
                    .as_chunks::<2>()
                    .0
                    .iter()
                    .map(|[low, high]| nearest_e2m1(inverse(*low)) | nearest_e2m1(inverse(*high)) << 4),
            ),
        }
    }
    Ok(())
}

/// Returns the E8M0 code of the smallest power of two that, multiplied by a format's largest value, reaches
/// `largest`. Returns the code of 1 if all values are zero.
fn power_above(largest: f32, (fraction, exponent): (f32, i32)) -> u8 {
    const FRACTION: u32 = (1 << 23) - 1;
    if largest == 0.0 {
        return 127;
    }
    let bits = largest.to_bits();
    let reaches = bits & FRACTION <= fraction.to_bits() & FRACTION;
    let code = (bits >> 23) as i32 - exponent + i32::from(!reaches);
    code.clamp(0, 254) as u8
}

/// Rounds to the source's own type.
fn round_to(dtype: Dtype, x: f32) -> f32 {
    match dtype {
        Dtype::BF16 => bf16::from_f32(x).to_f32(),
        Dtype::F16 => f16::from_f32(x).to_f32(),
        _ => x,
    }
}

/// Returns the first code whose value is nearest: on a tie the smaller one, and zero never with a minus sign.
fn nearest_e2m1(x: f32) -> u8 {
    let magnitude = x.abs();
    // Counts the midpoints between neighbouring values that the magnitude exceeds.
    let code = E2M1[..8].windows(2).filter(|pair| magnitude > (pair[0] + pair[1]) / 2.0).count() as u8;
    if x < 0.0 && code != 0 { code | 8 } else { code }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_are_rounded_up() {
        for (largest, expect) in
            [(0.0, 127), (6.0, 127), (6.1, 128), (5.9, 127), (3.0, 126), (4.0, 127), (1e-40, 0)]
        {
            assert_eq!(power_above(largest, LARGEST_E2M1), expect, "{largest}");
        }
        for (largest, expect) in [(448.0, 127), (449.0, 128), (1.75, 119), (f32::MAX, 247)] {
            assert_eq!(power_above(largest, LARGEST_E4M3), expect, "{largest}");
        }
    }

    #[test]
    fn ties_go_to_the_smaller() {
        for (x, expect) in
            [(0.25, 0), (0.26, 1), (-0.25, 0), (-0.26, 9), (5.0, 6), (5.1, 7), (100.0, 7), (-2.5, 12)]
        {
            assert_eq!(nearest_e2m1(x), expect, "{x}");
        }
    }
}

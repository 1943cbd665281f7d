//! int4 and int8: unsigned codes with a scale and a bias for each group of a row, `scale * code + bias`.
//! Quantisation follows MLX: the end of a group's range with the larger magnitude is exact, and zero has a
//! code.

use half::{bf16, f16};
use safetensors::Dtype;

use super::{Kind, fp};

/// The smallest step, so that a group of equal values does not divide by zero.
const SMALLEST_SCALE: f32 = 1e-7;

/// From here on float32 has no fraction bits: adding it to a small number rounds that number to nearest, ties
/// to even.
const TWO_TO_23: f32 = 8_388_608.0;

/// The number of running minima of a group. They make the search independent of the order, so that it can use
/// vector registers.
const LANES: usize = 8;

pub(super) fn dequantise_group_4(codes: &[u8], scale: f32, bias: f32, out: &mut [f32]) {
    for (pair, byte) in out.chunks_exact_mut(2).zip(codes) {
        pair[0] = scale * f32::from(byte & 15) + bias;
        pair[1] = scale * f32::from(byte >> 4) + bias;
    }
}

pub(super) fn dequantise_group_8(codes: &[u8], scale: f32, bias: f32, out: &mut [f32]) {
    for (x, code) in out.iter_mut().zip(codes) {
        *x = scale * f32::from(*code) + bias;
    }
}

/// A value that no code can represent: infinite or NaN.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("element {element} is {value}, expected a finite number")]
pub struct NotFinite {
    /// Its position in the given values.
    pub element: usize,
    pub value: f32,
}

/// Why a format of tensor blobs cannot hold values.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum QuantiseError {
    #[error(transparent)]
    NotFinite(#[from] NotFinite),
    /// The value would decode to an infinity, or to far less than it was.
    #[error("element {element} is {value}, too large for {kind}")]
    TooLarge { kind: Kind, element: usize, value: f32 },
}

impl QuantiseError {
    /// Returns the error for the largest value of a group.
    fn too_large(kind: Kind, group_size: usize, index: usize, values: &[f32]) -> QuantiseError {
        let group = values.iter().enumerate().skip(index * group_size).take(group_size);
        let largest = group.max_by(|(_, a), (_, b)| a.abs().total_cmp(&b.abs()));
        let (element, value) = largest.map_or((0, 0.0), |(element, value)| (element, *value));
        QuantiseError::TooLarge { kind, element, value }
    }

    /// Formats the error for values that begin at element `first`.
    pub(crate) fn message_at(self, first: u64) -> String {
        match self {
            QuantiseError::NotFinite(NotFinite { element, value }) => {
                format!("element {} is {value}, expected a finite number", first + element as u64)
            }
            QuantiseError::TooLarge { kind, element, value } => {
                format!("element {} is {value}, too large for {kind}", first + element as u64)
            }
        }
    }
}

/// Returns an error for the first value that is not finite.
pub(crate) fn check_finite(values: &[f32]) -> Result<(), NotFinite> {
    const CHUNK: usize = 256;
    // Chunks are checked without an early exit, in vector registers.
    let is_finite = |chunk: &[f32]| chunk.iter().fold(true, |finite, x| finite & x.is_finite());
    let Some(chunk) = values.chunks(CHUNK).position(|chunk| !is_finite(chunk)) else { return Ok(()) };
    let found = values.iter().enumerate().skip(CHUNK * chunk).find(|(_, x)| !x.is_finite());
    found.map_or(Ok(()), |(element, value)| Err(NotFinite { element, value: *value }))
}

/// Quantises rows and appends their codes, scales and, if the format has them, biases, as stored in tensor
/// blobs.
///
/// `values` are whole groups of `group_size`; `kind` is a format of tensor blobs; `dtype` (BF16, F16 or F32)
/// is the type of the source. Affine scales and biases are rounded to it; codes are chosen before that
/// rounding.
pub fn quantise(
    kind: Kind,
    group_size: usize,
    dtype: Dtype,
    values: &[f32],
    out: &mut Quantised,
) -> Result<(), QuantiseError> {
    debug_assert!(Kind::BLOB.contains(&kind) && kind.allows_group_size(group_size as u32));
    debug_assert!(values.len().is_multiple_of(group_size));
    if !kind.is_affine() {
        check_finite(values)?;
        return fp::quantise(kind, dtype, values, &mut out.codes, &mut out.scales)
            .map_err(|index| QuantiseError::too_large(kind, group_size, index, values));
    }
    let levels = ((1u32 << kind.bits()) - 1) as f32;
    for (index, group) in values.chunks_exact(group_size).enumerate() {
        let (scale, bias) = fit_group(group, levels)
            .map_err(|element| NotFinite { element: index * group_size + element, value: group[element] })?;
        if !scale.is_finite() {
            return Err(QuantiseError::too_large(kind, group_size, index, values));
        }
        // Clamping before rounding gives the same code. The sum rounds to even, and its low bits are the
        // code.
        let code = |x: f32| (((x - bias) / scale).max(0.0).min(levels) + TWO_TO_23).to_bits() as u8;
        match kind {
            Kind::Int4 => out
                .codes
                .extend(group.as_chunks::<2>().0.iter().map(|[low, high]| code(*low) | code(*high) << 4)),
            _ => out.codes.extend(group.iter().map(|x| code(*x))),
        }
        push(dtype, scale, &mut out.scales);
        push(dtype, bias, &mut out.biases);
    }
    Ok(())
}

/// The three parts of a quantised tensor, as bytes of a tensor blob.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Quantised {
    pub codes: Vec<u8>,
    pub scales: Vec<u8>,
    pub biases: Vec<u8>,
}

/// Returns the scale and bias of a group, or the position of a value that is not finite.
fn fit_group(group: &[f32], levels: f32) -> Result<(f32, f32), usize> {
    let (mut lows, mut highs, mut finite) = ([f32::INFINITY; LANES], [f32::NEG_INFINITY; LANES], true);
    for chunk in group.as_chunks::<LANES>().0 {
        for (x, (low, high)) in chunk.iter().zip(lows.iter_mut().zip(&mut highs)) {
            *low = if x < low { *x } else { *low };
            *high = if x > high { *x } else { *high };
            finite &= x.is_finite();
        }
    }
    if !finite {
        return Err(group.iter().position(|x| !x.is_finite()).expect("one of them is not finite"));
    }
    let low = lows.into_iter().fold(f32::INFINITY, f32::min);
    let high = highs.into_iter().fold(f32::NEG_INFINITY, f32::max);
    let step = ((high - low) / levels).max(SMALLEST_SCALE);
    let (edge, step) = if low.abs() > high.abs() { (low, step) } else { (high, -step) };
    let zero = (edge / step).round_ties_even();
    Ok(if zero == 0.0 { (step, 0.0) } else { (edge / zero, edge) })
}

fn push(dtype: Dtype, value: f32, out: &mut Vec<u8>) {
    match dtype {
        Dtype::BF16 => out.extend(bf16::from_f32(value).to_le_bytes()),
        Dtype::F16 => out.extend(f16::from_f32(value).to_le_bytes()),
        _ => out.extend(value.to_le_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::{Quantisation, StoredTensor, decode_f32};

    fn round_trip(kind: Kind, values: &[f32]) -> Vec<f32> {
        let mut parts = Quantised::default();
        quantise(kind, 32, Dtype::F32, values, &mut parts).unwrap();
        decode_f32(&StoredTensor {
            dtype: Dtype::U32,
            quantisation: Some(Quantisation { kind, group_size: 32 }),
            weight: &parts.codes,
            scale: &parts.scales,
            scale_dtype: Dtype::F32,
            bias: &parts.biases,
            global_scale: None,
        })
        .unwrap()
    }

    #[test]
    fn zero_groups_have_mlxs_constants() {
        let mut parts = Quantised::default();
        quantise(Kind::Int4, 32, Dtype::F32, &[0.0; 32], &mut parts).unwrap();
        assert_eq!(parts.scales, (-1e-7f32).to_le_bytes());
        assert_eq!(parts.biases, 0f32.to_le_bytes());
        assert_eq!(parts.codes, [0; 16]);
    }

    #[test]
    fn the_larger_end_is_exact() {
        for kind in [Kind::Int4, Kind::Int8] {
            let values: Vec<f32> = (0..64).map(|i| (i as f32 * 0.37).sin() - 0.2).collect();
            let decoded = round_trip(kind, &values);
            for (group, decoded) in values.chunks(32).zip(decoded.chunks(32)) {
                let largest = (0..32).max_by(|a, b| group[*a].abs().total_cmp(&group[*b].abs())).unwrap();
                assert_eq!(group[largest], decoded[largest]);
                let span = group.iter().copied().fold(f32::MIN, f32::max)
                    - group.iter().copied().fold(f32::MAX, f32::min);
                // Half a step, and as much again because zero has a code.
                let bound = span / ((1 << kind.bits()) - 1) as f32 * 1.1;
                assert!(group.iter().zip(decoded).all(|(x, y)| (x - y).abs() <= bound), "{kind}");
            }
        }
    }

    #[test]
    fn non_finite_values_are_refused() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = [1.0; 64];
            values[40] = bad;
            let error = quantise(Kind::Int8, 32, Dtype::F32, &values, &mut Quantised::default()).unwrap_err();
            assert!(matches!(error, QuantiseError::NotFinite(NotFinite { element: 40, .. })), "{error}");
        }
    }

    #[test]
    fn unrepresentable_values_are_refused() {
        for (kind, largest, is_held) in [
            (Kind::Int4, 3e38f32, true),
            (Kind::Int8, f32::MAX, true),
            (Kind::Nvfp4, 2700.0, true),
            (Kind::Nvfp4, 3000.0, false),
            (Kind::Mxfp4, 2.5e38, true),
            (Kind::Mxfp4, 3.3e38, false),
            (Kind::Mxfp8, 3e38, true),
            (Kind::Mxfp8, f32::MAX, false),
        ] {
            let group_size = kind.default_group_size() as usize;
            let mut values = vec![1.0; 2 * group_size];
            values[group_size + 3] = largest;
            let quantised = quantise(kind, group_size, Dtype::F32, &values, &mut Quantised::default());
            let expect = QuantiseError::TooLarge { kind, element: group_size + 3, value: largest };
            assert_eq!(quantised.err(), (!is_held).then_some(expect), "{largest} in {kind}");
        }
        let mut values = [1.0; 64];
        (values[5], values[6]) = (3e38, -3e38);
        let error = quantise(Kind::Int4, 32, Dtype::F32, &values, &mut Quantised::default()).unwrap_err();
        assert!(matches!(error, QuantiseError::TooLarge { element: 5 | 6, .. }), "{error}");
    }
}

//! The scales of blocks that must be finite, as one number per block that is finite if they are. Plain
//! numbers are blocks whose scale is their value.

use half::{bf16, f16};

/// Returns the position of the first block whose scale is not finite, and the scale.
pub(super) fn first_non_finite(
    bytes: &[u8],
    block_bytes: usize,
    scale: impl Fn(&[u8]) -> f32,
) -> Option<(usize, f32)> {
    let mut scales = bytes.chunks_exact(block_bytes).map(scale).enumerate();
    scales.find(|(_, value)| !value.is_finite())
}

/// The sum of half floats at these offsets. A sum of finite halves is finite: two halves cannot reach the
/// limit of float32.
pub(super) fn halves<const N: usize>(offsets: [usize; N]) -> impl Fn(&[u8]) -> f32 {
    move |b| offsets.iter().map(|at| f16::from_le_bytes([b[*at], b[at + 1]]).to_f32()).sum()
}

pub(super) fn float(b: &[u8]) -> f32 {
    f32::from_le_bytes([b[0], b[1], b[2], b[3]])
}

pub(super) fn bfloat(b: &[u8]) -> f32 {
    bf16::from_le_bytes([b[0], b[1]]).to_f32()
}

/// A double that is too large for float32 is still a finite number.
pub(super) fn double(b: &[u8]) -> f32 {
    let value = f64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]);
    if value.is_finite() { 0.0 } else { value as f32 }
}

pub(super) fn e8m0(b: &[u8]) -> f32 {
    if b[0] == 0xff { f32::NAN } else { 0.0 }
}

/// Four scales. The code that other readers of E4M3 treat as NaN is one here, with either sign.
pub(super) fn four_e4m3(b: &[u8]) -> f32 {
    if b[..4].iter().any(|code| code & 0x7f == 0x7f) { f32::NAN } else { 0.0 }
}

//! The small floating-point formats, and decoding of plain (not quantised) tensors to float32.
//! Sources: IEEE 754 for F16, the OCP specifications for E4M3, E5M2, E2M1 and E8M0.

use half::{bf16, f16};
use safetensors::Dtype;

use super::error::{DecodeError, check_len};

/// The value of each E2M1 code; bit 3 is the sign.
pub const E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// The value of each E4M3 code ("fn": no infinities, 0x7F and 0xFF are NaN).
static E4M3: [f32; 256] = {
    let mut table = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        table[code] = minifloat(code as u8, 3, 7);
        code += 1;
    }
    // The largest exponent is an ordinary one here, except for these two codes.
    table[0x7f] = f32::NAN;
    table[0xff] = f32::NAN;
    table
};

pub fn e4m3_to_f32(code: u8) -> f32 {
    E4M3[usize::from(code)]
}

/// Rounds to nearest, ties to even. Larger values and NaN become the largest value.
pub fn f32_to_e4m3(x: f32) -> u8 {
    const LARGEST: u8 = 0x7e;
    const SMALLEST_NORMAL: f32 = 1.0 / 64.0;
    let sign = if x.is_sign_negative() && !x.is_nan() { 0x80 } else { 0 };
    let magnitude = x.abs();
    let code = if magnitude < SMALLEST_NORMAL {
        // Multiples of 2^-9; the eighth is the smallest normal, whose code comes next.
        (magnitude * 512.0).round_ties_even() as u8
    } else if magnitude < 448.0 {
        let bits = magnitude.to_bits() - (120 << 23);
        ((bits + 0x7_ffff + ((bits >> 20) & 1)) >> 20) as u8
    } else {
        LARGEST
    };
    sign | code
}

/// E5M2 is the upper half of an F16.
pub fn e5m2_to_f32(code: u8) -> f32 {
    f16::from_bits(u16::from(code) << 8).to_f32()
}

/// `2^(code - 127)`; code 0 is a float32 subnormal, 255 is NaN.
pub fn e8m0_to_f32(code: u8) -> f32 {
    match code {
        0 => f32::from_bits(0x0040_0000),
        255 => f32::NAN,
        _ => f32::from_bits(u32::from(code) << 23),
    }
}

/// Decodes a sign bit, an exponent and `mantissa_bits` of fraction, without infinities and NaN.
const fn minifloat(code: u8, mantissa_bits: u32, bias: i32) -> f32 {
    let mantissa = (code & ((1 << mantissa_bits) - 1)) as f32;
    let exponent = ((code & 0x7f) >> mantissa_bits) as i32;
    let one = (1u32 << mantissa_bits) as f32;
    let (significand, exponent) =
        if exponent == 0 { (mantissa / one, 1 - bias) } else { (1.0 + mantissa / one, exponent - bias) };
    let value = significand * f32::from_bits(((127 + exponent) as u32) << 23);
    if code & 0x80 == 0 { value } else { -value }
}

/// Returns the reader of a little-endian float of this type: BF16, F16 or F32, the types of affine scales.
pub(super) fn reader(dtype: Dtype) -> fn(&[u8]) -> f32 {
    match dtype {
        Dtype::BF16 => |b| bf16::from_le_bytes([b[0], b[1]]).to_f32(),
        Dtype::F16 => |b| f16::from_le_bytes([b[0], b[1]]).to_f32(),
        _ => |b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
    }
}

/// Decodes little-endian values of a plain type to one float each; integers and F64 are rounded to nearest.
pub fn decode_f32_into(dtype: Dtype, bytes: &[u8], out: &mut [f32]) -> Result<(), DecodeError> {
    check_len("weight", bytes, out.len() * dtype.bitsize() / 8)?;

    fn each<const N: usize>(bytes: &[u8], out: &mut [f32], read: impl Fn([u8; N]) -> f32) {
        for (x, bytes) in out.iter_mut().zip(bytes.as_chunks::<N>().0) {
            *x = read(*bytes);
        }
    }
    match dtype {
        Dtype::F32 => each(bytes, out, f32::from_le_bytes),
        Dtype::BF16 => each(bytes, out, |b| bf16::from_le_bytes(b).to_f32()),
        Dtype::F16 => each(bytes, out, |b| f16::from_le_bytes(b).to_f32()),
        Dtype::F64 => each(bytes, out, |b| f64::from_le_bytes(b) as f32),
        Dtype::F8_E4M3 => each(bytes, out, |[b]| e4m3_to_f32(b)),
        Dtype::F8_E5M2 => each(bytes, out, |[b]| e5m2_to_f32(b)),
        Dtype::F8_E8M0 => each(bytes, out, |[b]| e8m0_to_f32(b)),
        Dtype::BOOL | Dtype::U8 => each(bytes, out, |[b]| f32::from(b)),
        Dtype::I8 => each(bytes, out, |[b]| f32::from(b as i8)),
        Dtype::U16 => each(bytes, out, |b| f32::from(u16::from_le_bytes(b))),
        Dtype::I16 => each(bytes, out, |b| f32::from(i16::from_le_bytes(b))),
        Dtype::U32 => each(bytes, out, |b| u32::from_le_bytes(b) as f32),
        Dtype::I32 => each(bytes, out, |b| i32::from_le_bytes(b) as f32),
        Dtype::U64 => each(bytes, out, |b| u64::from_le_bytes(b) as f32),
        Dtype::I64 => each(bytes, out, |b| i64::from_le_bytes(b) as f32),
        _ => return Err(DecodeError::Dtype { dtype }),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corner_values() {
        for (code, expect) in [
            (0x00, 0.0),
            (0x01, 2f32.powi(-9)),
            (0x08, 2f32.powi(-6)),
            (0x38, 1.0),
            (0x7e, 448.0),
            (0xfe, -448.0),
            (0xb8, -1.0),
        ] {
            assert_eq!(e4m3_to_f32(code), expect, "{code:#x}");
        }
        assert!(e4m3_to_f32(0x7f).is_nan() && e4m3_to_f32(0xff).is_nan());
        assert_eq!(e4m3_to_f32(0x80).to_bits(), (-0.0f32).to_bits());
        assert_eq!(e8m0_to_f32(0), 2f32.powi(-127));
        assert_eq!(e8m0_to_f32(127), 1.0);
        assert_eq!(e8m0_to_f32(254), 2f32.powi(127));
        assert_eq!(e5m2_to_f32(0x7b), 57344.0);
        assert!(e5m2_to_f32(0x7c).is_infinite());
    }

    #[test]
    fn plain_types() {
        let decode = |dtype, bytes: &[u8], n| {
            let mut out = vec![0.0; n];
            decode_f32_into(dtype, bytes, &mut out).map(|()| out)
        };
        assert_eq!(decode(Dtype::BF16, &[0x80, 0x3f, 0x00, 0xc0], 2), Ok(vec![1.0, -2.0]));
        assert_eq!(decode(Dtype::F16, &[0x01, 0x00], 1), Ok(vec![2f32.powi(-24)]));
        assert_eq!(decode(Dtype::F64, &1.5f64.to_le_bytes(), 1), Ok(vec![1.5]));
        assert_eq!(decode(Dtype::I8, &[0xff, 0x7f], 2), Ok(vec![-1.0, 127.0]));
        assert_eq!(decode(Dtype::I64, &(-3i64).to_le_bytes(), 1), Ok(vec![-3.0]));
        assert_eq!(decode(Dtype::C64, &[0; 8], 1), Err(DecodeError::Dtype { dtype: Dtype::C64 }));
        assert_eq!(
            decode(Dtype::F32, &[0; 7], 2),
            Err(DecodeError::Length { part: "weight", found: 7, expected: 8 })
        );
    }
}

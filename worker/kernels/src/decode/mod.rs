//! Conversion of packed values to f32 and back: rows of the embedding table, rows for the dense products,
//! entries of the cache. Called through `Ops`. Each value is exactly the one that the format defines, with
//! one rounding per operation.

use half::f16;
use lode_model::quant::float::e4m3_to_f32;
use lode_model::quant::ggml::{self, Type};
use lode_model::quant::{self, Quantisation, StoredTensor};
use lode_model::safetensors::Dtype as StoredDtype;

use super::dtype::{BLOCK_Q8_0, ByteCode, Dtype, Float, QK8_0};
use super::rows::{Rows, float_at};

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
#[cfg(target_arch = "x86_64")]
pub(super) mod blocks;
#[cfg(target_arch = "x86_64")]
pub(super) mod k_blocks;
#[cfg(target_arch = "x86_64")]
pub(super) mod load;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon;
#[cfg(target_arch = "x86_64")]
pub(super) mod small_codes;

/// Decodes row `row` to `to[0..cols]`.
pub(super) fn scalar(rows: &Rows<'_>, row: usize, to: &mut [f32]) {
    let (codes, scales, biases) = rows.row(row);
    let to = &mut to[..rows.cols()];
    match rows.dtype() {
        Dtype::Float(float) => {
            to.iter_mut().enumerate().for_each(|(k, to)| *to = float_at(float, codes, k));
        }
        Dtype::Affine { bits, group, scales: float } => to.iter_mut().enumerate().for_each(|(k, to)| {
            let code = match bits {
                4 => (codes[k / 2] >> (4 * (k % 2))) & 15,
                _ => codes[k],
            };
            *to = float_at(float, scales, k / group) * f32::from(code) + float_at(float, biases, k / group);
        }),
        Dtype::Ggml(Type::Q8_0) => to.iter_mut().enumerate().for_each(|(k, to)| {
            let block = &codes[k / QK8_0 * BLOCK_Q8_0..];
            *to = float_at(Float::F16, block, 0) * f32::from(block[2 + k % QK8_0].cast_signed());
        }),
        Dtype::Scaled(format) => {
            let stored = StoredTensor {
                dtype: StoredDtype::U32,
                quantisation: Some(Quantisation::of(format.kind())),
                weight: codes,
                scale: scales,
                scale_dtype: StoredDtype::U8,
                bias: &[],
                global_scale: (rows.factor() != 1.0).then_some(rows.factor()),
            };
            quant::decode_f32_into(&stored, to).expect("a row has whole groups");
        }
        Dtype::ByteCodes { code, group } => {
            for (index, (to, codes)) in to.chunks_mut(group).zip(codes.chunks(group)).enumerate() {
                let scale = float_at(Float::F32, scales, index);
                let number = |byte: u8| match code {
                    ByteCode::E4m3 => e4m3_to_f32(byte),
                    ByteCode::I8 => f32::from(byte.cast_signed()),
                };
                to.iter_mut().zip(codes).for_each(|(to, byte)| *to = scale * number(*byte));
            }
        }
        Dtype::Ggml(ty) => {
            ggml::decode_f32_into(ty, codes, to).expect("a row has whole blocks");
            if rows.factor() != 1.0 {
                to.iter_mut().for_each(|to| *to *= rows.factor());
            }
        }
    }
}

/// Encodes `from` as a row of the cache: floats, or Q8_0 blocks as in ggml's reference.
///
/// # Panics
/// If the cache does not support the format.
pub(super) fn encode_scalar(dtype: Dtype, from: &[f32], to: &mut [u8]) {
    match dtype {
        Dtype::Float(Float::F32) => {
            for (from, to) in from.iter().zip(to.chunks_exact_mut(4)) {
                to.copy_from_slice(&from.to_le_bytes());
            }
        }
        Dtype::Float(Float::F16) => {
            for (from, to) in from.iter().zip(to.chunks_exact_mut(2)) {
                to.copy_from_slice(&f16::from_f32(*from).to_le_bytes());
            }
        }
        Dtype::Ggml(Type::Q8_0) => {
            for (from, to) in from.chunks_exact(QK8_0).zip(to.chunks_exact_mut(BLOCK_Q8_0)) {
                // `max` alone would ignore NaN.
                let none = from.iter().any(|v| v.is_nan());
                let largest = if none { f32::NAN } else { from.iter().fold(0.0f32, |m, v| m.max(v.abs())) };
                let d = largest / 127.0;
                let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
                to[..2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
                for (from, to) in from.iter().zip(&mut to[2..]) {
                    *to = ((from * inverse).round() as i8).cast_unsigned();
                }
            }
        }
        _ => unreachable!("the cache does not support {dtype:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::Ops;
    use crate::testing::{EXAMPLES, Packed, random};

    #[test]
    fn every_version_decodes_the_same_bits() {
        for ops in Ops::all() {
            for &dtype in EXAMPLES {
                for cols in [1, 7, 8, 31, 32, 33, 64, 129, 320] {
                    let cols = cols.max(dtype.multiple()).next_multiple_of(dtype.multiple());
                    let packed = Packed::random(dtype, 3, cols, 5);
                    for row in 0..3 {
                        let mut found = vec![f32::NAN; cols];
                        ops.decode_row(&packed.rows(), row, &mut found);
                        assert_eq!(found, packed.decoded(row), "{} {dtype:?} {cols}", ops.name);
                    }
                }
            }
        }
    }

    /// ggml's golden vectors: every type that files use, at odd addresses.
    #[test]
    fn blocks_decode_as_ggml_does() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/ggml-quant");
        let mut sets = 0;
        for &ty in ggml::Type::ALL {
            let Ok(file) = std::fs::read(folder.join(format!("{}.safetensors", ty.as_str().to_lowercase())))
            else {
                continue;
            };
            if !ty.is_quantised() {
                continue;
            }
            let header = lode_model::safetensors::Header::read(&file).unwrap();
            let part = |name: &str| {
                let entry = header.get(name)?;
                let begin = (header.data_start() + entry.begin) as usize;
                Some(&file[begin..begin + entry.size_bytes() as usize])
            };
            for (blocks, expect) in [("blocks", "dequant"), ("rand_blocks", "rand_dequant")] {
                let Some((blocks, expect)) = part(blocks).zip(part(expect)) else { continue };
                let expect: Vec<f32> =
                    expect.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
                let bytes = bytes::Bytes::from([&[0], blocks].concat()).slice(1..);
                let dtype = crate::Dtype::Ggml(ty);
                let (none, shape) = (bytes::Bytes::new(), (1, expect.len()));
                let weight = crate::Weight::new(dtype, shape, bytes, none.clone(), none).unwrap();
                for ops in Ops::all() {
                    let mut found = vec![f32::NAN; expect.len()];
                    ops.decode_row(&Rows::of(&weight), 0, &mut found);
                    assert_eq!(found, expect, "{} {ty}", ops.name);
                }
                sets += 1;
            }
        }
        assert!(sets > 40, "{sets}");
    }

    #[test]
    fn every_version_encodes_the_same_bytes() {
        for ops in Ops::all() {
            for dtype in [Dtype::Float(Float::F32), Dtype::Float(Float::F16), Dtype::Ggml(Type::Q8_0)] {
                for cols in [8, 16, 32, 80, 96] {
                    let cols = usize::max(cols, dtype.multiple()).next_multiple_of(dtype.multiple());
                    let mut from = random(cols, 9);
                    from[3] = 1e6;
                    let (mut expect, mut found) =
                        (vec![0; dtype.row_bytes(cols)], vec![1; dtype.row_bytes(cols)]);
                    encode_scalar(dtype, &from, &mut expect);
                    ops.encode_row(dtype, &from, &mut found);
                    assert_eq!(found, expect, "{} {dtype:?} {cols}", ops.name);
                }
            }
        }
    }

    #[test]
    fn q8_0_is_within_half_a_step() {
        let from = random(96, 2);
        let mut packed = vec![0; Dtype::Ggml(Type::Q8_0).row_bytes(96)];
        encode_scalar(Dtype::Ggml(Type::Q8_0), &from, &mut packed);
        let mut back = vec![0.0; 96];
        scalar(&Rows::new(Dtype::Ggml(Type::Q8_0), 96, &packed), 0, &mut back);
        for (from, back) in from.chunks(32).zip(back.chunks(32)) {
            let largest = from.iter().fold(0.0f32, |m, v| m.max(v.abs()));
            for (from, back) in from.iter().zip(back) {
                assert!((from - back).abs() <= largest * (0.5 / 127.0 + 1.0 / 2048.0), "{from} {back}");
            }
        }
    }

    #[test]
    fn q8_0_preserves_nan() {
        let mut from = vec![1.0; 32];
        from[4] = f32::NAN;
        let mut packed = vec![0; BLOCK_Q8_0];
        encode_scalar(Dtype::Ggml(Type::Q8_0), &from, &mut packed);
        assert!(float_at(Float::F16, &packed, 0).is_nan());
    }
}

//! Pseudo-random inputs for the tests of the operations. The values are the same in every run.

use bytes::Bytes;
use lode_model::quant::ggml::{self, Type};

use super::decode;
use super::dtype::{ByteCode, Dtype, Float, Scaled};
use super::rows::Rows;
pub(super) use super::self_test::random;
use super::weight::Weight;

const fn affine(bits: u8, group: usize, scales: Float) -> Dtype {
    Dtype::Affine { bits, group, scales }
}

/// One example of each supported format.
pub(super) const EXAMPLES: &[Dtype] = &[
    Dtype::Float(Float::F32),
    Dtype::Float(Float::F16),
    Dtype::Float(Float::BF16),
    Dtype::Ggml(Type::Q8_0),
    affine(4, 32, Float::BF16),
    affine(4, 64, Float::F32),
    affine(4, 128, Float::F16),
    affine(8, 32, Float::F32),
    affine(8, 64, Float::BF16),
    affine(8, 128, Float::F16),
    Dtype::Scaled(Scaled::Nvfp4),
    Dtype::Scaled(Scaled::Mxfp4),
    Dtype::Scaled(Scaled::Mxfp8),
    Dtype::ByteCodes { code: ByteCode::E4m3, group: 128 },
    Dtype::ByteCodes { code: ByteCode::I8, group: 256 },
    Dtype::Ggml(Type::Q4_0),
    Dtype::Ggml(Type::Q4_1),
    Dtype::Ggml(Type::Q5_0),
    Dtype::Ggml(Type::Q5_1),
    Dtype::Ggml(Type::Q2_K),
    Dtype::Ggml(Type::Q3_K),
    Dtype::Ggml(Type::Q4_K),
    Dtype::Ggml(Type::Q5_K),
    Dtype::Ggml(Type::Q6_K),
    Dtype::Ggml(Type::IQ4_NL),
    Dtype::Ggml(Type::IQ4_XS),
    Dtype::Ggml(Type::TQ1_0),
    Dtype::Ggml(Type::TQ2_0),
    Dtype::Ggml(Type::Q1_0),
    Dtype::Ggml(Type::Q2_0),
    Dtype::Ggml(Type::IQ1_S),
    Dtype::Ggml(Type::IQ1_M),
    Dtype::Ggml(Type::IQ2_XXS),
    Dtype::Ggml(Type::IQ2_XS),
    Dtype::Ggml(Type::IQ2_S),
    Dtype::Ggml(Type::IQ3_XXS),
    Dtype::Ggml(Type::IQ3_S),
    Dtype::Ggml(Type::MXFP4),
    Dtype::Ggml(Type::NVFP4),
];

fn some_bytes(n: usize, seed: u64) -> Vec<u8> {
    random(n, seed).iter().map(|v| ((v + 2.0) * 64.0) as u8).collect()
}

/// Random blocks of a type without an encoder, after one more byte.
fn some_blocks(ty: Type, len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = some_bytes(len, seed);
    let scales = random(len, seed + 1);
    for (block, d) in bytes[1..].chunks_exact_mut(ty.block_bytes() as usize).zip(scales) {
        match ty {
            // The scale is in four parts; it is finite if its exponent is not the largest.
            Type::IQ1_M => block[55] &= 0xbf,
            _ => block[..2].copy_from_slice(&half::f16::from_f32(d).to_le_bytes()),
        }
    }
    bytes
}

/// Drops the first byte, so that the rest is at an odd address.
fn skip_first_byte(bytes: Vec<u8>) -> Bytes {
    Bytes::from(bytes).slice(1..)
}

/// Random packed rows at an odd address.
pub(super) struct Packed {
    weight: Option<Weight>,
    dtype: Dtype,
    cols: usize,
    bytes: Vec<u8>,
}

impl Packed {
    pub(super) fn random(dtype: Dtype, n: usize, cols: usize, seed: u64) -> Self {
        let floats = |float: Float, n: usize, seed: u64| -> Vec<u8> {
            let pack = |v: f32| match float {
                Float::F32 => v.to_le_bytes().to_vec(),
                Float::F16 => half::f16::from_f32(v).to_le_bytes().to_vec(),
                Float::BF16 => half::bf16::from_f32(v).to_le_bytes().to_vec(),
            };
            [0].into_iter().chain(random(n, seed).into_iter().flat_map(pack)).collect()
        };
        match dtype {
            Dtype::Float(float) => Self { weight: None, dtype, cols, bytes: floats(float, n * cols, seed) },
            Dtype::Ggml(Type::Q8_0) => {
                let mut bytes = vec![0; 1 + n * dtype.row_bytes(cols)];
                decode::encode_scalar(dtype, &random(n * cols, seed), &mut bytes[1..]);
                Self { weight: None, dtype, cols, bytes }
            }
            Dtype::Affine { group, scales, .. } => {
                let codes = some_bytes(1 + n * dtype.row_bytes(cols), seed);
                let some = |seed| skip_first_byte(floats(scales, n * cols / group, seed));
                let weight =
                    Weight::new(dtype, (n, cols), skip_first_byte(codes), some(seed + 1), some(seed + 2));
                Self { weight: Some(weight.unwrap()), dtype, cols, bytes: Vec::new() }
            }
            Dtype::Scaled(format) => {
                let mut codes = some_bytes(1 + n * dtype.row_bytes(cols), seed);
                let mut scales = some_bytes(1 + n * cols / format.group(), seed + 1);
                if format == Scaled::Nvfp4 {
                    scales.iter_mut().for_each(|scale| *scale &= 0xdf);
                } else {
                    scales.iter_mut().for_each(|scale| *scale = 120 + *scale % 11);
                    // Exclude NaN from comparisons.
                    codes.iter_mut().filter(|code| **code & 0x7f == 0x7f).for_each(|code| *code = 0x7e);
                }
                let weight = Weight::new(
                    dtype,
                    (n, cols),
                    skip_first_byte(codes),
                    skip_first_byte(scales),
                    Bytes::new(),
                )
                .unwrap();
                let factor = if format == Scaled::Nvfp4 { 0.37 } else { 1.0 };
                Self { weight: Some(weight.with_factor(factor)), dtype, cols, bytes: Vec::new() }
            }
            Dtype::ByteCodes { code, .. } => {
                let mut codes = some_bytes(1 + n * dtype.row_bytes(cols), seed);
                if code == ByteCode::E4m3 {
                    codes.iter_mut().filter(|code| **code & 0x7f == 0x7f).for_each(|code| *code = 0x7e);
                }
                let scales = floats(Float::F32, n * dtype.row_scale_bytes(cols) / 4, seed + 1);
                let (codes, scales) = (skip_first_byte(codes), skip_first_byte(scales));
                let weight = Weight::new(dtype, (n, cols), codes, scales, Bytes::new());
                Self { weight: Some(weight.unwrap()), dtype, cols, bytes: Vec::new() }
            }
            Dtype::Ggml(ty) => {
                let mut bytes = vec![0; 1 + n * dtype.row_bytes(cols)];
                if ggml::encode(ty, &random(n * cols, seed), &mut bytes[1..]).is_err() {
                    bytes = some_blocks(ty, bytes.len(), seed);
                }
                let weight =
                    Weight::new(dtype, (n, cols), skip_first_byte(bytes), Bytes::new(), Bytes::new())
                        .unwrap();
                let factor = if ty == Type::NVFP4 { 0.37 } else { 1.0 };
                Self { weight: Some(weight.with_factor(factor)), dtype, cols, bytes: Vec::new() }
            }
        }
    }

    pub(super) fn rows(&self) -> Rows<'_> {
        match &self.weight {
            Some(weight) => Rows::of(weight),
            None => Rows::new(self.dtype, self.cols, &self.bytes[1..]),
        }
    }

    pub(super) fn decoded(&self, row: usize) -> Vec<f32> {
        let mut to = vec![0.0; self.cols];
        decode::scalar(&self.rows(), row, &mut to);
        to
    }
}

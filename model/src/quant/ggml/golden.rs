//! The vectors of tests/fixtures/ggml-quant. ggml's blocks must decode bit for bit. Our quantised blocks must
//! equal ggml's, or be no worse where scales are searched for.

use super::*;
use crate::quant::golden::{File, bits};

/// The types whose quantiser is a closed formula.
const EXACT: [Type; 14] = [
    Type::F16,
    Type::BF16,
    Type::Q4_0,
    Type::Q4_1,
    Type::Q5_0,
    Type::Q5_1,
    Type::Q8_0,
    Type::Q8_1,
    Type::Q8_K,
    Type::TQ1_0,
    Type::TQ2_0,
    Type::MXFP4,
    Type::NVFP4,
    Type::Q1_0,
];

fn open(name: &str) -> File {
    File::open_in("ggml-quant", &format!("{}.safetensors", name.to_lowercase()))
}

/// Returns all types of the vectors: not the plain ones beyond F16 and BF16, and not Q2_0, which is newer
/// than the vectors.
fn types() -> impl Iterator<Item = Type> {
    Type::ALL
        .iter()
        .copied()
        .filter(|ty| ty.is_quantised() && *ty != Type::Q2_0 || matches!(ty, Type::F16 | Type::BF16))
}

fn decode(ty: Type, bytes: &[u8]) -> Vec<f32> {
    let mut out = vec![0.0; bytes.len() / ty.block_bytes() as usize * ty.block_elements() as usize];
    decode_f32_into(ty, bytes, &mut out).unwrap();
    out
}

#[test]
fn blocks_decode_bit_for_bit() {
    let mut sets = 0;
    for ty in types() {
        let file = open(ty.as_str());
        for (blocks, expect) in [("blocks", "dequant"), ("rand_blocks", "rand_dequant")] {
            if file.has(blocks) {
                assert_eq!(bits(&decode(ty, file.bytes(blocks))), bits(&file.f32(expect)), "{ty} {blocks}");
                sets += 1;
            }
        }
    }
    assert_eq!(sets, 21 + 25);
}

#[test]
fn closed_formulas_make_the_same_bytes() {
    let input = open("input").f32("x");
    for ty in EXACT {
        let expect = open(ty.as_str());
        let mut made = vec![0; ty.row_bytes(input.len() as u64).unwrap() as usize];
        encode(ty, &input, &mut made).unwrap();
        assert_eq!(made, expect.bytes("blocks"), "{ty}");
    }
}

/// Returns the error of `values` relative to the row `x`.
fn relative_error(x: &[f32], values: &[f32]) -> f64 {
    let squares = |of: &dyn Fn(usize) -> f64| (0..x.len()).map(|i| of(i).powi(2)).sum::<f64>();
    let error = squares(&|i| f64::from(values[i]) - f64::from(x[i]));
    (error / squares(&|i| f64::from(x[i]))).sqrt()
}

#[test]
fn searches_find_scales_as_good() {
    let input = open("input").f32("x");
    for ty in [Type::Q2_K, Type::Q3_K, Type::Q4_K, Type::Q5_K, Type::Q6_K, Type::IQ4_NL, Type::IQ4_XS] {
        let expect = open(ty.as_str()).f32("dequant");
        let mut made = vec![0; ty.row_bytes(input.len() as u64).unwrap() as usize];
        encode(ty, &input, &mut made).unwrap();
        let values = decode(ty, &made);
        let slack = if ty == Type::Q2_K { 1.03 } else { 1.01 };
        for row in 0..4 {
            let row = 256 * row..256 * (row + 1);
            let (ours, theirs) = (
                relative_error(&input[row.clone()], &values[row.clone()]),
                relative_error(&input[row.clone()], &expect[row]),
            );
            assert!(ours <= theirs * slack, "{ty}: {ours} against {theirs}");
        }
    }
}

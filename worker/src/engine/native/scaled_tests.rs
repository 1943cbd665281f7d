//! Checkpoints of FP8 and int8 weights with separate scales: compared with transformers, which decodes them
//! to float32, and those that are refused.

use lode_kernels::Ops;
use lode_model::quant::float;
use lode_model::quant::scaled::Grid;
use lode_model::safetensors::Dtype;
use serde_json::json;

use super::load_tests::{Checkpoint, Stored, logits};
use super::tests::{checkpoint, exact_levels, expected, f32_cache, greedy, ids, step};
use super::*;

/// Blocks of 128 by 128 that are cut short at the edges, a scale for each row, and one for the tensor.
const FOLDERS: [&str; 4] = ["fp8-blocks", "fp8-channels", "fp8-tensors", "int8-channels"];
const WEIGHT: &str = "model.layers.1.mlp.down_proj.weight";

fn folder(name: &str) -> String {
    format!("tests/fixtures/scaled/{name}")
}

#[test]
fn scaled_checkpoints_give_the_results_of_transformers() {
    for name in FOLDERS {
        for ops in exact_levels() {
            let mut engine = load(&checkpoint(&folder(name)), LoadOptions { ops, ..f32_cache() }).unwrap();
            for case in expected(&folder(name))["cases"].as_array().unwrap() {
                let prompt = ids(&case["token_ids"]);
                let sequence = engine.open(prompt.len()).unwrap();
                let rows = step(engine.as_mut(), sequence, &prompt, RowSelection::Last);
                engine.close(sequence);
                let expect = case["last_logits"].as_array().unwrap();
                assert_eq!(rows[0].len(), expect.len());
                let errors =
                    rows[0].iter().zip(expect).map(|(a, b)| (f64::from(*a) - b.as_f64().unwrap()).abs());
                let error = errors.fold(0.0, f64::max);
                assert!(error <= 1e-4, "{name} {ops:?} {prompt:?}: {error}");
                let known = ids(&case["greedy"]);
                let n = if ops.name == "scalar" { 2 } else { known.len() };
                assert_eq!(greedy(engine.as_mut(), &prompt, n, &[]), known[..n], "{name} {prompt:?}");
            }
        }
    }
}

/// The same numbers, stored as float32.
fn floats(mut checkpoint: Checkpoint, block: [u64; 2]) -> Checkpoint {
    let scales: Vec<(String, Stored)> = checkpoint
        .tensors
        .iter()
        .filter(|(name, _)| name.contains("_scale"))
        .map(|(name, scales)| (name.clone(), scales.clone()))
        .collect();
    for (name, scales) in scales {
        checkpoint.tensors.remove(&name);
        let weight =
            checkpoint.tensors.get_mut(name.trim_end_matches("_inv").trim_end_matches("_scale")).unwrap();
        let grid = Grid::of(&weight.shape, &scales.shape, block).unwrap();
        let mut values = vec![0.0; weight.bytes.len()];
        grid.decode(weight.dtype, 0, &weight.bytes, &scales.numbers(), &mut values).unwrap();
        *weight = Stored::f32s(&weight.shape, &values);
    }
    checkpoint
}

/// Codes give the bits of the floats that they stand for. The codes and the scales are in different files, as
/// Lode stores them.
#[test]
fn codes_run_as_they_decode() {
    for name in FOLDERS {
        let (scaled, place) = (Checkpoint::read(&folder(name)), tempfile::tempdir().unwrap());
        let files = scaled.blobs(place.path(), |name| (name.to_owned(), Some(name.to_owned()), 1));
        let found = logits(&files);
        let other = tempfile::tempdir().unwrap();
        assert!(found == logits(&floats(scaled, [128, 128]).whole(other.path())), "{name}");
    }
}

/// Other blocks, and the scales' other types.
#[test]
fn scales_of_every_form_are_applied() {
    type Change = fn(&mut Checkpoint);
    let cases: [(Change, [u64; 2]); 4] = [
        (
            |c| {
                c.config["quantization_config"]["weight_block_size"] = json!([16, 32]);
                let scales: Vec<f32> = (0..10 * 6).map(|n| 0.001 + n as f32 * 1e-4).collect();
                c.tensors.insert(format!("{WEIGHT}_scale_inv"), Stored::f32s(&[10, 6], &scales));
                c.tensors.retain(|name, _| name.starts_with(WEIGHT) || !name.contains("_scale"));
                decode_others(c);
            },
            [16, 32],
        ),
        (
            |c| {
                let bytes = [0.002f32, 0.003, 0.001, 0.004].map(|v| half::bf16::from_f32(v).to_le_bytes());
                let scales = Stored { dtype: Dtype::BF16, shape: vec![2, 2], bytes: bytes.concat() };
                c.tensors.insert(format!("{WEIGHT}_scale_inv"), scales);
            },
            [128, 128],
        ),
        (
            |c| {
                c.tensors.remove(&format!("{WEIGHT}_scale_inv"));
                let scales: Vec<f32> = (0..160).map(|n| 0.001 + n as f32 * 1e-5).collect();
                c.tensors.insert(format!("{WEIGHT}_scale"), Stored::f32s(&[160], &scales));
            },
            [128, 128],
        ),
        (
            |c| {
                let codes = c.tensors.get_mut(WEIGHT).unwrap();
                codes.dtype = Dtype::I8;
                let points = Stored { dtype: Dtype::I8, shape: vec![160, 1], bytes: vec![0; 160] };
                c.tensors.insert(format!("{WEIGHT}_zero_point"), points);
            },
            [128, 128],
        ),
    ];
    for (change, block) in cases {
        let mut scaled = Checkpoint::read(&folder("fp8-blocks"));
        change(&mut scaled);
        let (place, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let found = logits(&scaled.whole(place.path()));
        assert!(found == logits(&floats(scaled, block).whole(other.path())), "{block:?}");
    }
}

/// Replaces the codes that have no scales by floats.
fn decode_others(checkpoint: &mut Checkpoint) {
    let without: Vec<String> = checkpoint
        .tensors
        .iter()
        .filter(|(name, tensor)| tensor.dtype == Dtype::F8_E4M3 && *name != WEIGHT)
        .map(|(name, _)| name.clone())
        .collect();
    for name in without {
        let tensor = checkpoint.tensors.get_mut(&name).unwrap();
        let values: Vec<f32> = tensor.bytes.iter().map(|code| float::e4m3_to_f32(*code) * 0.002).collect();
        *tensor = Stored::f32s(&tensor.shape, &values);
    }
}

#[test]
fn scales_that_do_not_fit_are_refused_with_a_reason() {
    type Change = fn(&mut Checkpoint);
    fn scale(c: &mut Checkpoint, shape: &[u64], value: f32) {
        let count = shape.iter().product::<u64>() as usize;
        c.tensors.insert(format!("{WEIGHT}_scale_inv"), Stored::f32s(shape, &vec![value; count]));
    }
    let cases: &[(Change, &str)] = &[
        (
            |c| drop(c.tensors.remove(&format!("{WEIGHT}_scale_inv"))),
            "tensor `model.layers.1.mlp.down_proj.weight`: its scales are missing: neither \
             `model.layers.1.mlp.down_proj.weight_scale_inv` nor `model.layers.1.mlp.down_proj.weight_scale`",
        ),
        (
            |c| drop(c.tensors.insert(format!("{WEIGHT}_scale"), Stored::f32s(&[1], &[1.0]))),
            "it has two tensors of scales: `model.layers.1.mlp.down_proj.weight_scale_inv` and \
             `model.layers.1.mlp.down_proj.weight_scale`",
        ),
        (
            |c| scale(c, &[3, 2], 1.0),
            "its shape [160, 192] does not go with scales `model.layers.1.mlp.down_proj.weight_scale_inv` of [3, 2]: \
             expected one, one a row, or one for each block of 128 by 128",
        ),
        (|c| scale(c, &[2, 1, 1], 1.0), "of [2, 1, 1]: expected one"),
        (|c| scale(c, &[0, 2], 1.0), "of [0, 2]: expected one"),
        (
            |c| c.config["quantization_config"]["weight_block_size"] = json!([64, 64]),
            "expected one, one a row, or one for each block of 64 by 64",
        ),
        (
            |c| c.config["quantization_config"]["weight_block_size"] = json!([0, 128]),
            "`config.json` gives the blocks of scaled weights as [0,128], expected one size of two numbers",
        ),
        (
            |c| c.config["quantization_config"]["weight_block_size"] = json!(u64::MAX),
            "`config.json` gives the blocks of scaled weights as 18446744073709551615",
        ),
        (
            |c| {
                c.config["quantization_config"]["weight_block_size"] = json!([1, 1]);
                for (name, shape) in
                    c.tensors.iter().map(|(name, t)| (name.clone(), t.shape.clone())).collect::<Vec<_>>()
                {
                    if name.ends_with("_proj.weight") {
                        let count = shape.iter().product::<u64>() as usize;
                        c.tensors
                            .insert(format!("{name}_scale_inv"), Stored::f32s(&shape, &vec![1.0; count]));
                    }
                }
            },
            "it has rows of 160 codes and a scale for each 1 of them, expected multiples of 32",
        ),
        (
            |c| scale(c, &[2, 2], f32::NAN),
            "weight_scale_inv`: scale 0 is NaN, expected a number of at least 0",
        ),
        (|c| scale(c, &[2, 2], -1.0), "weight_scale_inv`: scale 0 is -1, expected a number of at least 0"),
        (
            |c| {
                let scales = Stored { dtype: Dtype::I32, shape: vec![2, 2], bytes: vec![0; 16] };
                c.tensors.insert(format!("{WEIGHT}_scale_inv"), scales);
            },
            "weight_scale_inv`: its scales are I32, expected F32, BF16, F16 or F8_E8M0",
        ),
        (
            |c| c.tensors.get_mut(WEIGHT).unwrap().dtype = Dtype::F8_E5M2,
            "tensor `model.layers.1.mlp.down_proj.weight` has dtype F8_E5M2, which is not supported",
        ),
        (
            |c| {
                let points = Stored { dtype: Dtype::I8, shape: vec![160, 1], bytes: vec![1; 160] };
                c.tensors.insert(format!("{WEIGHT}_zero_point"), points);
            },
            "weight_zero_point`: it is not zero: asymmetric weights of 8 bits are not supported",
        ),
        (
            |c| {
                let weights = json!({"num_bits": 8, "type": "int", "symmetric": false});
                c.config["quantization_config"]["config_groups"] = json!({"group_0": {"weights": weights}});
            },
            "`config.json` describes asymmetric weights of 8 bits, which is not supported",
        ),
        (
            |c| {
                c.config["quantization_config"]["transform_config"] = json!({"config_groups": {"R1": {}}});
            },
            "`config.json` has a `transform_config`: its weights are rotated, which is not supported",
        ),
    ];
    let place = tempfile::tempdir().unwrap();
    for (change, expect) in cases {
        let mut checkpoint = Checkpoint::read(&folder("fp8-blocks"));
        change(&mut checkpoint);
        let error = load(&checkpoint.whole(place.path()), f32_cache()).err().expect(expect).to_string();
        assert!(error.contains(expect), "{error}\n  expected {expect}");
    }
}

/// Codes that stand for no number stop the sequences that use them, as in every other format.
#[test]
fn nan_codes_stop_the_sequence() {
    let mut checkpoint = Checkpoint::read(&folder("fp8-blocks"));
    checkpoint.tensors.get_mut(WEIGHT).unwrap().bytes[5] = 0x7f;
    let place = tempfile::tempdir().unwrap();
    let mut engine = load(&checkpoint.whole(place.path()), f32_cache()).unwrap();
    let sequence = engine.open(4).unwrap();
    let slice = Slice { sequence, tokens: &[1, 2], want: RowSelection::Last };
    assert!(engine.step(&[slice]).unwrap().last(0).is_err());
}

/// A stack of experts has blocks of its own for each expert.
#[test]
fn experts_have_their_own_scales() {
    let name = "model.layers.0.mlp.experts.up_proj.weight";
    let codes: Vec<u8> = (0..3 * 40 * 64).map(|n| (n * 31 % 127 + n % 2 * 128) as u8).collect();
    let scales: Vec<f32> = (0..3 * 2 * 2).map(|n| 0.5 + n as f32).collect();
    let stack = Stored { dtype: Dtype::F8_E4M3, shape: vec![3, 40, 64], bytes: codes.clone() };
    let config = json!({"quantization_config": {"weight_block_size": [32, 32]}});
    let tensors =
        [(name.to_owned(), stack), (format!("{name}_scale_inv"), Stored::f32s(&[3, 2, 2], &scales))];
    let place = tempfile::tempdir().unwrap();
    let files = Checkpoint { config, tensors: tensors.into_iter().collect() }.whole(place.path());
    let block = Config::parse(&files.config_json).unwrap().scale_block();
    let mut mapped = MappedTensors::open(&files.tensors).unwrap().with_scale_block(block);
    let mut all = vec![0.0; codes.len()];
    let grid = Grid::of(&[3, 40, 64], &[3, 2, 2], [32, 32]).unwrap();
    grid.decode(Dtype::F8_E4M3, 0, &codes, &scales, &mut all).unwrap();
    for expert in 0..3 {
        use crate::arch::Tensors;
        let weight =
            mapped.matrix(&format!("model.layers.0.mlp.experts.{expert}.up_proj.weight"), 40, 64).unwrap();
        for row in 0..40 {
            let mut found = vec![0.0; 64];
            Ops::best().decode_row(&lode_kernels::Rows::of(&weight), row, &mut found);
            assert_eq!(found, all[(expert * 40 + row) * 64..][..64], "{expert} {row}");
        }
    }
}

//! Whole models with packed weights on the CUDA back end, on the emulator of its kernels. The kernels do not round
//! activations, so that the results are those of the floats that the codes stand for.

use lode_model::quant::Kind;
use lode_model::safetensors::Dtype;

use super::cuda_tests::{emulated, options};
use super::gguf_tests::{Activations, MODELS, compare, fixture, gguf};
use super::load_tests::{Checkpoint, packed};
use super::tests::{checkpoint, exact_levels, expected, f32_cache, greedy, ids, step};
use super::*;

const DEMO: &str = "tests/models/lode-demo";

/// The largest difference between two rows of logits.
fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// The logits after a prompt, and the ids that follow it.
fn outputs(engine: &mut dyn Engine, prompt: &[u32], n: usize) -> (Vec<f32>, Vec<u32>) {
    let sequence = engine.open(prompt.len()).unwrap();
    let row = step(engine, sequence, prompt, RowSelection::Last).remove(0);
    engine.close(sequence);
    (row, greedy(engine, prompt, n, &[]))
}

/// Within the bound of exact activations; `wide-k` has a matrix in each of thirteen formats.
#[test]
fn gguf_files_give_the_results_of_the_reference() {
    for name in MODELS {
        // A prompt of 8 tokens, and for the formats one of 40, which is computed in tiles.
        let (cases, steps) = if name == "wide-k" { (2, 2) } else { (1, 3) };
        let Some(mut engine) = emulated(&gguf(&[fixture(name)]), &options(KvType::F32)) else { return };
        compare(name, engine.as_mut(), Activations::Floats, cases, steps);
    }
}

#[test]
fn packed_safetensors_give_the_results_of_their_floats() {
    for form in [
        (Kind::Int4, 32, Dtype::BF16),
        (Kind::Int4, 64, Dtype::F32),
        (Kind::Int8, 64, Dtype::BF16),
        (Kind::Int8, 32, Dtype::F16),
        (Kind::Nvfp4, 16, Dtype::U8),
        (Kind::Mxfp4, 32, Dtype::U8),
        (Kind::Mxfp8, 32, Dtype::U8),
    ] {
        let (folder, decoded) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (files, plain) = packed(Checkpoint::read("tests/fixtures/arch/llama"), form, 1, folder.path());
        let Some(mut engine) = emulated(&files, &options(KvType::F32)) else { return };
        let mut cpu = load(&plain.whole(decoded.path()), f32_cache()).unwrap();
        let prompt = [3, 1, 4, 1, 5];
        let (found, expect) = (outputs(engine.as_mut(), &prompt, 3), outputs(cpu.as_mut(), &prompt, 3));
        let error = distance(&found.0, &expect.0);
        assert!(error <= 1e-4, "{form:?}: {error}");
        assert_eq!(found.1, expect.1, "{form:?}");
    }
}

#[test]
fn checkpoints_with_scales_give_the_results_of_transformers() {
    for name in ["fp8-blocks", "fp8-channels", "fp8-tensors", "int8-channels"] {
        let folder = format!("tests/fixtures/scaled/{name}");
        let Some(mut engine) = emulated(&checkpoint(&folder), &options(KvType::F32)) else { return };
        let case = &expected(&folder)["cases"][0];
        let (row, found) = outputs(engine.as_mut(), &ids(&case["token_ids"]), 3);
        let expect: Vec<f32> =
            case["last_logits"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect();
        let error = distance(&row, &expect);
        assert!(error <= 1e-4, "{name}: {error}");
        assert_eq!(found, ids(&case["greedy"])[..3], "{name}");
    }
}

/// As trained, in BF16, and in the formats of `lode quantise`.
#[test]
fn the_demo_model_gives_its_outputs() {
    let options = options(KvType::F16);
    let case = &expected(DEMO)["cases"][0];
    let (prompt, known) = (ids(&case["prompt_ids"]), ids(&case["answer_ids"]));
    let Some(mut engine) = emulated(&checkpoint(DEMO), &options) else { return };
    assert_eq!(greedy(engine.as_mut(), &prompt, known.len() + 1, &[0, 2]), known);

    for form in [(Kind::Int4, 64, Dtype::BF16), (Kind::Int8, 64, Dtype::BF16)] {
        let (folder, decoded) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (files, plain) = packed(Checkpoint::read(DEMO), form, 0, folder.path());
        let exact = LoadOptions { ops: exact_levels()[0], ..f32_cache() };
        let mut cpu = load(&plain.whole(decoded.path()), exact).unwrap();
        let mut engine = emulated(&files, &options).unwrap();
        let prompt = &prompt[..12];
        assert_eq!(greedy(engine.as_mut(), prompt, 4, &[]), greedy(cpu.as_mut(), prompt, 4, &[]), "{form:?}");
    }
}

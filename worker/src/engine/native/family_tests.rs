//! Compares every family with the results of transformers: alone and batched, whole and in pieces, with each
//! cache type. The checkpoints are tiny and random; the expected results come from float32 arithmetic.

use lode_kernels::Ops;
use serde_json::{Value, json};

use super::load_tests::{Checkpoint, Stored};
use super::tests::{checkpoint, exact_levels, expected, f32_cache, greedy, ids, step};
use super::*;

const FAMILIES: &[&str] =
    &["mistral-swa", "mixtral", "qwen2", "qwen2-yarn", "qwen3", "qwen3-moe", "gemma2", "gemma3", "phi3"];

fn folder(family: &str) -> String {
    format!("tests/fixtures/arch/{family}")
}

fn cases(family: &str) -> Vec<Value> {
    expected(&folder(family))["cases"].as_array().unwrap().clone()
}

fn engine(family: &str, options: LoadOptions) -> Box<dyn Engine> {
    load(&checkpoint(&folder(family)), options).unwrap()
}

#[test]
fn logits_and_greedy_ids_of_every_family() {
    for family in FAMILIES {
        let bound = if expected(&folder(family))["weights"] == "F32" { 1e-4 } else { 5e-4 };
        for ops in exact_levels() {
            let mut engine = engine(family, LoadOptions { ops, ..f32_cache() });
            for case in cases(family) {
                let prompt = ids(&case["token_ids"]);
                let sequence = engine.open(prompt.len()).unwrap();
                let rows = step(engine.as_mut(), sequence, &prompt, RowSelection::Last);
                engine.close(sequence);
                let expect = case["last_logits"].as_array().unwrap();
                assert_eq!(rows[0].len(), expect.len());
                let errors =
                    rows[0].iter().zip(expect).map(|(a, b)| (f64::from(*a) - b.as_f64().unwrap()).abs());
                let error = errors.fold(0.0, f64::max);
                assert!(error <= bound, "{family} {ops:?} {prompt:?}: {error}");
                let greedy_ids = ids(&case["greedy"]);
                // The scalar kernels are slow; a few tokens beyond the window are enough.
                let n = if ops.name == "scalar" { 3 } else { greedy_ids.len() };
                assert_eq!(greedy(engine.as_mut(), &prompt, n, &[]), greedy_ids[..n], "{family} {prompt:?}");
            }
        }
    }
}

/// A sequence's results do not depend on the other sequences in a step, nor on how its prompt is split.
#[test]
fn results_do_not_depend_on_batch_or_pieces() {
    for family in FAMILIES {
        let mut engine = engine(family, f32_cache());
        let prompts: Vec<Vec<u32>> = cases(family).iter().map(|case| ids(&case["token_ids"])).collect();
        let alone: Vec<Vec<Vec<f32>>> = prompts
            .iter()
            .map(|prompt| {
                let sequence = engine.open(prompt.len()).unwrap();
                let rows = step(engine.as_mut(), sequence, prompt, RowSelection::All);
                engine.close(sequence);
                rows
            })
            .collect();
        for size in [1, 7, 40] {
            let open: Vec<SequenceId> = prompts.iter().map(|p| engine.open(p.len()).unwrap()).collect();
            let mut together: Vec<Vec<Vec<f32>>> = vec![Vec::new(); prompts.len()];
            let longest = prompts.iter().map(Vec::len).max().unwrap();
            for at in (0..longest).step_by(size) {
                let going: Vec<usize> = (0..prompts.len()).filter(|p| at < prompts[*p].len()).collect();
                let slice = |p: &usize| {
                    let tokens = &prompts[*p][at..prompts[*p].len().min(at + size)];
                    Slice { sequence: open[*p], tokens, want: RowSelection::All }
                };
                let logits = engine.step(&going.iter().map(slice).collect::<Vec<_>>()).unwrap();
                for (index, p) in going.iter().enumerate() {
                    together[*p].extend(logits.rows(index).unwrap().map(<[f32]>::to_vec));
                }
            }
            open.into_iter().for_each(|sequence| engine.close(sequence));
            assert!(alone == together, "{family} in pieces of {size}");
        }
    }
}

/// A multimodal Gemma 3 has the same decoder under other tensor names, and a short configuration.
#[test]
fn text_part_of_a_multimodal_model() {
    let place = tempfile::tempdir().unwrap();
    let mut text = Checkpoint::read(&folder("gemma3"));
    let files = text.whole(place.path());
    let known = {
        let mut engine = load(&files, f32_cache()).unwrap();
        let sequence = engine.open(40).unwrap();
        step(engine.as_mut(), sequence, &[5; 40], RowSelection::Last)
    };
    let inner = text.config.take();
    text.config = json!({"architectures": ["Gemma3ForConditionalGeneration"], "text_config": inner});
    text.tensors = text.tensors.into_iter().map(|(name, t)| (format!("language_model.{name}"), t)).collect();
    // Its scores are a quarter of the other's: the square root of 256 instead of 16. A larger q compensates
    // for that.
    for (name, tensor) in &mut text.tensors {
        if name.ends_with("q_norm.weight") {
            let weights: Vec<f32> = tensor.numbers().iter().map(|w| (1.0 + w) * 4.0 - 1.0).collect();
            *tensor = Stored::f32s(&tensor.shape.clone(), &weights);
        }
    }
    let inner = text.config["text_config"].as_object_mut().unwrap();
    for field in ["max_position_embeddings", "query_pre_attn_scalar", "tie_word_embeddings", "layer_types"] {
        inner.remove(field);
    }
    let options = LoadOptions { context_length: Some(512), ..f32_cache() };
    let mut engine = load(&text.whole(place.path()), options).unwrap();
    let sequence = engine.open(40).unwrap();
    let found = step(engine.as_mut(), sequence, &[5; 40], RowSelection::Last);
    for (found, known) in found[0].iter().zip(&known[0]) {
        assert!((found - known).abs() < 1e-3, "{found} {known}");
    }
}

/// Asserts the normalised mean squared error of the logits after each prompt.
fn check_errors(family: &str, options: LoadOptions, bound: f64) {
    let (kv_type, ops) = (options.kv_type, options.ops);
    let mut engine = engine(family, options);
    for case in cases(family) {
        let prompt = ids(&case["token_ids"]);
        let sequence = engine.open(prompt.len()).unwrap();
        let row = step(engine.as_mut(), sequence, &prompt, RowSelection::Last).remove(0);
        engine.close(sequence);
        let expect = case["last_logits"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap());
        let size: f64 = expect.clone().map(|v| v * v).sum();
        let error = expect.zip(&row).map(|(a, b)| (a - f64::from(*b)).powi(2)).sum::<f64>() / size;
        assert!(error <= bound, "{family} {ops:?} {kv_type} {prompt:?}: {error:e}");
    }
}

#[test]
fn smaller_caches_stay_close_in_every_family() {
    for family in FAMILIES {
        for (kv_type, bound) in [(KvType::F16, 1e-4), (KvType::Q8_0, 1e-2)] {
            check_errors(family, LoadOptions { kv_type, ops: exact_levels()[0], ..f32_cache() }, bound);
        }
    }
}

/// The best instruction level may round activations for BF16 weights.
#[test]
fn rounded_activations_stay_close_in_every_family() {
    for family in FAMILIES.iter().chain(&["llama3-rope"]) {
        // The router of a mixture may weigh nearly equal experts differently.
        let bound = if expected(&folder(family))["weights"] == "F32" { 1e-9 } else { 4e-4 };
        check_errors(family, LoadOptions { ops: Ops::best(), ..f32_cache() }, bound);
    }
}

//! Whole models on the CUDA back end, on the emulator of its kernels: the results of transformers for every family,
//! alone and together, with shared prefixes and after a cancelled step. Each launch runs twice on the host, so
//! that prompts are cut and the context is short.

use std::sync::{Arc, Mutex};

use lode_kernels::DeviceError;
use lode_kernels::cuda::{Address, Cuda, DeviceMemory, Driver, Launch, Program};
use serde_json::Value;

use super::tests::{checkpoint, expected, greedy, ids, step};
use super::*;

/// The file of the kernels' tests. Only what these tests need of it is used here.
#[path = "../../../kernels/src/cuda/emulator/mod.rs"]
#[allow(dead_code, reason = "shared with the tests of the kernels, which use all of it")]
mod emulator;
use emulator::{Compiler, Emulator, compiler};

const FAMILIES: [&str; 11] = [
    "llama",
    "llama3-rope",
    "mistral-swa",
    "mixtral",
    "qwen2",
    "qwen2-yarn",
    "qwen3",
    "qwen3-moe",
    "gemma2",
    "gemma3",
    "phi3",
];

/// `None` if this machine cannot compile the kernels for the emulator; the kernels' tests report it as skipped.
fn engine(family: &str, kv_type: KvType) -> Option<Box<dyn Engine>> {
    engine_of(&folder(family), kv_type)
}

fn engine_of(folder: &str, kv_type: KvType) -> Option<Box<dyn Engine>> {
    emulated(&checkpoint(folder), &options(kv_type))
}

/// An engine on the emulator; `None` as for [`engine`].
pub(crate) fn emulated(files: &ModelFiles, options: &LoadOptions) -> Option<Box<dyn Engine>> {
    let Compiler::Found(_) = compiler() else { return None };
    Some(load_on(Emulator::new(), files, options).unwrap())
}

/// The kernels that an engine launches, and their arguments.
pub(super) type Launches = Arc<Mutex<Vec<(String, Vec<u8>)>>>;

/// As [`emulated`], with the launches.
pub(super) fn counted(files: &ModelFiles, options: &LoadOptions) -> Option<(Box<dyn Engine>, Launches)> {
    let Compiler::Found(_) = compiler() else { return None };
    let device = Emulator::new();
    let launches = device.launches();
    Some((load_on(device, files, options).unwrap(), launches))
}

/// The smallest checkpoint.
pub(crate) fn llama_files() -> ModelFiles {
    checkpoint(&folder("llama"))
}

/// A context and a number of sequences that are enough for these tests.
pub(crate) fn options(kv_type: KvType) -> LoadOptions {
    LoadOptions { kv_type, context_length: Some(64), max_sequences: 3, ..LoadOptions::default() }
}

fn load_on<D: Driver + 'static>(
    device: D,
    files: &ModelFiles,
    options: &LoadOptions,
) -> Result<Box<dyn Engine>, LoadError> {
    let opened = open(files).unwrap();
    Ok(Box::new(Native::load(opened, options, Cuda::new(device).unwrap())?))
}

fn folder(family: &str) -> String {
    format!("tests/fixtures/arch/{family}")
}

fn cases(family: &str) -> Vec<Value> {
    expected(&folder(family))["cases"].as_array().unwrap().clone()
}

/// The largest difference from the logits that a case expects.
fn error(row: &[f32], case: &Value) -> f64 {
    let expect = case["last_logits"].as_array().unwrap();
    assert_eq!(row.len(), expect.len());
    row.iter().zip(expect).map(|(a, b)| (f64::from(*a) - b.as_f64().unwrap()).abs()).fold(0.0, f64::max)
}

#[test]
fn every_family_gives_the_results_of_transformers() {
    for family in FAMILIES {
        let Some(mut engine) = engine(family, KvType::F32) else { return };
        let bound = if expected(&folder(family))["weights"] == "F32" { 1e-4 } else { 5e-4 };
        // 8 tokens, and 40, which are more than the windows of the models and a tile of columns.
        for case in &cases(family)[..2] {
            let prompt = ids(&case["token_ids"]);
            let sequence = engine.open(prompt.len()).unwrap();
            let rows = step(engine.as_mut(), sequence, &prompt, RowSelection::Last);
            engine.close(sequence);
            let error = error(&rows[0], case);
            assert!(error <= bound, "{family}, {} tokens: {error}", prompt.len());
        }
        let case = &cases(family)[0];
        let wanted = &ids(&case["greedy"])[..2];
        assert_eq!(greedy(engine.as_mut(), &ids(&case["token_ids"]), 2, &[]), wanted, "{family}");
    }
}

/// As on the CPU, a sequence depends on its own tokens alone: not on the others of a step, nor on where its prompt
/// was cut, nor on whether its beginning was computed for another sequence.
#[test]
fn sequences_do_not_depend_on_each_other() {
    for family in ["llama", "qwen3-moe"] {
        let Some(mut engine) = engine(family, KvType::F32) else { return };
        let prompt = &ids(&cases(family)[0]["token_ids"])[..];
        let alone = engine.open(64).unwrap();
        let expect = step(engine.as_mut(), alone, prompt, RowSelection::Last);

        let (head, tail) = prompt.split_at(prompt.len() / 2);
        let parts = engine.open(64).unwrap();
        step(engine.as_mut(), parts, head, RowSelection::Nothing);
        let shared = engine.fork(parts, head.len(), 64).unwrap();
        let slice = |sequence, tokens| Slice { sequence, tokens, want: RowSelection::Last };
        // The first sequence goes on in the same step.
        let logits =
            engine.step(&[slice(alone, &prompt[..1]), slice(parts, tail), slice(shared, tail)]).unwrap();
        for index in [1, 2] {
            assert_eq!(logits.last(index).unwrap().unwrap(), expect[0], "{family}, {index}");
        }

        // A cancelled step appends nothing, and the next one computes the same.
        engine.truncate(shared, head.len());
        let cancelled = engine.step_unless(&|| true, &[slice(shared, tail)]);
        assert_eq!(cancelled.unwrap_err(), StepError::Cancelled);
        assert_eq!(engine.len(shared), head.len());
        assert_eq!(step(engine.as_mut(), shared, tail, RowSelection::Last), expect, "{family}");
    }
}

#[test]
fn a_cache_of_halves_and_of_blocks_gives_close_logits() {
    for (kv_type, bound) in [(KvType::F16, 0.02), (KvType::Q8_0, 0.2)] {
        let Some(mut engine) = engine("llama", kv_type) else { return };
        let case = &cases("llama")[0];
        let prompt = ids(&case["token_ids"]);
        let sequence = engine.open(prompt.len()).unwrap();
        let rows = step(engine.as_mut(), sequence, &prompt, RowSelection::Last);
        let error = error(&rows[0], case);
        assert!(error > 0.0 && error < bound, "{kv_type:?}: {error}");
    }
}

#[test]
fn the_memory_on_the_device_is_reported() {
    let Some(engine) = engine("llama", KvType::F32) else { return };
    let info = engine.info();
    let cache = 3 * 64 * info.kv_bytes_per_token as u64;
    // Rows of weights are padded to whole units.
    let weights = info.device_bytes - cache;
    assert!((info.weights_bytes..2 * info.weights_bytes).contains(&weights), "{info:?}");
    assert_eq!(info.device, "emulator");
}

#[test]
fn a_model_that_does_not_fit_the_device_is_not_loaded() {
    let Compiler::Found(_) = compiler() else { return };
    let (device, files) = (Emulator::with_memory(100_000), checkpoint(&folder("llama")));
    let error = load_on(device, &files, &options(KvType::F32)).err().unwrap();
    assert!(matches!(error, LoadError::Device(DeviceError::OutOfMemory { .. })), "{error}");
    assert!(error.to_string().contains("use a shorter context or a smaller model"), "{error}");
}

/// Each failure of the device is the error of the step; nothing works after it, so that the runner ends.
#[test]
fn a_failure_of_the_device_ends_the_engine() {
    let Compiler::Found(_) = compiler() else { return };
    for failure in [
        DeviceError::Lost { device: "emulator".into(), reason: "unplugged".into() },
        DeviceError::Fault { kernel: "rms_norm".into(), reason: "an illegal access".into() },
        DeviceError::OutOfMemory { what: "activations", wanted_bytes: 1 << 40 },
    ] {
        let mut device = Emulator::new();
        device.plan_failure(failure.clone());
        let mut engine = load_on(device, &checkpoint(&folder("llama")), &options(KvType::F32)).unwrap();
        let sequence = engine.open(8).unwrap();
        let slice = Slice { sequence, tokens: &[1, 2], want: RowSelection::Last };
        for _ in 0..2 {
            let error = engine.step(&[slice]).unwrap_err();
            assert_eq!(error, StepError::Device(failure.clone()));
        }
    }
}

#[test]
fn classification_heads_give_the_results_of_transformers() {
    for name in ["bert", "xlm-roberta"] {
        let folder = format!("tests/fixtures/reranker/{name}");
        let Some(mut engine) = engine_of(&folder, KvType::F32) else { return };
        let cases = expected(&folder)["cases"].as_array().unwrap().clone();
        // Two pairs of at most 26 tokens in one step.
        let pairs = [0, 3].map(|at| {
            let (tokens, types) = (ids(&cases[at]["token_ids"]), ids(&cases[at]["type_ids"]));
            let second = types.iter().filter(|kind| **kind == 0).count();
            (engine.open(tokens.len()).unwrap(), tokens, second, cases[at]["logits"][0].as_f64().unwrap())
        });
        let slices = pairs.each_ref().map(|(sequence, tokens, second, _)| Slice {
            sequence: *sequence,
            tokens,
            want: RowSelection::Score { second: *second },
        });
        let rows = engine.step(&slices).unwrap();
        for (at, (.., known)) in pairs.iter().enumerate() {
            let found = f64::from(rows.rows(at).unwrap().next().unwrap()[0]);
            assert!((found - known).abs() < 1e-4, "{name}: {found} {known}");
        }
    }
}

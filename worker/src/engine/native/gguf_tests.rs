//! GGUF files: comparisons of whole models with the reference, split files, and refused files.

use std::path::{Path, PathBuf};

use lode_kernels::Ops;
use lode_model::gguf::{Header, Metadata, NewTensor, Value};
use lode_model::quant::ggml::{self, Type};
use serde_json::Value as Json;

use super::tests::{f32_cache, repository};
use super::*;
use crate::engine::{BlobFile, ModelFiles};

pub(super) fn gguf(paths: &[PathBuf]) -> ModelFiles {
    let file = |path: &PathBuf| BlobFile {
        path: path.clone(),
        name: None,
        whole_file: true,
        format: Format::Gguf,
        extent: None,
    };
    ModelFiles { config_json: Vec::new(), tensors: paths.iter().map(file).collect() }
}

pub(super) fn fixture(name: &str) -> PathBuf {
    repository("tests/fixtures/gguf").join(format!("{name}.gguf"))
}

fn ids(value: &Json) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect()
}

fn floats(value: &Json) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

fn log_probabilities(logits: &[f64]) -> Vec<f64> {
    let max = logits.iter().copied().fold(f64::MIN, f64::max);
    let sum: f64 = logits.iter().map(|v| (v - max).exp()).sum();
    logits.iter().map(|v| v - max - sum.ln()).collect()
}

/// Normalised mean squared error of log-probabilities against the reference.
fn nmse(found: &[f32], expect: &[f64]) -> f64 {
    let found: Vec<f64> = found.iter().map(|v| f64::from(*v)).collect();
    let (found, expect) = (log_probabilities(&found), log_probabilities(expect));
    let size: f64 = expect.iter().map(|v| v * v).sum();
    found.iter().zip(&expect).map(|(a, b)| (a - b).powi(2)).sum::<f64>() / size
}

fn last(engine: &mut dyn Engine, sequence: SequenceId, tokens: &[u32]) -> Vec<f32> {
    let logits = engine.step(&[Slice { sequence, tokens, want: RowSelection::Last }]).unwrap();
    logits.last(0).unwrap().unwrap().to_vec()
}

/// The type of the activations, which determines how far results may differ from the exact reference.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Activations {
    Floats,
    EightBits,
}

fn check(name: &str, files: &ModelFiles, options: LoadOptions, activations: Activations) {
    compare(name, load(files, options).unwrap().as_mut(), activations, usize::MAX, usize::MAX);
}

/// Compares the first cases and their first steps with the reference. Every step continues with the reference's
/// token, so that one difference does not affect later steps.
pub(super) fn compare(
    name: &str,
    engine: &mut dyn Engine,
    activations: Activations,
    cases: usize,
    steps: usize,
) {
    let has_experts = name.contains("mixtral") || name.contains("moe");
    let bound = match activations {
        Activations::Floats => 1e-6,
        // The router may select another expert.
        Activations::EightBits if has_experts => 3e-2,
        Activations::EightBits => 1e-2,
    };
    let reference = std::fs::read(fixture(name).with_extension("expected.json")).unwrap();
    let reference: Json = serde_json::from_slice(&reference).unwrap();
    for case in reference["cases"].as_array().unwrap().iter().take(cases) {
        let (prompt, greedy) = (ids(&case["token_ids"]), ids(&case["greedy"]));
        let margins = floats(&case["greedy_margin"]);
        let sequence = engine.open(prompt.len() + greedy.len()).unwrap();
        let mut row = last(engine, sequence, &prompt);
        let error = nmse(&row, &floats(&case["last_logits"]));
        assert!(error <= bound, "{name} {prompt:?}: {error:e}");
        for (next, margin) in greedy.into_iter().zip(margins).take(steps) {
            let found = (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap();
            let is_close = activations == Activations::EightBits || margin <= 1e-3;
            assert!(is_close || found as u32 == next, "{name} {prompt:?}: {found}, expected {next}");
            row = last(engine, sequence, &[next]);
        }
        engine.close(sequence);
    }
}

pub(super) const MODELS: [&str; 11] = [
    "llama-q8_0",
    "llama3-rope-q8_0",
    "wide-k",
    "mixtral-q8_0",
    "qwen2-q8_0",
    "qwen2-yarn-q8_0",
    "qwen3-q8_0",
    "qwen3-moe-q8_0",
    "gemma2-q8_0",
    "gemma3-q8_0",
    "phi3-q8_0",
];

#[test]
fn logits_are_near_those_of_the_reference() {
    for name in MODELS {
        for ops in [Ops::best(), Ops::scalar()] {
            let options = LoadOptions { ops, ..f32_cache() };
            check(name, &gguf(&[fixture(name)]), options, Activations::EightBits);
        }
    }
}

/// The same weights as floats, so that activations are not rounded.
#[test]
fn logits_and_greedy_ids_of_the_reference() {
    let folder = tempfile::tempdir().unwrap();
    for name in MODELS {
        let Parts { metadata, mut tensors } = parts(name);
        for (tensor, bytes) in tensors.iter_mut().filter(|(tensor, _)| tensor.ty.is_quantised()) {
            let mut numbers = vec![0.0; tensor.dims.iter().product::<u64>() as usize];
            ggml::decode_f32_into(tensor.ty, bytes, &mut numbers).unwrap();
            (tensor.ty, *bytes) = (Type::F32, bytemuck::pod_collect_to_vec(&numbers));
        }
        let path = folder.path().join(name);
        write(&path, metadata, &tensors);
        for ops in [Ops::best(), Ops::scalar()] {
            let options = LoadOptions { ops, ..f32_cache() };
            check(name, &gguf(std::slice::from_ref(&path)), options, Activations::Floats);
        }
    }
}

/// The parts of a file, so that a test can change them.
struct Parts {
    metadata: Metadata,
    tensors: Vec<(NewTensor, Vec<u8>)>,
}

fn parts(name: &str) -> Parts {
    let file = std::fs::read(fixture(name)).unwrap();
    let header = Header::read(&file).unwrap();
    let tensors = header.tensors.iter().map(|entry| {
        let begin = (header.data_start + entry.offset) as usize;
        let bytes = file[begin..begin + entry.size_bytes().unwrap() as usize].to_vec();
        (NewTensor { name: entry.name.clone(), dims: entry.dims.clone(), ty: entry.ty }, bytes)
    });
    Parts { tensors: tensors.collect(), metadata: header.metadata }
}

fn write(path: &Path, metadata: Metadata, tensors: &[(NewTensor, Vec<u8>)]) {
    let header = Header::new(metadata, tensors.iter().map(|(tensor, _)| tensor.clone())).unwrap();
    let mut bytes = header.to_bytes();
    for (_, tensor) in tensors {
        bytes.extend_from_slice(tensor);
        bytes.resize(bytes.len().next_multiple_of(header.alignment as usize), 0);
    }
    std::fs::write(path, bytes).unwrap();
}

fn refusal(files: &ModelFiles, folder: &Path) -> String {
    let error = load(files, f32_cache()).err().expect("the model is refused").to_string();
    assert!(!error.contains(&folder.display().to_string()), "{error}");
    error
}

#[test]
fn split_files_are_one_model() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let Parts { metadata, tensors } = parts("llama-q8_0");
    let (first, rest) = tensors.split_at(7);
    let split = |mut metadata: Metadata, number: u32, total: u32| {
        metadata.set("split.no", Value::U16(number as u16));
        metadata.set("split.count", Value::U16(2));
        metadata.set("split.tensors.count", Value::I32(total as i32));
        metadata
    };
    let total = tensors.len() as u32;
    write(&path("a"), split(metadata.clone(), 0, total), first);
    write(&path("b"), split(Metadata::new(), 1, total), rest);
    check("llama-q8_0", &gguf(&[path("b"), path("a")]), f32_cache(), Activations::EightBits);

    let refused = |paths: &[&str]| {
        let paths: Vec<PathBuf> = paths.iter().map(|name| path(name)).collect();
        refusal(&gguf(&paths), folder.path())
    };
    assert_eq!(refused(&["a"]), "blob a: it is one of 2 files, but there are 1");
    write(&path("c"), split(metadata.clone(), 0, total + 1), first);
    assert_eq!(
        refused(&["c", "b"]),
        format!("blob c: its files have {total} tensors together, expected {}", total + 1)
    );
    write(&path("d"), split(Metadata::new(), 0, total), rest);
    assert_eq!(refused(&["a", "d"]), "blob d: there are two files with number 0");
    write(&path("e"), metadata, first);
    assert_eq!(refused(&["e", "b"]), "blob e: there are 2 GGUF files, but this is not a part of a split one");
}

/// The first Mixtral files have a separate tensor for each expert.
#[test]
fn experts_may_be_separate_tensors() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m");
    let Parts { metadata, tensors } = parts("mixtral-q8_0");
    let mut alone = Vec::new();
    for (tensor, bytes) in tensors {
        let &[width, rows, experts] = tensor.dims.as_slice() else {
            alone.push((tensor, bytes));
            continue;
        };
        for (expert, bytes) in bytes.chunks_exact(bytes.len() / experts as usize).enumerate() {
            let name = tensor.name.replace("_exps.", &format!(".{expert}."));
            alone.push((NewTensor { name, dims: vec![width, rows], ty: tensor.ty }, bytes.to_vec()));
        }
    }
    assert!(alone.iter().any(|(tensor, _)| tensor.name == "blk.1.ffn_down.3.weight"));
    write(&path, metadata, &alone);
    let logits = |path: PathBuf| {
        let mut engine = load(&gguf(&[path]), f32_cache()).unwrap();
        let sequence = engine.open(8).unwrap();
        last(engine.as_mut(), sequence, &[3, 1, 4, 1, 5])
    };
    assert!(logits(path) == logits(fixture("mixtral-q8_0")));
}

#[test]
fn unsupported_ggufs_are_refused_with_a_reason() {
    type Change = fn(&mut Parts);
    let cases: &[(Change, &str)] = &[
        (
            |p| p.metadata.set("general.architecture", "mamba"),
            "architecture `mamba` is not supported (supported: ",
        ),
        (
            |p| drop(p.metadata.remove("llama.embedding_length")),
            "the GGUF's metadata: `llama.embedding_length` is absent, expected a number",
        ),
        (
            |p| p.metadata.set("llama.block_count", 100_000),
            "the GGUF's metadata: `num_hidden_layers` is 100000, which is outside 1 to 4096",
        ),
        (
            |p| p.tensors.retain(|(t, _)| t.name != "blk.1.ffn_up.weight"),
            "tensor `blk.1.ffn_up.weight` is missing",
        ),
        (
            |p| p.metadata.set("llama.vocab_size", 500),
            "the configuration has a vocabulary of 500, but tensor `token_embd.weight` has 512 rows",
        ),
        (
            |p| {
                let table =
                    NewTensor { name: "rope_freqs.weight".into(), dims: vec![1 << 17], ty: Type::F16 };
                p.tensors.push((table, vec![0; 2 << 17]));
            },
            "the GGUF's metadata: `rope_freqs.weight` is [131072], expected a table of at most 65536 numbers",
        ),
        (
            |p| p.metadata.set("llama.feed_forward_length", 96),
            "tensor `blk.0.ffn_gate.weight` has shape [128, 64], expected [96, 64]",
        ),
        (
            |p| {
                for (tensor, bytes) in &mut p.tensors {
                    if tensor.name == "blk.0.attn_v.weight" {
                        (tensor.ty, *bytes) = (Type::I32, vec![0; 4 * bytes.len() / 34 * 32]);
                    }
                }
            },
            "tensor `blk.0.attn_v.weight` has dtype I32, which is not supported (supported: F32, F16, BF16, F8_E4M3 and \
             I8 with scales, int4, int8, nvfp4, mxfp4, mxfp8, the block types of GGUF)",
        ),
    ];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m");
    for (change, expect) in cases {
        let mut parts = parts("llama-q8_0");
        change(&mut parts);
        write(&path, parts.metadata, &parts.tensors);
        let found = refusal(&gguf(std::slice::from_ref(&path)), folder.path());
        assert!(found.starts_with(expect), "{found}");
    }
    std::fs::write(&path, b"GGUF").unwrap();
    let found = refusal(&gguf(&[path]), folder.path());
    assert!(found.starts_with("blob m: "), "{found}");
}

/// An NVFP4 tensor may have an additional scale in a separate tensor.
#[test]
fn nvfp4_tensor_scales_are_applied() {
    let folder = tempfile::tempdir().unwrap();
    let logits = |parts: Parts| {
        let path = folder.path().join("m");
        write(&path, parts.metadata, &parts.tensors);
        let mut engine = load(&gguf(&[path]), f32_cache()).unwrap();
        let sequence = engine.open(8).unwrap();
        last(engine.as_mut(), sequence, &[3, 1, 4, 1, 5])
    };
    let decode = |ty: Type, bytes: &[u8], n: usize| {
        let mut numbers = vec![0.0; n];
        ggml::decode_f32_into(ty, bytes, &mut numbers).unwrap();
        numbers
    };
    let (mut packed, mut plain) = (parts("llama-q8_0"), parts("llama-q8_0"));
    for ((tensor, bytes), (other, floats)) in packed.tensors.iter_mut().zip(&mut plain.tensors) {
        if tensor.name == "blk.0.ffn_up.weight" {
            let n = tensor.dims.iter().product::<u64>() as usize;
            let numbers = decode(Type::Q8_0, bytes, n);
            *bytes = vec![0; n / 64 * 36];
            ggml::encode(Type::NVFP4, &numbers, bytes).unwrap();
            let numbers = decode(Type::NVFP4, bytes, n);
            *floats = numbers.iter().flat_map(|v| (v * 0.37).to_le_bytes()).collect();
            (tensor.ty, other.ty) = (Type::NVFP4, Type::F32);
        }
    }
    let scale = NewTensor { name: "blk.0.ffn_up.scale".into(), dims: vec![1], ty: Type::F32 };
    let without = Parts { metadata: packed.metadata.clone(), tensors: packed.tensors.clone() };
    packed.tensors.push((scale, 0.37f32.to_le_bytes().to_vec()));
    let plain = logits(plain);
    let error = |found: &[f32]| {
        let size: f32 = plain.iter().map(|v| v * v).sum();
        found.iter().zip(&plain).map(|(a, b)| (a - b).powi(2)).sum::<f32>() / size
    };
    let (with, without) = (error(&logits(packed)), error(&logits(without)));
    assert!(with < 1e-3 && without > 10.0 * with, "{with} {without}");
}

/// A file with a damaged header is refused or runs; it does not crash.
#[test]
fn damaged_headers_are_refused_or_run() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m");
    let whole = std::fs::read(fixture("qwen3-moe-q8_0")).unwrap();
    let header = Header::read(&whole).unwrap();
    // Most of a header is the vocabulary, where damage has no effect. Change only the bytes before and after
    // it.
    let tokens = whole.windows(21).position(|bytes| bytes == b"tokenizer.ggml.tokens").unwrap();
    let tensors = whole.windows(17).position(|bytes| bytes == b"token_embd.weight").unwrap();
    let end = header.data_start as usize;
    let (mut state, mut ran) = (7u64, 0);
    for _ in 0..400 {
        let mut next = |n: usize| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize % n
        };
        let mut bytes = whole.clone();
        for _ in 0..=next(2) {
            let at = if next(2) == 0 { next(tokens) } else { tensors + next(end - tensors) };
            bytes[at] = if next(2) == 0 { next(256) as u8 } else { bytes[at] ^ 1 << next(8) };
        }
        std::fs::write(&path, &bytes).unwrap();
        let options = LoadOptions { context_length: Some(64), ..f32_cache() };
        if let Ok(mut engine) = load(&gguf(std::slice::from_ref(&path)), options) {
            let sequence = engine.open(4).unwrap();
            let tokens = &[3, 1, 4];
            // Any results are accepted.
            drop(engine.step(&[Slice { sequence, tokens, want: RowSelection::Last }]).unwrap());
            ran += 1;
        }
    }
    assert!(ran > 0 && ran < 400, "{ran}");
}

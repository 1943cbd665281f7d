//! Checks the engine against known results, and the guarantees of `Engine`: sequences do not affect each
//! other.

use std::path::PathBuf;

use lode_kernels::{Dtype, Float, Ops};
use serde_json::Value;

use super::*;
use crate::engine::{BlobFile, Format, ModelFiles};

pub(super) fn repository(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

pub(super) fn checkpoint(folder: &str) -> ModelFiles {
    let folder = repository(folder);
    let tensors = vec![BlobFile {
        path: folder.join("model.safetensors"),
        name: None,
        whole_file: true,
        format: Format::Safetensors,
        extent: None,
    }];
    ModelFiles { config_json: std::fs::read(folder.join("config.json")).unwrap(), tensors }
}

pub(super) fn expected(folder: &str) -> Value {
    serde_json::from_slice(&std::fs::read(repository(folder).join("expected.json")).unwrap()).unwrap()
}

pub(super) fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect()
}

pub(super) fn f32_cache() -> LoadOptions {
    LoadOptions { kv_type: KvType::F32, threads: Some(2), ..LoadOptions::default() }
}

/// The best instruction level that does not round activations for BF16 weights, and the scalar one.
pub(super) fn exact_levels() -> [&'static Ops; 2] {
    let is_exact = |ops: &&Ops| !ops.rounds_columns(Dtype::Float(Float::BF16));
    [Ops::all().into_iter().rfind(is_exact).unwrap(), Ops::scalar()]
}

fn llama() -> Box<dyn Engine> {
    load(&checkpoint("tests/fixtures/arch/llama"), f32_cache()).unwrap()
}

pub(super) fn step(
    engine: &mut dyn Engine,
    sequence: SequenceId,
    tokens: &[u32],
    want: RowSelection,
) -> Vec<Vec<f32>> {
    let logits = engine.step(&[Slice { sequence, tokens, want }]).unwrap();
    logits.rows(0).unwrap().map(<[f32]>::to_vec).collect()
}

fn argmax(row: &[f32]) -> u32 {
    (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap() as u32
}

/// The next `n` ids by argmax, stopping before any of `stop`.
pub(super) fn greedy(engine: &mut dyn Engine, prompt: &[u32], n: usize, stop: &[u32]) -> Vec<u32> {
    let sequence = engine.open(prompt.len() + n).unwrap();
    let mut rows = step(engine, sequence, prompt, RowSelection::Last);
    let mut output = Vec::new();
    while output.len() < n {
        let next = argmax(&rows[0]);
        if stop.contains(&next) {
            break;
        }
        output.push(next);
        rows = step(engine, sequence, &[next], RowSelection::Last);
    }
    engine.close(sequence);
    output
}

#[test]
fn logits_and_greedy_ids_of_the_reference() {
    for folder in ["tests/fixtures/arch/llama", "tests/fixtures/arch/llama3-rope"] {
        for ops in exact_levels() {
            let mut engine = load(&checkpoint(folder), LoadOptions { ops, ..f32_cache() }).unwrap();
            for case in expected(folder)["cases"].as_array().unwrap() {
                let prompt = ids(&case["token_ids"]);
                let sequence = engine.open(prompt.len()).unwrap();
                let rows = step(engine.as_mut(), sequence, &prompt, RowSelection::Last);
                engine.close(sequence);
                let expect = case["last_logits"].as_array().unwrap();
                assert_eq!(rows[0].len(), expect.len());
                for (found, expect) in rows[0].iter().zip(expect) {
                    let error = (f64::from(*found) - expect.as_f64().unwrap()).abs();
                    assert!(error <= 1e-4, "{folder} {ops:?} {prompt:?}: {error}");
                }
                let greedy_ids = ids(&case["greedy"]);
                assert_eq!(
                    greedy(engine.as_mut(), &prompt, greedy_ids.len(), &[]),
                    greedy_ids,
                    "{folder} {prompt:?}"
                );
            }
        }
    }
}

#[test]
fn smaller_caches_stay_close() {
    // Heads of 16 are smaller than a block of q8_0; the demo model's have 64.
    let folder = "tests/models/lode-demo";
    let prompt = ids(&expected(folder)["cases"][0]["prompt_ids"]);
    let mut rows = Vec::new();
    for kv_type in [KvType::F32, KvType::F16, KvType::Q8_0] {
        let options = LoadOptions { kv_type, ops: exact_levels()[0], ..f32_cache() };
        let mut engine = load(&checkpoint(folder), options).unwrap();
        let sequence = engine.open(prompt.len()).unwrap();
        rows.push(step(engine.as_mut(), sequence, &prompt, RowSelection::Last).remove(0));
    }
    let nmse = |found: &[f32]| {
        let size: f32 = rows[0].iter().map(|v| v * v).sum();
        rows[0].iter().zip(found).map(|(a, b)| (a - b) * (a - b)).sum::<f32>() / size
    };
    assert!(nmse(&rows[1]) < 1e-6, "{}", nmse(&rows[1]));
    assert!(nmse(&rows[2]) < 1e-3, "{}", nmse(&rows[2]));
}

#[test]
fn the_demo_model_gives_its_outputs() {
    let folder = "tests/models/lode-demo";
    let mut engine = load(&checkpoint(folder), f32_cache()).unwrap();
    for case in expected(folder)["cases"].as_array().unwrap() {
        let output = ids(&case["answer_ids"]);
        let found = greedy(engine.as_mut(), &ids(&case["prompt_ids"]), output.len() + 1, &[0, 2]);
        assert_eq!(found, output, "{}", case["user"]);
    }
}

#[test]
fn the_demo_model_has_its_perplexity() {
    let folder = "tests/models/lode-demo";
    let tokenizer = tokenizers::Tokenizer::from_file(repository(folder).join("tokenizer.json")).unwrap();
    let text = std::fs::read_to_string(repository(folder).join("heldout.txt")).unwrap();
    let ids = tokenizer.encode_fast(text, false).unwrap().get_ids().to_vec();
    let expect = &expected(folder)["perplexity"];

    let mut engine = load(&checkpoint(folder), f32_cache()).unwrap();
    let (mut nll, mut tokens, window) = (0.0, 0, 256);
    let mut first = 0;
    while first + window < ids.len() {
        let sequence = engine.open(window).unwrap();
        let rows = step(engine.as_mut(), sequence, &ids[first..first + window], RowSelection::All);
        engine.close(sequence);
        for (row, next) in rows.iter().zip(&ids[first + 1..]) {
            let max = row.iter().fold(f32::MIN, |m, v| m.max(*v));
            let sum: f64 = row.iter().map(|v| f64::from(v - max).exp()).sum();
            nll += sum.ln() - f64::from(row[*next as usize] - max);
            tokens += 1;
        }
        first += window;
    }
    assert_eq!(tokens, expect["tokens"].as_u64().unwrap());
    let (found, expect) = ((nll / tokens as f64).exp(), expect["value"].as_f64().unwrap());
    assert!((found / expect - 1.0).abs() < 1e-3, "{found} {expect}");
}

/// A prompt that spans several pages.
fn long_prompt(n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| (i * 7919 + 13) % 512).collect()
}

#[test]
fn results_do_not_depend_on_prompt_pieces() {
    let mut engine = llama();
    let prompt = long_prompt(101);
    let sequence = engine.open(101).unwrap();
    let whole = step(engine.as_mut(), sequence, &prompt, RowSelection::All);
    engine.close(sequence);
    for size in [1, 3, 32, 50, 100] {
        let sequence = engine.open(101).unwrap();
        let cut: Vec<Vec<f32>> = prompt
            .chunks(size)
            .flat_map(|tokens| step(engine.as_mut(), sequence, tokens, RowSelection::All))
            .collect();
        engine.close(sequence);
        assert!(whole == cut, "pieces of {size}");
    }
}

#[test]
fn results_do_not_depend_on_the_batch() {
    for threads in [1, 3] {
        let files = checkpoint("tests/fixtures/arch/llama");
        let mut engine = load(&files, LoadOptions { threads: Some(threads), ..f32_cache() }).unwrap();
        let prompts: Vec<Vec<u32>> = [70, 1, 33].iter().map(|n| long_prompt(*n)).collect();
        let alone: Vec<Vec<Vec<f32>>> = prompts
            .iter()
            .map(|prompt| {
                let sequence = engine.open(prompt.len() + 2).unwrap();
                let mut rows = step(engine.as_mut(), sequence, prompt, RowSelection::All);
                rows.extend(step(engine.as_mut(), sequence, &[5], RowSelection::Last));
                rows.extend(step(engine.as_mut(), sequence, &[9], RowSelection::Last));
                engine.close(sequence);
                rows
            })
            .collect();

        let open: Vec<SequenceId> = prompts.iter().map(|p| engine.open(p.len() + 2).unwrap()).collect();
        let mut together: Vec<Vec<Vec<f32>>> = vec![Vec::new(); prompts.len()];
        for tokens in [None, Some([5]), Some([9])] {
            let slices: Vec<Slice<'_>> = (open.iter().zip(&prompts))
                .map(|(sequence, prompt)| {
                    let tokens = tokens.as_ref().map_or(prompt.as_slice(), |t| t.as_slice());
                    Slice { sequence: *sequence, tokens, want: RowSelection::All }
                })
                .collect();
            let logits = engine.step(&slices).unwrap();
            assert_eq!(logits.slices(), 3);
            for (index, rows) in together.iter_mut().enumerate() {
                rows.extend(logits.rows(index).unwrap().map(<[f32]>::to_vec));
            }
        }
        assert!(alone == together, "{threads} threads");
    }
}

#[test]
fn a_long_slice_is_computed_in_pieces() {
    let mut engine = llama();
    let prompt = long_prompt(512);
    let sequence = engine.open(512).unwrap();
    let all = step(engine.as_mut(), sequence, &prompt, RowSelection::All);
    assert_eq!(all.len(), 512);
    engine.truncate(sequence, 0);
    assert!(step(engine.as_mut(), sequence, &prompt, RowSelection::Last)[0] == all[511]);
    engine.truncate(sequence, 0);
    assert_eq!(step(engine.as_mut(), sequence, &prompt, RowSelection::Hidden).len(), 512);
}

#[test]
fn forks_share_a_prefix_and_diverge() {
    let mut engine = llama();
    let prompt = long_prompt(80);
    let fresh = |engine: &mut dyn Engine, tokens: &[u32]| {
        let sequence = engine.open(tokens.len()).unwrap();
        let rows = step(engine, sequence, tokens, RowSelection::Last);
        engine.close(sequence);
        rows
    };
    let with = |n: usize, more: &[u32]| [&prompt[..n], more].concat();

    let first = engine.open(200).unwrap();
    step(engine.as_mut(), first, &prompt, RowSelection::Nothing);
    for n in [0, 31, 32, 50, 64, 80, 1000] {
        let fork = engine.fork(first, n, 120).unwrap();
        let n = n.min(80);
        assert_eq!(engine.len(fork), n);
        let found = step(engine.as_mut(), fork, &[3, 4], RowSelection::Last);
        assert!(found == fresh(engine.as_mut(), &with(n, &[3, 4])), "fork at {n}");
        engine.close(fork);
    }
    // Truncating within a page shared with a fork does not change the fork.
    let fork = engine.fork(first, 64, 120).unwrap();
    engine.truncate(first, 40);
    assert!(
        step(engine.as_mut(), first, &[7], RowSelection::Last) == fresh(engine.as_mut(), &with(40, &[7]))
    );
    assert!(step(engine.as_mut(), fork, &[8], RowSelection::Last) == fresh(engine.as_mut(), &with(64, &[8])));
    engine.close(first);
    assert!(
        step(engine.as_mut(), fork, &[9], RowSelection::Last) == fresh(engine.as_mut(), &with(64, &[8, 9]))
    );
}

#[test]
fn sequences_share_a_smaller_cache() {
    let files = checkpoint("tests/fixtures/arch/llama");
    let options = |cache_tokens| LoadOptions {
        context_length: Some(64),
        max_sequences: 3,
        cache_tokens: Some(cache_tokens),
        ..f32_cache()
    };
    let tokens = long_prompt(64);
    // Three pages of 32 tokens.
    let mut engine = load(&files, options(96)).unwrap();
    let [a, b, c] = [(); 3].map(|()| engine.open(64).unwrap());
    let slice = |sequence, n: usize| Slice { sequence, tokens: &tokens[..n], want: RowSelection::Nothing };
    assert!(engine.has_space(&[(a, 64), (b, 32)]) && !engine.has_space(&[(a, 33), (b, 33)]));
    assert!(engine.has_space(&[(SequenceId(99), 500), (a, 0)]), "neither grows");
    engine.step(&[slice(a, 40), slice(b, 5)]).unwrap();
    assert_eq!(engine.step(&[slice(b, 27), slice(c, 1)]).unwrap_err(), StepError::CacheFull);
    assert_eq!([a, b, c].map(|id| engine.len(id)), [40, 5, 0], "nothing was appended");
    engine.step(&[slice(a, 24), slice(b, 27)]).unwrap();
    assert_eq!(engine.step(&[slice(b, 1)]).unwrap_err(), StepError::CacheFull);
    // A fork shares whole pages, and needs one for the copy of another.
    engine.close(c);
    assert_eq!(engine.fork(a, 40, 64), Err(AdmitError::CacheFull));
    let fork = engine.fork(a, 32, 64).unwrap();
    assert!(!engine.has_space(&[(fork, 1)]));
    engine.truncate(a, 32);
    assert!(engine.has_space(&[(fork, 32)]) && !engine.has_space(&[(fork, 1), (a, 1)]));
    // A shared last page is copied before it changes.
    engine.truncate(a, 20);
    assert!(engine.has_space(&[(a, 12)]) && !engine.has_space(&[(a, 12), (fork, 1)]));
    engine.step(&[slice(a, 12)]).unwrap();
    assert_eq!(engine.step(&[slice(fork, 1)]).unwrap_err(), StepError::CacheFull);
    engine.close(b);
    engine.step(&[slice(fork, 32)]).unwrap();
    // One sequence always fits.
    let mut engine = load(&files, options(0)).unwrap();
    let a = engine.open(64).unwrap();
    engine.step(&[slice(a, 64)]).unwrap();
}

#[test]
fn sequences_are_limited_in_number_and_length() {
    let files = checkpoint("tests/fixtures/arch/llama");
    let options = LoadOptions { context_length: Some(64), max_sequences: 2, ..f32_cache() };
    let mut engine = load(&files, options).unwrap();
    assert_eq!(engine.info().context_length, 64);
    assert_eq!(engine.open(65), Err(AdmitError::Context { wanted: 65, context_length: 64 }));
    let a = engine.open(64).unwrap();
    let b = engine.open(10).unwrap();
    assert_eq!(engine.open(1), Err(AdmitError::Sequences { max_sequences: 2 }));
    assert_eq!(engine.fork(a, 1, 8), Err(AdmitError::Sequences { max_sequences: 2 }));
    engine.close(b);
    engine.close(b);
    let tokens = long_prompt(64);
    step(engine.as_mut(), a, &tokens, RowSelection::Nothing);
    let fork = engine.fork(a, 40, 64).unwrap();
    step(engine.as_mut(), fork, &tokens[..24], RowSelection::Nothing);
    engine.truncate(a, 3);
    step(engine.as_mut(), a, &tokens[..61], RowSelection::Nothing);
    assert_eq!(engine.fork(b, 0, 1), Err(AdmitError::UnknownSequence));
}

#[test]
pub(super) fn steps_are_refused_whole() {
    let mut engine = llama();
    let (a, b) = (engine.open(4).unwrap(), engine.open(4).unwrap());
    let slice = |sequence, tokens| Slice { sequence, tokens, want: RowSelection::Last };
    let good = slice(a, &[1, 2]);
    let mut check = |second: Slice<'_>, expect: StepError| {
        assert_eq!(engine.step(&[good, second]).unwrap_err(), expect);
        assert_eq!((engine.len(a), engine.len(b)), (0, 0));
    };
    check(slice(SequenceId(99), &[1]), StepError::UnknownSequence(SequenceId(99)));
    check(slice(a, &[1]), StepError::DuplicateSequence(a));
    check(slice(b, &[]), StepError::EmptySlice(b));
    check(slice(b, &[512]), StepError::TokenOutOfRange { sequence: b, token: 512, vocab_size: 512 });
    check(slice(b, &[1; 5]), StepError::TooLong { sequence: b, len: 5, max_len: 4 });
    assert!(engine.step(&[]).unwrap().slices() == 0);
    assert!(engine.step(&[good]).unwrap().last(0).unwrap().is_some());
}

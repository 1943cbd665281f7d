//! Runs decoders: exported ones against their references, and a small graph that shows what each run is given.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::tests::{assert_close, has_runtime, model, options};
use super::*;
use crate::device::CudaDevice;
use crate::engine::open::open;
use crate::engine::{AdmitError, RowSelection, SequenceId, Slice, StepError};
use crate::onnx_writer::{self as w, FLOAT, INT64, node};

const HALF: u64 = 10;
const BOOL: u64 = 9;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures")
}

fn read_json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Appends tokens to a sequence and returns the row after the last.
fn last(engine: &mut dyn Engine, sequence: SequenceId, tokens: &[u32]) -> Vec<f32> {
    let slice = Slice { sequence, tokens, want: RowSelection::Last };
    engine.step(&[slice]).unwrap().last(0).unwrap().unwrap().to_vec()
}

fn argmax(row: &[f32]) -> u32 {
    (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap() as u32
}

/// The exports of optimum give the logits of transformers, in one piece, in several, and from a fork.
#[test]
fn exported_decoders_match_the_reference() {
    if !has_runtime("ort::exported_decoders_match_the_reference") {
        return;
    }
    // `width` is the number of keys of a token in a layer.
    for (name, checkpoint, vocab_size, layers, width) in [
        ("gpt2", "onnx-decoder/gpt2", 512, 2, 32),
        ("llama3-rope", "arch/llama3-rope", 512, 2, 32),
        ("merged", "onnx-decoder/merged", 96, 1, 8),
    ] {
        let checkpoint = fixtures().join(checkpoint);
        let graph = std::fs::read(fixtures().join(format!("onnx-decoder/{name}/model.onnx"))).unwrap();
        let (config, folder) = (read_json(&checkpoint.join("config.json")), tempfile::tempdir().unwrap());
        let files = model(folder.path(), &config, &graph, &[]);
        let mut engine = open(&files).unwrap().load(options()).unwrap();
        let info = engine.info().clone();
        let engine = engine.as_mut();
        assert_eq!(
            (info.encoder, info.embeds, info.classes, info.layers, info.vocab_size),
            (false, false, None, layers, vocab_size)
        );
        assert_eq!(info.kv_bytes_per_token, layers * 2 * width * 4);
        for case in read_json(&checkpoint.join("expected.json"))["cases"].as_array().unwrap() {
            let ids = |field: &str| -> Vec<u32> { serde_json::from_value(case[field].clone()).unwrap() };
            let known: Vec<f32> = serde_json::from_value(case["last_logits"].clone()).unwrap();
            let (prompt, greedy) = (ids("token_ids"), ids("greedy"));
            let whole = engine.open(prompt.len() + greedy.len()).unwrap();
            let mut row = last(engine, whole, &prompt);
            assert_close(&row, &known, name);
            let found: Vec<u32> = (0..greedy.len())
                .map(|_| {
                    let next = argmax(&row);
                    row = last(engine, whole, &[next]);
                    next
                })
                .collect();
            assert_eq!(found, greedy, "{name}");
            // A fork of the start of that sequence, to which the rest of the prompt is added in two pieces.
            let at = prompt.len() / 3;
            let fork = engine.fork(whole, at, prompt.len()).unwrap();
            assert_eq!(engine.len(fork), at);
            let middle = at + (prompt.len() - at) / 2;
            if middle > at {
                engine
                    .step(&[Slice {
                        sequence: fork,
                        tokens: &prompt[at..middle],
                        want: RowSelection::Nothing,
                    }])
                    .unwrap();
            }
            assert_close(&last(engine, fork, &prompt[middle..]), &known, "a fork");
            // The rows of all tokens, together with another sequence.
            engine.truncate(whole, 0);
            let slices = [
                Slice { sequence: whole, tokens: &prompt, want: RowSelection::All },
                Slice { sequence: engine.open(8).unwrap(), tokens: &[7, 8], want: RowSelection::Last },
            ];
            let rows = engine.step(&slices).unwrap();
            assert_eq!(rows.rows(0).unwrap().len(), prompt.len());
            assert_close(rows.last(0).unwrap().unwrap(), &known, "all rows");
            assert!(rows.last(1).unwrap().is_some());
            for sequence in [whole, fork, slices[1].sequence] {
                engine.close(sequence);
            }
        }
        // All prompts together: they have different lengths.
        let cases = read_json(&checkpoint.join("expected.json"))["cases"].as_array().unwrap().clone();
        let ids =
            |case: &Value, field: &str| -> Vec<u32> { serde_json::from_value(case[field].clone()).unwrap() };
        let mut running: Vec<(SequenceId, Vec<u32>, Vec<u32>)> = Vec::new();
        for case in &cases {
            let (prompt, greedy) = (ids(case, "token_ids"), ids(case, "greedy"));
            let sequence = engine.open(prompt.len() + greedy.len()).unwrap();
            let first = argmax(&last(engine, sequence, &prompt));
            running.push((sequence, vec![first], greedy));
        }
        while running.iter().any(|(_, found, greedy)| found.len() < greedy.len()) {
            let next = |(sequence, found, _): &(SequenceId, Vec<u32>, Vec<u32>)| {
                (*sequence, [found[found.len() - 1]])
            };
            let next: Vec<_> =
                running.iter().filter(|(_, found, greedy)| found.len() < greedy.len()).map(next).collect();
            let slices: Vec<_> = next
                .iter()
                .map(|(sequence, tokens)| Slice { sequence: *sequence, tokens, want: RowSelection::Last })
                .collect();
            let rows = engine.step(&slices).unwrap();
            for (at, (sequence, _)) in next.iter().enumerate() {
                let (_, found, _) = running.iter_mut().find(|(running, _, _)| running == sequence).unwrap();
                found.push(argmax(rows.last(at).unwrap().unwrap()));
            }
        }
        for (_, found, greedy) in running {
            assert_eq!(found, greedy, "{name}");
        }
    }
}

/// A graph whose row after a token is `[id, sum of all ids, sum of the mask, sum of all positions, sequences in the
/// run]`. Its keys are the ids, its values the positions.
struct Ledger {
    cache_type: u64,
    /// The number of sequences that it takes, or a name for any number.
    batch: &'static str,
    /// Whether it returns the keys and values of the new tokens only.
    forgets: bool,
    has_logits_to_keep: bool,
}

/// The tokens that the nodes of a `Ledger` take.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Branch {
    /// Any number, after any number of earlier ones.
    Past,
    /// One, after earlier ones. The last column is the number of new tokens.
    OneToken,
    /// Any number, and the keys and values of earlier ones are ignored.
    NoPast,
}

impl Ledger {
    fn new() -> Ledger {
        Ledger { cache_type: FLOAT, batch: "batch", forgets: false, has_logits_to_keep: false }
    }

    fn graph(&self) -> w::Graph {
        let mut g = w::Graph::default();
        self.inputs(&mut g);
        self.nodes(&mut g, Branch::Past);
        g
    }

    /// The same graph with a branch for sequences with earlier tokens, and one for those without.
    fn merged(&self, past: Branch) -> w::Graph {
        let subgraph = |name, branch| {
            let mut g = w::Graph::default();
            self.nodes(&mut g, branch);
            w::subgraph(name, &g)
        };
        let branches = [subgraph("then_branch", past), subgraph("else_branch", Branch::NoPast)];
        let mut g = w::Graph::default();
        self.inputs(&mut g);
        g.input("use_cache_branch", BOOL, &["1"]);
        g.push(node("If", &["use_cache_branch"], &["logits", "present.0.key", "present.0.value"], &branches));
        self.outputs(&mut g);
        g
    }

    fn inputs(&self, g: &mut w::Graph) {
        for name in ["input_ids", "position_ids"] {
            g.input(name, INT64, &[self.batch, "new"]);
        }
        g.input("attention_mask", INT64, &[self.batch, "all"]);
        for name in ["past_key_values.0.key", "past_key_values.0.value"] {
            g.input(name, self.cache_type, &["batch", "1", "past", "1"]);
        }
        if self.has_logits_to_keep {
            g.input("num_logits_to_keep", INT64, &[]);
        }
    }

    fn outputs(&self, g: &mut w::Graph) {
        g.output("logits", FLOAT, &["batch", "rows", "5"]);
        for name in ["present.0.key", "present.0.value"] {
            g.output(name, self.cache_type, &["batch", "1", "all", "1"]);
        }
    }

    fn nodes(&self, g: &mut w::Graph, branch: Branch) {
        self.outputs(g);
        let of_heads = g.integers(&[1, 3]);
        let (last, tokens) = (g.integers(&[-1]), g.integers(&[2]));
        let number = |g: &mut w::Graph, name: &str| g.add("Cast", &[name], &[w::int("to", FLOAT as i64)]);
        let ids = number(g, "input_ids");
        let column = g.add("Unsqueeze", &[&ids, &last], &[]);
        let zero = g.add("Sub", &[&column, &column], &[]);
        let mut columns = vec![column];
        for (part, source) in [("key", "input_ids"), ("value", "position_ids")] {
            let (past, present) = (format!("past_key_values.0.{part}"), format!("present.0.{part}"));
            let new = g.add("Cast", &[source], &[w::int("to", self.cache_type as i64)]);
            let new = g.add("Unsqueeze", &[&new, &of_heads], &[]);
            match self.forgets || branch == Branch::NoPast {
                true => g.push(node("Identity", &[&new], &[&present], &[])),
                false => g.push(node("Concat", &[&past, &new], &[&present], &[w::int("axis", 2)])),
            }
            let kept = number(g, &present);
            let sum = g.add("ReduceSum", &[&kept, &tokens], &[w::int("keepdims", 0)]);
            columns.push(g.add("Add", &[&zero, &sum], &[]));
        }
        let mask = number(g, "attention_mask");
        let sum = g.add("ReduceSum", &[&mask, &last], &[w::int("keepdims", 1)]);
        let sum = g.add("Unsqueeze", &[&sum, &last], &[]);
        columns.insert(2, g.add("Add", &[&zero, &sum], &[]));
        let axis = if branch == Branch::OneToken { "start" } else { "end" };
        let sequences = g.add("Shape", &["input_ids"], &[w::int(axis, 1)]);
        let sequences = number(g, &sequences);
        columns.push(g.add("Add", &[&zero, &sequences], &[]));
        let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
        let rows = g.add("Concat", &columns, &[w::int("axis", -1)]);
        if self.has_logits_to_keep {
            let (first, end, axis) = (g.integers(&[0]), g.integers(&[i64::MAX]), g.integers(&[1]));
            let start = g.add("Neg", &["num_logits_to_keep"], &[]);
            let start = g.add("Unsqueeze", &[&start, &first], &[]);
            g.push(node("Slice", &[&rows, &start, &end, &axis], &["logits"], &[]));
        } else {
            g.push(node("Identity", &[&rows], &["logits"], &[]));
        }
    }
}

fn config() -> Value {
    json!({"vocab_size": 600, "n_embd": 1, "n_layer": 1, "n_positions": 600})
}

fn load(folder: &Path, graph: &w::Graph) -> Result<Box<dyn Engine>, String> {
    let files = model(folder, &config(), &graph.file(), &[]);
    let opened = open(&files).map_err(|error| error.to_string())?;
    opened.load(options()).map_err(|error| error.to_string())
}

#[test]
fn each_run_is_given_the_tokens_before() {
    if !has_runtime("ort::each_run_is_given_the_tokens_before") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (cache_type, has_logits_to_keep) in [(FLOAT, false), (HALF, false), (FLOAT, true)] {
        let graph = Ledger { cache_type, has_logits_to_keep, ..Ledger::new() }.graph();
        let mut engine = load(folder.path(), &graph).unwrap();
        let engine = engine.as_mut();
        assert_eq!(engine.info().kv_bytes_per_token, if cache_type == HALF { 4 } else { 8 });
        assert_eq!((engine.info().context_length, engine.info().vocab_size), (600, 5));
        let a = engine.open(500).unwrap();
        assert_eq!(last(engine, a, &[1, 2, 3]), [3.0, 6.0, 3.0, 3.0, 1.0]);
        let b = engine.fork(a, 2, 500).unwrap();
        assert_eq!(last(engine, a, &[0]), [0.0, 6.0, 4.0, 6.0, 1.0]);
        assert_eq!(last(engine, b, &[3]), [3.0, 6.0, 3.0, 3.0, 1.0], "the fork has two of its tokens");
        engine.truncate(a, 1);
        assert_eq!(last(engine, a, &[1]), [1.0, 2.0, 2.0, 1.0, 1.0]);
        engine.truncate(a, 0);
        assert_eq!(last(engine, a, &[2]), [2.0, 2.0, 1.0, 0.0, 1.0]);
        // A long slice is computed in pieces.
        engine.truncate(a, 0);
        let long = vec![1; 2 * decoder::RUN_TOKENS - 100];
        let slice = Slice { sequence: a, tokens: &long, want: RowSelection::All };
        let rows = engine.step(&[slice]).unwrap();
        let (rows, n) = (rows.rows(0).unwrap(), long.len() as f32);
        assert_eq!(rows.len(), long.len());
        assert_eq!(rows.last().unwrap(), [1.0, n, n, n * (n - 1.0) / 2.0, 1.0]);
    }
}

/// Appends a token to each sequence in one step, and returns the rows.
fn together(engine: &mut dyn Engine, tokens: &[(SequenceId, u32)]) -> Vec<Vec<f32>> {
    let slices: Vec<_> = tokens
        .iter()
        .map(|(sequence, token)| Slice {
            sequence: *sequence,
            tokens: std::slice::from_ref(token),
            want: RowSelection::Last,
        })
        .collect();
    let rows = engine.step(&slices).unwrap();
    (0..tokens.len()).map(|at| rows.last(at).unwrap().unwrap().to_vec()).collect()
}

#[test]
fn sequences_share_runs() {
    if !has_runtime("ort::sequences_share_runs") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for cache_type in [FLOAT, HALF] {
        let mut engine = load(folder.path(), &Ledger { cache_type, ..Ledger::new() }.graph()).unwrap();
        let engine = engine.as_mut();
        let [a, b, c, long] = [(); 4].map(|()| engine.open(40).unwrap());
        last(engine, a, &[1, 2, 3]);
        last(engine, b, &[4, 4]);
        last(engine, c, &[1, 1, 1, 1]);
        last(engine, long, &[2; 20]);
        // Half of the run of the long one would be padding.
        assert_eq!(
            together(engine, &[(a, 1), (long, 2), (b, 2), (c, 3)]),
            [
                [1.0, 7.0, 4.0, 6.0, 3.0],
                [2.0, 42.0, 21.0, 210.0, 1.0],
                [2.0, 10.0, 3.0, 3.0, 3.0],
                [3.0, 7.0, 5.0, 10.0, 3.0]
            ]
        );
        assert_eq!(
            together(engine, &[(a, 0), (b, 1), (c, 0)]),
            [[0.0, 7.0, 5.0, 10.0, 3.0], [1.0, 11.0, 4.0, 6.0, 3.0], [0.0, 7.0, 6.0, 15.0, 3.0]]
        );
        // Another order, one sequence not in the step, one truncated, and a fork of the first tokens of another.
        let fork = engine.fork(a, 3, 40).unwrap();
        engine.truncate(c, 4);
        assert_eq!(
            together(engine, &[(c, 2), (a, 4), (fork, 4)]),
            [[2.0, 6.0, 5.0, 10.0, 3.0], [4.0, 11.0, 6.0, 15.0, 3.0], [4.0, 10.0, 4.0, 6.0, 3.0]]
        );
        assert_eq!(
            together(engine, &[(b, 0), (fork, 1)]),
            [[0.0, 11.0, 5.0, 10.0, 2.0], [1.0, 11.0, 5.0, 10.0, 2.0]]
        );
        engine.close(a);
        assert_eq!(last(engine, c, &[1]), [1.0, 7.0, 6.0, 15.0, 1.0]);
        // The first token of one sequence and a part of the prompt of another, in one step.
        let [first, prompt] = [(); 2].map(|()| engine.open(40).unwrap());
        let slices = [
            Slice { sequence: b, tokens: &[3], want: RowSelection::Nothing },
            Slice { sequence: prompt, tokens: &[1, 2], want: RowSelection::All },
            Slice { sequence: first, tokens: &[3], want: RowSelection::Last },
            Slice { sequence: fork, tokens: &[3], want: RowSelection::All },
        ];
        let rows = engine.step(&slices).unwrap();
        let rows: Vec<Vec<&[f32]>> = (0..4).map(|at| rows.rows(at).unwrap().collect()).collect();
        assert!(rows[0].is_empty());
        assert_eq!(rows[1], [[1.0, 3.0, 2.0, 1.0, 1.0], [2.0, 3.0, 2.0, 1.0, 1.0]]);
        assert_eq!(rows[2], [[3.0, 3.0, 1.0, 0.0, 1.0]]);
        assert_eq!(rows[3], [[3.0, 14.0, 6.0, 15.0, 2.0]]);
    }
}

/// A branch that is right for one new token only is given one at a time.
#[test]
fn merged_decoders_choose_a_branch() {
    if !has_runtime("ort::merged_decoders_choose_a_branch") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (cache_type, branch) in
        [(FLOAT, Branch::Past), (FLOAT, Branch::OneToken), (HALF, Branch::Past), (HALF, Branch::OneToken)]
    {
        let graph = Ledger { cache_type, ..Ledger::new() }.merged(branch);
        let mut engine = load(folder.path(), &graph).unwrap();
        let engine = engine.as_mut();
        let [a, b, c] = [(); 3].map(|()| engine.open(500).unwrap());
        assert_eq!(last(engine, a, &[1, 2, 3]), [3.0, 6.0, 3.0, 3.0, 1.0]);
        // Several after others.
        assert_eq!(last(engine, a, &[4, 1, 2]), [2.0, 13.0, 6.0, 15.0, 1.0]);
        let rows = engine.step(&[Slice { sequence: a, tokens: &[1, 3], want: RowSelection::All }]).unwrap();
        let rows: Vec<&[f32]> = rows.rows(0).unwrap().collect();
        // The sums of a run are those after its last token.
        let first = if branch == Branch::OneToken { [1.0, 14.0, 7.0, 21.0] } else { [1.0, 17.0, 8.0, 28.0] };
        assert_eq!((rows.len(), &rows[0][..4]), (2, &first[..]));
        assert_eq!(rows[1], [3.0, 17.0, 8.0, 28.0, 1.0]);
        // A prompt in several runs, and one after a sequence that lost all its tokens.
        let long = vec![1; decoder::RUN_TOKENS + 40];
        let n = long.len() as f32;
        assert_eq!(last(engine, b, &long), [1.0, n, n, n * (n - 1.0) / 2.0, 1.0]);
        engine.truncate(b, 0);
        assert_eq!(last(engine, b, &[4, 1]), [1.0, 5.0, 2.0, 1.0, 1.0]);
        engine.truncate(a, 2);
        // One token each, after two others or none. Those with others share a run.
        let count = if branch == Branch::OneToken { 1.0 } else { 2.0 };
        assert_eq!(
            together(engine, &[(a, 3), (c, 4), (b, 2)]),
            [[3.0, 6.0, 3.0, 3.0, count], [4.0, 4.0, 1.0, 0.0, 1.0], [2.0, 7.0, 3.0, 3.0, count]]
        );
        assert_eq!(together(engine, &[(c, 1), (a, 0), (b, 0)])[1], [0.0, 6.0, 4.0, 6.0, count]);
    }
}

/// Graphs for which padding or other sequences change the results.
#[test]
fn sequences_share_no_runs_that_change_results() {
    if !has_runtime("ort::sequences_share_no_runs_that_change_results") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let sharing = |ledger: Ledger, change: &dyn Fn(&mut w::Graph)| {
        let mut graph = ledger.graph();
        change(&mut graph);
        let mut engine = load(folder.path(), &graph).unwrap();
        let engine = engine.as_mut();
        let [a, b, c] = [(); 3].map(|()| engine.open(40).unwrap());
        last(engine, a, &[1, 2, 3]);
        last(engine, b, &[1, 2, 3]);
        last(engine, c, &[1, 2]);
        let rows = together(engine, &[(a, 1), (b, 1), (c, 1)]);
        assert_eq!(rows[0][..4], [1.0, 7.0, 4.0, 6.0]);
        assert_eq!(rows[2][..4], [1.0, 4.0, 3.0, 3.0]);
        [rows[0][4], rows[1][4], rows[2][4]]
    };
    assert_eq!(sharing(Ledger::new(), &|_| {}), [3.0; 3]);
    let quantise = |g: &mut w::Graph| {
        let number = g.add("Cast", &["input_ids"], &[w::int("to", FLOAT as i64)]);
        g.push(node("DynamicQuantizeLinear", &[&number], &["y", "y_scale", "y_zero_point"], &[]));
    };
    assert_eq!(sharing(Ledger::new(), &quantise), [1.0; 3]);
    assert_eq!(sharing(Ledger { batch: "1", ..Ledger::new() }, &|_| {}), [1.0; 3]);
    let fuse = |g: &mut w::Graph| {
        let heads = [w::int("num_heads", 1), w::bytes(7, "com.microsoft")];
        g.push(node("MultiHeadAttention", &["logits", "logits", "logits"], &["attended"], &heads));
    };
    assert_eq!(sharing(Ledger::new(), &fuse), [2.0, 2.0, 1.0]);
}

#[test]
fn a_failed_step_changes_nothing() {
    if !has_runtime("ort::a_failed_step_changes_nothing") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut graph = Ledger::new().graph();
    // Only ids below 3 are in the table.
    graph.floats("table", &[3], &[0.0; 3]);
    graph.push(node("Gather", &["table", "input_ids"], &["unused"], &[]));
    graph.output("unused", FLOAT, &["batch", "new"]);
    let mut engine = load(folder.path(), &graph).unwrap();
    let engine = engine.as_mut();
    let (a, b) = (engine.open(10).unwrap(), engine.open(10).unwrap());
    last(engine, a, &[1, 2]);
    let slice = |sequence, tokens| Slice { sequence, tokens, want: RowSelection::Last };
    let error = engine.step(&[slice(a, &[2]), slice(b, &[3])]).unwrap_err();
    assert!(matches!(&error, StepError::Graph { sequence, .. } if *sequence == b), "{error}");
    assert_eq!((engine.len(a), engine.len(b)), (2, 0));
    // The one that fails is found also if they share a run.
    last(engine, b, &[1, 2]);
    for slices in [[slice(a, &[2]), slice(b, &[3])], [slice(b, &[3]), slice(a, &[2])]] {
        let error = engine.step(&slices).unwrap_err();
        assert!(matches!(&error, StepError::Graph { sequence, .. } if *sequence == b), "{error}");
    }
    assert_eq!(last(engine, a, &[2]), [2.0, 5.0, 3.0, 3.0, 1.0]);
    let long = Slice { sequence: a, tokens: &[1; 9], want: RowSelection::Last };
    assert!(matches!(engine.step(&[long]).unwrap_err(), StepError::TooLong { len: 12, .. }));
    let hidden = Slice { sequence: a, tokens: &[1], want: RowSelection::Hidden };
    assert_eq!(engine.step(&[hidden]).unwrap_err(), StepError::NoHidden(a));
    assert!(matches!(engine.open(601), Err(AdmitError::Context { wanted: 601, context_length: 600 })));
}

/// The ONNX Runtime of the tests cannot use a GPU, so the model is computed on the CPU.
#[test]
fn without_the_cuda_provider_the_cpu_computes() {
    if !has_runtime("ort::without_the_cuda_provider_the_cpu_computes") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let files = model(folder.path(), &config(), &Ledger::new().graph().file(), &[]);
    let card = CudaDevice { ordinal: 900, nvrtc: "/nowhere/nvrtc".into(), kernels: "/nowhere".into() };
    let options = LoadOptions { device: Device::Cuda(card), ..options() };
    let mut engine = open(&files).unwrap().load(options).unwrap();
    assert!(engine.info().device.starts_with("cpu (onnxruntime 1."), "{}", engine.info().device);
    assert_eq!(engine.info().device_bytes, 0);
    let sequence = engine.open(4).unwrap();
    assert_eq!(last(engine.as_mut(), sequence, &[1, 2]), [2.0, 3.0, 2.0, 1.0, 1.0]);
}

#[test]
fn graphs_that_forget_tokens_fail() {
    if !has_runtime("ort::graphs_that_forget_tokens_fail") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut engine = load(folder.path(), &Ledger { forgets: true, ..Ledger::new() }.graph()).unwrap();
    let sequence = engine.open(10).unwrap();
    // There is nothing to forget so far.
    last(engine.as_mut(), sequence, &[1, 2]);
    let slice = Slice { sequence, tokens: &[3], want: RowSelection::Last };
    let error = engine.step(&[slice]).unwrap_err().to_string();
    let expect = "output `present.0.key` has shape [1, 1, 1, 1], expected [1, 1, 3, 1]";
    assert!(error.contains(expect), "{error}");
    assert_eq!(engine.len(sequence), 2);
}

#[test]
fn graphs_that_are_no_decoders_are_refused() {
    let has_runtime = has_runtime("ort::graphs_that_are_no_decoders_are_refused");
    let folder = tempfile::tempdir().unwrap();
    let refused = |change: &dyn Fn(&mut w::Graph), expect: &str| {
        let mut graph = Ledger::new().graph();
        change(&mut graph);
        let error = load(folder.path(), &graph).err().expect(expect);
        assert!(error.starts_with("onnx/model.onnx: ") && error.contains(expect), "{error}");
    };
    // By their names, before they are loaded.
    refused(
        &|g| g.input("beam_idx", 9, &["1"]),
        "its input `beam_idx` is not supported (supported: `input_ids`, `attention_mask`, `token_type_ids`, \
         `position_ids`, `num_logits_to_keep`, `use_cache_branch`, `past_key_values.*`)",
    );
    refused(
        &|g| g.input("encoder_hidden_states", FLOAT, &["batch"]),
        "its input `encoder_hidden_states` is not",
    );
    let without = |g: &mut w::Graph, field: u8, name: &str| {
        let has_name = |bytes: &Vec<u8>| bytes.windows(name.len()).any(|part| part == name.as_bytes());
        g.fields.retain(|bytes| !(bytes.starts_with(&[field << 3 | 2]) && has_name(bytes)));
    };
    if !has_runtime {
        return;
    }
    refused(&|g| without(g, 12, "present.0.value"), "it has no output `present.0.value` for its input");
    refused(&|g| g.input("use_cache_branch", FLOAT, &["1"]), "its input `use_cache_branch` is not one bool");
    refused(
        &|g| without(g, 12, "logits"),
        "it has no output `logits` with a row for each token (its outputs: `present",
    );
    refused(
        &|g| {
            g.input("past_key_values.1.key", INT64, &["batch", "1", "past", "1"]);
        },
        "its input `past_key_values.1.key` is not a tensor of float32 or float16 numbers of the shape [batch, heads,",
    );
    refused(
        &|g| {
            without(g, 11, "position_ids");
            g.input("position_ids", INT64, &["batch", "1"]);
        },
        "its input `position_ids` takes exactly 1 tokens at a time, expected any number",
    );
}

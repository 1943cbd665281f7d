//! Runs small graphs. The tests that need the ONNX Runtime find it as the worker does: `ORT_DYLIB_PATH` names
//! its library.

use std::cell::Cell;
use std::path::{Path, PathBuf};

use lode_model::safetensors::Header;
use serde_json::{Value, json};

use super::*;
use crate::engine::open::open;
use crate::engine::{AdmitError, KvType, RowSelection, SequenceId, Slice, StepError};
use crate::onnx_writer::{self as w, Bert, FLOAT, INT32, INT64, bytes, node, tensor};
use crate::report::skip;

/// Reports the test as skipped if there is no runtime.
pub(super) fn has_runtime(test: &str) -> bool {
    match library::runtime() {
        Ok(_) => true,
        Err(error) => {
            skip(test, &format!("the ONNX Runtime cannot be used: {error}"));
            false
        }
    }
}

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/encoder/roberta")
}

/// A tensor of the fixture.
fn weight(name: &str) -> (Vec<u64>, Vec<f32>) {
    let file = std::fs::read(fixture().join("model.safetensors")).unwrap();
    let header = Header::read(&file).unwrap();
    let is_it = |found: &str| found.strip_prefix("roberta.").unwrap_or(found) == name;
    let tensor = header.tensors().iter().find(|tensor| is_it(&tensor.name)).unwrap();
    let begin = (header.data_start() + tensor.begin) as usize;
    let raw = &file[begin..begin + tensor.size_bytes() as usize];
    let values = raw.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    (tensor.shape.clone(), values)
}

/// The fixture's model as a graph.
fn roberta(id_type: u64) -> w::Graph {
    let config: Value =
        serde_json::from_slice(&std::fs::read(fixture().join("config.json")).unwrap()).unwrap();
    let number = |field: &str| config[field].as_u64().unwrap() as usize;
    let bert = Bert {
        width: number("hidden_size"),
        heads: number("num_attention_heads"),
        layers: number("num_hidden_layers"),
        norm_eps: config["layer_norm_eps"].as_f64().unwrap() as f32,
        first_position: config["pad_token_id"].as_i64().unwrap() + 1,
        id_type,
    };
    bert.graph(&weight)
}

/// Writes a model of an ONNX file and files with its weights.
pub(super) fn model(folder: &Path, config: &Value, file: &[u8], data: &[(&str, &[u8])]) -> ModelFiles {
    let write = |name: &str, bytes: &[u8], format| {
        let path = folder.join(format!("blob-{}", name.replace('/', "-")));
        std::fs::write(&path, bytes).unwrap();
        BlobFile { path, name: Some(name.to_owned()), whole_file: true, format, extent: None }
    };
    let mut tensors = vec![write("onnx/model.onnx", file, Format::Onnx)];
    tensors.extend(data.iter().map(|(name, bytes)| write(name, bytes, Format::OnnxData)));
    ModelFiles { config_json: config.to_string().into_bytes(), tensors }
}

fn config() -> Value {
    serde_json::from_slice(&std::fs::read(fixture().join("config.json")).unwrap()).unwrap()
}

pub(super) fn options() -> LoadOptions {
    LoadOptions { kv_type: KvType::F32, threads: Some(2), max_sequences: 8, ..LoadOptions::default() }
}

fn text(n: usize) -> Vec<u32> {
    (0..n).map(|at| 5 + (at * 7 % 40) as u32).collect()
}

/// The rows of each text, computed in one step.
fn hidden(engine: &mut dyn Engine, texts: &[Vec<u32>]) -> Result<Vec<Vec<f32>>, StepError> {
    let open: Vec<SequenceId> = texts.iter().map(|text| engine.open(text.len()).unwrap()).collect();
    let slice = |(sequence, tokens): (&SequenceId, &'_ Vec<u32>)| (*sequence, tokens.clone());
    let slices: Vec<_> = open.iter().zip(texts).map(slice).collect();
    let slices: Vec<Slice<'_>> = slices
        .iter()
        .map(|(sequence, tokens)| Slice { sequence: *sequence, tokens, want: RowSelection::Hidden })
        .collect();
    let rows = engine.step(&slices);
    open.into_iter().for_each(|sequence| engine.close(sequence));
    let rows = rows?;
    Ok((0..texts.len()).map(|at| rows.rows(at).unwrap().flatten().copied().collect()).collect())
}

pub(super) fn assert_close(found: &[f32], expect: &[f32], what: &str) {
    assert_eq!(found.len(), expect.len(), "{what}");
    for (found, expect) in found.iter().zip(expect) {
        assert!((found - expect).abs() < 1e-4, "{what}: {found} {expect}");
    }
}

#[test]
fn hidden_states_match_the_native_engine() {
    if !has_runtime("hidden_states_match_the_native_engine") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let native = ModelFiles {
        config_json: config().to_string().into_bytes(),
        tensors: vec![BlobFile {
            path: fixture().join("model.safetensors"),
            name: None,
            whole_file: true,
            format: Format::Safetensors,
            extent: None,
        }],
    };
    let mut native = open(&native).unwrap().load(options()).unwrap();
    let texts: Vec<Vec<u32>> = [3, 60, 1, 17, 33, 60].map(text).into();
    let expect = hidden(native.as_mut(), &texts).unwrap();
    for id_type in [INT64, INT32] {
        let files = model(folder.path(), &config(), &roberta(id_type).file(), &[]);
        let mut engine = open(&files).unwrap().load(options()).unwrap();
        let (info, of_native) = (engine.info(), native.info());
        assert_eq!(
            (info.encoder, info.context_length, info.embedding_length, info.vocab_size),
            (true, of_native.context_length, of_native.embedding_length, of_native.vocab_size)
        );
        assert!(
            info.device.starts_with("cpu (onnxruntime 1.") && info.device.ends_with(", 2 threads)"),
            "{info:?}"
        );
        let batch = hidden(engine.as_mut(), &texts).unwrap();
        for ((text, batch), expect) in texts.iter().zip(batch).zip(&expect) {
            assert_close(&batch, expect, "a batch");
            assert_close(&hidden(engine.as_mut(), std::slice::from_ref(text)).unwrap()[0], expect, "alone");
        }
    }
    // The outputs of transformers.
    let files = model(folder.path(), &config(), &roberta(INT64).file(), &[]);
    let mut engine = open(&files).unwrap().load(options()).unwrap();
    let cases: Value =
        serde_json::from_slice(&std::fs::read(fixture().join("expected.json")).unwrap()).unwrap();
    for case in cases["cases"].as_array().unwrap() {
        let tokens: Vec<u32> = serde_json::from_value(case["token_ids"].clone()).unwrap();
        let first: Vec<f32> = serde_json::from_value(case["first"].clone()).unwrap();
        let rows = hidden(engine.as_mut(), &[tokens]).unwrap();
        assert_close(&rows[0][..first.len()], &first, "transformers");
    }
}

/// `hidden = cast(input_ids) x row`, with weights that may be in another file.
fn small(row: Vec<u8>) -> w::Graph {
    let mut g = w::Graph::default();
    g.input("input_ids", INT64, &["batch", "tokens"]);
    g.output("last_hidden_state", FLOAT, &["batch", "tokens", "4"]);
    g.initializer(row);
    let last = g.integers(&[-1]);
    let numbers = g.add("Cast", &["input_ids"], &[w::int("to", FLOAT as i64)]);
    let numbers = g.add("Unsqueeze", &[&numbers, &last], &[]);
    g.push(node("Mul", &[&numbers, "row"], &["last_hidden_state"], &[]));
    g
}

fn small_config() -> Value {
    json!({"vocab_size": 50, "hidden_size": 4, "max_position_embeddings": 40})
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn inline() -> Vec<u8> {
    tensor("row", FLOAT, &[4], &[bytes(9, floats(&[1.0, 2.0, 3.0, 4.0]))])
}

#[test]
fn weights_are_read_from_other_files() {
    if !has_runtime("weights_are_read_from_other_files") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // The runtime keeps small tensors apart, so this one is large.
    let mut g = small(tensor("row", FLOAT, &[4], &w::external("model.onnx_data", 4096, 16)));
    g.initializer(tensor("unused", FLOAT, &[1024], &w::external("model.onnx_data", 0, 4096)));
    let data = [vec![0; 4096], floats(&[1.0, 2.0, 3.0, 4.0])].concat();
    let files = model(folder.path(), &small_config(), &g.file(), &[("onnx/model.onnx_data", &data)]);
    let mut engine = open(&files).unwrap().load(options()).unwrap();
    assert_eq!(engine.info().weights_bytes as usize, data.len() + g.file().len());
    // Without a mask, only texts of one length share a run.
    let rows = hidden(engine.as_mut(), &[vec![1, 2], vec![3], vec![2, 1]]).unwrap();
    assert_eq!(rows[0], [1.0, 2.0, 3.0, 4.0, 2.0, 4.0, 6.0, 8.0]);
    assert_eq!((&rows[1][..], &rows[2][4..]), (&[3.0, 6.0, 9.0, 12.0][..], &[1.0, 2.0, 3.0, 4.0][..]));
}

#[test]
fn pooled_outputs_are_repeated() {
    if !has_runtime("pooled_outputs_are_repeated") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut g = small(inline());
    g.fields.retain(|field| !field.starts_with(&[12 << 3 | 2]));
    g.output("sentence_embedding", FLOAT, &["batch", "4"]);
    let options_of_mean = [w::ints("axes", &[1]), w::int("keepdims", 0)];
    g.push(node("ReduceMean", &["last_hidden_state"], &["sentence_embedding"], &options_of_mean));
    let files = model(folder.path(), &small_config(), &g.file(), &[]);
    let mut engine = open(&files).unwrap().load(options()).unwrap();
    let rows = hidden(engine.as_mut(), &[vec![1, 3]]).unwrap();
    assert_eq!(rows[0], [2.0, 4.0, 6.0, 8.0, 2.0, 4.0, 6.0, 8.0]);
}

#[test]
fn failures_end_one_sequence() {
    if !has_runtime("failures_end_one_sequence") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut g = small(inline());
    // Only ids below 2 are in the table.
    g.floats("table", &[2], &[0.0, 0.0]);
    g.push(node("Gather", &["table", "input_ids"], &["unused"], &[]));
    g.output("unused", FLOAT, &["batch", "tokens"]);
    let files = model(folder.path(), &small_config(), &g.file(), &[]);
    let mut engine = open(&files).unwrap().load(options()).unwrap();
    let error = hidden(engine.as_mut(), &[vec![1, 3]]).unwrap_err();
    assert!(matches!(&error, StepError::Graph { reason, .. } if reason.contains("Gather")), "{error}");
    hidden(engine.as_mut(), &[vec![1, 1]]).unwrap();

    let sequence = engine.open(4).unwrap();
    let slice = |want| Slice { sequence, tokens: &[1], want };
    assert_eq!(engine.step(&[slice(RowSelection::Last)]).unwrap_err(), StepError::NoLogits(sequence));
    let step = engine.step_unless(&|| true, &[slice(RowSelection::Hidden)]);
    assert_eq!((step.unwrap_err(), engine.len(sequence)), (StepError::Cancelled, 0));
    engine.step(&[slice(RowSelection::Hidden)]).unwrap();
    assert_eq!(engine.step(&[slice(RowSelection::Hidden)]).unwrap_err(), StepError::NotWhole(sequence));
    assert_eq!(engine.open(41).unwrap_err(), AdmitError::Context { wanted: 41, context_length: 40 });
}

/// A graph can loop forever, so a run ends when its clients are gone.
#[test]
fn endless_loops_are_cancelled() {
    if !has_runtime("endless_loops_are_cancelled") {
        return;
    }
    const BOOL: u64 = 9;
    let mut body = w::Graph::default();
    body.input("i", INT64, &[]);
    body.input("again", BOOL, &[]);
    body.input("state", FLOAT, &["batch", "tokens", "4"]);
    body.push(node("Identity", &["again"], &["again_out"], &[]));
    body.push(node("Abs", &["state"], &["state_out"], &[]));
    body.output("again_out", BOOL, &[]);
    body.output("state_out", FLOAT, &["batch", "tokens", "4"]);
    let mut g = small(inline());
    g.fields.retain(|field| !field.starts_with(&[12 << 3 | 2]));
    g.initializer(tensor("yes", BOOL, &[], &[bytes(9, [1])]));
    g.push(node(
        "Loop",
        &["", "yes", "last_hidden_state"],
        &["hidden_states"],
        &[w::subgraph("body", &body)],
    ));
    g.output("hidden_states", FLOAT, &["batch", "tokens", "4"]);
    let folder = tempfile::tempdir().unwrap();
    let files = model(folder.path(), &small_config(), &g.file(), &[]);
    let mut engine = open(&files).unwrap().load(options()).unwrap();
    let sequence = engine.open(4).unwrap();
    let calls = Cell::new(0);
    let is_cancelled = || {
        calls.set(calls.get() + 1);
        calls.get() > 3
    };
    let slice = Slice { sequence, tokens: &[1], want: RowSelection::Hidden };
    assert_eq!(engine.step_unless(&is_cancelled, &[slice]).unwrap_err(), StepError::Cancelled);
}

/// An error and its sources.
fn chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", chain(source)),
        None => error.to_string(),
    }
}

/// These need no runtime: the graph is refused before it is loaded.
#[test]
fn graphs_that_are_no_encoders_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |config: Value, g: &w::Graph, expect: &str| {
        let error = open(&model(folder.path(), &config, &g.file(), &[])).err().expect(expect);
        let message = chain(&error);
        assert!(message.contains(expect), "{message}");
    };
    let with = |change: &dyn Fn(&mut w::Graph)| {
        let mut g = small(inline());
        change(&mut g);
        g
    };
    refused(
        small_config(),
        &with(&|g| {
            g.push(node("Identity", &["row"], &["present.0.key"], &[]));
            g.output("present.0.key", FLOAT, &["4"]);
        }),
        "onnx/model.onnx: it returns keys and values (`present.0.key`), but takes none of earlier tokens; export a decoder",
    );
    refused(
        small_config(),
        &with(&|g| g.input("pixel_values", FLOAT, &["batch"])),
        "its input `pixel_values` is not supported (supported: `input_ids`, `attention_mask`, `token_type_ids`, `position_ids`)",
    );
    refused(
        small_config(),
        &small(tensor("row", FLOAT, &[4], &w::external("../secret", 0, 16))),
        "onnx/model.onnx: initializer `row` is stored in `../secret`, expected the relative path of a file of the model",
    );
    refused(json!({}), &small(inline()), "config.json: `vocab_size` is missing");
}

#[test]
fn graphs_that_the_runtime_refuses() {
    if !has_runtime("graphs_that_the_runtime_refuses") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let refused = |g: &w::Graph, expect: &str| {
        let opened = open(&model(folder.path(), &small_config(), &g.file(), &[])).unwrap();
        let error = opened.load(options()).err().expect(expect).to_string();
        assert!(error.starts_with("onnx/model.onnx: ") && error.contains(expect), "{error}");
    };
    let mut g = small(inline());
    g.push(node("NoSuchOperator", &["input_ids"], &["x"], &[]));
    refused(&g, "NoSuchOperator");
    let mut g = small(inline());
    g.fields.retain(|field| !field.starts_with(&[12 << 3 | 2]));
    g.push(node("Identity", &["last_hidden_state"], &["logits"], &[]));
    g.output("logits", FLOAT, &["batch", "tokens", "4"]);
    refused(
        &g,
        "it has no output with a hidden state for each token, such as `last_hidden_state`, and none with the classes of a \
         text, `logits` (its outputs: `logits`)",
    );
}

/// Exported cross-encoders give the classes that transformers computed, alone and padded.
#[test]
fn exported_classifiers_match_the_reference() {
    if !has_runtime("ort::exported_classifiers_match_the_reference") {
        return;
    }
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/reranker");
    for name in ["bert", "xlm-roberta"] {
        let read = |file: String| std::fs::read(fixtures.join(file)).unwrap();
        let json = |file: String| -> Value { serde_json::from_slice(&read(file)).unwrap() };
        let (config, place) = (json(format!("{name}/config.json")), tempfile::tempdir().unwrap());
        let files = model(place.path(), &config, &read(format!("onnx/{name}.onnx")), &[]);
        let cases = json(format!("{name}/expected.json"))["cases"].as_array().unwrap().clone();
        let numbers = |value: &Value| -> Vec<u32> { serde_json::from_value(value.clone()).unwrap() };
        let pairs: Vec<(Vec<u32>, usize, f32)> = cases
            .iter()
            .map(|case| {
                let second = numbers(&case["type_ids"]).iter().filter(|kind| **kind == 0).count();
                (numbers(&case["token_ids"]), second, case["logits"][0].as_f64().unwrap() as f32)
            })
            .collect();
        let options = LoadOptions { max_sequences: pairs.len() + 1, ..options() };
        let mut engine = open(&files).unwrap().load(options).unwrap();
        assert_eq!((engine.info().classes, engine.info().embeds), (Some(1), false));
        let ids: Vec<SequenceId> = pairs.iter().map(|_| engine.open(96).unwrap()).collect();
        let slice = |at: usize, sequence| Slice {
            sequence,
            tokens: &pairs[at].0,
            want: RowSelection::Score { second: pairs[at].1 },
        };
        let slices: Vec<Slice<'_>> = ids.iter().enumerate().map(|(at, id)| slice(at, *id)).collect();
        let together = engine.step(&slices).unwrap();
        for (at, (_, _, known)) in pairs.iter().enumerate() {
            let alone = engine.open(96).unwrap();
            let rows = engine.step(&[slice(at, alone)]).unwrap();
            engine.close(alone);
            for (rows, at) in [(&rows, 0), (&together, at)] {
                let row = rows.rows(at).unwrap().next().unwrap();
                assert!(row.len() == 1 && (row[0] - known).abs() < 1e-4, "{name}: {row:?} {known}");
            }
        }
        // The types of BERT matter; RoBERTa has none.
        let sequence = engine.open(96).unwrap();
        let untyped = Slice { want: RowSelection::Score { second: 96 }, ..slice(0, sequence) };
        let rows = engine.step(&[untyped]).unwrap();
        let difference = (rows.rows(0).unwrap().next().unwrap()[0] - pairs[0].2).abs();
        assert_eq!(difference > 1e-3, name == "bert", "{name}: {difference}");
        // There are no hidden states, and a text is not pooled.
        engine.truncate(sequence, 0);
        let slice = Slice { want: RowSelection::Hidden, ..slice(0, sequence) };
        assert_eq!(engine.step(&[slice]).unwrap_err(), StepError::NoHidden(sequence));
    }
}

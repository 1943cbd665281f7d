//! Compares encoders with a plain float64 pass over the same weights, and tests what they refuse. The weights
//! are random; tests/e2e checks a real model against known results.

use std::collections::BTreeMap;

use lode_kernels::Ops;
use serde_json::{Value, json};

use super::load_tests::{Checkpoint, Stored};
use super::tests::{checkpoint, expected, f32_cache, ids, repository};
use super::*;

const VOCAB: usize = 31;
const WIDTH: usize = 24;
const HEADS: usize = 3;
const HIDDEN: usize = 40;
const LAYERS: usize = 2;
const POSITIONS: usize = 700;

/// A small BERT with random weights.
fn bert() -> Checkpoint {
    let mut tensors = BTreeMap::new();
    let mut state = 1u32;
    let mut add = |name: String, shape: &[u64], spread: f32, middle: f32| {
        let n = shape.iter().product::<u64>();
        let numbers: Vec<f32> = (0..n)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                middle + spread * ((state >> 8) as f32 / (1 << 23) as f32 - 1.0)
            })
            .collect();
        tensors.insert(name, Stored::f32s(shape, &numbers));
    };
    let mut linear = |name: &str, rows: usize, cols: usize| {
        add(format!("{name}.weight"), &[rows as u64, cols as u64], 0.4, 0.0);
        add(format!("{name}.bias"), &[rows as u64], 0.2, 0.0);
    };
    for layer in 0..LAYERS {
        let name = |part: &str| format!("encoder.layer.{layer}.{part}");
        for part in ["attention.self.query", "attention.self.key", "attention.self.value"] {
            linear(&name(part), WIDTH, WIDTH);
        }
        linear(&name("attention.output.dense"), WIDTH, WIDTH);
        linear(&name("intermediate.dense"), HIDDEN, WIDTH);
        linear(&name("output.dense"), WIDTH, HIDDEN);
    }
    let width = WIDTH as u64;
    let norms = (0..LAYERS).flat_map(|layer| {
        ["attention.output", "output"].map(|part| format!("encoder.layer.{layer}.{part}.LayerNorm"))
    });
    for norm in norms.chain(["embeddings.LayerNorm".to_owned()]) {
        add(format!("{norm}.weight"), &[width], 0.3, 1.0);
        add(format!("{norm}.bias"), &[width], 0.3, 0.0);
    }
    for (name, rows) in [("word", VOCAB), ("position", POSITIONS), ("token_type", 2)] {
        add(format!("embeddings.{name}_embeddings.weight"), &[rows as u64, width], 1.0, 0.0);
    }
    let config = json!({
        "architectures": ["BertModel"], "vocab_size": VOCAB, "hidden_size": WIDTH, "num_attention_heads": HEADS,
        "intermediate_size": HIDDEN, "num_hidden_layers": LAYERS, "max_position_embeddings": POSITIONS,
        "layer_norm_eps": 1e-6, "hidden_act": "gelu", "type_vocab_size": 2,
    });
    Checkpoint { config, tensors }
}

/// Exact GELU, with the integral by Simpson's rule.
fn gelu(x: f64) -> f64 {
    let density = |t: f64| (-t * t / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let (steps, width) = (2000, x / 2000.0);
    let weight = |i: usize| {
        if i == 0 || i == steps {
            1.0
        } else if i % 2 == 1 {
            4.0
        } else {
            2.0
        }
    };
    let area: f64 = (0..=steps).map(|i| weight(i) * density(i as f64 * width)).sum();
    x * (0.5 + area * width / 3.0)
}

/// The hidden states of the last layer, one row per token, computed as in the BERT paper.
fn reference(checkpoint: &Checkpoint, tokens: &[u32]) -> Vec<Vec<f64>> {
    let numbers =
        |name: &str| -> Vec<f64> { checkpoint.tensors[name].numbers().into_iter().map(f64::from).collect() };
    let norm = |x: &[f64], name: &str| -> Vec<f64> {
        let (weight, bias) = (numbers(&format!("{name}.weight")), numbers(&format!("{name}.bias")));
        let mean = x.iter().sum::<f64>() / x.len() as f64;
        let variance = x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / x.len() as f64;
        (0..x.len()).map(|i| (x[i] - mean) / (variance + 1e-6).sqrt() * weight[i] + bias[i]).collect()
    };
    let linear = |x: &[f64], name: &str| -> Vec<f64> {
        let (weight, bias) = (numbers(&format!("{name}.weight")), numbers(&format!("{name}.bias")));
        let rows = weight.chunks(x.len()).zip(bias);
        rows.map(|(row, bias)| row.iter().zip(x).map(|(w, x)| w * x).sum::<f64>() + bias).collect()
    };
    let add = |a: &[f64], b: &[f64]| -> Vec<f64> { a.iter().zip(b).map(|(a, b)| a + b).collect() };
    let tables =
        ["word", "position", "token_type"].map(|t| numbers(&format!("embeddings.{t}_embeddings.weight")));
    let row = |table: usize, row: usize| &tables[table][row * WIDTH..(row + 1) * WIDTH];

    let embed = |(position, token): (usize, &u32)| {
        let sum = add(&add(row(0, *token as usize), row(1, position)), row(2, 0));
        norm(&sum, "embeddings.LayerNorm")
    };
    let mut x: Vec<Vec<f64>> = tokens.iter().enumerate().map(embed).collect();
    for layer in 0..LAYERS {
        let name = |part: &str| format!("encoder.layer.{layer}.{part}");
        let [q, k, v] = ["query", "key", "value"].map(|part| {
            let name = name(&format!("attention.self.{part}"));
            x.iter().map(|x| linear(x, &name)).collect::<Vec<_>>()
        });
        let head_dim = WIDTH / HEADS;
        let attend = |row: usize| {
            let mut mixed = vec![0.0; WIDTH];
            for head in 0..HEADS {
                let part = head * head_dim..(head + 1) * head_dim;
                let dot = |k: &Vec<f64>| -> f64 {
                    q[row][part.clone()].iter().zip(&k[part.clone()]).map(|(a, b)| a * b).sum()
                };
                let scores: Vec<f64> = k.iter().map(|k| (dot(k) / (head_dim as f64).sqrt()).exp()).collect();
                let sum: f64 = scores.iter().sum();
                for (score, v) in scores.iter().zip(&v) {
                    part.clone().for_each(|d| mixed[d] += score / sum * v[d]);
                }
            }
            mixed
        };
        let mixed: Vec<Vec<f64>> = (0..x.len()).map(attend).collect();
        for (x, mixed) in x.iter_mut().zip(mixed) {
            let sum = add(x, &linear(&mixed, &name("attention.output.dense")));
            let inner = norm(&sum, &name("attention.output.LayerNorm"));
            let up: Vec<f64> = linear(&inner, &name("intermediate.dense")).into_iter().map(gelu).collect();
            *x = norm(&add(&inner, &linear(&up, &name("output.dense"))), &name("output.LayerNorm"));
        }
    }
    x
}

fn text(n: usize) -> Vec<u32> {
    (0..n).map(|i| (i * 7 % VOCAB) as u32).collect()
}

/// The rows of each text, computed in one step.
fn hidden(engine: &mut dyn Engine, texts: &[Vec<u32>]) -> Vec<Vec<Vec<f32>>> {
    let open: Vec<SequenceId> = texts.iter().map(|text| engine.open(text.len()).unwrap()).collect();
    let slice = |(sequence, tokens): (&SequenceId, &Vec<u32>)| (*sequence, tokens.clone());
    let slices: Vec<_> = open.iter().zip(texts).map(slice).collect();
    let slices: Vec<Slice<'_>> = slices
        .iter()
        .map(|(sequence, tokens)| Slice { sequence: *sequence, tokens, want: RowSelection::Hidden })
        .collect();
    let rows = engine.step(&slices).unwrap();
    open.into_iter().for_each(|sequence| engine.close(sequence));
    (0..texts.len()).map(|at| rows.rows(at).unwrap().map(<[f32]>::to_vec).collect()).collect()
}

#[test]
fn hidden_states_of_the_reference() {
    let (folder, checkpoint) = (tempfile::tempdir().unwrap(), bert());
    let files = checkpoint.whole(folder.path());
    for ops in [Ops::best(), Ops::scalar()] {
        let mut engine = load(&files, LoadOptions { ops, ..f32_cache() }).unwrap();
        assert!(engine.info().encoder && engine.info().context_length == POSITIONS);
        for n in [1, 5, 45] {
            let rows = hidden(engine.as_mut(), &[text(n)]).remove(0);
            let expect = reference(&checkpoint, &text(n));
            assert_eq!(rows.len(), n);
            for (found, expect) in rows.iter().flatten().zip(expect.iter().flatten()) {
                assert!((f64::from(*found) - expect).abs() < 1e-4, "{n} {ops:?}: {found} {expect}");
            }
        }
    }
}

#[test]
fn encoder_results_do_not_depend_on_the_batch() {
    let folder = tempfile::tempdir().unwrap();
    let mut engine =
        load(&bert().whole(folder.path()), LoadOptions { max_sequences: 5, ..f32_cache() }).unwrap();
    // The longest text exceeds a decoder's pass.
    let texts: Vec<Vec<u32>> = [3, 300, 650, 1, 290].iter().map(|n| text(*n)).collect();
    let alone: Vec<_> =
        texts.iter().map(|text| hidden(engine.as_mut(), std::slice::from_ref(text)).remove(0)).collect();
    assert!(hidden(engine.as_mut(), &texts) == alone);
}

/// Compares the rows of every text of a fixture with the results of transformers.
fn check_reference(folder: &str, files: &ModelFiles) {
    for ops in [Ops::best(), Ops::scalar()] {
        let mut engine = load(files, LoadOptions { ops, ..f32_cache() }).unwrap();
        assert_eq!((engine.info().context_length, engine.info().embedding_length), (64, 48));
        for case in expected(folder)["cases"].as_array().unwrap() {
            let tokens = ids(&case["token_ids"]);
            let rows = hidden(engine.as_mut(), std::slice::from_ref(&tokens)).remove(0);
            assert_eq!(rows.len(), tokens.len());
            assert_close(&rows[0], &case["first"], &(ops, &case["text"]));
            assert_close(&rows[rows.len() - 1], &case["last"], &(ops, &case["text"]));
        }
    }
}

#[test]
fn roberta_matches_the_reference() {
    let folder = "tests/fixtures/encoder/roberta";
    check_reference(folder, &checkpoint(folder));
}

#[test]
fn nomic_bert_matches_the_reference() {
    let folder = "tests/fixtures/encoder/nomic-bert";
    check_reference(folder, &checkpoint(folder));
    check_reference(folder, &gguf_tests::gguf(&[repository("tests/fixtures/encoder/nomic-bert.gguf")]));
}

#[test]
fn embedding_gemma_matches_the_reference() {
    let folder = "tests/fixtures/encoder/embedding-gemma";
    check_reference(folder, &checkpoint(folder));
    check_reference(folder, &gguf_tests::gguf(&[repository("tests/fixtures/encoder/embedding-gemma.gguf")]));
}

/// transformers writes other names, three projections, and other fields of config.json.
#[test]
fn nomic_bert_in_the_spelling_of_transformers() {
    let mut model = Checkpoint::read("tests/fixtures/encoder/nomic-bert");
    let (place, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut published = load(&model.whole(place.path()), f32_cache()).unwrap();
    let mut tensors = BTreeMap::new();
    for (name, tensor) in std::mem::take(&mut model.tensors) {
        let Some((layer, part)) = name.strip_prefix("encoder.layers.").and_then(|name| name.split_once('.'))
        else {
            tensors.insert(name.replace("emb_ln", "embeddings.LayerNorm"), tensor);
            continue;
        };
        if part == "attn.Wqkv.weight" {
            for (part, rows) in ["q", "k", "v"].iter().zip(tensor.numbers().chunks(WIDTH_OF_NOMIC.pow(2))) {
                let shape = [WIDTH_OF_NOMIC as u64; 2];
                tensors.insert(
                    format!("layers.{layer}.self_attn.{part}_proj.weight"),
                    Stored::f32s(&shape, rows),
                );
            }
            continue;
        }
        let (stem, leaf) = part.rsplit_once('.').unwrap();
        let stem = match stem {
            "attn.out_proj" => "self_attn.o_proj",
            "mlp.fc11" => "mlp.up_proj",
            "mlp.fc12" => "mlp.gate_proj",
            "mlp.fc2" => "mlp.down_proj",
            "norm1" => "post_attention_layernorm",
            _ => "post_mlp_layernorm",
        };
        tensors.insert(format!("layers.{layer}.{stem}.{leaf}"), tensor);
    }
    let config = json!({
        "architectures": ["NomicBertModel"], "vocab_size": model.config["vocab_size"], "hidden_size": 48,
        "pad_vocab_size_multiple": 64, "num_attention_heads": 4, "head_dim": 12, "intermediate_size": 80,
        "num_hidden_layers": 3, "max_position_embeddings": 64, "hidden_act": "silu",
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
    });
    let renamed = Checkpoint { config, tensors };
    let mut renamed = load(&renamed.whole(other.path()), f32_cache()).unwrap();
    assert!(hidden(published.as_mut(), &[text(40)]) == hidden(renamed.as_mut(), &[text(40)]));
}

const WIDTH_OF_NOMIC: usize = 48;

#[test]
fn unsupported_nomic_berts_are_refused() {
    type Change = fn(&mut Checkpoint);
    let cases: &[(Change, &str)] = &[
        (
            |c| c.config["activation_function"] = json!("gelu"),
            "config.json: `activation_function` `gelu` is not supported (supported: swiglu)",
        ),
        (
            |c| c.config["prenorm"] = json!(true),
            "config.json: `prenorm` `true` is not supported (supported: false)",
        ),
        (
            |c| c.config["rotary_emb_fraction"] = json!(0.5),
            "config.json: `rotary_emb_fraction` `0.5` is not supported (supported: 1)",
        ),
        (
            |c| c.config["num_experts"] = json!(8),
            "config.json: `num_experts` `8` is not supported (supported: 0)",
        ),
        (
            |c| {
                c.config["rope_scaling"] = json!({"type": "longrope", "short_factor": [1.0], "long_factor": [1.0],
                    "original_max_position_embeddings": 64, "factor": 2.0});
            },
            "config.json: `rope_scaling`: 1 factors for 6 pairs",
        ),
        (|c| c.config["n_embd"] = json!(null), "config.json: `hidden_size` is missing"),
        (
            |c| c.config["n_head"] = json!(5),
            "config.json: `hidden_size`: 48 is not 5 heads of 9, an even number",
        ),
        (
            |c| c.config["n_head"] = json!(48),
            "config.json: `hidden_size`: 48 is not 48 heads of 1, an even number",
        ),
        (
            |c| drop(c.tensors.remove("encoder.layers.2.mlp.fc12.weight")),
            "tensor `encoder.layers.2.mlp.fc12.weight` is missing",
        ),
        (
            |c| {
                drop(c.tensors.insert("encoder.layers.0.attn.Wqkv.weight".into(), Stored::f32s(&[1], &[0.0])))
            },
            "tensor `encoder.layers.0.attn.Wqkv.weight` has shape [1], expected [144, 48]",
        ),
    ];
    let folder = tempfile::tempdir().unwrap();
    for (change, expect) in cases {
        let mut model = Checkpoint::read("tests/fixtures/encoder/nomic-bert");
        change(&mut model);
        let error = load(&model.whole(folder.path()), f32_cache()).err().expect(expect);
        assert_eq!(error.to_string(), *expect);
    }
}

/// A RoBERTa with a padding id of 4 and a position table shifted accordingly equals the BERT.
#[test]
fn roberta_positions_start_after_padding() {
    let (folder, of_roberta) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let plain = bert();
    let mut roberta = bert();
    roberta.config["architectures"] = json!(["XLMRobertaModel"]);
    roberta.config["pad_token_id"] = json!(4);
    roberta.config["max_position_embeddings"] = json!(POSITIONS + 5);
    let name = "embeddings.position_embeddings.weight";
    let mut table = vec![9.0; 5 * WIDTH];
    table.extend(plain.tensors[name].numbers());
    roberta.tensors.insert(name.into(), Stored::f32s(&[POSITIONS as u64 + 5, WIDTH as u64], &table));
    roberta.tensors = roberta.tensors.into_iter().map(|(name, t)| (format!("roberta.{name}"), t)).collect();
    let mut a = load(&plain.whole(folder.path()), f32_cache()).unwrap();
    let mut b = load(&roberta.whole(of_roberta.path()), f32_cache()).unwrap();
    assert_eq!(b.info().context_length, POSITIONS);
    assert!(hidden(a.as_mut(), &[text(20)]) == hidden(b.as_mut(), &[text(20)]));
}

/// The pairs of a fixture: their ids, the index of the first one with type 1, and the known results.
fn pairs(folder: &str) -> Vec<(Vec<u32>, usize, Value)> {
    let pair = |case: &Value| {
        let second = ids(&case["type_ids"]).iter().filter(|kind| **kind == 0).count();
        (ids(&case["token_ids"]), second, case.clone())
    };
    expected(folder)["cases"].as_array().unwrap().iter().map(pair).collect()
}

/// The classes of each pair, computed in one step.
fn classes(engine: &mut dyn Engine, pairs: &[(Vec<u32>, usize, Value)]) -> Vec<Vec<f32>> {
    let open: Vec<SequenceId> = pairs.iter().map(|(ids, ..)| engine.open(ids.len()).unwrap()).collect();
    let slices: Vec<Slice<'_>> = open
        .iter()
        .zip(pairs)
        .map(|(sequence, (tokens, second, _))| Slice {
            sequence: *sequence,
            tokens,
            want: RowSelection::Score { second: *second },
        })
        .collect();
    let rows = engine.step(&slices).unwrap();
    open.into_iter().for_each(|sequence| engine.close(sequence));
    (0..pairs.len())
        .map(|at| {
            let mut rows = rows.rows(at).unwrap();
            assert_eq!(rows.len(), 1);
            rows.next().unwrap().to_vec()
        })
        .collect()
}

fn assert_close(found: &[f32], known: &Value, what: &dyn std::fmt::Debug) {
    let known: Vec<f32> = serde_json::from_value(known.clone()).unwrap();
    assert_eq!(found.len(), known.len(), "{what:?}");
    for (found, known) in found.iter().zip(known) {
        assert!((found - known).abs() < 1e-4, "{what:?}: {found} {known}");
    }
}

const CLASSIFIERS: [(&str, &str, usize); 3] =
    [("bert", "bert", 1), ("xlm-roberta", "roberta", 1), ("three-classes", "bert", 3)];

/// Compares classification heads with the results of transformers: alone, and all pairs in one step.
#[test]
fn classifiers_match_the_reference() {
    for (name, architecture, n) in CLASSIFIERS {
        let folder = format!("tests/fixtures/reranker/{name}");
        let pairs = pairs(&folder);
        for ops in [Ops::best(), Ops::scalar()] {
            let options = LoadOptions { ops, max_sequences: pairs.len(), ..f32_cache() };
            let mut engine = load(&checkpoint(&folder), options).unwrap();
            assert_eq!((engine.info().architecture, engine.info().classes), (architecture, Some(n)));
            let together = classes(engine.as_mut(), &pairs);
            for (pair, together) in pairs.iter().zip(together) {
                let alone = classes(engine.as_mut(), std::slice::from_ref(pair)).remove(0);
                assert_close(&alone, &pair.2["logits"], &(name, ops, &pair.2["document"]));
                assert_eq!(alone, together, "{name}: the rest of the step has no effect");
            }
            // The hidden states are those of a text without a second part.
            if name == "xlm-roberta" {
                let rows = hidden(engine.as_mut(), std::slice::from_ref(&pairs[0].0)).remove(0);
                assert_close(&rows[0], &pairs[0].2["first"], &"hidden states");
            }
        }
    }
}

#[test]
fn a_classifier_of_a_gguf_matches_the_reference() {
    let files = gguf_tests::gguf(&[repository("tests/fixtures/reranker/xlm-roberta.gguf")]);
    let pairs = pairs("tests/fixtures/reranker/xlm-roberta");
    for ops in [Ops::best(), Ops::scalar()] {
        let options = LoadOptions { ops, max_sequences: pairs.len(), ..f32_cache() };
        let mut engine = load(&files, options).unwrap();
        assert_eq!((engine.info().architecture, engine.info().classes), ("roberta", Some(1)));
        for (found, pair) in classes(engine.as_mut(), &pairs).iter().zip(&pairs) {
            assert_close(found, &pair.2["logits"], &(ops, &pair.2["document"]));
        }
        let rows = hidden(engine.as_mut(), std::slice::from_ref(&pairs[0].0)).remove(0);
        assert_close(&rows[0], &pairs[0].2["first"], &"hidden states");
    }
}

/// Texts to embed and pairs may share a step.
#[test]
fn classes_and_hidden_states_share_a_step() {
    let folder = "tests/fixtures/reranker/bert";
    let mut engine = load(&checkpoint(folder), LoadOptions { max_sequences: 3, ..f32_cache() }).unwrap();
    let pairs = pairs(folder);
    let alone = classes(engine.as_mut(), &pairs[..1]).remove(0);
    let embedded = hidden(engine.as_mut(), std::slice::from_ref(&pairs[1].0)).remove(0);
    let open: Vec<SequenceId> = (0..3).map(|_| engine.open(96).unwrap()).collect();
    let slice = |at: usize, pair: usize, want| Slice { sequence: open[at], tokens: &pairs[pair].0, want };
    let score = RowSelection::Score { second: pairs[0].1 };
    let rows = [slice(0, 1, RowSelection::Hidden), slice(1, 0, score), slice(2, 1, RowSelection::Hidden)];
    let rows = engine.step(&rows).unwrap();
    assert_eq!(rows.rows(1).unwrap().collect::<Vec<_>>(), [&alone[..]]);
    for at in [0, 2] {
        let found: Vec<&[f32]> = rows.rows(at).unwrap().collect();
        assert_eq!(found.len(), embedded.len());
        for (found, known) in found.iter().zip(&embedded) {
            // The sum of the embeddings has another order in a step with pairs.
            assert!(found.iter().zip(known).all(|(a, b)| (a - b).abs() < 1e-4));
        }
    }
}

#[test]
fn heads_that_do_not_match_the_configuration_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut engine = load(&bert().whole(folder.path()), f32_cache()).unwrap();
    assert_eq!(engine.info().classes, None);
    let sequence = engine.open(10).unwrap();
    let slice = Slice { sequence, tokens: &[1, 2], want: RowSelection::Score { second: 1 } };
    assert_eq!(engine.step(&[slice]).unwrap_err(), StepError::NoClasses(sequence));

    let mut files = checkpoint("tests/fixtures/reranker/three-classes");
    let config: Value = serde_json::from_slice(&files.config_json).unwrap();
    let mut refused = |change: &dyn Fn(&mut Value), expect: &str| {
        let mut config = config.clone();
        change(&mut config);
        files.config_json = config.to_string().into_bytes();
        let error = load(&files, f32_cache()).err().expect(expect);
        assert!(error.to_string().contains(expect), "{error}");
    };
    refused(&|config| config["id2label"] = json!({"0": "a"}), "`classifier.bias`");
    refused(&|config| config["id2label"] = json!({}), "`id2label`: it has no classes");
    refused(
        &|config| config["architectures"] = json!(["RobertaForSequenceClassification"]),
        "`classifier.dense.weight` is missing",
    );
}

#[test]
fn unsupported_encoders_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut engine = load(&bert().whole(folder.path()), f32_cache()).unwrap();
    let sequence = engine.open(10).unwrap();
    let slice = |want| Slice { sequence, tokens: &[1, 2], want };
    assert_eq!(engine.step(&[slice(RowSelection::Last)]).unwrap_err(), StepError::NoLogits(sequence));
    engine.step(&[slice(RowSelection::Hidden)]).unwrap();
    assert_eq!(engine.step(&[slice(RowSelection::Hidden)]).unwrap_err(), StepError::NotWhole(sequence));
    engine.truncate(sequence, 0);
    engine.step(&[slice(RowSelection::Hidden)]).unwrap();

    type Change = fn(&mut Value);
    let cases: &[(Change, &str)] = &[
        (
            |c| c["hidden_act"] = json!("relu"),
            "config.json: `hidden_act` `relu` is not supported (supported: gelu)",
        ),
        (
            |c| c["position_embedding_type"] = json!("relative_key"),
            "config.json: `position_embedding_type` `relative_key` is not supported (supported: absolute)",
        ),
        (
            |c| c["num_attention_heads"] = json!(5),
            "config.json: `hidden_size`: 24 is not a multiple of 5 heads",
        ),
        (
            |c| c["vocab_size"] = json!(30),
            "the configuration has a vocabulary of 30, but tensor `embeddings.word_embeddings.weight` has 31 rows",
        ),
        (
            |c| c["num_hidden_layers"] = json!(3),
            "tensor `encoder.layer.2.attention.self.query.weight` is missing",
        ),
    ];
    for (change, expect) in cases {
        let mut checkpoint = bert();
        change(&mut checkpoint.config);
        let error = load(&checkpoint.whole(folder.path()), f32_cache()).err().expect(expect);
        assert_eq!(error.to_string(), *expect);
    }
}

//! Loading: every representation of a model gives the same results, and unsupported models are refused with a
//! reason.

use std::collections::BTreeMap;
use std::path::Path;

use lode_model::quant::{Kind, affine};
use lode_model::safetensors::{Dtype, Header, write_header};
use lode_model::tensor::read_blob;
use serde_json::{Value, json};

use super::tensors::MappedTensors;
use super::tests::{f32_cache, repository};
use super::*;
use crate::arch::Tensors;
use crate::engine::{BlobFile, Format, ModelFiles, NonFiniteError};
use lode_kernels::{Ops, Rows};

/// The parts of a checkpoint, so that a test can change them.
pub(super) struct Checkpoint {
    pub(super) config: Value,
    pub(super) tensors: BTreeMap<String, Stored>,
}

#[derive(Clone)]
pub(super) struct Stored {
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<u64>,
    pub(super) bytes: Vec<u8>,
}

impl Stored {
    pub(super) fn f32s(shape: &[u64], numbers: &[f32]) -> Self {
        let bytes = numbers.iter().flat_map(|v| v.to_le_bytes()).collect();
        Self { dtype: Dtype::F32, shape: shape.to_vec(), bytes }
    }

    pub(super) fn numbers(&self) -> Vec<f32> {
        match self.dtype {
            Dtype::BF16 => {
                let number = |b: &[u8]| half::bf16::from_le_bytes([b[0], b[1]]).to_f32();
                self.bytes.chunks_exact(2).map(number).collect()
            }
            _ => self.bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect(),
        }
    }
}

fn llama() -> Checkpoint {
    Checkpoint::read("tests/fixtures/arch/llama")
}

/// A safetensors file whose data starts `shift` bytes after a multiple of eight.
fn file(tensors: &[(&str, &Stored)], metadata: &[(&str, &str)], shift: usize) -> Vec<u8> {
    let metadata = metadata.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
    let entries: Vec<_> = tensors.iter().map(|(name, t)| (*name, t.dtype, t.shape.as_slice())).collect();
    let mut bytes = write_header(&entries, &metadata);
    bytes.extend(std::iter::repeat_n(b' ', shift));
    let len = bytes.len() as u64 - 8;
    bytes[..8].copy_from_slice(&len.to_le_bytes());
    tensors.iter().for_each(|(_, t)| bytes.extend_from_slice(&t.bytes));
    bytes
}

impl Checkpoint {
    pub(super) fn read(folder: &str) -> Self {
        let folder = repository(folder);
        let file = std::fs::read(folder.join("model.safetensors")).unwrap();
        let header = Header::read(&file).unwrap();
        let tensors = header.tensors().iter().map(|t| {
            let begin = (header.data_start() + t.begin) as usize;
            let bytes = file[begin..begin + t.size_bytes() as usize].to_vec();
            (t.name.clone(), Stored { dtype: t.dtype, shape: t.shape.clone(), bytes })
        });
        let config = serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap();
        Self { config, tensors: tensors.collect() }
    }

    /// Writes one blob per tensor; `spell` returns its key, its layer name and its shift.
    pub(super) fn blobs(
        &self,
        folder: &Path,
        spell: impl Fn(&str) -> (String, Option<String>, usize),
    ) -> ModelFiles {
        let tensors = self.tensors.iter().enumerate().map(|(index, (name, tensor))| {
            let (key, layer, shift) = spell(name);
            let path = folder.join(format!("blob-{index}"));
            std::fs::write(&path, file(&[(&key, tensor)], &[], shift)).unwrap();
            BlobFile { path, name: layer, whole_file: false, format: Format::Safetensors, extent: None }
        });
        ModelFiles { config_json: self.config.to_string().into_bytes(), tensors: tensors.collect() }
    }

    /// Writes it as one file.
    pub(super) fn whole(&self, folder: &Path) -> ModelFiles {
        let tensors: Vec<_> = self.tensors.iter().map(|(name, t)| (name.as_str(), t)).collect();
        let path = folder.join("model.safetensors");
        std::fs::write(&path, file(&tensors, &[], 0)).unwrap();
        let tensors = vec![BlobFile {
            path,
            name: Some("model.safetensors".into()),
            whole_file: true,
            format: Format::Safetensors,
            extent: None,
        }];
        ModelFiles { config_json: self.config.to_string().into_bytes(), tensors }
    }
}

pub(super) fn logits(files: &ModelFiles) -> Vec<f32> {
    let mut engine = load(files, f32_cache()).unwrap();
    let sequence = engine.open(8).unwrap();
    let logits =
        engine.step(&[Slice { sequence, tokens: &[3, 1, 4, 1, 5], want: RowSelection::All }]).unwrap();
    logits.rows(0).unwrap().flatten().copied().collect()
}

#[test]
fn every_spelling_of_a_blob_gives_the_same_bits() {
    let (folder, blobs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let checkpoint = llama();
    let whole = logits(&checkpoint.whole(folder.path()));
    for shift in [0, 1, 3] {
        let named = checkpoint.blobs(blobs.path(), |name| (name.to_owned(), Some(name.to_owned()), shift));
        assert!(logits(&named) == whole, "keyed by name, shift {shift}");
        let data = checkpoint.blobs(blobs.path(), |name| ("data".to_owned(), Some(name.to_owned()), shift));
        assert!(logits(&data) == whole, "keyed data, shift {shift}");
    }
}

/// Normalised mean squared error.
fn error(found: &[f32], expect: &[f32]) -> f32 {
    let size: f32 = expect.iter().map(|v| v * v).sum();
    found.iter().zip(expect).map(|(a, b)| (a - b).powi(2)).sum::<f32>() / size
}

/// Packs the matrices of a checkpoint in a format, a blob per tensor whose data start `shift` bytes after a multiple
/// of eight. Also returns the checkpoint with the floats that the codes stand for.
pub(super) fn packed(
    mut plain: Checkpoint,
    (kind, group, dtype): (Kind, usize, Dtype),
    shift: usize,
    folder: &Path,
) -> (ModelFiles, Checkpoint) {
    let mut blobs = Vec::new();
    for (index, (name, tensor)) in plain.tensors.iter_mut().enumerate() {
        let path = folder.join(format!("blob-{index}"));
        let bytes = if tensor.shape.len() == 2 {
            let mut packed = affine::Quantised::default();
            // Small floats are quantised from f32, and their scales are bytes.
            let source = if kind.is_affine() { dtype } else { Dtype::F32 };
            affine::quantise(kind, group, source, &tensor.numbers(), &mut packed).unwrap();
            let (rows, cols) = (tensor.shape[0], tensor.shape[1]);
            let words = cols * u64::from(kind.bits()) / 32;
            let part = |dtype, cols, bytes| Stored { dtype, shape: vec![rows, cols], bytes };
            let codes = part(Dtype::U32, words, packed.codes);
            let scales = part(dtype, cols / group as u64, packed.scales);
            let biases = part(dtype, cols / group as u64, packed.biases);
            let (scale, bias) = (format!("{name}.scale"), format!("{name}.bias"));
            // Scales first, so that the codes are at an odd offset.
            let entries = [(scale.as_str(), &scales), (name.as_str(), &codes), (bias.as_str(), &biases)];
            let entries = &entries[..if kind.is_affine() { 3 } else { 2 }];
            let group = group.to_string();
            let bytes = file(entries, &[("quant_type", kind.as_str()), ("group_size", &group)], shift);
            let header = Header::read(&bytes).unwrap();
            let decoded = read_blob(None, &header).unwrap().remove(0).decode_f32(&bytes).unwrap();
            *tensor = Stored::f32s(&tensor.shape, &decoded);
            bytes
        } else {
            file(&[(name, tensor)], &[], shift)
        };
        std::fs::write(&path, bytes).unwrap();
        blobs.push(BlobFile {
            path,
            name: Some(name.clone()),
            whole_file: false,
            format: Format::Safetensors,
            extent: None,
        });
    }
    (ModelFiles { config_json: plain.config.to_string().into_bytes(), tensors: blobs }, plain)
}

/// A quantised model gives the same results as one with the decoded floats, except for the rounding of
/// activations to eight bits.
#[test]
fn packed_codes_run_as_they_decode() {
    for (kind, group, dtype, shift) in [
        (Kind::Int4, 32, Dtype::BF16, 1),
        (Kind::Int4, 64, Dtype::F32, 3),
        (Kind::Int8, 64, Dtype::BF16, 0),
        (Kind::Int8, 32, Dtype::F16, 5),
        (Kind::Nvfp4, 16, Dtype::U8, 1),
        (Kind::Mxfp4, 32, Dtype::U8, 7),
        (Kind::Mxfp8, 32, Dtype::U8, 2),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (files, plain) = packed(llama(), (kind, group, dtype), shift, folder.path());
        let decoded = tempfile::tempdir().unwrap();
        let (found, expect) = (logits(&files), logits(&plain.whole(decoded.path())));
        assert!(kind != Kind::Mxfp8 || found == expect, "{kind} {group} {dtype}");
        assert!(error(&found, &expect) <= 1e-2, "{kind} {group} {dtype}");
    }
}

/// Golden vectors of MLX: decoding is bit-exact, and products match to the last ulp of their terms, except
/// for the rounding of activations to eight bits.
#[test]
fn codes_match_the_vectors() {
    let folder = repository("tests/fixtures/mlx-quant");
    for format in ["int4-g32", "int4-g64", "int8-g32", "int8-g64", "nvfp4", "mxfp4", "mxfp8"] {
        for dtype in ["bf16", "f32"] {
            let case = format!("{format}-{dtype}");
            let path = folder.join(format!("{case}.blob.safetensors"));
            let mut blob = MappedTensors::open(&[BlobFile {
                path,
                name: None,
                whole_file: false,
                format: Format::Safetensors,
                extent: None,
            }])
            .unwrap();
            let weight = blob.matrix("model.layers.0.mlp.up_proj.weight", 3, 128).unwrap();
            let path = folder.join(format!("{case}.expect.safetensors"));
            let file = std::fs::read(path).unwrap();
            let header = Header::read(&file).unwrap();
            let numbers = |name: &str| {
                let tensor = header.get(name).unwrap();
                let begin = (header.data_start() + tensor.begin) as usize;
                let bytes = &file[begin..begin + tensor.size_bytes() as usize];
                Stored { dtype: tensor.dtype, shape: vec![], bytes: bytes.to_vec() }.numbers()
            };
            let (dequant, act, matmul) = (numbers("dequant"), numbers("act"), numbers("matmul"));
            for ops in Ops::all() {
                for row in 0..3 {
                    let mut found = vec![0.0; 128];
                    ops.decode_row(&Rows::of(&weight), row, &mut found);
                    assert_eq!(found, dequant[row * 128..(row + 1) * 128], "{case} {}", ops.name);
                }
                let found = ops.matmul(&weight, &act);
                for (index, (found, expect)) in found.iter().zip(&matmul).enumerate() {
                    let (act, row) = (&act[index / 3 * 128..][..128], &dequant[index % 3 * 128..][..128]);
                    let size = |w: &[f32]| w.iter().map(|w| w.abs()).sum::<f32>();
                    let terms: Vec<f32> = act.iter().zip(row).map(|(a, w)| a * w).collect();
                    let mut bound = 256.0 * f32::EPSILON * size(&terms);
                    if format != "mxfp8" {
                        // Each of the 32 activations may be off by half a step.
                        for (act, row) in act.chunks(32).zip(row.chunks(32)) {
                            bound += act.iter().fold(0.0f32, |m, v| m.max(v.abs())) / 254.0 * size(row);
                        }
                    }
                    assert!((found - expect).abs() <= bound, "{case} {}", ops.name);
                }
            }
        }
    }
}

#[test]
fn an_expert_comes_out_of_a_stack() {
    let folder = tempfile::tempdir().unwrap();
    let numbers: Vec<f32> = (0..3 * 4 * 32).map(|n| n as f32).collect();
    let name = "model.layers.0.mlp.experts.up_proj.weight";
    let path = folder.path().join("blob");
    std::fs::write(&path, file(&[(name, &Stored::f32s(&[3, 4, 32], &numbers))], &[], 0)).unwrap();
    let blob = BlobFile {
        path,
        name: Some(name.into()),
        whole_file: false,
        format: Format::Safetensors,
        extent: None,
    };
    let mut tensors = MappedTensors::open(&[blob]).unwrap();
    let expert = |n: usize| format!("model.layers.0.mlp.experts.{n}.up_proj.weight");
    assert!(tensors.has(&expert(2)) && !tensors.has("model.layers.1.mlp.experts.2.up_proj.weight"));
    let weight = tensors.matrix(&expert(2), 4, 32).unwrap();
    assert_eq!(bytemuck::pod_collect_to_vec::<u8, f32>(weight.codes()), numbers[256..]);
    let refused = |error: crate::engine::LoadError| error.to_string();
    assert_eq!(
        tensors.matrix(&expert(3), 4, 32).map_err(refused).unwrap_err(),
        format!("tensor `{name}` has shape [3, 4, 32], expected [4, 4, 32]")
    );
    assert!(tensors.matrix(&expert(1), 4, 16).is_err());
}

#[test]
fn biases_are_added() {
    let folder = tempfile::tempdir().unwrap();
    let bias = |n: usize| (0..n).map(|i| (i as f32 * 0.37).sin()).collect::<Vec<f32>>();
    let zeros = |checkpoint: &mut Checkpoint, names: &[(&str, u64)]| {
        for layer in 0..2 {
            for (name, n) in names {
                let bias = Stored::f32s(&[*n], &vec![0.0; *n as usize]);
                checkpoint.tensors.insert(format!("model.layers.{layer}.{name}.bias"), bias);
            }
        }
    };
    let attention = [
        ("self_attn.q_proj", 64),
        ("self_attn.k_proj", 32),
        ("self_attn.v_proj", 32),
        ("self_attn.o_proj", 64),
    ];
    let mlp = [("mlp.gate_proj", 128), ("mlp.up_proj", 128), ("mlp.down_proj", 64)];

    // A bias of v passes through the softmax unchanged, so after the projection it equals a bias of W_o times
    // it.
    let mut of_v = llama();
    of_v.config["attention_bias"] = json!(true);
    zeros(&mut of_v, &attention);
    let mut of_o = llama();
    of_o.config["attention_bias"] = json!(true);
    zeros(&mut of_o, &attention);
    let v = bias(32);
    of_v.tensors.insert("model.layers.0.self_attn.v_proj.bias".into(), Stored::f32s(&[32], &v));
    let heads: Vec<f32> = (0..64).map(|i| v[i / 32 * 16 + i % 16]).collect();
    let out = of_o.tensors["model.layers.0.self_attn.o_proj.weight"].numbers();
    let moved: Vec<f32> =
        out.chunks(64).map(|row| row.iter().zip(&heads).map(|(w, v)| w * v).sum::<f32>()).collect();
    of_o.tensors.insert("model.layers.0.self_attn.o_proj.bias".into(), Stored::f32s(&[64], &moved));
    let (a, b) = (logits(&of_v.whole(folder.path())), logits(&of_o.whole(folder.path())));
    assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-4));
    assert!(a != logits(&llama().whole(folder.path())));

    // Gate and up biases: 1 in a gate of zeros, up bias u give silu(1) u everywhere.
    let mut of_up = llama();
    let mut of_down = llama();
    for checkpoint in [&mut of_up, &mut of_down] {
        checkpoint.config["mlp_bias"] = json!(true);
        zeros(checkpoint, &mlp);
        for name in ["gate_proj", "up_proj"] {
            let weight = Stored::f32s(&[128, 64], &vec![0.0; 128 * 64]);
            checkpoint.tensors.insert(format!("model.layers.0.mlp.{name}.weight"), weight);
        }
    }
    let up = bias(128);
    of_up.tensors.insert("model.layers.0.mlp.gate_proj.bias".into(), Stored::f32s(&[128], &[1.0; 128]));
    of_up.tensors.insert("model.layers.0.mlp.up_proj.bias".into(), Stored::f32s(&[128], &up));
    let silu = 1.0 / (1.0 + (-1.0f32).exp());
    let down = of_down.tensors["model.layers.0.mlp.down_proj.weight"].numbers();
    let moved: Vec<f32> =
        down.chunks(128).map(|row| row.iter().zip(&up).map(|(w, u)| w * u * silu).sum::<f32>()).collect();
    of_down.tensors.insert("model.layers.0.mlp.down_proj.bias".into(), Stored::f32s(&[64], &moved));
    let (a, b) = (logits(&of_up.whole(folder.path())), logits(&of_down.whole(folder.path())));
    assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-4));
}

#[test]
fn numbers_that_overflow_stop_their_sequence_alone() {
    let folder = tempfile::tempdir().unwrap();
    let mut checkpoint = llama();
    let name = "model.embed_tokens.weight";
    let mut table = checkpoint.tensors[name].numbers();
    table[7 * 64 + 5] = f32::INFINITY;
    table[8 * 64] = f32::NAN;
    checkpoint.tensors.insert(name.into(), Stored::f32s(&[512, 64], &table));
    let files = checkpoint.whole(folder.path());
    for ops in [Ops::scalar(), Ops::best()] {
        for kv_type in [KvType::F32, KvType::F16] {
            let options = LoadOptions { ops, kv_type, ..f32_cache() };
            let mut engine = load(&files, options).unwrap();
            let open: Vec<SequenceId> = (0..3).map(|_| engine.open(4).unwrap()).collect();
            let slice = |n: usize, tokens| Slice { sequence: open[n], tokens, want: RowSelection::Last };
            let logits = engine.step(&[slice(0, &[1, 7]), slice(1, &[1, 2]), slice(2, &[8, 1])]).unwrap();
            assert_eq!(logits.last(0), Err(NonFiniteError));
            assert!(logits.last(1).unwrap().is_some());
            assert_eq!(logits.last(2), Err(NonFiniteError), "{ops:?} {kv_type}");
        }
    }
}

#[test]
fn unsupported_checkpoints_are_refused_with_a_reason() {
    type Change = fn(&mut Checkpoint);
    let cases: &[(Change, &str)] = &[
        (
            |c| c.config["architectures"] = json!(["MambaForCausalLM"]),
            "architecture `MambaForCausalLM` is not supported (supported: LlamaForCausalLM, MistralForCausalLM, \
             MixtralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, Qwen3MoeForCausalLM, Gemma2ForCausalLM, \
             Gemma3ForCausalLM, Gemma3ForConditionalGeneration, Gemma3TextModel, Phi3ForCausalLM, BertModel, RobertaModel, XLMRobertaModel, \
             NomicBertModel, BertForSequenceClassification, RobertaForSequenceClassification, XLMRobertaForSequenceClassification)",
        ),
        (|c| c.config = json!([]), "config.json: it is not a JSON object"),
        (|c| c.config["hidden_size"] = json!(null), "config.json: `hidden_size` is missing"),
        (
            |c| c.config["num_hidden_layers"] = json!(1_000_000),
            "config.json: `num_hidden_layers` is 1000000, which is outside 1 to 4096",
        ),
        (
            |c| c.config["num_key_value_heads"] = json!(3),
            "config.json: `num_key_value_heads`: 4 heads are not a multiple of 3",
        ),
        (
            |c| {
                c.config["architectures"] = json!(["MixtralForCausalLM"]);
                c.config["num_local_experts"] = json!(1);
            },
            "config.json: `num_experts_per_tok` is missing",
        ),
        (
            |c| c.config["hidden_act"] = json!("gelu"),
            "config.json: `hidden_act` `gelu` is not supported (supported: silu, gelu_pytorch_tanh)",
        ),
        (
            |c| c.config["vocab_size"] = json!(500),
            "the configuration has a vocabulary of 500, but tensor `model.embed_tokens.weight` has 512 rows",
        ),
        (
            |c| c.config["num_hidden_layers"] = json!(3),
            "tensor `model.layers.2.input_layernorm.weight` is missing",
        ),
        (
            |c| c.config["intermediate_size"] = json!(96),
            "tensor `model.layers.0.mlp.gate_proj.weight` has shape [128, 64], expected [96, 64]",
        ),
        (
            |c| c.config["attention_bias"] = json!(true),
            "tensor `model.layers.0.self_attn.q_proj.bias` is missing",
        ),
        (|c| drop(c.tensors.remove("lm_head.weight")), "tensor `lm_head.weight` is missing"),
        (
            |c| {
                let norm = Stored { dtype: Dtype::I32, shape: vec![64], bytes: vec![0; 256] };
                c.tensors.insert("model.norm.weight".into(), norm);
            },
            "tensor `model.norm.weight` has dtype I32, which is not supported (supported: F32, F16, BF16, F8_E4M3 and I8 with scales, int4, int8, nvfp4, mxfp4, mxfp8, the block types of GGUF)",
        ),
        (
            |c| {
                let q = Stored { dtype: Dtype::F64, shape: vec![64, 64], bytes: vec![0; 64 * 64 * 8] };
                c.tensors.insert("model.layers.1.self_attn.q_proj.weight".into(), q);
            },
            "tensor `model.layers.1.self_attn.q_proj.weight` has dtype F64, which is not supported (supported: F32, F16, BF16, F8_E4M3 and I8 with scales, int4, int8, nvfp4, mxfp4, mxfp8, the block types of GGUF)",
        ),
    ];
    let folder = tempfile::tempdir().unwrap();
    for (change, expect) in cases {
        let mut checkpoint = llama();
        change(&mut checkpoint);
        let error = load(&checkpoint.whole(folder.path()), f32_cache()).err().expect(expect);
        assert_eq!(error.to_string(), *expect);
    }
}

#[test]
fn files_that_cannot_be_read_are_refused_by_name_without_their_folder() {
    let folder = tempfile::tempdir().unwrap();
    let good = llama().whole(folder.path());
    let check = |tensors: Vec<BlobFile>, expect: &str| {
        let files = ModelFiles { tensors, ..good.clone() };
        let error = load(&files, f32_cache()).err().expect(expect).to_string();
        assert!(!error.contains(&folder.path().display().to_string()), "{error}");
        assert!(error.starts_with(expect), "{error}");
    };
    let blob = |name: &str| BlobFile {
        path: folder.path().join(name),
        name: None,
        whole_file: false,
        format: Format::Safetensors,
        extent: None,
    };
    std::fs::write(folder.path().join("short"), b"12345").unwrap();
    std::fs::write(folder.path().join("empty"), b"").unwrap();
    check(vec![blob("absent")], "cannot map blob absent");
    check(vec![blob(".")], "cannot map blob ");
    check(vec![blob("short")], "blob short: file of 5 bytes is too short");
    check(vec![blob("empty")], "blob empty: file of 0 bytes is too short");
    let twice = vec![good.tensors[0].clone(), good.tensors[0].clone()];
    check(
        twice,
        "tensor `lm_head.weight` occurs twice: in blob model.safetensors and in blob model.safetensors",
    );
}

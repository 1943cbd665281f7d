//! Whole conversions of GGUF files to checkpoints: the way back from each family's checkpoint, and refusals.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::sync::Arc;

use serde_json::{Value as Json, json};

use crate::convert::tests::{Folder, made, planned, repository};
use crate::convert::{FileType, FloatType};
use crate::gguf::{Array, Header, Metadata, NewTensor, Value};
use crate::import::{Conversion, Options, Plan, Source, plan};
use crate::media_type;
use crate::quant::ggml::Type;
use crate::safetensors;
use crate::tensor;

/// The bytes of the layers, by their names.
type Layers = BTreeMap<String, Vec<u8>>;

fn layers(plan: &Plan, folder: &Folder, of_tensors: bool) -> Layers {
    let source: Arc<dyn Source> = Arc::new(folder.clone());
    let chosen =
        plan.layers.iter().filter(|layer| (layer.media_type == media_type::OLLAMA_TENSOR) == of_tensors);
    let bytes = chosen.map(|layer| {
        let mut bytes = Vec::new();
        layer.reader(&source).read_to_end(&mut bytes).expect("readable");
        assert_eq!(bytes.len() as u64, layer.size);
        (layer.name.clone().expect("a name"), bytes)
    });
    bytes.collect()
}

/// A converted GGUF: its plan, the blobs of its tensors and its other files.
struct Converted {
    plan: Plan,
    tensors: Layers,
    files: Layers,
}

impl Converted {
    fn new(gguf: &[u8], float: Option<FloatType>) -> Converted {
        let folder = Folder::one("mini.gguf", gguf.to_vec());
        let plan = planned(&folder, Conversion::Checkpoint(float)).expect("a model that can be converted");
        let (tensors, files) = (layers(&plan, &folder, true), layers(&plan, &folder, false));
        Converted { plan, tensors, files }
    }

    fn json(&self, path: &str) -> Json {
        serde_json::from_slice(&self.files[path]).expect(path)
    }

    /// A folder with the checkpoint, each blob as a file of its own.
    fn folder(&self) -> Folder {
        let blobs = self.tensors.iter().enumerate();
        let blobs = blobs.map(|(at, (_, bytes))| (format!("{at}.safetensors"), bytes.clone()));
        Folder(blobs.chain(self.files.clone()).collect())
    }
}

/// The values of all tensors of blobs, as bits.
fn values(blobs: &Layers) -> BTreeMap<String, Vec<u32>> {
    let mut values = BTreeMap::new();
    for bytes in blobs.values() {
        let header = safetensors::Header::read(bytes).unwrap();
        for tensor in tensor::read_plain(&header) {
            let bits = tensor.decode_f32(bytes).unwrap().into_iter().map(f32::to_bits).collect();
            values.insert(tensor.name, bits);
        }
    }
    values
}

fn families() -> Vec<String> {
    let folders = fs::read_dir(repository("tests/fixtures/arch")).unwrap().map(Result::unwrap);
    let folders = folders.filter(|entry| entry.path().is_dir());
    let mut names: Vec<String> =
        folders.map(|entry| entry.file_name().to_str().unwrap().to_owned()).collect();
    names.sort();
    assert!(names.len() >= 11, "{names:?}");
    names
}

#[test]
fn a_checkpoint_comes_back_from_its_gguf() {
    for name in families() {
        let original = Folder::read(&format!("tests/fixtures/arch/{name}"));
        let direct = plan(&original, &Options::default()).unwrap();
        let direct = layers(&direct, &original, true);
        let config: Json = serde_json::from_slice(&original.0["config.json"]).unwrap();
        let own = config["torch_dtype"].as_str().or(config["dtype"].as_str()).unwrap();
        let (name_of_type, own) = (
            own,
            match own {
                "bfloat16" => FloatType::BF16,
                _ => FloatType::F32,
            },
        );
        let (gguf, _) = made(&original, FileType::F32);
        let back = Converted::new(&gguf, None);
        // 1. The values are the same bits. Norms of Gemma lose what adding 1 lost, but give the same sums.
        let typed = Converted::new(&gguf, Some(own));
        let is_norm = |tensor: &str| name.starts_with("gemma") && tensor.ends_with("norm.weight");
        for back in [&back, &typed] {
            let (ours, theirs) = (values(&back.tensors), values(&direct));
            assert_eq!(ours.keys().collect::<Vec<_>>(), theirs.keys().collect::<Vec<_>>(), "{name}");
            for (tensor, ours) in &ours {
                let plus = if is_norm(tensor) { 1.0 } else { 0.0 };
                let sums = |bits: &[u32]| -> Vec<u32> {
                    bits.iter().map(|bits| (f32::from_bits(*bits) + plus).to_bits()).collect()
                };
                assert!(sums(ours) == sums(&theirs[tensor]), "{name}: {tensor}");
            }
        }
        // 2. In the type of the original, the blobs are its own.
        for (layer, bytes) in direct.iter().filter(|(layer, _)| !is_norm(layer)) {
            assert!(typed.tensors[layer] == *bytes, "{name}: {layer}");
        }
        assert_eq!(typed.tensors.len(), direct.len(), "{name}");
        assert_eq!(typed.json("config.json")["torch_dtype"], name_of_type, "{name}");
        // 3. The same GGUF results again, with its keys and its vocabulary.
        for (of, file_type) in [(&back, FileType::F32), (&typed, FileType::F32), (&typed, FileType::Q8_0)] {
            let again = made(&of.folder(), file_type).0;
            let expect = if file_type == FileType::F32 { gguf.clone() } else { made(&original, file_type).0 };
            let headers = [&again, &expect].map(|file| Header::parse(file, file.len() as u64).unwrap());
            for (key, value) in headers[1].metadata.iter() {
                assert_eq!(headers[0].metadata.get(key), Some(value), "{name}: {key}");
            }
            assert_eq!(headers[0].metadata.len(), headers[1].metadata.len(), "{name}");
            assert!(again == expect, "{name} to {file_type}");
        }
    }
}

/// The fields that a runtime reads of the rotary embedding, wherever a file has them.
fn rope(config: &Json) -> Json {
    let parameters = &config["rope_parameters"];
    let global = parameters.get("full_attention").unwrap_or(parameters);
    let pick = |value: &Json, other: &Json| if value.is_null() { other.clone() } else { value.clone() };
    let mut scaling = pick(global, &config["rope_scaling"]);
    let theta = pick(&scaling["rope_theta"], &config["rope_theta"]);
    if let Some(scaling) = scaling.as_object_mut() {
        scaling.remove("rope_theta");
        if scaling.get("rope_type") == Some(&json!("default")) {
            return json!([theta, null]);
        }
    }
    json!([theta, scaling])
}

#[test]
fn the_fields_of_config_come_back() {
    // `mistral` and `mixtral` with a window cannot be told from others in a GGUF.
    const FIELDS: [&str; 24] = [
        "architectures",
        "model_type",
        "hidden_size",
        "intermediate_size",
        "moe_intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "num_experts",
        "num_local_experts",
        "num_experts_per_tok",
        "norm_topk_prob",
        "max_position_embeddings",
        "original_max_position_embeddings",
        "rms_norm_eps",
        "vocab_size",
        "tie_word_embeddings",
        "sliding_window",
        "layer_types",
        "query_pre_attn_scalar",
        "attn_logit_softcapping",
        "final_logit_softcapping",
        "hidden_activation",
        "bos_token_id",
    ];
    for name in families().into_iter().filter(|name| !name.starts_with("mistral")) {
        let original = Folder::read(&format!("tests/fixtures/arch/{name}"));
        let mut config: Json = serde_json::from_slice(&original.0["config.json"]).unwrap();
        let back = Converted::new(&made(&original, FileType::BF16).0, None);
        let ours = back.json("config.json");
        // Absent where all layers have full attention.
        if !name.starts_with("gemma3") {
            config["layer_types"] = Json::Null;
        }
        for field in FIELDS {
            // A window that no layer uses.
            if field == "sliding_window" && config["use_sliding_window"] == false {
                continue;
            }
            assert_eq!(ours[field], config[field], "{name}: {field}");
        }
        let head_dim = config["head_dim"].as_u64().unwrap_or(
            config["hidden_size"].as_u64().unwrap() / config["num_attention_heads"].as_u64().unwrap(),
        );
        assert_eq!(ours["head_dim"], head_dim, "{name}");
        assert_eq!(ours["eos_token_id"], config["eos_token_id"], "{name}");
        assert_eq!(rope(&ours), rope(&config), "{name}");
    }
}

#[test]
fn blocks_are_decoded_and_named() {
    for name in ["llama", "mixtral", "phi3", "gemma3"] {
        let theirs = fs::read(repository(&format!("tests/fixtures/gguf/{name}-q8_0.gguf"))).unwrap();
        let header = Header::parse(&theirs, theirs.len() as u64).unwrap();
        let back = Converted::new(&theirs, Some(FloatType::F32));
        let direct = Folder::one("mini.gguf", theirs.clone());
        let floats = values(&back.tensors);
        // The same numbers as the decoder's, for a tensor that is neither reordered nor stacked.
        let entry = header.to_tensors().into_iter().find(|one| one.name == "blk.0.ffn_down.weight");
        if let Some(entry) = entry {
            let expect: Vec<u32> = entry.decode_f32(&theirs).unwrap().into_iter().map(f32::to_bits).collect();
            assert!(floats["model.layers.0.mlp.down_proj.weight"] == expect, "{name}");
        }
        let notices = back.plan.notices.join("\n");
        assert!(notices.contains("decoded to F32") && notices.contains("of Q8_0 (`"), "{notices}");
        let plain = planned(&direct, Conversion::Checkpoint(None)).unwrap();
        assert!(plain.notices.join("\n").contains("decoded to BF16"), "{:?}", plain.notices);
        assert_eq!(plain.config.file_type, "BF16", "{name}");
        assert_eq!(plain.config.model_format, "safetensors");
    }
}

/// A small sound GGUF, whose keys and tensors a test may change.
fn small() -> (Metadata, Vec<NewTensor>) {
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", "llama");
    for (key, value) in [
        ("llama.context_length", 64u32),
        ("llama.embedding_length", 4),
        ("llama.block_count", 1),
        ("llama.feed_forward_length", 6),
        ("llama.attention.head_count", 2),
        ("tokenizer.ggml.eos_token_id", 2),
    ] {
        metadata.set(key, value);
    }
    metadata.set("llama.attention.layer_norm_rms_epsilon", 1e-5f32);
    metadata.set("tokenizer.ggml.model", "gpt2");
    metadata.set("tokenizer.ggml.pre", "qwen2");
    metadata.set("tokenizer.ggml.tokens", Array::String(["a", "b", "<end>"].iter().collect()));
    metadata.set("tokenizer.ggml.token_type", Array::I32(vec![1, 1, 3]));
    metadata.set("tokenizer.ggml.merges", Array::String(["a b"].iter().collect()));
    let tensor =
        |name: &str, dims: &[u64]| NewTensor { name: name.to_owned(), dims: dims.to_vec(), ty: Type::F32 };
    let tensors = vec![
        tensor("token_embd.weight", &[4, 3]),
        tensor("output_norm.weight", &[4]),
        tensor("blk.0.attn_norm.weight", &[4]),
        tensor("blk.0.attn_q.weight", &[4, 4]),
        tensor("blk.0.attn_k.weight", &[4, 4]),
        tensor("blk.0.attn_v.weight", &[4, 4]),
        tensor("blk.0.attn_output.weight", &[4, 4]),
        tensor("blk.0.ffn_norm.weight", &[4]),
        tensor("blk.0.ffn_gate.weight", &[4, 6]),
        tensor("blk.0.ffn_up.weight", &[4, 6]),
        tensor("blk.0.ffn_down.weight", &[6, 4]),
    ];
    (metadata, tensors)
}

fn folder(metadata: Metadata, tensors: Vec<NewTensor>) -> Folder {
    let header = Header::new(metadata, tensors).unwrap();
    let mut bytes = header.to_bytes();
    bytes.resize(header.file_len() as usize, 0);
    Folder::one("small.gguf", bytes)
}

#[test]
fn unsound_files_are_refused() {
    let check = |change: &dyn Fn(&mut Metadata, &mut Vec<NewTensor>), expect: &str| {
        let (mut metadata, mut tensors) = small();
        change(&mut metadata, &mut tensors);
        let error = planned(&folder(metadata, tensors), Conversion::Checkpoint(None)).map(drop).unwrap_err();
        assert!(error.contains(expect), "{error}\n  expected {expect}");
    };
    let (metadata, tensors) = small();
    planned(&folder(metadata, tensors), Conversion::Checkpoint(None)).expect("sound before it is changed");
    let set = |key: &'static str, value: Value, expect: &str| {
        check(&|metadata: &mut Metadata, _: &mut Vec<NewTensor>| metadata.set(key, value.clone()), expect);
    };
    set(
        "general.architecture",
        "mamba".into(),
        "`mamba` is not converted to a checkpoint (known: llama, qwen2, qwen3",
    );
    set("llama.attention.head_count", Value::U32(0), "`llama.attention.head_count` 0, expected at least 1");
    set("llama.attention.head_count", Value::U64(1 << 40), "expected a 32-bit number");
    set("llama.attention.head_count", Value::Array(Array::U32(vec![2, 3])), "the same number for all layers");
    set(
        "llama.attention.head_count_kv",
        Value::U32(1),
        "`blk.0.attn_k.weight` of the GGUF has shape [4, 4], expected [2, 4]",
    );
    set("llama.attention.key_length", Value::U32(u32::MAX), "`llama.attention.key_length`");
    set("llama.attention.key_length", Value::U32(6), "shape [4, 4], expected [12, 4]");
    set("llama.block_count", Value::U32(u32::MAX), "`llama.block_count` 4294967295, expected at most");
    set("llama.block_count", Value::U32(2), "`blk.1.attn_norm.weight` is missing");
    set("llama.embedding_length", Value::U32(8), "expected [3, 8]");
    set("llama.feed_forward_length", Value::U32(u32::MAX), "expected [4294967295, 4]");
    set("llama.vocab_size", Value::U32(4), "`llama.vocab_size` 4, expected the number of rows");
    set("llama.rope.dimension_count", Value::U32(3), "`llama.rope.dimension_count`");
    set("llama.rope.freq_base", Value::F32(f32::NAN), "`llama.rope.freq_base`");
    set("llama.rope.scaling.type", "spiral".into(), "`llama.rope.scaling.type`");
    set("llama.expert_count", Value::U32(2), "`llama.expert_used_count`");
    set("tokenizer.ggml.model", "rwkv".into(), "its kind is `rwkv`, expected gpt2 or llama");
    set("tokenizer.ggml.pre", "no-such-name".into(), "its pre-tokeniser is `no-such-name`");
    set("tokenizer.ggml.tokens", Value::U32(3), "expected a list of strings");
    let two: Array = Array::String(["a", "b"].iter().collect());
    set("tokenizer.ggml.tokens", Value::Array(two), "of 2 tokens, and `token_embd.weight` of 3 rows");
    set("tokenizer.ggml.token_type", Value::Array(Array::I32(vec![1])), "`tokenizer.ggml.token_type`");
    set("tokenizer.ggml.model", "llama".into(), "it has no token `<0x00>`");
    let remove = |key: &'static str| {
        check(
            &|metadata: &mut Metadata, _: &mut Vec<NewTensor>| drop(metadata.remove(key)),
            &format!("`{key}`"),
        );
    };
    for key in [
        "general.architecture",
        "llama.context_length",
        "llama.feed_forward_length",
        "llama.attention.layer_norm_rms_epsilon",
        "tokenizer.ggml.model",
        "tokenizer.ggml.tokens",
        "tokenizer.ggml.merges",
    ] {
        remove(key);
    }
    for at in 0..small().1.len() {
        check(&|_: &mut Metadata, tensors: &mut Vec<NewTensor>| drop(tensors.remove(at)), "is missing");
    }
    let push = |name: &'static str, dims: &'static [u64], ty: Type, expect: &str| {
        let add = |_: &mut Metadata, tensors: &mut Vec<NewTensor>| {
            tensors.push(NewTensor { name: name.to_owned(), dims: dims.to_vec(), ty });
        };
        check(&add, expect);
    };
    push(
        "blk.1.attn_norm.weight",
        &[4],
        Type::F32,
        "`blk.1.attn_norm.weight` is not part of architecture llama",
    );
    push("blk.00.attn_norm.weight", &[4], Type::F32, "`blk.00.attn_norm.weight` is not part");
    push("blk.0.ffn_up_exps.weight", &[4, 6, 2], Type::F32, "`blk.0.ffn_up_exps.weight` is not part");
    push("v.patch_embd.weight", &[4], Type::F32, "`v.patch_embd.weight` is not part");
    push("output.weight", &[4, 3], Type::I32, "`output.weight` is I32, expected BF16, F16 or F32");
    push("output.weight", &[3, 4], Type::F32, "`output.weight` of the GGUF has shape [4, 3]");
    push("rope_freqs.weight", &[2], Type::F32, "`rope_freqs.weight` of the GGUF has shape [2], expected [1]");
    push("rope_freqs.weight", &[1], Type::F32, "`rope_freqs.weight` 0, expected positive numbers");
    push("rope_factors_long.weight", &[1], Type::F32, "`rope_factors_long.weight`");
}

#[test]
fn only_one_gguf_is_converted() {
    let (metadata, tensors) = small();
    let gguf = folder(metadata.clone(), tensors.clone()).0["small.gguf"].clone();
    let refused = |folder: &Folder| planned(folder, Conversion::Checkpoint(None)).map(drop).unwrap_err();
    let mut two = Folder::one("small.gguf", gguf.clone());
    two.0.insert("other.gguf".to_owned(), gguf.clone());
    assert!(refused(&two).contains("`other.gguf` and `small.gguf` are two models"), "{}", refused(&two));
    let mut both = Folder::read("tests/fixtures/arch/llama");
    both.0.insert("small.gguf".to_owned(), gguf.clone());
    assert!(refused(&both).contains("`model.safetensors` is not a GGUF file"));
    let mut adapter = metadata;
    adapter.set("general.type", "adapter");
    assert!(refused(&folder(adapter, tensors)).contains("`small.gguf` is a projector or an adapter"));
    let gguf = Folder::one("small.gguf", gguf);
    let error = planned(&gguf, Conversion::Gguf(None)).map(drop).unwrap_err();
    assert!(error.contains("`small.gguf` is a GGUF file already"), "{error}");
}

#[test]
fn a_gguf_without_a_type_keeps_the_floats() {
    let original = Folder::read("tests/fixtures/arch/mixtral");
    let plan = planned(&original, Conversion::Gguf(None)).unwrap();
    assert_eq!(plan.config.file_type, "BF16");
    let typed = planned(&original, Conversion::Gguf(Some(FileType::BF16))).unwrap();
    assert!(layers(&plan, &original, false) == layers(&typed, &original, false));
}

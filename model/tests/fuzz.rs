//! What a stranger's bytes go through first, fed with damaged copies of good ones: nothing may panic, and nothing may ask for
//! more memory than its input is worth. Seconds by default; LODE_FUZZ_SECONDS runs each target that long, and LODE_FUZZ_SEED
//! repeats a run. The input that a target died of is printed.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lode_model::digest::Digest;
use lode_model::files_view::{FileView, check_path};
use lode_model::gguf::{self, Array, Metadata, NewTensor, Strings};
use lode_model::import::{self, Options, Quantize, ReadAt, Source, SourceFile};
use lode_model::manifest::Manifest;
use lode_model::modelfile::Modelfile;
use lode_model::onnx;
use lode_model::quant::ggml::Type;
use lode_model::recognise::{Artifact, tar};
use lode_model::reference::Name;
use lode_model::safetensors::Header;
use lode_model::tensor::{read_blob, read_plain};
use lode_model::{index, lineage, media_type as mt};
use serde_json::json;

/// A small generator of our own, so that a seed means the same everywhere (Marsaglia's xorshift64*).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }
}

/// Numbers at which counting goes wrong.
const EDGES: [u64; 12] =
    [0, 1, 7, 0x7f, 0x80, 0xff, 0xffff, 0x7fff_ffff, 0xffff_ffff, i64::MAX as u64, 1 << 63, u64::MAX];

/// A damaged copy of one seed, or of two put together.
fn damaged(random: &mut Random, seeds: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = seeds[random.below(seeds.len())].clone();
    for _ in 0..=random.below(6) {
        let at = random.below(bytes.len() + 1);
        match random.below(8) {
            0 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            1 if at < bytes.len() => bytes[at] = random.next() as u8,
            2 => bytes.truncate(at),
            3 => {
                let edge = EDGES[random.below(EDGES.len())].to_le_bytes();
                let len = [1, 2, 4, 8][random.below(4)].min(bytes.len() - at);
                bytes[at..at + len].copy_from_slice(&edge[..len]);
            }
            4 => {
                let other = &seeds[random.below(seeds.len())];
                let from = random.below(other.len() + 1);
                let piece = other[from..].iter().copied().take(random.below(64)).collect::<Vec<_>>();
                bytes.splice(at..at, piece);
            }
            5 => {
                let end = (at + random.below(32)).min(bytes.len());
                bytes.drain(at..end);
            }
            6 => {
                // Another number in a text.
                let digits = EDGES[random.below(EDGES.len())].to_string();
                let run = bytes[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
                if run > 0 {
                    bytes.splice(at..at + run, digits.into_bytes());
                }
            }
            _ => {
                let end = (at + random.below(16)).min(bytes.len());
                let piece = bytes[at..end].to_vec();
                bytes.splice(at..at, piece);
            }
        }
        bytes.truncate(1 << 16);
    }
    bytes
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Feeds a target until its time is over.
fn run(target: &str, seeds: &[Vec<u8>], check: impl Fn(&[u8])) {
    seeds.iter().for_each(|seed| check(seed));
    let time = Duration::from_secs(setting("LODE_FUZZ_SECONDS").unwrap_or(2));
    let seed = setting("LODE_FUZZ_SEED").unwrap_or_else(|| {
        std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(1, |now| now.as_nanos() as u64)
    });
    let (mut random, started, mut inputs) = (Random(seed | 1), Instant::now(), 0u64);
    while inputs.is_multiple_of(64) && started.elapsed() < time || !inputs.is_multiple_of(64) {
        let input = damaged(&mut random, seeds);
        let began = Instant::now();
        if catch_unwind(AssertUnwindSafe(|| check(&input))).is_err() {
            panic!(
                "{target} died of {:?} (LODE_FUZZ_SEED={seed}, input {inputs})",
                String::from_utf8_lossy(&input)
            );
        }
        assert!(
            began.elapsed() < Duration::from_secs(10),
            "{target} took {:?} for {input:02x?}",
            began.elapsed()
        );
        inputs += 1;
    }
    println!("{target}: {inputs} inputs in {:.1} s, seed {seed}", started.elapsed().as_secs_f64());
}

fn file(header: &str, data_len: usize) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0; data_len]].concat()
}

fn safetensors_seeds() -> Vec<Vec<u8>> {
    vec![
        file(
            r#"{"__metadata__":{"format":"pt"},"a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]}}"#,
            12,
        ),
        file(
            r#"{"__metadata__":{"quant_type":"int4","group_size":"64"},"a":{"dtype":"U32","shape":[2,8],"data_offsets":[0,64]},"a.bias":{"dtype":"BF16","shape":[2,1],"data_offsets":[64,68]},"a.scale":{"dtype":"BF16","shape":[2,1],"data_offsets":[68,72]}}"#,
            72,
        ),
        file(
            r#"{"__metadata__":null,"a":{"dtype":"U32","shape":[1,2],"data_offsets":[0,8]},"a.scale":{"dtype":"U8","shape":[1,1],"data_offsets":[8,9]}}"#,
            9,
        ),
        file(r#"{"data":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}   "#, 4),
        file("{}", 0),
    ]
}

#[test]
fn safetensors() {
    run("safetensors", &safetensors_seeds(), |bytes| {
        let Ok(header) = Header::read(&bytes.to_vec()) else { return };
        let _ = read_blob(Some("layer"), &header);
        for tensor in read_plain(&header) {
            // What was checked can be cut and decoded.
            let _ = tensor.decode_f32(bytes);
            let _ = tensor.rows(0, 1).map(|rows| rows.decode_f32(bytes));
        }
    });
}

/// Files in memory, as an import reads them.
#[derive(Clone)]
struct Folder(BTreeMap<&'static str, Vec<u8>>);

impl Source for Folder {
    fn files(&self) -> Vec<SourceFile> {
        let file = |(path, bytes): (&&str, &Vec<u8>)| SourceFile {
            path: (*path).to_owned(),
            size: bytes.len() as u64,
        };
        self.0.iter().map(file).collect()
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn ReadAt>> {
        Ok(Box::new(self.0.get(path).ok_or(io::ErrorKind::NotFound)?.clone()))
    }
}

/// Plans an import and reads the beginning of each layer, which has the length that the plan says or ends in an error.
fn import(folder: &Folder, quantize: Option<&str>) {
    let quantize = quantize.map(|name| name.parse::<Quantize>().unwrap());
    let Ok(plan) = import::plan(folder, &Options { quantize, ..Options::default() }) else { return };
    let source: Arc<dyn Source> = Arc::new(folder.clone());
    for layer in &plan.layers {
        let mut bytes = Vec::new();
        let most = 1 << 18;
        if layer.checked_reader(&source).take(most).read_to_end(&mut bytes).is_ok() {
            assert_eq!(bytes.len() as u64, layer.size.min(most));
        }
    }
}

/// A GGUF of some tensors, every kind of value among its keys.
fn gguf_seed(types: &[Type]) -> Vec<u8> {
    let mut metadata = Metadata::new();
    for (key, text) in [
        ("general.architecture", "llama"),
        ("general.name", "m"),
        ("tokenizer.ggml.model", "gpt2"),
        ("general.base_model.0.repo_url", "https://hub.local/a"),
    ] {
        metadata.set(key, text);
    }
    for key in ["llama.block_count", "llama.embedding_length", "general.base_model.count"] {
        metadata.set(key, 2u32);
    }
    metadata.set("llama.attention.head_count", Array::I32(vec![2, 2]));
    metadata.set("llama.rope.freq_base", 1e4f32);
    metadata.set("tokenizer.ggml.add_bos_token", true);
    metadata.set("tokenizer.ggml.tokens", Array::String(["a", "b\u{e4}"].iter().collect::<Strings>()));
    metadata.set("tokenizer.ggml.scores", Array::F32(vec![0.0, -1.0]));
    let tensors = types.iter().enumerate().map(|(at, ty)| NewTensor {
        name: ["token_embd.weight", "blk.0.attn_q.weight", "output.weight"][at % 3].to_owned(),
        dims: vec![256, 2],
        ty: *ty,
    });
    let header = gguf::Header::new(metadata, tensors).unwrap();
    let mut bytes = header.to_bytes();
    bytes.resize(header.file_len() as usize, 1);
    bytes
}

#[test]
fn ggufs() {
    let seeds = [
        gguf_seed(&[]),
        gguf_seed(&[Type::F32, Type::BF16]),
        gguf_seed(&[Type::Q4_K, Type::Q8_0, Type::F16]),
        gguf_seed(&[Type::IQ2_XXS, Type::MXFP4, Type::TQ1_0]),
    ];
    run("gguf", &seeds, |bytes| {
        let Ok(header) = gguf::Header::read(&bytes.to_vec()) else { return };
        let metadata = &header.metadata;
        let _ = (metadata.capabilities(), metadata.to_json(true), lineage::of_gguf(metadata));
        let _ = (header.quantisation(), header.elements());
        for tensor in header.to_tensors() {
            let part = &tensor.parts.weight;
            assert!(part.offset + part.size_bytes <= bytes.len() as u64, "{tensor:?}");
            let _ = tensor.rows(0, 1).map(|rows| rows.decode_f32(bytes));
        }
        // What is written again reads the same.
        let tensors = header.tensors.iter().map(|entry| NewTensor {
            name: entry.name.clone(),
            dims: entry.dims.clone(),
            ty: entry.ty,
        });
        if let Ok(again) = gguf::Header::new(metadata.clone(), tensors) {
            // As bytes, for what is no number is not equal to itself.
            let written = again.to_bytes();
            let read = gguf::Header::parse(&written, again.file_len()).map(|read| read.to_bytes());
            assert_eq!(read.ok(), Some(written));
        }
        let folder = Folder(BTreeMap::from([("m.gguf", bytes.to_vec())]));
        import(&folder, None);
        import(&folder, Some("q4_K_M"));
    });
}

#[test]
fn onnx_files() {
    let field = |number: u8, bytes: &[u8]| [&[number << 3 | 2, bytes.len() as u8], bytes].concat();
    let entry =
        |key: &str, value: &str| field(13, &[field(1, key.as_bytes()), field(2, value.as_bytes())].concat());
    let here = [&[8, 2, 8, 3, 16, 1][..], &field(8, b"w"), &field(9, &[7; 24])].concat();
    let coded = [&[8, 2, 16, 7][..], &field(8, b"shape"), &field(7, &[1, 2])].concat();
    let outside = [
        &[8, 4, 16, 1][..],
        &field(8, b"out"),
        &entry("location", "m.data"),
        &entry("offset", "0"),
        &[112, 1],
    ]
    .concat();
    let graph = [field(2, b"g"), field(5, &here), field(5, &coded), field(5, &outside)].concat();
    let model = [&[8, 8][..], &field(2, b"maker"), &field(7, &graph)].concat();
    run("onnx", &[model, [&[8, 8][..], &field(7, &field(5, &here))].concat()], |bytes| {
        if let Ok(model) = onnx::Model::read(&bytes.to_vec()) {
            for tensor in &model.tensors {
                let _ = (tensor.dtype(), tensor.size_bytes());
                if let onnx::Data::Here { offset, length } = tensor.data {
                    assert!(offset + length <= bytes.len() as u64, "{tensor:?}");
                }
            }
        }
        import(&Folder(BTreeMap::from([("m.onnx", bytes.to_vec()), ("m.data", vec![1; 64])])), None);
    });
}

/// The checkpoint of a llama of width 32 and one block, without its tokenizer and its configuration.
fn tiny_weights() -> Vec<u8> {
    let (mut table, mut end) = (serde_json::Map::new(), 0);
    for (name, shape) in [
        ("model.embed_tokens.weight", &[4, 32][..]),
        ("model.norm.weight", &[32]),
        ("model.layers.0.input_layernorm.weight", &[32]),
        ("model.layers.0.post_attention_layernorm.weight", &[32]),
        ("model.layers.0.self_attn.q_proj.weight", &[32, 32]),
        ("model.layers.0.self_attn.k_proj.weight", &[32, 32]),
        ("model.layers.0.self_attn.v_proj.weight", &[32, 32]),
        ("model.layers.0.self_attn.o_proj.weight", &[32, 32]),
        ("model.layers.0.mlp.gate_proj.weight", &[32, 32]),
        ("model.layers.0.mlp.up_proj.weight", &[32, 32]),
        ("model.layers.0.mlp.down_proj.weight", &[32, 32]),
    ] {
        let begin = end;
        end += 2 * shape.iter().product::<usize>();
        table.insert(name.to_owned(), json!({"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}));
    }
    file(&serde_json::Value::Object(table).to_string(), end)
}

#[test]
fn conversions() {
    let config = json!({"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 2, "intermediate_size": 32, "vocab_size": 4, "rms_norm_eps": 1e-5, "rope_theta": 1e4,
        "max_position_embeddings": 64, "tie_word_embeddings": true, "bos_token_id": 0, "eos_token_id": [1],
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32}})
    .to_string()
    .into_bytes();
    let tokenizer =
        json!({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
        "added_tokens": [{"id": 3, "content": "<s>", "special": true}]})
        .to_string()
        .into_bytes();
    let pieces = json!({"model": {"type": "BPE", "byte_fallback": true, "unk_token": "<unk>",
            "vocab": {"<unk>": 0, "\u{2581}": 1, "a": 2, "\u{2581}a": 3}, "merges": ["\u{2581} a"]},
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u{2581}"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"}]}})
    .to_string()
    .into_bytes();
    let weights = tiny_weights();
    let folder = |config: &[u8], tokenizer: &[u8]| {
        Folder(BTreeMap::from([
            ("config.json", config.to_vec()),
            ("tokenizer.json", tokenizer.to_vec()),
            ("model.safetensors", weights.clone()),
        ]))
    };
    // The seeds are such that damage is what stops them.
    let sound = folder(&config, &tokenizer);
    let quantize = Some("q8_0".parse().unwrap());
    let made = import::plan(&sound, &Options { quantize, ..Options::default() }).unwrap();
    assert_eq!(made.tensors, 12);
    run("conversion", &[config.clone(), tokenizer.clone(), pieces], |bytes| {
        import(&folder(bytes, &tokenizer), Some("q8_0"));
        import(&folder(&config, bytes), Some("q4_0"));
    });
}

#[test]
fn modelfiles() {
    let seeds = [
        "FROM team/mini:8b\nSYSTEM \"\"\"one\r\ntwo \"three\" \"\"\"\nPARAMETER stop \"<end>\"\nPARAMETER top_k 4\n",
        "# made\nfrom ./x.gguf\nTEMPLATE {{ .Prompt }}\nMESSAGE user hi\nLICENSE \"\"\nADAPTER a\nREQUIRES v0.1.2-rc1\n",
        "\u{feff}FROM \u{e4}\nRENDERER r\nPARSER p\nDRAFT d\nPARAMETER mirostat 1\nPARAMETER use_mmap true",
    ];
    let mut seeds: Vec<Vec<u8>> = seeds.iter().map(|seed| seed.as_bytes().to_vec()).collect();
    seeds.push("\u{feff}FROM a".encode_utf16().flat_map(u16::to_le_bytes).collect());
    run("modelfile", &seeds, |bytes| {
        let Ok(modelfile) = Modelfile::parse_settings(bytes) else { return };
        let printed = modelfile.to_string();
        assert_eq!(Modelfile::parse_settings(printed.as_bytes()), Ok(modelfile), "{printed:?}");
    });
}

fn manifest_seeds() -> Vec<Vec<u8>> {
    let layer = |kind: &str, key: &str, value: &str| match key {
        "name" => {
            json!({"mediaType": kind, "digest": Digest::sha256(value.as_bytes()), "size": 9, "name": value})
        }
        key => {
            json!({"mediaType": kind, "digest": Digest::sha256(value.as_bytes()), "size": 9, "annotations": {key: value}})
        }
    };
    let tensor = "application/vnd.ollama.image.tensor; name=a.weight; dtype=F32; shape=1,2";
    let kinds = [
        (mt::DOCKER_CONFIG, vec![layer(tensor, "x", "y"), layer(mt::OLLAMA_JSON, "name", "config.json")]),
        (
            mt::MODELPACK_CONFIG,
            vec![layer(
                "application/vnd.cncf.model.weight.v1.tar",
                mt::FILEPATH_ANNOTATION,
                "m/a.safetensors",
            )],
        ),
        (
            mt::DOCKER_MODEL_CONFIG_V01,
            vec![layer(mt::DOCKER_MODEL_GGUF, "x", "y"), layer(mt::DOCKER_MODEL_GGUF, "x", "z")],
        ),
        (mt::KITOPS_CONFIG, vec![layer("application/vnd.kitops.modelkit.model.v1.tar", "x", "y")]),
        (mt::OCI_EMPTY, vec![layer(mt::OCI_LAYER_TAR, mt::TITLE_ANNOTATION, "./model.gguf")]),
    ];
    let manifest = |(config, layers): (&str, Vec<serde_json::Value>)| {
        let config = json!({"mediaType": config, "digest": Digest::sha256(b"c"), "size": 2});
        let subject = layers.first().cloned();
        let manifest = json!({"schemaVersion": 2, "mediaType": mt::OCI_MANIFEST, "config": config, "layers": layers, "subject": subject});
        manifest.to_string().into_bytes()
    };
    kinds.into_iter().map(manifest).collect()
}

#[test]
fn manifests_and_what_they_hold() {
    let configs: [&[u8]; 3] = [
        br#"{"model":{"path":"reg/kit:1","parts":[{"path":"a"}]},"code":[{"path":"b","digest":"sha256:0"}]}"#,
        br#"{"config":{"format":"gguf","paramSize":"8b","Labels":{"org.containers.type":"ai.image.model.raw"}}}"#,
        b"{",
    ];
    run("manifest", &manifest_seeds(), |bytes| {
        let Ok(manifest) = Manifest::parse(None, bytes) else { return };
        for config in configs {
            let artifact = Artifact::read(&manifest, Some(config));
            let _ = (artifact.weights(), artifact.root().len(), artifact.packed().is_some());
            let _ = lineage::of_manifest(&manifest, &artifact, Some(config));
            let _ = index::summary(&manifest, &artifact, Some(config), Some(config), &[]);
            for file in &artifact.files {
                let _ = index::list(file, &bytes.to_vec());
            }
        }
    });
}

#[test]
fn tars() {
    let mut block = vec![0u8; 512];
    block[..5].copy_from_slice(b"a.txt");
    block[124..135].copy_from_slice(b"00000000003");
    block[156] = b'0';
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block.resize(1024, b'x');
    let two = [block.clone(), block.clone(), vec![0; 1024]].concat();
    run("tar", &[block, two, vec![0x1f, 0x8b, 8, 0]], |bytes| {
        for member in tar::members(&bytes.to_vec()).unwrap_or_default() {
            assert!(member.offset + member.size <= bytes.len() as u64);
        }
    });
}

#[test]
fn references() {
    let seeds: Vec<Vec<u8>> = [
        "team/mini:8b",
        "localhost:5000/a/b/c@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
        "hub.local/x",
        "[::1]:80/a__b/c-d.e:T_1.0-x",
        "https://huggingface.co/Org/Base",
    ]
    .map(|text| text.as_bytes().to_vec())
    .into();
    run("reference", &seeds, |bytes| {
        let text = String::from_utf8_lossy(bytes);
        if let Ok(name) = text.parse::<Name>() {
            // What is taken can be said again and means the same.
            assert_eq!(name.to_string().parse::<Name>().unwrap(), name);
        }
        let _ = text.parse::<Digest>();
        let _ = (check_path(&text), lineage::local_name(&text));
    });
}

#[test]
fn texts_about_models() {
    let view = json!({"version": 1, "files": [{"path": "a/b.json", "size": 3, "segments": [
        {"inline": "eHk="}, {"digest": Digest::sha256(b"l"), "offset": 0, "length": 1}]}]});
    let seeds = vec![
        view.to_string().into_bytes(),
        b"---\nbase_model:\n- org/a\n- \"org/b\"\nbase_model_relation: merge\n---\n# x".to_vec(),
        br#"{"base_model_name_or_path":"org/Base"}"#.to_vec(),
    ];
    run("texts", &seeds, |bytes| {
        let _ = FileView::parse(bytes);
        let _ = lineage::of_file("README.md", bytes);
        let _ = lineage::of_file("adapter_config.json", bytes);
        let _ = lode_model::config::ModelConfig::parse(bytes);
    });
}

//! The fuzz targets: for each kind of untrusted input, valid examples and a check that must hold for any
//! bytes. `tests/fuzz.rs` damages the examples blindly; the crate in `model/fuzz/` is guided by coverage.

#[allow(dead_code, unreachable_pub, reason = "shared with the end-to-end tests, which use all of it")]
#[path = "../../../tests/src/onnx.rs"]
mod onnx_writer;

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::sync::Arc;

use lode_model::digest::Digest;
use lode_model::files_view::{FileView, check_path};
use lode_model::gguf::{self, Array, Metadata, NewTensor, Strings};
use lode_model::go_template::{Dates, Template, Value};
use lode_model::import::{self, Conversion, Options, ReadAt, Source, SourceFile};
use lode_model::manifest::Manifest;
use lode_model::modelfile::Modelfile;
use lode_model::onnx;
use lode_model::quant::ggml::Type;
use lode_model::recognise::{Artifact, tar};
use lode_model::reference::Name;
use lode_model::safetensors::Header;
use lode_model::tensor::{read_blob, read_plain};
use lode_model::xet::shard::ShardReader;
use lode_model::xet::xorb::{ChunkIndex, MAX_UNPACKED_BYTES, XorbHasher};
use lode_model::{index, lineage, media_type as mt};
use serde_json::json;

/// One fuzz target.
pub(crate) struct Target {
    pub(crate) name: &'static str,
    /// Valid inputs.
    pub(crate) seeds: Vec<Vec<u8>>,
    pub(crate) check: Check,
}

/// Panics if a property does not hold.
type Check = Box<dyn Fn(&[u8])>;

/// Returns all targets.
pub(crate) fn all() -> Vec<Target> {
    vec![
        safetensors(),
        ggufs(),
        onnx_files(),
        onnx_graphs(),
        conversions(),
        checkpoints(),
        modelfiles(),
        manifests_and_what_they_hold(),
        tars(),
        references(),
        texts_about_models(),
        templates(),
        xorbs(),
        shards(),
    ]
}

fn target(name: &'static str, seeds: Vec<Vec<u8>>, check: impl Fn(&[u8]) + 'static) -> Target {
    Target { name, seeds, check: Box::new(check) }
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

fn safetensors() -> Target {
    target("safetensors", safetensors_seeds(), |bytes| {
        let Ok(header) = Header::read(&bytes.to_vec()) else { return };
        let _ = read_blob(Some("layer"), &header);
        for tensor in read_plain(&header) {
            // A checked tensor can be cut and decoded.
            let _ = tensor.decode_f32(bytes);
            let _ = tensor.rows(0, 1).map(|rows| rows.decode_f32(bytes));
        }
    })
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

/// Plans an import and reads the beginning of each layer. A layer has the planned length, or reading it
/// fails.
fn import(folder: &Folder, quantize: Option<&str>) {
    convert(folder, quantize.map(|name| name.parse().unwrap()));
}

/// As [`import`], with any conversion.
fn convert(folder: &Folder, conversion: Option<Conversion>) {
    let Ok(plan) = import::plan(folder, &Options { conversion }) else { return };
    let source: Arc<dyn Source> = Arc::new(folder.clone());
    for layer in &plan.layers {
        let mut bytes = Vec::new();
        let most = 1 << 18;
        if layer.checked_reader(&source).take(most).read_to_end(&mut bytes).is_ok() {
            assert_eq!(bytes.len() as u64, layer.size.min(most));
        }
    }
}

/// A GGUF of some tensors, with every kind of value among its keys.
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

fn ggufs() -> Target {
    let seeds = [
        gguf_seed(&[]),
        gguf_seed(&[Type::F32, Type::BF16]),
        gguf_seed(&[Type::Q4_K, Type::Q8_0, Type::F16]),
        gguf_seed(&[Type::IQ2_XXS, Type::MXFP4, Type::TQ1_0]),
    ];
    target("gguf", seeds.into(), |bytes| {
        let Ok(header) = gguf::Header::read(&bytes.to_vec()) else { return };
        let metadata = &header.metadata;
        let _ = (metadata.capabilities(), metadata.to_json(true), lineage::gguf_origins(metadata));
        let _ = (header.quantisation(), header.elements());
        for tensor in header.to_tensors() {
            let part = &tensor.parts.weight;
            assert!(part.offset + part.size_bytes <= bytes.len() as u64, "{tensor:?}");
            let _ = tensor.rows(0, 1).map(|rows| rows.decode_f32(bytes));
        }
        // A header that is written again reads the same.
        let tensors = header.tensors.iter().map(|entry| NewTensor {
            name: entry.name.clone(),
            dims: entry.dims.clone(),
            ty: entry.ty,
        });
        if let Ok(again) = gguf::Header::new(metadata.clone(), tensors) {
            // Compared as bytes, because NaN does not equal itself.
            let written = again.to_bytes();
            let read = gguf::Header::parse(&written, again.file_len()).map(|read| read.to_bytes());
            assert_eq!(read.ok(), Some(written));
        }
        let folder = Folder(BTreeMap::from([("m.gguf", bytes.to_vec())]));
        import(&folder, None);
        import(&folder, Some("q4_K_M"));
    })
}

fn onnx_files() -> Target {
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
    target("onnx", vec![model, [&[8, 8][..], &field(7, &field(5, &here))].concat()], |bytes| {
        if let Ok(model) = onnx::Model::read(&bytes.to_vec()) {
            for tensor in &model.tensors {
                let _ = (tensor.dtype(), tensor.size_bytes());
                if let onnx::Data::Inline { offset, length } = tensor.data {
                    assert!(offset + length <= bytes.len() as u64, "{tensor:?}");
                }
            }
        }
        import(&Folder(BTreeMap::from([("m.onnx", bytes.to_vec()), ("m.data", vec![1; 64])])), None);
    })
}

/// The graph of a file, whose checks refuse what a runtime must not see.
fn onnx_graphs() -> Target {
    let mut inner = onnx_writer::Graph::default();
    inner.push(onnx_writer::node("Clip", &["x", "", "w"], &["inner"], &[]));
    inner.output("inner", onnx_writer::FLOAT, &["n"]);
    let mut graph = onnx_writer::Graph::default();
    graph.input("x", onnx_writer::FLOAT, &["n", "4"]);
    graph.output("y", onnx_writer::FLOAT, &["n", "4"]);
    let outside = onnx_writer::external("m.data", 0, 16);
    graph.initializer(onnx_writer::tensor("w", onnx_writer::FLOAT, &[4], &outside));
    graph.floats("v", &[2], &[1.0, 2.0]);
    graph.push(onnx_writer::node("Add", &["x", "w"], &["a"], &[]));
    graph.push(onnx_writer::node("If", &["a"], &["y"], &[onnx_writer::subgraph("then_branch", &inner)]));
    let small = |name: &str| {
        let shape = if name.contains("embeddings.") { vec![2, 2] } else { vec![2] };
        let shape = if name.contains("dense.w") || name.contains("self") { vec![2, 2] } else { shape };
        let values = vec![0.5; shape.iter().product::<u64>() as usize];
        (shape, values)
    };
    let id_type = onnx_writer::INT64;
    let bert =
        onnx_writer::Bert { width: 2, heads: 1, layers: 1, norm_eps: 1e-6, first_position: 0, id_type };
    target("onnx_graph", vec![graph.file(), bert.graph(&small).file()], |bytes| {
        let size = |location: &str| (location == "m.data").then_some(64);
        let Ok(graph) = onnx::Graph::read(&bytes.to_vec(), &size) else { return };
        // Nothing outside of the model is named.
        assert!(graph.locations.iter().all(|location| location == "m.data"), "{graph:?}");
        assert!(graph.outputs.iter().chain(&graph.inputs).all(|name| !name.is_empty()), "{graph:?}");
        // Its initializers are readable as well, except for types that are not listed.
        let _ = onnx::Model::read(&bytes.to_vec());
    })
}

/// The checkpoint of a llama of width 32 with one block, without its tokenizer and configuration.
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

/// The configuration and the tokenizer of [`tiny_weights`].
fn tiny_files() -> (Vec<u8>, Vec<u8>) {
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
    (config, tokenizer)
}

/// GGUF files that become checkpoints: of both kinds of vocabularies, of floats and of blocks.
fn checkpoints() -> Target {
    let (config, tokenizer) = tiny_files();
    let folder = Folder(BTreeMap::from([
        ("config.json", config),
        ("tokenizer.json", tokenizer),
        ("model.safetensors", tiny_weights()),
    ]));
    let made = |quantize: &str| {
        let conversion = Some(quantize.parse().unwrap());
        let plan = import::plan(&folder, &Options { conversion }).unwrap();
        let (source, mut bytes): (Arc<dyn Source>, _) = (Arc::new(folder.clone()), Vec::new());
        plan.layers[0].reader(&source).read_to_end(&mut bytes).unwrap();
        bytes
    };
    let bytes = (0..=255u8).map(|byte| format!("<0x{byte:02X}>"));
    let tokens: Vec<String> =
        bytes.chain(["<unk>", "\u{2581}", "a", "\u{2581}a"].map(str::to_owned)).collect();
    let floats = made("f32");
    let mut pieces = gguf::Header::parse(&floats, floats.len() as u64).unwrap();
    for (key, value) in [
        ("tokenizer.ggml.scores", gguf::Value::Array(Array::F32(vec![0.0; tokens.len()]))),
        ("tokenizer.ggml.token_type", gguf::Value::Array(Array::I32(vec![6; tokens.len()]))),
        ("tokenizer.ggml.model", "llama".into()),
        ("llama.vocab_size", gguf::Value::U32(tokens.len() as u32)),
    ] {
        pieces.metadata.set(key, value);
    }
    let tensors = pieces.tensors.iter().map(|tensor| NewTensor {
        name: tensor.name.clone(),
        dims: match tensor.name.as_str() {
            "token_embd.weight" => vec![32, tokens.len() as u64],
            _ => tensor.dims.clone(),
        },
        ty: tensor.ty,
    });
    let tensors: Vec<NewTensor> = tensors.filter(|tensor| tensor.name != "rope_freqs.weight").collect();
    pieces.metadata.set("tokenizer.ggml.tokens", Array::String(tokens.into_iter().collect()));
    let pieces = gguf::Header::new(pieces.metadata, tensors).unwrap();
    let mut with_pieces = pieces.to_bytes();
    with_pieces.resize(pieces.file_len() as usize, 0);
    let seeds = vec![made("f32"), made("q8_0"), with_pieces];
    let file = |bytes: &[u8]| Folder(BTreeMap::from([("mini.gguf", bytes.to_vec())]));
    let conversion = Some(Conversion::Checkpoint(None));
    // The seeds must be valid, so that only damage makes an import fail.
    for seed in &seeds {
        import::plan(&file(seed), &Options { conversion }).unwrap();
    }
    target("checkpoint", seeds, move |bytes| convert(&file(bytes), conversion))
}

fn conversions() -> Target {
    let (config, tokenizer) = tiny_files();
    let pieces = json!({"model": {"type": "BPE", "byte_fallback": true, "unk_token": "<unk>",
            "vocab": {"<unk>": 0, "\u{2581}": 1, "a": 2, "\u{2581}a": 3}, "merges": ["\u{2581} a"]},
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u{2581}"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"}]}})
    .to_string()
    .into_bytes();
    let weights = tiny_weights();
    let folder = move |config: &[u8], tokenizer: &[u8]| {
        Folder(BTreeMap::from([
            ("config.json", config.to_vec()),
            ("tokenizer.json", tokenizer.to_vec()),
            ("model.safetensors", weights.clone()),
        ]))
    };
    // The seeds must be valid, so that only damage makes an import fail.
    let sound = folder(&config, &tokenizer);
    let quantize = Some("q8_0".parse().unwrap());
    let made = import::plan(&sound, &Options { conversion: quantize }).unwrap();
    assert_eq!(made.tensors, 12);
    target("conversion", vec![config.clone(), tokenizer.clone(), pieces], move |bytes| {
        import(&folder(bytes, &tokenizer), Some("q8_0"));
        import(&folder(&config, bytes), Some("q4_0"));
    })
}

fn modelfiles() -> Target {
    let seeds = [
        "FROM team/mini:8b\nSYSTEM \"\"\"one\r\ntwo \"three\" \"\"\"\nPARAMETER stop \"<end>\"\nPARAMETER top_k 4\n",
        "# made\nfrom ./x.gguf\nTEMPLATE {{ .Prompt }}\nMESSAGE user hi\nLICENSE \"\"\nADAPTER a\nREQUIRES v0.1.2-rc1\n",
        "\u{feff}FROM \u{e4}\nRENDERER r\nPARSER p\nDRAFT d\nPARAMETER mirostat 1\nPARAMETER use_mmap true",
    ];
    let mut seeds: Vec<Vec<u8>> = seeds.iter().map(|seed| seed.as_bytes().to_vec()).collect();
    seeds.push("\u{feff}FROM a".encode_utf16().flat_map(u16::to_le_bytes).collect());
    target("modelfile", seeds, |bytes| {
        let Ok(modelfile) = Modelfile::parse_settings(bytes) else { return };
        let printed = modelfile.to_string();
        assert_eq!(Modelfile::parse_settings(printed.as_bytes()), Ok(modelfile), "{printed:?}");
    })
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

fn manifests_and_what_they_hold() -> Target {
    let configs: [&[u8]; 3] = [
        br#"{"model":{"path":"reg/kit:1","parts":[{"path":"a"}]},"code":[{"path":"b","digest":"sha256:0"}]}"#,
        br#"{"config":{"format":"gguf","paramSize":"8b","Labels":{"org.containers.type":"ai.image.model.raw"}}}"#,
        b"{",
    ];
    target("manifest", manifest_seeds(), move |bytes| {
        let Ok(manifest) = Manifest::parse(None, bytes) else { return };
        for config in configs {
            let artifact = Artifact::read(&manifest, Some(config));
            let _ = (artifact.weights(), artifact.root().len(), artifact.first_packed().is_some());
            let _ = lineage::manifest_origins(&manifest, &artifact, Some(config));
            let _ = index::summarise(&manifest, &artifact, Some(config), Some(config), &[]);
            for file in &artifact.files {
                let _ = index::list_tensors(file, &bytes.to_vec());
            }
        }
    })
}

fn tars() -> Target {
    let mut block = vec![0u8; 512];
    block[..5].copy_from_slice(b"a.txt");
    block[124..135].copy_from_slice(b"00000000003");
    block[156] = b'0';
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block.resize(1024, b'x');
    let two = [block.clone(), block.clone(), vec![0; 1024]].concat();
    target("tar", vec![block, two, vec![0x1f, 0x8b, 8, 0]], |bytes| {
        for member in tar::list_members(&bytes.to_vec(), tar::MAX_MEMBERS).unwrap_or_default() {
            assert!(member.offset + member.size <= bytes.len() as u64);
        }
    })
}

fn references() -> Target {
    let seeds: Vec<Vec<u8>> = [
        "team/mini:8b",
        "localhost:5000/a/b/c@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
        "hub.local/x",
        "[::1]:80/a__b/c-d.e:T_1.0-x",
        "https://huggingface.co/Org/Base",
    ]
    .map(|text| text.as_bytes().to_vec())
    .into();
    target("reference", seeds, |bytes| {
        let text = String::from_utf8_lossy(bytes);
        if let Ok(name) = text.parse::<Name>() {
            // An accepted name can be printed and parses to the same value.
            assert_eq!(name.to_string().parse::<Name>().unwrap(), name);
        }
        let _ = text.parse::<Digest>();
        let _ = (check_path(&text), lineage::local_name(&text));
    })
}

fn texts_about_models() -> Target {
    let view = json!({"version": 1, "files": [{"path": "a/b.json", "size": 3, "segments": [
        {"inline": "eHk="}, {"digest": Digest::sha256(b"l"), "offset": 0, "length": 1}]}]});
    let seeds = vec![
        view.to_string().into_bytes(),
        b"---\nbase_model:\n- org/a\n- \"org/b\"\nbase_model_relation: merge\n---\n# x".to_vec(),
        br#"{"base_model_name_or_path":"org/Base"}"#.to_vec(),
    ];
    target("texts", seeds, |bytes| {
        let _ = FileView::parse(bytes);
        let _ = lineage::file_origins("README.md", bytes);
        let _ = lineage::file_origins("adapter_config.json", bytes);
        let _ = lode_model::config::ModelConfig::parse(bytes);
    })
}

fn templates() -> Target {
    let data = Value::from_json(&json!({
        "Messages": [{"Role": "system", "Content": "a"}, {"Role": "user", "Content": "<b>é"}],
        "Tools": [{"Type": "function", "Function": {"Name": "f", "Parameters": {"n": 1.5, "t": null}}}],
        "System": "a", "Prompt": "b", "Response": "", "Think": false, "n": 3, "deep": [[[1]]],
    }));
    let seeds: [&[u8]; 6] = [
        br"{{ if .System }}<s>{{ .System }}</s>{{ end }}{{ if .Prompt }}[INST] {{ .Prompt }} [/INST]{{ end }}{{ .Response }}",
        br"{{- range $i, $_ := .Messages }}{{- $last := eq (len (slice $.Messages $i)) 1 }}{{ .Role }}: {{ .Content }}{{ if $last }}!{{ else if and .Role (ne .Role `user`) }}?{{ end }}{{- end }}",
        br"{{ range .Tools }}{{ json . }}{{ with .Function }}{{ .Name | printf `%q %v %5.2f %-3d %x` }}{{ end }}{{ break }}{{ else }}none{{ end }}",
        br"{{ define `x` }}{{ . }}{{ template `y` .n }}{{ end }}{{ define `y` }}({{ . }}){{ end }}{{ template `x` . }}{{ block `z` .deep }}{{ index . 0 0 0 }}{{ end }}",
        br"{{ $a := 1 }}{{ range $k, $v := . }}{{ $a = $v }}{{ continue }}{{ end }}{{ $a }}{{ range .n }}{{ . }}{{ end }}{{ slice .System 0 1 }}{{ html .Prompt | js | urlquery }}",
        br#"{{/* c */ -}} {{ not (or (lt 1 2) (ge 2.5 1) (le "a" "b")) }} {{ currentDate }} {{ 'a' }} {{ 0x1F }} {{ "\u00e9\t" }} {{ println 1 nil true }}"#,
    ];
    target("template", seeds.map(<[u8]>::to_vec).to_vec(), move |bytes| {
        let Ok(source) = std::str::from_utf8(bytes) else { return };
        let Ok(template) = Template::parse(source) else { return };
        let _ = template.mentioned_names();
        let _ = template.execute(&data, &Dates::default());
        // A cut template is still a template.
        let _ =
            template.truncate_after("Response").append_field("Response").execute(&data, &Dates::default());
    })
}

fn xorbs() -> Target {
    let seeds = [
        &include_bytes!("../../../tests/fixtures/xet/text.xorb")[..],
        include_bytes!("../../../tests/fixtures/xet/floats.xorb"),
        include_bytes!("../../../tests/fixtures/xet/random.xorb"),
    ];
    target("xorb", seeds.map(<[u8]>::to_vec).to_vec(), |bytes| {
        let hash = |piece_bytes| {
            let mut hasher = XorbHasher::default();
            bytes.chunks(piece_bytes).try_for_each(|piece| hasher.push(piece))?;
            hasher.finish()
        };
        let whole = hash(bytes.len().max(1));
        assert_eq!(whole, hash(1009));
        let Ok((_, index)) = whole else { return };
        assert_eq!(ChunkIndex::from_bytes(&index.to_bytes()).as_ref(), Some(&index));
        let count = (index.to_bytes().len() / 8) as u32;
        let all = index.range(0, count).unwrap();
        assert!(all.stored.end <= bytes.len() as u64 && all.unpacked_bytes <= MAX_UNPACKED_BYTES);
        assert!(index.range(0, count + 1).is_err());
    })
}

fn shards() -> Target {
    let seeds = [
        &include_bytes!("../../../tests/fixtures/xet/text.shard")[..],
        include_bytes!("../../../tests/fixtures/xet/many.shard"),
    ];
    target("shard", seeds.map(<[u8]>::to_vec).to_vec(), |bytes| {
        let read = |piece_bytes| {
            let mut reader = ShardReader::default();
            bytes.chunks(piece_bytes).try_for_each(|piece| reader.push(piece))?;
            assert!(reader.records() * 48 <= bytes.len());
            reader.finish()
        };
        let whole = read(bytes.len().max(1));
        assert_eq!(whole, read(7));
        for file in whole.unwrap_or_default() {
            assert!(file.terms.iter().all(|term| term.first < term.end));
            assert!(file.size_bytes() <= u64::from(u32::MAX) * file.terms.len() as u64);
        }
    })
}

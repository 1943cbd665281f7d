//! Whole imports over folders in memory: their results, their errors, and that every file can be restored.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::sync::Arc;

use proptest::prelude::*;

use super::finish::FinishedImport;
use super::*;
use crate::convert::FileType;
use crate::digest::Digest;
use crate::files_view::{FileView, Segment};
use crate::manifest::Manifest;
use crate::media_type;
use crate::modelfile::Edits;
use crate::quant::{Kind, Quantisation};
use crate::safetensors::{Dtype, Header, write_header};
use crate::tensor;

#[derive(Clone, Debug, Default)]
pub(super) struct Folder(pub(super) BTreeMap<String, Vec<u8>>);

impl Folder {
    pub(super) fn with(mut self, path: &str, bytes: impl Into<Vec<u8>>) -> Folder {
        self.0.insert(path.to_owned(), bytes.into());
        self
    }
}

impl Source for Folder {
    fn files(&self) -> Vec<SourceFile> {
        self.0
            .iter()
            .rev()
            .map(|(path, bytes)| SourceFile { path: path.clone(), size: bytes.len() as u64 })
            .collect()
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn ReadAt>> {
        Ok(Box::new(self.0.get(path).ok_or(io::ErrorKind::NotFound)?.clone()))
    }
}

/// A safetensors file with small, distinct values.
pub(super) fn safetensors(tensors: &[(&str, Dtype, &[u64])]) -> Vec<u8> {
    let mut bytes = write_header(tensors, &BTreeMap::from([("format".to_owned(), "pt".to_owned())]));
    for (at, (_, dtype, shape)) in tensors.iter().enumerate() {
        for i in 0..shape.iter().product::<u64>() {
            let value = ((i * 37 + at as u64 * 11) % 101) as f32 / 50.0 - 1.0;
            match dtype {
                Dtype::BF16 => bytes.extend(half::bf16::from_f32(value).to_le_bytes()),
                Dtype::F32 => bytes.extend(value.to_le_bytes()),
                _ => bytes.extend(vec![i as u8; dtype.bitsize() / 8]),
            }
        }
    }
    bytes
}

pub(super) const CONFIG: &str = r#"{"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_size":64,"num_hidden_layers":1,
    "num_attention_heads":4,"vocab_size":32,"max_position_embeddings":128}"#;
const LFS: &str = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n";
const TOKENIZER: &str =
    r#"{"model":{"type":"BPE","vocab":{"a":0,"b":31},"merges":[]},"added_tokens":[{"id":31,"content":"b"}]}"#;

fn small_tensors() -> Vec<(&'static str, Dtype, &'static [u64])> {
    vec![
        ("model.embed_tokens.weight", Dtype::BF16, &[32, 64]),
        ("model.layers.0.input_layernorm.weight", Dtype::BF16, &[64]),
        ("model.layers.0.self_attn.q_proj.weight", Dtype::BF16, &[64, 64]),
        ("model.layers.0.self_attn.v_proj.weight", Dtype::BF16, &[64, 64]),
        ("lm_head.weight", Dtype::F32, &[32, 64]),
    ]
}

pub(super) fn small() -> Folder {
    Folder::default()
        .with("config.json", CONFIG)
        .with("tokenizer.json", TOKENIZER)
        .with("model.safetensors", safetensors(&small_tensors()))
}

/// Everything that an import pushes.
pub(super) struct Imported {
    pub(super) plan: Plan,
    blobs: BTreeMap<Digest, Vec<u8>>,
    pub(super) manifest: Manifest,
    finished: FinishedImport,
}

pub(super) fn import(folder: &Folder, quantize: Option<Conversion>) -> Imported {
    let source: Arc<dyn Source> = Arc::new(folder.clone());
    let plan = plan(&*source, &Options { conversion: quantize }).expect("a well-formed folder");
    let mut blobs = BTreeMap::new();
    let mut digests = Vec::new();
    for layer in &plan.layers {
        let mut bytes = Vec::new();
        layer.reader(&source).read_to_end(&mut bytes).expect("readable");
        assert_eq!(bytes.len() as u64, layer.size, "{:?}", layer.name);
        for offset in [1, bytes.len() / 2, bytes.len()] {
            let mut tail = Vec::new();
            layer.reader_from(&source, offset as u64).read_to_end(&mut tail).expect("readable");
            assert!(tail == bytes[offset..], "{:?} from {offset}", layer.name);
        }
        digests.push(Digest::sha256(&bytes));
        blobs.insert(Digest::sha256(&bytes), bytes);
    }
    let files = plan
        .files_to_hash()
        .map(|path| (path.to_owned(), hash_file(&*source, path).expect("readable")))
        .collect();
    let finished = plan.finish(&digests, &files).expect("every digest is there");
    let manifest =
        Manifest::parse(Some(media_type::DOCKER_MANIFEST), &finished.manifest).expect("a manifest");
    // Without edits, the model is the import.
    let model = plan.model(&digests, &files, &Edits::default()).expect("every digest is there");
    assert!(model.manifest == finished.manifest);
    assert_eq!(model.blobs, [finished.config.clone(), finished.files.clone()]);
    Imported { plan, blobs, manifest, finished }
}

impl Imported {
    /// The files as `lode pull --to` assembles them.
    pub(super) fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let layer = FileView::find(&self.manifest).expect("a file view");
        assert_eq!(*layer, self.finished.files.descriptor);
        let view = FileView::parse(&self.finished.files.bytes).expect("a sound view");
        view.check_layers(&self.manifest).expect("segments of its layers");
        view.files
            .into_iter()
            .map(|file| {
                let mut bytes = Vec::new();
                for segment in &file.segments {
                    match segment {
                        Segment::Inline { inline } => bytes.extend(inline),
                        Segment::Blob { digest, offset, length } => {
                            bytes.extend(&self.blobs[digest][*offset as usize..][..*length as usize]);
                        }
                    }
                }
                assert_eq!(file.digest.is_none(), file.assembled);
                assert!(file.digest.is_none_or(|digest| digest == Digest::sha256(&bytes)), "{}", file.path);
                (file.path, bytes)
            })
            .collect()
    }

    fn layer(&self, name: &str) -> &[u8] {
        let layer =
            self.manifest.layers.iter().find(|layer| layer.name.as_deref() == Some(name)).expect(name);
        &self.blobs[&layer.digest]
    }

    pub(super) fn blob(&self, digest: &Digest) -> &[u8] {
        &self.blobs[digest]
    }

    pub(super) fn notices(&self) -> String {
        self.plan.notices.join("\n")
    }
}

pub(super) fn refused(folder: &Folder, quantize: Option<Conversion>) -> String {
    let error = plan(folder, &Options { conversion: quantize }).expect_err("a malformed folder");
    let source = std::error::Error::source(&error).map(|source| format!(": {source}")).unwrap_or_default();
    format!("{error}{source}")
}

#[test]
fn one_blob_a_tensor() {
    let imported = import(&small(), None);
    assert_eq!(imported.plan.tensors, 5);
    assert_eq!(imported.plan.parameters, 2048 + 64 + 4096 + 4096 + 2048);
    assert_eq!(imported.notices(), "");
    let names: Vec<_> =
        imported.plan.layers.iter().map(|layer| (layer.media_type, layer.name.as_deref().unwrap())).collect();
    let tensor = media_type::OLLAMA_TENSOR;
    assert_eq!(
        names,
        [
            (tensor, "model.embed_tokens.weight"),
            (tensor, "model.layers.0.input_layernorm.weight"),
            (tensor, "model.layers.0.self_attn.q_proj.weight"),
            (tensor, "model.layers.0.self_attn.v_proj.weight"),
            (tensor, "lm_head.weight"),
            (media_type::OLLAMA_JSON, "config.json"),
            (media_type::OLLAMA_JSON, "tokenizer.json"),
        ]
    );
    let blob = imported.layer("model.layers.0.input_layernorm.weight").to_vec();
    let header =
        r#"{"model.layers.0.input_layernorm.weight":{"dtype":"BF16","shape":[64],"data_offsets":[0,128]}}"#;
    assert_eq!(u64::from_le_bytes(blob[..8].try_into().unwrap()) % 8, 0);
    assert_eq!(std::str::from_utf8(&blob[8..8 + header.len()]), Ok(header));
    let config = &imported.plan.config;
    assert_eq!((config.model_format.as_str(), config.model_family.as_str()), ("safetensors", "llama"));
    assert_eq!((config.model_type.as_str(), config.file_type.as_str()), ("12.4K", "BF16"));
    assert_eq!(imported.files(), small().0);
}

#[test]
fn the_same_folder_gives_the_same_manifest() {
    let once = import(&small(), Some(Conversion::Blobs(Kind::Int4)));
    let twice = import(&small(), Some(Conversion::Blobs(Kind::Int4)));
    assert_eq!(once.finished.manifest, twice.finished.manifest);
}

#[test]
fn shards_experts_and_oddities_come_back() {
    let first = safetensors(&[
        ("model.layers.0.mlp.experts.10.up_proj.weight", Dtype::BF16, &[4, 8]),
        ("model.layers.0.mlp.experts.2.up_proj.weight", Dtype::BF16, &[4, 8]),
        ("model.embed_tokens.weight", Dtype::BF16, &[32, 8]),
        ("model.layers.0.empty", Dtype::F32, &[0, 8]),
    ]);
    let second = safetensors(&[
        ("scalar", Dtype::F32, &[]),
        ("model.layers.0.mlp.experts.2.down_proj.weight", Dtype::BF16, &[8, 4]),
        ("bytes", Dtype::U8, &[3]),
    ]);
    let index = r#"{"metadata":{"total_size":0},"weight_map":{
        "model.layers.0.mlp.experts.10.up_proj.weight":"a-00001.safetensors","scalar":"a-00002.safetensors"}}"#;
    let folder = Folder::default()
        .with("config.json", CONFIG)
        .with("a-00001.safetensors", first)
        .with("a-00002.safetensors", second)
        .with("a.safetensors.index.json", index)
        .with("other/extra.safetensors", safetensors(&[("scalar", Dtype::F32, &[])]))
        .with("1_Pooling/config.json", "{}")
        .with("modules.json", "[]")
        .with("not.json", "{oops")
        .with("lode.files.json", "{}")
        .with("README.md", "hello")
        .with("empty.txt", "")
        .with("same.md", "hello");
    let imported = import(&folder, None);
    assert_eq!(imported.files(), folder.0);
    let header = Header::read(&imported.layer("model.layers.0.mlp.experts").to_vec()).unwrap();
    let names: Vec<_> = tensor::read_blob(None, &header).unwrap().into_iter().map(|t| t.name).collect();
    assert_eq!(
        names,
        [
            "model.layers.0.mlp.experts.10.up_proj.weight",
            "model.layers.0.mlp.experts.2.down_proj.weight",
            "model.layers.0.mlp.experts.2.up_proj.weight"
        ]
    );
    assert!(imported.notices().contains("`other/extra.safetensors` is not part of the checkpoint"));
    assert!(imported.notices().contains("`not.json` is not JSON"));
    assert_eq!(imported.plan.config.capabilities, ["embedding"]);
    let of_type =
        |media_type| imported.plan.layers.iter().filter(|layer| layer.media_type == media_type).count();
    assert_eq!(of_type(media_type::OLLAMA_JSON), 3);
    assert_eq!(of_type(media_type::OCTET_STREAM), 6);
}

#[test]
fn quantised_blobs_and_assembled_files() {
    let imported = import(&small(), Some(Conversion::Blobs(Kind::Int4)));
    let read = |name: &str| {
        let blob = imported.layer(name).to_vec();
        let [tensor] =
            tensor::read_blob(Some(name), &Header::read(&blob).unwrap()).unwrap().try_into().unwrap();
        assert_eq!(tensor.name, name);
        (tensor.dtype.clone(), tensor.decode_f32(&blob).unwrap())
    };
    for (name, dtype) in [
        ("model.embed_tokens.weight", "BF16"),
        ("model.layers.0.input_layernorm.weight", "BF16"),
        ("model.layers.0.self_attn.q_proj.weight", "int4"),
        ("model.layers.0.self_attn.v_proj.weight", "int8"),
        ("lm_head.weight", "int8"),
    ] {
        assert_eq!(read(name).0, dtype, "{name}");
    }
    let original = &small().0["model.safetensors"];
    let header = Header::read(original).unwrap();
    for tensor in tensor::read_blob(None, &header).unwrap() {
        let (dtype, decoded) = read(&tensor.name);
        let bound = match dtype.as_str() {
            "int4" => 0.14,
            "int8" => 0.02,
            _ => 0.0,
        };
        let exact = tensor.decode_f32(original).unwrap();
        assert!(exact.iter().zip(&decoded).all(|(x, y)| (x - y).abs() <= bound), "{}", tensor.name);
    }

    let files = imported.files();
    let assembled = &files["model.safetensors"];
    let header = Header::read(assembled).unwrap();
    let tensors = tensor::read_blob(None, &header).unwrap();
    assert_eq!(tensors.len(), 5);
    for tensor in &tensors {
        assert_eq!(tensor.decode_f32(assembled).unwrap(), read(&tensor.name).1, "{}", tensor.name);
    }
    assert_eq!(files["config.json"], small().0["config.json"]);
    assert!(imported.notices().contains("assembled"));
    assert_eq!(imported.plan.config.file_type, "int4");

    // The restored files can be imported again unchanged and give the same blobs.
    let again = import(&Folder(files), None);
    for name in ["model.layers.0.self_attn.q_proj.weight", "lm_head.weight", "model.embed_tokens.weight"] {
        assert!(again.layer(name) == imported.layer(name), "{name}");
    }
    assert_eq!(again.plan.config.file_type, "int4");
    assert!(
        refused(&Folder(again.files()), Some(Conversion::Blobs(Kind::Int8))).contains("is quantised already")
    );
}

/// A quantised checkpoint as MLX's tools would have written it.
fn in_mlx_spelling(file: &[u8]) -> Vec<u8> {
    let header = Header::read(&file.to_vec()).unwrap();
    let is_quantised = |base: &str| header.get(&format!("{base}.scale")).is_some();
    let renamed = |name: &str| match (name.strip_suffix(".weight.scale"), name.strip_suffix(".weight.bias")) {
        (Some(module), _) => format!("{module}.scales"),
        (_, Some(module)) if is_quantised(&format!("{module}.weight")) => format!("{module}.biases"),
        _ => name.to_owned(),
    };
    let names: Vec<String> = header.tensors().iter().map(|entry| renamed(&entry.name)).collect();
    let entries: Vec<(&str, Dtype, &[u64])> = names
        .iter()
        .zip(header.tensors())
        .map(|(name, entry)| (name.as_str(), entry.dtype, entry.shape.as_slice()))
        .collect();
    let mut bytes = write_header(&entries, &BTreeMap::new());
    bytes.extend(&file[header.data_start() as usize..]);
    bytes
}

#[test]
fn mlx_tensors_equal_lode_tensors() {
    let ours = import(&small(), Some(Conversion::Blobs(Kind::Int4)));
    let weights = in_mlx_spelling(&ours.files()["model.safetensors"]);
    let with = |quantization: &str| {
        let config = format!("{},\"quantization\":{quantization}}}", CONFIG.trim_end_matches('}'));
        small().with("config.json", config).with("model.safetensors", weights.clone())
    };
    let folder = with(
        r#"{"group_size":64,"bits":4,"model.layers.0.self_attn.v_proj":{"group_size":64,"bits":8},
            "lm_head":{"group_size":64,"bits":8,"mode":"affine"},"model.norm":false}"#,
    );
    let imported = import(&folder, None);
    for name in ["model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight", "lm_head.weight"] {
        assert!(imported.layer(name) == ours.layer(name), "{name}");
    }
    assert_eq!((imported.plan.tensors, imported.plan.config.file_type.as_str()), (5, "int4"));
    assert_eq!(imported.files(), folder.0, "and every file comes back as it was");
    assert!(refused(&folder, Some(Conversion::Blobs(Kind::Int8))).contains("is quantised already"));

    // Other quantisations are not supported as tensors, but the files are stored.
    let odd = with(r#"{"group_size":64,"bits":3}"#);
    let imported = import(&odd, None);
    assert!(
        imported.notices().contains("3 weights are quantised to other formats than int4"),
        "{}",
        imported.notices()
    );
    assert_eq!(imported.files(), odd.0);
    // A file that contradicts its config.json is damaged.
    assert!(refused(&with(r#"{"group_size":32,"bits":4}"#), None).contains("self_attn.q_proj.weight"));
}

#[test]
fn a_split_checkpoint_of_mlx_has_its_companions_in_the_index() {
    let scales = [("a.scales", Dtype::BF16, &[16, 1][..]), ("a.biases", Dtype::BF16, &[16, 1][..])];
    let weights = safetensors(&[&[("a.weight", Dtype::U32, &[16, 8][..])], &scales[..]].concat());
    let index = r#"{"weight_map":{"a.weight":"m-1.safetensors","a.scales":"m-1.safetensors","a.biases":"m-1.safetensors"}}"#;
    let folder = Folder::default()
        .with("m-1.safetensors", weights)
        .with("model.safetensors.index.json", index)
        .with("config.json", r#"{"quantization":{"group_size":64,"bits":4}}"#);
    let imported = import(&folder, None);
    assert_eq!((imported.plan.tensors, imported.plan.parameters), (1, 16 * 64));
    assert_eq!(imported.files(), folder.0);
}

#[test]
fn quantised_experts_are_one_blob_a_projection() {
    let folder = Folder::default().with(
        "x.safetensors",
        safetensors(&[
            ("layers.0.mlp.experts.0.down_proj.weight", Dtype::BF16, &[16, 64]),
            ("layers.0.mlp.experts.0.up_proj.weight", Dtype::BF16, &[16, 64]),
            ("layers.0.mlp.experts.1.down_proj.weight", Dtype::BF16, &[16, 64]),
            ("layers.0.mlp.experts.1.up_proj.weight", Dtype::BF16, &[16, 64]),
        ]),
    );
    let names = |imported: &Imported| {
        let tensors =
            imported.plan.layers.iter().filter(|layer| layer.media_type == media_type::OLLAMA_TENSOR);
        tensors.map(|layer| layer.name.clone().unwrap()).collect::<Vec<_>>()
    };
    let int4 = import(&folder, Some(Conversion::Blobs(Kind::Int4)));
    assert_eq!(
        names(&int4),
        ["layers.0.mlp.experts.down_proj.weight", "layers.0.mlp.experts.up_proj.weight"]
    );
    let blob = int4.layer("layers.0.mlp.experts.down_proj.weight").to_vec();
    let header = Header::read(&blob).unwrap();
    assert_eq!(header.metadata()["quant_type"], "int8");
    assert_eq!(tensor::read_blob(None, &header).unwrap().len(), 2);
    let int8 = import(&folder, Some(Conversion::Blobs(Kind::Int8)));
    assert_eq!(names(&int8), ["layers.0.mlp.experts"]);
    let assembled = &int8.files()["x.safetensors"];
    for tensor in tensor::read_blob(None, &Header::read(assembled).unwrap()).unwrap() {
        assert_eq!(tensor.quantisation, Some(Quantisation { kind: Kind::Int8, group_size: 64 }));
    }
}

#[test]
fn a_quantised_index_names_what_is_there() {
    let index = r#"{"weight_map":{"a.weight":"m-1.safetensors","b":"m-2.safetensors"}}"#;
    let folder = Folder::default()
        .with("m-1.safetensors", safetensors(&[("a.weight", Dtype::BF16, &[16, 64])]))
        .with("m-2.safetensors", safetensors(&[("b", Dtype::BF16, &[4])]))
        .with("model.safetensors.index.json", index);
    let files = import(&folder, Some(Conversion::Blobs(Kind::Int8))).files();
    let index: serde_json::Value = serde_json::from_slice(&files["model.safetensors.index.json"]).unwrap();
    assert_eq!(index["weight_map"]["a.weight.scale"], "m-1.safetensors");
    assert_eq!(index["weight_map"]["b"], "m-2.safetensors");
    assert_eq!(index["metadata"]["total_size"], 16 * 64 + 2 * 16 * 2 + 8);
    assert_eq!(files["m-2.safetensors"], folder.0["m-2.safetensors"]);
    import(&Folder(files), None);
}

#[test]
fn an_image_model_goes_in_by_component() {
    let part = |name| safetensors(&[(name, Dtype::BF16, &[16, 64])]);
    let folder = Folder::default()
        .with("model_index.json", r#"{"_class_name":"FluxPipeline"}"#)
        .with("text_encoder/config.json", "{}")
        .with("text_encoder/model.safetensors", part("norm.weight"))
        .with("text_encoder/model.fp16.safetensors", part("norm.weight"))
        .with("transformer/diffusion-00001-of-00002.safetensors", part("a.weight"))
        .with("transformer/diffusion-00002-of-00002.safetensors", part("b.weight"))
        .with("vae/diffusion_pytorch_model.safetensors", part("norm.weight"))
        .with("flux-dev.safetensors", part("norm.weight"));
    let imported = import(&folder, None);
    assert_eq!(imported.files(), folder.0);
    let tensors: Vec<&str> = imported
        .plan
        .layers
        .iter()
        .filter(|layer| layer.media_type == media_type::OLLAMA_TENSOR)
        .filter_map(|layer| layer.name.as_deref())
        .collect();
    assert_eq!(
        tensors,
        ["text_encoder/norm.weight", "transformer/a.weight", "transformer/b.weight", "vae/norm.weight"]
    );
    assert!(imported.notices().contains("`flux-dev.safetensors` is not part of the checkpoint"));
    let config = &imported.plan.config;
    assert_eq!(
        (config.model_family.as_str(), &config.capabilities[..]),
        ("FluxPipeline", &["image".to_owned()][..])
    );
    for quantize in [Conversion::Blobs(Kind::Int8), Conversion::Gguf(Some(FileType::Q4_0))] {
        assert!(refused(&folder, Some(quantize)).contains("image model"));
    }
}

#[test]
fn incomplete_folders_are_stored() {
    let lone = Folder::default().with("weights.safetensors", safetensors(&[("w", Dtype::F32, &[2])]));
    let imported = import(&lone, None);
    assert_eq!(imported.files(), lone.0);
    assert!(imported.notices().contains("no `config.json`"));

    let nothing = import(&lone, Some(Conversion::Blobs(Kind::Int4)));
    assert_eq!(nothing.files(), lone.0);
    assert!(nothing.notices().contains("nothing was quantised"));
    assert_eq!(nothing.plan.config.file_type, "F32");

    let tokenizer = Folder::default().with("tokenizer.json", TOKENIZER);
    let imported = import(&tokenizer, None);
    assert_eq!(imported.files(), tokenizer.0);
    assert!(imported.notices().contains("there are no tensors"));

    assert_eq!(imported.plan.config.model_format, "safetensors");
    let pickled = tokenizer.with("pytorch_model.bin", "PK");
    assert!(
        import(&pickled, None)
            .notices()
            .contains("weights in the format of `pytorch_model.bin` are not read")
    );

    assert_eq!(plan(&small(), &Options::default()).unwrap().notices, Vec::<String>::new());
    let strange = small().with("config.json", r#"{"architectures":["StrangeLM"]}"#);
    let notices = plan(&strange, &Options::default()).unwrap().notices.join("\n");
    assert!(notices.contains("architecture `StrangeLM` is stored, but cannot be run"), "{notices}");
    assert!(notices.contains("lacks hidden_size"), "{notices}");

    let added = TOKENIZER.replace(r#""id":31"#, r#""id":99"#);
    let notices =
        plan(&small().with("tokenizer.json", added), &Options::default()).unwrap().notices.join("\n");
    assert!(notices.contains("token id 99"), "{notices}");
}

#[test]
fn malformed_folders_are_refused() {
    let index = |map: &str| format!(r#"{{"weight_map":{map}}}"#);
    let shard = "model.safetensors.index.json";
    let bad_header = [&20u64.to_le_bytes()[..], br#"{"w":{"dtype":"F32"}"#].concat();
    for (folder, expect) in [
        (Folder::default(), "there are no files"),
        (small().with("../x", ""), "`../x` is not a relative path"),
        (
            small().with(shard, index(r#"{"w":"gone.safetensors"}"#)),
            "`model.safetensors.index.json` places tensor `w` in `gone.safetensors`, which is missing",
        ),
        (
            small().with(shard, index(r#"{"w":"model.safetensors"}"#)),
            "`model.safetensors.index.json` places tensor `w` in `model.safetensors`, which does not have it",
        ),
        (small().with(shard, "{}"), "missing field `weight_map`"),
        (small().with("model.safetensors", bad_header), "`model.safetensors` is malformed"),
        (small().with("model.safetensors", "short"), "too short for a safetensors header"),
        (small().with("sub/x.safetensors", "short"), "`sub/x.safetensors` is malformed"),
        (small().with("config.json", "[]"), "`config.json` is not JSON of the expected form"),
        (small().with("tokenizer.json", "{"), "`tokenizer.json` is not JSON of the expected form"),
        (
            small().with("tokenizer.json", r#"{"model":{"vocab":{"a":32}}}"#),
            "`tokenizer.json` has token id 32 in `model.vocab`, but `model.embed_tokens.weight` has 32 rows",
        ),
        (
            small().with(
                "tokenizer.json",
                format!(r#"{{"model":{{"vocab":[{}["x",0]]}}}}"#, r#"["a",1.5],"#.repeat(32)),
            ),
            "token id 32",
        ),
        (
            Folder::default()
                .with("a.safetensors", safetensors(&[("w", Dtype::F32, &[2])]))
                .with("b.safetensors", safetensors(&[("w", Dtype::F32, &[2])])),
            "tensor `w` is in `a.safetensors` and in `b.safetensors`",
        ),
        (Folder::default().with("m.gguf", "GGUF"), "`m.gguf` is malformed"),
        (Folder::default().with("cat.jpg", "JFIF"), "there is no model in the folder"),
        (small().with("tokenizer.json", LFS), "`tokenizer.json` is a Git LFS pointer"),
        (Folder::default().with("m.gguf", LFS), "`m.gguf` is a Git LFS pointer"),
    ] {
        let message = refused(&folder, None);
        assert!(message.contains(expect), "{message}\n  wanted {expect}");
    }
    let fp8 = Folder::default().with("a.safetensors", safetensors(&[("w", Dtype::F8_E4M3, &[2])]));
    assert!(
        refused(&fp8, Some(Conversion::Blobs(Kind::Int8))).contains("`w` of F8_E4M3, without its scales")
    );
    import(&fp8, None);
}

#[test]
fn values_that_cannot_be_quantised() {
    let mut bytes = safetensors(&[("a.weight", Dtype::F32, &[16, 64])]);
    let at = bytes.len() - 4;
    bytes[at..].copy_from_slice(&f32::NAN.to_le_bytes());
    let source: Arc<dyn Source> = Arc::new(Folder::default().with("a.safetensors", bytes));
    let plan = plan(&*source, &Options { conversion: Some(Conversion::Blobs(Kind::Int8)) }).unwrap();
    let error = plan.layers[0].reader(&source).read_to_end(&mut Vec::new()).unwrap_err();
    assert!(
        error.to_string().contains("tensor `a.weight` of `a.safetensors`: element 1023 is NaN"),
        "{error}"
    );
}

fn any_folder() -> impl Strategy<Value = Folder> {
    let dtype = prop_oneof![Just(Dtype::F32), Just(Dtype::BF16), Just(Dtype::U8)];
    let name = "(model\\.layers\\.[01]\\.mlp\\.experts\\.[0-3]\\.(up|down)_proj\\.weight|[a-d]\\.weight)";
    let tensors =
        proptest::collection::btree_map(name, (dtype, proptest::collection::vec(0u64..5, 0..3)), 0..6);
    let others =
        proptest::collection::btree_map("[a-c]{1,2}\\.(txt|json)|d/[a-c]\\.txt", any::<Vec<u8>>(), 0..5);
    (tensors, others).prop_map(|(tensors, others)| {
        let list: Vec<_> =
            tensors.iter().map(|(name, (dtype, shape))| (name.as_str(), *dtype, shape.as_slice())).collect();
        let mut folder = Folder(others);
        folder = folder.with("model.safetensors", safetensors(&list));
        folder
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_file_comes_back(folder in any_folder()) {
        prop_assert_eq!(import(&folder, None).files(), folder.0);
    }
}

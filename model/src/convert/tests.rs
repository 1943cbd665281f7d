//! Whole conversions, compared with GGUF files that other tools made from the same checkpoints.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::gguf::Header;
use crate::import::fp8_tests::{self, array, file};
use crate::import::{Conversion, Options, Plan, ReadAt, Source, SourceFile, plan};
use crate::quant::Kind;
use crate::quant::ggml::Type;
use crate::safetensors::Dtype;

use super::FileType;

pub(super) fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// A folder in memory that tests can change.
#[derive(Clone, Default)]
pub(super) struct Folder(pub(super) BTreeMap<String, Vec<u8>>);

impl Folder {
    pub(super) fn read(path: &str) -> Folder {
        let entries = fs::read_dir(repository(path)).expect(path);
        let files = entries.flatten().filter(|entry| entry.path().is_file());
        Folder(
            files
                .map(|entry| {
                    (entry.file_name().into_string().unwrap(), fs::read(entry.path()).expect("a file"))
                })
                .collect(),
        )
    }

    pub(super) fn one(path: &str, bytes: Vec<u8>) -> Folder {
        Folder(BTreeMap::from([(path.to_owned(), bytes)]))
    }

    pub(super) fn with_config(mut self, key: &str, value: serde_json::Value) -> Folder {
        let config = self.0.get_mut("config.json").expect("a config");
        let mut json: serde_json::Value = serde_json::from_slice(config).unwrap();
        json[key] = value;
        *config = json.to_string().into_bytes();
        self
    }
}

impl Source for Folder {
    fn files(&self) -> Vec<SourceFile> {
        let file =
            |(path, bytes): (&String, &Vec<u8>)| SourceFile { path: path.clone(), size: bytes.len() as u64 };
        self.0.iter().map(file).collect()
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn ReadAt>> {
        Ok(Box::new(self.0.get(path).ok_or(io::ErrorKind::NotFound)?.clone()))
    }
}

pub(super) fn planned(folder: &Folder, quantize: Conversion) -> Result<Plan, String> {
    plan(folder, &Options { conversion: Some(quantize) }).map_err(|error| {
        let source = std::error::Error::source(&error).map(|source| format!(": {source}"));
        format!("{error}{}", source.unwrap_or_default())
    })
}

/// Imports a folder and returns the resulting GGUF with its plan.
pub(super) fn made(folder: &Folder, file_type: FileType) -> (Vec<u8>, Plan) {
    let plan = planned(folder, Conversion::Gguf(Some(file_type))).expect("a model that can be converted");
    let layer = &plan.layers[0];
    assert_eq!(layer.media_type, crate::media_type::OLLAMA_MODEL);
    assert!(layer.is_encoded() || !file_type.is_quantised());
    let source: Arc<dyn Source> = Arc::new(folder.clone());
    let mut bytes = Vec::new();
    layer.reader(&source).read_to_end(&mut bytes).expect("readable");
    assert_eq!(bytes.len() as u64, layer.size);
    // The bytes are the same from any offset.
    let length = bytes.len() as u64;
    for (offset, count) in
        [(0, 1), (length / 3, 5000), (length / 2 + 7, 70_000), (length - 1, 9), (length, 0)]
    {
        let mut run = Vec::new();
        layer.range_reader(&source, offset, count).read_to_end(&mut run).expect("readable");
        let end = (offset + count).min(length) as usize;
        assert!(run == bytes[offset as usize..end], "{count} bytes from {offset}");
    }
    (bytes, plan)
}

pub(super) fn tensor<'a>(file: &'a [u8], header: &Header, name: &str) -> (Type, Vec<u64>, &'a [u8]) {
    let entry = header.tensors.iter().find(|entry| entry.name == name).unwrap_or_else(|| panic!("{name}"));
    let start = (header.data_start + entry.offset) as usize;
    (entry.ty, entry.dims.clone(), &file[start..start + entry.size_bytes().unwrap() as usize])
}

#[test]
fn conversions_match_reference_files() {
    let folders = fs::read_dir(repository("tests/fixtures/arch")).unwrap();
    let names = folders.map(|entry| entry.unwrap().file_name().to_str().unwrap().to_owned());
    // Some fixtures have no GGUF: the window of one family cannot be stored in a GGUF.
    let made_by_others =
        |name: &String| repository(&format!("tests/fixtures/gguf/{name}-q8_0.gguf")).exists();
    let names: Vec<String> = names.filter(made_by_others).collect();
    assert!(names.len() >= 10, "{names:?}");
    for name in names {
        let (file, plan) = made(&Folder::read(&format!("tests/fixtures/arch/{name}")), FileType::Q8_0);
        let header = Header::parse(&file, file.len() as u64).unwrap();
        let theirs = fs::read(repository(&format!("tests/fixtures/gguf/{name}-q8_0.gguf"))).unwrap();
        let expect = Header::parse(&theirs, theirs.len() as u64).unwrap();
        for (key, value) in expect.metadata.iter() {
            assert_eq!(header.metadata.get(key), Some(value), "{name}: {key}");
        }
        let more: Vec<&str> = header
            .metadata
            .iter()
            .map(|(key, _)| key)
            .filter(|key| expect.metadata.get(key).is_none())
            .collect();
        assert_eq!(more, ["general.type", "general.quantization_version", "general.file_type"], "{name}");
        assert_eq!(header.tensors.len(), expect.tensors.len(), "{name}");
        for entry in &expect.tensors {
            let (ours, known) = (tensor(&file, &header, &entry.name), tensor(&theirs, &expect, &entry.name));
            assert_eq!((ours.0, &ours.1), (known.0, &known.1), "{name}: {}", entry.name);
            assert!(ours.2 == known.2, "{name}: {} has other bytes", entry.name);
        }
        assert_eq!(plan.config.model_format, "gguf");
        assert_eq!(plan.config.file_type, "Q8_0");
    }
}

#[test]
fn quantising_a_float_gguf_matches_the_checkpoint() {
    let checkpoint = Folder::read("tests/fixtures/arch/mixtral");
    let (direct, _) = made(&checkpoint, FileType::Q8_0);
    let (floats, plan) = made(&checkpoint, FileType::F32);
    assert_eq!(plan.config.file_type, "F32");
    let (twice, plan) = made(&Folder::one("mini-F32.gguf", floats), FileType::Q8_0);
    assert!(direct == twice, "a detour over F32 changes nothing");
    assert_eq!(plan.layers[0].name.as_deref(), Some("mini-Q8_0.gguf"));
    let refused = planned(&Folder::one("mini.gguf", twice.clone()), Conversion::Gguf(Some(FileType::Q4_0)))
        .unwrap_err();
    assert!(refused.contains("`mini.gguf`") && refused.contains("is already Q8_0"), "{refused}");
    let refused = planned(&Folder::one("mini.gguf", twice), Conversion::Blobs(Kind::Int4)).unwrap_err();
    assert!(refused.contains("int4"), "{refused}");
}

#[test]
fn rows_too_short_for_a_type_are_named() {
    let (file, plan) = made(&Folder::read("tests/fixtures/arch/llama"), FileType::Q4_0);
    let header = Header::parse(&file, file.len() as u64).unwrap();
    assert_eq!(tensor(&file, &header, "blk.0.attn_q.weight").0, Type::Q4_0);
    assert_eq!(tensor(&file, &header, "output.weight").0, Type::Q8_0);
    let notices = plan.notices.join("\n");
    assert!(notices.contains("`output.weight`: Q8_0 instead of Q6_K"), "{notices}");
}

/// Returns a checkpoint with FP8 matrices, and a checkpoint of the floats that they decode to. The matrices
/// of layers have one scale per block, the others a single scale.
fn in_fp8(folder: &Folder, block: [usize; 2]) -> (Folder, Folder) {
    let weights = &folder.0["model.safetensors"];
    let header = crate::safetensors::Header::read(weights).unwrap();
    let (mut codes, mut floats) = (Vec::new(), Vec::new());
    for tensor in crate::tensor::read_plain(&header) {
        let (name, shape) = (tensor.name.as_str(), tensor.shape.as_slice());
        let &[rows, columns] = shape else {
            let values = tensor.decode_f32(weights).unwrap();
            codes.push(array(name, Dtype::F32, shape, &values));
            floats.push(array(name, Dtype::F32, shape, &values));
            continue;
        };
        let (rows, columns) = (rows as usize, columns as usize);
        let is_layers = name.starts_with("model.layers.");
        let block = if is_layers { block } else { [rows, columns] };
        let (down, across) = (rows.div_ceil(block[0]), columns.div_ceil(block[1]));
        let (data, scales) = (fp8_tests::codes(rows, columns), fp8_tests::scales(down * across));
        floats.push(array(name, Dtype::F32, shape, &fp8_tests::values(&data, columns, &scales, block)));
        let (end, scale_shape) =
            if is_layers { ("_scale_inv", vec![down as u64, across as u64]) } else { ("_scale", vec![1]) };
        codes.push(array(&format!("{name}{end}"), Dtype::F32, &scale_shape, &scales));
        codes.push((name.to_owned(), Dtype::F8_E4M3, shape.to_vec(), data));
    }
    let with = |arrays: &[fp8_tests::Array]| {
        let mut folder = folder.clone();
        folder.0.insert("model.safetensors".to_owned(), file(arrays));
        folder
    };
    let quantization = serde_json::json!({"quant_method": "fp8", "weight_block_size": block});
    (with(&codes).with_config("quantization_config", quantization), with(&floats))
}

#[test]
fn fp8_converts_like_its_floats() {
    // Blocks that do not divide rows and columns, blocks that cut through heads, and experts with their own
    // blocks.
    for (name, block) in
        [("llama", [24, 40]), ("mixtral", [100, 48]), ("qwen3-moe", [1, 64]), ("phi3", [128, 128])]
    {
        let (fp8, floats) = in_fp8(&Folder::read(&format!("tests/fixtures/arch/{name}")), block);
        for file_type in [FileType::F32, FileType::F16, FileType::BF16, FileType::Q8_0, FileType::Q4_K_M] {
            let ((ours, plan), (theirs, _)) = (made(&fp8, file_type), made(&floats, file_type));
            assert!(ours == theirs, "{name} to {file_type}");
            let paths: Vec<&str> = plan.layers.iter().filter_map(|layer| layer.name.as_deref()).collect();
            assert!(!paths.contains(&"config.json"), "{paths:?}");
        }
    }
}

#[test]
fn unconvertible_models_are_refused() {
    let llama = || Folder::read("tests/fixtures/arch/llama");
    let mut without = llama();
    without.0.remove("tokenizer.json");
    let folders = [
        (without, "`tokenizer.json` is missing"),
        (llama().with_config("model_type", "gpt_neox".into()), "`gpt_neox`"),
        (llama().with_config("num_hidden_layers", 3.into()), "`blk.2.attn_norm.weight` is missing"),
        (llama().with_config("num_hidden_layers", 1.into()), "`model.layers.1."),
        (llama().with_config("vocab_size", 400.into()), "`vocab_size` rows"),
        (llama().with_config("vocab_size", 4_000_000_000u32.into()), "`vocab_size` rows"),
        (llama().with_config("head_dim", 32.into()), "`model.layers.0.self_attn."),
        (
            Folder::read("tests/fixtures/arch/llama").with_config("rms_norm_eps", serde_json::Value::Null),
            "`rms_norm_eps`",
        ),
    ];
    for (folder, expect) in folders {
        let error = planned(&folder, Conversion::Gguf(Some(FileType::Q8_0))).map(drop).unwrap_err();
        assert!(error.contains(expect), "{error}\n  wanted {expect}");
    }
}

#[test]
fn values_that_no_block_can_hold_are_named() {
    let mut folder = Folder::read("tests/fixtures/arch/llama");
    let file = folder.0.get_mut("model.safetensors").unwrap();
    let header = crate::safetensors::Header::read(file).unwrap();
    let at = header.data_start() + header.get("model.layers.1.self_attn.q_proj.weight").unwrap().begin;
    file[at as usize..][..4].copy_from_slice(&f32::INFINITY.to_le_bytes());
    let plan = planned(&folder, Conversion::Gguf(Some(FileType::Q8_0))).unwrap();
    let source: Arc<dyn Source> = Arc::new(folder);
    let error = plan.layers[0].reader(&source).read_to_end(&mut Vec::new()).unwrap_err().to_string();
    assert!(error.contains("expected a finite number") && error.contains("`blk.1.attn_q.weight`"), "{error}");

    let (mut fp8, _) = in_fp8(&Folder::read("tests/fixtures/arch/llama"), [64, 64]);
    let file = fp8.0.get_mut("model.safetensors").unwrap();
    let header = crate::safetensors::Header::read(file).unwrap();
    let at = header.data_start() + header.get("model.layers.1.mlp.up_proj.weight").unwrap().begin;
    file[at as usize + 70] = 0x7f;
    // Every file type refuses the value, not only those with blocks.
    for file_type in [FileType::F32, FileType::Q8_0] {
        let plan = planned(&fp8, Conversion::Gguf(Some(file_type))).unwrap();
        let source: Arc<dyn Source> = Arc::new(fp8.clone());
        let error = plan.layers[0].reader(&source).read_to_end(&mut Vec::new()).unwrap_err().to_string();
        let expect = "`model.layers.1.mlp.up_proj.weight`";
        assert!(error.contains(expect) && error.contains("element 70 is NaN"), "{error}");
    }
}

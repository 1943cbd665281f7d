//! Whole conversions, held to GGUF files that others made of the same checkpoints.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::gguf::Header;
use crate::import::{Options, Plan, Quantize, ReadAt, Source, SourceFile, plan};
use crate::quant::ggml::Type;

use super::FileType;

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// A folder held in memory, changed as a test wants it.
#[derive(Clone, Default)]
struct Folder(BTreeMap<String, Vec<u8>>);

impl Folder {
    fn read(path: &str) -> Folder {
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

    fn one(path: &str, bytes: Vec<u8>) -> Folder {
        Folder(BTreeMap::from([(path.to_owned(), bytes)]))
    }

    fn with_config(mut self, key: &str, value: serde_json::Value) -> Folder {
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

fn planned(folder: &Folder, quantize: Quantize) -> Result<Plan, String> {
    plan(folder, &Options { quantize: Some(quantize), ..Options::default() }).map_err(|error| {
        let source = std::error::Error::source(&error).map(|source| format!(": {source}"));
        format!("{error}{}", source.unwrap_or_default())
    })
}

/// The GGUF that an import makes, and what it says.
fn made(folder: &Folder, file_type: FileType) -> (Vec<u8>, Plan) {
    let plan = planned(folder, Quantize::Gguf(file_type)).expect("a model that can be converted");
    let layer = &plan.layers[0];
    assert_eq!(layer.media_type, crate::media_type::OLLAMA_MODEL);
    assert!(layer.is_encoded() || !file_type.is_quantised());
    let source: Arc<dyn Source> = Arc::new(folder.clone());
    let mut bytes = Vec::new();
    layer.reader(&source).read_to_end(&mut bytes).expect("readable");
    assert_eq!(bytes.len() as u64, layer.size);
    // Wherever one begins, the bytes are the same.
    let length = bytes.len() as u64;
    for (offset, count) in
        [(0, 1), (length / 3, 5000), (length / 2 + 7, 70_000), (length - 1, 9), (length, 0)]
    {
        let mut run = Vec::new();
        layer.reader_of(&source, offset, count).read_to_end(&mut run).expect("readable");
        let end = (offset + count).min(length) as usize;
        assert!(run == bytes[offset as usize..end], "{count} bytes from {offset}");
    }
    (bytes, plan)
}

fn tensor<'a>(file: &'a [u8], header: &Header, name: &str) -> (Type, Vec<u64>, &'a [u8]) {
    let entry = header.tensors.iter().find(|entry| entry.name == name).unwrap_or_else(|| panic!("{name}"));
    let start = (header.data_start + entry.offset) as usize;
    (entry.ty, entry.dims.clone(), &file[start..start + entry.size_bytes().unwrap() as usize])
}

#[test]
fn checkpoints_become_what_others_made_of_them() {
    let folders = fs::read_dir(repository("tests/fixtures/arch")).unwrap();
    let names = folders.map(|entry| entry.unwrap().file_name().to_str().unwrap().to_owned());
    // One family's window is nothing that a GGUF can tell.
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
fn a_gguf_of_floats_gives_what_the_checkpoint_gives() {
    let checkpoint = Folder::read("tests/fixtures/arch/mixtral");
    let (direct, _) = made(&checkpoint, FileType::Q8_0);
    let (floats, plan) = made(&checkpoint, FileType::F32);
    assert_eq!(plan.config.file_type, "F32");
    let (twice, plan) = made(&Folder::one("mini-F32.gguf", floats), FileType::Q8_0);
    assert!(direct == twice, "a detour over F32 changes nothing");
    assert_eq!(plan.layers[0].name.as_deref(), Some("mini-Q8_0.gguf"));
    let refused =
        planned(&Folder::one("mini.gguf", twice.clone()), Quantize::Gguf(FileType::Q4_0)).unwrap_err();
    assert!(refused.contains("`mini.gguf`") && refused.contains("Q8_0 already"), "{refused}");
    let refused = planned(&Folder::one("mini.gguf", twice), Quantize::Int4).unwrap_err();
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

#[test]
fn what_cannot_be_converted_is_named() {
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
        let error = planned(&folder, Quantize::Gguf(FileType::Q8_0)).map(drop).unwrap_err();
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
    let plan = planned(&folder, Quantize::Gguf(FileType::Q8_0)).unwrap();
    let source: Arc<dyn Source> = Arc::new(folder);
    let error = plan.layers[0].reader(&source).read_to_end(&mut Vec::new()).unwrap_err().to_string();
    assert!(error.contains("expected a finite number") && error.contains("`blk.1.attn_q.weight`"), "{error}");
}

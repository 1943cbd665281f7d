//! The tokenizer.json of a converted GGUF gives the ids of the GGUF's own vocabulary, and of the checkpoint that
//! the GGUF was made of.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use lode_model::gguf::{Header, Metadata, NewTensor, pre_tokeniser};
use lode_model::import::{self, Conversion, Options, ReadAt, Source, SourceFile};
use lode_model::quant::ggml::Type;
use serde_json::Value;

use super::read;
use super::tests::{fixture, header};
use crate::report;
use crate::text::{Special, SpecialTokens, Tokenizer};

/// Texts with the characters that pre-tokenisers treat differently.
const TEXTS: [&str; 14] = [
    "",
    " ",
    "Hello world",
    "  two blanks,   three\n\n\nand lines\r\n\t tabs",
    "don't WE'LL they're 'S",
    "12345678 3.14 1,000 \u{663}\u{664}",
    "na\u{ef}ve caf\u{e9} e\u{301} \u{df} \u{130}",
    "\u{65e5}\u{672c}\u{8a9e}\u{306e}\u{30c6}\u{30ad}\u{30b9}\u{30c8} \u{4e2d}\u{6587} \u{d55c}\u{ad6d}\u{c5b4}",
    "\u{1f600}\u{1f468}\u{200d}\u{1f469}\u{200d}\u{1f467} \u{2603}",
    "fn main() { println!(\"{}\", a[0] != b); } // x_y-z/w\\v",
    "<|im_start|>user\nHi<|im_end|>\n<|endoftext|><s>a</s> b<end_of_turn>",
    "\u{2581}literal \u{2581}\u{2581} blanks",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "\u{0}\u{7f}\u{85}\u{a0}\u{feff}",
];

struct File(&'static str, Vec<u8>);

impl Source for File {
    fn files(&self) -> Vec<SourceFile> {
        vec![SourceFile { path: self.0.to_owned(), size: self.1.len() as u64 }]
    }

    fn open(&self, _: &str) -> io::Result<Box<dyn ReadAt>> {
        Ok(Box::new(self.1.clone()))
    }
}

/// Converts the vocabulary of a GGUF, with a model of the least size, to the files of a checkpoint.
fn converted(vocabulary: &Metadata) -> Result<BTreeMap<String, Vec<u8>>, String> {
    let mut metadata = Metadata::new();
    for (key, value) in
        vocabulary.iter().filter(|(key, _)| key.starts_with("tokenizer.") || *key == "general.name")
    {
        metadata.set(key, value.clone());
    }
    metadata.set("general.architecture", "llama");
    for (key, value) in [
        ("context_length", 64u32),
        ("embedding_length", 2),
        ("block_count", 1),
        ("feed_forward_length", 1),
        ("attention.head_count", 1),
    ] {
        metadata.set(format!("llama.{key}"), value);
    }
    metadata.set("llama.attention.layer_norm_rms_epsilon", 1e-5f32);
    let tokens = vocabulary.get("tokenizer.ggml.tokens").and_then(|tokens| tokens.as_array()).unwrap();
    let tensor =
        |name: &str, dims: &[u64]| NewTensor { name: name.to_owned(), dims: dims.to_vec(), ty: Type::F32 };
    let tensors = [
        tensor("token_embd.weight", &[2, tokens.len() as u64]),
        tensor("output_norm.weight", &[2]),
        tensor("blk.0.attn_norm.weight", &[2]),
        tensor("blk.0.attn_q.weight", &[2, 2]),
        tensor("blk.0.attn_k.weight", &[2, 2]),
        tensor("blk.0.attn_v.weight", &[2, 2]),
        tensor("blk.0.attn_output.weight", &[2, 2]),
        tensor("blk.0.ffn_norm.weight", &[2]),
        tensor("blk.0.ffn_gate.weight", &[2, 1]),
        tensor("blk.0.ffn_up.weight", &[2, 1]),
        tensor("blk.0.ffn_down.weight", &[1, 2]),
    ];
    let header = Header::new(metadata, tensors).unwrap();
    let mut bytes = header.to_bytes();
    bytes.resize(header.file_len() as usize, 0);
    let source: Arc<dyn Source> = Arc::new(File("mini.gguf", bytes));
    let options = Options { conversion: Some(Conversion::Checkpoint(None)) };
    let plan = import::plan(&*source, &options).map_err(|error| {
        format!("{error}: {}", std::error::Error::source(&error).map(|e| e.to_string()).unwrap_or_default())
    })?;
    let mut files = BTreeMap::new();
    for layer in
        plan.layers.iter().filter(|layer| layer.name.as_deref().is_some_and(|name| name.ends_with(".json")))
    {
        let mut bytes = Vec::new();
        layer.reader(&source).read_to_end(&mut bytes).unwrap();
        files.insert(layer.name.clone().unwrap(), bytes);
    }
    Ok(files)
}

fn tokenizer(files: &BTreeMap<String, Vec<u8>>) -> (Tokenizer, SpecialTokens) {
    let tokenizer = Tokenizer::from_json(&files["tokenizer.json"]).unwrap();
    let json = |path: &str| files.get(path).map(|bytes| serde_json::from_slice::<Value>(bytes).unwrap());
    let special = tokenizer.special_tokens(
        json("config.json").as_ref(),
        json("generation_config.json").as_ref(),
        json("tokenizer_config.json").as_ref(),
    );
    (tokenizer, special)
}

/// Compares the ids and the texts of both, for each treatment of special tokens.
fn compare(name: &str, vocabulary: &Metadata, texts: &[&str]) {
    let (theirs, their_special) = read(vocabulary).unwrap();
    let files = converted(vocabulary).unwrap_or_else(|error| panic!("{name}: {error}"));
    let (ours, our_special) = tokenizer(&files);
    for text in texts {
        for special in [Special::ALL, Special::PARSE, Special::NONE] {
            let expect = theirs.encode_with(text, special).unwrap();
            let found = ours.encode_with(text, special).unwrap();
            assert_eq!(found, expect, "{name}: {text:?} {special:?}");
            assert_eq!(ours.decode(&found).unwrap(), theirs.decode(&found).unwrap(), "{name}: {text:?}");
        }
    }
    assert_eq!(our_special.bos, their_special.bos, "{name}");
    assert_eq!(our_special.eos, their_special.eos, "{name}");
    for (role, text) in &their_special.names {
        assert!(role == "cls_token" || our_special.names.get(role) == Some(text), "{name}: {role}");
    }
}

#[test]
fn small_vocabularies_keep_their_ids() {
    let expected: Value =
        serde_json::from_slice(&std::fs::read(fixture("vocab-small/expected.json")).unwrap()).unwrap();
    for (name, cases) in expected.as_object().unwrap() {
        let (file, pre) =
            name.split_once('-').filter(|(file, _)| *file == "gpt2").unwrap_or((name, "default"));
        let mut metadata = header(&fixture(&format!("vocab-small/{file}.gguf"))).metadata;
        metadata.set("tokenizer.ggml.pre", pre);
        let texts = cases.as_array().unwrap().iter().map(|case| case["text"].as_str().unwrap());
        // Where special tokens overlap, llama.cpp takes the longest first, and tokenizer.json the leftmost.
        let texts: Vec<&str> = texts.filter(|text| !text.contains("xyzw")).chain(TEXTS).collect();
        match metadata.str("tokenizer.ggml.model") {
            Some("gpt2") => compare(name, &metadata, &texts),
            // Of other kinds, or without tokens for all bytes and characters.
            _ => {
                let error = converted(&metadata).unwrap_err();
                let is_named = ["cannot be converted to tokenizer.json", "`tokenizer.ggml."];
                assert!(is_named.iter().any(|text| error.contains(text)), "{name}: {error}");
            }
        }
    }
}

#[test]
fn every_pre_tokeniser_keeps_its_ids() {
    let mut metadata = header(&fixture("vocab-small/gpt2.gguf")).metadata;
    for name in pre_tokeniser::NAMES {
        metadata.set("tokenizer.ggml.pre", *name);
        compare(name, &metadata, &TEXTS);
        metadata.set("tokenizer.ggml.add_bos_token", true);
        metadata.set("tokenizer.ggml.add_eos_token", true);
        compare(name, &metadata, &TEXTS[..3]);
        metadata.remove("tokenizer.ggml.add_bos_token");
        metadata.remove("tokenizer.ggml.add_eos_token");
    }
}

#[test]
fn vocabularies_of_converted_families_keep_their_ids() {
    for folder in std::fs::read_dir(fixture("gguf")).unwrap().map(|entry| entry.unwrap().path()) {
        if folder.extension().is_some_and(|extension| extension == "gguf") {
            let name = folder.file_name().unwrap().to_str().unwrap();
            if let Some(checkpoint) = name.strip_suffix("-q8_0.gguf") {
                let metadata = header(&folder).metadata;
                compare(name, &metadata, &TEXTS);
                let original = std::fs::read(fixture(&format!("arch/{checkpoint}/tokenizer.json"))).unwrap();
                let original = Tokenizer::from_json(&original).unwrap();
                let (ours, _) = tokenizer(&converted(&metadata).unwrap());
                for text in TEXTS {
                    for special in [true, false] {
                        let expect = original.encode(text, special).unwrap();
                        assert_eq!(ours.encode(text, special).unwrap(), expect, "{name}: {text:?}");
                    }
                }
            }
        }
    }
}

/// The vocabularies of llama.cpp's tests, as in `super::tests`.
#[test]
fn llama_cpp_vocabularies_keep_their_ids() {
    let Some(folder) = std::env::var_os("LODE_VOCAB_DIR") else {
        return report::skip_optional(&report::current_test(), "LODE_VOCAB_DIR is not set");
    };
    for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if path.extension().is_none_or(|extension| extension != "gguf") {
            continue;
        }
        let metadata = header(&path).metadata;
        let name = path.file_name().and_then(|name| name.to_str()).unwrap();
        if !matches!(metadata.str("tokenizer.ggml.model"), Some("gpt2" | "llama")) {
            assert!(converted(&metadata).unwrap_err().contains("its kind is"), "{name}");
            continue;
        }
        let texts = std::fs::read_to_string(Path::new(&format!("{}.inp", path.display()))).unwrap();
        let texts: Vec<&str> = texts.split("\n__ggml_vocab_test__\n").chain(TEXTS).collect();
        compare(name, &metadata, &texts);
    }
}

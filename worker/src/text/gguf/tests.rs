use std::path::{Path, PathBuf};

use lode_model::gguf::{Array, Header, Metadata, pre_tokeniser};
use serde_json::Value;

use super::super::template::Conversation;
use super::{chat_template, read};
use crate::report;
use crate::text::{Special, Tokenizer, TokenizerError};

pub(super) fn header(path: &Path) -> Header {
    let bytes = std::fs::read(path).unwrap();
    Header::parse(&bytes, bytes.len() as u64).unwrap()
}

pub(super) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(name)
}

/// Compares with the texts and ids of llama.cpp's vocabulary tests: `*.gguf` with `.inp` and `.out` in the
/// folder `models` of its repository. `LODE_VOCAB_DIR` names that folder; the vocabularies of the tests below
/// are our own.
#[test]
fn llama_cpp_vocabularies() {
    let Some(folder) = std::env::var_os("LODE_VOCAB_DIR") else {
        return report::skip_optional(&report::current_test(), "LODE_VOCAB_DIR is not set");
    };
    for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if path.extension().is_none_or(|extension| extension != "gguf") {
            continue;
        }
        let with_suffix = |end: &str| std::fs::read_to_string(format!("{}{end}", path.display())).unwrap();
        let (tokenizer, _) = read(&header(&path).metadata).unwrap();
        let (texts, ids) = (with_suffix(".inp"), with_suffix(".out"));
        let mut texts: Vec<&str> = texts.split("\n__ggml_vocab_test__\n").collect();
        assert_eq!(texts.pop(), Some(""), "every text ends with the line");
        assert_eq!(texts.len(), ids.lines().count(), "{}", path.display());
        for (text, line) in texts.into_iter().zip(ids.lines()) {
            let expect: Vec<u32> = line.split_whitespace().map(|id| id.parse().unwrap()).collect();
            let special = Special { add: false, parse: true };
            let found = tokenizer.encode_with(text, special).unwrap();
            assert_eq!(found, expect, "{}: {text:?}", path.display());
            let back = tokenizer.decode(&found).unwrap();
            if !path.display().to_string().contains("bert") {
                assert_eq!(String::from_utf8_lossy(&back), text, "{}", path.display());
            }
        }
    }
}

/// Small vocabularies of each kind; `generate.py` in their folder generates the expected ids.
#[test]
fn small_vocabularies() {
    let expected: Value =
        serde_json::from_slice(&std::fs::read(fixture("vocab-small/expected.json")).unwrap()).unwrap();
    for (name, cases) in expected.as_object().unwrap() {
        // All pre-tokenisers share one file.
        let (file, pre) =
            name.split_once('-').filter(|(file, _)| *file == "gpt2").unwrap_or((name, "default"));
        let mut metadata = header(&fixture(&format!("vocab-small/{file}.gguf"))).metadata;
        metadata.set("tokenizer.ggml.pre", pre);
        let (tokenizer, _) = read(&metadata).unwrap();
        for case in cases.as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            for (key, special) in [("all", Special::ALL), ("parse", Special::PARSE), ("none", Special::NONE)]
            {
                let expect: Vec<u32> =
                    case[key].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
                assert_eq!(tokenizer.encode_with(text, special).unwrap(), expect, "{name} {key}: {text:?}");
            }
        }
    }
}

#[test]
fn every_pre_tokeniser_compiles() {
    for name in pre_tokeniser::NAMES {
        let mut metadata = tiny("gpt2");
        metadata.set("tokenizer.ggml.pre", *name);
        metadata.set("tokenizer.ggml.merges", Array::String(["a b"].iter().collect()));
        let (tokenizer, _) = read(&metadata).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(!tokenizer.encode_with("ab", Special::NONE).unwrap().is_empty(), "{name}");
    }
}

fn tiny(kind: &str) -> Metadata {
    let mut metadata = Metadata::new();
    metadata.set("tokenizer.ggml.model", kind);
    let tokens = ["<unk>", "<s>", "</s>", "a", "b", "ab", "<|im_end|>", "\u{2581}a", "[UNK]"];
    metadata.set("tokenizer.ggml.tokens", Array::String(tokens.iter().collect()));
    metadata
}

fn encode(tokenizer: &Tokenizer, text: &str, special: Special) -> Vec<u32> {
    tokenizer.encode_with(text, special).unwrap()
}

#[test]
fn missing_keys_have_defaults() {
    let mut metadata = tiny("llama");
    let (tokenizer, special) = read(&metadata).unwrap();
    // The ids of beginning and end of text have defaults, and `<|im_end|>` always ends a response.
    assert_eq!((special.bos, special.eos), (Some(1), [2, 6].into()));
    assert_eq!(encode(&tokenizer, "ab<|im_end|>", Special::ALL), [1, 7, 4, 6]);
    assert_eq!(encode(&tokenizer, "a\u{e9}", Special::NONE), [7, 0, 0]);
    assert_eq!(tokenizer.begin(), Some(1));
    assert_eq!(tokenizer.decode(&[7, 4]).unwrap(), b"ab");
    metadata.set("tokenizer.ggml.add_bos_token", false);
    metadata.set("tokenizer.ggml.add_space_prefix", false);
    let (tokenizer, _) = read(&metadata).unwrap();
    assert_eq!(encode(&tokenizer, "ab", Special::ALL), [5]);
    assert_eq!(tokenizer.begin(), None);
    metadata.set("tokenizer.chat_template", "{{ bos_token }}{{ messages[0].content }}");
    let (_, special) = read(&metadata).unwrap();
    let template = chat_template(&metadata, &special).unwrap().unwrap();
    let messages = [serde_json::json!({"role": "user", "content": "a"})];
    let conversation =
        Conversation { messages: &messages, tools: None, add_generation_prompt: true, think: None };
    assert_eq!(template.render(&conversation).unwrap(), "<s>a");
}

#[test]
fn the_longest_special_token_comes_first() {
    let mut metadata = tiny("llama");
    let tokens = ["<unk>", "<s>", "</s>", "xy", "yzw", "x", "zw"];
    metadata.set("tokenizer.ggml.tokens", Array::String(tokens.iter().collect()));
    metadata.set("tokenizer.ggml.token_type", Array::I32(vec![2, 3, 3, 3, 4, 1, 1]));
    metadata.set("tokenizer.ggml.add_space_prefix", false);
    let (tokenizer, _) = read(&metadata).unwrap();
    assert_eq!(encode(&tokenizer, "xyzw", Special::PARSE), [5, 4]);
    assert_eq!(encode(&tokenizer, "xyxyzwyzw", Special::PARSE), [3, 5, 4, 4]);
    // User-defined tokens are tokens even in plain text; control tokens are not.
    assert_eq!(encode(&tokenizer, "xyzw", Special::NONE), [5, 4]);
    assert_eq!(encode(&tokenizer, "<s>", Special::PARSE), [1]);
    assert!(!encode(&tokenizer, "a<s>", Special::NONE).contains(&1));
}

#[test]
fn errors_name_the_key() {
    let check = |metadata: &Metadata, expect: &str| {
        let error = read(metadata).unwrap_err().to_string();
        assert!(error.contains(expect), "{error}");
    };
    assert!(matches!(read(&Metadata::new()), Err(TokenizerError::NoVocabulary)));
    check(&tiny("rwkv"), "`rwkv`");
    check(&tiny("gpt2"), "`tokenizer.ggml.merges`");
    check(&tiny("gemma4"), "`tokenizer.ggml.merges`");
    check(&tiny("bert"), "`tokenizer.ggml.unknown_token_id`");
    let mut metadata = tiny("gpt2");
    metadata.set("tokenizer.ggml.pre", "no-such-name");
    check(&metadata, "`no-such-name`");
    let mut metadata = tiny("llama");
    metadata.set("tokenizer.ggml.scores", Array::F32(vec![0.0]));
    check(&metadata, "`tokenizer.ggml.scores`");
    metadata.set("tokenizer.ggml.token_type", Array::I32(vec![1]));
    check(&metadata, "`tokenizer.ggml.token_type`");
    metadata.set("tokenizer.ggml.tokens", 3u32);
    check(&metadata, "`tokenizer.ggml.tokens`");
}

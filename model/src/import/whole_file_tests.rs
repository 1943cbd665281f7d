//! Imports of files that are stored whole: GGUF, split or not, and ONNX with its files of weights.

use super::tests::{Folder, import, refused};
use super::*;
use crate::gguf::{Array, Header, Metadata, NewTensor, Value};
use crate::media_type;
use crate::quant::Kind;
use crate::quant::ggml::Type;

/// A GGUF file with one tensor per name.
fn gguf(keys: &[(&str, Value)], tensors: &[&str]) -> Vec<u8> {
    let mut metadata = Metadata::new();
    keys.iter().for_each(|(key, value)| metadata.set(*key, value.clone()));
    let tensors =
        tensors.iter().map(|name| NewTensor { name: (*name).to_owned(), dims: vec![64, 2], ty: Type::Q8_0 });
    let header = Header::new(metadata, tensors.collect::<Vec<_>>()).expect("a header within the limits");
    let mut bytes = header.to_bytes();
    bytes.extend((bytes.len() as u64..header.file_len()).map(|at| at as u8));
    bytes
}

fn llama() -> Vec<(&'static str, Value)> {
    vec![
        ("general.architecture", "llama".into()),
        ("general.name", "Tiny".into()),
        ("general.license", "mit".into()),
        ("general.file_type", 7u32.into()),
        ("llama.block_count", 1u32.into()),
        ("llama.embedding_length", 64u32.into()),
        ("llama.attention.head_count", 4u32.into()),
        ("llama.context_length", Value::U64(128)),
        ("tokenizer.ggml.tokens", Array::String(["a", "b"].into_iter().collect()).into()),
    ]
}

fn kinds(plan: &Plan) -> Vec<(&str, &str)> {
    plan.layers.iter().map(|layer| (layer.media_type, layer.name.as_deref().unwrap_or_default())).collect()
}

#[test]
fn one_gguf() {
    let folder = Folder::default().with("model.gguf", gguf(&llama(), &["token_embd.weight"]));
    let imported = import(&folder, None);
    assert_eq!(kinds(&imported.plan), [(media_type::OLLAMA_MODEL, "model.gguf")]);
    assert_eq!(imported.notices(), "");
    assert_eq!((imported.plan.tensors, imported.plan.parameters), (1, 128));
    let config = &imported.plan.config;
    assert_eq!((config.model_format.as_str(), config.model_family.as_str()), ("gguf", "llama"));
    assert_eq!((config.file_type.as_str(), config.model_type.as_str()), ("Q8_0", "128"));
    assert_eq!((config.context_length, config.embedding_length), (Some(128), Some(64)));
    let manifest = &imported.manifest;
    assert_eq!(manifest.artifact_type.as_deref(), Some(media_type::LODE_MODEL));
    assert_eq!(manifest.annotations[media_type::TITLE_ANNOTATION], "Tiny");
    assert_eq!(manifest.annotations[media_type::LICENSES_ANNOTATION], "mit");
    assert_eq!(manifest.layers[0].annotations[media_type::TITLE_ANNOTATION], "model.gguf");
    assert_eq!(imported.files(), folder.0);
}

#[test]
fn a_folder_of_ggufs() {
    let part = |number: u16, tensor: &str| {
        let mut keys = if number == 0 { llama() } else { Vec::new() };
        keys.push(("split.no", Value::U16(number)));
        keys.push(("split.count", Value::U16(2)));
        keys.push(("split.tensors.count", Value::I32(2)));
        gguf(&keys, &[tensor])
    };
    let folder = Folder::default()
        .with("m-00001-of-00002.gguf", part(0, "a"))
        .with("m-00002-of-00002.gguf", part(1, "b"))
        .with("mmproj.gguf", gguf(&[("general.architecture", "clip".into())], &["v.a"]))
        .with("z/other.gguf", gguf(&llama(), &["a"]))
        .with("LICENSE", "all yours")
        .with("params.json", "{}")
        .with("README.md", "# m")
        .with("empty", "");
    let imported = import(&folder, None);
    assert_eq!(
        kinds(&imported.plan),
        [
            (media_type::OLLAMA_MODEL, "m-00001-of-00002.gguf"),
            (media_type::OLLAMA_MODEL, "m-00002-of-00002.gguf"),
            (media_type::OLLAMA_PROJECTOR, "mmproj.gguf"),
            (media_type::OCTET_STREAM, "z/other.gguf"),
            (media_type::OLLAMA_LICENSE, "LICENSE"),
            (media_type::OCTET_STREAM, "README.md"),
            (media_type::OLLAMA_JSON, "params.json"),
        ]
    );
    assert_eq!(imported.plan.config.model_families, ["llama", "clip"]);
    assert!(imported.notices().contains("split over 2 files"), "{}", imported.notices());
    assert!(imported.notices().contains("`z/other.gguf` is a different model"), "{}", imported.notices());
    assert_eq!(imported.files(), folder.0);

    let mut alone = folder.clone();
    alone.0.remove("m-00002-of-00002.gguf");
    assert_eq!(refused(&alone, None), "`m` is split over 2 files, and number 2 is missing");
    let twice = folder.with("m-00002-of-00002.gguf", part(1, "a"));
    assert!(refused(&twice, None).starts_with("tensor `a` is in `m-00001"));
}

#[test]
fn odd_ggufs_are_stored() {
    for (keys, tensors, expect) in [
        (llama(), &[][..], "there are no tensors"),
        (vec![], &["w"][..], "`m.gguf` lacks the key `general.architecture`"),
        (
            vec![("general.architecture", "nova".into())],
            &["w"][..],
            "architecture `nova` is stored, but unknown",
        ),
        (
            vec![("general.architecture", "llama".into())],
            &["w"][..],
            "lacks the keys `llama.block_count`, `llama.embedding_length`, `llama.attention.head_count`",
        ),
        (vec![("general.type", "adapter".into())], &["w"][..], "there is only an adapter"),
    ] {
        let folder = Folder::default().with("m.gguf", gguf(&keys, tensors));
        let imported = import(&folder, None);
        assert!(imported.notices().contains(expect), "{}\n  wanted {expect}", imported.notices());
        assert_eq!(imported.files(), folder.0);
    }
}

#[test]
fn malformed_ggufs_are_refused() {
    let whole = gguf(&llama(), &["token_embd.weight"]);
    let cut = Folder::default().with("m.gguf", &whole[..whole.len() - 100]);
    let message = refused(&cut, None);
    assert!(
        message.starts_with("`m.gguf` is malformed: tensor `token_embd.weight` has 136 bytes"),
        "{message}"
    );
    let mut key = whole.clone();
    key[24..32].fill(255);
    assert!(refused(&Folder::default().with("m.gguf", key), None).contains("key `number 0` has a name of"));
    let folder = Folder::default().with("m.gguf", whole);
    assert_eq!(
        refused(&folder, Some(Conversion::Blobs(Kind::Int4))),
        "`m.gguf` is a GGUF file, which cannot be quantised to int4"
    );
}

/// An ONNX model with one initializer of eight float32, stored in a file of this name.
fn onnx(location: &str) -> Vec<u8> {
    let field = |number: u8, value: &[u8]| [&[number << 3 | 2, value.len() as u8][..], value].concat();
    let entry =
        |key: &str, value: &str| field(13, &[field(1, key.as_bytes()), field(2, value.as_bytes())].concat());
    let tensor = [
        vec![1 << 3, 8, 2 << 3, 1],
        field(8, b"w"),
        entry("location", location),
        entry("offset", "4"),
        vec![14 << 3, 1],
    ];
    field(7, &field(5, &tensor.concat()))
}

#[test]
fn onnx_and_its_weights() {
    let folder = Folder::default()
        .with("onnx/model.onnx", onnx("model.onnx_data"))
        .with("onnx/model.onnx_data", vec![7; 36])
        .with("config.json", r#"{"model_type":"bert"}"#);
    let imported = import(&folder, None);
    assert_eq!(
        kinds(&imported.plan),
        [
            (media_type::ONNX, "onnx/model.onnx"),
            (media_type::OLLAMA_JSON, "config.json"),
            (media_type::OCTET_STREAM, "onnx/model.onnx_data"),
        ]
    );
    assert_eq!((imported.plan.config.file_type.as_str(), imported.plan.parameters), ("F32", 8));
    assert_eq!(imported.files(), folder.0);
    let short = folder.clone().with("onnx/model.onnx_data", vec![7; 35]);
    assert!(refused(&short, None).ends_with("in `model.onnx_data`, which is too short"));
    let mut without = folder;
    without.0.remove("onnx/model.onnx_data");
    assert_eq!(
        refused(&without, None),
        "`onnx/model.onnx` has tensor `w` in `model.onnx_data`, which is missing"
    );
    assert!(refused(&Folder::default().with("m.onnx", "text"), None).starts_with("`m.onnx` is malformed"));
}

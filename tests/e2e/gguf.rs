//! GGUF files through `lode create`: metadata, pulling them back unchanged, and refusal of damaged files.

use std::fs;
use std::path::{Path, PathBuf};

use lode_tests::checkpoint::read_folder;
use lode_tests::server::Server;

pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/gguf").join(name)
}

#[tokio::test]
async fn a_gguf_is_described_and_comes_back() {
    let server = Server::fresh().await;
    let lode = server.lode();
    let source = fixture("wide-k.gguf");
    lode.create("team/wide", &source, &[]).await.expect_success();

    let shown = lode.run(&["show", "team/wide", "--json"]).await.expect_success().json();
    assert_eq!((&shown["format"], &shown["architecture"]), (&"gguf".into(), &"llama".into()), "{shown}");
    let expected: serde_json::Value =
        serde_json::from_slice(&fs::read(source.with_extension("expected.json")).unwrap()).unwrap();
    let listed = lode.run(&["tensor", "ls", "team/wide", "--json"]).await.expect_success().json();
    let listed = listed["tensors"].as_array().unwrap();
    assert_eq!(listed.len(), expected["tensor_types"].as_object().unwrap().len());
    for tensor in listed {
        assert_eq!(tensor["dtype"], expected["tensor_types"][tensor["name"].as_str().unwrap()], "{tensor}");
    }

    let back = server.folder().path().join("back");
    lode.run(&["pull", "team/wide", "--to", back.to_str().unwrap()]).await.expect_success();
    assert!(fs::read(back.join("wide-k.gguf")).unwrap() == fs::read(&source).unwrap());
}

#[tokio::test]
async fn a_damaged_gguf_is_refused_and_leaves_nothing() {
    let server = Server::fresh().await;
    let lode = server.lode();
    let whole = fs::read(fixture("llama-q8_0.gguf")).unwrap();
    let damaged = server.folder().path().join("model.gguf");
    // 40,000 bytes end within the tensor data, 400 within the name of the ninth key.
    for (cut, expect) in [(40_000, "tensor `"), (400, "key number 9"), (20, "first 24 bytes")] {
        fs::write(&damaged, &whole[..cut]).unwrap();
        let refused = lode.create("team/cut", &damaged, &[]).await;
        assert_eq!(refused.code, 1, "{}", refused.stderr);
        assert!(refused.stderr.contains("`model.gguf` is malformed"), "{}", refused.stderr);
        assert!(refused.stderr.contains(expect), "{}\n  wanted {expect}", refused.stderr);
    }
    assert!(!lode.run(&["list"]).await.expect_success().stdout.contains("team/cut"));
}

#[tokio::test]
async fn a_big_gguf_is_sent_once_whatever_it_is_called() {
    let server = Server::fresh().await;
    let lode = server.lode();
    let path = server.folder().path().join("big.gguf");
    // A tensor of zeros, large enough that the client sends it before it knows the digest.
    let elements: u64 = 17 << 20;
    let text = |text: &str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    let header = [
        b"GGUF\x03\0\0\0".to_vec(),
        [1u64, 1].map(u64::to_le_bytes).concat(),
        text("general.architecture"),
        8u32.to_le_bytes().to_vec(),
        text("llama"),
        text("token_embd.weight"),
        1u32.to_le_bytes().to_vec(),
        elements.to_le_bytes().to_vec(),
        vec![0; 12],
    ]
    .concat();
    fs::write(&path, &header).unwrap();
    let size = (header.len() as u64).next_multiple_of(32) + 4 * elements;
    fs::File::options().write(true).open(&path).unwrap().set_len(size).unwrap();

    let create = async |name: &str| lode.create(name, &path, &["--json"]).await.expect_success().json();
    let first = create("team/big").await;
    assert!(first["sent_bytes"].as_u64().unwrap() >= size, "{first}");
    let again = create("other/name").await;
    assert_eq!(again["digest"], first["digest"]);
    assert!(again["sent_bytes"].as_u64().unwrap() < 10_000, "{again}");
    assert!(again["shared_bytes"].as_u64().unwrap() >= size, "{again}");
}

#[tokio::test]
async fn two_ggufs_and_a_license_come_back() {
    let server = Server::fresh().await;
    let lode = server.lode();
    let folder = server.folder().path().join("source");
    fs::create_dir_all(&folder).unwrap();
    for (nth, name) in ["llama-q8_0.gguf", "qwen2-q8_0.gguf"].into_iter().enumerate() {
        fs::copy(fixture(name), folder.join(format!("{nth}-{name}"))).unwrap();
    }
    fs::write(folder.join("LICENSE"), "do as you like").unwrap();
    let created = lode.create("team/two", &folder, &[]).await.expect_success();
    assert!(created.stderr.contains("`1-qwen2-q8_0.gguf` is a different model"), "{}", created.stderr);
    let back = server.folder().path().join("back");
    lode.run(&["pull", "team/two", "--to", back.to_str().unwrap()]).await.expect_success();
    assert!(read_folder(&back) == read_folder(&folder));
    let shown = lode.run(&["show", "team/two", "--json"]).await.expect_success().json();
    assert_eq!(shown["architecture"], "llama", "{shown}");
}

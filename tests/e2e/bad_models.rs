//! Hostile and broken checkpoints: the error names the file and the key, and no part of the model becomes
//! visible. A model with an unknown architecture is stored with a notice; a worker refuses it at load and
//! names the architecture.

use std::fs;
use std::path::{Path, PathBuf};

use lode_tests::checkpoint::{copy_folder, demo, read_folder, safetensors, safetensors_file};
use lode_tests::command::Lode;
use lode_tests::server::Server;
use serde_json::json;

fn folder(server: &Server, name: &str) -> PathBuf {
    let path = server.folder().path().join(name);
    fs::create_dir_all(&path).unwrap();
    fs::write(path.join("config.json"), br#"{"architectures":["LlamaForCausalLM"],"model_type":"llama"}"#)
        .unwrap();
    path
}

async fn refused(lode: &Lode, path: &Path, naming: &[&str]) {
    let finished = lode.create("bad/model", path, &[]).await;
    finished.expect_failure(naming);
    let list = lode.run(&["list"]).await.expect_success().stdout;
    assert!(!list.contains("bad/model"), "the refused model is visible: {list}");
}

#[tokio::test]
async fn invalid_safetensors_headers_are_refused() {
    let server = Server::fresh().await;
    let lode = server.lode();
    let entry = |dtype: &str, shape: &str, begin: u64, end: u64| {
        format!("{{\"dtype\":\"{dtype}\",\"shape\":{shape},\"data_offsets\":[{begin},{end}]}}")
    };
    let one = |name: &str, entry: String| format!("{{\"{name}\":{entry}}}");
    let mut huge = u64::MAX.to_le_bytes().to_vec();
    huge.extend(b"{}");
    let mut beyond = 1_000_000u64.to_le_bytes().to_vec();
    beyond.extend(b"{}");
    let table: Vec<(&str, Vec<u8>, &[&str])> = vec![
        ("empty", vec![], &[]),
        ("seven bytes", vec![1; 7], &[]),
        ("a header longer than anything", huge, &[]),
        ("a header longer than the file", beyond, &[]),
        ("a header that is no JSON", safetensors_file("hello", &[]), &[]),
        ("a header that is no object", safetensors_file("[1]", &[]), &[]),
        ("a header cut in the middle", safetensors_file("{\"w\":{\"dtype\":\"F32\"", &[0; 8]), &[]),
        ("no offsets", safetensors_file("{\"w\":{\"dtype\":\"F32\",\"shape\":[1]}}", &[0; 4]), &[]),
        ("an unknown dtype", safetensors_file(&one("w", entry("F99", "[1]", 0, 4)), &[0; 4]), &[]),
        (
            "beyond the end",
            safetensors_file(&one("far.weight", entry("F32", "[4]", 0, 16)), &[0; 8]),
            &["far.weight"],
        ),
        (
            "offsets far beyond",
            safetensors_file(&one("w", entry("F32", "[1]", 1 << 62, (1 << 62) + 4)), &[0; 4]),
            &[],
        ),
        ("end before begin", safetensors_file(&one("w", entry("F32", "[1]", 4, 0)), &[0; 4]), &[]),
        (
            "shape and bytes disagree",
            safetensors_file(&one("odd.weight", entry("F32", "[3]", 0, 8)), &[0; 8]),
            &["odd.weight"],
        ),
        (
            "a shape that overflows",
            safetensors_file(&one("w", entry("F32", "[4294967296,4294967296,4294967296]", 0, 8)), &[0; 8]),
            &[],
        ),
        ("a negative shape", safetensors_file(&one("w", entry("F32", "[-1]", 0, 8)), &[0; 8]), &[]),
        (
            "overlapping tensors",
            safetensors_file(
                &format!(
                    "{{\"a.weight\":{},\"b.weight\":{}}}",
                    entry("F32", "[2]", 0, 8),
                    entry("F32", "[2]", 4, 12)
                ),
                &[0; 12],
            ),
            &["weight"],
        ),
        (
            "the same name twice",
            safetensors_file(
                &format!("{{\"w\":{},\"w\":{}}}", entry("F32", "[1]", 0, 4), entry("F32", "[1]", 4, 8)),
                &[0; 8],
            ),
            &[],
        ),
    ];
    for (i, (what, bytes, naming)) in table.iter().enumerate() {
        let path = folder(&server, &format!("hostile-{i}"));
        fs::write(path.join("model.safetensors"), bytes).unwrap();
        let finished = lode.create("bad/model", &path, &[]).await;
        assert_eq!(finished.code, 1, "{what}: {finished:?}");
        finished.expect_failure(&[&["model.safetensors"], *naming].concat());
    }
    let list = lode.run(&["list"]).await.expect_success().stdout;
    assert!(!list.contains("bad/model"), "{list}");
    assert_eq!(server.registry().get("/v2/_catalog").await.json()["repositories"], json!([]));
}

#[tokio::test]
async fn folders_with_parts_missing() {
    let server = Server::fresh().await;
    let lode = server.lode();
    let path = folder(&server, "shards");
    fs::write(
        path.join("model-00001-of-00002.safetensors"),
        safetensors(&[("a.weight", &[2], vec![1.0, 2.0])]),
    )
    .unwrap();
    let map = json!({"a.weight": "model-00001-of-00002.safetensors", "b.weight": "model-00002-of-00002.safetensors"});
    fs::write(path.join("model.safetensors.index.json"), json!({"weight_map": map}).to_string()).unwrap();
    refused(&lode, &path, &["model-00002-of-00002.safetensors"]).await;
    let map = json!({"a.weight": "model-00001-of-00002.safetensors", "ghost.weight": "model-00001-of-00002.safetensors"});
    fs::write(path.join("model.safetensors.index.json"), json!({"weight_map": map}).to_string()).unwrap();
    refused(&lode, &path, &["ghost.weight"]).await;
    fs::write(path.join("model.safetensors.index.json"), b"{").unwrap();
    refused(&lode, &path, &["model.safetensors.index.json"]).await;
    let map = json!({"a.weight": "../../outside.safetensors"});
    fs::write(path.join("model.safetensors.index.json"), json!({"weight_map": map}).to_string()).unwrap();
    refused(&lode, &path, &["outside.safetensors"]).await;

    let path = server.folder().path().join("config");
    copy_folder(&demo(), &path);
    fs::write(path.join("config.json"), b"{\"architectures\": [").unwrap();
    refused(&lode, &path, &["config.json"]).await;
    refused(&lode, &server.folder().path().join("nowhere"), &["nowhere"]).await;
}

#[tokio::test]
async fn invalid_models_are_reported_and_untrusted_names_are_escaped() {
    let server = Server::fresh().await;
    let lode = server.lode();
    let path = folder(&server, "parts");
    let weights = safetensors(&[("a.weight", &[2], vec![1.0, 2.0])]);
    fs::write(path.join("model-00001-of-00002.safetensors"), &weights).unwrap();
    refused(&lode, &path, &["`model` is split over 2 files, and number 2 is missing"]).await;
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n";
    fs::write(path.join("model.safetensors"), pointer).unwrap();
    refused(&lode, &path, &["`model.safetensors` is a Git LFS pointer", "git lfs pull"]).await;
    let photos = server.folder().path().join("photos");
    fs::create_dir(&photos).unwrap();
    fs::write(photos.join("cat.jpg"), b"JFIF").unwrap();
    refused(&lode, &photos, &["there is no model in the folder", "lode push"]).await;

    // A folder without weights is a model that can still tokenize, so it is listed.
    let path = folder(&server, "bare");
    let created = lode.create("team/bare", &path, &[]).await.expect_success();
    assert!(created.stderr.contains("there are no tensors"), "{}", created.stderr);
    assert!(lode.run(&["list"]).await.expect_success().stdout.contains("team/bare"));

    // Files with the names of temporary files are stored and returned too.
    let path = server.folder().path().join("unfinished");
    copy_folder(&demo(), &path);
    for name in ["config.json.part", "model.safetensors.part", "model.safetensors.part.state", ".lode-pull"] {
        fs::write(path.join(name), name).unwrap();
    }
    lode.create("team/unfinished", &path, &[]).await.expect_success();
    let out = server.folder().path().join("back");
    lode.run(&["pull", "team/unfinished", "--to", &out.to_string_lossy()]).await.expect_success();
    assert!(read_folder(&out) == read_folder(&path));

    // Tensor names are untrusted and may contain terminal escape sequences.
    let path = server.folder().path().join("Odd.SafeTensors");
    fs::write(&path, safetensors(&[("w\u{1b}[2J\n.weight", &[2], vec![1.0, 2.0])])).unwrap();
    lode.create("team/odd", &path, &[]).await.expect_success();
    let listed = lode.run(&["tensor", "ls", "team/odd"]).await.expect_success().stdout;
    assert!(listed.contains("w\\u{1b}[2J\\n.weight") && !listed.contains('\u{1b}'), "{listed}");
    let differ = lode.run(&["diff", "team/odd", "team/bare"]).await.expect_success().stdout;
    assert!(!differ.contains('\u{1b}'), "{differ}");
    lode.run(&["diff", "team/odd", "team/gone"])
        .await
        .expect_failure(&["`team/gone:latest` not found", "lode repo list"]);
    let out = server.folder().path().join("new/folder/w.safetensors");
    lode.run(&["tensor", "export", "team/odd", "--to", &out.to_string_lossy()]).await.expect_success();
    assert!(out.is_file());
}

#[tokio::test]
async fn tokenizers_that_do_not_fit() {
    let server = Server::fresh().await;
    let lode = server.lode();
    let path = server.folder().path().join("tokenizer");
    copy_folder(&demo(), &path);
    let whole = fs::read(path.join("tokenizer.json")).unwrap();
    fs::write(path.join("tokenizer.json"), b"not json").unwrap();
    refused(&lode, &path, &["tokenizer.json"]).await;
    fs::write(path.join("tokenizer.json"), &whole[..whole.len() / 2]).unwrap();
    refused(&lode, &path, &["tokenizer.json"]).await;
    let mut tokenizer: serde_json::Value = serde_json::from_slice(&whole).unwrap();
    tokenizer["model"]["vocab"]["one-too-many"] = json!(4096);
    fs::write(path.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    refused(&lode, &path, &["tokenizer.json", "4096"]).await;
}

#[tokio::test]
async fn an_unknown_architecture_is_stored_with_a_notice_and_refused_at_load() {
    let server = Server::fresh_with_worker().await;
    let lode = server.lode();
    let path = server.folder().path().join("zork");
    copy_folder(&demo(), &path);
    let mut config: serde_json::Value =
        serde_json::from_slice(&fs::read(path.join("config.json")).unwrap()).unwrap();
    config["architectures"] = json!(["ZorkForCausalLM"]);
    config["model_type"] = json!("zork");
    fs::write(path.join("config.json"), config.to_string()).unwrap();
    let created = lode.create("team/zork", &path, &[]).await.expect_success();
    let output = format!("{}{}", created.stdout, created.stderr).to_lowercase();
    assert!(output.contains("zork"), "no notice with the architecture: {output}");
    let list = lode.run(&["list"]).await.expect_success().stdout;
    assert!(list.contains("team/zork"), "{list}");
    let response = server
        .registry()
        .post_json("/api/generate", &json!({"model": "team/zork", "prompt": "hi", "stream": false}))
        .await;
    assert!(
        response.status >= 400 && response.text().to_lowercase().contains("zork"),
        "{} {}",
        response.status,
        response.text()
    );
    lode.run(&["run", "team/zork", "hi"]).await.expect_failure(&["zork"]);
    let shown = lode.run(&["show", "team/zork"]).await.expect_success().stdout;
    assert!(
        shown.contains("cannot run    workers do not support its architecture `ZorkForCausalLM`"),
        "{shown}"
    );
    assert!(!shown.contains("capabilities"), "{shown}");
    // A model without tensors is stored too, but cannot generate.
    let bare = server.folder().path().join("bare");
    fs::create_dir_all(&bare).unwrap();
    fs::copy(demo().join("tokenizer.json"), bare.join("tokenizer.json")).unwrap();
    fs::copy(demo().join("config.json"), bare.join("config.json")).unwrap();
    lode.create("team/bare", &bare, &[]).await.expect_success();
    let ids =
        lode.run_with_input(&["tokenize", "team/bare", "--json"], b"What").await.expect_success().json();
    assert!(!ids["ids"].as_array().unwrap().is_empty());
    let response = server
        .registry()
        .post_json("/api/generate", &json!({"model": "team/bare", "prompt": "hi", "stream": false}))
        .await;
    assert!(response.status >= 400, "{}", response.text());
    // The worker still runs other models.
    lode.create("team/demo", &demo(), &[]).await.expect_success();
    let response = server
        .registry()
        .post_json("/api/generate", &json!({"model": "team/demo", "prompt": "hi", "stream": false}))
        .await;
    assert_eq!(response.status, 200, "{}", response.text());
}

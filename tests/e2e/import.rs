//! Import and export of checkpoints: stored blobs, listings, and the files that pull and export return.
//! The demo model serves as the checkpoint, and a copy that differs in one tensor as a fine-tune.

use std::fs;
use std::path::Path;

use lode_tests::checkpoint::{
    copy_folder, demo, f32_values, read_folder, read_tensor_headers, safetensors, safetensors_file,
    write_demo_variant,
};
use lode_tests::command::{run_to_end, wait_until};
use lode_tests::report::figure;
use lode_tests::server::{Folder, Options, Server};

use crate::start_stop::stored_bytes;

fn stored_blob_bytes(server: &Server) -> u64 {
    read_folder(&server.folder().data().join("blobs")).values().map(|bytes| bytes.len() as u64).sum()
}

#[tokio::test]
async fn a_checkpoint_is_described_and_comes_back_byte_for_byte() {
    let server = Server::fresh().await;
    let lode = server.lode();
    let source = server.folder().path().join("source");
    copy_folder(&demo(), &source);
    // Unusual files are returned too: an empty file, a folder, an unknown format.
    fs::create_dir_all(source.join("extra/deep")).unwrap();
    fs::write(source.join("extra/deep/notes.bin"), [0u8, 1, 2, 255]).unwrap();
    fs::write(source.join("empty"), b"").unwrap();
    lode.create("team/mini", &source, &[]).await.expect_success();

    let list = lode.run(&["list"]).await.expect_success();
    assert!(list.stdout.contains("team/mini"), "{}", list.stdout);
    let listed = lode.run(&["list", "--json"]).await.expect_success().json();
    assert!(listed.to_string().contains("team/mini"), "{listed}");
    let show = lode.run(&["show", "team/mini"]).await.expect_success();
    for line in [
        "architecture  llama",
        "parameters    4.2M",
        "context       2048 tokens",
        "task          text-generation",
        "capabilities  completion",
        "files         ",
        "format        safetensors, 38 tensors",
    ] {
        assert!(show.stdout.contains(&format!("\n  {line}")), "{line}: {}", show.stdout);
    }
    let shown = lode.run(&["show", "team/mini", "--json"]).await.expect_success().json();
    assert_eq!(shown["parameters"], 4_196_608, "{shown}");

    let weights = fs::read(source.join("model.safetensors")).unwrap();
    let tensors = read_tensor_headers(&weights);
    let listed = lode.run(&["tensor", "ls", "team/mini", "--json"]).await.expect_success().json();
    let listed = listed.as_array().or(listed["tensors"].as_array()).unwrap().clone();
    assert_eq!(listed.len(), tensors.len());
    for entry in &listed {
        let tensor = &tensors[entry["name"].as_str().unwrap()];
        assert_eq!(entry["dtype"], tensor.dtype.as_str());
        assert_eq!(entry["shape"], serde_json::json!(tensor.shape));
    }

    let back = server.folder().path().join("back");
    lode.run(&["pull", "team/mini", "--to", back.to_str().unwrap()]).await.expect_success();
    assert!(
        read_folder(&back) == read_folder(&source),
        "pulled files differ from the source: {:?}",
        read_folder(&back).keys()
    );
    // A repeated pull restores a damaged file.
    fs::write(back.join("config.json"), b"changed").unwrap();
    lode.run(&["pull", "team/mini", "--to", back.to_str().unwrap()]).await.expect_success();
    assert!(read_folder(&back) == read_folder(&source));
}

#[tokio::test]
async fn tensors_are_exported_as_they_were_and_as_f32() {
    let server = Server::fresh().await;
    let lode = server.lode();
    lode.create("team/mini", &demo(), &[]).await.expect_success();
    let source = fs::read(demo().join("model.safetensors")).unwrap();
    let tensors = read_tensor_headers(&source);
    let export = async |args: &[&str]| {
        let path = server.folder().path().join("out.safetensors");
        let _ = fs::remove_file(&path);
        lode.run(&[&["tensor", "export", "team/mini"], args, &["--to", path.to_str().unwrap()]].concat())
            .await
            .expect_success();
        fs::read(&path).unwrap()
    };
    let whole = export(&[]).await;
    let exported = read_tensor_headers(&whole);
    assert_eq!(exported.keys().collect::<Vec<_>>(), tensors.keys().collect::<Vec<_>>());
    for (name, tensor) in &tensors {
        let got = &exported[name];
        assert_eq!((&got.dtype, &got.shape), (&tensor.dtype, &tensor.shape), "{name}");
        assert!(whole[got.begin..got.end] == source[tensor.begin..tensor.end], "{name}");
    }
    let one = "model.layers.1.self_attn.k_proj.weight";
    let other = "model.norm.weight";
    let some = export(&[one, other, "--dtype", "f32"]).await;
    let exported = read_tensor_headers(&some);
    assert_eq!(exported.len(), 2);
    for name in [one, other] {
        let (got, tensor) = (&exported[name], &tensors[name]);
        assert_eq!((got.dtype.as_str(), &got.shape), ("F32", &tensor.shape));
        assert_eq!(
            f32_values("F32", &some[got.begin..got.end]),
            f32_values("BF16", &source[tensor.begin..tensor.end])
        );
    }
    let refused =
        lode.run(&["tensor", "export", "team/mini", "no.such.tensor", "--to", "x.safetensors"]).await;
    refused.expect_failure(&["no.such.tensor"]);
}

#[tokio::test]
async fn a_fine_tune_stores_only_changed_tensors() {
    let server = Server::fresh().await;
    let lode = server.lode();
    lode.create("team/base", &demo(), &[]).await.expect_success();
    let before = stored_blob_bytes(&server);
    let changed = "model.layers.2.mlp.up_proj.weight";
    let tuned = server.folder().path().join("tuned");
    write_demo_variant(&tuned, changed);
    let created = lode.create("team/tuned", &tuned, &[]).await.expect_success();
    let grown = stored_blob_bytes(&server) - before;
    let tensor_bytes = 768 * 256 * 2;
    assert!(grown < tensor_bytes + 100_000, "{grown} bytes added for one tensor of {tensor_bytes} bytes");
    let output = format!("{}{}", created.stdout, created.stderr);
    assert!(
        output.contains("saved") || output.contains("shared") || output.contains("already"),
        "the output does not mention the saved bytes: {output}"
    );
    figure(
        "a fine-tune that differs in one tensor",
        &format!(
            "{before} bytes stored for the first checkpoint, {grown} more for the second; output of create: {}",
            output.trim().replace('\n', " / ")
        ),
    );
    let back = server.folder().path().join("back");
    lode.run(&["pull", "team/tuned", "--to", back.to_str().unwrap()]).await.expect_success();
    assert!(read_folder(&back) == read_folder(&tuned));
    // An identical checkpoint adds no blobs.
    lode.create("team/again", &demo(), &[]).await.expect_success();
    assert!(stored_blob_bytes(&server) - before - grown < 10_000);
    // Deleting one model keeps the blobs that it shares with another.
    lode.run(&["rm", "team/base"]).await.expect_success();
    let back = server.folder().path().join("back2");
    lode.run(&["pull", "team/again", "--to", back.to_str().unwrap()]).await.expect_success();
    lode.run(&["show", "team/base"]).await.expect_failure(&["team/base"]);
}

#[tokio::test]
async fn models_are_copied_removed_and_named() {
    let server = Server::fresh().await;
    let lode = server.lode();
    lode.create("a/b/c/deep:v2", &demo(), &[]).await.expect_success();
    lode.run(&["cp", "a/b/c/deep:v2", "flat"]).await.expect_success();
    let shown = lode.run(&["list"]).await.expect_success().stdout;
    assert!(shown.contains("a/b/c/deep:v2") && shown.contains("flat:latest"), "{shown}");
    lode.run(&["rm", "a/b/c/deep:v2"]).await.expect_success();
    lode.run(&["rm", "a/b/c/deep:v2"]).await.expect_failure(&["a/b/c/deep:v2"]);
    let absent = lode.run(&["rm", "--if-exists", "a/b/c/deep:v2", "none"]).await.expect_success();
    assert!(absent.stderr.contains("none:latest does not exist"), "{}", absent.stderr);
    let copied = lode.run(&["cp", "flat", "flat:v2", "--json"]).await.expect_success().json();
    let digest = server.registry().manifest_get("flat", "v2").await.expect(200);
    assert_eq!(copied["digest"], digest.header("docker-content-digest").unwrap());
    assert_eq!((&copied["name"], &copied["from"]), (&"flat:v2".into(), &"flat:latest".into()));
    assert_eq!(copied["sent_blobs"], 0);
    let removed = lode.run(&["rm", "--if-exists", "--json", "flat:v2", "none"]).await.expect_success().json();
    assert_eq!(removed, serde_json::json!({"removed": ["flat:v2"], "missing": ["none:latest"]}));
    lode.run(&["show", "flat"]).await.expect_success();
    lode.run(&["show", "a/b/c/deep:v2"]).await.expect_failure(&["a/b/c/deep:v2", "hint:"]);
    let by_host = format!("{}/flat", server.address);
    lode.run(&["show", &by_host]).await.expect_success();
    for bad in ["Upper/x", "a//b", "x:", "x@sha256:short", ""] {
        let refused = lode.run(&["show", bad]).await;
        assert!(refused.code != 0 && refused.stderr.contains("error:"), "{bad}: {refused:?}");
    }
}

#[tokio::test]
async fn one_safetensors_file_is_a_checkpoint_without_config() {
    let server = Server::fresh().await;
    let lode = server.lode();
    let path = server.folder().path().join("lonely.safetensors");
    let bytes = safetensors(&[
        ("w", &[2, 3], vec![1.0, -2.0, 3.5, 0.0, f32::MIN_POSITIVE, 1e30]),
        ("scalar", &[], vec![7.0]),
    ]);
    fs::write(&path, &bytes).unwrap();
    lode.create("lonely", &path, &[]).await.expect_success();
    let listed = lode.run(&["tensor", "ls", "lonely"]).await.expect_success().stdout;
    assert!(listed.contains('w') && listed.contains("scalar"), "{listed}");
    let back = server.folder().path().join("back");
    lode.run(&["pull", "lonely", "--to", back.to_str().unwrap()]).await.expect_success();
    assert_eq!(fs::read(back.join("lonely.safetensors")).unwrap(), bytes);
}

#[tokio::test]
async fn a_sharded_checkpoint_keeps_its_shards_and_its_header_spelling() {
    let server = Server::fresh().await;
    let lode = server.lode();
    let source = server.folder().path().join("sharded");
    fs::create_dir_all(&source).unwrap();
    fs::write(source.join("config.json"), br#"{"architectures":["LlamaForCausalLM"],"model_type":"llama"}"#)
        .unwrap();
    fs::write(
        source.join("model-00001-of-00002.safetensors"),
        safetensors(&[("a.weight", &[4, 4], vec![0.5; 16])]),
    )
    .unwrap();
    // Unusual but valid: spaces in the header, metadata, data in another order than the names, trailing
    // padding.
    let header = "{ \"__metadata__\" : {\"format\":\"pt\"},\n \"z\": {\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[8,12]}, \
                  \"b.weight\":{\"shape\":[2],\"data_offsets\":[0,8],\"dtype\":\"F32\"}}     ";
    fs::write(source.join("model-00002-of-00002.safetensors"), safetensors_file(header, &[9; 12])).unwrap();
    let index = serde_json::json!({"metadata": {"total_size": 76}, "weight_map": {
        "a.weight": "model-00001-of-00002.safetensors", "b.weight": "model-00002-of-00002.safetensors", "z": "model-00002-of-00002.safetensors"}});
    fs::write(source.join("model.safetensors.index.json"), index.to_string()).unwrap();
    lode.create("sharded", &source, &[]).await.expect_success();
    let back = server.folder().path().join("back");
    lode.run(&["pull", "sharded", "--to", back.to_str().unwrap()]).await.expect_success();
    assert!(read_folder(&back) == read_folder(&source));
}

#[tokio::test]
async fn files_pushed_by_another_client_are_described_too() {
    let server = Folder::new().start(Options::new()).await;
    let registry = server.registry();
    let weights = fs::read(demo().join("model.safetensors")).unwrap();
    let config = fs::read(demo().join("config.json")).unwrap();
    let layer = |title: &str, bytes: &[u8]| {
        let mut layer = lode_tests::artifact::descriptor("application/octet-stream", bytes);
        layer["annotations"] = serde_json::json!({"org.opencontainers.image.title": title});
        layer
    };
    let layers = serde_json::json!([layer("model.safetensors", &weights), layer("config.json", &config)]);
    let image = lode_tests::artifact::Image::of(
        b"{}".to_vec(),
        vec![weights, config],
        &serde_json::json!({"layers": layers}),
    );
    image.push(&registry, "plain/files", "latest").await;
    let listed = server.lode().run(&["tensor", "ls", "plain/files", "--json"]).await.expect_success().json();
    assert_eq!(listed.as_array().or(listed["tensors"].as_array()).unwrap().len(), 38, "{listed}");
    // An image that is not a model is accepted and listed too.
    lode_tests::artifact::Image::random(5, 1, 1000).push(&registry, "no/model", "latest").await;
    server.lode().run(&["show", "no/model"]).await.expect_success();
    server.lode().run(&["list"]).await.expect_success();
}

#[tokio::test]
async fn files_are_pushed_as_they_are_and_pulled_again() {
    let server = Server::fresh().await;
    let lode = server.lode();
    let source: &Path = &server.folder().path().join("files");
    fs::create_dir_all(source.join("sub")).unwrap();
    fs::write(source.join("a.bin"), lode_tests::artifact::random_bytes(1, 5_000_000)).unwrap();
    fs::write(source.join("sub/b.txt"), b"b").unwrap();
    lode.run(&["push", source.to_str().unwrap(), "team/files"]).await.expect_success();
    let back = server.folder().path().join("back");
    lode.run(&["pull", "team/files", "--to", back.to_str().unwrap()]).await.expect_success();
    assert!(read_folder(&back) == read_folder(source), "{:?}", read_folder(&back).keys());
}

#[tokio::test]
async fn a_push_to_a_killed_server_asks_to_be_repeated() {
    const HINT: &str = "hint: repeat the command: it resumes where it stopped";
    let folder = Folder::new();
    let server = folder.serve().await;
    let (lode, address) = (server.lode(), server.address.to_string());
    let file = folder.path().join("large.bin");
    fs::write(&file, lode_tests::artifact::random_bytes(78, 120_000_000)).unwrap();
    let push = ["push", file.to_str().unwrap(), "team/large"];
    let pushing = tokio::spawn(run_to_end(lode.command(&push), Vec::new()));
    wait_until("a part of the file has arrived", || async { stored_bytes(&folder) > 4_000_000 }).await;
    server.kill();
    pushing.await.unwrap().expect_failure(&[HINT]);
    // A server that never responded has stored nothing.
    let refused = lode.run(&push).await;
    refused.expect_failure(&["cannot connect", "is a server running"]);
    assert!(!refused.stderr.contains(HINT), "{}", refused.stderr);

    let server = folder.start(Options::new().listen(address)).await;
    lode.run(&push).await.expect_success();
    server.lode().run(&["fsck", "--verify"]).await.expect_success();
}

#[tokio::test]
async fn a_killed_push_and_a_killed_pull_go_through_when_repeated() {
    let server = Server::fresh().await;
    let lode = server.lode();
    let file = server.folder().path().join("large.bin");
    fs::write(&file, lode_tests::artifact::random_bytes(77, 120_000_000)).unwrap();
    let push = ["push", file.to_str().unwrap(), "team/large"];
    let mut child = lode.command(&push).spawn().unwrap();
    wait_until("a part of the file has arrived", || async { stored_bytes(server.folder()) > 4_000_000 })
        .await;
    child.kill().unwrap();
    child.wait().unwrap();
    server.registry().manifest_get("team/large", "latest").await.expect(404);
    lode.run(&push).await.expect_success();

    let back = server.folder().path().join("back");
    let pull = ["pull", "team/large", "--to", back.to_str().unwrap()];
    let mut child = lode.command(&pull).spawn().unwrap();
    wait_until("a part of the file has been written", || async {
        let files = fs::read_dir(&back).into_iter().flatten().flatten();
        files.filter_map(|file| file.metadata().ok()).any(|meta| meta.len() > 0)
    })
    .await;
    child.kill().unwrap();
    child.wait().unwrap();
    lode.run(&pull).await.expect_success();
    assert!(fs::read(back.join("large.bin")).unwrap() == fs::read(&file).unwrap());
    assert_eq!(read_folder(&back).len(), 1, "temporary files are left: {:?}", read_folder(&back).keys());
    server.lode().run(&["fsck", "--verify"]).await.expect_success();
}

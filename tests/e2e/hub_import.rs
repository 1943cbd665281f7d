//! `lode create NAME hf://...`: one server imports from the Hugging Face API of another.

use lode_tests::access::{create_token, start_team};
use lode_tests::checkpoint::demo;
use lode_tests::server::{Options, Server};

use crate::gguf::fixture;

/// The files of a folder, by name.
fn files(folder: &std::path::Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file())
        .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(path).unwrap()))
        .collect();
    files.sort();
    files
}

#[tokio::test]
async fn a_checkpoint_and_a_gguf_are_imported() {
    let hub = Server::fresh().await;
    hub.lode().create("team/mini", &demo(), &[]).await.expect_success();
    hub.lode().create("team/quant", &fixture("wide-k.gguf"), &[]).await.expect_success();

    let server = Server::fresh().await;
    let lode = server.lode().env("HF_ENDPOINT", &format!("{}/hf", hub.url()));
    let created = lode.run(&["create", "copy/mini", "hf://team/mini@latest"]).await.expect_success();
    assert!(created.stdout.contains("from hf://team/mini@latest: "), "{}", created.stdout);
    let folder = server.folder().path().join("pulled");
    lode.run(&["pull", "copy/mini", "--to", folder.to_str().unwrap()]).await.expect_success();
    let pulled = files(&folder);
    let original: Vec<_> = files(&demo());
    assert_eq!(pulled, original);

    // The arguments may be swapped, and the model quantised.
    let swapped = ["create", "hf://team/mini", "copy/small", "--quantize", "int4", "--json"];
    let made = lode.run(&swapped).await.expect_success().json();
    assert_eq!(made["files"], original.len());
    let shown = lode.run(&["show", "copy/small"]).await.expect_success();
    assert!(shown.stdout.contains("int4") || shown.stdout.contains("INT4"), "{}", shown.stdout);

    lode.run(&["create", "copy/quant", "hf://team/quant:wide"]).await.expect_success();
    let folder = server.folder().path().join("gguf");
    lode.run(&["pull", "copy/quant", "--to", folder.to_str().unwrap()]).await.expect_success();
    let pulled = files(&folder);
    assert_eq!(pulled.len(), 1);
    assert_eq!(pulled[0].1, std::fs::read(fixture("wide-k.gguf")).unwrap());

    lode.run(&["create", "copy/none", "hf://team/none"])
        .await
        .expect_failure(&["team/none", "does not exist"]);
    lode.run(&["create", "copy/none", "hf://team/mini@v9"]).await.expect_failure(&["v9", "latest"]);
    lode.run(&["create", "copy/none", "hf://team/quant:Q9"]).await.expect_failure(&["Q9", "wide-k"]);
    lode.run(&["show", "copy/none"]).await.expect_failure(&["copy/none"]);
}

#[tokio::test]
async fn a_private_model_needs_a_token() {
    let hub = start_team(Options::new()).await;
    hub.lode().create("alice/private", &demo(), &[]).await.expect_success();
    let token = create_token(&hub.lode(), &["hub", "--account", "alice", "--access", "read"]).await;

    let server = Server::fresh().await;
    let source = "hf://alice/private";
    let endpoint = format!("{}/hf", hub.url());
    let lode = server.lode().env("HF_ENDPOINT", &endpoint);
    lode.run(&["create", "copy/mini", source]).await.expect_failure(&["refused", "status 401"]);
    // The file in which Hugging Face's own tools store it.
    let stored = server.folder().path().join("token");
    std::fs::write(&stored, format!("{token}\n")).unwrap();
    let lode = lode.env("HF_TOKEN_PATH", stored.to_str().unwrap());
    lode.run(&["create", "copy/mini", source]).await.expect_success();
    assert!(!server.output().contains(&token), "the token is in the log");
}

//! Hugging Face's libraries read models: whole, by pattern, from a cache, resumed, listed, and private ones. They
//! publish models, which all other clients then have.

use std::process::Command;

use lode_tests::access::{create_token, make_public, start_team};
use lode_tests::checkpoint::demo;
use lode_tests::checkpoint::read_folder;
use lode_tests::command::run_successfully;
use lode_tests::server::{Options, Server};
use lode_tests::services::Backends;
use lode_tests::{clients, report};

use crate::gguf::fixture;
use crate::python::script;

/// The models that `hub.py` expects.
async fn create_models(server: &Server) {
    let lode = server.lode();
    lode.create("team/mini", &demo(), &[]).await.expect_success();
    lode.run(&["cp", "team/mini", "team/mini:v1"]).await.expect_success();
    lode.create("team/quant", &fixture("wide-k.gguf"), &[]).await.expect_success();
    for number in 0..5 {
        lode.run(&["cp", "team/mini", &format!("page/model-{number}")]).await.expect_success();
    }
    lode.run(&["list"]).await.expect_success();
}

fn read_models(test: &str, server: &Server, token: &str) {
    let Some(python) = clients::python(test) else { return };
    let scratch = server.folder().path().join("hub");
    std::fs::create_dir(&scratch).unwrap();
    let output = Command::new(&python)
        .arg(script("hub.py"))
        .args([&server.url(), demo().to_str().unwrap(), fixture("wide-k.gguf").to_str().unwrap(), token])
        .arg(&scratch)
        .env("HOME", server.folder().path())
        .env("HF_HOME", scratch.join("home"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_server() {
    let server = Server::fresh().await;
    create_models(&server).await;
    read_models("hf_clients::an_open_server", &server, "");
}

/// `llama-server -hf team/quant`.
#[tokio::test(flavor = "multi_thread")]
async fn llama_cpp_fetches_a_gguf() {
    let Some(python) = clients::python("hf_clients::llama_cpp_fetches_a_gguf") else { return };
    let server = Server::fresh().await;
    let gguf = fixture("wide-k.gguf");
    server.lode().create("team/quant", &gguf, &[]).await.expect_success();
    let output = Command::new(&python)
        .arg(script("llama_cpp_hub.py"))
        .args(["team/quant", gguf.to_str().unwrap()])
        .env("HF_ENDPOINT", format!("{}/hf", server.url()))
        .env("HF_HOME", server.folder().path().join("hub"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_accounts() {
    let server = start_team(Options::new()).await;
    create_models(&server).await;
    let admin = server.lode();
    admin.create("alice/private", &demo(), &[]).await.expect_success();
    for namespace in ["team", "page"] {
        make_public(&server, &format!("{namespace}/*")).await;
    }
    let token = create_token(&admin, &["python", "--account", "alice", "--access", "read"]).await;
    read_models("hf_clients::a_server_with_accounts", &server, &token);
}

/// The size of the large file, in MiB: more than two parts of an upload.
const LARGE_MIB: u64 = 130;

/// Publishes models in `team/`. `writer` and `reader` are tokens, or empty. Returns whether Python is there.
fn publish_models(test: &str, server: &Server, writer: &str, reader: &str) -> bool {
    let Some(python) = clients::python(test) else { return false };
    let scratch = server.folder().path().join("publish");
    std::fs::create_dir(&scratch).unwrap();
    let large = report::env_number("LODE_HUB_MIB", LARGE_MIB).to_string();
    let output = Command::new(&python)
        .arg(script("hf_publish.py"))
        .args([&server.url(), demo().to_str().unwrap(), "team", writer, reader, &large])
        .arg(&scratch)
        .env("HOME", server.folder().path())
        .env("HF_HOME", scratch.join("home"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    true
}

#[tokio::test(flavor = "multi_thread")]
async fn models_are_published_to_an_open_server() {
    let test = "hf_clients::models_are_published_to_an_open_server";
    let server = Server::fresh_with_worker().await;
    if !publish_models(test, &server, "", "") {
        return;
    }
    // The uploaded checkpoint runs. It has the tensors of one that `lode create` imports.
    let lode = server.lode();
    let generated = lode.run(&["run", "team/tiny", "What is 40 plus 41?"]).await.expect_success();
    assert!(!generated.stdout.trim().is_empty());
    lode.create("team/created", &demo(), &[]).await.expect_success();
    let tensors = async |name: &str| {
        let manifest = server.registry().manifest_get(name, "latest").await.expect(200).json();
        let layers = manifest["layers"].as_array().unwrap().clone();
        let is_tensor =
            |layer: &serde_json::Value| layer["mediaType"] == "application/vnd.ollama.image.tensor";
        layers.into_iter().filter(is_tensor).map(|layer| layer["digest"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(tensors("team/tiny").await, tensors("team/created").await);
    // Other files are those of any OCI client.
    let Some(oras) = clients::oras(test) else { return };
    let back = server.folder().path().join("oras");
    std::fs::create_dir(&back).unwrap();
    let name = format!("{}/team/published:latest", server.url().trim_start_matches("http://"));
    let mut pull = Command::new(oras);
    pull.args(["pull", "--plain-http", &name]).current_dir(&back).env("HOME", &back);
    run_successfully(&mut pull);
    assert_eq!(read_folder(&back)["kept.txt"], b"kept");
}

/// With PostgreSQL and S3, as a team has them.
#[tokio::test(flavor = "multi_thread")]
async fn models_are_published_with_accounts() {
    let test = "hf_clients::models_are_published_with_accounts";
    let Some(backends) = Backends::shared(test) else { return };
    let server = start_team(Options::new().with_backends(&backends)).await;
    let admin = server.lode();
    for (name, role) in [("alice", "own"), ("bob", "read")] {
        admin.run(&["grant", "add", name, role, "team/*"]).await.expect_success();
    }
    let writer = create_token(&admin, &["hub", "--account", "alice"]).await;
    let reader = create_token(&admin, &["hub", "--account", "bob"]).await;
    publish_models(test, &server, &writer, &reader);
}

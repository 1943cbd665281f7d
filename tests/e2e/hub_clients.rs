//! Hugging Face's libraries read models: whole, by pattern, from a cache, resumed, listed, and private ones.

use std::process::Command;

use lode_tests::access::{create_token, make_public, start_team};
use lode_tests::checkpoint::demo;
use lode_tests::clients;
use lode_tests::server::{Options, Server};

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
    read_models("hub_clients::an_open_server", &server, "");
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
    read_models("hub_clients::a_server_with_accounts", &server, &token);
}

//! The pages in a real browser, with and without scripts: the setup, a sign-in, tokens and keys, sign-ins of programs,
//! and errors. axe-core checks their accessibility, light and dark, wide and narrow.

use std::process::Command;

use lode_tests::browser::between;
use lode_tests::checkpoint::demo;
use lode_tests::clients::{find_program, node_packages, python};
use lode_tests::server::{Folder, Options, Server};

use crate::python::script;

#[tokio::test(flavor = "multi_thread")]
async fn people_use_the_pages_with_scripts() {
    use_pages("pages::people_use_the_pages_with_scripts", "scripts").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn people_use_the_pages_without_scripts() {
    use_pages("pages::people_use_the_pages_without_scripts", "none").await;
}

async fn use_pages(test: &str, scripts: &str) {
    let Some(python) = python(test) else { return };
    let Some(packages) = node_packages(test) else { return };
    let axe = packages.join("node_modules/axe-core/axe.min.js");
    if find_program(test, "LODE_CHROMEDRIVER", &["/usr/bin/chromedriver"]).is_none() {
        return;
    }
    let without_accounts = Server::fresh_with_worker().await;
    let lode = without_accounts.lode();
    let folder = demo();
    for tag in ["v1", "v2"] {
        lode.run(&["create", &format!("team/mini:{tag}"), folder.to_str().unwrap()]).await.expect_success();
    }
    lode.run(&["show", "team/mini:v1"]).await.expect_success();
    let server = Folder::new().start(Options::new().listen("0.0.0.0:0")).await;
    let output = server.wait_output("/setup?token=").await;
    let setup = format!("/setup?token={}", between(&output, "/setup?token=", "\n"));
    let url = format!("http://127.0.0.1:{}", server.address.port());
    let home = server.folder().path();
    let shots = std::env::var_os("LODE_SCREENSHOTS").map_or_else(|| home.to_owned(), Into::into);
    let output = Command::new(&python)
        .arg(script("pages.py"))
        .args([&url, &setup, &without_accounts.url()])
        .args([server.folder().data().join("lode.db"), axe, shots])
        .arg(scripts)
        .env("HOME", home)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

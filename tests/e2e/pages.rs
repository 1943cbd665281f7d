//! The pages in a real browser, with and without scripts: the setup, a sign-in, tokens and keys. axe-core checks
//! their accessibility, light and dark, wide and narrow.

use std::process::Command;

use lode_tests::browser::between;
use lode_tests::clients::{find_program, node_packages, python};
use lode_tests::server::{Folder, Options};

use crate::python::script;

#[tokio::test(flavor = "multi_thread")]
async fn people_use_the_pages() {
    let test = "pages::people_use_the_pages";
    let Some(python) = python(test) else { return };
    let Some(packages) = node_packages(test) else { return };
    let axe = packages.join("node_modules/axe-core/axe.min.js");
    if find_program(test, "LODE_CHROMEDRIVER", &["/usr/bin/chromedriver"]).is_none() {
        return;
    }
    let server = Folder::new().start(Options::new().listen("0.0.0.0:0")).await;
    let output = server.wait_output("/setup?token=").await;
    let setup = format!("/setup?token={}", between(&output, "/setup?token=", "\n"));
    let url = format!("http://127.0.0.1:{}", server.address.port());
    let shots =
        std::env::var_os("LODE_SCREENSHOTS").map_or_else(|| server.folder().path().to_owned(), Into::into);
    let output = Command::new(&python)
        .arg(script("pages.py"))
        .args([&url, &setup])
        .args([&axe, &shots])
        .env("HOME", server.folder().path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

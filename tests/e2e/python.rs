//! Python's packages as judges: what the gguf package reads from a file is what comes out of here.

use std::path::Path;
use std::process::Command;

use lode_tests::clients;
use lode_tests::server::Server;

use crate::gguf::fixture;

#[tokio::test]
async fn exported_values_are_those_of_the_gguf_package() {
    let test = "exported_values_are_those_of_the_gguf_package";
    let Some(python) = clients::python(test) else { return };
    let server = Server::fresh().await;
    let lode = server.lode();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/python/same_tensors.py");
    for name in ["wide-k.gguf", "mixtral-q8_0.gguf"] {
        lode.create("team/model", &fixture(name), &[]).await.ok();
        let out = server.folder().path().join("out.safetensors");
        let export = ["tensor", "export", "team/model", "--to", out.to_str().unwrap(), "--dtype", "f32"];
        lode.run(&export).await.ok();
        let output = Command::new(&python).arg(&script).args([&fixture(name), &out]).output().unwrap();
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

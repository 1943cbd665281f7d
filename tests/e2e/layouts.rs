//! The demo model in the layouts of other tools, pushed through `/v2` and with the real oras. Listing,
//! comparison and inference give the same results as for the model that `lode create` imports.

use std::fs;
use std::path::Path;
use std::process::Command;

use lode_tests::artifact::sha256;
use lode_tests::checkpoint::{demo, demo_expected, write_demo_variant};
use lode_tests::clients::oras;
use lode_tests::command::run_successfully;
use lode_tests::oci::{IMAGE_MANIFEST, Registry};
use lode_tests::server::{Folder, Options, Server};
use serde_json::{Value, json};

const FILES: [&str; 5] =
    ["model.safetensors", "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"];
const FILEPATH: &str = "org.cncf.model.filepath";

fn file(name: &str) -> Vec<u8> {
    fs::read(demo().join(name)).unwrap()
}

/// A tar file, written by the `tar` program.
fn tar(scratch: &Path, files: &[&str]) -> Vec<u8> {
    let path = scratch.join(format!("{}.tar", files[0]));
    run_successfully(Command::new("tar").arg("-C").arg(demo()).arg("-cf").arg(&path).args(files));
    fs::read(path).unwrap()
}

/// Pushes layers, each with its media type, an optional path and its bytes.
async fn push(
    registry: &Registry,
    name: &str,
    config_type: &str,
    config: &Value,
    layers: Vec<(String, Option<&str>, Vec<u8>)>,
) {
    let mut descriptors = Vec::new();
    for (kind, path, bytes) in layers {
        let digest = registry.blob_push(name, &bytes).await;
        let mut layer = json!({"mediaType": kind, "digest": digest, "size": bytes.len()});
        if let Some(path) = path {
            layer["annotations"] = json!({ FILEPATH: path });
        }
        descriptors.push(layer);
    }
    let config = serde_json::to_vec(config).unwrap();
    registry.blob_push(name, &config).await;
    let manifest = json!({
        "schemaVersion": 2, "mediaType": IMAGE_MANIFEST, "layers": descriptors,
        "config": {"mediaType": config_type, "digest": sha256(&config), "size": config.len()},
    });
    let manifest = serde_json::to_vec(&manifest).unwrap();
    registry.manifest_put(name, "latest", IMAGE_MANIFEST, &manifest).await.expect(201);
}

/// Pushes the demo model in the layout of each tool.
async fn push_all(server: &Server) -> Vec<&'static str> {
    let registry = server.registry();
    let scratch = server.folder().path();
    let kind = |name: &str| if name == "model.safetensors" { "weight" } else { "weight.config" };
    let config = json!({"descriptor": {}, "config": {"format": "safetensors", "architecture": "transformer"},
        "modelfs": {"type": "layers", "diffIds": []}});

    let layers = FILES.map(|name| {
        let kind = if name == "model.safetensors" { "safetensors" } else { "model.file" };
        (format!("application/vnd.docker.ai.{kind}"), Some(name), file(name))
    });
    let docker = json!({"config": {"format": "safetensors", "architecture": "llama", "parameters": "4.20 M"},
        "descriptor": {}, "rootfs": {"type": "rootfs", "diff_ids": []}});
    push(
        &registry,
        "layouts/docker",
        "application/vnd.docker.ai.model.config.v0.2+json",
        &docker,
        layers.into(),
    )
    .await;

    let pack = "application/vnd.cncf.model";
    let layers = FILES.map(|name| (format!("{pack}.{}.v1.raw", kind(name)), Some(name), file(name)));
    push(&registry, "layouts/modelpack", &format!("{pack}.config.v1+json"), &config, layers.into()).await;
    // The default of modctl: each file in a tar.
    let layers =
        FILES.map(|name| (format!("{pack}.{}.v1.tar", kind(name)), Some(name), tar(scratch, &[name])));
    push(&registry, "layouts/modctl", &format!("{pack}.config.v1+json"), &config, layers.into()).await;

    let kit = "application/vnd.kitops.modelkit";
    let layers = vec![(format!("{kit}.model.v1.tar"), None, tar(scratch, &FILES))];
    let kitfile = json!({"manifestVersion": "1.0.0", "model": {"name": "demo", "path": "."}});
    push(&registry, "layouts/kitops", &format!("{kit}.config.v1+json"), &kitfile, layers).await;
    vec!["layouts/docker", "layouts/modelpack", "layouts/modctl", "layouts/kitops"]
}

#[tokio::test]
async fn every_layout_is_the_same_model() {
    let server = Folder::new().start(Options::new().worker().env("LODE_KV_CACHE_TYPE", "f32")).await;
    let (lode, registry) = (server.lode(), server.registry());
    lode.create("layouts/created", &demo(), &[]).await.expect_success();
    let mut names = push_all(&server).await;
    if let Some(program) = oras("layouts::the_same_model_whoever_pushed_it") {
        let name = format!("{}/layouts/oras:latest", server.address);
        let mut command = Command::new(program);
        command.arg("push").arg("--plain-http").arg(name).args(FILES).current_dir(demo());
        run_successfully(command.env("HOME", server.folder().path()));
        names.push("layouts/oras");
    }

    let facts = async |name: &str| {
        let shown = lode.run(&["show", name, "--json"]).await.expect_success().json();
        let keys = ["format", "architecture", "parameters", "quantization", "tensor_count", "problem"];
        keys.map(|key| shown[key].clone())
    };
    let tensors = async |name: &str| -> Vec<Value> {
        let listed = lode.run(&["tensor", "ls", name, "--json"]).await.expect_success().json();
        let mut all: Vec<Value> = listed["tensors"].as_array().unwrap().clone();
        all.sort_by_key(|tensor| tensor["name"].as_str().unwrap().to_owned());
        all.into_iter().map(|t| json!([t["name"], t["dtype"], t["shape"], t["size_bytes"]])).collect()
    };
    let (known, listed) = (facts("layouts/created").await, tensors("layouts/created").await);
    let case = &demo_expected()["cases"][0];
    for name in names {
        assert_eq!(facts(name).await, known, "{name}");
        assert_eq!(tensors(name).await, listed, "{name}");
        let diff = lode.run(&["diff", "layouts/created", name]).await.expect_success().stdout;
        assert!(diff.contains(&format!("{} same, 0 changed", listed.len())), "{name}: {diff}");
        let body = json!({"model": name, "prompt": case["user"], "stream": false,
            "options": {"temperature": 0, "num_predict": 100}});
        let response = registry.post_json("/api/generate", &body).await.expect(200).json();
        assert_eq!(response["response"], case["answer"], "{name}");
    }
}

#[tokio::test]
async fn shared_and_changed_tensors_are_reported() {
    let server = Server::fresh().await;
    let lode = server.lode();
    lode.create("team/base", &demo(), &[]).await.expect_success();
    let changed = "model.layers.2.mlp.up_proj.weight";
    let tuned = server.folder().path().join("tuned");
    write_demo_variant(&tuned, changed);
    lode.create("team/tuned", &tuned, &[]).await.expect_success();
    lode.create("team/base:int8", &demo(), &["--quantize", "int8"]).await.expect_success();

    let diff = lode.run(&["diff", "team/base", "team/tuned"]).await.expect_success().stdout;
    assert!(diff.contains(changed) && diff.contains(" 1 changed"), "{diff}");
    let all = lode.run(&["diff", "team/base", "team/base:int8", "--json"]).await.expect_success().stdout;
    let records: Vec<Value> = all.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let total = &records.last().unwrap()["total"];
    assert!(total["changed"].as_u64() > Some(10) && total["same"].as_u64() > Some(2), "{total}");
    let errors: Vec<f64> = records
        .iter()
        .filter(|record| record["tensor"]["status"] == "changed")
        .map(|record| record["tensor"]["relative_error"].as_f64().unwrap())
        .collect();
    assert!(errors.iter().all(|error| (0.0001..0.02).contains(error)), "{errors:?}");

    let shown = lode.run(&["show", "team/tuned"]).await.expect_success().stdout;
    assert!(shown.contains("shares") && shown.contains("with team/base:latest"), "{shown}");
    lode.run(&["diff", "team/base", "team/nothing"]).await.expect_failure(&["team/nothing"]);
}

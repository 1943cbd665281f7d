//! Models derived from other models: with the command line and a Modelfile, and with a real ollama that uses
//! Lode as its server.

use std::fs;
use std::process::Command;

use lode_tests::checkpoint::{demo, safetensors};
use lode_tests::clients::Ollama;
use lode_tests::command::run_successfully;
use lode_tests::server::Server;
use serde_json::{Value, json};

use crate::start_stop::stored_bytes;

fn layers<'a>(manifest: &'a Value, kind: &str) -> Vec<&'a Value> {
    let media_type = format!("application/vnd.ollama.image.{kind}");
    let all = manifest["layers"].as_array().unwrap();
    all.iter().filter(|layer| layer["mediaType"] == media_type.as_str()).collect()
}

fn digests(manifest: &Value, kind: &str) -> Vec<Value> {
    layers(manifest, kind).iter().map(|layer| layer["digest"].clone()).collect()
}

#[tokio::test]
async fn a_derived_model_moves_no_weights() {
    let server = Server::fresh().await;
    let lode = server.lode();
    lode.create("team/mini:8b", &demo(), &[]).await.expect_success();
    let before = stored_bytes(server.folder());
    let folder = server.folder().path().join("made");
    fs::create_dir_all(&folder).unwrap();
    let modelfile = folder.join("Modelfile");
    let text = "# brief\nFROM team/mini:8b\nSYSTEM \"\"\"You answer\nin one sentence.\"\"\"\nPARAMETER temperature 0.2\n\
         PARAMETER stop \"<end>\"\nMESSAGE user hi\nLICENSE free\n";
    fs::write(&modelfile, text).unwrap();
    let file = modelfile.to_str().unwrap();
    let made = lode.run(&["create", "other/brief", "-f", file, "--json"]).await.expect_success().json();
    assert_eq!(made["base"], "team/mini:8b", "{made}");
    assert!(made["sent_bytes"].as_u64().unwrap() < 1000, "{made}");
    assert!(made["shared_bytes"].as_u64().unwrap() > 1_000_000, "{made}");
    assert!(stored_bytes(server.folder()) - before < 100_000, "more than texts and a manifest was stored");

    let registry = server.registry();
    let base = registry.manifest_get("team/mini", "8b").await.expect(200).json();
    let manifest = registry.manifest_get("other/brief", "latest").await.expect(200).json();
    assert_eq!(layers(&manifest, "tensor"), layers(&base, "tensor"));
    assert_eq!(manifest["annotations"]["org.opencontainers.image.base.name"], "team/mini:8b");

    // `lode show` returns the texts, and its Modelfile creates the same model.
    let system = lode.run(&["show", "other/brief", "--system"]).await.expect_success();
    assert_eq!(system.stdout, "You answer\nin one sentence.\n");
    let parameters = lode.run(&["show", "other/brief", "--parameters"]).await.expect_success().stdout;
    assert!(parameters.contains("temperature") && parameters.contains("\"<end>\""), "{parameters}");
    let shown = lode.run(&["show", "other/brief", "--modelfile"]).await.expect_success().stdout;
    fs::write(&modelfile, &shown).unwrap();
    lode.run(&["create", "other/again", "-f", file]).await.expect_success();
    let again = registry.manifest_get("other/again", "latest").await.expect(200).json();
    for kind in ["tensor", "system", "params", "messages", "license"] {
        assert_eq!(digests(&again, kind), digests(&manifest, kind), "{kind}");
    }
    // The base model's files are returned unchanged.
    let out = server.folder().path().join("out");
    lode.run(&["pull", "other/brief", "--to", out.to_str().unwrap()]).await.expect_success();
    let weights = "model.safetensors";
    assert!(fs::read(out.join(weights)).unwrap() == fs::read(demo().join(weights)).unwrap());
    lode.run(&["fsck"]).await.expect_success();
}

#[tokio::test]
async fn a_modelfile_imports_files_and_adapters() {
    let server = Server::fresh().await;
    let lode = server.lode();
    let folder = server.folder().path().join("made");
    fs::create_dir_all(folder.join("lora")).unwrap();
    let adapter = safetensors(&[("lora_a", &[2, 2], vec![1.0; 4])]);
    fs::write(folder.join("lora/adapter_model.safetensors"), &adapter).unwrap();
    fs::write(folder.join("lora/adapter_config.json"), "{}").unwrap();
    fs::write(folder.join("base.Modelfile"), format!("FROM {}\nSYSTEM one\n", demo().display())).unwrap();
    fs::write(folder.join("Modelfile"), "FROM ./base.Modelfile\nSYSTEM two\nADAPTER ./lora\n").unwrap();
    lode.run(&["create", "team/tuned", folder.join("Modelfile").to_str().unwrap()]).await.expect_success();
    let manifest = server.registry().manifest_get("team/tuned", "latest").await.expect(200).json();
    assert_eq!(layers(&manifest, "adapter")[0]["name"], "adapter/adapter_model.safetensors");
    assert_eq!(lode.run(&["show", "team/tuned", "--system"]).await.expect_success().stdout, "two\n");
    let out = server.folder().path().join("out");
    lode.run(&["pull", "team/tuned", "--to", out.to_str().unwrap()]).await.expect_success();
    assert!(fs::read(out.join("adapter/adapter_model.safetensors")).unwrap() == adapter);
    let tokenizer = "tokenizer.json";
    assert!(fs::read(out.join(tokenizer)).unwrap() == fs::read(demo().join(tokenizer)).unwrap());
}

#[tokio::test]
async fn modelfile_errors_are_reported_and_create_no_model() {
    let server = Server::fresh().await;
    let lode = server.lode();
    let folder = server.folder().path().join("made");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("other.Modelfile"), "FROM ./Modelfile\n").unwrap();
    let path = folder.join("Modelfile");
    for (text, part) in [
        ("FROM team/gone\n", "`team/gone:latest` not found"),
        ("FROM team/made\n", "`team/made:latest` not found"),
        ("FROM ./gone.gguf\n", "FROM ./gone.gguf"),
        ("FROM ./other.Modelfile\n", "is made from itself"),
        ("FROM team/x\nPARAMETER heat 1\n", "line 2, column 11: unknown parameter 'heat'"),
        ("SYSTEM x\n", "no FROM"),
        ("FROM team/x\nTEMPLATE \"\"\"x\n", "line 2, column 10"),
        ("FROM team/x\nTEMPLATE {{ if }}\n", "missing value for if (line 1, column 7)"),
    ] {
        fs::write(&path, text).unwrap();
        lode.run(&["create", "team/made", "-f", path.to_str().unwrap()]).await.expect_failure(&[part]);
    }
    server.registry().manifest_get("team/made", "latest").await.expect(404);
}

#[tokio::test]
async fn the_worker_applies_modelfile_parameters() {
    let server = Server::fresh_with_worker().await;
    let lode = server.lode();
    lode.create("mini", &demo(), &[]).await.expect_success();
    let path = server.folder().path().join("Modelfile");
    fs::write(&path, "FROM mini\nPARAMETER num_predict 3\nPARAMETER temperature 0\n").unwrap();
    lode.run(&["create", "short", "-f", path.to_str().unwrap()]).await.expect_success();
    let body = json!({"model": "short", "prompt": "Define water.", "stream": false});
    let response = server.registry().post_json("/api/generate", &body).await.expect(200).json();
    assert_eq!(
        (&response["eval_count"], &response["done_reason"]),
        (&json!(3), &json!("length")),
        "{response}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn ollama_manages_the_models_of_a_registry() {
    let server = Server::fresh().await;
    let scratch = server.folder().path();
    let test = "modelfile::ollama_manages_the_models_of_a_registry";
    let Some(ollama) = Ollama::start(test, scratch) else { return };
    server.lode().create("team/mini:8b", &demo(), &[]).await.expect_success();
    // The ollama commands, with this server as ollama's server.
    let host = server.url();
    let command = |args: &[&str]| -> Command {
        let mut command = ollama.command(args);
        command.env("OLLAMA_HOST", &host);
        command
    };
    let path = scratch.join("Modelfile");
    let text = "FROM team/mini:8b\nSYSTEM be brief\nPARAMETER temperature 0.5\nTEMPLATE \"\"\"{{ .Prompt }}\"\"\"\n\
                MESSAGE user hi\n";
    fs::write(&path, text).unwrap();
    let file = path.to_str().unwrap();
    run_successfully(&mut command(&["create", "brief", "-f", file]));
    let listed = run_successfully(&mut command(&["list"]));
    assert!(listed.contains("brief:latest") && listed.contains("team/mini:8b"), "{listed}");
    let shown = run_successfully(&mut command(&["show", "--modelfile", "brief"]));
    assert!(shown.contains("SYSTEM be brief") && shown.contains("PARAMETER temperature 0.5"), "{shown}");
    assert_eq!(run_successfully(&mut command(&["show", "--system", "brief"])).trim(), "be brief");
    assert_eq!(run_successfully(&mut command(&["show", "--template", "brief"])).trim(), "{{ .Prompt }}");
    let described = run_successfully(&mut command(&["show", "brief"]));
    assert!(described.contains("llama") && described.contains("4.2M"), "{described}");
    run_successfully(&mut command(&["cp", "brief", "team/copy"]));
    run_successfully(&mut command(&["rm", "brief"]));
    let listed = run_successfully(&mut command(&["list"]));
    assert!(!listed.contains("brief") && listed.contains("team/copy:latest"), "{listed}");

    // From files, which ollama uploads first.
    fs::write(&path, format!("FROM {}\nSYSTEM from files\n", demo().display())).unwrap();
    run_successfully(&mut command(&["create", "team/files", "-f", file]));
    let registry = server.registry();
    let manifest = registry.manifest_get("team/files", "latest").await.expect(200).json();
    let base = registry.manifest_get("team/mini", "8b").await.expect(200).json();
    assert_eq!(layers(&manifest, "tensor"), layers(&base, "tensor"));
    // From one Lode server to another and back.
    let other = Server::fresh().await;
    let away = format!("{}/team/files", other.url().trim_start_matches("http://"));
    run_successfully(&mut command(&["push", "--insecure", &away]));
    assert_eq!(other.registry().manifest_get("team/files", "latest").await.expect(200).json(), manifest);
    run_successfully(&mut command(&["rm", "team/files"]));
    run_successfully(&mut command(&["pull", "--insecure", &away]));
    assert_eq!(registry.manifest_get("team/files", "latest").await.expect(200).json(), manifest);
}

//! `lode pull --to` with untrusted file names and into a folder with untrusted content writes nothing outside
//! the folder.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use lode_tests::artifact::sha256;
use lode_tests::checkpoint::demo;
use lode_tests::command::{CommandOutput, Lode, run_successfully};
use lode_tests::oci::{IMAGE_MANIFEST, Registry};
use lode_tests::server::Server;
use serde_json::{Value, json};

/// Pushes layers, each with its media type, annotations and bytes.
async fn push(registry: &Registry, name: &str, config_type: &str, layers: &[(&str, Value, &[u8])]) {
    let mut descriptors = Vec::new();
    for (kind, annotations, bytes) in layers {
        let digest = registry.blob_push(name, bytes).await;
        descriptors.push(
            json!({"mediaType": kind, "digest": digest, "size": bytes.len(), "annotations": annotations}),
        );
    }
    registry.blob_push(name, b"{}").await;
    let manifest = json!({
        "schemaVersion": 2, "mediaType": IMAGE_MANIFEST, "layers": descriptors,
        "config": {"mediaType": config_type, "digest": sha256(b"{}"), "size": 2},
    });
    let manifest = serde_json::to_vec(&manifest).unwrap();
    registry.manifest_put(name, "latest", IMAGE_MANIFEST, &manifest).await.expect(201);
}

async fn pull(lode: &Lode, name: &str, to: &Path) -> CommandOutput {
    lode.run(&["pull", name, "--to", to.to_str().unwrap()]).await
}

fn names_in(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    names.map(|name| name.into_string().unwrap()).collect()
}

#[tokio::test]
async fn links_in_the_folder_are_not_followed() {
    let server = Server::fresh().await;
    let (registry, lode, scratch) = (server.registry(), server.lode(), server.folder().path());
    let title = |name: &str| json!({"org.opencontainers.image.title": name});
    let kind = "application/octet-stream";
    push(
        &registry,
        "team/files",
        "application/vnd.oci.empty.v1+json",
        &[(kind, title("sub/inner.txt"), b"inner"), (kind, title("plain.txt"), b"plain")],
    )
    .await;
    lode.create("team/int4", &demo(), &["--quantize", "int4"]).await.expect_success();

    let outside = scratch.join("outside");
    fs::create_dir(&outside).unwrap();
    let victim = outside.join("victim");
    fs::write(&victim, "untouched").unwrap();
    // A link that is already in the folder, and its target: in place of a folder, of partial files, of the
    // journal.
    let cases = [
        ("team/files", "sub", &outside, "sub is a symbolic link"),
        ("team/files", "plain.txt.part", &victim, "plain.txt.part is a symbolic link"),
        ("team/int4", "config.json.part", &victim, "config.json.part is a symbolic link"),
        ("team/int4", "model.safetensors.part", &victim, "model.safetensors.part is a symbolic link"),
        ("team/int4", ".lode-pull", &victim, ".lode-pull is a symbolic link"),
    ];
    for (at, (model, link, target, part)) in cases.into_iter().enumerate() {
        let to = scratch.join(format!("out{at}"));
        fs::create_dir(&to).unwrap();
        symlink(target, to.join(link)).unwrap();
        pull(&lode, model, &to).await.expect_failure(&[part]);
        assert_eq!(names_in(&outside), ["victim"], "{link}");
        assert_eq!(fs::read_to_string(&victim).unwrap(), "untouched", "{link}");
    }

    // A link in place of a file is replaced by the file. The folder itself may be a link.
    let to = scratch.join("out");
    fs::create_dir(scratch.join("real")).unwrap();
    symlink(scratch.join("real"), &to).unwrap();
    symlink(&victim, to.join("plain.txt")).unwrap();
    pull(&lode, "team/files", &to).await.expect_success();
    assert_eq!(fs::read_to_string(to.join("plain.txt")).unwrap(), "plain");
    assert!(!to.join("plain.txt").is_symlink());
    assert_eq!(fs::read_to_string(to.join("sub/inner.txt")).unwrap(), "inner");
    assert_eq!(fs::read_to_string(&victim).unwrap(), "untouched");
}

#[tokio::test]
async fn names_that_lead_out_of_the_folder_are_refused() {
    let server = Server::fresh().await;
    let (registry, lode, scratch) = (server.registry(), server.lode(), server.folder().path());
    let kit = "application/vnd.kitops.modelkit";
    for (at, name) in ["../evil.json", "sub/../../evil.json", "/tmp/lode-evil.json"].into_iter().enumerate() {
        // A tar whose second member has this name.
        let tar = scratch.join(format!("{at}.tar"));
        run_successfully(
            Command::new("tar")
                .arg("-C")
                .arg(demo())
                .args(["-P", "--transform", &format!("s|^tokenizer_config.json|{name}|"), "-cf"])
                .arg(&tar)
                .args(["config.json", "tokenizer_config.json"]),
        );
        let model = format!("team/tar{at}");
        let layer = (&*format!("{kit}.model.v1.tar"), json!({}), &*fs::read(&tar).unwrap());
        push(&registry, &model, &format!("{kit}.config.v1+json"), &[layer]).await;
        // A layer with this title.
        let titled = format!("team/titled{at}");
        let layer =
            ("application/octet-stream", json!({"org.opencontainers.image.title": name}), &b"evil"[..]);
        push(&registry, &titled, "application/vnd.oci.empty.v1+json", &[layer]).await;
        for model in [model, titled] {
            let to = scratch.join("deep/out");
            pull(&lode, &model, &to).await.expect_failure(&["evil.json"]);
            assert!(!to.exists() || names_in(&to).is_empty(), "{model}");
            assert!(!scratch.join("deep/evil.json").exists() && !scratch.join("evil.json").exists());
            assert!(!Path::new("/tmp/lode-evil.json").exists());
        }
    }
}

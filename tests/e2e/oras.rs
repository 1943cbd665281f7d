//! oras pushes files as artifacts, attaches other files to them, and lists these.
//! A push that was killed succeeds when it is repeated.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use lode_tests::artifact::{fresh_seed, random_bytes, sha256};
use lode_tests::clients::oras;
use lode_tests::cluster::Deployment;
use lode_tests::command::{run_successfully, wait_until};
use lode_tests::server::Server;

fn run(program: &Path, folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args).current_dir(folder).env("HOME", folder).env("DOCKER_CONFIG", folder.join("no-login"));
    command
}

fn scratch(below: &Path, name: &str) -> PathBuf {
    let path = below.join(name);
    fs::create_dir_all(&path).unwrap();
    path
}

#[tokio::test(flavor = "multi_thread")]
async fn files_go_there_and_back_with_what_is_attached() {
    let Some(program) = oras("oras::files_go_there_and_back") else { return };
    there_and_back(&program, &Deployment::single().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_go_there_and_back_through_two_replicas() {
    let test = "oras::files_go_there_and_back_through_two_replicas";
    let Some(program) = oras(test) else { return };
    let Some(front) = Deployment::replicated(test).await else { return };
    there_and_back(&program, &front).await;
}

async fn there_and_back(program: &Path, front: &Deployment) {
    let registry = front.registry();
    let (source, back) = (scratch(front.scratch(), "source"), scratch(front.scratch(), "back"));
    let files = [("weights.bin", 3_000_000), ("config.json", 200), ("empty.txt", 0)];
    for (name, len) in files {
        fs::write(source.join(name), random_bytes(fresh_seed(), len)).unwrap();
    }
    let name = format!("{}/oras/files:v1", registry.host());
    let out = run_successfully(&mut run(
        program,
        &source,
        &[
            "push",
            "--plain-http",
            "--artifact-type",
            "application/vnd.example.model",
            &name,
            "weights.bin:application/octet-stream",
            "config.json:application/json",
            "empty.txt:text/plain",
        ],
    ));
    let response = registry.manifest_get("oras/files", "v1").await.expect(200);
    let digest = response.header("docker-content-digest").unwrap().to_owned();
    assert!(out.contains(&digest), "{out}");
    assert_eq!(sha256(&response.body), digest);
    run_successfully(&mut run(program, &back, &["pull", "--plain-http", &name]));
    for (file, _) in files {
        assert!(fs::read(source.join(file)).unwrap() == fs::read(back.join(file)).unwrap(), "{file}");
    }

    fs::write(source.join("sbom.json"), b"{\"sbom\": true}").unwrap();
    run_successfully(&mut run(
        program,
        &source,
        &[
            "attach",
            "--plain-http",
            "--artifact-type",
            "application/vnd.example.sbom",
            &name,
            "sbom.json:application/json",
        ],
    ));
    let found = run_successfully(&mut run(
        program,
        &source,
        &["discover", "--plain-http", "--format", "json", &name],
    ));
    let found: serde_json::Value = serde_json::from_str(&found).unwrap();
    let attached = &found["manifests"].as_array().or(found["referrers"].as_array()).unwrap()[0];
    assert_eq!(attached["artifactType"], "application/vnd.example.sbom", "{found}");
    let tags = registry.tags("oras/files").await;
    assert_eq!(tags, ["v1"], "oras used fallback tags instead of the referrers API");

    // A model card becomes the card of the artifact, which keeps its digest.
    fs::write(source.join("README.md"), "# Attached\n").unwrap();
    let kind = "application/vnd.lode.card.v1+markdown";
    let card = ["attach", "--plain-http", "--artifact-type", kind, &name, "README.md:text/markdown"];
    run_successfully(&mut run(program, &source, &card));
    let card = registry.get("/lode/v1/card/oras/files/v1").await.expect(200).json();
    assert_eq!((&card["digest"], &card["text"]), (&digest.as_str().into(), &"# Attached\n".into()));

    // Copy it to another repository with its referrers, and delete the copy.
    let copied = format!("{}/oras/copied:v2", registry.host());
    run_successfully(&mut run(
        program,
        &source,
        &["copy", "-r", "--from-plain-http", "--to-plain-http", &name, &copied],
    ));
    assert_eq!(
        registry.manifest_get("oras/copied", "v2").await.expect(200).header("docker-content-digest"),
        Some(digest.as_str())
    );
    let found = registry.get(&format!("/v2/oras/copied/referrers/{digest}")).await.expect(200).json();
    assert_eq!(found["manifests"].as_array().unwrap().len(), 2);
    let card = registry.get("/lode/v1/card/oras/copied/v2").await.expect(200).json();
    assert_eq!(card["text"], "# Attached\n");
    run_successfully(&mut run(program, &source, &["tag", "--plain-http", &name, "v1.1", "stable"]));
    assert_eq!(
        run_successfully(&mut run(
            program,
            &source,
            &["repo", "tags", "--plain-http", &name.replace(":v1", "")]
        )),
        "stable\nv1\nv1.1\n"
    );
    run_successfully(&mut run(program, &source, &["manifest", "delete", "-f", "--plain-http", &copied]));
    registry.manifest_get("oras/copied", "v2").await.expect(404);
    front.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_push_goes_through_when_repeated() {
    let Some(program) = oras("oras::a_killed_push_goes_through") else { return };
    let server = Server::fresh().await;
    let source = scratch(server.folder().path(), "source");
    let bytes = random_bytes(fresh_seed(), 150_000_000);
    fs::write(source.join("weights.bin"), &bytes).unwrap();
    let name = format!("{}/oras/cut:v1", server.address);
    let args = ["push", "--plain-http", &name, "weights.bin:application/octet-stream"];
    let mut push = run(&program, &source, &args).spawn().unwrap();
    wait_until("a part of the blob has arrived", || async {
        crate::start_stop::stored_bytes(server.folder()) > 4_000_000
    })
    .await;
    push.kill().unwrap();
    assert!(!push.wait().unwrap().success());
    let registry = server.registry();
    registry.manifest_get("oras/cut", "v1").await.expect(404);
    registry.blob_head("oras/cut", &sha256(&bytes)).await.expect(404);
    run_successfully(&mut run(&program, &source, &args));
    let back = scratch(server.folder().path(), "back");
    run_successfully(&mut run(&program, &back, &["pull", "--plain-http", &name]));
    assert!(fs::read(back.join("weights.bin")).unwrap() == bytes);
    server.lode().run(&["fsck", "--verify"]).await.expect_success();
}

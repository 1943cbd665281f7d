//! skopeo copies images between folders and the registry: same digests, same bytes, also with docker's media
//! types. A push that failed because the server was killed succeeds when it is repeated.

use std::fs;
use std::path::Path;
use std::process::Command;

use lode_tests::artifact::{fresh_seed, random_bytes, sha256};
use lode_tests::clients::skopeo;
use lode_tests::cluster::Deployment;
use lode_tests::command::{run_successfully, wait_until};
use lode_tests::oci::{IMAGE_INDEX, IMAGE_MANIFEST};
use lode_tests::server::{Folder, Options};
use serde_json::json;

/// Writes an OCI layout with one image of gzipped layers, tagged `v1`, and returns the manifest's digest.
pub(crate) fn layout(to: &Path, n_layers: usize, layer_bytes: usize) -> String {
    let blobs = to.join("blobs/sha256");
    fs::create_dir_all(&blobs).unwrap();
    let store = |bytes: &[u8]| {
        let digest = sha256(bytes);
        fs::write(blobs.join(digest.trim_start_matches("sha256:")), bytes).unwrap();
        digest
    };
    let (mut layers, mut diff_ids) = (Vec::new(), Vec::new());
    for i in 0..n_layers {
        let work = to.join("work");
        fs::create_dir_all(&work).unwrap();
        fs::write(work.join("file"), random_bytes(fresh_seed(), layer_bytes)).unwrap();
        let tar = to.join("layer.tar");
        run_successfully(Command::new("tar").arg("-C").arg(&work).arg("-cf").arg(&tar).arg("file"));
        diff_ids.push(sha256(&fs::read(&tar).unwrap()));
        run_successfully(Command::new("gzip").args(["-1", "-f"]).arg(&tar));
        let bytes = fs::read(to.join("layer.tar.gz")).unwrap();
        layers.push(json!({"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "digest": store(&bytes), "size": bytes.len(),
            "annotations": {"layer": i.to_string()}}));
    }
    let config = json!({"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": diff_ids}, "config": {}}).to_string();
    let manifest = json!({"schemaVersion": 2, "mediaType": IMAGE_MANIFEST, "layers": layers,
        "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": store(config.as_bytes()), "size": config.len()}});
    let manifest = serde_json::to_vec_pretty(&manifest).unwrap();
    let digest = store(&manifest);
    let index = json!({"schemaVersion": 2, "mediaType": IMAGE_INDEX, "manifests": [{"mediaType": IMAGE_MANIFEST, "digest": digest,
        "size": manifest.len(), "annotations": {"org.opencontainers.image.ref.name": "v1"}}]});
    fs::write(to.join("index.json"), index.to_string()).unwrap();
    fs::write(to.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
    digest
}

fn copy(program: &Path, scratch: &Path, more: &[&str], from: &str, to: &str) -> Command {
    let mut command = Command::new(program);
    command.args(["--insecure-policy", "--tmpdir"]).arg(scratch).args([
        "copy",
        "--src-tls-verify=false",
        "--dest-tls-verify=false",
    ]);
    command.args(more).args([from, to]).env("HOME", scratch).env("XDG_RUNTIME_DIR", scratch);
    command
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_goes_there_and_back() {
    let Some(program) = skopeo("skopeo::an_image_goes_there_and_back") else { return };
    there_and_back(&program, &Deployment::single().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_goes_there_and_back_through_two_replicas() {
    let test = "skopeo::an_image_goes_there_and_back_through_two_replicas";
    let Some(program) = skopeo(test) else { return };
    let Some(front) = Deployment::replicated(test).await else { return };
    there_and_back(&program, &front).await;
}

async fn there_and_back(program: &Path, front: &Deployment) {
    let (registry, scratch) = (front.registry(), front.scratch());
    let source = scratch.join("source");
    let digest = layout(&source, 3, 500_000);
    let from = format!("oci:{}:v1", source.display());
    let there = format!("docker://{}/skopeo/image:v1", registry.host());
    run_successfully(&mut copy(program, scratch, &["--preserve-digests"], &from, &there));
    assert_eq!(
        registry.manifest_get("skopeo/image", "v1").await.expect(200).header("docker-content-digest"),
        Some(digest.as_str())
    );

    let back = scratch.join("back");
    run_successfully(&mut copy(
        program,
        scratch,
        &["--preserve-digests"],
        &there,
        &format!("oci:{}:v1", back.display()),
    ));
    let (sent, got) = (fs::read_dir(source.join("blobs/sha256")).unwrap(), back.join("blobs/sha256"));
    for entry in sent {
        let path = entry.unwrap().path();
        let bytes = fs::read(&path).unwrap();
        assert!(bytes == fs::read(got.join(path.file_name().unwrap())).unwrap(), "{}", path.display());
    }
    // As plain files: the manifest byte for byte, every blob under its digest.
    let plain = scratch.join("plain");
    run_successfully(&mut copy(program, scratch, &[], &there, &format!("dir:{}", plain.display())));
    assert_eq!(sha256(&fs::read(plain.join("manifest.json")).unwrap()), digest);
    for entry in fs::read_dir(&plain).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name.len() == 64 {
            assert_eq!(sha256(&fs::read(&path).unwrap()), format!("sha256:{name}"));
        }
    }
    // From one repository to another, with docker's media types. The blobs are mounted.
    let elsewhere = format!("docker://{}/skopeo/docker:v2", registry.host());
    run_successfully(&mut copy(program, scratch, &["--format", "v2s2"], &there, &elsewhere));
    let response = registry.manifest_get("skopeo/docker", "v2").await.expect(200);
    assert_eq!(response.header("content-type"), Some("application/vnd.docker.distribution.manifest.v2+json"));
    let mut command = Command::new(program);
    let shown =
        run_successfully(command.args(["inspect", "--tls-verify=false", &elsewhere]).env("HOME", scratch));
    assert!(shown.contains("\"v2\""), "{shown}");
    let mut command = Command::new(program);
    let tags = run_successfully(
        command.args(["list-tags", "--tls-verify=false", &there.replace(":v1", "")]).env("HOME", scratch),
    );
    assert!(tags.contains("\"v1\""), "{tags}");
    let mut command = Command::new(program);
    run_successfully(command.args(["delete", "--tls-verify=false", &there]).env("HOME", scratch));
    registry.manifest_get("skopeo/image", &digest).await.expect(404);
    front.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_that_died_with_the_server_goes_through_when_repeated() {
    let Some(program) = skopeo("skopeo::a_push_that_died_with_the_server") else { return };
    let folder = Folder::new();
    let server = folder.serve().await;
    let (address, scratch) = (server.address, folder.path().to_owned());
    let source = scratch.join("source");
    let digest = layout(&source, 2, 60_000_000);
    let (from, there) = (format!("oci:{}:v1", source.display()), format!("docker://{address}/skopeo/cut:v1"));
    let mut push = copy(&program, &scratch, &["--preserve-digests"], &from, &there).spawn().unwrap();
    wait_until("a part of the image has arrived", || async {
        crate::start_stop::stored_bytes(&folder) > 4_000_000
    })
    .await;
    server.kill();
    assert!(!push.wait().unwrap().success(), "the push succeeded although the server was killed");
    let server = folder.start(Options::new().listen(address.to_string())).await;
    run_successfully(&mut copy(&program, &scratch, &["--preserve-digests"], &from, &there));
    let registry = server.registry();
    assert_eq!(
        registry.manifest_get("skopeo/cut", "v1").await.expect(200).header("docker-content-digest"),
        Some(digest.as_str())
    );
    server.lode().run(&["fsck", "--verify"]).await.expect_success();
}

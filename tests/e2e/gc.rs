//! Garbage collection and fsck: unreferenced content is deleted after its grace period, referenced content is
//! kept, and damage is found. A push that races with a collection must win.

use std::fs;

use lode_tests::artifact::{Image, fresh_seed, random_bytes, sha256};
use lode_tests::server::{Folder, Options, Server};

fn blob_path(server: &Server, digest: &str) -> std::path::PathBuf {
    server.folder().data().join("blobs").join(digest.replace(':', "/"))
}

fn without_grace() -> Options {
    Options::new().env("LODE_GC_GRACE", "0s").env("LODE_UPLOAD_LEASE", "0s")
}

#[tokio::test]
async fn unreferenced_content_is_deleted_and_the_rest_is_kept() {
    let server = Folder::new().start(without_grace()).await;
    let registry = server.registry();
    let (gone, kept) = (Image::random(fresh_seed(), 2, 10_000), Image::random(fresh_seed(), 2, 10_000));
    let digest = gone.push(&registry, "gc", "gone").await;
    kept.push(&registry, "gc", "kept").await;
    kept.push(&registry, "gc/other", "kept").await;
    let orphan = registry.blob_push("gc", b"never in a manifest").await;
    registry.delete(&format!("/v2/gc/manifests/{digest}")).await.expect(202);
    let dry = server.lode().run(&["gc", "--dry-run"]).await.expect_success().stdout;
    assert!(dry.starts_with("dry run: nothing was removed\ntags: 0\n"), "{dry}");
    assert!(blob_path(&server, &digest).is_file(), "a dry run deletes nothing");
    server.lode().run(&["gc"]).await.expect_success();
    for digest in gone.layers.iter().map(|l| sha256(l)).chain([digest, orphan]) {
        assert!(!blob_path(&server, &digest).exists(), "{digest} is still there");
    }
    for repository in ["gc", "gc/other"] {
        kept.check(&registry, repository, "kept").await;
    }
    server.lode().run(&["fsck", "--verify"]).await.expect_success();
    // Deleted content can be pushed again.
    gone.push(&registry, "gc", "again").await;
    gone.check(&registry, "gc", "again").await;
}

#[tokio::test]
async fn content_within_grace_period_or_lease_is_kept() {
    let server = Server::fresh().await; // 24 hours each
    let registry = server.registry();
    let image = Image::random(fresh_seed(), 1, 10_000);
    let digest = image.push(&registry, "grace", "v1").await;
    let fresh = registry.blob_push("grace", b"its manifest comes later").await;
    registry.delete(&format!("/v2/grace/manifests/{digest}")).await.expect(202);
    server.lode().run(&["gc"]).await.expect_success();
    assert!(blob_path(&server, &sha256(&image.layers[0])).is_file());
    registry.blob_get("grace", &fresh).await.expect(200);
}

#[tokio::test]
async fn a_push_that_races_with_collections_wins() {
    // The lease protects blobs of a push in progress.
    let server = Folder::new().start(Options::new().env("LODE_GC_GRACE", "0s")).await;
    let registry = server.registry();
    let collector = {
        let registry = registry.clone();
        tokio::spawn(async move {
            for _ in 0..30 {
                registry.collect().await.expect(200);
            }
        })
    };
    let shared = random_bytes(fresh_seed(), 20_000);
    let mut round = 0u64;
    while !collector.is_finished() || round < 5 {
        let image = Image::of(
            format!("{{\"round\":{round}}}").into_bytes(),
            vec![shared.clone()],
            &serde_json::json!({}),
        );
        let digest = image.push(&registry, "race", "v1").await;
        image.check(&registry, "race", "v1").await;
        registry.delete(&format!("/v2/race/manifests/{digest}")).await.expect(202);
        round += 1;
    }
    collector.await.unwrap();
    server.lode().run(&["fsck", "--verify"]).await.expect_success();
}

#[tokio::test]
async fn damage_is_found_and_orphans_are_not_damage() {
    let server = Server::fresh().await;
    let registry = server.registry();
    let image = Image::random(fresh_seed(), 2, 10_000);
    image.push(&registry, "hurt", "v1").await;
    // Bytes without a row, and an unfinished upload.
    let orphan = blob_path(&server, &sha256(b"orphan"));
    fs::write(&orphan, b"orphan").unwrap();
    let location = registry.upload_open("hurt").await;
    registry.upload_append(&location, 0, b"unfinished").await.expect(202);
    server.lode().run(&["fsck", "--verify"]).await.expect_success();
    // `--verify` finds wrong bytes of the right length. Missing bytes are always found.
    let path = blob_path(&server, &sha256(&image.layers[0]));
    let mut bytes = fs::read(&path).unwrap();
    bytes[5_000] ^= 1;
    make_writable(&path);
    fs::write(&path, &bytes).unwrap();
    server.lode().run(&["fsck"]).await.expect_success();
    let found = server.lode().run(&["fsck", "--verify"]).await;
    assert_eq!(found.code, 1, "{found:?}");
    assert!(
        format!("{}{}", found.stdout, found.stderr).contains(&sha256(&image.layers[0])),
        "fsck does not name the blob: {found:?}"
    );
    for line in ["damage: 1\n", "    used by: hurt:v1\n", "    repair: restore its file from a backup"] {
        assert!(found.stdout.contains(line), "{line:?}: {found:?}");
    }
    assert!(!found.stdout.contains('{'), "{found:?}");
    let json = server.lode().run(&["fsck", "--verify", "--json"]).await;
    assert_eq!(json.code, 1, "{json:?}");
    let report: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(report["damage"][0]["used_by"], serde_json::json!(["hurt:v1"]), "{report}");
    fs::remove_file(blob_path(&server, &sha256(&image.layers[1]))).unwrap();
    let found = server.lode().run(&["fsck"]).await;
    assert_eq!(found.code, 1, "{found:?}");
    assert!(format!("{}{}", found.stdout, found.stderr).contains(&sha256(&image.layers[1])), "{found:?}");
    // A stopped server cannot be checked.
    let (lode, _folder) = (server.lode(), server.folder().clone());
    server.kill();
    assert_eq!(lode.run(&["fsck"]).await.code, 2);
}

fn make_writable(path: &std::path::Path) {
    let mut permissions = fs::metadata(path).unwrap().permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o644);
    fs::set_permissions(path, permissions).unwrap();
}

#[tokio::test]
async fn a_removal_is_listed_and_can_be_restored() {
    let options =
        Options::new().env("LODE_GC_GRACE", "0s").env("LODE_UPLOAD_LEASE", "0s").env("LODE_GC_UNDO", "1h");
    let server = Folder::new().start(options).await;
    let registry = server.registry();
    let image = Image::random(fresh_seed(), 2, 10_000);
    let digest = image.push(&registry, "gc/undo", "v1").await;
    registry.delete(&format!("/v2/gc/undo/manifests/{digest}")).await.expect(202);
    server.lode().run(&["gc"]).await.expect_success();
    registry.get("/v2/gc/undo/manifests/v1").await.expect(404);
    let history = server.lode().run(&["gc", "history", "gc/undo"]).await.expect_success();
    assert!(history.stdout.contains("v1") && history.stdout.contains("delete"), "{}", history.stdout);
    // The image is restored under its tag, byte for byte.
    server.lode().run(&["gc", "undo", &format!("gc/undo@{digest}")]).await.expect_success();
    image.check(&registry, "gc/undo", "v1").await;
    server.lode().run(&["fsck", "--verify"]).await.expect_success();
}

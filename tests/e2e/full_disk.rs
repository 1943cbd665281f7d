//! A full disk: the server acknowledges no writes, reads continue, and pushes succeed without a restart once
//! space is available again. The disk is a small tmpfs, which only root can mount.

use std::fs;

use lode_tests::artifact::{Image, fresh_seed, random_bytes, sha256};
use lode_tests::clients::is_root;
use lode_tests::disk::SmallDisk;
use lode_tests::oci::{IMAGE_MANIFEST, Registry};
use lode_tests::report::skip;
use lode_tests::server::{Folder, Server};

async fn refused_push(registry: &Registry, repository: &str, bytes: &[u8]) {
    let digest = sha256(bytes);
    let response = registry.send(registry.request("POST", &format!("/v2/{repository}/blobs/uploads/"))).await;
    if response.status == 202 {
        let location = registry.at(response.header("location").unwrap());
        let request = registry
            .request("PUT", &lode_tests::oci::with_query(&location, "digest", &digest))
            .body(bytes.to_vec());
        // An error response or a closed connection: neither acknowledges the blob.
        if let Ok(response) = registry.try_send(request).await {
            assert!(response.status >= 500, "{} {}", response.status, response.text());
            assert!(response.code().is_some(), "{}", response.text());
        }
    } else {
        assert!(response.status >= 500, "{} {}", response.status, response.text());
    }
    assert_ne!(registry.blob_head(repository, &digest).await.status, 200);
}

#[tokio::test]
async fn a_full_disk_acknowledges_nothing_and_keeps_serving() {
    if !is_root() {
        skip("full_disk::a_full_disk_acknowledges_nothing", "only root can mount a small file system");
        return;
    }
    let outer = Folder::new();
    let disk = SmallDisk::mount(outer.path().join("disk"), 48);
    let folder = Folder::with_data(disk.path().join("data"));
    let server: Server = folder.serve().await;
    let registry = server.registry();
    let image = Image::random(fresh_seed(), 2, 1_000_000);
    let digest = image.push(&registry, "full", "v1").await;
    fs::write(disk.path().join("ballast"), vec![7; 24 << 20]).unwrap();

    // Far more than fits, in one body.
    let big = random_bytes(fresh_seed(), 40 << 20);
    refused_push(&registry, "full", &big).await;
    image.check(&registry, "full", "v1").await;

    let path = disk.path().join("data/uploads");
    let log = server.output();
    let named =
        log.lines().any(|line| line.contains("no space left") && line.contains(path.to_str().unwrap()));
    assert!(named, "the log does not name the file that did not fit:\n{log}");

    // No free block is left, so the database cannot grow either.
    let mut left = 8 << 20;
    while left >= 4096 {
        match append(&disk.path().join("rest"), left) {
            Ok(()) => {}
            Err(_) => left /= 2,
        }
    }
    for i in 0..5 {
        refused_push(&registry, "full", &random_bytes(i, 200_000)).await;
        let other = Image::random(i, 0, 0);
        let response = registry.manifest_put("full", &format!("x{i}"), IMAGE_MANIFEST, &other.manifest).await;
        assert!(response.status >= 400, "{}", response.status);
    }
    image.check(&registry, "full", "v1").await;
    image.check(&registry, "full", &digest).await;
    registry.get("/healthz").await.expect(200);
    let status = server.lode().run(&["status"]).await.expect_success();
    assert!(status.stdout.contains("ready for reads only: a disk is full"), "{}", status.stdout);
    assert_eq!(registry.tags("full").await, ["v1"]);

    // Space is available again.
    for name in ["ballast", "rest"] {
        fs::remove_file(disk.path().join(name)).unwrap();
    }
    let status = server.lode().run(&["status"]).await.expect_success();
    assert!(status.stdout.lines().next().unwrap().ends_with(", ready"), "{}", status.stdout);
    let after = Image::random(fresh_seed(), 2, 1_000_000);
    after.push(&registry, "full", "v2").await;
    after.check(&registry, "full", "v2").await;
    server.lode().run(&["fsck", "--verify"]).await.expect_success();
    assert!(!server.output().contains("panicked"), "{}", server.output());
    server.kill();
    let server = folder.serve().await;
    after.check(&server.registry(), "full", "v2").await;
    image.check(&server.registry(), "full", "v1").await;
    drop(server);
}

fn append(path: &std::path::Path, bytes: usize) -> std::io::Result<()> {
    use std::io::Write;
    let mut file = fs::OpenOptions::new().create(true).append(true).open(path)?;
    file.write_all(&vec![7; bytes])
}

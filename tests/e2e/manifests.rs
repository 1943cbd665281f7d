//! Manifests: exact bytes, response headers, tags in a push by digest, deletion, and refused manifests.
//! This file tests the rules between manifests, tags and blobs; `bad_input` tests malformed requests.

use lode_tests::artifact::{Image, descriptor, fresh_seed, sha256, sha512};
use lode_tests::oci::{DOCKER_MANIFEST, IMAGE_INDEX, IMAGE_MANIFEST};
use lode_tests::server::{Folder, Options, Server};
use serde_json::json;

#[tokio::test]
async fn odd_but_valid_bytes_come_back_as_they_were() {
    let server = Server::fresh().await;
    let registry = server.registry();
    let config = registry.blob_push("odd", b"{}").await;
    let data = "e30=";
    // Spacing, key order, repeated white space, unicode escapes, unknown fields, numbers that JSON libraries
    // rewrite.
    let text = format!(
        "{{ \"layers\":[ ],\n\t\"x-unknown\": {{\"n\": 1.0e+2, \"big\": 123456789012345678901234567890, \"\\u00e4\": \"\\u0041\"}},\r\n\
         \"schemaVersion\":2 , \"config\":{{\"size\":2,\"digest\":\"{config}\",\"mediaType\":\"application/x-anything\",\"data\":\"{data}\",\"later\":true}}}}\n\n"
    );
    let response = registry.manifest_put("odd", "v1", IMAGE_MANIFEST, text.as_bytes()).await.expect(201);
    assert_eq!(response.header("docker-content-digest"), Some(sha256(text.as_bytes()).as_str()));
    let response = registry.manifest_get("odd", "v1").await.expect(200);
    assert_eq!(response.text(), text);
    assert_eq!(response.header("content-type"), Some(IMAGE_MANIFEST));
    assert_eq!(response.header("docker-content-digest"), Some(sha256(text.as_bytes()).as_str()));
    // The server returns the stored manifest whatever the Accept header.
    let request = registry.request("GET", "/v2/odd/manifests/v1").header("accept", DOCKER_MANIFEST);
    assert_eq!(registry.send(request).await.expect(200).text(), text);
}

#[tokio::test]
async fn parameters_of_the_content_type_are_dropped() {
    let server = Server::fresh().await;
    let registry = server.registry();
    let image = Image::random(fresh_seed(), 1, 10);
    for blob in image.blobs() {
        registry.blob_push("typed", blob).await;
    }
    let with_charset = format!("{IMAGE_MANIFEST}; charset=utf-8");
    registry.manifest_put("typed", "v1", &with_charset, &image.manifest).await.expect(201);
    assert_eq!(registry.manifest_get("typed", "v1").await.header("content-type"), Some(IMAGE_MANIFEST));
    registry
        .manifest_put("typed", "v2", DOCKER_MANIFEST, &image.manifest)
        .await
        .expect_error(400, "MANIFEST_INVALID");
}

#[tokio::test]
async fn sha512_manifests_and_tags_on_a_push_by_digest() {
    let server = Server::fresh().await;
    let registry = server.registry();
    let image = Image::random(fresh_seed(), 2, 1000);
    for blob in image.blobs() {
        registry.blob_push("tagged", blob).await;
    }
    let digest = sha512(&image.manifest);
    let tags: Vec<String> = (0..10).map(|i| format!("t{i}")).collect();
    let query = tags.iter().map(|t| format!("tag={t}")).collect::<Vec<_>>().join("&");
    let response = registry
        .manifest_put("tagged", &format!("{digest}?{query}"), IMAGE_MANIFEST, &image.manifest)
        .await
        .expect(201);
    assert_eq!(response.header("docker-content-digest"), Some(digest.as_str()));
    let accepted: Vec<&str> =
        response.headers.get_all("oci-tag").iter().flat_map(|v| v.to_str().unwrap().split(", ")).collect();
    let accepted: Vec<&str> = accepted.iter().flat_map(|v| v.split(',')).collect();
    assert_eq!(accepted, tags);
    assert_eq!(registry.tags("tagged").await, tags);
    for reference in ["t3", digest.as_str()] {
        let response = registry.manifest_get("tagged", reference).await.expect(200);
        assert_eq!(
            (response.body.as_ref(), response.header("docker-content-digest")),
            (image.manifest.as_slice(), Some(digest.as_str()))
        );
    }
    // Content under sha512 has its own row: the same bytes were not pushed under sha256.
    registry.manifest_get("tagged", &sha256(&image.manifest)).await.expect(404);
    registry
        .manifest_put("tagged", &format!("{digest}?tag=not%20a%20tag"), IMAGE_MANIFEST, &image.manifest)
        .await
        .expect(400);
    assert_eq!(registry.tags("tagged").await, tags, "a refused push changed tags");
}

#[tokio::test]
async fn deleting_a_tag_keeps_the_manifest_and_deleting_the_manifest_takes_its_tags() {
    let server = Server::fresh().await;
    let registry = server.registry();
    let (image, other) = (Image::random(fresh_seed(), 1, 100), Image::random(fresh_seed(), 1, 100));
    let digest = image.push(&registry, "del", "a").await;
    registry.manifest_put("del", "b", IMAGE_MANIFEST, &image.manifest).await.expect(201);
    other.push(&registry, "del", "c").await;
    registry.delete("/v2/del/manifests/a").await.expect(202);
    registry.manifest_get("del", "a").await.expect_error(404, "MANIFEST_UNKNOWN");
    registry.manifest_get("del", &digest).await.expect(200);
    registry.delete("/v2/del/manifests/a").await.expect(404);
    registry.delete(&format!("/v2/del/manifests/{digest}")).await.expect(202);
    for reference in ["b", digest.as_str()] {
        registry.manifest_get("del", reference).await.expect(404);
        registry.head(&format!("/v2/del/manifests/{reference}")).await.expect(404);
    }
    assert_eq!(registry.tags("del").await, ["c"]);
    other.check(&registry, "del", "c").await;
    registry.delete(&format!("/v2/nobody/manifests/{digest}")).await.expect(404);
}

#[tokio::test]
async fn a_tag_moves_at_once() {
    let server = Server::fresh().await;
    let registry = server.registry();
    let images = [Image::random(fresh_seed(), 1, 100), Image::random(fresh_seed(), 1, 100)];
    let digests =
        [images[0].push(&registry, "move", "now").await, images[1].push(&registry, "move", "now").await];
    let reader = {
        let (registry, digests) = (registry.clone(), digests.clone());
        tokio::spawn(async move {
            for _ in 0..200 {
                let response = registry.manifest_get("move", "now").await.expect(200);
                let digest = response.header("docker-content-digest").unwrap();
                assert!(digests.iter().any(|d| d == digest), "{digest}");
                assert_eq!(
                    sha256(&response.body),
                    digest,
                    "body and digest header belong to different manifests"
                );
            }
        })
    };
    for i in 0..50 {
        registry.manifest_put("move", "now", IMAGE_MANIFEST, &images[i % 2].manifest).await.expect(201);
    }
    reader.await.unwrap();
    assert_eq!(
        registry.manifest_get("move", "now").await.header("docker-content-digest"),
        Some(digests[1].as_str())
    );
}

#[tokio::test]
async fn referenced_blobs_must_exist_except_foreign_layers() {
    let server = Server::fresh().await;
    let registry = server.registry();
    let config = registry.blob_push("needs", b"{}").await;
    let manifest = |layers: serde_json::Value| {
        json!({"schemaVersion": 2, "mediaType": IMAGE_MANIFEST, "layers": layers,
            "config": {"mediaType": "application/vnd.oci.empty.v1+json", "digest": config, "size": 2}})
        .to_string()
    };
    let mut foreign = descriptor("application/vnd.docker.image.rootfs.foreign.diff.tar.gzip", b"far away");
    foreign["urls"] = json!(["https://example.com/layer"]);
    let kept_back = descriptor("application/vnd.oci.image.layer.nondistributable.v1.tar+gzip", b"kept back");
    registry
        .manifest_put("needs", "foreign", IMAGE_MANIFEST, manifest(json!([foreign, kept_back])).as_bytes())
        .await
        .expect(201);
    let absent = descriptor("application/vnd.oci.image.layer.v1.tar", b"absent");
    let response =
        registry.manifest_put("needs", "absent", IMAGE_MANIFEST, manifest(json!([absent])).as_bytes()).await;
    assert_eq!(response.code().as_deref(), Some("MANIFEST_BLOB_UNKNOWN"));
    assert!(
        response.text().contains(&sha256(b"absent")),
        "the error does not name the digest: {}",
        response.text()
    );
    let child = json!({"mediaType": IMAGE_MANIFEST, "digest": sha256(b"no child"), "size": 8});
    let index = json!({"schemaVersion": 2, "mediaType": IMAGE_INDEX, "manifests": [child]}).to_string();
    let response = registry.manifest_put("needs", "index", IMAGE_INDEX, index.as_bytes()).await;
    assert_eq!(response.code().as_deref(), Some("MANIFEST_BLOB_UNKNOWN"));
    assert_eq!(registry.tags("needs").await, ["foreign"]);
}

#[tokio::test]
async fn sparse_manifests_are_a_setting() {
    let server = Folder::new().start(Options::new().env("LODE_ALLOW_SPARSE", "true")).await;
    let registry = server.registry();
    let image = Image::random(fresh_seed(), 2, 100);
    registry.manifest_put("sparse", "v1", IMAGE_MANIFEST, &image.manifest).await.expect(201);
    assert_eq!(registry.manifest_get("sparse", "v1").await.expect(200).body, image.manifest);
    registry.blob_get("sparse", &sha256(&image.layers[0])).await.expect_error(404, "BLOB_UNKNOWN");
}

#[tokio::test]
async fn a_manifest_can_also_be_pushed_as_a_blob() {
    let server = Server::fresh().await;
    let registry = server.registry();
    let image = Image::random(fresh_seed(), 1, 100);
    registry.blob_push("both", &image.manifest).await;
    let digest = image.push(&registry, "both", "v1").await;
    assert_eq!(registry.blob_get("both", &digest).await.expect(200).body, image.manifest);
    registry.delete(&format!("/v2/both/manifests/{digest}")).await.expect(202);
    registry.manifest_get("both", &digest).await.expect(404);
    server.lode().run(&["fsck", "--verify"]).await.expect_success();
}

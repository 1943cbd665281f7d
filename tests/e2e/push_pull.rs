//! Pushing and pulling: every way to push a blob, both digest algorithms, concurrent pushes.
//! Response headers are checked too, because clients depend on them.

use lode_tests::artifact::{Image, fresh_seed, random_bytes, sha256, sha512};
use lode_tests::oci::{IMAGE_INDEX, with_query};
use lode_tests::server::Server;
use serde_json::json;

#[tokio::test]
async fn an_image_comes_back_byte_for_byte() {
    let server = Server::fresh().await;
    let registry = server.registry();
    let image = Image::random(1, 3, 300_000);
    let digest = image.push(&registry, "team/image", "v1").await;
    image.check(&registry, "team/image", "v1").await;
    image.check(&registry, "team/image", &digest).await;
    assert_eq!(registry.tags("team/image").await, ["v1"]);
}

#[tokio::test]
async fn every_way_to_push_a_blob_gives_the_same_blob() {
    let server = Server::fresh().await;
    let registry = server.registry();
    let bytes = random_bytes(fresh_seed(), 1_000_003);
    for (way, digest) in [("sha256", sha256(&bytes)), ("sha512", sha512(&bytes))] {
        // One POST with the whole body.
        let repository = format!("ways/post-{way}");
        let path = with_query(&format!("/v2/{repository}/blobs/uploads/"), "digest", &digest);
        let response = registry.send(registry.request("POST", &path).body(bytes.clone())).await.expect(201);
        let location = registry.at(response.header("location").unwrap());
        assert_eq!(registry.get(&location).await.expect(200).body, bytes);

        // POST, then PUT with the whole body.
        let repository = format!("ways/put-{way}");
        let location = registry.upload_open(&repository).await;
        let response = registry.upload_finish(&location, &digest, &bytes).await.expect(201);
        assert_eq!(response.header("docker-content-digest"), Some(digest.as_str()));
        assert_eq!(registry.get(response.header("location").unwrap()).await.expect(200).body, bytes);

        // Three chunks of odd sizes, the last of them in the PUT.
        let repository = format!("ways/chunks-{way}");
        let location = registry.upload_open(&repository).await;
        let response = registry.upload_append(&location, 0, &bytes[..1]).await.expect(202);
        assert_eq!(response.header("range"), Some("0-0"));
        let location = registry.at(response.header("location").unwrap());
        let response = registry.upload_append(&location, 1, &bytes[1..700_001]).await.expect(202);
        assert_eq!(response.header("range"), Some("0-700000"));
        let location = registry.at(response.header("location").unwrap());
        registry.upload_finish(&location, &digest, &bytes[700_001..]).await.expect(201);
        assert_eq!(registry.blob_get(&repository, &digest).await.expect(200).body, bytes);

        // A stream without a length, as docker sends it.
        let repository = format!("ways/stream-{way}");
        let location = registry.upload_open(&repository).await;
        let parts: Vec<Result<Vec<u8>, std::io::Error>> =
            bytes.chunks(9_999).map(|part| Ok(part.to_vec())).collect();
        let body = reqwest::Body::wrap_stream(futures::stream::iter(parts));
        let response = registry.send(registry.request("PATCH", &location).body(body)).await.expect(202);
        assert_eq!(response.header("range"), Some("0-1000002"));
        let location = registry.at(response.header("location").unwrap());
        registry.upload_finish(&location, &digest, b"").await.expect(201);
        let response = registry.blob_get(&repository, &digest).await.expect(200);
        assert_eq!(response.body, bytes);
        assert_eq!(response.header("docker-content-digest"), Some(digest.as_str()));
    }
}

#[tokio::test]
async fn a_blob_without_bytes_is_a_blob() {
    let server = Server::fresh().await;
    let registry = server.registry();
    let digest = registry.blob_push("empty", b"").await;
    let response = registry.blob_get("empty", &digest).await.expect(200);
    assert_eq!((response.body.len(), response.header("content-length")), (0, Some("0")));
}

#[tokio::test]
async fn awkward_repository_names_are_names() {
    let server = Server::fresh().await;
    let registry = server.registry();
    let long = format!("{}/x", vec!["part"; 50].join("/"));
    for name in [
        "a",
        "a/blobs/b",
        "team/manifests",
        "blobs/uploads",
        "x/tags/list",
        "referrers/y",
        "a__b/c-_d".trim_end_matches("-_d"),
        "0.1",
        &long,
    ] {
        let image = Image::random(fresh_seed(), 1, 1000);
        let digest = image.push(&registry, name, "latest").await;
        image.check(&registry, name, "latest").await;
        registry.get(&format!("/v2/{name}/referrers/{digest}")).await.expect(200);
        assert_eq!(registry.tags(name).await, ["latest"], "{name}");
    }
    // A colon may be percent-encoded.
    let image = Image::random(7, 1, 10);
    let digest = image.push(&registry, "a", "latest").await;
    registry.get(&format!("/v2/a/manifests/{}", digest.replace(':', "%3A"))).await.expect(200);
    let catalog = registry.get("/v2/_catalog").await.expect(200);
    assert!(catalog.text().contains("a/blobs/b"), "{}", catalog.text());
}

#[tokio::test]
async fn an_index_of_images_and_of_indexes() {
    let server = Server::fresh().await;
    let registry = server.registry();
    let image = Image::random(3, 1, 500);
    image.push(&registry, "many", "one").await;
    let child = json!({"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": image.digest(), "size": image.manifest.len(),
        "platform": {"os": "linux", "architecture": "amd64"}});
    let inner = json!({"schemaVersion": 2, "mediaType": IMAGE_INDEX, "manifests": [child]}).to_string();
    registry.manifest_put("many", "inner", IMAGE_INDEX, inner.as_bytes()).await.expect(201);
    let outer = json!({"schemaVersion": 2, "mediaType": IMAGE_INDEX, "manifests": [
        {"mediaType": IMAGE_INDEX, "digest": sha256(inner.as_bytes()), "size": inner.len()}]})
    .to_string();
    registry.manifest_put("many", "outer", IMAGE_INDEX, outer.as_bytes()).await.expect(201);
    let response = registry.manifest_get("many", "outer").await.expect(200);
    assert_eq!(
        (response.body.as_ref(), response.header("content-type")),
        (outer.as_bytes(), Some(IMAGE_INDEX))
    );
    let empty = json!({"schemaVersion": 2, "mediaType": IMAGE_INDEX, "manifests": []}).to_string();
    registry.manifest_put("many", "empty", IMAGE_INDEX, empty.as_bytes()).await.expect(201);
}

#[tokio::test]
async fn many_pushers_of_the_same_and_of_different_bytes() {
    let server = Server::fresh().await;
    let registry = server.registry();
    let shared = random_bytes(11, 400_000);
    let tasks: Vec<_> = (0..24u64)
        .map(|i| {
            let (registry, shared) = (registry.clone(), shared.clone());
            tokio::spawn(async move {
                let image = Image::of(
                    format!("{{\"i\":{i}}}").into_bytes(),
                    vec![shared, random_bytes(i, 50_000)],
                    &json!({}),
                );
                let repository = format!("crowd/{}", i % 4);
                image.push(&registry, &repository, &format!("v{i}")).await;
                image.check(&registry, &repository, &format!("v{i}")).await;
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    // The shared bytes are stored once.
    let name = sha256(&shared).replace(':', "/");
    assert!(server.folder().data().join("blobs").join(name).is_file());
    server.lode().run(&["fsck", "--verify"]).await.expect_success();
}

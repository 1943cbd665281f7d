//! Visibility of blobs: a blob is visible only in repositories that a push or a mount linked it to. A known
//! digest gives no access. Deletion in one repository does not affect others.

use lode_tests::artifact::{Image, fresh_seed, random_bytes, sha256};
use lode_tests::oci::Registry;
use lode_tests::server::Server;

async fn mount(
    registry: &Registry,
    target: &str,
    digest: &str,
    from: Option<&str>,
) -> lode_tests::oci::Response {
    let from = from.map(|name| format!("&from={name}")).unwrap_or_default();
    registry
        .send(registry.request("POST", &format!("/v2/{target}/blobs/uploads/?mount={digest}{from}")))
        .await
}

#[tokio::test]
async fn a_digest_gives_no_access_in_other_repositories() {
    let server = Server::fresh().await;
    let registry = server.registry();
    let digest = registry.blob_push("owner", b"mine").await;
    Image::random(1, 1, 10).push(&registry, "other", "v1").await;
    for repository in ["other", "nobody"] {
        registry.blob_head(repository, &digest).await.expect(404);
        registry.blob_get(repository, &digest).await.expect(404);
    }
    registry.blob_get("other", &digest).await.expect_error(404, "BLOB_UNKNOWN");
    let image = Image::random(2, 1, 10);
    let manifest_digest = image.push(&registry, "owner", "v1").await;
    registry.manifest_get("other", &manifest_digest).await.expect_error(404, "MANIFEST_UNKNOWN");
    registry.blob_get("other", &manifest_digest).await.expect(404);
}

#[tokio::test]
async fn a_manifest_may_not_reach_into_another_repository() {
    let server = Server::fresh().await;
    let registry = server.registry();
    let image = Image::random(fresh_seed(), 1, 1000);
    image.push(&registry, "owner", "v1").await;
    let response =
        registry.manifest_put("thief", "v1", lode_tests::oci::IMAGE_MANIFEST, &image.manifest).await;
    assert!([400, 404].contains(&response.status), "{}", response.status);
    assert_eq!(response.code().as_deref(), Some("MANIFEST_BLOB_UNKNOWN"));
    let errors = response.json()["errors"].as_array().unwrap().len();
    assert_eq!(errors, 2, "expected one error per digest: {}", response.text());
    registry.manifest_get("thief", "v1").await.expect(404);
}

#[tokio::test]
async fn a_mount_links_and_outlives_its_source() {
    let server = Server::fresh().await;
    let registry = server.registry();
    let bytes = random_bytes(fresh_seed(), 100_000);
    let digest = registry.blob_push("source", &bytes).await;
    let response = mount(&registry, "target", &digest, Some("source")).await.expect(201);
    assert_eq!(response.header("docker-content-digest"), Some(digest.as_str()));
    assert!(registry.get(response.header("location").unwrap()).await.expect(200).body == bytes);
    // Without a source, the server searches all repositories that the caller may read.
    mount(&registry, "third", &digest, None).await.expect(201);
    // A failed mount becomes an upload, and the response does not reveal the reason.
    let absent = mount(&registry, "target", &sha256(b"nowhere"), Some("source")).await.expect(202);
    let elsewhere = mount(&registry, "fourth", &digest, Some("nobody")).await.expect(202);
    for response in [absent, elsewhere] {
        registry.get(response.header("location").unwrap()).await.expect(204);
    }
    registry.delete(&format!("/v2/source/blobs/{digest}")).await.expect(202);
    registry.blob_get("source", &digest).await.expect_error(404, "BLOB_UNKNOWN");
    for repository in ["target", "third"] {
        assert!(
            registry.blob_get(repository, &digest).await.expect(200).body == bytes,
            "{repository} has lost its link"
        );
    }
}

#[tokio::test]
async fn bytes_that_the_registry_has_are_linked_not_stored_again() {
    let server = Server::fresh().await;
    let registry = server.registry();
    let bytes = random_bytes(fresh_seed(), 500_000);
    for repository in ["one", "two", "three"] {
        registry.blob_push(repository, &bytes).await;
        assert!(registry.blob_get(repository, &sha256(&bytes)).await.expect(200).body == bytes);
    }
    let stored: u64 = lode_tests::checkpoint::read_folder(&server.folder().data().join("blobs"))
        .values()
        .map(|b| b.len() as u64)
        .sum();
    assert!(stored < 600_000, "{stored} bytes are stored for a blob of 500000 bytes");
}

#[tokio::test]
async fn a_blob_that_a_manifest_needs_stays() {
    let server = Server::fresh().await;
    let registry = server.registry();
    let image = Image::random(fresh_seed(), 1, 1000);
    let digest = image.push(&registry, "kept", "v1").await;
    let layer = sha256(&image.layers[0]);
    registry.delete(&format!("/v2/kept/blobs/{layer}")).await.expect(405);
    image.check(&registry, "kept", "v1").await;
    registry.delete(&format!("/v2/kept/manifests/{digest}")).await.expect(202);
    registry.delete(&format!("/v2/kept/blobs/{layer}")).await.expect(202);
    registry.blob_head("kept", &layer).await.expect(404);
}

#[tokio::test]
async fn ollama_clients_get_202_for_a_mount() {
    let server = Server::fresh().await;
    let registry = server.registry();
    let digest = registry.blob_push("library/a", b"shared").await;
    let path = format!("/v2/library/b/blobs/uploads/?mount={digest}&from=library/a");
    let response = registry
        .send(registry.request("POST", &path).header("user-agent", "ollama/0.33.0 (amd64 linux) Go/go1.26"))
        .await;
    assert_eq!(response.status, 202, "a 201 makes that client skip a later upload elsewhere");
}

//! Referrers of a manifest: before the manifest exists and after it is deleted, with filters, and with the
//! headers. Without referrers the response is an empty list, because 404 would mean that the API does not
//! exist.

use lode_tests::artifact::{Image, fresh_seed, referrer, sha256};
use lode_tests::oci::{IMAGE_INDEX, IMAGE_MANIFEST};
use lode_tests::server::Server;
use serde_json::{Value, json};

fn subject_of(image: &Image) -> Value {
    json!({"mediaType": IMAGE_MANIFEST, "digest": image.digest(), "size": image.manifest.len()})
}

#[tokio::test]
async fn referrers_are_listed_with_their_metadata() {
    let server = Server::fresh().await;
    let registry = server.registry();
    let subject = Image::random(fresh_seed(), 1, 100);
    let digest = subject.digest();
    // The subject does not exist yet.
    let sbom = referrer(
        &subject_of(&subject),
        Some("application/vnd.example.sbom+json"),
        &json!({"note": "first", "x": "y"}),
    );
    registry.blob_push("refs", b"{}").await;
    let response =
        registry.manifest_put("refs", &sbom.digest(), IMAGE_MANIFEST, &sbom.manifest).await.expect(201);
    assert_eq!(response.header("oci-subject"), Some(digest.as_str()));
    subject.push(&registry, "refs", "v1").await;
    let typed_by_config = referrer(&subject_of(&subject), None, &json!({}));
    typed_by_config.push(&registry, "refs", "sig").await;
    let index = json!({"schemaVersion": 2, "mediaType": IMAGE_INDEX, "manifests": [], "subject": subject_of(&subject)}).to_string();
    let response = registry
        .manifest_put("refs", &sha256(index.as_bytes()), IMAGE_INDEX, index.as_bytes())
        .await
        .expect(201);
    assert_eq!(response.header("oci-subject"), Some(digest.as_str()));

    let path = format!("/v2/refs/referrers/{digest}");
    let response = registry.get(&path).await.expect(200);
    assert_eq!(response.header("content-type"), Some(IMAGE_INDEX));
    let list = response.json();
    assert_eq!((list["schemaVersion"].as_u64(), list["mediaType"].as_str()), (Some(2), Some(IMAGE_INDEX)));
    let found =
        |d: &str| list["manifests"].as_array().unwrap().iter().find(|m| m["digest"] == d).cloned().unwrap();
    assert_eq!(list["manifests"].as_array().unwrap().len(), 3);
    let entry = found(&sbom.digest());
    assert_eq!(entry["artifactType"], "application/vnd.example.sbom+json");
    assert_eq!(entry["annotations"], json!({"note": "first", "x": "y"}));
    assert_eq!(
        (entry["size"].as_u64(), entry["mediaType"].as_str()),
        (Some(sbom.manifest.len() as u64), Some(IMAGE_MANIFEST))
    );
    assert_eq!(found(&typed_by_config.digest())["artifactType"], "application/vnd.oci.image.config.v1+json");
    assert!(found(&sha256(index.as_bytes())).get("artifactType").is_none());

    let response =
        registry.get(&format!("{path}?artifactType=application%2Fvnd.example.sbom%2Bjson")).await.expect(200);
    assert_eq!(response.header("oci-filters-applied"), Some("artifactType"));
    let digests: Vec<Value> =
        response.json()["manifests"].as_array().unwrap().iter().map(|m| m["digest"].clone()).collect();
    assert_eq!(digests, [json!(sbom.digest())]);

    // A deleted referrer is no longer listed. Deleting the subject keeps its referrers.
    registry.delete(&format!("/v2/refs/manifests/{}", typed_by_config.digest())).await.expect(202);
    registry.delete(&format!("/v2/refs/manifests/{digest}")).await.expect(202);
    assert_eq!(registry.get(&path).await.expect(200).json()["manifests"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn unknown_digests_have_no_referrers() {
    let server = Server::fresh().await;
    let registry = server.registry();
    for repository in ["never/pushed", "refs"] {
        let response =
            registry.get(&format!("/v2/{repository}/referrers/{}", sha256(b"unknown"))).await.expect(200);
        assert_eq!(response.json()["manifests"], json!([]));
    }
    registry.get("/v2/refs/referrers/sha256:bad").await.expect_error(400, "DIGEST_INVALID");
    // A referrer is listed in its own repository only.
    let subject = Image::random(fresh_seed(), 1, 100);
    referrer(&subject_of(&subject), Some("application/x"), &json!({})).push(&registry, "here", "r").await;
    let response = registry.get(&format!("/v2/there/referrers/{}", subject.digest())).await.expect(200);
    assert_eq!(response.json()["manifests"], json!([]));
}

#[tokio::test]
async fn a_long_list_comes_in_pages() {
    let server = Server::fresh().await;
    let registry = server.registry();
    let subject = Image::random(fresh_seed(), 1, 100);
    registry.blob_push("long", b"{}").await;
    let mut pushed = Vec::new();
    let filler = "x".repeat(30_000);
    for i in 0..250 {
        let one = referrer(
            &subject_of(&subject),
            Some("application/vnd.many"),
            &json!({"i": i.to_string(), "filler": filler}),
        );
        registry.manifest_put("long", &one.digest(), IMAGE_MANIFEST, &one.manifest).await.expect(201);
        pushed.push(one.digest());
    }
    let mut seen = Vec::new();
    let mut next =
        Some(format!("/v2/long/referrers/{}?artifactType=application%2Fvnd.many", subject.digest()));
    while let Some(path) = next {
        let response = registry.get(&path).await.expect(200);
        assert!(
            response.body.len() < 4 << 20,
            "the response is larger than clients accept: {}",
            response.body.len()
        );
        assert_eq!(
            response.header("oci-filters-applied"),
            Some("artifactType"),
            "the filter was not applied to {path}"
        );
        seen.extend(
            response.json()["manifests"]
                .as_array()
                .unwrap()
                .iter()
                .map(|m| m["digest"].as_str().unwrap().to_owned()),
        );
        next =
            response.header("link").map(|l| l.trim_start_matches('<').split_once('>').unwrap().0.to_owned());
    }
    pushed.sort();
    seen.sort();
    assert_eq!(seen, pushed, "the pages do not list every referrer once");
}

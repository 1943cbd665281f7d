//! Pushes of uploads and manifests: the responses that clients rely on, and cases that the conformance
//! program does not check.

use http::Request;
use lode_model::digest::{Algorithm, Digest};
use lode_model::media_type;
use serde_json::json;

use super::{App, failure, image};

#[tokio::test]
async fn chunk_responses_report_the_offset() {
    let app = App::new().await;
    let location = app.upload("a/b").await;
    assert!(location.starts_with("/v2/a/b/blobs/uploads/"), "{location}");

    let patch = |range: &str, body: &'static str| {
        app.send(
            Request::patch(&location).header("content-range", range).header("content-length", body.len()),
            body,
        )
    };
    let first = patch("0-4", "hello").await;
    assert_eq!(
        (first.status.as_u16(), first.header("range"), first.header("location")),
        (202, "0-4", &location[..])
    );
    assert!(first.headers.contains_key("docker-upload-uuid"));

    for (range, body) in
        [("6-9", "gaps"), ("0-4", "hello"), ("2-5", "over"), ("9-5", "back"), ("5-99", "short")]
    {
        let refused = patch(range, body).await;
        assert_eq!(refused.status, 416, "{range}");
        assert_eq!((refused.header("range"), refused.header("location")), ("0-4", &location[..]), "{range}");
        assert!(!refused.code().is_empty());
    }
    assert_eq!(patch("bytes 5-9/10", "world").await.failure(), failure(400, "BLOB_UPLOAD_INVALID"));

    let status = app.get(&location).await;
    assert_eq!(
        (status.status.as_u16(), status.header("range"), status.header("location")),
        (204, "0-4", &location[..])
    );

    let digest = Digest::sha256(b"hello world");
    let late = Request::put(format!("{location}?digest={digest}")).header("content-range", "7-10");
    assert_eq!(app.send(late, "orld").await.status, 416);
    let last = Request::put(format!("{location}?digest={digest}")).header("content-range", "5-10");
    let done = app.send(last, " world").await;
    assert_eq!((done.status.as_u16(), done.header("docker-content-digest")), (201, digest.as_str()));
    assert_eq!(app.get(done.header("location")).await.body, "hello world");
    assert_eq!(app.get(&location).await.failure(), failure(404, "BLOB_UPLOAD_UNKNOWN"));
}

#[tokio::test]
async fn an_empty_upload_has_range_0_0() {
    let app = App::new().await;
    let location = app.upload("a").await;
    let status = app.get(&location).await;
    assert_eq!((status.status.as_u16(), status.header("range")), (204, "0-0"));
    let empty = Digest::sha256(b"");
    assert_eq!(app.send(Request::put(format!("{location}?digest={empty}")), "").await.status, 201);
    let blob = app.get(&format!("/v2/a/blobs/{empty}")).await;
    assert_eq!((blob.status.as_u16(), blob.header("content-length")), (200, "0"));
}

#[tokio::test]
async fn a_cancelled_upload_returns_404() {
    let app = App::new().await;
    let location = app.upload("a").await;
    assert_eq!(app.send(Request::patch(&location), "bytes").await.status, 202);
    assert_eq!(app.delete(&location).await.status, 204);
    for request in [Request::get(&location), Request::patch(&location), Request::delete(&location)] {
        assert_eq!(app.send(request, "").await.failure(), failure(404, "BLOB_UPLOAD_UNKNOWN"));
    }
    let digest = Digest::sha256(b"bytes");
    let put = app.send(Request::put(format!("{location}?digest={digest}")), "").await;
    assert_eq!(put.failure(), failure(404, "BLOB_UPLOAD_UNKNOWN"));
    assert_eq!(app.get(&format!("/v2/a/blobs/{digest}")).await.status, 404);
}

#[tokio::test]
async fn wrong_bytes_never_show() {
    let app = App::new().await;
    let digest = Digest::sha256(b"right");
    let single = app.send(Request::post(format!("/v2/a/blobs/uploads/?digest={digest}")), "wrong").await;
    assert_eq!(single.failure(), failure(400, "DIGEST_INVALID"));
    let location = app.upload("a").await;
    let closing = app.send(Request::put(format!("{location}?digest={digest}")), "wrong").await;
    assert_eq!(closing.failure(), failure(400, "DIGEST_INVALID"));
    assert_eq!(closing.json()["errors"][0]["detail"]["expected"], digest.as_str());
    assert_eq!(app.get(&format!("/v2/a/blobs/{digest}")).await.failure(), failure(404, "BLOB_UNKNOWN"));
}

#[tokio::test]
async fn both_digest_algorithms_are_accepted() {
    let app = App::new().await;
    for query in ["", "?digest-algorithm=sha512", "?digest-algorithm=sha256"] {
        for algorithm in [Algorithm::Sha256, Algorithm::Sha512] {
            let digest = Digest::of(algorithm, query.as_bytes());
            let opened = app.send(Request::post(format!("/v2/a/blobs/uploads/{query}")), "").await;
            let location = opened.header("location").to_owned();
            let done = app.send(Request::put(format!("{location}?digest={digest}")), query).await;
            assert_eq!((done.status.as_u16(), done.header("docker-content-digest")), (201, digest.as_str()));
        }
    }
    let unknown = app.send(Request::post("/v2/a/blobs/uploads/?digest-algorithm=md5"), "").await;
    assert_eq!(unknown.failure(), failure(400, "DIGEST_INVALID"));
}

#[tokio::test]
async fn mounts_link_and_survive_their_source() {
    let app = App::new().await;
    let digest = app.push_blob("from/here", "content").await;
    let mount = |query: &str| {
        app.send(Request::post(format!("/v2/to/there/blobs/uploads/?mount={digest}{query}")), "")
    };

    let mounted = mount("&from=from/here").await;
    assert_eq!((mounted.status.as_u16(), mounted.header("docker-content-digest")), (201, digest.as_str()));
    let address = format!("/v2/to/there/blobs/{digest}");
    assert_eq!(mounted.header("location"), address);
    assert_eq!(app.delete(&format!("/v2/from/here/blobs/{digest}")).await.status, 202);
    assert_eq!(
        app.get(&format!("/v2/from/here/blobs/{digest}")).await.failure(),
        failure(404, "BLOB_UNKNOWN")
    );
    assert_eq!(app.get(&address).await.body, "content");

    for query in ["&from=nobody/home", "&from=NOT%20A%20NAME"] {
        let missed = app.send(Request::post(format!("/v2/x/blobs/uploads/?mount={digest}{query}")), "").await;
        assert_eq!(missed.status, 202, "{query}");
        assert_eq!(app.get(missed.header("location")).await.status, 204);
    }
    let anonymous = app.send(Request::post(format!("/v2/y/blobs/uploads/?mount={digest}")), "").await;
    assert_eq!(anonymous.status, 201);
}

#[tokio::test]
async fn sizes_are_known_as_long_as_a_blob_can_be_mounted() {
    let app = App::new().await;
    let known =
        async |size: &str| app.get(&format!("/lode/v1/blobs?size={size}")).await.json()["known"] == true;
    assert!(!known("11").await);
    let digest = app.push_blob("a/b", "hello world").await;
    assert!(known("11").await);
    assert!(!known("12").await);
    assert!(!known("18446744073709551615").await);
    assert_eq!(app.delete(&format!("/v2/a/b/blobs/{digest}")).await.status, 202);
    assert!(!known("11").await);
    for query in ["", "?size=", "?size=-1", "?size=x"] {
        assert_eq!(app.get(&format!("/lode/v1/blobs{query}")).await.status, 400, "{query}");
    }
}

#[tokio::test]
async fn two_writers_do_not_interleave() {
    let app = App::new().await;
    let location = app.upload("a").await;
    let chunk = |byte: char| {
        let body = byte.to_string().repeat(100_000);
        app.send(Request::patch(&location).header("content-range", "0-99999"), body)
    };
    let (one, two) = tokio::join!(chunk('1'), chunk('2'));
    let mut statuses = [one.status.as_u16(), two.status.as_u16()];
    statuses.sort_unstable();
    assert_eq!(statuses, [202, 416]);
    let winner = if one.status == 202 { "1" } else { "2" }.repeat(100_000);
    let digest = Digest::sha256(winner.as_bytes());
    assert_eq!(app.send(Request::put(format!("{location}?digest={digest}")), "").await.status, 201);
}

#[tokio::test]
async fn a_manifest_names_what_is_missing() {
    let app = App::new().await;
    let config = app.push_blob("a", "{}").await;
    let (one, two) = (Digest::sha256(b"one"), Digest::sha256(b"two"));
    let layer =
        |digest: &Digest| json!({"mediaType": media_type::OCI_LAYER_TAR, "digest": digest, "size": 3});
    let manifest = image(&config, 2, &[layer(&one), layer(&two)]);
    let refused = app.push_manifest("a", "latest", &manifest).await;
    assert_eq!(refused.failure(), failure(400, "MANIFEST_BLOB_UNKNOWN"));
    let errors = refused.json()["errors"].as_array().unwrap().clone();
    let named: Vec<_> = errors.iter().map(|error| error["detail"]["digest"].as_str().unwrap()).collect();
    assert_eq!(named.len(), 2);
    assert!(named.contains(&one.as_str()) && named.contains(&two.as_str()));
    assert_eq!(app.get("/v2/a/manifests/latest").await.status, 404);
}

#[tokio::test]
async fn descriptors_have_the_size_of_their_content() {
    let sparse = App::with(crate::Config { allow_sparse: true, ..Default::default() }).await;
    for app in [App::new().await, sparse] {
        let config = app.push_blob("a", "{}").await;
        let layer = app.push_blob("a", "content").await;
        let described =
            |size: u64| json!({"mediaType": media_type::OCI_LAYER_TAR, "digest": layer, "size": size});
        for manifest in [
            image(&config, 3, &[]),
            image(&config, 2, &[described(6)]),
            image(&config, 2, &[described(7), described(8)]),
        ] {
            let refused = app.push_manifest("a", "latest", &manifest).await;
            assert_eq!(refused.failure(), failure(400, "MANIFEST_INVALID"), "{manifest}");
            assert!(refused.json()["errors"][0]["detail"]["expected"].is_u64(), "{}", refused.text());
        }
        let whole = image(&config, 2, &[described(7)]);
        let child = app.push_manifest("a", "latest", &whole).await;
        assert_eq!(child.status, 201, "{}", child.text());
        let digest = child.header("docker-content-digest");
        for (size, status) in [(1, 400), (whole.to_string().len(), 201)] {
            let entry = json!({"mediaType": media_type::OCI_MANIFEST, "digest": digest, "size": size});
            let index = json!({"schemaVersion": 2, "mediaType": media_type::OCI_INDEX, "manifests": [entry]});
            assert_eq!(app.push_manifest("a", "all", &index).await.status, status);
        }
    }
    // An absent blob has no size to compare with.
    let sparse = App::with(crate::Config { allow_sparse: true, ..Default::default() }).await;
    let config = sparse.push_blob("a", "{}").await;
    let absent =
        json!({"mediaType": media_type::OCI_LAYER_TAR, "digest": Digest::sha256(b"absent"), "size": 1});
    assert_eq!(sparse.push_manifest("a", "latest", &image(&config, 2, &[absent])).await.status, 201);
}

#[tokio::test]
async fn tags_come_along_with_a_digest() {
    let app = App::new().await;
    let config = app.push_blob("a", "{}").await;
    let manifest = image(&config, 2, &[]);
    let digest = Digest::of(Algorithm::Sha512, manifest.to_string().as_bytes());
    let pushed = app.push_manifest("a", &format!("{digest}?tag=one&tag=two"), &manifest).await;
    assert_eq!((pushed.status.as_u16(), pushed.header("docker-content-digest")), (201, digest.as_str()));
    let tags: Vec<_> = pushed.headers.get_all("oci-tag").iter().map(|tag| tag.to_str().unwrap()).collect();
    assert_eq!(tags, ["one", "two"]);
    assert_eq!(app.get("/v2/a/manifests/two").await.header("docker-content-digest"), digest.as_str());

    let many: String = (0..101).map(|n| format!("&tag=t{n}")).collect();
    assert_eq!(app.push_manifest("a", &format!("{digest}?{many}"), &manifest).await.status, 414);
    assert_eq!(
        app.push_manifest("a", "tagged?tag=other", &manifest).await.failure(),
        failure(400, "UNSUPPORTED")
    );
}

#[tokio::test]
async fn subjects_are_echoed_and_listed() {
    let app = App::new().await;
    let config = app.push_blob("a", "{}").await;
    let subject = Digest::sha256(b"to come");
    let mut manifest = image(&config, 2, &[]);
    manifest["artifactType"] = json!("application/vnd.example+json");
    manifest["annotations"] = json!({"key": "value"});
    manifest["subject"] = json!({"mediaType": media_type::OCI_MANIFEST, "digest": subject, "size": 7});
    let pushed = app.push_manifest("a", "signature", &manifest).await;
    assert_eq!((pushed.status.as_u16(), pushed.header("oci-subject")), (201, subject.as_str()));

    let path = format!("/v2/a/referrers/{subject}");
    let listed = app.get(&path).await;
    assert_eq!(listed.header("content-type"), media_type::OCI_INDEX);
    assert!(!listed.headers.contains_key("oci-filters-applied"));
    let entry = &listed.json()["manifests"][0];
    assert_eq!(entry["artifactType"], "application/vnd.example+json");
    assert_eq!(entry["annotations"]["key"], "value");
    assert_eq!(entry["size"], manifest.to_string().len());

    for (filter, count) in [("application%2Fvnd.example%2Bjson", 1), ("application/vnd.other", 0)] {
        let filtered = app.get(&format!("{path}?artifactType={filter}")).await;
        assert_eq!(filtered.header("oci-filters-applied"), "artifactType");
        assert_eq!(filtered.json()["manifests"].as_array().unwrap().len(), count, "{filter}");
    }
    app.delete(&format!("/v2/a/manifests/{}", pushed.header("docker-content-digest"))).await;
    assert_eq!(app.get(&path).await.json()["manifests"], json!([]));
    assert_eq!(
        app.get("/v2/nobody/referrers/sha256:nonsense").await.failure(),
        failure(400, "DIGEST_INVALID")
    );
    assert_eq!(app.get(&format!("/v2/nobody/referrers/{subject}")).await.json()["manifests"], json!([]));
}

#[tokio::test]
async fn referrers_come_in_pages() {
    let app = App::new().await;
    let config = app.push_blob("a", "{}").await;
    let subject = Digest::sha256(b"subject");
    for n in 0..5 {
        let mut manifest = image(&config, 2, &[]);
        manifest["artifactType"] = json!("a/b+c");
        manifest["annotations"] = json!({"n": n.to_string()});
        manifest["subject"] = json!({"mediaType": media_type::OCI_MANIFEST, "digest": subject, "size": 7});
        app.push_manifest("a", &format!("t{n}"), &manifest).await;
    }
    let mut next = Some(format!("/v2/a/referrers/{subject}?n=2&artifactType=a%2Fb%2Bc"));
    let mut seen = Vec::new();
    while let Some(path) = next {
        let page = app.get(&path).await;
        assert_eq!(page.header("oci-filters-applied"), "artifactType");
        seen.extend(
            page.json()["manifests"].as_array().unwrap().iter().map(|entry| entry["digest"].to_string()),
        );
        next = page.headers.get("link").map(|link| {
            let link = link.to_str().unwrap();
            link[1..link.find('>').unwrap()].to_owned()
        });
    }
    seen.dedup();
    assert_eq!(seen.len(), 5);
}

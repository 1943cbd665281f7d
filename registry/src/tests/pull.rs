//! Reads: exact bytes, ranges, conditions, and the headers that clients rely on.

use http::Request;
use lode_model::media_type;

use super::App;

#[tokio::test]
async fn blobs_in_parts() {
    let app = App::new().await;
    let digest = app.push_blob("a/b", "0123456789").await;
    let path = format!("/v2/a/b/blobs/{digest}");
    let cases = [
        ("bytes=2-4", 206, "234", "bytes 2-4/10"),
        ("bytes=7-", 206, "789", "bytes 7-9/10"),
        ("bytes=-2", 206, "89", "bytes 8-9/10"),
        ("bytes=8-100", 206, "89", "bytes 8-9/10"),
        ("bytes=10-", 416, "", "bytes */10"),
        ("bytes=5-0", 416, "", "bytes */10"),
        ("bytes=0-1,2-5", 206, "012345", "bytes 0-5/10"),
        ("lines=0-1", 200, "0123456789", ""),
        ("nonsense", 200, "0123456789", ""),
    ];
    for (range, status, body, described) in cases {
        let response = app.send(Request::get(&path).header("range", range), "").await;
        assert_eq!(response.status, status, "{range}");
        assert_eq!(
            response.headers.get("content-range").map_or("", |value| value.to_str().unwrap()),
            described,
            "{range}"
        );
        if status != 416 {
            assert_eq!(response.body, body, "{range}");
            assert_eq!(response.header("content-length"), body.len().to_string(), "{range}");
            assert_eq!(response.header("docker-content-digest"), digest.as_str());
            assert_eq!(response.header("accept-ranges"), "bytes");
        }
    }
    let other = Request::get(&path).header("range", "bytes=2-4").header("if-range", "\"sha256:other\"");
    assert_eq!(app.send(other, "").await.status, 200);
}

#[tokio::test]
async fn head_headers_match_get() {
    let app = App::new().await;
    let digest = app.push_image("a", "latest", "layer").await;
    let manifest = app.get("/v2/a/manifests/latest").await;
    let layer = manifest.json()["layers"][0]["digest"].as_str().unwrap().to_owned();
    for path in [
        format!("/v2/a/manifests/{digest}"),
        "/v2/a/manifests/latest".to_owned(),
        format!("/v2/a/blobs/{layer}"),
    ] {
        let (get, head) = (app.get(&path).await, app.send(Request::head(&path), "").await);
        assert_eq!((get.status, head.status), (http::StatusCode::OK, http::StatusCode::OK));
        assert_eq!(head.header("content-length"), get.body.len().to_string());
        assert!(head.body.is_empty());
        for header in ["content-type", "docker-content-digest", "etag", "docker-distribution-api-version"] {
            assert_eq!(head.header(header), get.header(header), "{path} {header}");
        }
    }
    assert_eq!(manifest.header("content-type"), media_type::OCI_MANIFEST);
    assert_eq!(app.send(Request::head("/v2/a/manifests/none"), "").await.status, 404);
}

#[tokio::test]
async fn digests_may_be_escaped_and_namespaces_named() {
    let app = App::new().await;
    let digest = app.push_blob("team/blobs/uploads", "x").await;
    let escaped = digest.as_str().replace(':', "%3A");
    for path in [
        format!("/v2/team/blobs/uploads/blobs/{escaped}"),
        format!("/v2/team%2Fblobs%2Fuploads/blobs/{digest}"),
        format!("/v2/team/blobs/uploads/blobs/{digest}?ns=docker.io"),
        format!("http://localhost:5000/v2/team/blobs/uploads/blobs/{digest}"),
    ] {
        assert_eq!(app.get(&path).await.body, "x", "{path}");
    }
}

#[tokio::test]
async fn a_blob_shows_only_where_it_is_linked() {
    let app = App::new().await;
    let digest = app.push_blob("mine", "secret").await;
    for path in [format!("/v2/yours/blobs/{digest}"), format!("/v2/mine/sub/blobs/{digest}")] {
        assert_eq!(app.get(&path).await.status, 404);
        assert_eq!(app.send(Request::head(&path), "").await.status, 404);
    }
}

#[tokio::test]
async fn accept_changes_nothing() {
    let app = App::new().await;
    app.push_image("a", "latest", "x").await;
    let picky = Request::get("/v2/a/manifests/latest").header("accept", media_type::DOCKER_MANIFEST);
    let response = app.send(picky, "").await;
    assert_eq!((response.status.as_u16(), response.header("content-type")), (200, media_type::OCI_MANIFEST));
}

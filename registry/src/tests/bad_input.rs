//! Bad input: each row is a request and the expected failure. None of them may cause a 5xx.

use http::{Method, Request};
use lode_model::manifest::MAX_MANIFEST_BYTES;
use lode_model::media_type;
use serde_json::json;

use super::{App, failure};

const ZERO: &str = "sha256:0000000000000000000000000000000000000000000000000000000000000000";

#[tokio::test]
async fn distribution() {
    let app = App::new().await;
    app.push_image("a", "latest", "x").await;
    let long = "a/".repeat(200) + "a";
    let cases = [
        ("GET", "/v2/UPPER/manifests/latest".to_owned(), 400, "NAME_INVALID"),
        ("GET", "/v2/a..b/manifests/latest".to_owned(), 400, "NAME_INVALID"),
        ("GET", format!("/v2/{long}/tags/list"), 400, "NAME_INVALID"),
        ("GET", "/v2/a%ff/tags/list".to_owned(), 400, "NAME_INVALID"),
        ("GET", "/v2/a//b/tags/list".to_owned(), 400, "NAME_INVALID"),
        ("GET", "/v2/../a/tags/list".to_owned(), 400, "NAME_INVALID"),
        ("GET", "/v2/a/manifests/.hidden".to_owned(), 400, "MANIFEST_INVALID"),
        ("GET", "/v2/a/manifests/sha256:short".to_owned(), 400, "DIGEST_INVALID"),
        ("GET", format!("/v2/a/manifests/{}", ZERO.replace('0', "A")), 400, "DIGEST_INVALID"),
        ("GET", "/v2/a/blobs/latest".to_owned(), 400, "DIGEST_INVALID"),
        ("GET", "/v2/a/blobs/md5:0123".to_owned(), 400, "DIGEST_INVALID"),
        ("GET", format!("/v2/a/blobs/{ZERO}"), 404, "BLOB_UNKNOWN"),
        ("GET", format!("/v2/a/manifests/{ZERO}"), 404, "MANIFEST_UNKNOWN"),
        ("GET", format!("/v2/b/manifests/{ZERO}"), 404, "NAME_UNKNOWN"),
        ("GET", "/v2/a/blobs/uploads/not-an-id".to_owned(), 404, "BLOB_UPLOAD_UNKNOWN"),
        (
            "GET",
            "/v2/a/blobs/uploads/00000000-0000-0000-0000-000000000000".to_owned(),
            404,
            "BLOB_UPLOAD_UNKNOWN",
        ),
        ("PUT", "/v2/a/blobs/uploads/00000000-0000-0000-0000-000000000000".to_owned(), 400, "DIGEST_INVALID"),
        ("POST", "/v2/a/blobs/uploads/?digest=nonsense".to_owned(), 400, "DIGEST_INVALID"),
        ("POST", "/v2/a/blobs/uploads/?mount=nonsense&from=b".to_owned(), 400, "DIGEST_INVALID"),
        ("POST", format!("/v2/UPPER/blobs/uploads/?digest={ZERO}"), 400, "NAME_INVALID"),
        ("GET", "/v2/a/referrers/nonsense".to_owned(), 400, "DIGEST_INVALID"),
        ("GET", "/v2/a/unheard-of".to_owned(), 404, "UNSUPPORTED"),
        ("POST", "/v2/a/manifests/latest".to_owned(), 405, "UNSUPPORTED"),
        ("PATCH", "/v2/".to_owned(), 405, "UNSUPPORTED"),
    ];
    for (method, path, status, code) in cases {
        let request = Request::builder().method(Method::from_bytes(method.as_bytes()).unwrap()).uri(&path);
        let response = app.send(request, "").await;
        assert_eq!(response.failure(), failure(status, code), "{method} {path}");
        assert_eq!(response.header("content-type"), "application/json", "{path}");
        assert!(!response.json()["errors"][0]["message"].as_str().unwrap().is_empty());
    }
}

#[tokio::test]
async fn ambiguous_hosts_are_refused() {
    let app = App::new().await;
    let cases: [(&str, &[&str], u16); 9] = [
        ("/v2/", &["localhost:5000"], 200),
        ("/v2/", &["[::1]:5000"], 200),
        ("/v2/", &["localhost", "localhost"], 400),
        ("/healthz", &["localhost", "example.com"], 400),
        ("/healthz", &["user@localhost"], 400),
        ("/healthz", &["example.com@localhost:5000"], 400),
        ("/healthz", &["local host"], 400),
        ("/healthz", &["localhost, localhost"], 400),
        ("http://user@localhost:5000/healthz", &["localhost:5000"], 400),
    ];
    for (uri, hosts, status) in cases {
        let request = hosts.iter().fold(Request::get(uri), |request, host| request.header("host", *host));
        let response = app.send(request, "").await;
        assert_eq!(response.status, status, "{uri} {hosts:?}");
        assert!(status == 200 || response.text().contains("invalid Host header"), "{}", response.text());
    }
}

#[tokio::test]
async fn manifests() {
    let app = App::new().await;
    let oci = media_type::OCI_MANIFEST;
    let big = format!("{{\"schemaVersion\":2,\"x\":\"{}\"}}", "y".repeat(MAX_MANIFEST_BYTES));
    let other = json!({"schemaVersion": 2, "mediaType": media_type::DOCKER_MANIFEST}).to_string();
    let cases = [
        ("latest", oci, "not JSON".to_owned(), 400, "MANIFEST_INVALID"),
        ("latest", oci, String::new(), 400, "MANIFEST_INVALID"),
        ("latest", oci, "[]".to_owned(), 400, "MANIFEST_INVALID"),
        ("latest", oci, "{}".to_owned(), 400, "MANIFEST_INVALID"),
        ("latest", oci, other, 400, "MANIFEST_INVALID"),
        ("latest", "text/plain", "{\"schemaVersion\":2}".to_owned(), 400, "MANIFEST_INVALID"),
        ("latest", oci, big, 413, "SIZE_INVALID"),
        ("bad tag", oci, "{}".to_owned(), 400, "MANIFEST_INVALID"),
        ("latest", oci, "[".repeat(100_000), 400, "MANIFEST_INVALID"),
    ];
    for (reference, kind, body, status, code) in cases {
        let path = format!("/v2/a/manifests/{}", reference.replace(' ', "%20"));
        let shown: String = body.chars().take(40).collect();
        let response = app.send(Request::put(path).header("content-type", kind), body).await;
        assert_eq!(response.failure(), failure(status, code), "{shown}");
    }
    let config = app.push_blob("a", "{}").await;
    let mismatched = app.push_manifest("a", ZERO, &super::image(&config, 2, &[])).await;
    assert_eq!(mismatched.failure(), failure(400, "DIGEST_INVALID"));
}

#[tokio::test]
async fn our_own_apis() {
    let app = App::new().await;
    let cases = [
        ("/api/show", "", 400, "missing request body"),
        ("/api/show", "{", 400, ""),
        ("/api/show", "{}", 400, "model is required"),
        ("/api/show", r#"{"model":"a/b/c"}"#, 400, ""),
        ("/api/show", r#"{"model":"no such"}"#, 400, ""),
        ("/api/show", r#"{"model":"nobody"}"#, 404, "model 'nobody' not found"),
        ("/api/copy", r#"{"source":"nobody","destination":"b"}"#, 404, "model 'nobody' not found"),
        ("/api/generate", r#"{"prompt":"x"}"#, 400, "model is required"),
        ("/api/generate", r#"{"model":7}"#, 400, ""),
        ("/api/generate", r#"{"model":"nobody"}"#, 404, "model 'nobody' not found"),
        ("/api/embeddings", r#"{"model":"nobody"}"#, 404, "model 'nobody' not found"),
        ("/lode/v1/generate", r#"{"model":"a/b/c/d"}"#, 404, "model 'a/b/c/d' not found"),
        ("/lode/v1/generate", r#"{"model":"host:1/a"}"#, 400, ""),
        ("/lode/v1/workers", r#"{"advertise":"nonsense"}"#, 400, ""),
        ("/lode/v1/workers", r#"{"advertise":"file:///etc"}"#, 400, "advertise must be an http or https URL"),
        ("/lode/v1/gc", r#"{"dry":true}"#, 400, ""),
    ];
    for (path, body, status, text) in cases {
        let response = app.send(Request::post(path), body).await;
        assert_eq!(response.status, status, "{path} {body}: {}", response.text());
        let error = response.json()["error"].as_str().unwrap().to_owned();
        assert!(error == text || text.is_empty() && !error.is_empty(), "{path} {body}: {error}");
    }
    let openai = app.get("/v1/models/nobody").await;
    assert_eq!(openai.json()["error"]["type"], "not_found_error");
    assert_eq!(app.get("/api/nothing").await.json()["error"], "no route matches this path");
    // A path that may be a repository's page.
    let page = "there is no such page here, or you may not see it";
    assert_eq!(app.get("/nothing/here").await.json()["error"], page);
    // A browser gets a page, except from an API.
    let browse = async |path| app.send(Request::get(path).header("accept", "text/html,*/*;q=0.8"), "").await;
    let page = browse("/nothing/here").await;
    assert_eq!((page.status.as_u16(), page.header("content-type")), (404, "text/html; charset=utf-8"));
    assert!(page.text().contains("no such page") && page.text().contains("href=\"/\""));
    assert_eq!(browse("/api/nothing").await.json()["error"], "no route matches this path");
}

/// The page about a tag that does not exist leads to those that do.
#[tokio::test]
async fn pages_of_missing_tags_name_others() {
    let app = App::new().await;
    app.push_image("team/app", "v1", "one").await;
    app.push_image("team/app", "v2", "two").await;
    let browse = async |path: &str| app.send(Request::get(path).header("accept", "text/html"), "").await;
    for path in ["/team/app?tag=nope", "/team/app/-/tree/nope", "/team/app/-/try?ref=nope"] {
        let page = browse(path).await;
        assert_eq!((page.status.as_u16(), page.header("content-type")), (404, "text/html; charset=utf-8"));
        assert!(page.text().contains("repository `team/app` has no tag `nope`"), "{path}: {}", page.text());
        for link in ["/team/app?tag=v1", "/team/app?tag=v2", "/team/app/-/tags"] {
            assert!(page.text().contains(&format!("href=\"{link}\"")), "{path}: {link}");
        }
    }
    let other = ZERO;
    let page = browse(&format!("/team/app?tag={other}")).await;
    assert!(page.text().contains(&format!("repository `team/app` has no manifest `{other}`")));
    assert!(browse("/team/none?tag=v1").await.text().contains("no such page"));
}

#[tokio::test]
async fn pages_of_other_sites() {
    let app = App::new().await;
    for (header, value) in
        [("host", "evil.example:5000"), ("origin", "https://evil.example"), ("origin", "null")]
    {
        for path in ["/v2/", "/api/tags", "/", "/healthz"] {
            let response = app.send(Request::get(path).header(header, value), "").await;
            assert_eq!(response.status, 403, "{header} {value} {path}");
        }
    }
    let refused = app.send(Request::get("/v2/").header("host", "evil.example"), "").await;
    assert_eq!(refused.failure(), failure(403, "DENIED"));
    let local =
        Request::get("/v2/").header("host", "localhost:5000").header("origin", "http://localhost:3000");
    assert_eq!(app.send(local, "").await.status, 200);
}

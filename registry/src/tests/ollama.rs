//! The dialect of ollama's two registry clients, as their requests are on the wire.

use http::Request;
use http::request::Builder;
use lode_model::digest::Digest;
use lode_model::media_type;
use serde_json::json;

use super::{Answer, App, failure, image};

const CLASSIC: &str = "ollama/0.33.0 (amd64 linux) Go/go1.26";
const TRANSFER: &str = "ollama-transfer/1.0";

fn by(agent: &str, request: Builder) -> Builder {
    request.header("user-agent", agent).header("host", "localhost:5000")
}

async fn classic(app: &App, request: Builder, body: &'static str) -> Answer {
    app.send(by(CLASSIC, request), body).await
}

#[tokio::test]
async fn push_and_pull_as_the_classic_client_does() {
    let app = App::new().await;
    let digest = Digest::sha256(b"content");
    // A blob that is there already, elsewhere.
    app.push_blob("elsewhere", "content").await;

    let mount = Request::post(format!("/v2/library/Mini/blobs/uploads/?from=library/base&mount={digest}"));
    let opened = classic(&app, mount, "").await;
    assert_eq!(opened.status, 202, "a 201 makes it skip other uploads");
    let location = opened.header("location").to_owned();
    assert!(location.starts_with("http://localhost:5000/v2/mini/blobs/uploads/"), "{location}");

    let patch = Request::patch(&location).header("content-range", "0-6").header("x-redirect-uploads", "1");
    let sent = classic(&app, patch, "content").await;
    assert_eq!((sent.status.as_u16(), sent.header("range")), (202, "0-6"));
    assert!(sent.header("location").starts_with("http://localhost:5000/"));
    let put = Request::put(format!("{location}?digest={digest}&etag=0-1"));
    assert_eq!(classic(&app, put, "").await.status, 201);

    let manifest = json!({
        "schemaVersion": 2, "mediaType": media_type::DOCKER_MANIFEST,
        "config": {"mediaType": media_type::DOCKER_CONFIG, "digest": digest, "size": 7},
        "layers": [{"mediaType": media_type::OLLAMA_MODEL, "digest": digest, "size": 7, "from": "x", "name": "y"}],
    });
    let path = "/v2/library/mini/manifests/latest";
    let push = by(CLASSIC, Request::put(path)).header("content-type", media_type::DOCKER_MANIFEST);
    assert_eq!(app.send(push, manifest.to_string()).await.status, 201);
    assert_eq!(app.get("/v2/mini/manifests/latest").await.text(), manifest.to_string());

    let probe = classic(&app, Request::get(format!("/v2/library/mini/blobs/{digest}")), "").await;
    assert_eq!((probe.status.as_u16(), probe.header("content-length")), (200, "7"));
    let direct = probe.header("location").to_owned();
    assert!(direct.starts_with("http://localhost:5000/v2/mini/blobs/"), "{direct}");
    let part = app.send(Request::get(&direct).header("range", "bytes=3-6"), "").await;
    assert_eq!((part.status.as_u16(), part.text()), (206, "tent"));
}

#[tokio::test]
async fn links_open_one_blob_for_a_while() {
    let app = App::new().await;
    let (digest, other) = (app.push_blob("mini", "content").await, app.push_blob("mini", "other").await);
    let probe = classic(&app, Request::get(format!("/v2/library/mini/blobs/{digest}")), "").await;
    let link = probe.header("location").replace("http://localhost:5000", "");
    assert_eq!(app.get(&link).await.status, 200);
    let (path, query) = link.split_once('?').unwrap();
    let expires = query.split('&').next().unwrap();
    for forged in [
        link.replace(digest.hex(), other.hex()),
        link.replace("/mini/", "/maxi/"),
        link.replace(expires, "expires=99999999999"),
        format!("{path}?{expires}&signature=00"),
        format!("{path}?{expires}&signature=nonsense"),
        format!("{path}?expires=never&signature=00"),
    ] {
        assert_eq!(app.get(&forged).await.failure(), failure(403, "DENIED"), "{forged}");
    }
}

#[tokio::test]
async fn the_transfer_client_announces() {
    let app = App::new().await;
    let held = app.push_blob("elsewhere", "held").await;
    let fresh = Digest::sha256(b"fresh");
    let announce = async |digest: &Digest, size: usize| {
        let request = Request::post(format!("/v2/library/mini/blobs/uploads/?digest={digest}"))
            .header("x-redirect-uploads", "2")
            .header("x-content-length", size);
        app.send(by(TRANSFER, request), "").await
    };
    assert_eq!(announce(&held, 4).await.status, 201);
    assert_eq!(app.get(&format!("/v2/mini/blobs/{held}")).await.text(), "held");

    let opened = announce(&fresh, 5).await;
    assert_eq!(opened.status, 202);
    let location = opened.header("location").to_owned();
    let patch = by(TRANSFER, Request::patch(&location)).header("content-range", "0-4");
    assert_eq!(app.send(patch, "fresh").await.status, 202);
    let put = by(TRANSFER, Request::put(format!("{location}?digest={fresh}&etag=x-1")));
    assert_eq!(app.send(put, "").await.status, 201);
    assert_eq!(
        app.send(by(TRANSFER, Request::head(format!("/v2/library/mini/blobs/{fresh}"))), "").await.status,
        200
    );
}

#[tokio::test]
async fn names_with_more_parts_are_not_ollamas() {
    let app = App::new().await;
    app.push_image("a/b/c", "latest", "x").await;
    let refused = classic(&app, Request::get("/v2/a/b/c/manifests/latest"), "").await;
    assert_eq!(refused.failure(), failure(400, "NAME_INVALID"));
    assert!(refused.text().contains("a/b/c"));
}

#[tokio::test]
async fn other_clients_get_relative_addresses_and_no_link() {
    let app = App::new().await;
    let digest = app.push_blob("library/mini", "x").await;
    let blob = app.get(&format!("/v2/library/mini/blobs/{digest}")).await;
    assert!(blob.status == 200 && !blob.headers.contains_key("location"));
    assert_eq!(app.get(&format!("/v2/mini/blobs/{digest}")).await.status, 404);
    assert!(app.upload("library/mini").await.starts_with("/v2/library/mini/"));
}

#[tokio::test]
async fn a_public_address_is_kept_to() {
    let public_url = "https://models.example/".parse().ok();
    let app = App::with(crate::Config { public_url, ..Default::default() }).await;
    assert!(app.upload("a").await.starts_with("https://models.example/v2/a/blobs/uploads/"));
    let config = app.push_blob("a", "{}").await;
    let pushed = app.push_manifest("a", "latest", &image(&config, 2, &[])).await;
    assert!(pushed.header("location").starts_with("https://models.example/v2/a/manifests/sha256:"));
}

#[tokio::test]
async fn greetings() {
    let app = App::new().await;
    assert_eq!(app.get("/").await.text(), "Ollama is running");
    let head = app.send(Request::head("/"), "").await;
    assert_eq!((head.status.as_u16(), head.header("content-length")), (200, "17"));
    let page = app.send(Request::get("/").header("accept", "text/html,*/*;q=0.8"), "").await;
    assert!(page.text().contains("<h1>Lode</h1>"));
    assert!(app.get("/api/version").await.json()["version"].is_string());
    assert_eq!(app.get("/api/tags").await.json(), json!({"models": []}));
    assert_eq!(app.get("/api/ps").await.json(), json!({"models": []}));
}

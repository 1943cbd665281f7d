//! ollama's two registry clients, with requests as they send them.

use std::collections::BTreeSet;

use axum::response::IntoResponse;
use http::Request;
use http::request::Builder;
use lode_model::digest::Digest;
use lode_model::media_type;
use serde_json::{Value, json};

use super::access::closed;
use super::models::push_model;
use super::{App, TestResponse, failure, gateway, image};

const CLASSIC: &str = "ollama/0.33.0 (amd64 linux) Go/go1.26";
const TRANSFER: &str = "ollama-transfer/1.0";

fn by(agent: &str, request: Builder) -> Builder {
    request.header("user-agent", agent).header("host", "localhost:5000")
}

async fn classic(app: &App, request: Builder, body: &'static str) -> TestResponse {
    app.send(by(CLASSIC, request), body).await
}

#[tokio::test]
async fn push_and_pull_as_the_classic_client_does() {
    let app = App::new().await;
    let digest = Digest::sha256(b"content");
    // A blob that exists in another repository.
    app.push_blob("elsewhere", "content").await;

    let mount = Request::post(format!("/v2/library/Mini/blobs/uploads/?from=library/base&mount={digest}"));
    let opened = classic(&app, mount, "").await;
    assert_eq!(opened.status, 202, "a 201 makes the client skip other uploads");
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
    let app = closed().await;
    let alice = app.user("alice").await;
    let mut digests = Vec::new();
    for content in ["content", "other"] {
        let digest = Digest::sha256(content.as_bytes());
        let path = format!("/v2/alice/mini/blobs/uploads/?digest={digest}");
        assert_eq!(app.send_as(&alice, Request::post(path), content).await.status, 201);
        digests.push(digest);
    }
    let (digest, other) = (&digests[0], &digests[1]);
    let path = format!("/v2/alice/mini/blobs/{digest}");
    let request = by(CLASSIC, Request::get(&path)).header("authorization", &alice);
    let probe = app.send(request, "").await;
    let link = probe.header("location").replace("http://localhost:5000", "");
    assert_eq!(app.get_as("", &link).await.text(), "content");
    assert_eq!(app.get_as("", &path).await.status, 401);
    let (_, token) = link.split_once("?link=").unwrap();
    for forged in [
        link.replace(digest.hex(), other.hex()),
        link.replace("/mini/", "/maxi/"),
        link[..link.len() - 1].to_owned(),
        format!("{path}?link="),
        format!("{path}?link=nonsense"),
    ] {
        assert_eq!(app.get_as("", &forged).await.failure(), failure(403, "DENIED"), "{forged}");
    }
    // A link is no credential for anything else.
    assert_eq!(app.get_as(&format!("Bearer {token}"), "/v2/").await.status, 401);
    // It ends with the rights of its account.
    app.admin("PATCH", "/lode/v1/accounts/alice", json!({"disabled": true})).await;
    assert_eq!(app.get_as("", &link).await.status, 403);
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
async fn locations_use_the_public_url() {
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
    assert!(page.text().contains("<title>Home"));
    assert!(app.get("/api/version").await.json()["version"].is_string());
    assert_eq!(app.get("/api/tags").await.json(), json!({"models": []}));
    assert_eq!(app.get("/api/ps").await.json(), json!({"models": []}));
}

#[tokio::test]
async fn ollama_reads_the_spelling_that_has_the_content() {
    let app = App::new().await;
    app.push_image("library/theirs", "latest", "with the namespace").await;
    app.push_image("both", "old", "without").await;
    app.push_image("library/both", "new", "with").await;
    app.push_image("library/both", "old", "with, older").await;
    let digest = async |path: &str, agent: Option<&str>| {
        let request = Request::get(path);
        let request = match agent {
            Some(agent) => by(agent, request),
            None => request,
        };
        let response = app.send(request, "").await;
        (response.status == 200).then(|| response.header("docker-content-digest").to_owned())
    };
    // For names without a namespace the client sends `library`.
    for (sent, stored) in [
        ("library/theirs/manifests/latest", "library/theirs/manifests/latest"),
        ("library/both/manifests/old", "both/manifests/old"),
        ("library/both/manifests/new", "library/both/manifests/new"),
    ] {
        let got = digest(&format!("/v2/{sent}"), Some(CLASSIC)).await;
        assert!(got.is_some() && got == digest(&format!("/v2/{stored}"), None).await, "{sent}");
    }
    // For all other clients they are two repositories.
    for path in ["/v2/theirs/manifests/latest", "/v2/both/manifests/new", "/v2/library/theirs/manifests/gone"]
    {
        assert_eq!(digest(path, None).await, None, "{path}");
    }
    assert_eq!(digest("/v2/library/neither/manifests/latest", Some(CLASSIC)).await, None);

    // The same for blobs; the URL to fetch them names the repository that has them.
    let manifest = classic(&app, Request::get("/v2/library/theirs/manifests/latest"), "").await.json();
    let layer = manifest["layers"][0]["digest"].as_str().unwrap();
    let path = format!("/v2/library/theirs/blobs/{layer}");
    assert_eq!(classic(&app, Request::head(&path), "").await.status, 200);
    let probe = classic(&app, Request::get(&path), "").await;
    let direct = probe.header("location").to_owned();
    assert!(direct.starts_with("http://localhost:5000/v2/library/theirs/blobs/"), "{direct}");
    for agent in [TRANSFER, "Go-http-client/1.1"] {
        let part = app.send(by(agent, Request::get(&direct)), "").await;
        assert_eq!((part.status.as_u16(), part.text()), (200, "with the namespace"), "{agent}");
    }
    let tags = classic(&app, Request::get("/v2/library/theirs/tags/list"), "").await;
    assert_eq!(tags.json()["tags"], json!(["latest"]));
}

#[tokio::test]
async fn ollama_writes_to_the_spelling_that_exists() {
    let app = App::new().await;
    app.push_image("library/theirs", "latest", "theirs").await;
    app.push_image("both", "latest", "bare").await;
    let held = app.push_blob("library/both", "only with the namespace").await;
    for (sent, stored) in [("theirs", "library/theirs"), ("both", "both"), ("fresh", "fresh")] {
        let path = format!("/v2/library/{sent}");
        let digest = Digest::sha256(b"pushed");
        let opened = classic(&app, Request::post(format!("{path}/blobs/uploads/")), "").await;
        assert_eq!(opened.status, 202, "{}", opened.text());
        let location = opened.header("location").to_owned();
        assert!(
            location.starts_with(&format!("http://localhost:5000/v2/{stored}/blobs/uploads/")),
            "{location}"
        );
        let patch = Request::patch(&location).header("content-range", "0-5");
        assert_eq!(classic(&app, patch, "pushed").await.status, 202);
        assert_eq!(classic(&app, Request::get(&location), "").await.status, 204);
        assert_eq!(classic(&app, Request::put(format!("{location}?digest={digest}")), "").await.status, 201);

        // Before the push, the client was told that the other spelling's blob exists, so the manifest may
        // reference it.
        let mut layers = vec![json!({"mediaType": media_type::OLLAMA_MODEL, "digest": digest, "size": 6})];
        if sent == "both" {
            assert_eq!(classic(&app, Request::head(format!("{path}/blobs/{held}")), "").await.status, 200);
            layers.push(json!({"mediaType": media_type::OLLAMA_SYSTEM, "digest": held, "size": 23}));
        }
        let manifest = json!({
            "schemaVersion": 2, "mediaType": media_type::DOCKER_MANIFEST,
            "config": {"mediaType": media_type::DOCKER_CONFIG, "digest": digest, "size": 6}, "layers": layers,
        });
        let push =
            Request::put(format!("{path}/manifests/new")).header("content-type", media_type::DOCKER_MANIFEST);
        let pushed = app.send(by(CLASSIC, push), manifest.to_string()).await;
        assert_eq!(pushed.status, 201, "{}", pushed.text());
        assert_eq!(app.get(&format!("/v2/{stored}/manifests/new")).await.text(), manifest.to_string());
        let elsewhere = if stored == sent { format!("library/{sent}") } else { sent.to_owned() };
        assert_eq!(app.get(&format!("/v2/{elsewhere}/manifests/new")).await.status, 404);
        assert_eq!(classic(&app, Request::delete(format!("{path}/manifests/new")), "").await.status, 202);
        assert_eq!(app.get(&format!("/v2/{stored}/manifests/new")).await.status, 404);
    }
    // A blob that neither spelling has is still reported missing.
    let absent =
        json!({"mediaType": media_type::OLLAMA_MODEL, "digest": Digest::sha256(b"absent"), "size": 6});
    let manifest = json!({"schemaVersion": 2, "mediaType": media_type::DOCKER_MANIFEST,
        "config": {"mediaType": media_type::DOCKER_CONFIG, "digest": Digest::sha256(b"{}"), "size": 2}, "layers": [absent]});
    let push =
        Request::put("/v2/library/both/manifests/new").header("content-type", media_type::DOCKER_MANIFEST);
    let refused = app.send(by(CLASSIC, push), manifest.to_string()).await;
    assert_eq!(refused.failure(), failure(400, "MANIFEST_BLOB_UNKNOWN"));
}

#[tokio::test]
async fn the_api_takes_both_spellings_and_returns_one() {
    let app = App::new().await;
    push_model(&app, "library/theirs", "8b").await;
    push_model(&app, "both", "latest").await;
    push_model(&app, "library/both", "latest").await;
    push_model(&app, "library/both", "small").await;
    push_model(&app, "team/mini", "latest").await;
    push_model(&app, "library/team/mini", "latest").await;
    let names = async || {
        let tags = app.get("/api/tags").await.json();
        let names =
            tags["models"].as_array().unwrap().iter().map(|model| model["name"].as_str().unwrap().to_owned());
        names.collect::<BTreeSet<String>>()
    };
    let expected = ["both:latest", "both:small", "team/mini:latest", "theirs:8b"].map(str::to_owned);
    assert_eq!(names().await, BTreeSet::from(expected));
    for name in ["theirs:8b", "library/theirs:8b", "both:small", "registry.ollama.ai/library/theirs:8b"] {
        assert_eq!(app.post_json("/api/show", json!({"model": name})).await.status, 200, "{name}");
    }
    assert_eq!(app.post_json("/api/show", json!({"model": "library/team/mini"})).await.status, 400);
    // In the other APIs names are exact.
    assert_eq!(app.post_json("/lode/v1/show", json!({"model": "theirs:8b"})).await.status, 404);
    assert_eq!(app.get("/v1/models/theirs:8b").await.status, 404);

    // Copies go to the spelling that exists, else to the one without the namespace.
    for (destination, stored) in [
        ("theirs:copy", "library/theirs"),
        ("library/fresh:copy", "fresh"),
        ("library/both:copy", "library/both"),
    ] {
        let copy = json!({"source": "theirs:8b", "destination": destination});
        assert_eq!(app.post_json("/api/copy", copy).await.status, 200, "{destination}");
        assert_eq!(app.get(&format!("/v2/{stored}/manifests/copy")).await.status, 200, "{destination}");
    }
    let create = json!({"model": "theirs:made", "from": "both:small", "system": "short", "stream": false});
    assert_eq!(app.post_json("/api/create", create).await.status, 200);
    assert_eq!(app.get("/v2/library/theirs/manifests/made").await.status, 200);
    let delete = json!({"model": "both:small"}).to_string();
    assert_eq!(app.send(Request::delete("/api/delete"), delete).await.status, 200);
    assert_eq!(app.get("/v2/library/both/manifests/small").await.status, 404);
    assert!(!names().await.contains("both:small"));
}

#[tokio::test]
async fn names_may_carry_this_servers_own_host() {
    let public_url = "https://models.example/".parse().ok();
    let app = App::with(crate::Config { public_url, ..Default::default() }).await;
    push_model(&app, "mini", "latest").await;
    let post = async |path: &str, body: Value| {
        app.send(Request::post(path).header("host", "127.0.0.1:5000"), body.to_string()).await
    };
    for host in
        ["127.0.0.1:5000", "localhost:5000", "models.example", "models.example:443", "http://127.0.0.1:5000"]
    {
        let copy = json!({"source": "mini", "destination": format!("{host}/ns/m:1")});
        let copied = post("/api/copy", copy).await;
        assert_eq!(copied.status, 200, "{host}: {}", copied.text());
        assert_eq!(app.get("/v2/ns/m/manifests/1").await.status, 200);
        assert_eq!(post("/api/show", json!({"model": format!("{host}/ns/m:1")})).await.status, 200);
        // The model is on this server, so nothing is transferred.
        for path in ["/api/push", "/api/pull"] {
            let moved = post(path, json!({"model": format!("{host}/ns/m:1"), "stream": false})).await;
            assert_eq!((moved.status.as_u16(), moved.json()), (200, json!({"status": "success"})), "{host}");
        }
        let gone = post("/api/pull", json!({"model": format!("{host}/ns/gone"), "stream": false})).await;
        assert_eq!(gone.status, 404, "{}", gone.text());
        let delete = Request::delete("/api/delete").header("host", "127.0.0.1:5000");
        let delete = app.send(delete, json!({"model": format!("{host}/ns/m:1")}).to_string()).await;
        assert_eq!(delete.status, 200, "{host}");
    }
    for host in ["127.0.0.1:5001", "localhost", "other.example", "registry.example:5000"] {
        let name = format!("{host}/ns/m");
        let refused = post("/api/copy", json!({"source": "mini", "destination": name})).await;
        let error = refused.json()["error"].as_str().unwrap_or_default().to_owned();
        assert_eq!(refused.status, 400, "{error}");
        assert!(error.contains(&format!("ollama push {name}")), "the error names the command: {error}");
    }
}

#[tokio::test]
async fn a_push_without_a_host_explains_how_to_push() {
    let app = App::new().await;
    push_model(&app, "mini", "latest").await;
    // Before it pushes a name without a host, `ollama push` requests the signed-in user, and stops at any
    // error.
    let me = app.send(Request::post("/api/me"), "").await;
    assert_eq!(me.status, 200, "{}", me.text());
    assert_eq!(me.json()["name"], "anonymous");
    assert!(me.json()["id"].as_str().is_some_and(|id| id.parse::<uuid::Uuid>().is_ok()));
    let pushed = app.post_json("/api/push", json!({"model": "mini", "stream": true})).await;
    assert_eq!(pushed.status, 400);
    let error = pushed.json()["error"].as_str().unwrap().to_owned();
    for part in ["'mini' is already stored on this server", "ollama push HOST/NAMESPACE/MODEL"] {
        assert!(error.contains(part), "{error}");
    }
    // Words that make the client print advice about ollama.com instead of the error.
    assert!(!error.contains("access denied") && !error.contains("unauthorized"));
    assert_eq!(app.post_json("/api/push", json!({"model": "gone"})).await.status, 404);
}

#[tokio::test]
async fn loaded_models_are_listed_under_their_short_names() {
    let app = App::new().await;
    let loaded = r#"{"models":[{"name":"library/mini:8b","model":"library/mini:8b"},{"name":"team/mini:1","model":"team/mini:1"}]}"#;
    let (address, _) = gateway::worker(move || loaded.into_response()).await;
    gateway::join(&app, address).await;
    for (path, expected) in
        [("/api/ps", ["mini:8b", "team/mini:1"]), ("/lode/v1/ps", ["library/mini:8b", "team/mini:1"])]
    {
        let models = app.get(path).await.json()["models"].clone();
        for (model, expected) in models.as_array().unwrap().iter().zip(expected) {
            assert_eq!((&model["name"], &model["model"]), (&json!(expected), &json!(expected)), "{path}");
        }
    }
}

//! Pull-through: a registry in front of an upstream that counts requests, and that can be slow, down, or
//! return wrong bytes.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use axum::{Router, routing};
use http::{StatusCode, header};
use http_body_util::BodyExt;
use lode_client::Secret;
use lode_model::digest::Digest;
use lode_model::media_type;
use serde_json::{Value, json};
use tower::ServiceExt;

use super::access::{PASSWORD, basic};
use super::models::push_model_with;
use super::wire::within;
use super::{App, TestResponse, failure, image};
use crate::{Config, MirrorConfig};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Up,
    Slow,
    Down,
    /// The right length, but other bytes.
    Wrong,
    /// Only with the right credentials.
    Private,
    Forbidden,
}

/// The upstream of a mirror.
struct Upstream {
    app: App,
    address: SocketAddr,
    heard: Arc<Mutex<Vec<String>>>,
    mode: Arc<Mutex<Mode>>,
}

impl Upstream {
    async fn start() -> Upstream {
        Upstream::with(Config::default()).await
    }

    async fn with(config: Config) -> Upstream {
        let app = App::with(config).await;
        let (heard, mode) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Mode::Up)));
        let (inner, notes, state) = (app.router.clone(), heard.clone(), mode.clone());
        let routes = Router::new().fallback(routing::any(move |request: Request| {
            let (inner, notes, mode) = (inner.clone(), notes.clone(), *state.lock().unwrap());
            async move {
                notes.lock().unwrap().push(format!("{} {}", request.method(), request.uri().path()));
                respond(inner, mode, request).await
            }
        }));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, routes).await });
        Upstream { app, address, heard, mode }
    }

    fn set(&self, mode: Mode) {
        *self.mode.lock().unwrap() = mode;
    }

    /// How many requests began with this text.
    fn count(&self, start: &str) -> usize {
        self.heard.lock().unwrap().iter().filter(|line| line.starts_with(start)).count()
    }

    fn mirrored(&self, check_after: Duration) -> MirrorConfig {
        MirrorConfig {
            prefix: "hub/".into(),
            upstream: format!("http://{}", self.address).parse().unwrap(),
            username: None,
            password: None,
            check_after,
            plain_http: false,
        }
    }
}

async fn respond(inner: Router, mode: Mode, request: Request) -> Response {
    match mode {
        Mode::Up => {}
        Mode::Slow => tokio::time::sleep(Duration::from_millis(300)).await,
        Mode::Down => return StatusCode::SERVICE_UNAVAILABLE.into_response(),
        Mode::Forbidden => return StatusCode::FORBIDDEN.into_response(),
        Mode::Private => {
            // ann:secret
            let login = request.headers().get(header::AUTHORIZATION);
            if login.is_none_or(|login| login != "Basic YW5uOnNlY3JldA==") {
                let challenge = [(header::WWW_AUTHENTICATE, "Basic realm=\"x\"")];
                return (StatusCode::UNAUTHORIZED, challenge).into_response();
            }
        }
        Mode::Wrong => {
            let (parts, body) = inner.oneshot(request).await.unwrap().into_parts();
            let bytes = body.collect().await.unwrap().to_bytes();
            let wrong: Vec<u8> = bytes.iter().map(|byte| byte ^ 1).collect();
            return Response::from_parts(parts, Body::from(wrong));
        }
    }
    inner.oneshot(request).await.unwrap()
}

/// A mirror of `upstream` for each available database engine.
async fn mirrors(upstream: &Upstream, check_after: Duration) -> Vec<App> {
    let config = || Config { mirror: vec![upstream.mirrored(check_after)], ..Config::default() };
    let mut apps = vec![App::with(config()).await];
    if let Some(database) = crate::store::postgres_for_test().await {
        apps.push(App::with(Config { database: Some(database), ..config() }).await);
    }
    apps
}

const LONG: Duration = Duration::from_secs(3600);
const MANIFEST: &str = "/v2/hub/team/mini/manifests/latest";

fn layer_of(manifest: &TestResponse) -> String {
    let digest = manifest.json()["layers"][0]["digest"].as_str().unwrap().to_owned();
    format!("/v2/hub/team/mini/blobs/{digest}")
}

#[tokio::test]
async fn fetched_once_and_served_while_the_upstream_is_down() {
    let upstream = Upstream::start().await;
    let digest = upstream.app.push_image("team/mini", "latest", "layer").await;
    for app in mirrors(&upstream, LONG).await {
        upstream.heard.lock().unwrap().clear();
        let manifest = app.get(MANIFEST).await;
        assert_eq!(manifest.status, 200, "{}", manifest.text());
        assert_eq!(manifest.header("docker-content-digest"), digest.as_str());
        assert_eq!(manifest.header("content-type"), media_type::OCI_MANIFEST);
        let layer = layer_of(&manifest);
        // A HEAD does not fetch the blob; a GET does.
        let head = app.send(http::Request::head(&layer), "").await;
        assert_eq!((head.status.as_u16(), head.header("content-length")), (200, "5"));
        assert_eq!(upstream.count("GET /v2/team/mini/blobs/"), 0);
        assert_eq!(app.get(&layer).await.text(), "layer");
        assert_eq!(app.get(&layer).await.text(), "layer");
        assert_eq!(app.get("/v2/hub/team/mini/tags/list").await.json()["tags"], json!(["latest"]));

        upstream.set(Mode::Down);
        let by_digest = format!("/v2/hub/team/mini/manifests/{digest}");
        for path in [MANIFEST, &by_digest, &layer] {
            assert_eq!(app.get(path).await.status, 200, "{path}");
            assert_eq!(app.send(http::Request::head(path), "").await.status, 200, "{path}");
        }
        assert_eq!(app.get("/v2/hub/team/mini/tags/list").await.json()["tags"], json!(["latest"]));
        let part = app.send(http::Request::get(&layer).header("range", "bytes=1-2"), "").await;
        assert_eq!((part.status.as_u16(), part.text()), (206, "ay"));
        upstream.set(Mode::Up);
        assert_eq!(upstream.count("GET /v2/team/mini/manifests/"), 1);
        assert_eq!(upstream.count("GET /v2/team/mini/blobs/"), 1);
        let report = app.registry.fsck(&crate::auth::Caller::INTERNAL, true).await.unwrap();
        assert!(report.is_sound(), "{report:?}");
    }
}

#[tokio::test]
async fn fifty_concurrent_pulls_are_one_fetch() {
    let upstream = Upstream::start().await;
    upstream.app.push_image("team/mini", "latest", "layer").await;
    for app in mirrors(&upstream, LONG).await {
        upstream.set(Mode::Slow);
        upstream.heard.lock().unwrap().clear();
        let all = futures::future::join_all((0..50).map(|_| app.get(MANIFEST))).await;
        assert!(all.iter().all(|response| response.status == 200));
        let layer = layer_of(&all[0]);
        let all = futures::future::join_all((0..50).map(|_| app.get(&layer))).await;
        assert!(all.iter().all(|response| response.status == 200 && response.text() == "layer"));
        assert_eq!(upstream.count("GET /v2/team/mini/manifests/"), 1);
        assert_eq!(upstream.count("GET /v2/team/mini/blobs/"), 1);
        upstream.set(Mode::Up);
    }
}

/// Two servers cannot share a folder, so this tests only that their leases exclude each other.
#[tokio::test]
async fn replicas_take_turns() {
    let upstream = Upstream::start().await;
    upstream.app.push_image("team/mini", "latest", "layer").await;
    let Some(database) = crate::store::postgres_for_test().await else { return };
    let config = || Config {
        mirror: vec![upstream.mirrored(LONG)],
        database: Some(database.clone()),
        ..Config::default()
    };
    let (one, two) = (App::with(config()).await, App::with(config()).await);
    upstream.set(Mode::Slow);
    let all = futures::future::join_all((0..20).map(|n| if n % 2 == 0 { &one } else { &two }.get(MANIFEST)));
    assert!(all.await.iter().all(|response| response.status == 200));
    assert_eq!(upstream.count("GET /v2/team/mini/manifests/"), 1);
}

/// The clock of the database decides when a tag is compared again: those of replicas differ.
#[tokio::test]
async fn a_fresh_tag_is_not_compared_again() {
    let upstream = Upstream::start().await;
    upstream.app.push_image("team/mini", "latest", "layer").await;
    let Some(database) = crate::store::postgres_ahead_for_test().await else { return };
    let mirror = vec![upstream.mirrored(Duration::from_secs(600))];
    let app = App::with(Config { mirror, database: Some(database), ..Config::default() }).await;
    for _ in 0..3 {
        assert_eq!(app.get(MANIFEST).await.status, 200);
    }
    assert_eq!(upstream.count("GET /v2/team/mini/manifests/"), 1);
    assert_eq!(upstream.count("HEAD /v2/team/mini/manifests/"), 0);
}

#[tokio::test]
async fn a_tag_follows_its_upstream() {
    let upstream = Upstream::start().await;
    let first = upstream.app.push_image("team/mini", "latest", "one").await;
    for app in mirrors(&upstream, Duration::ZERO).await {
        upstream.app.push_image("team/mini", "latest", "one").await;
        assert_eq!(app.get(MANIFEST).await.header("docker-content-digest"), first.as_str());
        let second = upstream.app.push_image("team/mini", "latest", "two").await;
        assert_eq!(app.get(MANIFEST).await.header("docker-content-digest"), second.as_str());
        // While the upstream is down, the last known digest counts; once it is back, its own does.
        upstream.set(Mode::Down);
        assert_eq!(app.get(MANIFEST).await.header("docker-content-digest"), second.as_str());
        upstream.set(Mode::Up);
        assert_eq!(upstream.app.delete("/v2/team/mini/manifests/latest").await.status, 202);
        let gone = async || app.get(MANIFEST).await.failure();
        let mut last = gone().await;
        // After a failure the upstream is not tried again for a moment.
        for _ in 0..100 {
            if last.0 != 200 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
            last = match app.get(MANIFEST).await {
                response if response.status == 200 => (200, String::new()),
                response => response.failure(),
            };
        }
        assert_eq!(last, failure(404, "MANIFEST_UNKNOWN"));
        // Fetched content stays available by digest.
        assert_eq!(app.get(&format!("/v2/hub/team/mini/manifests/{second}")).await.status, 200);
        upstream.app.push_image("team/mini", "latest", "one").await;
    }
}

#[tokio::test]
async fn absent_content_is_404_and_an_unavailable_upstream_503() {
    let upstream = Upstream::start().await;
    upstream.app.push_image("team/mini", "latest", "layer").await;
    let absent = Digest::sha256(b"absent");
    for app in mirrors(&upstream, LONG).await {
        let blob = format!("/v2/hub/team/mini/blobs/{absent}");
        assert_eq!(
            app.get("/v2/hub/team/mini/manifests/none").await.failure(),
            failure(404, "MANIFEST_UNKNOWN")
        );
        assert_eq!(app.get(&blob).await.failure(), failure(404, "BLOB_UNKNOWN"));
        assert_eq!(app.send(http::Request::head(&blob), "").await.status, 404);
        assert_eq!(app.get("/v2/hub/none/tags/list").await.failure(), failure(404, "NAME_UNKNOWN"));

        upstream.set(Mode::Down);
        for path in [MANIFEST, &blob, "/v2/hub/team/mini/tags/list"] {
            let response = app.get(path).await;
            assert_eq!(response.failure(), failure(503, "UNAVAILABLE"), "{path}");
            assert_eq!(response.header("retry-after"), "5");
            assert!(response.text().contains("does not respond"), "{}", response.text());
        }
        upstream.set(Mode::Forbidden);
        let response = app.get(MANIFEST).await;
        assert_eq!(response.failure(), failure(502, "UNAVAILABLE"));
        assert!(!response.text().contains(&upstream.address.to_string()), "{}", response.text());
        upstream.set(Mode::Up);
        assert_eq!(app.get(MANIFEST).await.status, 200);
    }
}

#[tokio::test]
async fn wrong_bytes_are_never_served() {
    let upstream = Upstream::start().await;
    let digest = upstream.app.push_image("team/mini", "latest", "layer").await;
    for app in mirrors(&upstream, LONG).await {
        let by_digest = format!("/v2/hub/team/mini/manifests/{digest}");
        upstream.set(Mode::Wrong);
        for path in [MANIFEST, &by_digest] {
            assert_eq!(app.get(path).await.failure(), failure(502, "UNAVAILABLE"), "{path}");
        }
        upstream.set(Mode::Up);
        let layer = layer_of(&app.get(MANIFEST).await);
        upstream.set(Mode::Wrong);
        assert_eq!(app.get(&layer).await.failure(), failure(502, "UNAVAILABLE"));
        upstream.set(Mode::Up);
        assert_eq!(app.get(&layer).await.text(), "layer");
    }
}

#[tokio::test]
async fn an_upstream_that_asks_for_a_login() {
    let upstream = Upstream::start().await;
    upstream.app.push_image("team/mini", "latest", "layer").await;
    upstream.set(Mode::Private);
    let (user, right) = (Some("ann".to_owned()), Some(Secret::new("secret")));
    let config = |password| MirrorConfig { username: user.clone(), password, ..upstream.mirrored(LONG) };
    let with =
        async |password| App::with(Config { mirror: vec![config(password)], ..Config::default() }).await;
    assert_eq!(with(right).await.get(MANIFEST).await.status, 200);
    let wrong = with(Some(Secret::new("guess"))).await;
    assert_eq!(wrong.get(MANIFEST).await.failure(), failure(502, "UNAVAILABLE"));
}

#[tokio::test]
async fn pushes_below_a_mirrored_prefix_are_refused() {
    let upstream = Upstream::start().await;
    let app = App::with(Config { mirror: vec![upstream.mirrored(LONG)], ..Config::default() }).await;
    let (config, layer) = (app.push_blob("own", "{}").await, app.push_blob("own", "x").await);
    let described = json!({"mediaType": media_type::OCI_LAYER_TAR, "digest": layer, "size": 1});
    let manifest: Value = image(&config, 2, &[described]);
    let put = app.push_manifest("hub/team/mini", "latest", &manifest).await;
    assert_eq!(put.failure(), failure(405, "DENIED"));
    assert!(put.text().contains("mirrors another registry"), "{}", put.text());
    for query in [String::new(), format!("?mount={layer}&from=own"), format!("?digest={layer}")] {
        let path = format!("/v2/hub/team/mini/blobs/uploads/{query}");
        let response = app.send(http::Request::post(&path), "x").await;
        assert_eq!(response.failure(), failure(405, "DENIED"), "{path}");
    }
    assert_eq!(upstream.heard.lock().unwrap().len(), 0);
    // Outside the prefix everything works as usual.
    assert_eq!(app.push_manifest("own", "latest", &manifest).await.status, 201);
    assert_eq!(app.get("/v2/hubs/manifests/latest").await.status, 404);
}

#[tokio::test]
async fn blobs_stay_within_their_repository() {
    let upstream = Upstream::start().await;
    upstream.app.push_image("team/mini", "latest", "layer").await;
    let app = App::with(Config { mirror: vec![upstream.mirrored(LONG)], ..Config::default() }).await;
    let own = app.push_blob("own", "secret").await;
    // Stored here, but not in that upstream repository.
    assert_eq!(
        app.get(&format!("/v2/hub/team/mini/blobs/{own}")).await.failure(),
        failure(404, "BLOB_UNKNOWN")
    );
    let layer = layer_of(&app.get(MANIFEST).await);
    assert_eq!(app.get(&layer).await.status, 200);
    assert_eq!(app.get(&layer.replace("hub/team/mini", "own")).await.status, 404);
    // Blobs that are stored here are linked, not fetched again.
    let shared = app.push_blob("own", "shared").await;
    upstream.app.push_blob("team/mini", "shared").await;
    assert_eq!(app.get(&format!("/v2/hub/team/mini/blobs/{shared}")).await.text(), "shared");
    assert_eq!(upstream.count(&format!("GET /v2/team/mini/blobs/{shared}")), 0);
}

/// Anyone with push access to the upstream can reference a digest there that a private repository here has.
#[tokio::test]
async fn a_manifest_that_names_a_local_digest_links_only_what_the_upstream_serves() {
    let upstream = Upstream::with(Config { allow_sparse: true, ..Config::default() }).await;
    let held = format!("/v2/team/mini/blobs/{}", Digest::sha256(b"private bytes"));
    for app in mirrors(&upstream, LONG).await {
        let private = app.push_blob("private", "private bytes").await;
        let config = upstream.app.push_blob("team/mini", "{}").await;
        let layer = json!({"mediaType": media_type::OCI_LAYER_TAR, "digest": private, "size": 13});
        let named = upstream.app.push_manifest("team/mini", "latest", &image(&config, 2, &[layer])).await;
        assert_eq!(named.status, 201, "{}", named.text());

        let path = layer_of(&app.get(MANIFEST).await);
        assert_eq!(app.get(&path).await.failure(), failure(404, "BLOB_UNKNOWN"));
        assert_eq!(app.send(http::Request::head(&path), "").await.status, 404);
        upstream.set(Mode::Down);
        assert_eq!(app.get(&path).await.failure().0, 503);
        upstream.set(Mode::Up);

        // Once the upstream serves it, the stored bytes are linked instead of fetched.
        upstream.app.push_blob("team/mini", "private bytes").await;
        within(async {
            // After a failure the upstream is not tried again for a moment.
            while app.get(&path).await.status != 200 {
                tokio::task::yield_now().await;
            }
        })
        .await;
        assert_eq!(app.get(&path).await.text(), "private bytes");
        assert_eq!(upstream.count(&format!("GET {held}")), 0);
        assert_eq!(
            upstream
                .app
                .delete(&format!("/v2/team/mini/manifests/{}", named.header("docker-content-digest")))
                .await
                .status,
            202
        );
        assert_eq!(upstream.app.delete(&held).await.status, 202);
    }
}

#[tokio::test]
async fn a_copy_out_of_a_mirror_fetches_what_is_not_held() {
    let upstream = Upstream::start().await;
    let digest = upstream.app.push_image("mini", "latest", "layer").await;
    for app in mirrors(&upstream, LONG).await {
        let copy = |from: &str, to: &str| json!({ "source": from, "destination": to });
        for (path, to) in [("/api/copy", "own/kept"), ("/lode/v1/copy", "own/kept/deep")] {
            upstream.heard.lock().unwrap().clear();
            let response = app.post_json(path, copy("hub/mini:latest", &format!("{to}:v1"))).await;
            assert_eq!(response.status, 200, "{}", response.text());
            upstream.set(Mode::Down);
            let manifest = app.get(&format!("/v2/{to}/manifests/v1")).await;
            assert_eq!(manifest.header("docker-content-digest"), digest.as_str());
            let layer = layer_of(&manifest).replace("hub/team/mini", to);
            assert_eq!(app.get(&layer).await.text(), "layer");
            upstream.set(Mode::Up);
        }
        // The blobs were copied before, so nothing was fetched again.
        assert_eq!(upstream.count("GET /v2/mini/blobs/"), 0);
        // If a blob cannot be fetched, nothing is copied, and the request fails.
        upstream.app.push_image("mini", "other", "another layer").await;
        assert_eq!(app.get("/v2/hub/mini/manifests/other").await.status, 200);
        upstream.set(Mode::Down);
        let response = app.post_json("/api/copy", copy("hub/mini:other", "own/other")).await;
        assert_eq!(response.status, 503, "{}", response.text());
        assert_eq!(app.get("/v2/own/other/manifests/latest").await.status, 404);
        upstream.set(Mode::Up);
    }
}

#[tokio::test]
async fn a_protected_tag_stays_where_it_is() {
    let upstream = Upstream::start().await;
    for app in mirrors(&upstream, Duration::ZERO).await {
        let first = upstream.app.push_image("team/mini", "latest", "one").await;
        assert_eq!(app.get(MANIFEST).await.header("docker-content-digest"), first.as_str());
        let body = json!({"target": "hub/*", "patterns": ["latest"]}).to_string();
        assert_eq!(app.send(http::Request::put("/lode/v1/protected-tags"), body).await.status, 204);
        // Whether the upstream moves or deletes it, the stored manifest is served.
        upstream.app.push_image("team/mini", "latest", "two").await;
        for _ in 0..2 {
            let manifest = app.get(MANIFEST).await;
            assert_eq!(manifest.status, 200, "{}", manifest.text());
            assert_eq!(manifest.header("docker-content-digest"), first.as_str());
        }
        assert_eq!(upstream.app.delete("/v2/team/mini/manifests/latest").await.status, 202);
        let manifest = app.get(MANIFEST).await;
        assert_eq!(manifest.status, 200, "{}", manifest.text());
        assert_eq!(manifest.header("docker-content-digest"), first.as_str());
    }
}

#[tokio::test]
async fn a_full_quota_is_reported() {
    let upstream = Upstream::start().await;
    upstream.app.push_image("team/mini", "latest", "layer").await;
    for app in mirrors(&upstream, LONG).await {
        let limit = async |limit: Value| {
            let body = json!({"namespace": "hub", "limit_bytes": limit}).to_string();
            assert_eq!(app.send(http::Request::put("/lode/v1/quotas"), body).await.status, 204);
        };
        let refused = |response: TestResponse| {
            assert_eq!(response.failure(), failure(403, "DENIED"), "{}", response.text());
            assert!(response.text().contains("quota of namespace hub is exceeded"), "{}", response.text());
        };
        limit(json!(10)).await;
        refused(app.get(MANIFEST).await);
        limit(json!(null)).await;
        let layer = layer_of(&app.get(MANIFEST).await);
        limit(json!(10)).await;
        assert_eq!(app.get(MANIFEST).await.status, 200, "it is stored");
        refused(app.get(&layer).await);
        limit(json!(null)).await;
        assert_eq!(app.get(&layer).await.text(), "layer");
    }
}

/// A caller that may not read the mirrored repository causes no request to the upstream, not even one that tells
/// it whether the repository exists there.
#[tokio::test]
async fn refused_callers_cause_no_request_to_the_upstream() {
    let upstream = Upstream::start().await;
    upstream.app.push_image("team/mini", "latest", "layer").await;
    let digest = Digest::sha256(b"layer");
    for (visibility, anonymous, user) in [("private", 401, 404), ("internal", 401, 200), ("public", 200, 200)]
    {
        let mirror = vec![upstream.mirrored(LONG)];
        let admin_password = Some(Secret::new(PASSWORD));
        let app = App::with(Config { mirror, admin_password, ..Config::default() }).await;
        let alice = app.user("alice").await;
        app.show("hub/*", visibility).await;
        for (credentials, expected) in [("", anonymous), (&alice[..], user)] {
            upstream.heard.lock().unwrap().clear();
            for (method, path) in [
                ("GET", "manifests/latest".to_owned()),
                ("HEAD", "manifests/latest".to_owned()),
                ("GET", format!("blobs/{digest}")),
                ("HEAD", format!("blobs/{digest}")),
                ("GET", "tags/list".to_owned()),
            ] {
                let request =
                    http::Request::builder().method(method).uri(format!("/v2/hub/team/mini/{path}"));
                let response = app.send_as(credentials, request, "").await;
                assert_eq!(response.status, expected, "{visibility} {credentials} {method} {path}");
            }
            for path in ["/v1/models/hub/team/mini", "/lode/v1/models/hub/team/mini/latest"] {
                let status = app.get_as(credentials, path).await.status;
                assert_eq!(status == expected, expected != 200 || status == 200, "{visibility} {path}");
            }
            for path in ["/lode/v1/show", "/lode/v1/generate"] {
                let body = r#"{"model":"hub/team/mini"}"#;
                let status = app.send_as(credentials, http::Request::post(path), body).await.status;
                assert!(expected == 200 || status == expected, "{visibility} {path}: {status}");
            }
            let count = upstream.heard.lock().unwrap().len();
            assert_eq!(count > 0, expected == 200, "{visibility} {credentials}: {count} requests");
            // What is stored here by now is no reason to serve it to others.
            if expected == 200 {
                let admin = basic("admin", PASSWORD);
                app.show("hub/*", "private").await;
                assert_eq!(app.pull_as("", "hub/team/mini").await, 401);
                assert_eq!(app.pull_as(&alice, "hub/team/mini").await, 404);
                assert_eq!(app.pull_as(&admin, "hub/team/mini").await, 200);
                app.show("hub/*", visibility).await;
            }
        }
    }
}

/// A worker fetches the weights of a model and not its card. The model is then indexed with its card.
#[tokio::test]
async fn the_other_files_of_a_model_follow_its_weights() {
    let upstream = Upstream::start().await;
    let card = [(media_type::OLLAMA_JSON, "README.md", "# The card\n")];
    push_model_with(&upstream.app, "team/mini", "latest", &card).await;
    for app in mirrors(&upstream, LONG).await {
        let manifest = app.get(MANIFEST).await.json();
        let layers = manifest["layers"].as_array().unwrap();
        for layer in layers.iter().filter(|layer| layer["mediaType"] == media_type::OLLAMA_TENSOR) {
            let digest = layer["digest"].as_str().unwrap();
            assert_eq!(app.get(&format!("/v2/hub/team/mini/blobs/{digest}")).await.status, 200);
        }
        // No request fetches the other files.
        let (ours, config) =
            ("hub/team/mini".parse().unwrap(), manifest["config"]["digest"].as_str().unwrap());
        let model = within(async {
            for digest in layers.iter().map(|layer| layer["digest"].as_str().unwrap()).chain([config]) {
                while app.registry.store().blob_find(&ours, &digest.parse().unwrap()).await.unwrap().is_none()
                {
                    tokio::task::yield_now().await;
                }
            }
            loop {
                let model = app.get("/lode/v1/models/hub/team/mini/latest").await.json();
                if model["problem"].is_null() {
                    return model;
                }
            }
        })
        .await;
        assert_eq!((&model["architecture"], &model["tensor_count"]), (&json!("llama"), &json!(2)), "{model}");
    }
}

//! Imports from a server with the API of the Hugging Face Hub.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::extract::Request;
use axum::response::IntoResponse;
use axum::routing::get;
use http::{HeaderMap, StatusCode};
use lode_model::digest::Digest;
use serde_json::{Value, json};
use sha1::{Digest as _, Sha1};

use super::{App, TestResponse};
use crate::Config;
use crate::store::query;

const COMMIT: &str = "0123456789012345678901234567890123456789";
const CONFIG: &[u8] = br#"{"model_type":"llama","architectures":["LlamaForCausalLM"],"hidden_size":4}"#;

/// A small server with the API of the Hub, which counts the requests for weights and drops the connection once.
struct Hub {
    address: SocketAddr,
    weights: Vec<u8>,
    reads: Arc<AtomicUsize>,
}

fn weights() -> Vec<u8> {
    let size = 300_000 * 2;
    let header =
        json!({"head.weight": {"dtype": "BF16", "shape": [300_000], "data_offsets": [0, size]}}).to_string();
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![7; size]].concat()
}

fn git_oid(content: &[u8]) -> String {
    let mut hasher = Sha1::new();
    hasher.update(format!("blob {}\0", content.len()));
    hasher.update(content);
    hex::encode(hasher.finalize())
}

/// `sha256`: of the weights, as the server describes them.
async fn hub(sha256: Option<&str>) -> Hub {
    let weights = weights();
    let reads = Arc::new(AtomicUsize::default());
    let sha256 = sha256.map_or_else(|| Digest::sha256(&weights).hex().to_owned(), str::to_owned);
    let tree = json!([
        {"type": "directory", "path": "sub", "oid": COMMIT, "size": 0},
        {"type": "file", "path": ".gitattributes", "oid": "x", "size": 1},
        {"type": "file", "path": "config.json", "oid": git_oid(CONFIG), "size": CONFIG.len()},
        {"type": "file", "path": "pytorch_model.bin", "oid": "x", "size": 1_000_000_000},
    ]);
    let lfs = json!([{"type": "file", "path": "model.safetensors", "oid": "x", "size": weights.len(),
        "lfs": {"oid": sha256, "size": weights.len(), "pointerSize": 134}}]);
    let (content, counter) = (weights.clone(), reads.clone());
    let is_allowed =
        |headers: &HeaderMap| headers.get("authorization").is_some_and(|value| value == "Bearer hf_secret");
    let serve = move |request: Request| {
        let (content, counter) = (content.clone(), counter.clone());
        let (tree, lfs) = (tree.clone(), lfs.clone());
        async move {
            let (path, query) = (request.uri().path().to_owned(), request.uri().query().unwrap_or_default());
            if path.starts_with("/cdn/") {
                // The token is for the Hub's own origin. This is the same one, so that it is sent here, too.
                let read = counter.fetch_add(1, Ordering::SeqCst);
                let range = request.headers().get("range").and_then(|value| value.to_str().ok());
                let from: usize = match range {
                    Some(range) => {
                        range.strip_prefix("bytes=").unwrap().trim_end_matches('-').parse().unwrap()
                    }
                    None => 0,
                };
                let status = if from > 0 { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK };
                // The first response ends early.
                let end = if read == 0 { content.len() / 2 } else { content.len() };
                return (status, content[from..end].to_vec()).into_response();
            }
            if !is_allowed(request.headers()) {
                let headers = [("x-error-code", "RepoNotFound"), ("x-error-message", "Repository not found")];
                return (StatusCode::UNAUTHORIZED, headers).into_response();
            }
            let reply = |value: Value| axum::Json(value).into_response();
            match path.as_str() {
                "/api/models/acme/m/revision/v1" => reply(json!({"sha": COMMIT, "siblings": []})),
                path if path == format!("/api/models/acme/m/tree/{COMMIT}") && query.contains("cursor") => {
                    reply(lfs)
                }
                path if path == format!("/api/models/acme/m/tree/{COMMIT}") => {
                    let host = request.headers()["host"].to_str().unwrap();
                    let next = format!("<http://{host}{path}?recursive=true&cursor=2>; rel=\"next\"");
                    let mut response = reply(tree);
                    response.headers_mut().insert("link", next.parse().unwrap());
                    response
                }
                path if path == format!("/acme/m/resolve/{COMMIT}/config.json") => CONFIG.into_response(),
                path if path == format!("/acme/m/resolve/{COMMIT}/model.safetensors") => {
                    (StatusCode::FOUND, [("location", "/cdn/model?signature=1")]).into_response()
                }
                _ => (StatusCode::NOT_FOUND, [("x-error-message", "Invalid rev id")]).into_response(),
            }
        }
    };
    let router = Router::new().fallback(get(serve));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    Hub { address, weights, reads }
}

#[tokio::test]
async fn a_gated_model_requires_a_token() {
    let info = json!({"sha": COMMIT, "gated": "manual"});
    let router = Router::new().fallback(move || async move { axum::Json(info) });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    let app = App::new().await;
    let mut body = json!({"model": "team/m", "from": "hf://acme/m", "endpoint": endpoint});
    let refused = app.post_json("/lode/v1/import", body.clone()).await;
    assert_eq!(refused.status, 424, "{}", refused.text());
    assert!(refused.text().contains("it is gated: set HF_TOKEN"), "{}", refused.text());
    // Whether the account has access is known only when the files are read.
    body["token"] = "hf_secret".into();
    assert_eq!(app.post_json("/lode/v1/import", body).await.status, 202);
}

async fn import(app: &App, hub: &Hub, more: Value) -> TestResponse {
    let endpoint = format!("http://{}", hub.address);
    let mut body =
        json!({"model": "team/m", "from": "hf://acme/m@v1", "endpoint": endpoint, "token": "hf_secret"});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    app.post_json("/lode/v1/import", body).await
}

/// Imports the model, and returns the job when it has ended.
async fn imported(app: &App, hub: &Hub, more: Value) -> Value {
    let started = import(app, hub, more).await;
    assert_eq!(started.status, 202, "{}", started.text());
    app.until_finished(started.header("location")).await
}

#[tokio::test]
async fn a_model_is_imported_and_resumed() {
    let hub = hub(None).await;
    let app = App::new().await;
    let job = imported(&app, &hub, json!({})).await;
    assert_eq!((&job["kind"], &job["state"]), (&json!("import"), &json!("succeeded")), "{job}");
    let bytes = hub.weights.len() + CONFIG.len();
    let result = &job["result"];
    assert_eq!((&result["blobs"], &result["bytes"]), (&json!(2), &json!(bytes)), "{job}");
    assert_eq!((&result["fetched_blobs"], &result["fetched_bytes"]), (&json!(2), &json!(bytes)), "{job}");
    assert!(result["notices"][0].as_str().unwrap().contains("num_hidden_layers"), "{job}");
    // The first response for the weights ended early, and the rest was requested.
    assert_eq!(hub.reads.load(Ordering::SeqCst), 2);
    let manifest = app.get("/v2/team/m/manifests/latest").await;
    assert_eq!(manifest.header("docker-content-digest"), result["digest"]);
    let annotations = &manifest.json()["annotations"];
    assert_eq!(annotations["org.opencontainers.image.revision"], COMMIT);
    assert_eq!(annotations["org.opencontainers.image.source"], format!("http://{}/acme/m", hub.address));
    for (path, content) in [("model.safetensors", &hub.weights[..]), ("config.json", CONFIG)] {
        assert_eq!(&app.get(&format!("/hf/team/m/resolve/main/{path}")).await.body[..], content);
    }
    let tree = app.get("/hf/api/models/team/m/tree/main").await.json();
    assert_eq!(tree.as_array().unwrap().len(), 2, "{tree}");
    // Weights that are stored are not fetched again.
    let job = imported(&app, &hub, json!({"model": "team/again"})).await;
    assert_eq!((&job["state"], &job["result"]["fetched_blobs"]), (&json!("succeeded"), &json!(1)), "{job}");
    assert_eq!(hub.reads.load(Ordering::SeqCst), 2);
    let quantised = imported(&app, &hub, json!({"model": "team/small", "quantize": "int8"})).await;
    assert_eq!(quantised["state"], "succeeded", "{quantised}");
    // The token is kept while a job runs, and shown nowhere.
    for path in ["/lode/v1/jobs", "/lode/v1/audit"] {
        assert!(!app.get(path).await.text().contains("hf_secret"));
    }
    let store = app.registry.store();
    let kept = "select count(*) from jobs where secret is not null";
    let kept: (i64,) = query!(store.read(), c => sqlx::query_as(kept).fetch_one(c).await).unwrap();
    assert_eq!(kept, (0,));
}

#[tokio::test]
async fn failures_name_their_reason() {
    let right = hub(None).await;
    let wrong = hub(Some(&"0".repeat(64))).await;
    let app = App::new().await;
    let cases = [
        (&right, json!({"from": "acme/m"}), 400, "expected hf://"),
        (&right, json!({"from": "hf://acme/../m"}), 400, "letters, digits"),
        (&right, json!({"from": "hf://acme/m@"}), 400, "is empty"),
        (&right, json!({"from": "hf://acme/m@v2"}), 404, "Invalid rev id (status 404)"),
        (&right, json!({"token": "hf_other"}), 424, "status 401; the token is wrong, or its account may not"),
        (
            &right,
            json!({"token": ""}),
            424,
            "Repository not found (status 401; it may be private: set HF_TOKEN)",
        ),
        (&right, json!({"endpoint": "http://127.0.0.1:1"}), 502, "does not respond"),
        (&right, json!({"endpoint": "file:///etc"}), 400, "not an http or https URL"),
        (&right, json!({"quantize": "none"}), 400, "none"),
        (&right, json!({"unknown": 1}), 400, "unknown field"),
    ];
    for (hub, more, status, message) in cases {
        let response = import(&app, hub, more.clone()).await;
        assert_eq!(response.status.as_u16(), status, "{more}: {}", response.text());
        assert!(response.text().contains(message), "{more}: {}", response.text());
        assert!(!response.text().contains("hf_secret"));
    }
    // Files that do not fit are known to the job only. Weights that differ from their description are refused, and no
    // model is created.
    for (hub, more, message) in [
        (&right, json!({"from": "hf://acme/m:Q4_K_M@v1"}), "no GGUF file, so none with `Q4_K_M` in its name"),
        (&wrong, json!({}), "digest mismatch"),
    ] {
        let job = imported(&app, hub, more).await;
        assert_eq!(job["state"], "failed", "{job}");
        let problem = job["problem"].as_str().unwrap();
        assert!(problem.contains(message) && !problem.contains("start it again"), "{job}");
        assert_eq!(app.get("/v2/team/m/manifests/latest").await.status, 404);
    }
}

/// Only the report of a failure that may end by itself says to start again.
#[tokio::test]
async fn a_lost_connection_is_a_reason_to_start_again() {
    let serve = |request: Request| async move {
        if request.uri().path().ends_with("/revision/v1") {
            return axum::Json(json!({"sha": COMMIT})).into_response();
        }
        let lost = futures::stream::iter([Err::<Vec<u8>, _>(std::io::Error::other("lost"))]);
        axum::body::Body::from_stream(lost).into_response()
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = Router::new().fallback(get(serve));
    tokio::spawn(async move { axum::serve(listener, router).await });
    let hub = Hub { address, weights: Vec::new(), reads: Arc::default() };
    let job = imported(&App::new().await, &hub, json!({})).await;
    let problem = job["problem"].as_str().unwrap();
    assert!(
        problem.contains("does not respond; ") && problem.contains("start it again to continue"),
        "{job}"
    );
}

#[tokio::test]
async fn addresses_inside_the_network_are_refused() {
    let hub = hub(None).await;
    let listen = "0.0.0.0:5000".parse().unwrap();
    let app = App::with(Config { listen, allow_anonymous: true, ..Config::default() }).await;
    let response = import(&app, &hub, json!({})).await;
    assert_eq!(response.status, 403, "{}", response.text());
    assert_eq!(hub.reads.load(Ordering::SeqCst), 0);
    let allow_egress = vec![hub.address.to_string().parse().unwrap()];
    let app = App::with(Config { listen, allow_anonymous: true, allow_egress, ..Config::default() }).await;
    assert_eq!(imported(&app, &hub, json!({})).await["state"], "succeeded");
}

//! The gateway with minimal fake workers: which worker is chosen, what it receives, and how its response is
//! returned.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Request};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::{StreamExt, stream};
use http_body_util::BodyExt;
use lode_client::Secret;
use lode_model::digest::Digest;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;

use super::access::PASSWORD;
use super::wire::{Server, request, within};
use super::{App, TestResponse};
use crate::Config;

/// The requests of a worker: path, some headers, body.
pub(super) type ReceivedRequests = Arc<Mutex<Vec<Value>>>;

/// A worker that records its requests and always sends the same response.
pub(super) async fn worker(
    respond: impl Fn() -> Response + Clone + Send + Sync + 'static,
) -> (SocketAddr, ReceivedRequests) {
    let heard = ReceivedRequests::default();
    let notes = heard.clone();
    let routes = Router::new().fallback(move |request: Request| {
        let (respond, notes) = (respond.clone(), notes.clone());
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let header = |name: &str| parts.headers.get(name).map(|value| value.to_str().unwrap().to_owned());
            notes.lock().unwrap().push(json!({
                "path": parts.uri.path(), "model": header("lode-model"), "name": header("lode-model-name"),
                "authorization": header("authorization"), "client": header("lode-client"), "priority": header("priority"),
                "body": String::from_utf8_lossy(&body),
            }));
            respond()
        }
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, routes).await });
    (address, heard)
}

/// A worker's registration.
pub(super) struct Joined {
    pub(super) id: String,
    pub(super) credential: String,
    pub(super) secret: String,
}

impl Joined {
    pub(super) fn path(&self) -> String {
        format!("/lode/v1/workers/{}", self.id)
    }
}

/// Registers a worker, as from this machine.
pub(super) async fn join(app: &App, address: SocketAddr) -> Joined {
    let body =
        json!({"advertise": format!("http://{address}"), "devices": [{"kind": "cpu", "free_bytes": 1}]});
    let response = local(app, "POST", "/lode/v1/workers", None, body).await;
    assert_eq!(response.status, 201, "{}", response.text());
    let registration = response.json();
    let text = |name: &str| registration[name].as_str().unwrap().to_owned();
    Joined { id: text("id"), credential: text("credential"), secret: text("secret") }
}

pub(super) async fn local(
    app: &App,
    method: &str,
    path: &str,
    token: Option<&str>,
    body: Value,
) -> TestResponse {
    let mut request = Request::builder().method(method).uri(path);
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let mut request = request.body(Body::from(body.to_string())).unwrap();
    request.extensions_mut().insert(ConnectInfo(SocketAddr::from(([127, 0, 0, 1], 9))));
    TestResponse::read(app.raw(request).await).await
}

pub(super) fn records(text: &'static str) -> Response {
    ([("content-type", "application/x-ndjson")], text).into_response()
}

#[tokio::test]
async fn a_worker_receives_the_request_and_its_context() {
    let app = App::new().await;
    let digest = app.push_image("team/mini", "8b", "x").await;
    let (address, heard) = worker(|| records("{\"response\":\"hi\"}\n{\"done\":true}\n")).await;
    let Joined { secret, .. } = join(&app, address).await;

    let body = json!({"model": "Team/Mini:8b", "prompt": "hello", "unknown": [1]});
    let response = app.post_json("/api/generate", body.clone()).await;
    assert_eq!(
        (response.status.as_u16(), response.text()),
        (200, "{\"response\":\"hi\"}\n{\"done\":true}\n")
    );
    assert_eq!(response.header("content-type"), "application/x-ndjson");
    assert_eq!(response.header("x-accel-buffering"), "no");
    let received = heard.lock().unwrap().pop().unwrap();
    assert_eq!(received["path"], "/api/generate");
    assert_eq!(received["model"], format!("team/mini@{digest}"));
    assert_eq!(received["name"], "Team/Mini:8b");
    assert_eq!(received["authorization"], format!("Bearer {secret}"));
    assert_eq!(received["body"], body.to_string());

    for (priority, expect) in [("i", "u=3"), ("u=7", "u=7"), ("u=0", "u=3")] {
        let from = Request::post("/api/chat").header("priority", priority);
        let mut from = from.body(Body::from(body.to_string())).unwrap();
        from.extensions_mut().insert(ConnectInfo(SocketAddr::from(([192, 0, 2, 7], 9))));
        assert_eq!(app.raw(from).await.status(), 200);
        let received = heard.lock().unwrap().pop().unwrap();
        assert_eq!((&received["client"], &received["priority"]), (&json!("192.0.2.7"), &json!(expect)));
    }

    let by_digest = json!({"model": format!("team/mini@{digest}"), "windows": [[1, 2]]});
    assert_eq!(app.post_json("/lode/v1/score", by_digest).await.status, 200);
    assert_eq!(heard.lock().unwrap().pop().unwrap()["path"], "/lode/v1/score");
    assert_eq!(app.post_json("/lode/v1/chat", json!({"model": "team/mini:8b"})).await.status, 200);
    assert_eq!(heard.lock().unwrap().pop().unwrap()["path"], "/api/chat");
}

#[tokio::test]
async fn the_older_embeddings_are_translated() {
    let app = App::new().await;
    app.push_image("mini", "latest", "x").await;
    let (address, heard) = worker(|| r#"{"model":"mini","embeddings":[[0.5,0.25]]}"#.into_response()).await;
    join(&app, address).await;
    let response = app.post_json("/api/embeddings", json!({"model": "mini", "prompt": "text"})).await;
    assert_eq!(response.json(), json!({"embedding": [0.5, 0.25]}));
    let received = heard.lock().unwrap().pop().unwrap();
    assert_eq!(received["path"], "/api/embed");
    assert_eq!(received["body"], json!({"model": "mini", "input": "text"}).to_string());
    // Without a prompt the model is only loaded, and a prompt that is not a string is refused.
    let empty = app.post_json("/api/embeddings", json!({"model": "mini", "keep_alive": -1})).await;
    assert_eq!(empty.json(), json!({"embedding": []}));
    let received = heard.lock().unwrap().pop().unwrap();
    assert_eq!(received["body"], json!({"model": "mini", "keep_alive": -1, "input": ""}).to_string());
    let refused = app.post_json("/api/embeddings", json!({"model": "mini", "prompt": 7})).await;
    assert_eq!((refused.status.as_u16(), &refused.json()["error"]), (400, &json!("prompt must be a string")));
}

#[tokio::test]
async fn workers_are_tried_until_one_responds() {
    let app = App::new().await;
    app.push_image("mini", "latest", "x").await;
    let generate = || app.post_json("/api/generate", json!({"model": "mini"}));
    let none = generate().await;
    assert_eq!(none.status, 503);
    assert_eq!(none.json()["code"], Value::Null, "ollama's format has no code");
    let ours = || app.post_json("/lode/v1/generate", json!({"model": "mini"}));
    assert_eq!(ours().await.json()["code"], "NO_WORKER");
    assert!(none.json()["error"].as_str().unwrap().contains("lode worker"));

    let unused = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    join(&app, unused.local_addr().unwrap()).await;
    drop(unused);
    let dead = generate().await;
    assert_eq!(dead.status, 503);
    assert!(dead.json()["error"].as_str().unwrap().contains("no worker responded"));
    assert_eq!(ours().await.json()["code"], "NO_WORKER");

    let busy = || (http::StatusCode::SERVICE_UNAVAILABLE, r#"{"error":"server busy"}"#).into_response();
    join(&app, worker(busy).await.0).await;
    assert_eq!(generate().await.json()["error"], "server busy");

    join(&app, worker(|| records("{\"done\":true}\n")).await.0).await;
    assert_eq!(generate().await.text(), "{\"done\":true}\n");
}

#[tokio::test]
async fn records_come_through_one_by_one() {
    let app = App::new().await;
    app.push_image("mini", "latest", "x").await;
    let (sender, receiver) = mpsc::channel::<Bytes>(1);
    let receiver = Arc::new(Mutex::new(Some(receiver)));
    let (address, _) = worker(move || {
        let receiver = receiver.lock().unwrap().take().unwrap();
        let records = stream::unfold(receiver, async |mut receiver| {
            receiver.recv().await.map(|record| (record, receiver))
        });
        let body = Body::from_stream(records.map(Ok::<_, std::io::Error>));
        ([("content-type", "application/x-ndjson")], body).into_response()
    })
    .await;
    join(&app, address).await;

    sender.send(Bytes::from_static(b"{\"n\":1}\n")).await.unwrap();
    let request = Request::post("/api/generate").body(Body::from(r#"{"model":"mini"}"#)).unwrap();
    let mut body = app.raw(request).await.into_body();
    for n in 1..4 {
        let frame = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(frame, format!("{{\"n\":{n}}}\n"));
        sender.send(Bytes::from(format!("{{\"n\":{}}}\n", n + 1))).await.unwrap();
    }
    // A client that disconnects ends the work.
    drop(body);
    within(sender.closed()).await;
}

/// A worker whose response continues for as long as it is read. The sender is closed when the gateway has
/// dropped the response.
async fn endless_worker(app: &App, record: &'static [u8]) -> mpsc::Receiver<mpsc::Sender<()>> {
    let (begun, responses) = mpsc::channel(8);
    let (address, _) = worker(move || {
        let (held, ended) = mpsc::channel::<()>(1);
        begun.try_send(held).unwrap();
        let records = stream::unfold(ended, move |ended| async move {
            // Lets the other side of this test run.
            tokio::task::yield_now().await;
            Some((Ok::<_, std::io::Error>(Bytes::from_static(record)), ended))
        });
        ([("content-type", "application/x-ndjson")], Body::from_stream(records)).into_response()
    })
    .await;
    join(app, address).await;
    responses
}

fn stalls_soon() -> Config {
    Config { stall_timeout: Duration::from_millis(100), ..Config::default() }
}

#[tokio::test]
async fn a_response_that_is_not_read_is_cancelled() {
    let app = App::with(stalls_soon()).await;
    app.push_image("mini", "latest", "x").await;
    let mut responses = endless_worker(&app, b"{\"response\":\"x\"}\n").await;
    let bodies = [
        ("/api/generate", json!({"model": "mini", "prompt": "x"}), "not read for 0.1 s"),
        ("/v1/completions", json!({"model": "mini", "prompt": "x", "stream": true}), "not read for 0.1 s"),
    ];
    for (path, body, expect) in bodies {
        let request = Request::post(path).body(Body::from(body.to_string())).unwrap();
        let mut body = app.raw(request).await.into_body();
        body.frame().await.unwrap().unwrap();
        // From here on the client does not read.
        within(within(responses.recv()).await.unwrap().closed()).await;
        let rest = within(body.collect()).await.unwrap().to_bytes();
        assert!(String::from_utf8_lossy(&rest).contains(expect), "{path}: {rest:?}");
    }
}

#[tokio::test]
async fn a_connection_that_is_not_read_ends_the_work() {
    let app = App::with(stalls_soon()).await;
    app.push_image("mini", "latest", "x").await;
    let mut responses = endless_worker(&app, &[b'x'; 1 << 16]).await;
    let server = Server::start(&app).await;
    let mut stream = server.connect().await;
    let body = r#"{"model":"mini"}"#;
    let head = request("POST /api/generate", &format!("content-length: {}\r\n", body.len()));
    stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    within(within(responses.recv()).await.unwrap().closed()).await;
}

#[tokio::test]
async fn requests_per_client_are_limited() {
    let proxy: crate::config::Cidr = "127.0.0.1".parse().unwrap();
    let config = Config { max_per_client: 2, trusted_proxies: vec![proxy], ..Config::default() };
    let app = App::with(config).await;
    app.push_image("mini", "latest", "x").await;
    let mut responses = endless_worker(&app, b"{\"response\":\"x\"}\n").await;
    let send_request = async |client: &str, path: &str| {
        let mut request = Request::post(path)
            .header("x-forwarded-for", client)
            .body(Body::from(r#"{"model":"mini","stream":true,"prompt":"x"}"#))
            .unwrap();
        request.extensions_mut().insert(ConnectInfo(SocketAddr::from(([127, 0, 0, 1], 9))));
        app.raw(request).await
    };
    let first = send_request("192.0.2.1", "/api/generate").await;
    let _second = send_request("192.0.2.1", "/v1/completions").await;
    let _other = send_request("192.0.2.2", "/api/generate").await;
    assert_eq!(first.status(), 200);
    let refused = TestResponse::read(send_request("192.0.2.1", "/api/generate").await).await;
    assert_eq!((refused.status.as_u16(), refused.header("retry-after")), (429, "5"));
    let error = refused.json()["error"].as_str().unwrap().to_owned();
    assert!(
        error.starts_with("client 192.0.2.1 has 2 inference requests")
            && error.contains("LODE_MAX_PER_CLIENT")
    );
    let refused = TestResponse::read(send_request("192.0.2.1", "/v1/completions").await).await;
    assert_eq!(refused.json()["error"]["type"], "rate_limit_error");
    // A request that has finished allows another one.
    let ended = within(responses.recv()).await.unwrap();
    drop(first);
    within(ended.closed()).await;
    assert_eq!(send_request("192.0.2.1", "/api/generate").await.status(), 200);
}

#[tokio::test]
async fn requests_per_account_are_limited() {
    let proxy: crate::config::Cidr = "127.0.0.1".parse().unwrap();
    let config = Config { max_per_client: 1, trusted_proxies: vec![proxy], ..Config::default() };
    let app = App::with(config).await;
    app.push_image("mini", "latest", "x").await;
    let (address, heard) = worker(|| {
        let first = Ok::<_, std::io::Error>(Bytes::from_static(b"{\"response\":\"x\"}\n"));
        let records = stream::iter([first]).chain(stream::pending());
        ([("content-type", "application/x-ndjson")], Body::from_stream(records)).into_response()
    })
    .await;
    join(&app, address).await;
    let first = json!({"name": "admin", "password": PASSWORD, "server_role": "admin"});
    assert_eq!(app.post_json("/lode/v1/accounts", first).await.status, 201);
    let (alice, bob) = (app.user("alice").await, app.user("bob").await);
    let send_request = async |credentials: &str, client: &str, path: &str| {
        let mut request = Request::post(path)
            .header("host", "localhost:5000")
            .header("authorization", credentials)
            .header("x-forwarded-for", client)
            .body(Body::from(r#"{"model":"mini","stream":true,"prompt":"x"}"#))
            .unwrap();
        request.extensions_mut().insert(ConnectInfo(SocketAddr::from(([127, 0, 0, 1], 9))));
        app.raw(request).await
    };
    let first = send_request(&alice, "192.0.2.1", "/api/generate").await;
    let other = send_request(&bob, "192.0.2.1", "/v1/completions").await;
    assert_eq!((first.status().as_u16(), other.status().as_u16()), (200, 200), "they share an address");
    for path in ["/api/generate", "/v1/completions"] {
        let refused = TestResponse::read(send_request(&alice, "192.0.2.2", path).await).await;
        assert_eq!(refused.status, 429, "{path}: {}", refused.text());
        assert!(refused.text().contains("client user:alice has 1 inference requests"), "{}", refused.text());
    }
    // Workers get the same key.
    let received = heard.lock().unwrap().clone();
    for (credentials, request) in [&alice, &bob].into_iter().zip(received) {
        let me = app.get_as(credentials, "/lode/v1/me").await.json();
        assert_eq!(request["client"], me["id"]);
    }
}

#[tokio::test]
async fn the_other_spelling_may_be_public() {
    let app = App::new().await;
    app.push_image("library/mini", "latest", "x").await;
    join(&app, worker(|| records("{\"done\":true}\n")).await.0).await;
    let first = json!({"name": "admin", "password": PASSWORD, "server_role": "admin"});
    assert_eq!(app.post_json("/lode/v1/accounts", first).await.status, 201);
    let generate = async |name: &str| {
        let body = json!({"model": name}).to_string();
        app.send_as("", Request::post("/api/generate"), body).await.status.as_u16()
    };
    for name in ["mini", "library/mini"] {
        assert_eq!(generate(name).await, 401, "{name}");
    }
    app.show("library/mini", "public").await;
    for (name, status) in [("mini", 200), ("library/mini", 200), ("maxi", 401)] {
        assert_eq!(generate(name).await, status, "{name}");
    }
}

#[tokio::test]
async fn a_caller_who_leaves_before_the_first_byte_ends_the_work() {
    let app = App::new().await;
    app.push_image("mini", "latest", "x").await;
    // Each request holds a sender, which is closed when the worker's handler is dropped.
    let (begun, mut working) = mpsc::channel::<mpsc::Receiver<()>>(1);
    let routes = Router::new().fallback(move || {
        let begun = begun.clone();
        async move {
            let (held, ended) = mpsc::channel(1);
            begun.send(ended).await.unwrap();
            std::future::pending::<()>().await;
            drop(held);
        }
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    join(&app, listener.local_addr().unwrap()).await;
    tokio::spawn(async move { axum::serve(listener, routes).await });

    let server = Server::start(&app).await;
    let mut stream = server.connect().await;
    let body = r#"{"model":"mini"}"#;
    let head = request("POST /api/generate", &format!("content-length: {}\r\n", body.len()));
    stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    let mut ended = within(working.recv()).await.expect("the worker got the request");
    drop(stream);
    assert_eq!(within(ended.recv()).await, None);
}

#[tokio::test]
async fn an_interrupted_stream_ends_with_an_error_record() {
    let app = App::new().await;
    app.push_image("mini", "latest", "x").await;
    let (address, _) = worker(|| {
        let records = [Ok(Bytes::from_static(b"{\"n\":1}\n")), Err(std::io::Error::other("gone"))];
        // Yields between the two, so that the first is sent.
        let records = stream::iter(records).then(|record| async move {
            if record.is_err() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            record
        });
        ([("content-type", "application/x-ndjson")], Body::from_stream(records)).into_response()
    })
    .await;
    join(&app, address).await;
    let response = app.post_json("/api/generate", json!({"model": "mini"})).await;
    assert_eq!(response.text(), "{\"n\":1}\n{\"error\":\"the worker's response ended early\"}\n");
}

#[tokio::test]
async fn every_worker_that_has_a_model_loaded_unloads_it() {
    let app = App::new().await;
    let digest = app.push_image("mini", "latest", "x").await;
    let mut heard = Vec::new();
    for is_loaded in [true, true, false] {
        let (address, received) = worker(|| records("{\"done\":true,\"done_reason\":\"unload\"}\n")).await;
        let joined = join(&app, address).await;
        let loaded = json!([{"repository": "mini", "digest": digest, "size_bytes": 3, "expires_at": "soon"}]);
        let loaded = if is_loaded { loaded } else { json!([]) };
        let beat = json!({"devices": [{"kind": "cpu", "free_bytes": 7}], "loaded": loaded, "cached": []});
        assert_eq!(local(&app, "PUT", &joined.path(), Some(&joined.credential), beat).await.status, 204);
        heard.push(received);
    }
    let response = app.post_json("/api/generate", json!({"model": "mini", "keep_alive": 0})).await;
    assert_eq!(response.json()["done_reason"], "unload");
    let counts: Vec<usize> = heard.iter().map(|received| received.lock().unwrap().len()).collect();
    assert!(counts[0] >= 1 && counts[1] >= 1 && counts[2] == 0, "{counts:?}");
    // A request with a prompt goes to one worker.
    let prompt = json!({"model": "mini", "keep_alive": 0, "prompt": "x"});
    assert_eq!(app.post_json("/api/generate", prompt).await.status, 200);
    let more: usize = heard.iter().map(|received| received.lock().unwrap().len()).sum();
    assert_eq!(more, counts.iter().sum::<usize>() + 1);
}

#[tokio::test]
async fn workers_come_and_go() {
    let app = App::new().await;
    let (address, _) = worker(|| {
        r#"{"models":[{"name":"mini:latest","expires_at":"2026-01-01T00:00:00Z"}]}"#.into_response()
    })
    .await;
    let first = join(&app, address).await;
    let joined = join(&app, address).await;
    assert_ne!(first.id, joined.id);
    let (path, credential) = (joined.path(), Some(&joined.credential[..]));
    let digest = app.push_image("mini", "latest", "x").await;
    let beat = json!({
        "devices": [{"kind": "cpu", "free_bytes": 7, "more": true}],
        "loaded": [{"repository": "mini", "digest": digest, "size_bytes": 3, "expires_at": "soon"}], "cached": [digest],
    });
    assert_eq!(local(&app, "PUT", &path, credential, beat).await.status, 204);
    let replaced = local(&app, "PUT", &first.path(), Some(&first.credential), json!({})).await;
    assert_eq!(replaced.status, 404);

    let list = app.get("/lode/v1/workers").await;
    for hidden in [&joined.secret, &joined.credential] {
        assert!(!list.text().contains(hidden));
    }
    let workers = list.json()["workers"].clone();
    assert_eq!(workers.as_array().unwrap().len(), 1, "a restarted worker replaces its previous registration");
    assert_eq!(
        (&workers[0]["devices"][0]["more"], &workers[0]["loaded"][0]["expires_at"]),
        (&json!(true), &json!("soon"))
    );
    assert_eq!(app.get("/api/ps").await.json()["models"][0]["name"], "mini:latest");

    assert_eq!(local(&app, "DELETE", &path, credential, json!(null)).await.status, 204);
    assert_eq!(app.get("/lode/v1/workers").await.json(), json!({"workers": []}));
}

#[tokio::test]
async fn joining_needs_a_token_or_this_machine() {
    let body = || json!({"advertise": "http://127.0.0.1:1"});
    let open = App::new().await;
    assert_eq!(open.post_json("/lode/v1/workers", body()).await.status, 403, "from an unknown address");
    assert_eq!(local(&open, "POST", "/lode/v1/workers", None, body()).await.status, 201);

    let shared = App::with(Config { worker_token: Some(Secret::new("hush")), ..Config::default() }).await;
    for (token, status) in [(None, 401), (Some("wrong"), 401), (Some("hus"), 401), (Some("hush"), 201)] {
        assert_eq!(
            local(&shared, "POST", "/lode/v1/workers", token, body()).await.status,
            status,
            "{token:?}"
        );
    }
}

#[tokio::test]
async fn a_worker_may_only_report_for_itself() {
    let app = App::with(Config { worker_token: Some(Secret::new("hush")), ..Config::default() }).await;
    let register = async |port: u16| {
        let body = json!({"advertise": format!("http://127.0.0.1:{port}")});
        local(&app, "POST", "/lode/v1/workers", Some("hush"), body).await.json()
    };
    let (mine, other) = (register(1).await, register(2).await);
    let path = format!("/lode/v1/workers/{}", other["id"].as_str().unwrap());
    let digest = Digest::sha256(b"x");
    let credential = |registration: &Value| registration["credential"].as_str().map(str::to_owned);
    let secret = other["secret"].as_str().map(str::to_owned);
    // The first heartbeat changes the inventory, the second does not.
    for beat in [json!({"cached": [digest]}), json!({})] {
        for wrong in [None, Some(String::new()), Some("hush".to_owned()), secret.clone(), credential(&mine)] {
            let response = local(&app, "PUT", &path, wrong.as_deref(), beat.clone()).await;
            assert_eq!(response.status, 404, "{wrong:?}");
            assert_eq!(local(&app, "DELETE", &path, wrong.as_deref(), json!(null)).await.status, 404);
        }
    }
    let listed = app.get("/lode/v1/workers").await.json();
    assert_eq!(listed["workers"][1]["cached"], json!([]), "{listed}");
    let own = credential(&other);
    assert_eq!(local(&app, "PUT", &path, own.as_deref(), json!({"cached": [digest]})).await.status, 204);
    assert_eq!(local(&app, "DELETE", &path, own.as_deref(), json!(null)).await.status, 204);
}

#[tokio::test]
async fn readiness_waits_for_the_worker_and_the_model() {
    let config =
        Config { wait_for_worker: true, wait_for_model: Some("mini".to_owned()), ..Config::default() };
    let app = App::with(config).await;
    assert_eq!(app.get("/healthz").await.status, 200);
    let not_yet = app.get("/readyz").await;
    assert_eq!(not_yet.status, 503);
    assert_eq!(not_yet.json()["missing"].as_array().unwrap().len(), 2);
    app.push_image("mini", "latest", "x").await;
    join(&app, SocketAddr::from(([127, 0, 0, 1], 9))).await;
    assert_eq!(app.get("/readyz").await.status, 200);
}

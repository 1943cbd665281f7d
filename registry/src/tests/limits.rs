//! Limits on request bodies: their size by route, their lists, and the memory that they share.

use axum::body::Body;
use axum::response::Response;
use http::Request;
use lode_client::ByteSize;
use serde_json::json;
use tokio::sync::mpsc;

use super::gateway::{join, records, worker};
use super::wire::within;
use super::{App, TestResponse};
use crate::Config;

/// The text of an error in the format of its API.
fn message(path: &str, response: &TestResponse) -> String {
    let json = response.json();
    let text = if path == "/v2/rerank" || path.starts_with("/v1/") {
        &json["error"]["message"]
    } else if path.starts_with("/v2/") {
        &json["errors"][0]["message"]
    } else if json["detail"].is_string() {
        &json["detail"]
    } else {
        &json["error"]
    };
    text.as_str().unwrap_or_else(|| panic!("{path}: {}", response.text())).to_owned()
}

/// The middleware's future is allocated and moved for each request, so that rare work in it needs a box of its own.
#[tokio::test]
async fn the_middleware_of_a_request_takes_little_memory() {
    let app = App::new().await;
    let service = crate::router::service(app.registry.clone()).unwrap();
    let future = service.respond(Request::get("/v2/").body(Body::empty()).unwrap());
    let bytes = size_of_val(&*future);
    assert!(bytes < 6000, "{bytes} bytes");
}

#[tokio::test]
async fn bodies_are_limited_by_route() {
    let app = App::with(Config { max_body: ByteSize(2 << 20), ..Config::default() }).await;
    app.push_image("mini", "latest", "x").await;
    let (address, heard) = worker(|| records("{\"embeddings\":[[1]],\"done\":true}\n")).await;
    join(&app, address).await;
    let body = |len: usize| {
        let start = r#"{"model":"mini","input":"x","messages":[{"role":"user","content":"x"}],"more":""#;
        format!("{start}{}\"}}", "x".repeat(len - start.len() - 2))
    };
    let inference = [
        "/api/generate",
        "/api/chat",
        "/api/embed",
        "/api/embeddings",
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/api/rerank",
        "/v1/rerank",
        "/v2/rerank",
        "/lode/v1/generate",
        "/lode/v1/score",
    ];
    for path in inference {
        let response = app.send(Request::post(path), body(2 << 20)).await;
        assert_eq!(response.status, 200, "{path}: {}", response.text());
        assert!(heard.lock().unwrap().pop().is_some(), "{path}");
        let response = app.send(Request::post(path), body((2 << 20) + 1)).await;
        assert_eq!(response.status, 413, "{path}");
        assert_eq!(message(path, &response), "the request body has more than 2097152 bytes", "{path}");
    }
    for path in ["/api/show", "/api/copy", "/api/create", "/api/pull", "/lode/v1/gc", "/lode/v1/gc/undo"] {
        let response = app.send(Request::post(path), body((1 << 20) + 1)).await;
        assert_eq!(response.status, 413, "{path}");
        assert_eq!(message(path, &response), "the request body has more than 1048576 bytes", "{path}");
    }
    assert_eq!(app.send(Request::post("/api/show"), body(1 << 20)).await.status, 404);
    let manifest = app.send(Request::put("/v2/a/manifests/b"), vec![b' '; (4 << 20) + 1]).await;
    assert_eq!((manifest.status.as_u16(), manifest.code()), (413, "SIZE_INVALID".to_owned()));
    assert!(heard.lock().unwrap().is_empty());
}

#[tokio::test]
async fn lists_are_limited() {
    let app = App::new().await;
    app.push_image("mini", "latest", "x").await;
    let (address, heard) = worker(|| records("{\"done\":true}\n")).await;
    join(&app, address).await;
    let body = |field: &str, entry: &str, count: usize| {
        format!("{{\"model\":\"mini\",\"{field}\":[{}]}}", vec![entry; count].join(","))
    };
    let message_entry = r#"{"role":"user","content":""}"#;
    for (path, field, entry) in [
        ("/api/chat", "messages", message_entry),
        ("/api/chat", "tools", "{}"),
        ("/v1/chat/completions", "messages", message_entry),
        ("/v1/chat/completions", "tools", "{}"),
        ("/v1/messages", "messages", message_entry),
        ("/v1/responses", "input", message_entry),
        ("/api/embed", "input", "\"\""),
        ("/v1/embeddings", "input", "\"\""),
        ("/api/rerank", "documents", "\"\""),
        ("/v2/rerank", "documents", "\"\""),
        ("/lode/v1/score", "windows", "[]"),
    ] {
        let response = app.send(Request::post(path), body(field, entry, 10_001)).await;
        assert_eq!(response.status, 400, "{path} {field}");
        assert_eq!(message(path, &response), format!("`{field}` has more than 10000 entries"), "{path}");
    }
    assert!(heard.lock().unwrap().is_empty(), "no worker got a request");
    let most = app.send(Request::post("/api/chat"), body("messages", message_entry, 10_000)).await;
    assert_eq!(most.status, 200);

    let files: Vec<String> = (0..10_001).map(|n| format!("\"{n}\":\"x\"")).collect();
    let create = format!("{{\"model\":\"m\",\"files\":{{{}}}}}", files.join(","));
    let response = app.send(Request::post("/api/create"), create).await;
    assert_eq!(
        (response.status.as_u16(), message("", &response)),
        (400, "`files` has more than 10000 entries".to_owned())
    );
    let nested = format!("{{\"model\":\"mini\",\"x\":{}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
    for path in ["/api/show", "/api/chat", "/v1/embeddings"] {
        let response = app.send(Request::post(path), nested.clone()).await;
        assert_eq!(response.status, 400, "{path}");
        assert!(message(path, &response).contains("recursion limit"), "{path}: {}", response.text());
    }
    // A megabyte of small values would take more memory than the budget of all bodies.
    let values = format!("{{\"model\":\"mini\",\"x\":[{}1]}}", "1,".repeat(500_000));
    let response = app.send(Request::post("/api/show"), values).await;
    assert_eq!(response.status, 413);
    assert!(message("", &response).contains("once parsed"), "{}", response.text());
}

#[tokio::test]
async fn bodies_in_flight_share_a_budget() {
    let app = App::with(Config { body_budget: ByteSize::mib(1), ..Config::default() }).await;
    app.push_image("mini", "latest", "x").await;
    // A worker that responds on demand.
    let (started, mut begun) = mpsc::channel::<mpsc::Sender<()>>(1);
    let routes = axum::Router::new().fallback(move || {
        let started = started.clone();
        async move {
            let (go_on, mut released) = mpsc::channel(1);
            started.send(go_on).await.unwrap();
            released.recv().await;
            records("{\"done\":true}\n")
        }
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    join(&app, listener.local_addr().unwrap()).await;
    tokio::spawn(async move { axum::serve(listener, routes).await });

    let body = |len: usize| json!({"model": "mini", "prompt": "x".repeat(len)}).to_string();
    let request = |path: &str, len: usize| Request::post(path).body(Body::from(body(len))).unwrap();
    let send = |request: Request<Body>| {
        let router = app.router.clone();
        tokio::spawn(async move { tower::ServiceExt::oneshot(router, request).await.unwrap() })
    };
    let first = send(request("/api/generate", 600 << 10));
    let first_goes_on = within(begun.recv()).await.unwrap();
    for path in ["/api/generate", "/v1/completions", "/lode/v1/generate"] {
        let response = TestResponse::read(app.raw(request(path, 600 << 10)).await).await;
        assert_eq!(response.status, 503, "{path}");
        assert_eq!(response.header("retry-after"), "5", "{path}");
        assert!(
            message(path, &response).contains("memory budget for request bodies"),
            "{path}: {}",
            response.text()
        );
    }
    let refused = app.send(Request::put("/v2/a/manifests/b"), vec![b' '; 600 << 10]).await;
    assert_eq!(refused.failure(), super::failure(503, "UNAVAILABLE"));
    // Small bodies have a reserved part of the budget.
    let small = send(request("/api/generate", 10));
    within(begun.recv()).await.unwrap().send(()).await.unwrap();
    assert_eq!(within(small).await.unwrap().status(), 200);

    first_goes_on.send(()).await.unwrap();
    let response: Response = within(first).await.unwrap();
    assert_eq!(response.status(), 200);
    // The body was released when the worker began its response.
    let next = send(request("/api/generate", 600 << 10));
    within(begun.recv()).await.unwrap().send(()).await.unwrap();
    assert_eq!(within(next).await.unwrap().status(), 200);
}

//! The connection limit: idle connections are closed for new ones, busy ones stay open, and connections
//! beyond the limit get a 503.

use lode_model::digest::Digest;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::wire::{Server, request, within};
use super::{App, TestResponse};
use crate::Config;

async fn server(max_connections: usize) -> (App, Server) {
    let app = App::with(Config { max_connections, ..Config::default() }).await;
    let server = Server::start(&app).await;
    (app, server)
}

/// Whether the connection is closed without a response.
async fn is_closed(stream: &mut TcpStream) -> bool {
    matches!(within(stream.read(&mut [0; 1])).await, Ok(0) | Err(_))
}

#[tokio::test]
async fn idle_connections_make_room_for_new_ones() {
    let (_app, server) = server(4).await;
    // One that sent a request and is idle, one that sent half of a head, and two that sent nothing.
    let mut idle = Vec::new();
    for start in ["GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n", "GET /healthz HTT", "", ""] {
        let mut stream = server.connect().await;
        stream.write_all(start.as_bytes()).await.unwrap();
        if start.ends_with("\r\n\r\n") {
            let mut response = [0; 12];
            within(stream.read_exact(&mut response)).await.unwrap();
            assert_eq!(&response, b"HTTP/1.1 200");
        }
        idle.push(stream);
    }
    for _ in 0..8 {
        let response = server.exchange(&request("GET /v2/", "")).await;
        assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
    }
    // At most four are open, so the earlier ones have been closed, in any order.
    let mut late = Vec::new();
    for _ in 0..4 {
        let mut stream = server.connect().await;
        stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        let mut response = [0; 12];
        within(stream.read_exact(&mut response)).await.unwrap();
        assert_eq!(&response, b"HTTP/1.1 200");
        late.push(stream);
    }
    for stream in &mut idle[1..] {
        assert!(is_closed(stream).await);
    }
}

/// A busy server may accept many connections before it reads from the first of them.
#[tokio::test]
async fn a_request_that_has_arrived_is_served_on_a_connection_chosen_for_closing() {
    let (_app, server) = server(1).await;
    for _ in 0..20 {
        // The server runs on this thread, so it accepts neither connection before both wait for it.
        let mut first = std::net::TcpStream::connect(server.address).unwrap();
        std::io::Write::write_all(&mut first, b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
        let second = std::net::TcpStream::connect(server.address).unwrap();
        first.set_nonblocking(true).unwrap();
        let mut first = TcpStream::from_std(first).unwrap();
        let mut response = [0; 12];
        within(first.read_exact(&mut response)).await.unwrap();
        assert_eq!(&response, b"HTTP/1.1 200");
        drop(second);
    }
}

#[tokio::test]
async fn busy_connections_stay_and_others_are_refused() {
    let (app, server) = server(3).await;
    let digest = Digest::sha256(b"slowly");
    let head = request(&format!("POST /v2/a/blobs/uploads/?digest={digest}"), "content-length: 6\r\n");
    let mut busy = Vec::new();
    for _ in 0..3 {
        let mut stream = server.connect().await;
        // The server sends 100 Continue once it reads the body.
        let head = head.replace("content-length", "expect: 100-continue\r\ncontent-length");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut response = [0; 12];
        within(stream.read_exact(&mut response)).await.unwrap();
        assert_eq!(&response, b"HTTP/1.1 100");
        busy.push(stream);
    }
    for (path, body) in [
        ("/v2/", "\"code\":\"UNAVAILABLE\""),
        ("/api/tags", "{\"error\":\"the server has reached its limit"),
        ("/v1/models", "\"type\":\"api_error\""),
    ] {
        let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        let response = server.exchange(&head).await;
        assert!(response.starts_with("HTTP/1.1 503 "), "{path}: {response}");
        assert!(
            response.contains("connection: close\r\n") && response.contains("retry-after: 5\r\n"),
            "{response}"
        );
        assert!(response.contains(body), "{path}: {response}");
    }
    for path in ["/healthz", "/readyz"] {
        let response = server.exchange(&request(&format!("GET {path}"), "")).await;
        assert!(response.starts_with("HTTP/1.1 200 "), "{path}: {response}");
    }
    for stream in &mut busy {
        stream.write_all(b"slowly").await.unwrap();
        let mut response = String::new();
        within(stream.read_to_string(&mut response)).await.unwrap();
        assert!(response.contains("HTTP/1.1 201 "), "{response}");
    }
    let response = server.exchange(&request("GET /v2/", "")).await;
    assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
    drop(app);
}

#[tokio::test]
async fn methods_caches_and_compression() {
    let app = App::new().await;
    let digest = app.push_image("a", "latest", "x").await;
    for (path, allow) in [("/v2/", "GET,HEAD"), ("/api/chat", "POST"), ("/v1/models", "GET,HEAD")] {
        let response = app.send(http::Request::patch(path), "").await;
        assert_eq!((response.status.as_u16(), response.header("allow")), (405, allow), "{path}");
    }
    let blob = app.push_blob("a", "0123456789").await;
    let immutable = "private, max-age=31536000, immutable";
    for path in [format!("/v2/a/blobs/{blob}"), format!("/v2/a/manifests/{digest}")] {
        for method in ["GET", "HEAD"] {
            let response = app.send(http::Request::builder().method(method).uri(&path), "").await;
            assert_eq!(response.header("cache-control"), immutable, "{method} {path}");
        }
    }
    assert!(!app.get("/v2/a/manifests/latest").await.headers.contains_key("cache-control"));

    let manifest = app.get("/v2/a/manifests/latest").await;
    let bytes: serde_json::Value = manifest.json();
    for n in 0..100 {
        app.push_manifest("a", &format!("tag-{n}-with-a-long-name"), &bytes).await;
    }
    let large = app.push_blob("a", vec![b'x'; 5000]).await;
    let get = async |path: &str, accept: &str| -> TestResponse {
        app.send(http::Request::get(path).header("accept-encoding", accept), "").await
    };
    let plain = app.get("/v2/a/tags/list").await;
    assert_eq!((plain.header("vary"), plain.headers.get("content-encoding")), ("accept-encoding", None));
    let packed = get("/v2/a/tags/list", "br;q=1.0, gzip").await;
    assert_eq!(packed.header("content-encoding"), "gzip");
    assert!(packed.body.starts_with(&[0x1f, 0x8b]) && packed.body.len() * 4 < plain.body.len());
    assert_eq!(get("/v2/a/tags/list", "gzip;q=0, identity").await.body, plain.body);
    let page = get("/models", "gzip, deflate, br").await;
    let headers = (page.header("content-type"), page.header("content-encoding"));
    assert_eq!(headers, ("text/html; charset=utf-8", "gzip"));
    let page = app.get("/models").await;
    let (style, _) = page.text().split_once(".css").unwrap();
    let style = format!("{}.css", style.rsplit('"').next().unwrap());
    assert_eq!(get(&style, "gzip").await.header("content-encoding"), "gzip");
    for (name, value) in [("cookie", "a=b"), ("authorization", "Basic YTpi")] {
        let request = http::Request::get("/models").header("accept-encoding", "gzip");
        let page = app.send(request.header(name, value), "").await;
        assert_eq!(page.headers.get("content-encoding"), None, "{name}");
    }
    for path in [
        format!("/v2/a/blobs/{large}"),
        "/v2/a/manifests/latest".to_owned(),
        "/api/version".to_owned(),
        "/metrics".to_owned(),
    ] {
        assert_eq!(get(&path, "gzip").await.headers.get("content-encoding"), None, "{path}");
    }
}

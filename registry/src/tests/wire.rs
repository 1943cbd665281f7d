//! Behaviour that only a socket shows: lengths on HEAD, early responses, `100 Continue`, bodies that end
//! early, and shutdown.

use std::net::SocketAddr;
use std::time::Duration;

use lode_model::digest::Digest;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::App;
use super::access::{basic, closed};
use crate::{OpenError, Tls, serve};

pub(super) struct Server {
    pub(super) address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    end: JoinHandle<Result<(), OpenError>>,
}

impl Server {
    pub(super) async fn start(app: &App) -> Server {
        Server::start_with(app, None).await
    }

    pub(super) async fn start_with(app: &App, tls: Option<Tls>) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let shutdown = async move { stopped.await.unwrap_or_default() };
        let end = tokio::spawn(serve(app.registry.clone(), listener, tls, shutdown));
        Server { address, stop: Some(stop), end }
    }

    pub(super) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Sends `text` on a new connection, and reads until the server closes it.
    pub(super) async fn exchange(&self, text: &str) -> String {
        let mut stream = self.connect().await;
        stream.write_all(text.as_bytes()).await.unwrap();
        let mut response = String::new();
        within(stream.read_to_string(&mut response)).await.unwrap();
        response
    }
}

pub(super) async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(120), work).await.expect("done within the timeout")
}

async fn read_until(stream: &mut TcpStream, end: &str) -> String {
    let mut read = String::new();
    while !read.ends_with(end) {
        read.push(within(stream.read_u8()).await.unwrap() as char);
    }
    read
}

pub(super) fn request(line: &str, headers: &str) -> String {
    format!("{line} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}\r\n")
}

#[tokio::test]
async fn lengths_are_on_the_wire() {
    let app = App::new().await;
    let digest = app.push_blob("a", "0123456789").await;
    let server = Server::start(&app).await;
    let head = server.exchange(&request(&format!("HEAD /v2/a/blobs/{digest}"), "")).await;
    assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("content-length: 10\r\n"), "{head}");
    assert!(head.ends_with("\r\n\r\n"), "no body");
    let part = server.exchange(&request(&format!("GET /v2/a/blobs/{digest}"), "range: bytes=2-4\r\n")).await;
    assert!(part.contains("content-length: 3\r\n") && part.ends_with("\r\n\r\n234"), "{part}");
    let missing = server.exchange(&request("HEAD /v2/a/manifests/none", "")).await;
    assert!(missing.starts_with("HTTP/1.1 404 ") && missing.ends_with("\r\n\r\n"), "{missing}");
    let opened = server.exchange(&request("POST /v2/a/blobs/uploads/", "content-length: 0\r\n")).await;
    assert!(opened.starts_with("HTTP/1.1 202 ") && opened.contains("content-length: 0\r\n"), "{opened}");
}

#[tokio::test]
async fn expect_100_continue() {
    let app = App::new().await;
    let server = Server::start(&app).await;
    let digest = Digest::sha256(b"hello");
    let mut stream = server.connect().await;
    let headers = "expect: 100-continue\r\ncontent-length: 5\r\n";
    let head = request(&format!("POST /v2/a/blobs/uploads/?digest={digest}"), headers);
    stream.write_all(head.as_bytes()).await.unwrap();
    assert_eq!(read_until(&mut stream, "\r\n\r\n").await, "HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(b"hello").await.unwrap();
    assert!(read_until(&mut stream, "\r\n\r\n").await.starts_with("HTTP/1.1 201 "));

    let too_big = "expect: 100-continue\r\ncontent-length: 99999999\r\n";
    let refused = server.exchange(&request("PUT /v2/a/manifests/latest", too_big)).await;
    assert!(refused.starts_with("HTTP/1.1 413 "), "no 100 Continue: {refused}");
}

/// Sends a chunk of 8 MB, which the server does not need for its response.
async fn response_to_large_chunk(server: &Server, location: &str, headers: &str) -> String {
    let mut stream = server.connect().await;
    let size = 8 * 1024 * 1024;
    let headers = format!("content-range: 7-{}\r\ncontent-length: {size}\r\n{headers}", 6 + size);
    stream.write_all(request(&format!("PATCH {location}"), &headers).as_bytes()).await.unwrap();
    let (mut reader, mut writer) = stream.split();
    let sent = async { writer.write_all(&vec![1; size]).await };
    let mut response = String::new();
    let (sent, read) = within(async { tokio::join!(sent, reader.read_to_string(&mut response)) }).await;
    sent.expect("the connection is not reset while the client sends");
    read.unwrap();
    response
}

#[tokio::test]
async fn an_early_response_arrives() {
    let app = App::new().await;
    let server = Server::start(&app).await;
    let location = app.upload("a").await;
    let response = response_to_large_chunk(&server, &location, "").await;
    assert!(response.starts_with("HTTP/1.1 416 ") && response.contains("range: 0-0\r\n"), "{response}");
}

/// Such as one whose token has expired, or while the database does not respond.
#[tokio::test]
async fn a_response_to_a_refused_request_arrives() {
    let app = closed().await;
    let server = Server::start(&app).await;
    let location = format!("/v2/a/blobs/uploads/{}", uuid::Uuid::new_v4());
    let credentials = |password| format!("authorization: {}\r\n", basic("admin", password));
    let response = response_to_large_chunk(&server, &location, &credentials("wrong")).await;
    assert!(response.starts_with("HTTP/1.1 401 "), "{response}");
    app.registry.store().close().await;
    // A wrong password is refused without the database if it was refused before.
    let response = response_to_large_chunk(&server, &location, &credentials("other")).await;
    assert!(response.starts_with("HTTP/1.1 50"), "{response}");
}

#[tokio::test]
async fn an_interrupted_body_stores_only_valid_bytes() {
    let app = App::new().await;
    let server = Server::start(&app).await;
    let location = app.upload("a").await;
    let mut stream = server.connect().await;
    let head = request(&format!("PATCH {location}"), "content-length: 100\r\n");
    stream.write_all(format!("{head}only this").as_bytes()).await.unwrap();
    drop(stream);
    // The status reports how much was saved, and the upload resumes from there.
    let offset = async {
        loop {
            let status = app.get(&location).await;
            assert_eq!(status.status, 204);
            let range = status.header("range").to_owned();
            let before = if range == "0-0" { 0 } else { range[2..].parse::<u64>().unwrap() + 1 };
            // With its range, so that it is refused if the interrupted body is saved only now.
            let next = http::Request::patch(&location)
                .header("content-length", 4)
                .header("content-range", format!("{before}-{}", before + 3));
            let response = app.send(next, "more").await;
            if response.status == 202 {
                break (before, response.header("range").to_owned());
            }
            tokio::task::yield_now().await;
        }
    };
    let (before, after) = within(offset).await;
    assert_eq!(after, format!("0-{}", before + 3));
}

#[tokio::test]
async fn a_stopping_server_finishes_what_it_began() {
    let app = App::new().await;
    let mut server = Server::start(&app).await;
    let digest = Digest::sha256(b"slowly");
    let mut stream = server.connect().await;
    let head = request(&format!("POST /v2/a/blobs/uploads/?digest={digest}"), "content-length: 6\r\n");
    stream.write_all(format!("{head}slo").as_bytes()).await.unwrap();
    let mut idle = server.connect().await;
    idle.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    assert!(read_until(&mut idle, "ok\n").await.starts_with("HTTP/1.1 200 "));

    server.stop.take().unwrap().send(()).unwrap();
    // The idle connection ends and new ones are refused; the upload continues.
    assert_eq!(within(idle.read(&mut [0; 1])).await.unwrap(), 0);
    assert!(TcpStream::connect(server.address).await.is_err());
    assert!(!server.end.is_finished());
    stream.write_all(b"wly").await.unwrap();
    assert!(read_until(&mut stream, "\r\n\r\n").await.starts_with("HTTP/1.1 201 "));
    within(server.end).await.unwrap().unwrap();
}

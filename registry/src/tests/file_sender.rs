//! Pulls over real connections: file bodies, which bypass this process, and others, compared byte by byte.

use std::ops::Range;
use std::time::Duration;

use lode_model::digest::Digest;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::App;
use super::wire::{Server, request, within};

/// A text with different lines, so that misplaced bytes are noticed.
fn text(lines: usize) -> String {
    (0..lines).map(|i| format!("{i:07}\n")).collect()
}

struct Fixture {
    server: Server,
    app: App,
    /// Larger than every buffer in between.
    large: (Digest, String),
    small: (Digest, String),
}

impl Fixture {
    async fn start() -> Fixture {
        let app = App::new().await;
        let (large, small) = (text(700_000), "small".to_owned());
        let large = (app.push_blob("a", large.clone()).await, large);
        let small = (app.push_blob("a", small.clone()).await, small);
        Fixture { server: Server::start(&app).await, app, large, small }
    }
}

/// A range request on a persistent connection.
fn part(digest: &Digest, range: &Range<usize>) -> String {
    let (first, last) = (range.start, range.end - 1);
    format!("GET /v2/a/blobs/{digest} HTTP/1.1\r\nhost: localhost\r\nrange: bytes={first}-{last}\r\n\r\n")
}

async fn head_of(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(within(stream.read_u8()).await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

/// Reads a response that must have this text, with pauses if `pause` is set.
async fn expect(stream: &mut (impl AsyncRead + Unpin), status: u16, text: &str, pause: bool) {
    let head = head_of(stream).await;
    assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
    assert!(head.contains(&format!("content-length: {}\r\n", text.len())), "{head}");
    let mut body = vec![0; text.len()];
    for piece in body.chunks_mut(300_000) {
        if pause {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        within(stream.read_exact(piece)).await.unwrap();
    }
    assert!(body == text.as_bytes(), "{head}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parts_in_a_pipeline_come_whole_and_in_order() {
    let f = Fixture::start().await;
    let ((large, text), (small, small_text)) = (&f.large, &f.small);
    let parts = [
        (large, text, 0..text.len()),
        (small, small_text, 0..5),
        (large, text, 1_048_575..3_145_731),
        (large, text, 77..78),
        (small, small_text, 1..3),
        (large, text, text.len() - 1..text.len()),
        (large, text, 0..text.len()),
        (small, small_text, 0..5),
    ];
    let requests: String = parts.iter().map(|(digest, _, range)| part(digest, range)).collect();
    for pause in [false, true] {
        let mut stream = f.server.connect().await;
        let (mut reader, mut writer) = stream.split();
        let read = async {
            for (_, text, range) in &parts {
                expect(&mut reader, 206, &text[range.clone()], pause).await;
            }
        };
        let (sent, ()) = tokio::join!(writer.write_all(requests.as_bytes()), read);
        sent.unwrap();
    }
    // A pipeline of many small responses, some of them from files.
    let mut stream = f.server.connect().await;
    let ping = "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let requests = format!("{}{ping}", part(small, &(0..5))).repeat(60);
    let (mut reader, mut writer) = stream.split();
    let read = async {
        for _ in 0..60 {
            expect(&mut reader, 206, "small", false).await;
            expect(&mut reader, 200, "ok\n", false).await;
        }
    };
    let (sent, ()) = tokio::join!(writer.write_all(requests.as_bytes()), read);
    sent.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_head_has_no_body_and_the_connection_goes_on() {
    let f = Fixture::start().await;
    let (digest, text) = &f.large;
    let mut stream = f.server.connect().await;
    for _ in 0..3 {
        let head = format!("HEAD /v2/a/blobs/{digest} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let head = head_of(&mut stream).await;
        assert!(head.contains(&format!("content-length: {}\r\n", text.len())), "{head}");
        let range = 5..2_000_000;
        stream.write_all(part(digest, &range).as_bytes()).await.unwrap();
        expect(&mut stream, 206, &text[range], false).await;
        let beyond =
            format!("GET /v2/a/blobs/{digest} HTTP/1.1\r\nhost: localhost\r\nrange: bytes=99999999-\r\n\r\n");
        stream.write_all(beyond.as_bytes()).await.unwrap();
        let head = head_of(&mut stream).await;
        assert!(head.starts_with("HTTP/1.1 416 "), "{head}");
        let length = head.split("content-length: ").nth(1).unwrap().split('\r').next().unwrap();
        within(stream.read_exact(&mut vec![0; length.parse().unwrap()])).await.unwrap();
    }
    let empty = f.app.push_blob("a", "").await;
    let response = f.server.exchange(&request(&format!("GET /v2/a/blobs/{empty}"), "")).await;
    assert!(response.contains("content-length: 0\r\n") && response.ends_with("\r\n\r\n"), "{response}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_clients_of_every_pace() {
    let f = Fixture::start().await;
    let (digest, text) = &f.large;
    let clients = (0..100).map(async |i: usize| {
        let mut stream: TcpStream = f.server.connect().await;
        let range = i * 1000..text.len() - i * 3000;
        stream.write_all(part(digest, &range).as_bytes()).await.unwrap();
        match i % 4 {
            // Disconnects in the middle.
            0 => {
                within(stream.read_exact(&mut vec![0; 200_000])).await.unwrap();
                return;
            }
            // Disconnects at once.
            1 if i > 50 => return,
            pace => expect(&mut stream, 206, &text[range], pace == 1).await,
        }
        stream.write_all(part(&f.small.0, &(0..5)).as_bytes()).await.unwrap();
        expect(&mut stream, 206, "small", false).await;
    });
    futures::future::join_all(clients).await;
}

/// Framed or encrypted responses, and those of versions without persistent connections, pass through this
/// process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_versions_get_the_same_bytes() {
    let f = Fixture::start().await;
    let (digest, text) = &f.large;
    let old = format!("GET /v2/a/blobs/{digest} HTTP/1.0\r\nhost: localhost\r\n\r\n");
    assert!(f.server.exchange(&old).await.split_once("\r\n\r\n").is_some_and(|(_, body)| body == text));
    let client = reqwest::Client::builder().no_proxy().http2_prior_knowledge().build().unwrap();
    let url = format!("http://{}/v2/a/blobs/{digest}", f.server.address);
    let downloads = (0..4).map(async |i: usize| {
        let response = client.get(&url).header("range", format!("bytes={i}-")).send().await.unwrap();
        assert_eq!((response.status().as_u16(), response.version()), (206, http::Version::HTTP_2));
        assert!(within(response.bytes()).await.unwrap() == text.as_bytes()[i..]);
    });
    futures::future::join_all(downloads).await;
}

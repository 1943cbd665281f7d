//! HTTP details: Content-Length on HEAD, ranges, no compression, 100-continue, absolute request targets,
//! keep-alive. The tests use plain sockets, because client libraries hide these details.

use std::io::Write;

use lode_tests::artifact::{Image, fresh_seed, random_bytes, sha256};
use lode_tests::raw::{connect, exchange, read_one, send};
use lode_tests::server::Server;

#[tokio::test]
async fn head_tells_length_type_and_digest_and_sends_no_body() {
    let server = Server::fresh().await;
    let registry = server.registry();
    let image = Image::random(fresh_seed(), 1, 123_456);
    let digest = image.push(&registry, "wire", "v1").await;
    let layer = sha256(&image.layers[0]);

    let response = send(server.address, "HEAD", &format!("/v2/wire/blobs/{layer}"), "");
    assert_eq!(
        (response.status, response.header("content-length"), response.body.len()),
        (200, Some("123456"), 0)
    );
    assert_eq!(
        (response.header("docker-content-digest"), response.header("accept-ranges")),
        (Some(layer.as_str()), Some("bytes"))
    );
    assert_eq!(response.header("transfer-encoding"), None);

    let length = image.manifest.len().to_string();
    for reference in ["v1", &digest] {
        for method in ["HEAD", "GET"] {
            let response = send(
                server.address,
                method,
                &format!("/v2/wire/manifests/{reference}"),
                "accept-encoding: gzip, br\r\n",
            );
            assert_eq!(
                (response.status, response.header("content-length")),
                (200, Some(length.as_str())),
                "{method}"
            );
            assert_eq!(response.header("docker-content-digest"), Some(digest.as_str()));
            assert_eq!(response.header("content-type"), Some("application/vnd.oci.image.manifest.v1+json"));
            assert_eq!(response.header("content-encoding"), None, "the response is compressed");
            assert_eq!(response.body.is_empty(), method == "HEAD");
        }
    }
    let response = send(server.address, "HEAD", &format!("/v2/wire/blobs/{}", sha256(b"absent")), "");
    assert_eq!((response.status, response.body.len()), (404, 0));
    let response = send(server.address, "GET", "/v2/", "");
    assert_eq!(response.status, 200);
}

#[tokio::test]
async fn ranges() {
    let server = Server::fresh().await;
    let registry = server.registry();
    let bytes = random_bytes(fresh_seed(), 1000);
    let digest = registry.blob_push("wire", &bytes).await;
    let target = format!("/v2/wire/blobs/{digest}");
    for (range, part) in [
        ("bytes=0-0", 0..1),
        ("bytes=0-499", 0..500),
        ("bytes=500-", 500..1000),
        ("bytes=999-", 999..1000),
        ("bytes=-1", 999..1000),
        ("bytes=-1000", 0..1000),
        ("bytes=-5000", 0..1000),
        ("bytes=990-5000", 990..1000),
    ] {
        let response = send(server.address, "GET", &target, &format!("range: {range}\r\n"));
        assert_eq!((response.status, &response.body[..]), (206, &bytes[part.clone()]), "{range}");
        assert_eq!(
            response.header("content-range"),
            Some(format!("bytes {}-{}/1000", part.start, part.end - 1).as_str()),
            "{range}"
        );
        assert_eq!(response.header("content-length"), Some(part.len().to_string().as_str()), "{range}");
    }
    for range in ["bytes=1000-", "bytes=1000-2000", "bytes=5000-", "bytes=500-0", "bytes=-0"] {
        let response = send(server.address, "GET", &target, &format!("range: {range}\r\n"));
        assert_eq!(
            (response.status, response.header("content-range")),
            (416, Some("bytes */1000")),
            "{range}"
        );
    }
    for range in ["lines=1-2", "bytes", "bytes=", "bytes=x-y", "bytes=1-x", "garbage", "bytes=--5"] {
        let response = send(server.address, "GET", &target, &format!("range: {range}\r\n"));
        assert_eq!((response.status, &response.body[..]), (200, &bytes[..]), "{range} is ignored");
    }
    // Several ranges: one part for each.
    let response = send(server.address, "GET", &target, "range: bytes=0-9,20-29\r\n");
    assert_eq!(response.status, 206);
    assert!(response.header("content-type").unwrap().starts_with("multipart/byteranges; boundary="));
    assert_eq!(response.header("content-length"), Some(response.body.len().to_string().as_str()));
    for (at, described) in [(0, "bytes 0-9/1000"), (20, "bytes 20-29/1000")] {
        let part = [format!("{described}\r\n\r\n").as_bytes(), &bytes[at..at + 10], b"\r\n--"].concat();
        assert!(response.body.windows(part.len()).any(|window| window == part), "{described}");
    }
}

#[tokio::test]
async fn a_connection_serves_many_requests_and_refusals() {
    let server = Server::fresh().await;
    let registry = server.registry();
    let digest = registry.blob_push("wire", b"kept alive").await;
    let mut stream = connect(server.address);
    for target in [
        format!("/v2/wire/blobs/{digest}"),
        "/v2/wire/blobs/sha256:bad".into(),
        "/v2/".into(),
        format!("/v2/wire/blobs/{digest}"),
    ] {
        write!(stream, "GET {target} HTTP/1.1\r\nhost: {}\r\n\r\n", server.address).unwrap();
        let response = read_one(&mut stream);
        assert!([200, 400, 404].contains(&response.status), "{target}: {}", response.status);
    }
}

#[tokio::test]
async fn expect_continue_and_absolute_targets() {
    let server = Server::fresh().await;
    let registry = server.registry();
    let location = registry.upload_open("wire").await;
    let path = location.trim_start_matches(&server.url());
    let digest = sha256(b"after 100");
    let separator = if path.contains('?') { '&' } else { '?' };
    let mut stream = connect(server.address);
    let head = format!(
        "PUT {path}{separator}digest={digest} HTTP/1.1\r\nhost: {}\r\nexpect: 100-continue\r\ncontent-length: 9\r\nconnection: close\r\n\r\n",
        server.address
    );
    stream.write_all(head.as_bytes()).unwrap();
    let response = read_one(&mut stream);
    assert_eq!(response.status, 100);
    stream.write_all(b"after 100").unwrap();
    assert_eq!(read_one(&mut stream).status, 201);

    let url = format!("http://{}/v2/wire/blobs/{digest}", server.address);
    let request = format!("GET {url} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", server.address);
    let response = exchange(server.address, request.as_bytes()).unwrap();
    assert_eq!((response.status, response.body.as_slice()), (200, b"after 100".as_slice()));
}

#[tokio::test]
async fn the_root_says_what_clients_of_ollama_look_for() {
    let server = Server::fresh().await;
    let response = send(server.address, "GET", "/", "");
    assert_eq!((response.status, response.text().as_str()), (200, "Ollama is running"));
    assert!(response.header("content-type").unwrap().starts_with("text/plain"));
    assert_eq!(send(server.address, "HEAD", "/", "").status, 200);
    let page =
        send(server.address, "GET", "/", "accept: text/html,application/xhtml+xml;q=0.9,*/*;q=0.8\r\n");
    assert!(
        page.header("content-type").unwrap().starts_with("text/html") && page.text().contains("Lode"),
        "{}",
        page.text()
    );
    assert_eq!(send(server.address, "GET", "/healthz", "").status, 200);
    let version = send(server.address, "GET", "/api/version", "");
    assert!(version.text().contains("version"), "{}", version.text());
}

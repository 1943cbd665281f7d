//! Reads of several ranges of a blob at once, from each storage.

use http::Request;
use lode_model::digest::Digest;
use uuid::Uuid;

use super::{App, TestResponse, failure};
use crate::{Config, Switch};

/// An app on a folder and one on object storage, each with one blob.
async fn each_storage() -> Vec<(App, Digest, Vec<u8>)> {
    let storage = format!("memory://{}", Uuid::new_v4().simple()).parse().unwrap();
    let bucket = Config { storage: Some(storage), redirect: Switch::Off, ..Config::default() };
    let mut all = Vec::new();
    for config in [Config::default(), bucket] {
        let app = App::with(config).await;
        let content: Vec<u8> = (0..3_000_000_u32).map(|n| (n ^ (n >> 8)) as u8).collect();
        let digest = app.push_blob("a", content.clone()).await;
        all.push((app, digest, content));
    }
    all
}

async fn read(app: &App, digest: &Digest, headers: &[(&str, &str)]) -> TestResponse {
    let request = Request::get(format!("/v2/a/blobs/{digest}"));
    app.send(headers.iter().fold(request, |request, (name, value)| request.header(*name, *value)), "").await
}

/// The parts of a `multipart/byteranges` body: the header lines and bytes of each.
fn parts(response: &TestResponse) -> Vec<(String, Vec<u8>)> {
    let boundary = response.header("content-type").strip_prefix("multipart/byteranges; boundary=").unwrap();
    let find = |bytes: &[u8], text: &str| bytes.windows(text.len()).position(|at| at == text.as_bytes());
    let mut rest = response.body.strip_prefix(format!("--{boundary}\r\n").as_bytes()).unwrap();
    let mut parts = Vec::new();
    loop {
        let lines = find(rest, "\r\n\r\n").unwrap();
        let head = std::str::from_utf8(&rest[..lines]).unwrap().to_owned();
        rest = &rest[lines + 4..];
        let delimiter = format!("\r\n--{boundary}");
        let end = find(rest, &delimiter).unwrap();
        parts.push((head, rest[..end].to_vec()));
        rest = &rest[end + delimiter.len()..];
        match rest.strip_prefix(b"--\r\n") {
            Some(epilogue) => {
                assert!(epilogue.is_empty());
                return parts;
            }
            None => rest = rest.strip_prefix(b"\r\n").unwrap(),
        }
    }
}

#[tokio::test]
async fn several_ranges_come_in_one_body() {
    for (app, digest, content) in each_storage().await {
        let total = content.len();
        // The first two are adjacent, the third overlaps the fourth, the last is outside the blob.
        let list = "bytes=10-19,20-29, 2000000-2300000,2200000-2400000 ,-5,9000000-";
        let response = read(&app, &digest, &[("range", list)]).await;
        assert_eq!(response.status, 206, "{}", response.status);
        assert_eq!(response.header("content-length"), response.body.len().to_string());
        assert_eq!(response.header("docker-content-digest"), digest.as_str());
        assert!(!response.headers.contains_key("content-range"));
        let expected = [10..30, 2_000_000..2_400_001, total - 5..total].map(|range| {
            let (first, last) = (range.start, range.end - 1);
            let head = format!(
                "Content-Type: application/octet-stream\r\nContent-Range: bytes {first}-{last}/{total}"
            );
            (head, content[range].to_vec())
        });
        assert_eq!(parts(&response), expected);

        // Ranges that merge into one give an ordinary partial response.
        let one = read(&app, &digest, &[("range", "bytes=0-9,5-19,9000000-")]).await;
        assert_eq!((one.status.as_u16(), one.header("content-range")), (206, "bytes 0-19/3000000"));
        assert_eq!(one.body, content[..20]);
    }
}

#[tokio::test]
async fn a_condition_and_the_number_of_ranges_are_checked() {
    for (app, digest, content) in each_storage().await {
        let two = ("range", "bytes=0-1,4-5");
        let tag = format!("\"{digest}\"");
        assert_eq!(parts(&read(&app, &digest, &[two, ("if-range", &tag)]).await).len(), 2);
        let changed = read(&app, &digest, &[two, ("if-range", "\"other\"")]).await;
        assert_eq!((changed.status.as_u16(), changed.body.len()), (200, content.len()));

        let list =
            |n: u32| (0..n).map(|at| format!("{}-{}", at * 10, at * 10 + 1)).collect::<Vec<_>>().join(",");
        let most = read(&app, &digest, &[("range", &format!("bytes={}", list(64)))]).await;
        assert_eq!(parts(&most).len(), 64);
        let range = format!("bytes={}", list(65));
        let refused = read(&app, &digest, &[("range", &range)]).await;
        assert_eq!(refused.failure(), failure(416, "SIZE_INVALID"));
        assert_eq!(refused.header("content-range"), "bytes */3000000");
        // These clients merge ranges and retry after a 400, and fail the pull after a 416.
        for agent in ["containers/5.36.1 (github.com/containers/image)", "libpod/5.5.0", "skopeo/1.19.0"] {
            let refused = read(&app, &digest, &[("range", &range), ("user-agent", agent)]).await;
            assert_eq!(refused.failure(), failure(400, "SIZE_INVALID"), "{agent}");
        }
        // Many adjacent ranges are one.
        let touching: Vec<String> = (0..5000).map(|at| format!("{at}-{at}")).collect();
        let merged = read(&app, &digest, &[("range", &format!("bytes={}", touching.join(",")))]).await;
        assert_eq!((merged.status.as_u16(), merged.body.len()), (206, 5000));
    }
}

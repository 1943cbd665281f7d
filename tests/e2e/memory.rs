//! Memory while a large blob is pushed and pulled: a few buffers, independent of the blob's size.
//! LODE_MEMORY_MIB sets the size: 1024 by default, 4096 with `tests/run --long`.

use bytes::Bytes;
use futures::{StreamExt, stream};
use lode_tests::artifact::{hex, random_bytes};
use lode_tests::report::{env_number, figure};
use lode_tests::server::Server;
use sha2::{Digest, Sha256};

const PIECE: usize = 1 << 20;
const LIMIT: u64 = 100 << 20;

/// Generates piece `i` of a blob, so that the test does not keep the blob in memory. All pieces differ.
fn piece(block: &[u8], i: u64) -> Bytes {
    let mut bytes = block.to_vec();
    bytes[..8].copy_from_slice(&i.to_le_bytes());
    bytes.into()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_blob_goes_through_a_few_buffers() {
    let pieces = env_number("LODE_MEMORY_MIB", 1024);
    let size_bytes = pieces * PIECE as u64;
    let block = random_bytes(99, PIECE);
    let hashed = block.clone();
    let digest = tokio::task::spawn_blocking(move || {
        let mut hasher = Sha256::new();
        (0..pieces).for_each(|i| hasher.update(piece(&hashed, i)));
        format!("sha256:{}", hex(&hasher.finalize()))
    })
    .await
    .unwrap();

    let server = Server::fresh().await;
    let registry = server.registry();
    registry.blob_push("warm", b"up").await;
    let idle = server.memory_bytes();
    let body = stream::iter(0..pieces).map({
        let block = block.clone();
        move |i| Ok::<_, std::io::Error>(piece(&block, i))
    });
    let started = std::time::Instant::now();
    let response = registry
        .blob_push_stream("large", &digest, size_bytes, reqwest::Body::wrap_stream(body))
        .await
        .expect(201);
    assert_eq!(response.header("docker-content-digest"), Some(digest.as_str()));
    let (pushed, push_seconds) = (server.peak_memory_bytes(), started.elapsed().as_secs_f64());

    let started = std::time::Instant::now();
    let response = registry.request("GET", &format!("/v2/large/blobs/{digest}")).send().await.unwrap();
    assert_eq!(response.content_length(), Some(size_bytes));
    let mut hasher = Sha256::new();
    let mut body = response.bytes_stream();
    while let Some(part) = body.next().await {
        hasher.update(part.unwrap());
    }
    assert_eq!(format!("sha256:{}", hex(&hasher.finalize())), digest);
    let (pulled, pull_seconds) = (server.peak_memory_bytes(), started.elapsed().as_secs_f64());

    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    figure(
        &format!("memory of `lode serve` with a blob of {pieces} MiB"),
        &format!(
            "idle {:.1} MiB, peak {:.1} MiB after the push ({push_seconds:.1} s), {:.1} MiB after the pull ({pull_seconds:.1} s): {:.1} MiB above idle",
            mib(idle),
            mib(pushed),
            mib(pulled),
            mib(pulled.saturating_sub(idle))
        ),
    );
    assert!(pulled < idle + LIMIT, "{:.1} MiB above idle", mib(pulled - idle));
}

#[tokio::test(flavor = "multi_thread")]
async fn many_uploads_at_once_stay_small() {
    let server = Server::fresh().await;
    let registry = server.registry();
    registry.blob_push("warm", b"up").await;
    let idle = server.memory_bytes();
    let uploads = (0..16u64).map(|i| {
        let registry = registry.clone();
        async move {
            let bytes = random_bytes(i, 8 << 20);
            registry.blob_push(&format!("lane/{i}"), &bytes).await;
        }
    });
    futures::future::join_all(uploads).await;
    let above = server.peak_memory_bytes().saturating_sub(idle);
    figure(
        "memory above idle with 16 uploads of 8 MiB at once",
        &format!("{:.1} MiB", above as f64 / f64::from(1 << 20)),
    );
    assert!(above < LIMIT, "{above} bytes above idle");
}

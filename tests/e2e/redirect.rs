//! Pulling a blob that is stored in S3: the server redirects to a presigned URL, or sends the bytes itself.

use lode_tests::artifact::{fresh_seed, random_bytes, sha256};
use lode_tests::cluster::Cluster;
use lode_tests::oci::Registry;
use lode_tests::server::Options;
use lode_tests::services::{Backends, s3_address};

const OLLAMA: &str = "ollama/0.17.4 (amd64 linux) Go/go1.26";

async fn start_with_blob(test: &str, options: Options) -> Option<(Cluster, Registry, Vec<u8>, String)> {
    let backing = Backends::shared(test)?;
    let cluster = Cluster::start(1, &backing, options).await;
    let (registry, bytes) = (cluster.registry(0), random_bytes(fresh_seed(), 6_000_000));
    registry.blob_push("elsewhere", &bytes).await;
    let path = format!("/v2/elsewhere/blobs/{}", sha256(&bytes));
    Some((cluster, registry, bytes, path))
}

#[tokio::test(flavor = "multi_thread")]
async fn pulls_are_redirected_to_the_storage() {
    let test = "redirect::the_storage_sends_what_it_has";
    let Some((_cluster, registry, bytes, path)) = start_with_blob(test, Options::new()).await else { return };
    let response = registry.get(&path).await.expect(307);
    let address = response.header("location").unwrap().to_owned();
    assert!(address.starts_with(&format!("http://{}/", s3_address())), "{address}");
    // It lasts as long as a slow download of 6 MB needs.
    assert!(address.contains("X-Amz-Expires=905"), "{address}");
    // A request for several ranges is redirected too.
    registry.send(registry.request("GET", &path).header("range", "bytes=0-1,9-10")).await.expect(307);
    // The URL needs no other credentials and supports ranges.
    assert!(registry.get(&address).await.expect(200).body == bytes);
    let part = registry.send(registry.request("GET", &address).header("range", "bytes=5999990-")).await;
    assert!(part.expect(206).body == bytes[5_999_990..]);
    // The server responds to HEAD itself, because the URL is signed for GET only.
    let head = registry.head(&path).await.expect(200);
    assert_eq!(head.header("content-length"), Some("6000000"));
    // A blob that is not visible in the repository has no URL.
    registry.get(&path.replace("elsewhere", "another")).await.expect_error(404, "BLOB_UNKNOWN");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ollama_is_not_sent_to_the_same_host_name() {
    let test = "redirect::an_ollama_is_not_sent";
    let Some((_cluster, registry, bytes, path)) = start_with_blob(test, Options::new()).await else { return };
    assert_eq!(
        s3_address().ip().to_string(),
        registry.host().split(':').next().unwrap(),
        "server and storage are on different hosts"
    );
    let response =
        registry.send(registry.request("GET", &path).header("user-agent", OLLAMA)).await.expect(200);
    assert!(response.body == bytes);
    // The parts come from a URL of this server that authorises this blob. ollama requests it without
    // credentials and follows the redirect.
    let address = response.header("location").unwrap().to_owned();
    assert!(address.starts_with(&registry.url), "{address}");
    let ranged = |address: &str| registry.send(registry.request("GET", address).header("range", "bytes=0-9"));
    let response = ranged(&address).await.expect(307);
    assert!(ranged(response.header("location").unwrap()).await.expect(206).body == bytes[..10]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_sends_where_clients_cannot_reach_the_storage() {
    let test = "redirect::the_server_sends";
    let options = Options::new().env("LODE_REDIRECT", "false");
    let Some((_cluster, registry, bytes, path)) = start_with_blob(test, options).await else { return };
    assert!(registry.get(&path).await.expect(200).body == bytes);
    for (range, expect) in [
        ("bytes=0-0", 0..1),
        ("bytes=5242870-5242890", 5_242_870..5_242_891),
        ("bytes=-7", 5_999_993..6_000_000),
    ] {
        let response = registry.send(registry.request("GET", &path).header("range", range)).await.expect(206);
        assert!(response.body == bytes[expect], "{range}");
    }
    registry.send(registry.request("GET", &path).header("range", "bytes=6000000-")).await.expect(416);
}

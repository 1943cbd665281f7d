//! TLS on a real socket, with a client that trusts nothing but the test's own certificate.

use std::time::Duration;

use reqwest::{Certificate, Client};

use super::App;
use super::wire::{Server, request, within};
use crate::Tls;

struct Pair {
    folder: tempfile::TempDir,
    cert: String,
}

impl Pair {
    fn new() -> Pair {
        let made = rcgen::generate_simple_self_signed(["models.example".to_owned()]).unwrap();
        let pair = Pair { folder: tempfile::tempdir().unwrap(), cert: made.cert.pem() };
        std::fs::write(pair.folder.path().join("cert.pem"), &pair.cert).unwrap();
        std::fs::write(pair.folder.path().join("key.pem"), made.signing_key.serialize_pem()).unwrap();
        pair
    }

    fn tls(&self) -> Tls {
        Tls::load(&self.folder.path().join("cert.pem"), &self.folder.path().join("key.pem")).unwrap()
    }

    fn client(&self, server: &Server, http1: bool) -> Client {
        let builder = Client::builder()
            .no_proxy()
            .timeout(Duration::from_secs(20))
            .resolve("models.example", server.address)
            .tls_certs_only([Certificate::from_pem(self.cert.as_bytes()).unwrap()]);
        if http1 { builder.http1_only() } else { builder }.build().unwrap()
    }
}

#[tokio::test]
async fn both_versions_of_http_over_tls() {
    let config =
        crate::Config { public_url: "https://models.example".parse().ok(), ..crate::Config::default() };
    let app = App::with(config).await;
    let digest = app.push_blob("a", vec![7; 300_000]).await;
    let pair = Pair::new();
    let server = Server::start_with(&app, Some(pair.tls())).await;
    let url = format!("https://models.example:{}/v2/a/blobs/{digest}", server.address.port());
    for (http1, version) in [(true, http::Version::HTTP_11), (false, http::Version::HTTP_2)] {
        let answer = pair.client(&server, http1).get(&url).send().await.unwrap();
        assert_eq!((answer.status().as_u16(), answer.version()), (200, version));
        assert!(answer.bytes().await.unwrap() == vec![7; 300_000]);
    }
    // Somebody else's certificate is not shown, and plain http is not spoken.
    assert!(Pair::new().client(&server, true).get(&url).send().await.is_err());
    let mut plain = server.connect().await;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    plain.write_all(request("GET /healthz", "").as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    // An alert or a reset; never an answer.
    let _reset = within(plain.read_to_end(&mut answer)).await;
    assert!(!answer.starts_with(b"HTTP/"), "{answer:?}");
}

#[tokio::test]
async fn addresses_in_answers_follow_the_connection() {
    let app = App::new().await;
    let pair = Pair::new();
    let server = Server::start_with(&app, Some(pair.tls())).await;
    let configured = Client::builder()
        .no_proxy()
        .resolve("models.localhost", server.address)
        .tls_danger_accept_invalid_certs(true)
        .build()
        .unwrap();
    let url = format!("https://models.localhost:{}/v2/a/blobs/uploads/", server.address.port());
    let answer = configured.post(&url).header("user-agent", "ollama/0.9.0").send().await.unwrap();
    assert_eq!(answer.status(), 202);
    let location = answer.headers()["location"].to_str().unwrap().to_owned();
    assert!(location.starts_with("https://models.localhost:"), "{location}");
}

//! TLS on a real socket, with a client that trusts only the test's own certificate.

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

    /// Replaces this pair with another one, as certificate tools do.
    fn replace_with(&self, other: &Pair) {
        for name in ["key.pem", "cert.pem"] {
            let fresh = self.folder.path().join("fresh");
            std::fs::copy(other.folder.path().join(name), &fresh).unwrap();
            std::fs::rename(fresh, self.folder.path().join(name)).unwrap();
        }
    }

    fn tls(&self) -> Tls {
        Tls::load(&self.folder.path().join("cert.pem"), &self.folder.path().join("key.pem")).unwrap()
    }

    fn client(&self, server: &Server, http1: bool) -> Client {
        let builder = Client::builder()
            .no_proxy()
            .timeout(Duration::from_secs(120))
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
        let response = pair.client(&server, http1).get(&url).send().await.unwrap();
        assert_eq!((response.status().as_u16(), response.version()), (200, version));
        assert!(response.bytes().await.unwrap() == vec![7; 300_000]);
    }
    // Another certificate is rejected by the client, and plain http is not supported.
    assert!(Pair::new().client(&server, true).get(&url).send().await.is_err());
    let mut plain = server.connect().await;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    plain.write_all(request("GET /healthz", "").as_bytes()).await.unwrap();
    let mut received = Vec::new();
    // An alert or a reset, but never a response.
    let _reset = within(plain.read_to_end(&mut received)).await;
    assert!(!received.starts_with(b"HTTP/"), "{received:?}");
}

#[tokio::test]
async fn locations_follow_the_connections_scheme() {
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
    let response = configured.post(&url).header("user-agent", "ollama/0.9.0").send().await.unwrap();
    assert_eq!(response.status(), 202);
    let location = response.headers()["location"].to_str().unwrap().to_owned();
    assert!(location.starts_with("https://models.localhost:"), "{location}");
}

#[tokio::test]
async fn a_renewed_certificate_is_served_without_a_restart() {
    let config =
        crate::Config { public_url: "https://models.example".parse().ok(), ..crate::Config::default() };
    let app = App::with(config).await;
    let (old, new) = (Pair::new(), Pair::new());
    let server = Server::start_with(&app, Some(old.tls())).await;
    let url = format!("https://models.example:{}/healthz", server.address.port());
    let (trusts_old, trusts_new) = (old.client(&server, true), new.client(&server, true));
    let get_status =
        async |client: &Client| client.get(&url).send().await.map(|response| response.status().as_u16());
    assert_eq!(get_status(&trusts_old).await.unwrap(), 200);
    assert!(get_status(&trusts_new).await.is_err());

    // An invalid certificate changes nothing.
    let cert = old.folder.path().join("cert.pem");
    std::fs::write(&cert, "half of a").unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(get_status(&old.client(&server, true)).await.unwrap(), 200);

    old.replace_with(&new);
    within(async {
        while get_status(&trusts_new).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    // Open connections continue; new ones get the new certificate.
    assert_eq!(get_status(&trusts_old).await.unwrap(), 200);
    assert!(get_status(&old.client(&server, true)).await.is_err());
}

//! Outgoing requests: which addresses callers and other registries can make this server contact, and which
//! parts of the responses they can read.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use axum::{Router, routing};
use http::{StatusCode, header};
use lode_model::digest::Digest;
use lode_model::media_type;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use super::models::push_model;
use super::{App, TestResponse, image};
use crate::{Config, MirrorConfig};

/// A server on its own port that records every request: method, path and `Authorization`.
struct RecordingServer {
    address: SocketAddr,
    heard: Arc<Mutex<Vec<String>>>,
}

impl RecordingServer {
    async fn start(respond: impl Fn(&str) -> Response + Clone + Send + Sync + 'static) -> RecordingServer {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let notes = heard.clone();
        let routes = Router::new().fallback(routing::any(move |request: Request| {
            let authorization = request.headers().get(header::AUTHORIZATION);
            let authorization = authorization.map_or("", |value| value.to_str().unwrap());
            let (method, path) = (request.method(), request.uri().path());
            notes.lock().unwrap().push(format!("{method} {path} {authorization}"));
            std::future::ready(respond(path))
        }));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, routes).await });
        RecordingServer { address, heard }
    }

    fn heard(&self) -> Vec<String> {
        self.heard.lock().unwrap().clone()
    }
}

/// An internal service that returns a secret to any request.
async fn internal() -> RecordingServer {
    RecordingServer::start(|_| r#"{"token":"INTERNAL-TOKEN","secret":"INTERNAL"}"#.into_response()).await
}

fn redirect(target: String) -> Response {
    (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, target)]).into_response()
}

async fn pull(app: &App, model: String) -> TestResponse {
    app.post_json("/api/pull", json!({"model": model, "stream": false, "insecure": true})).await
}

/// A server that is reachable from other machines, so it connects to a private address only if it is listed.
fn for_others(allow_egress: &[String]) -> Config {
    Config {
        listen: "0.0.0.0:5000".parse().unwrap(),
        allow_anonymous: true,
        allow_egress: allow_egress.iter().map(|rule| rule.parse().unwrap()).collect(),
        ..Config::default()
    }
}

#[tokio::test]
async fn a_registry_on_this_machine_cannot_name_another_port() {
    let inner = internal().await;
    let port = inner.address.port();
    let evil = RecordingServer::start(move |path| match path {
        path if path.contains("/x/realm/") => {
            let realm = format!("Bearer realm=\"http://127.0.0.1:{port}/latest/credentials\",service=\"x\"");
            (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, realm)]).into_response()
        }
        path if path.contains("/x/name/") => redirect(format!("http://localhost:{port}/internal")),
        _ => redirect(format!("http://127.0.0.1:{port}/internal")),
    })
    .await;
    // The default: bound to loopback, without accounts.
    let app = App::new().await;
    for model in ["realm", "name", "redirect"] {
        let response = pull(&app, format!("{}/x/{model}", evil.address)).await;
        assert_eq!(response.status, 403, "{model}: {}", response.text());
        assert!(response.text().contains("--allow-egress"), "{}", response.text());
        assert!(response.text().contains(&format!(":{port}")), "{}", response.text());
    }
    assert_eq!(evil.heard().len(), 3, "{:?}", evil.heard());
    assert_eq!(inner.heard(), [""; 0]);

    // If the realm is listed, its token is sent to the registry that requested it.
    let allow_egress = vec![format!("127.0.0.1:{port}").parse().unwrap()];
    let app = App::with(Config { allow_egress, ..Config::default() }).await;
    pull(&app, format!("{}/x/realm", evil.address)).await;
    assert_eq!(inner.heard(), ["GET /latest/credentials "]);
    assert!(evil.heard().last().unwrap().ends_with("Bearer INTERNAL-TOKEN"), "{:?}", evil.heard());
}

#[tokio::test]
async fn a_server_for_others_connects_to_public_and_listed_addresses_only() {
    let there = App::new().await;
    push_model(&there, "team/mini", "8b").await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let routes = there.router.clone();
    tokio::spawn(async move { axum::serve(listener, routes).await });

    let inner = internal().await;
    let port = inner.address.port();
    let app = App::with(for_others(&[])).await;
    for host in ["127.0.0.1", "localhost", "127.1", "2130706433", "0x7f000001", "0.0.0.0"] {
        let response = pull(&app, format!("{host}:{port}/team/mini:8b")).await;
        assert_eq!(response.status, 403, "{host}: {}", response.text());
    }
    for host in ["169.254.169.254", "10.0.0.1", "192.168.1.1:8080", "100.100.100.200", "192.0.0.192"] {
        let response = pull(&app, format!("{host}/team/mini:8b")).await;
        assert_eq!(response.status, 403, "{host}: {}", response.text());
    }
    push_model(&app, "team/mini", "8b").await;
    let push = json!({"model": format!("{}/team/mini:8b", inner.address), "stream": false, "insecure": true});
    assert_eq!(app.post_json("/api/push", push).await.status, 403);
    assert_eq!(inner.heard(), [""; 0]);

    for rule in [address.to_string(), "127.0.0.0/8".to_owned()] {
        let app = App::with(for_others(std::slice::from_ref(&rule))).await;
        let response = pull(&app, format!("{address}/team/mini:8b")).await;
        assert_eq!(response.status, 200, "{rule}: {}", response.text());
    }
}

#[tokio::test]
async fn errors_of_other_servers_are_not_repeated() {
    let stranger = RecordingServer::start(|path| {
        let json = r#"{"errors":[{"code":"DENIED","message":"INTERNAL in a message"}]}"#;
        match path {
            path if path.contains("/x/json/") => (StatusCode::FORBIDDEN, json).into_response(),
            path if path.contains("/x/login/") => (StatusCode::UNAUTHORIZED, json).into_response(),
            path if path.contains("/x/text/") => (StatusCode::BAD_REQUEST, "INTERNAL").into_response(),
            path if path.contains("/x/type/") => {
                let manifest = r#"{"schemaVersion":2,"mediaType":"INTERNAL"}"#;
                ([(header::CONTENT_TYPE, "text/internal")], manifest).into_response()
            }
            _ => "{\"schemaVersion\":\"INTERNAL\"}".into_response(),
        }
    })
    .await;
    let app = App::new().await;
    let at = stranger.address;
    for (model, part) in [
        ("json", "refused the request (403)"),
        ("login", "requires a login (401)"),
        ("text", "refused the request (400)"),
        ("type", "sent a manifest that cannot be used"),
        ("page", "sent a manifest that cannot be used"),
    ] {
        let response = pull(&app, format!("{at}/x/{model}")).await;
        assert_eq!(response.status, 502, "{model}: {}", response.text());
        assert!(
            response.text().contains(&format!("the registry at http://{at} {part}")),
            "{}",
            response.text()
        );
        assert!(!response.text().to_lowercase().contains("internal"), "{}", response.text());
    }

    // A closed port and a server with another protocol look the same.
    let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let closed_at = closed.local_addr().unwrap();
    drop(closed);
    let banner = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let banner_at = banner.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut peer, _)) = banner.accept().await {
            let _ = peer.write_all(b"SSH-2.0-INTERNAL\r\n").await;
        }
    });
    let mut failures = Vec::new();
    for at in [closed_at, banner_at] {
        let response = pull(&app, format!("{at}/x/y")).await;
        failures.push((response.status, response.text().replace(&at.to_string(), "HOST")));
    }
    assert_eq!(failures[0], failures[1]);
    assert!(failures[0].1.contains("the registry at http://HOST gave no usable response"), "{failures:?}");
}

#[tokio::test]
async fn a_mirror_follows_its_upstream_to_permitted_addresses_only() {
    let layer = Digest::sha256(b"layer");
    let manifest = image(
        &Digest::sha256(b"{}"),
        2,
        &[json!({"mediaType": media_type::OCI_LAYER_TAR, "digest": layer, "size": 5})],
    );
    let elsewhere = RecordingServer::start(|_| "layer".into_response()).await;
    let target = format!("http://{}/storage", elsewhere.address);
    let upstream = RecordingServer::start(move |path| match path {
        path if path.contains("/manifests/") => {
            ([(header::CONTENT_TYPE, media_type::OCI_MANIFEST)], manifest.to_string()).into_response()
        }
        _ => redirect(target.clone()),
    })
    .await;
    let mirror: MirrorConfig = serde_json::from_value::<MirrorConfig>(
        json!({"prefix": "hub/", "upstream": format!("http://{}", upstream.address)}),
    )
    .unwrap();
    let config = |rules: &[String]| Config { mirror: vec![mirror.clone()], ..for_others(rules) };

    // The upstream is permitted because the settings name it; the target of its redirect is not.
    let app = App::with(config(&[])).await;
    let fetched: Value = app.get("/v2/hub/team/mini/manifests/latest").await.json();
    assert_eq!(fetched["layers"][0]["digest"], layer.as_str());
    let path = format!("/v2/hub/team/mini/blobs/{layer}");
    assert_eq!(app.get(&path).await.failure().0, 502);
    assert_eq!(elsewhere.heard(), [""; 0]);

    let app = App::with(config(&[elsewhere.address.to_string()])).await;
    let response = app.get(&path).await;
    assert_eq!((response.status.as_u16(), response.text()), (200, "layer"));
}

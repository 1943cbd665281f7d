//! Tests of the router without a socket: requests in, responses out, on a temporary folder with SQLite.
//! Tests that need a socket are in `wire`.

mod access;
mod access_lists;
mod access_matrix;
mod account_page;
mod admin_pages;
mod audit_limits;
mod backup;
mod bad_input;
mod browse_api;
mod cards;
mod connections;
mod cookies;
mod cors;
mod create;
mod egress;
mod expiry;
mod file_sender;
mod first_account;
mod gateway;
mod guessing;
mod hf_commits;
mod hf_import;
mod hf_repositories;
mod hf_write;
mod hidden;
mod hub;
mod import;
mod issuer;
mod job_results;
mod jobs;
mod layouts;
mod limits;
mod listings;
mod logs;
mod maintenance;
mod management_pages;
mod migrate;
mod mirror;
mod models;
mod narrow_tokens;
mod ollama;
mod openai;
mod openapi;
mod operators;
mod postgres;
mod publishers;
mod pull;
mod pulls;
mod push;
mod quantise_page;
mod queries;
mod ranges;
mod rates;
mod read_only;
mod repository_cards;
mod repository_pages;
mod revocation;
mod rights;
mod robot_pages;
mod routes;
mod rule_pages;
mod rules;
mod secret_key;
mod sign_in;
mod single_sign_on;
mod tag_history;
mod tags;
mod tls;
mod tools;
mod transfer;
mod upgrade;
mod webhooks;
mod wire;
mod workers;
mod xet;

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::request::Builder;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt;
use lode_model::digest::Digest;
use lode_model::media_type;
use serde_json::{Value, json};
use tempfile::TempDir;
use tower::ServiceExt;

use self::wire::within;
use crate::{Config, Registry, open, router};

/// A server without a socket.
struct App {
    registry: Registry,
    router: Router,
    _data: TempDir,
}

/// A response, read to its end.
struct TestResponse {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl App {
    async fn new() -> App {
        App::with(Config::default()).await
    }

    async fn with(config: Config) -> App {
        App::with_data(config, tempfile::tempdir().unwrap()).await
    }

    async fn with_data(config: Config, data: TempDir) -> App {
        let registry = open(Config { data: data.path().to_owned(), ..config }).await.unwrap();
        App { router: router(registry.clone()).unwrap(), registry, _data: data }
    }

    /// Stops the server and returns its folder, unlocked: a task that is about to end may still hold the lock, and
    /// so may a child process that another test has forked but not yet executed.
    async fn close(self) -> TempDir {
        let App { registry, router, _data } = self;
        registry.close().await;
        drop((registry, router));
        let lock = std::fs::File::create(_data.path().join("lode.lock")).unwrap();
        within(async {
            while lock.try_lock().is_err() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
        _data
    }

    async fn raw(&self, request: Request<Body>) -> Response {
        self.router.clone().oneshot(request).await.unwrap()
    }

    async fn send(&self, request: Builder, body: impl Into<Body>) -> TestResponse {
        let request = request.body(body.into()).unwrap();
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let response = TestResponse::read(self.raw(request).await).await;
        openapi::check(&method, &path, &response);
        response
    }

    async fn get(&self, path: &str) -> TestResponse {
        self.send(Request::get(path), "").await
    }

    async fn delete(&self, path: &str) -> TestResponse {
        self.send(Request::delete(path), "").await
    }

    async fn post_json(&self, path: &str, body: Value) -> TestResponse {
        self.send(Request::post(path), body.to_string()).await
    }

    /// The URL of a new upload.
    async fn upload(&self, repository: &str) -> String {
        let response = self.send(Request::post(format!("/v2/{repository}/blobs/uploads/")), "").await;
        assert_eq!(response.status, 202, "{}", response.text());
        response.header("location").to_owned()
    }

    async fn push_blob(&self, repository: &str, bytes: impl Into<Bytes>) -> Digest {
        let bytes = bytes.into();
        let digest = Digest::sha256(&bytes);
        let path = format!("/v2/{repository}/blobs/uploads/?digest={digest}");
        let response = self.send(Request::post(path), bytes).await;
        assert_eq!(response.status, 201, "{}", response.text());
        digest
    }

    async fn push_manifest(&self, repository: &str, reference: &str, manifest: &Value) -> TestResponse {
        let kind = manifest["mediaType"].as_str().unwrap();
        let path = format!("/v2/{repository}/manifests/{reference}");
        self.send(Request::put(path).header("content-type", kind), manifest.to_string()).await
    }

    /// Pushes a small image under `tag`; returns its digest.
    async fn push_image(&self, repository: &str, tag: &str, content: &str) -> Digest {
        let config = self.push_blob(repository, "{}").await;
        let layer = self.push_blob(repository, content.to_owned()).await;
        let manifest = image(
            &config,
            2,
            &[json!({
                "mediaType": media_type::OCI_LAYER_TAR, "digest": layer, "size": content.len(),
            })],
        );
        let response = self.push_manifest(repository, tag, &manifest).await;
        assert_eq!(response.status, 201, "{}", response.text());
        response.header("docker-content-digest").parse().unwrap()
    }
}

impl TestResponse {
    async fn read(response: Response) -> TestResponse {
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        TestResponse { status: parts.status, headers: parts.headers, body }
    }

    fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name).unwrap_or_else(|| panic!("no {name} in {:?}", self.headers));
        value.to_str().unwrap()
    }

    /// The address of the next page of a list.
    fn next_page(&self) -> Option<String> {
        let link = self.headers.get("link")?.to_str().unwrap();
        let (target, parameters) = link.strip_prefix('<').unwrap().split_once('>').unwrap();
        assert_eq!(parameters, "; rel=\"next\"");
        Some(target.to_owned())
    }

    fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("not JSON: {}", self.text()))
    }

    /// The code of the first error in the envelope.
    fn code(&self) -> String {
        self.json()["errors"][0]["code"].as_str().unwrap_or_default().to_owned()
    }

    /// Status and code, for comparison with tables.
    fn failure(&self) -> (u16, String) {
        (self.status.as_u16(), self.code())
    }
}

fn image(config: &Digest, config_size: usize, layers: &[Value]) -> Value {
    json!({
        "schemaVersion": 2,
        "mediaType": media_type::OCI_MANIFEST,
        "config": {"mediaType": media_type::OCI_CONFIG, "digest": config, "size": config_size},
        "layers": layers,
    })
}

/// The status and code that a table expects.
fn failure(status: u16, code: &str) -> (u16, String) {
    (status, code.to_owned())
}

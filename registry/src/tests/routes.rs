//! Every route of the router, requested by a caller without any rights: each has to check the policy.
//! A route that is not in the table fails the test.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::body::Body;
use bytes::Bytes;
use http::Request;

use super::{App, TestResponse};
use crate::auth::Caller;

const ZERO: &str = "sha256:0000000000000000000000000000000000000000000000000000000000000000";
const ID: &str = "00000000-0000-0000-0000-000000000000";

/// Method, route as in the router, body.
const ROUTES: &[(&str, &str, &str)] = &[
    ("GET", "/", ""),
    ("GET", "/v2", ""),
    ("GET", "/v2/", ""),
    ("GET", "/v2/_oci/ext/discover", ""),
    ("GET", "/v2/_catalog", ""),
    ("GET", "/v2/{name}/blobs/{digest}", ""),
    ("HEAD", "/v2/{name}/blobs/{digest}", ""),
    ("DELETE", "/v2/{name}/blobs/{digest}", ""),
    ("POST", "/v2/{name}/blobs/uploads", ""),
    ("POST", "/v2/{name}/blobs/uploads/", ""),
    ("GET", "/v2/{name}/blobs/uploads/{id}", ""),
    ("PATCH", "/v2/{name}/blobs/uploads/{id}", ""),
    ("PUT", "/v2/{name}/blobs/uploads/{id}", ""),
    ("DELETE", "/v2/{name}/blobs/uploads/{id}", ""),
    ("GET", "/v2/{name}/manifests/{reference}", ""),
    ("HEAD", "/v2/{name}/manifests/{reference}", ""),
    ("PUT", "/v2/{name}/manifests/{reference}", "{}"),
    ("DELETE", "/v2/{name}/manifests/{reference}", ""),
    ("GET", "/v2/{name}/tags/list", ""),
    ("GET", "/v2/{name}/referrers/{digest}", ""),
    ("GET", "/api/version", ""),
    ("GET", "/api/tags", ""),
    ("POST", "/api/show", r#"{"model":"m"}"#),
    ("DELETE", "/api/delete", r#"{"model":"m"}"#),
    ("POST", "/api/copy", r#"{"source":"m","destination":"n"}"#),
    ("POST", "/api/create", r#"{"model":"m","from":"n"}"#),
    ("POST", "/api/blobs/{digest}", ""),
    ("HEAD", "/api/blobs/{digest}", ""),
    ("POST", "/api/pull", r#"{"model":"m"}"#),
    ("POST", "/api/push", r#"{"model":"127.0.0.1:1/n/m"}"#),
    ("GET", "/api/ps", ""),
    ("POST", "/api/me", ""),
    ("POST", "/api/generate", r#"{"model":"m"}"#),
    ("POST", "/api/chat", r#"{"model":"m"}"#),
    ("POST", "/api/embed", r#"{"model":"m"}"#),
    ("POST", "/api/embeddings", r#"{"model":"m"}"#),
    ("GET", "/v1/models", ""),
    ("GET", "/v1/models/{*model}", ""),
    ("POST", "/v1/chat/completions", r#"{"model":"m","messages":[{"role":"user"}]}"#),
    ("POST", "/v1/completions", r#"{"model":"m"}"#),
    ("POST", "/v1/embeddings", r#"{"model":"m","input":"x"}"#),
    ("GET", "/lode/v1/models", ""),
    ("GET", "/lode/v1/models/{name}/{reference}", ""),
    ("GET", "/lode/v1/tensors/{name}/{reference}", ""),
    ("GET", "/lode/v1/diff/{name}/{reference}", ""),
    ("GET", "/lode/v1/lineage/{name}/{reference}", ""),
    ("GET", "/lode/v1/blobs", ""),
    ("POST", "/lode/v1/show", r#"{"model":"m"}"#),
    ("POST", "/lode/v1/copy", r#"{"source":"m","destination":"n"}"#),
    ("POST", "/lode/v1/generate", r#"{"model":"m"}"#),
    ("POST", "/lode/v1/chat", r#"{"model":"m"}"#),
    ("POST", "/lode/v1/embed", r#"{"model":"m"}"#),
    ("POST", "/lode/v1/score", r#"{"model":"m"}"#),
    ("GET", "/lode/v1/ps", ""),
    ("GET", "/lode/v1/workers", ""),
    ("POST", "/lode/v1/workers", r#"{"advertise":"http://127.0.0.1:1"}"#),
    ("PUT", "/lode/v1/workers/{id}", "{}"),
    ("DELETE", "/lode/v1/workers/{id}", ""),
    ("GET", "/lode/v1/webhooks", ""),
    ("POST", "/lode/v1/webhooks/{id}/retry", ""),
    ("POST", "/lode/v1/gc", "{}"),
    ("GET", "/lode/v1/gc/removals", ""),
    ("POST", "/lode/v1/gc/undo", r#"{"repository":"m","reference":"latest"}"#),
    ("POST", "/lode/v1/fsck", "{}"),
    ("GET", "/lode/v1/jobs", ""),
    ("GET", "/lode/v1/jobs/{id}", ""),
    ("DELETE", "/lode/v1/jobs/{id}", ""),
    ("GET", "/lode/v1/jobs/{id}/findings", ""),
];

/// Routes for probes, which do not authenticate.
const OPEN: &[&str] = &["/healthz", "/readyz", "/metrics"];

#[tokio::test]
async fn every_route_checks_the_policy() {
    let app = App::new().await;
    for (method, route, body) in ROUTES {
        let path = route
            .replace("{name}", "team/mini")
            .replace("{digest}", ZERO)
            .replace("{reference}", "latest")
            .replace("{id}", ID)
            .replace("{*model}", "mini");
        let query = if *method == "PUT" && route.ends_with("uploads/{id}") {
            format!("?digest={ZERO}")
        } else if route.starts_with("/lode/v1/diff/") {
            "?with=other".to_owned()
        } else if route.ends_with("/findings") {
            "?kind=damage".to_owned()
        } else if *route == "/lode/v1/blobs" {
            "?size=1".to_owned()
        } else {
            String::new()
        };
        let is_read = Arc::new(AtomicBool::new(false));
        let reading = is_read.clone();
        let body = futures::stream::once(async move {
            reading.store(true, Ordering::SeqCst);
            Ok::<_, Infallible>(Bytes::from_static(body.as_bytes()))
        });
        let body = Body::from_stream(body);
        let mut request = Request::builder().method(*method).uri(path + &query).body(body).unwrap();
        request.extensions_mut().insert(Caller::Link { repository: "somewhere/else".parse().unwrap() });
        let response = app.raw(request).await;
        let was_read = is_read.load(Ordering::SeqCst);
        let response = TestResponse::read(response).await;
        assert_eq!(response.status, 403, "{method} {route}: {}", response.text());
        // Every caller may pull something, so these routes have to read the body to know the model.
        let may_be_read = ["show", "push"].iter().any(|name| route.ends_with(name));
        assert!(!was_read || may_be_read, "{method} {route} reads the body of a caller without any rights");
    }
}

#[test]
fn no_route_is_forgotten() {
    let source = include_str!("../router.rs");
    let routes: BTreeSet<&str> =
        source.split(".route(\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    let listed: BTreeSet<&str> =
        ROUTES.iter().map(|(_, route, _)| *route).chain(OPEN.iter().copied()).collect();
    assert_eq!(routes, listed);
}

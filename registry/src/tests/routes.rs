//! Every route of the router, requested by a caller without any rights: each has to check the policy.
//! A route that is not in the table fails the test.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::body::Body;
use bytes::Bytes;
use http::Request;

use super::TestResponse;
use super::access::closed;

const ZERO: &str = "sha256:0000000000000000000000000000000000000000000000000000000000000000";
const ID: &str = "00000000-0000-0000-0000-000000000000";

/// What a route needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// Any credentials.
    SignIn,
    /// Nothing: the listing has only what the caller may read.
    List,
    Pull,
    /// To pull, and an account.
    PullAsAccount,
    Infer,
    Push,
    Delete,
    /// The role own on `team/*`.
    Own,
    /// An account: it uploads blobs for itself.
    Stage,
    /// An account: it manages its own tokens.
    Account,
    /// The credentials of an account.
    Identity,
    /// The role maintain on `team/*`.
    Maintain,
    /// A browser's session. Others are sent to the sign-in.
    Session,
    Inspect,
    Administer,
    /// A proof that is no account's.
    Join,
}

use Need::{
    Account, Administer, Delete, Identity, Infer, Inspect, Join, List, Maintain, Own, Pull, PullAsAccount,
    Push, Session, SignIn, Stage,
};

/// Method, route as in the router, body, and what it needs.
pub(super) const ROUTES: &[(&str, &str, &str, Need)] = &[
    ("GET", "/v2", "", SignIn),
    ("GET", "/v2/", "", SignIn),
    ("GET", "/v2/_oci/ext/discover", "", SignIn),
    ("GET", "/v2/_catalog", "", List),
    ("GET", "/v2/{name}/blobs/{digest}", "", Pull),
    ("HEAD", "/v2/{name}/blobs/{digest}", "", Pull),
    ("DELETE", "/v2/{name}/blobs/{digest}", "", Delete),
    ("POST", "/v2/{name}/blobs/uploads", "", Push),
    ("POST", "/v2/{name}/blobs/uploads/", "", Push),
    ("GET", "/v2/{name}/blobs/uploads/{id}", "", Push),
    ("PATCH", "/v2/{name}/blobs/uploads/{id}", "", Push),
    ("PUT", "/v2/{name}/blobs/uploads/{id}", "", Push),
    ("DELETE", "/v2/{name}/blobs/uploads/{id}", "", Push),
    ("GET", "/v2/{name}/manifests/{reference}", "", Pull),
    ("HEAD", "/v2/{name}/manifests/{reference}", "", Pull),
    ("PUT", "/v2/{name}/manifests/{reference}", "{}", Push),
    ("DELETE", "/v2/{name}/manifests/{reference}", "", Delete),
    ("GET", "/v2/{name}/tags/list", "", Pull),
    ("GET", "/v2/{name}/referrers/{digest}", "", Pull),
    ("GET", "/api/tags", "", List),
    ("POST", "/api/show", r#"{"model":"team/mini"}"#, Pull),
    ("DELETE", "/api/delete", r#"{"model":"team/mini"}"#, Delete),
    ("POST", "/api/copy", r#"{"source":"team/mini","destination":"team/copy"}"#, Push),
    ("POST", "/api/create", r#"{"model":"team/mini","from":"team/mini"}"#, Push),
    ("POST", "/api/blobs/{digest}", "", Stage),
    ("HEAD", "/api/blobs/{digest}", "", Stage),
    // The name has no host, so that the model is already here.
    ("POST", "/api/pull", r#"{"model":"team/mini"}"#, PullAsAccount),
    ("POST", "/api/push", r#"{"model":"127.0.0.1:1/team/mini"}"#, Pull),
    ("GET", "/api/ps", "", List),
    ("POST", "/api/me", "", SignIn),
    ("POST", "/api/signout", "", SignIn),
    ("POST", "/api/generate", r#"{"model":"team/mini"}"#, Infer),
    ("POST", "/api/chat", r#"{"model":"team/mini"}"#, Infer),
    ("POST", "/api/embed", r#"{"model":"team/mini"}"#, Infer),
    ("POST", "/api/embeddings", r#"{"model":"team/mini"}"#, Infer),
    ("GET", "/v1/models", "", List),
    ("GET", "/v1/models/{*model}", "", Pull),
    ("POST", "/v1/chat/completions", r#"{"model":"team/mini","messages":[{"role":"user"}]}"#, Infer),
    ("POST", "/v1/completions", r#"{"model":"team/mini"}"#, Infer),
    ("POST", "/v1/embeddings", r#"{"model":"team/mini","input":"x"}"#, Infer),
    ("GET", "/lode/v1/models", "", List),
    ("GET", "/lode/v1/models/{name}/{reference}", "", Pull),
    ("GET", "/lode/v1/tensors/{name}/{reference}", "", Pull),
    ("GET", "/lode/v1/diff/{name}/{reference}", "", Pull),
    ("GET", "/lode/v1/lineage/{name}/{reference}", "", Pull),
    ("GET", "/lode/v1/blobs", "", List),
    ("POST", "/lode/v1/show", r#"{"model":"team/mini"}"#, Pull),
    ("POST", "/lode/v1/copy", r#"{"source":"team/mini","destination":"team/copy"}"#, Push),
    ("POST", "/lode/v1/generate", r#"{"model":"team/mini"}"#, Infer),
    ("POST", "/lode/v1/chat", r#"{"model":"team/mini"}"#, Infer),
    ("POST", "/lode/v1/embed", r#"{"model":"team/mini"}"#, Infer),
    ("POST", "/lode/v1/score", r#"{"model":"team/mini"}"#, Infer),
    ("GET", "/lode/v1/ps", "", List),
    ("GET", "/lode/v1/workers", "", Inspect),
    ("POST", "/lode/v1/workers", r#"{"advertise":"http://127.0.0.1:1"}"#, Join),
    ("PUT", "/lode/v1/workers/{id}", "{}", Join),
    ("DELETE", "/lode/v1/workers/{id}", "", Join),
    ("GET", "/lode/v1/webhooks", "", Inspect),
    ("POST", "/lode/v1/webhooks/{id}/retry", "", Administer),
    ("POST", "/lode/v1/gc", "{}", Administer),
    ("GET", "/lode/v1/gc/removals", "", Inspect),
    ("POST", "/lode/v1/gc/undo", r#"{"repository":"m","reference":"latest"}"#, Administer),
    ("POST", "/lode/v1/fsck", "{}", Administer),
    ("GET", "/lode/v1/me", "", SignIn),
    ("GET", "/lode/v1/accounts", "", Inspect),
    ("POST", "/lode/v1/accounts", r#"{"name":"alice"}"#, Administer),
    ("PATCH", "/lode/v1/accounts/{name}", "{}", Administer),
    ("DELETE", "/lode/v1/accounts/{name}", "", Administer),
    ("GET", "/lode/v1/groups", "", Inspect),
    ("POST", "/lode/v1/groups", r#"{"name":"staff"}"#, Administer),
    ("DELETE", "/lode/v1/groups/{name}", "", Administer),
    ("PUT", "/lode/v1/groups/{name}/members/{account}", "", Administer),
    ("DELETE", "/lode/v1/groups/{name}/members/{account}", "", Administer),
    ("GET", "/lode/v1/tokens", "", Account),
    ("POST", "/lode/v1/tokens", r#"{"name":"ci"}"#, Account),
    ("DELETE", "/lode/v1/tokens/{id}", "", Account),
    ("POST", "/lode/v1/tokens/{id}/rotate", "", Account),
    ("GET", "/lode/v1/grants", "", Inspect),
    ("PUT", "/lode/v1/grants", r#"{"target":"team/*","subject":"alice","role":"read"}"#, Own),
    ("PUT", "/lode/v1/visibility", r#"{"target":"team/*","visibility":"public"}"#, Own),
    ("GET", "/lode/v1/keys", "", Account),
    ("POST", "/lode/v1/keys", r#"{"key":"nonsense"}"#, Account),
    ("DELETE", "/lode/v1/keys/{id}", "", Account),
    ("GET", "/lode/v1/publishers", "", Account),
    ("POST", "/lode/v1/publishers", r#"{"robot":"team+ci","kind":"github"}"#, Own),
    ("DELETE", "/lode/v1/publishers/{id}", "", Account),
    ("GET", "/lode/v1/quotas", "", Inspect),
    ("PUT", "/lode/v1/quotas", r#"{"namespace":"team","limit_bytes":null}"#, Administer),
    ("GET", "/lode/v1/protected-tags", "", Inspect),
    ("PUT", "/lode/v1/protected-tags", r#"{"target":"team/*","patterns":[]}"#, Maintain),
    ("GET", "/lode/v1/audit", "", Inspect),
    ("GET", "/hf/api/whoami-v2", "", Identity),
    ("GET", "/device", "", Session),
    ("POST", "/device", "", Session),
    ("GET", "/connect", "", Session),
    ("POST", "/connect", "", Session),
    ("GET", "/-/account", "", Session),
    ("POST", "/-/account/tokens", "", Session),
    ("POST", "/-/account/tokens/revoke", "", Session),
    ("POST", "/-/account/keys", "", Session),
    ("POST", "/-/account/keys/remove", "", Session),
    ("POST", "/-/account/identities", "", Session),
    ("POST", "/-/account/identities/remove", "", Session),
    ("POST", "/-/account/password", "", Session),
    ("POST", "/-/account/sessions/end", "", Session),
    ("GET", "/lode/v1/jobs", "", Inspect),
    ("GET", "/lode/v1/jobs/{id}", "", Inspect),
    ("DELETE", "/lode/v1/jobs/{id}", "", Administer),
    ("GET", "/lode/v1/jobs/{id}/findings", "", Inspect),
];

/// Routes that every client may use: probes, greetings, and those that check credentials themselves.
const OPEN: &[&str] = &[
    "/healthz",
    "/readyz",
    "/metrics",
    "/",
    "/static/lode.css",
    "/api/version",
    "/token",
    "/hf/oauth/device",
    "/hf/oauth/token",
    "/login",
    "/login/{provider}",
    "/login/{provider}/callback",
    "/logout",
    "/setup",
];

/// The address of a request to a route.
pub(super) fn address(method: &str, route: &str) -> String {
    let path = route
        .replace("{name}", if route.starts_with("/lode/v1/accounts") { "carol" } else { "team/mini" })
        .replace("groups/team/mini", "groups/staff")
        .replace("{account}", "carol")
        .replace("{digest}", ZERO)
        .replace("{reference}", "latest")
        .replace("{id}", ID)
        .replace("{*model}", "team/mini");
    let query = if method == "PUT" && route.ends_with("uploads/{id}") {
        format!("?digest={ZERO}")
    } else if route.starts_with("/lode/v1/diff/") {
        "?with=team/mini".to_owned()
    } else if route.ends_with("/findings") {
        "?kind=damage".to_owned()
    } else if route == "/lode/v1/blobs" {
        "?size=1".to_owned()
    } else {
        String::new()
    };
    path + &query
}

#[tokio::test]
async fn every_route_checks_the_policy() {
    let app = closed().await;
    for (method, route, body, need) in ROUTES {
        let path = address(method, route);
        let is_read = Arc::new(AtomicBool::new(false));
        let reading = is_read.clone();
        let body = futures::stream::once(async move {
            reading.store(true, Ordering::SeqCst);
            Ok::<_, Infallible>(Bytes::from_static(body.as_bytes()))
        });
        let body = Body::from_stream(body);
        let request = Request::builder().method(*method).uri(path).body(body).unwrap();
        let response = app.raw(request).await;
        let was_read = is_read.load(Ordering::SeqCst);
        let response = TestResponse::read(response).await;
        let is_refused = match need {
            List => response.status == 200,
            Session => response.status == 303,
            Join => response.status.is_client_error(),
            _ => response.status == 401,
        };
        assert!(is_refused, "{method} {route}: {} {}", response.status, response.text());
        // Every client may pull something, so these routes have to read the body to know the model. Workers
        // prove that they may join.
        let may_be_read = matches!(need, Pull | Infer | Join);
        assert!(!was_read || may_be_read, "{method} {route} reads the body of a caller without any rights");
    }
}

#[test]
fn no_route_is_forgotten() {
    let source = include_str!("../router.rs");
    let routes: BTreeSet<&str> =
        source.split(".route(\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    let listed: BTreeSet<&str> =
        ROUTES.iter().map(|(_, route, ..)| *route).chain(OPEN.iter().copied()).collect();
    assert_eq!(routes, listed);
}

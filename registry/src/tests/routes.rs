//! Every route of the router, requested by a caller without any rights: each has to check the policy.
//! A route that is not in the table fails the test.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::body::Body;
use bytes::Bytes;
use http::Request;

use super::access::closed;
use super::{App, TestResponse};

pub(super) const ZERO: &str = "sha256:0000000000000000000000000000000000000000000000000000000000000000";
pub(super) const ID: &str = "00000000-0000-0000-0000-000000000000";

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
    /// To push, with credentials that can be exchanged for an access token.
    PushExchange,
    Delete,
    /// The role own on `team/*`.
    Own,
    /// The role own on the repository.
    OwnHere,
    /// An account: it uploads blobs for itself.
    Stage,
    /// An account: it manages its own tokens.
    Account,
    /// The credentials of an account.
    Identity,
    /// The role maintain on `team/*`.
    Maintain,
    /// The role maintain on the repository.
    MaintainHere,
    /// A browser's session. Others are sent to the sign-in.
    Session,
    Inspect,
    Administer,
    /// The secret with which workers join.
    Join,
    /// The credential of the worker.
    OwnWorker,
    /// The credential of the worker, or an administrator.
    RemoveWorker,
    /// Credentials that can be exchanged for an access token. Those of a client without any can.
    Exchange,
    /// Nothing, not even valid credentials.
    Probe,
    /// To pull. What the caller may not see is a page that does not exist.
    Browse,
    /// Nothing: greetings, and pages that check credentials themselves.
    Open,
}

use Need::{
    Account, Administer, Browse, Delete, Exchange, Identity, Infer, Inspect, Join, List, Maintain,
    MaintainHere, Open, Own, OwnHere, OwnWorker, Probe, Pull, PullAsAccount, Push, PushExchange,
    RemoveWorker, Session, SignIn, Stage,
};

/// Method, route as in the router, body, what it needs, and the statuses for a caller that has it.
type Route = (&'static str, &'static str, &'static str, Need, &'static [u16]);

/// A `HEAD` that a `GET` implies has no entry of its own.
pub(super) const ROUTES: &[Route] = &[
    ("GET", "/v2", "", SignIn, &[200]),
    ("GET", "/v2/", "", SignIn, &[200]),
    ("GET", "/v2/_oci/ext/discover", "", SignIn, &[200]),
    ("GET", "/v2/_catalog", "", List, &[200]),
    ("GET", "/v2/{name}/blobs/{digest}", "", Pull, &[200]),
    ("HEAD", "/v2/{name}/blobs/{digest}", "", Pull, &[200]),
    ("DELETE", "/v2/{name}/blobs/{digest}", "", Delete, &[405]),
    ("POST", "/v2/{name}/blobs/uploads", "", Push, &[202]),
    ("POST", "/v2/{name}/blobs/uploads/", "", Push, &[202]),
    ("GET", "/v2/{name}/blobs/uploads/{id}", "", Push, &[204]),
    ("PATCH", "/v2/{name}/blobs/uploads/{id}", "", Push, &[202]),
    ("PUT", "/v2/{name}/blobs/uploads/{id}", "", Push, &[201]),
    ("DELETE", "/v2/{name}/blobs/uploads/{id}", "", Push, &[204]),
    ("GET", "/v2/{name}/manifests/{reference}", "", Pull, &[200]),
    ("HEAD", "/v2/{name}/manifests/{reference}", "", Pull, &[200]),
    ("PUT", "/v2/{name}/manifests/{reference}", "{}", Push, &[201]),
    ("DELETE", "/v2/{name}/manifests/{reference}", "", Delete, &[202]),
    ("GET", "/v2/{name}/tags/list", "", Pull, &[200]),
    ("GET", "/v2/{name}/referrers/{digest}", "", Pull, &[200]),
    ("GET", "/api/tags", "", List, &[200]),
    ("POST", "/api/show", r#"{"model":"team/mini"}"#, Pull, &[200]),
    ("DELETE", "/api/delete", r#"{"model":"team/mini"}"#, Delete, &[200]),
    ("POST", "/api/copy", r#"{"source":"team/mini","destination":"team/mini:copy"}"#, Push, &[200]),
    ("POST", "/api/create", r#"{"model":"team/mini","from":"team/mini"}"#, Push, &[200]),
    ("POST", "/api/blobs/{digest}", "", Stage, &[200, 201]),
    ("HEAD", "/api/blobs/{digest}", "", Stage, &[200]),
    // The name has no host, so that the model is already here.
    ("POST", "/api/pull", r#"{"model":"team/mini"}"#, PullAsAccount, &[200]),
    ("POST", "/api/push", r#"{"model":"127.0.0.1:1/team/mini"}"#, Pull, &[200]),
    ("GET", "/api/ps", "", List, &[200]),
    ("POST", "/api/me", "", SignIn, &[200]),
    ("POST", "/api/signout", "", SignIn, &[200]),
    ("POST", "/api/generate", r#"{"model":"team/mini"}"#, Infer, &[200]),
    ("POST", "/api/chat", r#"{"model":"team/mini"}"#, Infer, &[200]),
    ("POST", "/api/embed", r#"{"model":"team/mini"}"#, Infer, &[200]),
    ("POST", "/api/embeddings", r#"{"model":"team/mini"}"#, Infer, &[200]),
    ("POST", "/api/rerank", r#"{"model":"team/mini"}"#, Infer, &[200]),
    ("POST", "/v1/rerank", r#"{"model":"team/mini"}"#, Infer, &[200]),
    ("POST", "/v2/rerank", r#"{"model":"team/mini"}"#, Infer, &[200]),
    ("GET", "/v1/models", "", List, &[200]),
    ("GET", "/v1/models/{*model}", "", Pull, &[200]),
    ("POST", "/v1/chat/completions", r#"{"model":"team/mini","messages":[{"role":"user"}]}"#, Infer, &[200]),
    ("POST", "/v1/completions", r#"{"model":"team/mini"}"#, Infer, &[200]),
    ("POST", "/v1/embeddings", r#"{"model":"team/mini","input":"x"}"#, Infer, &[200]),
    ("POST", "/v1/responses", r#"{"model":"team/mini","input":"x"}"#, Infer, &[200]),
    ("POST", "/v1/responses/input_tokens", r#"{"model":"team/mini","input":"x"}"#, Infer, &[200]),
    ("GET", "/v1/responses/{id}", "", SignIn, &[404]),
    ("DELETE", "/v1/responses/{id}", "", SignIn, &[404]),
    ("POST", "/v1/responses/{id}/cancel", "", SignIn, &[404]),
    ("GET", "/v1/responses/{id}/input_items", "", SignIn, &[404]),
    (
        "POST",
        "/v1/messages",
        r#"{"model":"team/mini","max_tokens":1,"messages":[{"role":"user","content":"x"}]}"#,
        Infer,
        &[200],
    ),
    (
        "POST",
        "/v1/messages/count_tokens",
        r#"{"model":"team/mini","max_tokens":1,"messages":[{"role":"user","content":"x"}]}"#,
        Infer,
        &[200],
    ),
    ("GET", "/lode/v1/openapi.json", "", Open, &[200]),
    ("GET", "/lode/v1/search", "", List, &[200]),
    ("GET", "/lode/v1/repositories", "", List, &[200]),
    ("GET", "/lode/v1/repositories/{name}/tags", "", Pull, &[200]),
    ("GET", "/lode/v1/repositories/{name}/manifests", "", Pull, &[200]),
    ("GET", "/lode/v1/repositories/{name}/history", "", Pull, &[200]),
    // A new tag has no manifest to move back to.
    ("POST", "/lode/v1/repositories/{name}/history", r#"{"tag":"latest"}"#, Push, &[200, 409]),
    ("POST", "/lode/v1/repositories/{name}/move", r#"{"to":"team/mini"}"#, OwnHere, &[409]),
    ("GET", "/lode/v1/repositories/{name}/pulls", "", Pull, &[200]),
    ("GET", "/lode/v1/repositories/{name}/retention", "", MaintainHere, &[200]),
    ("GET", "/lode/v1/repositories/{name}/card", "", Pull, &[200]),
    // Later callers send the same text again, which changes nothing.
    ("PUT", "/lode/v1/repositories/{name}/card", r#"{"text":"x"}"#, Push, &[200]),
    ("DELETE", "/lode/v1/repositories/{name}/card", "", Push, &[204]),
    ("GET", "/lode/v1/models", "", List, &[200]),
    ("POST", "/lode/v1/models", r#"{"model":"team/mini:new","from":"team/mini"}"#, Push, &[202]),
    (
        "POST",
        "/lode/v1/import",
        r#"{"model":"team/mini:new","from":"hf://a/b","endpoint":"ftp://hub.example"}"#,
        Push,
        &[400],
    ),
    ("GET", "/lode/v1/models/{name}/{reference}", "", Pull, &[200]),
    ("GET", "/lode/v1/tensors/{name}/{reference}", "", Pull, &[200]),
    ("GET", "/lode/v1/files/{name}/{reference}", "", Pull, &[200]),
    ("GET", "/lode/v1/card/{name}/{reference}", "", Pull, &[200]),
    // That manifest has no such card.
    (
        "PUT",
        "/lode/v1/card/{name}/{reference}",
        r#"{"base":"sha256:0000000000000000000000000000000000000000000000000000000000000000","text":"x"}"#,
        Push,
        &[409],
    ),
    ("GET", "/lode/v1/diff/{name}/{reference}", "", Pull, &[200]),
    ("GET", "/lode/v1/lineage/{name}/{reference}", "", Pull, &[200]),
    ("GET", "/lode/v1/blobs", "", List, &[200]),
    ("POST", "/lode/v1/show", r#"{"model":"team/mini"}"#, Pull, &[200]),
    ("POST", "/lode/v1/copy", r#"{"source":"team/mini","destination":"team/mini:copy"}"#, Push, &[200]),
    ("POST", "/lode/v1/generate", r#"{"model":"team/mini"}"#, Infer, &[200]),
    ("POST", "/lode/v1/chat", r#"{"model":"team/mini"}"#, Infer, &[200]),
    ("POST", "/lode/v1/embed", r#"{"model":"team/mini"}"#, Infer, &[200]),
    ("POST", "/lode/v1/rerank", r#"{"model":"team/mini"}"#, Infer, &[200]),
    ("POST", "/lode/v1/score", r#"{"model":"team/mini"}"#, Infer, &[200]),
    ("GET", "/lode/v1/ps", "", List, &[200]),
    ("GET", "/lode/v1/workers", "", Inspect, &[200]),
    ("POST", "/lode/v1/workers", r#"{"advertise":"http://127.0.0.1:1"}"#, Join, &[201]),
    ("PUT", "/lode/v1/workers/{id}", "{}", OwnWorker, &[204]),
    ("DELETE", "/lode/v1/workers/{id}", "", RemoveWorker, &[204]),
    ("PUT", "/lode/v1/workers/{id}/drain", "", Administer, &[404]),
    ("DELETE", "/lode/v1/workers/{id}/drain", "", Administer, &[404]),
    ("GET", "/lode/v1/status", "", Inspect, &[200]),
    ("GET", "/lode/v1/connections", "", Inspect, &[200]),
    ("GET", "/lode/v1/webhooks", "", Inspect, &[200]),
    ("POST", "/lode/v1/webhooks/{id}/retry", "", Administer, &[404]),
    ("GET", "/lode/v1/gc", "", Inspect, &[200]),
    ("POST", "/lode/v1/gc", "{}", Administer, &[202]),
    ("GET", "/lode/v1/gc/removals", "", Inspect, &[200]),
    ("POST", "/lode/v1/gc/undo", r#"{"repository":"m","reference":"latest"}"#, Administer, &[404]),
    ("POST", "/lode/v1/fsck", "{}", Administer, &[202]),
    ("GET", "/lode/v1/me", "", SignIn, &[200]),
    ("GET", "/lode/v1/accounts", "", Inspect, &[200]),
    ("POST", "/lode/v1/accounts", r#"{"name":"alice"}"#, Administer, &[201, 409]),
    ("PATCH", "/lode/v1/accounts/{name}", "{}", Administer, &[404]),
    ("DELETE", "/lode/v1/accounts/{name}", "", Administer, &[404]),
    ("GET", "/lode/v1/groups", "", Inspect, &[200]),
    ("POST", "/lode/v1/groups", r#"{"name":"staff"}"#, Administer, &[201]),
    ("DELETE", "/lode/v1/groups/{name}", "", Administer, &[204]),
    ("PUT", "/lode/v1/groups/{name}/members/{account}", "", Administer, &[404]),
    ("DELETE", "/lode/v1/groups/{name}/members/{account}", "", Administer, &[404]),
    ("GET", "/lode/v1/tokens", "", Account, &[200]),
    ("POST", "/lode/v1/tokens", r#"{"name":"ci"}"#, Account, &[201]),
    ("DELETE", "/lode/v1/tokens/{id}", "", Account, &[404]),
    ("POST", "/lode/v1/tokens/{id}/rotate", "", Account, &[404]),
    ("GET", "/lode/v1/grants", "", Inspect, &[200]),
    ("PUT", "/lode/v1/grants", r#"{"target":"team/*","subject":"reader","role":"read"}"#, Own, &[204]),
    ("PUT", "/lode/v1/visibility", r#"{"target":"team/*","visibility":"private"}"#, Own, &[204]),
    ("GET", "/lode/v1/keys", "", Account, &[200]),
    (
        "POST",
        "/lode/v1/keys",
        r#"{"key":"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAID+J+sdSDaSdFp8SzO/s//NDYG1US57bEJgqMS0SLHRO"}"#,
        Account,
        &[201, 409],
    ),
    ("DELETE", "/lode/v1/keys/{id}", "", Account, &[404]),
    ("GET", "/lode/v1/publishers", "", Own, &[200]),
    (
        "POST",
        "/lode/v1/publishers",
        r#"{"robot":"team+ci","kind":"oidc","issuer":"https://issuer.example","conditions":{"sub":"x"}}"#,
        Own,
        &[201],
    ),
    ("DELETE", "/lode/v1/publishers/{id}", "", Own, &[404]),
    ("GET", "/lode/v1/quotas", "", Inspect, &[200]),
    ("PUT", "/lode/v1/quotas", r#"{"namespace":"team","limit_bytes":null}"#, Administer, &[204]),
    ("GET", "/lode/v1/protected-tags", "", Inspect, &[200]),
    ("PUT", "/lode/v1/protected-tags", r#"{"target":"team/*","patterns":[]}"#, Maintain, &[204]),
    ("GET", "/lode/v1/audit", "", Inspect, &[200]),
    ("GET", "/hf/api/whoami-v2", "", Identity, &[200]),
    ("GET", "/hf/api/models", "", List, &[200]),
    ("GET", "/hf/api/models/{name}", "", Pull, &[200]),
    ("GET", "/hf/api/models/{name}/revision/{revision}", "", Pull, &[200]),
    ("GET", "/hf/api/models/{name}/tree/{revision}", "", Pull, &[200]),
    ("GET", "/hf/api/models/{name}/tree/{revision}/{*path}", "", Pull, &[200]),
    ("POST", "/hf/api/models/{name}/paths-info/{revision}", "paths=x", Pull, &[200]),
    ("GET", "/hf/api/models/{name}/refs", "", Pull, &[200]),
    ("GET", "/hf/api/models/{name}/commits/{revision}", "", Pull, &[200]),
    ("GET", "/hf/api/models/{name}/auth-check", "", Pull, &[200]),
    ("GET", "/hf/{name}/resolve/{revision}/{*path}", "", Pull, &[200]),
    ("HEAD", "/hf/{name}/resolve/{revision}/{*path}", "", Pull, &[200]),
    ("POST", "/hf/api/repos/create", r#"{"name":"team/mini"}"#, Push, &[409]),
    ("DELETE", "/hf/api/repos/delete", r#"{"name":"team/mini"}"#, Delete, &[200]),
    ("POST", "/hf/api/repos/move", r#"{"fromRepo":"team/mini","toRepo":"team/mini"}"#, OwnHere, &[409]),
    ("POST", "/hf/api/validate-yaml", r##"{"content":"# Mini"}"##, Stage, &[200]),
    ("POST", "/hf/api/models/{name}/preupload/{revision}", r#"{"files":[]}"#, Push, &[200]),
    ("POST", "/hf/api/models/{name}/commit/{revision}", r#"{"key":"header","value":{}}"#, Push, &[200]),
    ("PUT", "/hf/api/models/{name}/settings", "{}", OwnHere, &[200]),
    ("POST", "/hf/api/models/{name}/branch/{revision}", "{}", Push, &[409]),
    ("DELETE", "/hf/api/models/{name}/branch/{revision}", "", Delete, &[400]),
    ("POST", "/hf/api/models/{name}/tag/{revision}", r#"{"tag":"latest"}"#, Push, &[409]),
    ("DELETE", "/hf/api/models/{name}/tag/{revision}", "", Delete, &[400]),
    ("POST", "/hf/api/models/{name}/super-squash/{revision}", "{}", Delete, &[400]),
    ("POST", "/hf/api/models/{name}/duplicate", r#"{"repository":"team/mini"}"#, Push, &[409]),
    ("GET", "/hf/api/models/{name}/discussions", "", Pull, &[200]),
    ("POST", "/hf/api/models/{name}/discussions", "", Push, &[400]),
    ("GET", "/hf/api/models/{name}/xet-write-token/{revision}", "", PushExchange, &[200]),
    // Without chunks, and no shard.
    ("POST", "/hf/api/xet/{space}/{name}/v1/xorbs/default/{hash}", "", Push, &[400]),
    ("POST", "/hf/api/xet/{space}/{name}/v1/shards", "", Push, &[400]),
    ("POST", "/hf/{name}/info/lfs/objects/batch", r#"{"operation":"upload","objects":[]}"#, Push, &[200]),
    ("POST", "/hf/{name}/info/lfs/verify", r#"{"oid":"x","size":1}"#, Push, &[400]),
    ("GET", "/hf/{name}", "", Open, &[303]),
    ("GET", "/hf/{name}/commit/{revision}", "", Open, &[303]),
    ("GET", "/hf/{name}/tree/{revision}", "", Open, &[303]),
    ("GET", "/hf/{name}/tree/{revision}/{*path}", "", Open, &[303]),
    ("GET", "/hf/{name}/blob/{revision}/{*path}", "", Open, &[303]),
    // Without a link.
    ("PUT", "/hf/api/lfs/{oid}", "", Open, &[403]),
    ("POST", "/hf/api/lfs/{oid}/{upload}", "", Open, &[403]),
    ("PUT", "/hf/api/lfs/{oid}/{upload}/{part}", "", Open, &[403]),
    ("GET", "/device", "", Session, &[200]),
    ("POST", "/device", "", Session, &[404]),
    ("GET", "/connect", "", Session, &[400]),
    ("POST", "/connect", "", Session, &[400]),
    ("GET", "/-/account", "", Session, &[200]),
    ("POST", "/-/account/tokens", "", Session, &[400]),
    ("POST", "/-/account/keys", "", Session, &[400]),
    ("POST", "/-/account/keys/remove", "", Session, &[404]),
    ("POST", "/-/account/identities", "", Session, &[404]),
    ("POST", "/-/account/identities/remove", "confirmed=yes", Session, &[303]),
    ("POST", "/-/account/password", "current=a+long+password&new=a+long+password", Session, &[303]),
    ("POST", "/-/account/sessions/end", "", Session, &[303]),
    ("GET", "/lode/v1/jobs", "", Inspect, &[200]),
    ("GET", "/lode/v1/jobs/{id}", "", Inspect, &[404]),
    ("DELETE", "/lode/v1/jobs/{id}", "", Administer, &[404]),
    ("GET", "/lode/v1/jobs/{id}/findings", "", Inspect, &[404]),
    ("GET", "/healthz", "", Probe, &[200]),
    ("GET", "/readyz", "", Probe, &[200]),
    ("GET", "/metrics", "", Open, &[200]),
    ("GET", "/", "", Open, &[200]),
    ("GET", "/models", "", List, &[200]),
    ("GET", "/{name}", "", Browse, &[200]),
    ("GET", "/{name}/-/tags", "", Browse, &[200]),
    ("POST", "/{name}/-/tags", "tag=latest&confirmed=yes", Delete, &[303]),
    ("GET", "/{name}/-/history", "", Browse, &[200]),
    ("POST", "/{name}/-/history", "tag=latest&position=1", Push, &[409]),
    ("GET", "/{name}/-/tree/{reference}", "", Browse, &[200]),
    // The file has a page of its own.
    ("GET", "/{name}/-/tree/{reference}/{*path}", "", Browse, &[303]),
    ("GET", "/{name}/-/blob/{reference}/{*path}", "", Browse, &[200]),
    ("GET", "/{name}/-/raw/{reference}/{*path}", "", Browse, &[200]),
    ("GET", "/{name}/-/tensors/{reference}", "", Browse, &[200]),
    ("GET", "/{name}/-/try", "", Browse, &[200]),
    ("POST", "/{name}/-/try", "message=Hi", Browse, &[200]),
    ("GET", "/{name}/-/quantise", "", Browse, &[200]),
    // Who may read the model and not push the new one gets a form for another name.
    ("POST", "/{name}/-/quantise", "to=team/mini:small&type=q8_0", Browse, &[303, 403]),
    ("GET", "/{name}/-/card", "", Push, &[200]),
    ("POST", "/{name}/-/card", "text=x", Push, &[200]),
    ("GET", "/{name}/-/rules", "", Session, &[200]),
    ("POST", "/{name}/-/rules", "base=&patterns=", Session, &[303]),
    ("GET", "/{name}/-/settings", "", Session, &[200]),
    ("POST", "/{name}/-/settings", "change=visibility&visibility=private", Session, &[303]),
    ("GET", "/-/api", "", Open, &[200]),
    ("GET", "/-/admin", "", Inspect, &[200]),
    ("POST", "/-/admin/workers", "id=00000000-0000-7000-8000-000000000000&change=drain", Administer, &[404]),
    ("GET", "/-/admin/accounts", "", Inspect, &[200]),
    ("GET", "/-/admin/quotas", "", Inspect, &[200]),
    ("POST", "/-/admin/quotas", "change=set&namespace=other&limit=1TiB", Administer, &[303]),
    ("GET", "/-/admin/deletions", "", Inspect, &[200]),
    ("POST", "/-/admin/deletions", "change=preview", Administer, &[303]),
    ("GET", "/-/admin/audit", "", Inspect, &[200]),
    ("GET", "/-/admin/connections", "", Inspect, &[200]),
    ("POST", "/-/admin/connections", "id=00000000-0000-7000-8000-000000000000", Administer, &[404]),
    ("GET", "/-/namespaces/{namespace}", "", Session, &[200]),
    ("POST", "/-/namespaces/{namespace}", "name=cd", Session, &[303]),
    ("GET", "/-/robots/{robot}", "", Session, &[200]),
    ("POST", "/-/robots/{robot}", "change=create-token&name=x&access=read&days=1", Session, &[200]),
    ("GET", "/{name}/-/lineage", "", Browse, &[200]),
    ("GET", "/{name}/-/referrers", "", Browse, &[200]),
    ("GET", "/{name}/-/diff", "", Browse, &[303]),
    ("GET", "/{name}/-/diff/{*range}", "", Browse, &[200]),
    ("GET", "/static/{file}", "", Open, &[200]),
    ("GET", "/api/version", "", Open, &[200]),
    ("GET", "/token", "", Exchange, &[200]),
    ("POST", "/token", "grant_type=password&username=admin&password=a+long+password", Open, &[200]),
    ("POST", "/hf/oauth/device", "client_id=lode", Open, &[200]),
    ("POST", "/hf/oauth/token", "grant_type=none", Open, &[400]),
    ("GET", "/login", "", Open, &[200, 303]),
    ("POST", "/login", "name=admin&password=a+long+password", Open, &[303]),
    ("GET", "/login/{provider}", "", Open, &[404]),
    ("GET", "/login/{provider}/callback", "", Open, &[404]),
    ("POST", "/logout", "", Open, &[303]),
    ("GET", "/setup", "", Open, &[403]),
    ("POST", "/setup", "", Open, &[403]),
];

/// The address of a request to a route.
pub(super) fn address(method: &str, route: &str) -> String {
    let path = route
        .replace("{name}", if route.starts_with("/lode/v1/accounts") { "carol" } else { "team/mini" })
        .replace("groups/team/mini", "groups/staff")
        .replace("{account}", "carol")
        .replace("{digest}", ZERO)
        .replace("{reference}", "latest")
        // No branch: others need the history of `main`.
        .replace("super-squash/{revision}", "super-squash/refs%2Fpr%2F1")
        .replace("{revision}", "main")
        .replace("{id}", ID)
        .replace("{oid}", &ZERO[7..])
        .replace("{upload}", ID)
        .replace("{space}", ID)
        .replace("{hash}", &ZERO[7..])
        .replace("{part}", "1")
        .replace("{*model}", "team/mini")
        .replace("{provider}", "corp")
        .replace("{namespace}", "team")
        .replace("{robot}", "team+ci")
        .replace("{file}", "lode.css")
        // The root: the model has no folder.
        .replace("tree/main/{*path}", "tree/main//")
        .replace("{*path}", "config.json")
        .replace("{*range}", "latest..latest");
    let query = if method == "PUT" && route.ends_with("uploads/{id}") {
        format!("?digest={ZERO}")
    } else if route.starts_with("/lode/v1/diff/") {
        "?with=team/mini".to_owned()
    } else if route.ends_with("/findings") {
        "?kind=damage".to_owned()
    } else if route.ends_with("/-/diff") {
        "?from=latest&to=latest".to_owned()
    } else if route == "/lode/v1/blobs" {
        "?size=1".to_owned()
    } else if route.starts_with("/lode/v1/publishers") && method != "POST" {
        "?robot=team%2Bci".to_owned()
    } else {
        String::new()
    };
    path + &query
}

#[tokio::test]
async fn every_route_checks_the_policy() {
    let app = closed().await;
    for (method, route, body, need, _) in ROUTES {
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
            Browse => response.status == 404,
            Join | OwnWorker | RemoveWorker => response.status.is_client_error(),
            Exchange | Probe | Open => !response.status.is_server_error(),
            _ => response.status == 401,
        };
        assert!(is_refused, "{method} {route}: {} {}", response.status, response.text());
        // Every client may pull something, so these routes have to read the body to know the model. Workers
        // prove that they may join.
        let may_be_read = matches!(need, Pull | Infer | Join | OwnWorker | Exchange | Open);
        assert!(!was_read || may_be_read, "{method} {route} reads the body of a caller without any rights");
    }
}

/// The router itself names the methods of a route when it refuses another one.
#[tokio::test]
async fn no_route_is_forgotten() {
    let app = App::new().await;
    let source = include_str!("../router.rs");
    let routes: BTreeSet<&str> =
        source.split(".route(\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    let (mut served, mut listed) = (BTreeSet::new(), BTreeSet::new());
    for route in routes {
        let request = Request::builder().method("PROBE").uri(address("PROBE", route));
        let refused = app.send(request, "").await;
        assert_eq!(refused.status, 405, "{route}");
        let methods: BTreeSet<&str> = refused.header("allow").split(',').map(str::trim).collect();
        served.extend(methods.iter().map(|method| format!("{method} {route}")));
    }
    for (method, route, ..) in ROUTES {
        listed.insert(format!("{method} {route}"));
        if *method == "GET" {
            listed.insert(format!("HEAD {route}"));
        }
    }
    assert_eq!(served, listed);
}

//! Accounts, tokens, roles and visibility over HTTP.

use std::convert::Infallible;
use std::net::SocketAddr;

use axum::body::Body;
use axum::extract::ConnectInfo;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::stream;
use http::Request;
use http::request::Builder;
use lode_client::Secret;
use lode_model::digest::Digest;
use serde_json::{Value, json};
use tower::ServiceExt;

use super::{App, TestResponse, failure};
use crate::Config;
use crate::auth::{Action, Caller, Target};
use crate::store::query;

/// A loopback name, which an open server accepts, too.
const HOST: &str = "localhost:5000";
pub(super) const PASSWORD: &str = "a long password";

pub(super) fn basic(name: &str, password: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{name}:{password}")))
}

fn bearer(token: &str) -> String {
    format!("Bearer {token}")
}

/// A server with the administrator `admin`.
pub(super) async fn closed() -> App {
    App::with(Config { admin_password: Some(Secret::new(PASSWORD)), ..Config::default() }).await
}

impl App {
    pub(super) async fn send_as(
        &self,
        credentials: &str,
        request: Builder,
        body: impl Into<String>,
    ) -> TestResponse {
        let request =
            if credentials.is_empty() { request } else { request.header("authorization", credentials) };
        self.send(request.header("host", HOST), body.into()).await
    }

    pub(super) async fn get_as(&self, credentials: &str, path: &str) -> TestResponse {
        self.send_as(credentials, Request::get(path), "").await
    }

    /// Sends a request of the administrator, which has to succeed.
    pub(super) async fn admin(&self, method: &str, path: &str, body: Value) -> TestResponse {
        let request = Request::builder().method(method).uri(path);
        let response = self.send_as(&basic("admin", PASSWORD), request, body.to_string()).await;
        assert!(response.status.is_success(), "{method} {path}: {} {}", response.status, response.text());
        response
    }

    /// Creates a user; returns its credentials.
    pub(super) async fn user(&self, name: &str) -> String {
        self.admin("POST", "/lode/v1/accounts", json!({"name": name, "password": PASSWORD})).await;
        basic(name, PASSWORD)
    }

    /// Creates a token of the account with these credentials; returns its credentials and its id.
    pub(super) async fn token(&self, credentials: &str, request: Value) -> (String, String) {
        let response = self.send_as(credentials, Request::post("/lode/v1/tokens"), request.to_string()).await;
        assert_eq!(response.status, 201, "{}", response.text());
        let token = response.json();
        (bearer(token["secret"].as_str().unwrap()), token["id"].as_str().unwrap().to_owned())
    }

    pub(super) async fn grant(&self, target: &str, subject: &str, role: &str) {
        self.admin("PUT", "/lode/v1/grants", json!({"target": target, "subject": subject, "role": role}))
            .await;
    }

    pub(super) async fn show(&self, target: &str, visibility: &str) {
        self.admin("PUT", "/lode/v1/visibility", json!({"target": target, "visibility": visibility})).await;
    }

    /// Pushes a small image.
    pub(super) async fn push_as(&self, credentials: &str, repository: &str) -> TestResponse {
        let digest = Digest::sha256(b"{}");
        let path = format!("/v2/{repository}/blobs/uploads/?digest={digest}");
        let blob = self.send_as(credentials, Request::post(path), "{}").await;
        if blob.status != 201 {
            return blob;
        }
        let manifest = super::image(&digest, 2, &[]);
        let kind = manifest["mediaType"].as_str().unwrap();
        let request = Request::put(format!("/v2/{repository}/manifests/latest")).header("content-type", kind);
        self.send_as(credentials, request, manifest.to_string()).await
    }

    /// Pushes a blob that no other repository has.
    async fn push_secret(&self, credentials: &str, repository: &str) -> Digest {
        let digest = Digest::sha256(repository.as_bytes());
        let path = format!("/v2/{repository}/blobs/uploads/?digest={digest}");
        assert_eq!(self.send_as(credentials, Request::post(path), repository).await.status, 201);
        digest
    }

    /// The status of a pull.
    pub(super) async fn pull_as(&self, credentials: &str, repository: &str) -> u16 {
        self.get_as(credentials, &format!("/v2/{repository}/manifests/latest")).await.status.as_u16()
    }
}

#[tokio::test]
async fn the_first_account_ends_open_access() {
    let app = App::new().await;
    app.push_image("team/app", "latest", "x").await;
    assert_eq!(app.get_as("Bearer anything", "/v2/").await.status, 200, "credentials are ignored");
    let refused = async |body: Value| app.post_json("/lode/v1/accounts", body).await;
    for body in [
        json!({"name": "admin"}),
        json!({"name": "admin", "server_role": "admin"}),
        json!({"name": "admin", "password": PASSWORD}),
        json!({"name": "admin", "password": PASSWORD, "server_role": "auditor"}),
    ] {
        assert_eq!(refused(body).await.status, 409, "the first account must be able to administer");
    }
    assert_eq!(
        refused(json!({"name": "admin", "password": "short", "server_role": "admin"})).await.status,
        400
    );
    assert_eq!(app.get("/v2/").await.status, 200, "still open");

    let body = json!({"name": "admin", "password": PASSWORD, "server_role": "admin"});
    assert_eq!(app.post_json("/lode/v1/accounts", body).await.status, 201);
    for path in ["/v2/", "/v2/team/app/manifests/latest", "/v2/no/such/manifests/latest"] {
        let response = app.get_as("", path).await;
        assert_eq!(response.failure(), failure(401, "UNAUTHORIZED"), "{path}");
    }
    assert_eq!(app.pull_as(&basic("admin", PASSWORD), "team/app").await, 200);
    // What existed before is internal: signed-in users read it, and others do not.
    let user = app.user("alice").await;
    assert_eq!(app.pull_as(&user, "team/app").await, 200);
    assert_eq!(app.push_as(&user, "team/app").await.failure(), failure(403, "DENIED"));
    assert_eq!(app.pull_as("", "team/app").await, 401);
}

#[tokio::test]
async fn the_setting_creates_the_administrator_once() {
    let app = closed().await;
    assert_eq!(app.get_as(&basic("admin", PASSWORD), "/v2/").await.status, 200);
    let listed = app.admin("GET", "/lode/v1/accounts", json!(null)).await.json();
    assert_eq!(listed["accounts"].as_array().unwrap().len(), 1, "{listed}");
    assert_eq!(
        (&listed["accounts"][0]["name"], &listed["accounts"][0]["server_role"]),
        (&json!("admin"), &json!("admin"))
    );
    assert!(!listed.to_string().contains("argon2"));
}

#[tokio::test]
async fn challenges_name_the_token_endpoint() {
    let app = closed().await;
    let header = async |request: Builder, credentials: &str| {
        let uri = request.uri_ref().map(ToString::to_string);
        let response = app.send_as(credentials, request, "").await;
        assert_eq!(response.status, 401, "{uri:?}");
        let count = response.headers.get_all("www-authenticate").iter().count();
        assert_eq!(count, 1, "{uri:?} {credentials}: one challenge");
        response.header("www-authenticate").to_owned()
    };
    let base = "Bearer realm=\"http://localhost:5000/token\",service=\"localhost:5000\"";
    assert_eq!(header(Request::get("/v2/"), "").await, base);
    assert_eq!(
        header(Request::get("/v2/team/app/manifests/latest"), "").await,
        format!("{base},scope=\"repository:team/app:pull\"")
    );
    assert_eq!(
        header(Request::post("/v2/team/app/blobs/uploads/"), "").await,
        format!("{base},scope=\"repository:team/app:pull,push\"")
    );
    assert_eq!(
        header(Request::get("/v2/"), "Bearer nonsense").await,
        format!("{base},error=\"invalid_token\"")
    );
    assert_eq!(header(Request::get("/v2/"), &basic("admin", "wrong")).await, base);
    assert_eq!(header(Request::get("/lode/v1/me"), "").await, "Basic realm=\"lode\"");
}

#[tokio::test]
async fn the_token_protocol_of_docker() {
    let app = closed().await;
    let alice = app.user("alice").await;
    assert_eq!(app.push_as(&alice, "alice/app").await.status, 201, "a user owns the namespace of its name");
    let fetch = async |credentials: &str, query: &str| {
        let response = app.get_as(credentials, &format!("/token?service={HOST}{query}")).await;
        assert_eq!(response.status, 200, "{}", response.text());
        assert_eq!(response.header("cache-control"), "no-store");
        let body = response.json();
        assert_eq!((&body["token"], &body["expires_in"]), (&body["access_token"], &json!(3600)));
        bearer(body["token"].as_str().unwrap())
    };
    let pull = fetch(&alice, "&account=alice&scope=repository:alice/app:pull").await;
    assert_eq!(app.pull_as(&pull, "alice/app").await, 200);
    assert_eq!(app.get_as(&pull, "/v2/").await.status, 200);
    // The account may push, but not with this token.
    let response = app.push_as(&pull, "alice/app").await;
    assert_eq!(response.failure(), failure(401, "UNAUTHORIZED"));
    assert!(response.header("www-authenticate").ends_with(",error=\"insufficient_scope\""));
    let push =
        fetch(&alice, "&scope=repository:alice/app:pull,push%20repository:alice/other:pull,push").await;
    for repository in ["alice/app", "alice/other"] {
        assert_eq!(app.push_as(&push, repository).await.status, 201, "{repository}");
    }
    // A token for the distribution API does not administer, and grants nothing beyond its account.
    assert_eq!(app.get_as(&push, "/lode/v1/tokens").await.status, 403);
    let greedy = fetch(&alice, "&scope=repository:admin/app:*").await;
    assert_eq!(app.pull_as(&greedy, "admin/app").await, 404);
    // Anonymous clients get a token for what is public.
    let guest = fetch("", "&scope=repository:alice/app:pull").await;
    assert_eq!(
        (app.get_as(&guest, "/v2/").await.status.as_u16(), app.pull_as(&guest, "alice/app").await),
        (200, 401)
    );
    app.show("alice/app", "public").await;
    assert_eq!((app.pull_as(&guest, "alice/app").await, app.pull_as("", "alice/app").await), (200, 200));
    assert_eq!(app.get_as("", "/v2/").await.status, 401, "clients that log in must be asked to");
    // containerd sends the password in a form.
    let form =
        "grant_type=password&username=alice&password=a+long+password&scope=repository:alice/app:pull,push";
    let response = app.send_as("", Request::post("/token"), form).await;
    assert_eq!(response.status, 200);
    let token = bearer(response.json()["token"].as_str().unwrap());
    assert_eq!(app.push_as(&token, "alice/app").await.status, 201);
    for form in
        ["grant_type=password&username=alice&password=wrong", "grant_type=refresh_token&refresh_token=x", ""]
    {
        assert_eq!(
            app.send_as("", Request::post("/token"), form).await.failure(),
            failure(401, "UNAUTHORIZED")
        );
    }
    assert_eq!(app.get_as(&basic("alice", "wrong"), "/token").await.failure(), failure(401, "UNAUTHORIZED"));
}

#[tokio::test]
async fn access_tokens_cannot_be_forged() {
    let app = closed().await;
    let alice = app.user("alice").await;
    app.push_as(&alice, "alice/app").await;
    let response = app.get_as(&alice, "/token?scope=repository:alice/app:pull").await.json();
    let token = response["token"].as_str().unwrap();
    assert_eq!(app.pull_as(&bearer(token), "alice/app").await, 200);
    let (content, mac) = token.rsplit_once('.').unwrap();
    let forged = STANDARD.encode(r#"{"account":null,"epoch":0,"scopes":[],"expires":9999999999}"#);
    for wrong in [
        content.to_owned(),
        format!("{content}."),
        format!("{content}.{}", &mac[..mac.len() - 1]),
        format!("{content}A.{mac}"),
        format!("lode.{}.{mac}", forged.trim_end_matches('=')),
        format!("{token}{token}"),
        "lode..".to_owned(),
        "lode.".to_owned(),
    ] {
        assert_eq!(app.pull_as(&bearer(&wrong), "alice/app").await, 401, "{wrong}");
    }
}

#[tokio::test]
async fn roles_and_visibility_decide() {
    let app = closed().await;
    let admin = basic("admin", PASSWORD);
    let user = app.user("alice").await;
    assert_eq!(app.push_as(&admin, "team/app").await.status, 201);
    assert_eq!(app.push_as(&admin, "team/other").await.status, 201);
    // 1. Without a role, a private repository looks like a missing one.
    let hidden = app.get_as(&user, "/v2/team/app/manifests/latest").await;
    let missing = app.get_as(&user, "/v2/team/none/manifests/latest").await;
    assert_eq!(hidden.failure(), failure(404, "NAME_UNKNOWN"));
    assert_eq!(hidden.text().replace("team/app", "team/none"), missing.text());
    let anonymous = app.get_as("", "/v2/team/app/manifests/latest").await;
    assert_eq!(anonymous.text(), app.get_as("", "/v2/team/none/manifests/latest").await.text());
    assert_eq!(app.push_as(&user, "team/app").await.failure(), failure(404, "NAME_UNKNOWN"));
    assert_eq!(app.push_as(&user, "fresh/app").await.failure(), failure(404, "NAME_UNKNOWN"));
    // 2. Roles on a repository, then on its namespace.
    app.grant("team/app", "alice", "read").await;
    assert_eq!((app.pull_as(&user, "team/app").await, app.pull_as(&user, "team/other").await), (200, 404));
    assert_eq!(app.push_as(&user, "team/app").await.failure(), failure(403, "DENIED"));
    app.grant("team/*", "alice", "write").await;
    assert_eq!(app.push_as(&user, "team/app").await.status, 201, "the highest role counts");
    assert_eq!(app.push_as(&user, "team/new").await.status, 201);
    let delete = async || {
        app.send_as(&user, Request::delete("/v2/team/new/manifests/latest"), "").await.status.as_u16()
    };
    assert_eq!(delete().await, 403);
    app.grant("team/*", "alice", "maintain").await;
    assert_eq!(delete().await, 202);
    let visibility = json!({"target": "team/app", "visibility": "public"}).to_string();
    let set = async || {
        app.send_as(&user, Request::put("/lode/v1/visibility"), visibility.clone()).await.status.as_u16()
    };
    assert_eq!(set().await, 403);
    app.grant("team/*", "alice", "own").await;
    assert_eq!(set().await, 204);
    assert_eq!((app.pull_as("", "team/app").await, app.pull_as("", "team/other").await), (200, 401));
    // 3. A repository's visibility overrides that of its namespace.
    app.show("team/*", "public").await;
    app.show("team/app", "private").await;
    assert_eq!((app.pull_as("", "team/app").await, app.pull_as("", "team/other").await), (401, 200));
    // 4. Groups.
    let bob = app.user("bob").await;
    assert_eq!(app.pull_as(&bob, "team/app").await, 404);
    app.admin("POST", "/lode/v1/groups", json!({"name": "staff"})).await;
    app.grant("team/app", "staff", "write").await;
    assert_eq!(app.pull_as(&bob, "team/app").await, 404);
    app.admin("PUT", "/lode/v1/groups/staff/members/bob", json!(null)).await;
    assert_eq!(app.push_as(&bob, "team/app").await.status, 201);
    app.admin("DELETE", "/lode/v1/groups/staff/members/bob", json!(null)).await;
    assert_eq!(app.pull_as(&bob, "team/app").await, 404);
    // 5. A removed role.
    app.admin("PUT", "/lode/v1/grants", json!({"target": "team/*", "subject": "alice"})).await;
    assert_eq!(
        (app.pull_as(&user, "team/app").await, app.push_as(&user, "team/app").await.status.as_u16()),
        (200, 403)
    );
}

#[tokio::test]
async fn listings_have_only_what_the_caller_may_read() {
    let app = closed().await;
    let admin = basic("admin", PASSWORD);
    let (alice, auditor) = (app.user("alice").await, app.user("audit").await);
    app.admin("PATCH", "/lode/v1/accounts/audit", json!({"server_role": "auditor"})).await;
    for repository in ["open/a", "open/b", "single", "team/a", "team/b"] {
        assert_eq!(app.push_as(&admin, repository).await.status, 201);
    }
    app.show("open/*", "public").await;
    app.show("open/b", "private").await;
    app.show("single", "internal").await;
    app.grant("team/b", "alice", "read").await;
    let (limited, _) = app.token(&admin, json!({"name": "x", "targets": ["team/*", "single"]})).await;
    for (credentials, expect) in [
        ("", vec!["open/a"]),
        (&alice[..], vec!["open/a", "single", "team/b"]),
        (&auditor[..], vec!["open/a", "open/b", "single", "team/a", "team/b"]),
        (&admin[..], vec!["open/a", "open/b", "single", "team/a", "team/b"]),
        (&limited[..], vec!["single", "team/a", "team/b"]),
    ] {
        let listed = app.get_as(credentials, "/v2/_catalog").await.json();
        assert_eq!(listed["repositories"], json!(expect), "{credentials}");
        // A page is full although repositories before it are hidden.
        let page = app.get_as(credentials, "/v2/_catalog?n=1").await.json();
        assert_eq!(page["repositories"], json!(expect[..1]), "{credentials}");
    }
    let found = app.get_as(&alice, "/lode/v1/blobs?size=2").await.json();
    assert_eq!(found["known"], json!(true));
    let stranger = app.user("carol").await;
    app.show("open/a", "private").await;
    app.show("single", "private").await;
    assert_eq!(app.get_as(&stranger, "/lode/v1/blobs?size=2").await.json()["known"], json!(false));
    // A mount finds only what the caller may read, and does not reveal the rest.
    let digest = Digest::sha256(b"{}");
    for (from, status) in [("&from=team/b", 202), ("&from=no/such", 202), ("", 202)] {
        let path = format!("/v2/carol/x/blobs/uploads/?mount={digest}{from}");
        assert_eq!(app.send_as(&stranger, Request::post(path), "").await.status, status, "{from}");
    }
    let path = format!("/v2/alice/x/blobs/uploads/?mount={digest}&from=team/b");
    assert_eq!(app.send_as(&alice, Request::post(path), "").await.status, 201);
}

#[tokio::test]
async fn tokens_are_limited_and_revoked() {
    let app = closed().await;
    let alice = app.user("alice").await;
    app.push_as(&alice, "alice/app").await;
    app.push_as(&alice, "alice/other").await;
    let (full, id) = app.token(&alice, json!({"name": "laptop"})).await;
    assert_eq!(app.push_as(&full, "alice/app").await.status, 201);
    // As a password, too, with the account's name or `token`.
    let secret = full.strip_prefix("Bearer ").unwrap();
    for (name, status) in [("alice", 200), ("token", 200), ("admin", 401)] {
        assert_eq!(app.pull_as(&basic(name, secret), "alice/app").await, status, "{name}");
    }
    // A client learns the id of its token, with which it can revoke it.
    for (credentials, expected) in
        [(&full, json!(id)), (&basic("token", secret), json!(id)), (&alice, Value::Null)]
    {
        assert_eq!(app.get_as(credentials, "/lode/v1/me").await.json()["token_id"], expected);
    }
    let (read, _) = app.token(&full, json!({"name": "ci", "access": "read", "targets": ["alice/app"]})).await;
    assert_eq!((app.pull_as(&read, "alice/app").await, app.pull_as(&read, "alice/other").await), (200, 404));
    assert_eq!(app.push_as(&read, "alice/app").await.failure(), failure(403, "DENIED"));
    let (infer, _) = app.token(&full, json!({"name": "app", "access": "infer"})).await;
    assert_eq!(app.pull_as(&infer, "alice/app").await, 403, "an inference token does not pull");
    assert_ne!(
        app.send_as(&infer, Request::post("/lode/v1/generate"), r#"{"model":"alice/app"}"#).await.status,
        403
    );
    for limited in [&read, &infer] {
        let request = Request::post("/lode/v1/tokens");
        assert_eq!(app.send_as(limited, request, r#"{"name":"more"}"#).await.status, 403);
        assert_eq!(app.get_as(limited, "/lode/v1/tokens").await.status, 403);
    }
    // The listing has no secret.
    let listed = app.get_as(&alice, "/lode/v1/tokens").await;
    assert_eq!(listed.json()["tokens"].as_array().unwrap().len(), 3);
    assert!(!listed.text().contains(secret) && listed.text().contains(&secret[secret.len() - 4..]));
    // A revoked token is refused at once, with the access tokens that were made with it.
    let exchanged = app.get_as(&full, "/token?scope=repository:alice/app:pull").await.json();
    let exchanged = bearer(exchanged["token"].as_str().unwrap());
    assert_eq!(app.pull_as(&exchanged, "alice/app").await, 200);
    let revoked = app.send_as(&alice, Request::delete(format!("/lode/v1/tokens/{id}")), "").await;
    assert_eq!(revoked.status, 204);
    for credentials in [&full, &exchanged, &basic("alice", secret)] {
        assert_eq!(app.pull_as(credentials, "alice/app").await, 401);
    }
    assert_eq!(app.pull_as(&read, "alice/app").await, 200, "others stay valid");
    // A token is replaced by one with the same limits. A limited one replaces no other, and not itself if it only reads.
    let rotate = async |credentials: &str, id: &str| {
        let request = Request::post(format!("/lode/v1/tokens/{id}/rotate"));
        app.send_as(credentials, request, "null").await
    };
    let listed = app.get_as(&alice, "/lode/v1/tokens").await.json();
    let id_of = |name: &str| {
        let found = listed["tokens"].as_array().unwrap().iter().find(|token| token["name"] == name);
        found.unwrap()["id"].as_str().unwrap().to_owned()
    };
    assert_eq!(rotate(&infer, &id_of("ci")).await.status, 403);
    let refused = rotate(&read, &id_of("ci")).await;
    assert!(refused.status == 403 && refused.text().contains("cannot replace itself"), "{}", refused.text());
    assert_eq!(app.pull_as(&read, "alice/app").await, 200, "it stays valid");
    let response = rotate(&alice, &id_of("ci")).await;
    assert_eq!(response.status, 201, "{}", response.text());
    let newer = response.json();
    assert_eq!((&newer["name"], &newer["scope"]["targets"]), (&json!("ci"), &json!(["alice/app"])));
    let newer = bearer(newer["secret"].as_str().unwrap());
    assert_eq!((app.pull_as(&read, "alice/app").await, app.pull_as(&newer, "alice/app").await), (401, 200));
    assert_eq!(app.pull_as(&newer, "alice/other").await, 404);
    assert_eq!(rotate(&alice, &id_of("ci")).await.status, 404, "it is revoked already");
    assert_eq!(rotate(&alice, &id_of("app")).await.status, 201);
    // Another user's tokens.
    let bob = app.user("bob").await;
    assert_eq!(rotate(&bob, &id_of("laptop")).await.status, 404);
    for request in [
        Request::get("/lode/v1/tokens?account=alice"),
        Request::delete(format!("/lode/v1/tokens/{id}?account=alice")),
    ] {
        assert_eq!(app.send_as(&bob, request, "").await.status, 403);
    }
}

/// Otherwise a token that was given away would never expire.
#[tokio::test]
async fn a_limited_token_cannot_extend_its_own_time() {
    let app = closed().await;
    let alice = app.user("alice").await;
    let request = |name: &str, access: &str| json!({"name": name, "access": access, "targets": ["alice/app"], "expires_in_seconds": 3600});
    let unlimited = json!({"name": "unlimited", "expires_in_seconds": 3600});
    let mut tokens = Vec::new();
    for request in [request("write", "write"), request("own", "own"), request("owner", "write"), unlimited] {
        tokens.push(app.token(&alice, request).await);
    }
    // Half of their time is over.
    let text =
        "update access_tokens set created_at = created_at - 1800000, expires_at = expires_at - 1800000";
    query!(app.registry.store().write(), c => sqlx::query(text).execute(c).await.map(drop)).unwrap();
    let expiry_of = async |id: &str| {
        let listed = app.get_as(&alice, "/lode/v1/tokens").await.json();
        let found = listed["tokens"].as_array().unwrap().iter().find(|token| token["id"] == id).cloned();
        found.unwrap()["expires_at"].as_str().unwrap().to_owned()
    };
    let [write, own, of_owner, unlimited] = &tokens[..] else { panic!("four tokens") };
    for (by, (token, id), is_extended) in [
        (&write.0, write, false),
        (&own.0, own, false),
        (&alice, of_owner, true),
        (&unlimited.0, unlimited, true),
    ] {
        let before = expiry_of(id).await;
        let response = app.send_as(by, Request::post(format!("/lode/v1/tokens/{id}/rotate")), "null").await;
        assert_eq!(response.status, 201, "{}", response.text());
        let newer = response.json();
        let (name, after) = (&newer["name"], newer["expires_at"].as_str().unwrap());
        match is_extended {
            true => assert!(after > &before[..], "{name}: {before} {after}"),
            false => assert_eq!(after, before, "{name}"),
        }
        assert_eq!(app.get_as(token, "/v2/").await.status, 401, "{name}");
        let newer = bearer(newer["secret"].as_str().unwrap());
        assert_eq!(app.get_as(&newer, "/v2/").await.status, 200, "{name}");
    }
}

#[tokio::test]
async fn disabled_and_changed_accounts_lose_their_credentials() {
    let app = closed().await;
    let alice = app.user("alice").await;
    app.push_as(&alice, "alice/app").await;
    let (token, _) = app.token(&alice, json!({"name": "ci"})).await;
    let exchanged = app.get_as(&alice, "/token?scope=repository:alice/app:pull").await.json();
    let exchanged = bearer(exchanged["token"].as_str().unwrap());
    let change = async |credentials: &str, body: Value| {
        let request = Request::patch("/lode/v1/accounts/alice");
        app.send_as(credentials, request, body.to_string()).await.status.as_u16()
    };
    // A new password ends access tokens, and keeps the tokens of the account.
    // Whoever has a token cannot lock the owner out: the current password is needed.
    let own = |current: &str| json!({"password": "another password", "current_password": current});
    assert_eq!(change(&token, json!({"password": "another password"})).await, 403);
    assert_eq!(change(&token, own("wrong")).await, 401);
    assert_eq!(change(&exchanged, own(PASSWORD)).await, 403);
    assert_eq!(change(&token, own(PASSWORD)).await, 200);
    assert_eq!(
        (app.pull_as(&alice, "alice/app").await, app.pull_as(&exchanged, "alice/app").await),
        (401, 401)
    );
    assert_eq!(app.pull_as(&token, "alice/app").await, 200);
    let alice = basic("alice", "another password");
    assert_eq!(app.pull_as(&alice, "alice/app").await, 200);
    assert_eq!(change(&alice, json!({"server_role": "admin"})).await, 403);
    let admin = basic("admin", PASSWORD);
    assert_eq!(change(&admin, json!({"disabled": true})).await, 200);
    assert_eq!((app.pull_as(&alice, "alice/app").await, app.pull_as(&token, "alice/app").await), (401, 401));
    assert_eq!(change(&admin, json!({"disabled": false})).await, 200);
    assert_eq!((app.pull_as(&alice, "alice/app").await, app.pull_as(&token, "alice/app").await), (200, 200));
    app.admin("DELETE", "/lode/v1/accounts/alice", json!(null)).await;
    assert_eq!((app.pull_as(&alice, "alice/app").await, app.pull_as(&token, "alice/app").await), (401, 401));
    // The last administrator stays.
    for (method, body) in
        [("DELETE", "null"), ("PATCH", r#"{"disabled":true}"#), ("PATCH", r#"{"server_role":"none"}"#)]
    {
        let request = Request::builder().method(method).uri("/lode/v1/accounts/admin");
        assert_eq!(app.send_as(&admin, request, body).await.status, 409, "{method} {body}");
    }
    assert_eq!(app.get_as(&admin, "/v2/").await.status, 200);
}

/// The rights count when the manifest is stored, and not when its request began.
#[tokio::test]
async fn a_manifest_is_refused_if_its_token_ends_while_it_arrives() {
    let app = closed().await;
    let alice = app.user("alice").await;
    assert_eq!(app.push_as(&alice, "alice/app").await.status, 201);
    let (token, id) = app.token(&alice, json!({"name": "ci"})).await;
    let manifest = super::image(&Digest::sha256(b"{}"), 2, &[]);
    let request = |request: Builder, credentials: &str| {
        request.header("authorization", credentials).header("host", HOST)
    };
    // The body is read after the first check, and revokes the token.
    let revoke = request(Request::delete(format!("/lode/v1/tokens/{id}")), &alice);
    let (router, revoke, text) =
        (app.router.clone(), revoke.body(Body::empty()).unwrap(), manifest.to_string());
    let body = stream::once(async move {
        assert_eq!(router.oneshot(revoke).await.unwrap().status(), 204);
        Ok::<_, Infallible>(text)
    });
    let put = request(Request::put("/v2/alice/app/manifests/late"), &token)
        .header("content-type", manifest["mediaType"].as_str().unwrap());
    let refused = app.send(put, Body::from_stream(body)).await;
    assert_eq!(refused.failure(), failure(403, "DENIED"), "{}", refused.text());
    assert!(refused.text().contains("was revoked"), "{}", refused.text());
    assert_eq!(app.get_as(&alice, "/v2/alice/app/manifests/late").await.status, 404);
}

#[tokio::test]
async fn robots_belong_to_a_namespace() {
    let app = closed().await;
    let (alice, bob) = (app.user("alice").await, app.user("bob").await);
    let create = async |credentials: &str, name: &str| {
        let body = json!({"name": name, "kind": "robot"}).to_string();
        app.send_as(credentials, Request::post("/lode/v1/accounts"), body).await.status.as_u16()
    };
    assert_eq!(create(&alice, "alice+ci").await, 201);
    assert_eq!((create(&bob, "alice+more").await, create(&alice, "alice+ci").await), (403, 409));
    assert_eq!((create(&alice, "ci").await, create(&alice, "alice+A").await), (400, 400));
    let (robot, _) = app.token(&alice, json!({"name": "ci", "account": "alice+ci"})).await;
    assert_eq!(app.push_as(&robot, "alice/app").await.status, 404, "it has no role yet");
    let body = json!({"target": "alice/*", "subject": "alice+ci", "role": "write"}).to_string();
    assert_eq!(app.send_as(&alice, Request::put("/lode/v1/grants"), body).await.status, 204);
    assert_eq!(app.push_as(&robot, "alice/app").await.status, 201);
    let secret = robot.strip_prefix("Bearer ").unwrap();
    assert_eq!(app.pull_as(&basic("alice+ci", secret), "alice/app").await, 200);
    let password = json!({"name": "alice+x", "kind": "robot", "password": PASSWORD}).to_string();
    assert_eq!(app.send_as(&alice, Request::post("/lode/v1/accounts"), password).await.status, 400);
    let request = Request::delete("/lode/v1/accounts/alice+ci");
    assert_eq!(app.send_as(&alice, request, "").await.status, 204);
    assert_eq!(app.pull_as(&robot, "alice/app").await, 401);
    // A user's robots go with it, and no other's.
    app.user("alic").await;
    for owner in ["alic", "alice"] {
        let body = json!({"name": format!("{owner}+ci"), "kind": "robot"});
        app.admin("POST", "/lode/v1/accounts", body).await;
    }
    let (robot, _) = app.token(&alice, json!({"name": "ci", "account": "alice+ci"})).await;
    assert_eq!(app.get_as(&robot, "/v2/").await.status, 200);
    app.admin("DELETE", "/lode/v1/accounts/alic", json!(null)).await;
    assert_eq!(app.get_as(&robot, "/v2/").await.status, 200);
    app.admin("DELETE", "/lode/v1/accounts/alice", json!(null)).await;
    assert_eq!(app.get_as(&robot, "/v2/").await.status, 401);
}

#[tokio::test]
async fn access_tokens_stay_narrow() {
    let app = closed().await;
    let alice = app.user("alice").await;
    for repository in ["alice/app", "alice/secret"] {
        assert_eq!(app.push_as(&alice, repository).await.status, 201);
    }
    let digest = app.push_secret(&alice, "alice/secret").await;
    let (token, id) = app.token(&alice, json!({"name": "ci"})).await;
    let exchanged = app.get_as(&token, "/token?scope=repository:alice/app:pull,push").await.json();
    let exchanged = bearer(exchanged["token"].as_str().unwrap());
    // 1. It does not turn into the token behind it, and does not outlive its hour.
    for path in [format!("/lode/v1/tokens/{id}/rotate"), "/lode/v1/tokens".to_owned()] {
        let refused = app.send_as(&exchanged, Request::post(&path), r#"{"name":"x"}"#).await;
        assert_eq!(refused.status, 403, "{path}: {}", refused.text());
    }
    let request = Request::delete(format!("/lode/v1/tokens/{id}"));
    assert_eq!(app.send_as(&exchanged, request, "").await.status, 403);
    assert_eq!(app.get_as(&exchanged, "/token?scope=repository:alice/app:pull").await.status, 401);
    // 2. It takes no blob from a repository that it does not name.
    let mount = format!("/v2/alice/app/blobs/uploads/?mount={digest}");
    assert_eq!(app.send_as(&exchanged, Request::post(&mount), "").await.status, 202);
    assert_eq!(app.get_as(&exchanged, &format!("/v2/alice/app/blobs/{digest}")).await.status, 404);
    assert_eq!(app.send_as(&token, Request::post(&mount), "").await.status, 201);
    // 3. A limited token may revoke itself.
    let (limited, id) = app.token(&alice, json!({"name": "x", "access": "read"})).await;
    let request = Request::delete(format!("/lode/v1/tokens/{id}"));
    assert_eq!(app.send_as(&limited, request, "").await.status, 204);
    assert_eq!(app.get_as(&limited, "/v2/").await.status, 401);
}

#[tokio::test]
async fn rights_of_a_former_group_are_not_remembered() {
    let app = closed().await;
    let alice = app.user("alice").await;
    app.admin("POST", "/lode/v1/groups", json!({"name": "ml"})).await;
    app.admin("PUT", "/lode/v1/groups/ml/members/alice", json!(null)).await;
    app.grant("team/*", "ml", "write").await;
    let secret = app.token(&alice, json!({"name": "ci"})).await.0;
    let secret = secret.strip_prefix("Bearer ").unwrap();
    // A request that has signed in before she leaves the group, and asks for its rights afterwards.
    let identity = app.registry.sign_in_token(secret, None).await.unwrap().unwrap();
    app.admin("DELETE", "/lode/v1/groups/ml/members/alice", json!(null)).await;
    let repository = "team/app".parse().unwrap();
    let target = Target::Repository(&repository);
    let _ = app.registry.authorize(&Caller::from(identity), Action::Push, target).await;
    assert_eq!(app.push_as(&alice, "team/app").await.status, 404);
}

#[tokio::test]
async fn accounts_and_groups_share_names() {
    let app = closed().await;
    app.user("alice").await;
    app.admin("POST", "/lode/v1/groups", json!({"name": "ml"})).await;
    let admin = basic("admin", PASSWORD);
    for (path, body) in [
        ("/lode/v1/accounts", json!({"name": "ml", "password": PASSWORD})),
        ("/lode/v1/groups", json!({"name": "alice"})),
    ] {
        assert_eq!(app.send_as(&admin, Request::post(path), body.to_string()).await.status, 409, "{path}");
    }
}

#[tokio::test]
async fn names_that_no_account_can_have_cost_nothing() {
    let app = closed().await;
    for name in ["a\u{0}b", "Alice", "a b", &"a".repeat(4000)] {
        for _ in 0..10 {
            let refused = app.get_as(&basic(name, "wrong"), "/v2/").await;
            assert_eq!(refused.failure(), failure(401, "UNAUTHORIZED"), "{name}");
        }
    }
}

/// The error of a token in the place of a password is about the token, unless only its user name is wrong.
#[tokio::test]
async fn errors_of_tokens_are_about_tokens() {
    let app = closed().await;
    let alice = app.user("alice").await;
    let (secret, _) = app.token(&alice, json!({"name": "ci", "access": "write"})).await;
    let secret = secret.strip_prefix("Bearer ").unwrap();
    let never = crate::auth::token::new_token().unwrap();
    let (invalid, wrong) = ("the token is invalid, expired or revoked", "wrong user name or password");
    for (name, password, expected) in [
        ("token", never.expose(), invalid),
        ("alice", never.expose(), invalid),
        ("token", "not a token", invalid),
        ("alice", "not a token", wrong),
        ("bob", secret, wrong),
    ] {
        let refused = app.get_as(&basic(name, password), "/token").await;
        assert_eq!(refused.status, 401, "{name}");
        assert!(refused.text().contains(expected), "{name}: {}", refused.text());
    }
    assert_eq!(app.get_as(&basic("token", secret), "/token").await.status, 200);
}

/// Who lacks the role of an owner learns that, and not of roles on the server.
#[tokio::test]
async fn rights_are_for_owners() {
    let app = closed().await;
    let alice = app.user("alice").await;
    app.grant("team/app", "alice", "write").await;
    for (path, target) in [
        ("grants?target=team/app", "team/app"),
        ("accounts?namespace=team", "team/*"),
        ("quotas?namespace=team", "team/*"),
    ] {
        let refused = app.get_as(&alice, &format!("/lode/v1/{path}")).await;
        assert_eq!(refused.status, 403, "{path}");
        let expected = format!("it needs the role `own` on `{target}`");
        assert!(refused.text().contains(&expected), "{path}: {}", refused.text());
    }
}

#[tokio::test]
async fn wrong_tokens_are_limited_at_each_door() {
    let app = closed().await;
    let credentials = basic("token", crate::auth::token::new_token().unwrap().expose());
    let address = SocketAddr::from(([192, 0, 2, 1], 9));
    let mut last = 0;
    for _ in 0..130 {
        let request = Request::get("/v2/").extension(ConnectInfo(address));
        last = app.send_as(&credentials, request, "").await.status.as_u16();
    }
    assert_eq!(last, 429);
}

#[tokio::test]
async fn names_are_checked() {
    let app = closed().await;
    for name in
        ["", "A", "a/b", "a b", "-", "v2", "lode-staging", "everyone", "a+b+c", "\u{e9}", &"a".repeat(64)]
    {
        let body = json!({"name": name, "password": PASSWORD}).to_string();
        let response = app.send_as(&basic("admin", PASSWORD), Request::post("/lode/v1/accounts"), body).await;
        assert_eq!(response.status, 400, "{name}: {}", response.text());
    }
    app.user("alice").await;
    let body = json!({"name": "alice", "password": PASSWORD}).to_string();
    let response = app.send_as(&basic("admin", PASSWORD), Request::post("/lode/v1/accounts"), body).await;
    assert_eq!(response.status, 409);
}

#[tokio::test]
async fn guessing_a_password_is_slowed_down() {
    let app = closed().await;
    app.user("alice").await;
    let mut statuses = Vec::new();
    for at in 0..7 {
        statuses.push(app.get_as(&basic("alice", &format!("wrong {at}")), "/v2/").await.status.as_u16());
    }
    assert_eq!(statuses, [401, 401, 401, 401, 401, 401, 429]);
    let limited = app.get_as(&basic("alice", PASSWORD), "/v2/").await;
    assert_eq!(limited.status, 429, "the right password has to wait, too");
    assert!(limited.headers.contains_key("retry-after"));
    assert_eq!(app.get_as(&basic("admin", PASSWORD), "/v2/").await.status, 200, "others do not");
}

#[tokio::test]
async fn staged_blobs_belong_to_their_account() {
    let app = closed().await;
    let (alice, bob) = (app.user("alice").await, app.user("bob").await);
    let digest = Digest::sha256(b"staged");
    let path = format!("/api/blobs/{digest}");
    assert_eq!(app.send_as("", Request::post(&path), "staged").await.status, 401);
    assert_eq!(app.send_as(&alice, Request::post(&path), "staged").await.status, 201);
    assert_eq!(app.send_as(&alice, Request::head(&path), "").await.status, 200);
    assert_eq!(app.send_as(&bob, Request::head(&path), "").await.status, 404);
}

#[tokio::test]
async fn the_server_is_for_administrators() {
    let app = closed().await;
    let alice = app.user("alice").await;
    let auditor = app.user("audit").await;
    app.admin("PATCH", "/lode/v1/accounts/audit", json!({"server_role": "auditor"})).await;
    for (method, path, body, for_auditors) in [
        ("GET", "/lode/v1/jobs", "", true),
        ("GET", "/lode/v1/gc/removals", "", true),
        ("GET", "/lode/v1/webhooks", "", true),
        ("GET", "/lode/v1/workers", "", true),
        ("GET", "/lode/v1/accounts", "", true),
        ("GET", "/lode/v1/grants", "", true),
        ("GET", "/lode/v1/groups", "", true),
        ("POST", "/lode/v1/gc", "{}", false),
        ("POST", "/lode/v1/fsck", "{}", false),
        ("POST", "/lode/v1/groups", r#"{"name":"staff"}"#, false),
    ] {
        let status = async |credentials: &str| {
            let request = Request::builder().method(method).uri(path);
            app.send_as(credentials, request, body).await.status.as_u16()
        };
        assert_eq!((status("").await, status(&alice).await), (401, 403), "{method} {path}");
        assert_eq!(status(&auditor).await < 400, for_auditors, "{method} {path}");
        assert!(status(&basic("admin", PASSWORD)).await < 400, "{method} {path}");
    }
    for path in ["/healthz", "/api/version", "/"] {
        assert_eq!(app.get_as("", path).await.status, 200, "{path}");
    }
}

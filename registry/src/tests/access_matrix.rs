//! Every route, by every kind of caller, on a private, an internal and a public repository.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::body::Body;
use axum::extract::ConnectInfo;
use http::Request;
use lode_client::Secret;
use lode_model::digest::Digest;
use serde_json::{Value, json};

use super::access::{PASSWORD, basic};
use super::gateway::{records, worker};
use super::issuer::TestIssuer;
use super::models::push_model;
use super::routes::{ID, Need, ROUTES, ZERO, address};
use super::sign_in::{Browser, EMPTY as SIGNED_BODY, Ollama, from_page};
use super::{App, TestResponse, publishers};
use crate::Config;
use crate::http::session_cookie::{accepts_session, is_page};
use crate::time::now_ms;

const URL: &str = "http://localhost:5000";
/// With which workers join.
const ENROLMENT: &str = "let me join";
const REPOSITORY: &str = "team/mini";
/// A repository that does not exist, in the same namespace.
const MISSING: &str = "team/none";

/// The columns of the table.
const NEEDS: [Need; 25] = [
    Need::SignIn,
    Need::List,
    Need::Pull,
    Need::PullAsAccount,
    Need::Infer,
    Need::Push,
    Need::Delete,
    Need::Own,
    Need::Maintain,
    Need::Stage,
    Need::Account,
    Need::Identity,
    Need::Session,
    Need::Inspect,
    Need::Administer,
    Need::Join,
    Need::OwnWorker,
    Need::RemoveWorker,
    Need::Exchange,
    Need::Probe,
    Need::Open,
    Need::Browse,
    Need::OwnHere,
    Need::PushExchange,
    Need::MaintainHere,
];

/// What each caller gets: `ok` is a status of the route in `ROUTES`, and a number the status of a refusal. Where
/// a caller may not pull, requests for the repository get the response of one that does not exist. `40x`: a
/// refusal, and the route decides which. `any`: whatever the visibility of the repository is.
const TABLE: &str = "\
caller     repository sign list pull acct infr push del  own  main stag tokn iden sess insp admn join work remv exch prob open brws ownh pshx mnth
anonymous  private    401  ok   401  401  401  401  401  401  401  401  401  401  303  401  401  401  404  401  ok   ok   ok   404  401  401  401
anonymous  internal   401  ok   401  401  401  401  401  401  401  401  401  401  303  401  401  401  404  401  ok   ok   ok   404  401  401  401
anonymous  public     401  ok   ok   401  ok   401  401  401  401  401  401  401  303  401  401  401  404  401  ok   ok   ok   ok   401  401  401
guest      private    ok   ok   401  401  401  401  401  401  401  401  401  401  303  401  401  401  404  401  ok   ok   ok   404  401  401  401
guest      internal   ok   ok   401  401  401  401  401  401  401  401  401  401  303  401  401  401  404  401  ok   ok   ok   404  401  401  401
guest      public     ok   ok   ok   401  ok   401  401  401  401  401  401  401  303  401  401  401  404  401  ok   ok   ok   ok   401  401  401
disabled   any        401  401  401  401  401  401  401  401  401  401  401  401  401  401  401  401  404  401  401  ok   401  401  401  401  401
user       private    ok   ok   404  404  404  404  404  403  403  ok   ok   ok   303  403  403  401  404  403  ok   ok   ok   404  404  404  403
user       internal   ok   ok   ok   ok   ok   403  403  403  403  ok   ok   ok   303  403  403  401  404  403  ok   ok   ok   ok   403  403  403
user       public     ok   ok   ok   ok   ok   403  403  403  403  ok   ok   ok   303  403  403  401  404  403  ok   ok   ok   ok   403  403  403
stranger   private    ok   ok   404  404  404  404  404  403  403  ok   ok   ok   303  403  403  401  404  403  ok   ok   ok   404  404  404  403
stranger   internal   ok   ok   ok   ok   ok   403  403  403  403  ok   ok   ok   303  403  403  401  404  403  ok   ok   ok   ok   403  403  403
stranger   public     ok   ok   ok   ok   ok   403  403  403  403  ok   ok   ok   303  403  403  401  404  403  ok   ok   ok   ok   403  403  403
reader     any        ok   ok   ok   ok   ok   403  403  403  403  ok   ok   ok   303  403  403  401  404  403  ok   ok   ok   ok   403  403  403
writer     any        ok   ok   ok   ok   ok   ok   403  403  403  ok   ok   ok   303  403  403  401  404  403  ok   ok   ok   ok   403  ok   403
one-writer any        ok   ok   ok   ok   ok   ok   403  403  403  ok   ok   ok   303  403  403  401  404  403  ok   ok   ok   ok   403  ok   403
maintainer any        ok   ok   ok   ok   ok   ok   ok   403  ok   ok   ok   ok   303  403  403  401  404  403  ok   ok   ok   ok   403  ok   ok
owner      any        ok   ok   ok   ok   ok   ok   ok   ok   ok   ok   ok   ok   303  403  403  401  404  403  ok   ok   ok   ok   ok   ok   ok
one-owner  any        ok   ok   ok   ok   ok   ok   ok   403  403  ok   ok   ok   303  403  403  401  404  403  ok   ok   ok   ok   ok   ok   ok
infer      any        ok   ok   403  403  ok   403  403  403  403  403  403  ok   303  403  403  401  404  403  ok   ok   ok   404  403  403  403
read       any        ok   ok   ok   403  ok   403  403  403  403  403  403  ok   303  403  403  401  404  403  ok   ok   ok   ok   403  403  403
write      any        ok   ok   ok   ok   ok   ok   403  403  403  ok   403  ok   303  403  403  401  404  403  ok   ok   ok   ok   403  ok   403
one-target any        ok   ok   ok   ok   ok   ok   ok   403  403  ok   403  ok   303  403  403  401  404  403  ok   ok   ok   ok   ok   ok   ok
elsewhere  any        ok   ok   404  404  404  404  404  403  403  ok   403  ok   303  403  403  401  404  403  ok   ok   ok   404  404  404  403
pull       any        ok   ok   ok   ok   ok   401  401  403  403  ok   403  ok   303  403  403  401  404  403  401  ok   ok   ok   401  401  403
pull-push  any        ok   ok   ok   ok   ok   ok   401  403  403  ok   403  ok   303  403  403  401  404  403  401  ok   ok   ok   401  401  403
robot      any        ok   ok   ok   ok   ok   ok   403  403  403  ok   ok   ok   303  403  403  401  404  403  ok   ok   ok   ok   403  ok   403
publisher  any        ok   ok   ok   ok   ok   ok   403  403  403  ok   403  ok   303  403  403  401  404  403  ok   ok   ok   ok   403  ok   403
key        any        ok   ok   ok   ok   ok   ok   403  403  403  ok   403  ok   303  403  403  401  404  401  ok   ok   ok   ok   403  ok   403
session    any        ok   ok   ok   ok   ok   ok   ok   ok   ok   ok   ok   ok   ok   403  403  401  404  403  ok   ok   ok   ok   ok   ok   ok
worker     any        ok   ok   ok   403  ok   403  403  403  403  403  40x  401  303  403  403  401  ok   ok   ok   ok   ok   ok   403  403  403
internal   any        ok   ok   ok   ok   ok   ok   ok   ok   ok   ok   401  401  303  ok   ok   ok   404  ok   ok   ok   ok   ok   ok   ok   ok
auditor    any        ok   ok   ok   ok   ok   403  403  403  403  ok   ok   ok   303  ok   403  401  404  403  ok   ok   ok   ok   403  403  403
admin      any        ok   ok   ok   ok   ok   ok   ok   ok   ok   ok   ok   ok   303  ok   ok   401  404  ok   ok   ok   ok   ok   ok   ok   ok
";

/// The needs that depend on the caller's rights on the repository.
const ON_REPOSITORY: [Need; 8] = [
    Need::Pull,
    Need::PullAsAccount,
    Need::Infer,
    Need::Push,
    Need::PushExchange,
    Need::Delete,
    Need::Browse,
    Need::OwnHere,
];

/// A server with a model and an inference worker, and what each caller sends.
struct Matrix {
    app: App,
    /// The header of each caller that sends always the same.
    headers: BTreeMap<&'static str, String>,
    /// The cookie and the form token of a session, unless it has ended.
    session: Option<(String, String)>,
    /// The path of the worker among the callers, and that of the worker that serves inference with its
    /// credentials.
    worker: String,
    inference: (String, String),
    /// Where the worker among the callers listens.
    advertise: String,
    /// The manifest of the model, and its media type.
    manifest: (String, String),
    /// A blob of the model.
    digest: Digest,
    /// The last upload that was begun.
    upload: Mutex<String>,
    /// Each request comes from an address of its own, so that limits do not count.
    addresses: AtomicU32,
}

/// A token of the account, which is checked faster than its password.
async fn full_token(app: &App, credentials: &str) -> String {
    app.token(credentials, json!({"name": "matrix"})).await.0
}

/// An access token for these actions, of the account with these credentials or of a client without any.
async fn access_token(app: &App, credentials: &str, actions: &str) -> String {
    let path = format!("/token?scope=repository:{REPOSITORY}:{actions}");
    format!("Bearer {}", app.get_as(credentials, &path).await.json()["token"].as_str().unwrap())
}

/// Registers a worker; returns its path and its credentials.
async fn join(app: &App, advertise: &str) -> (String, String) {
    let body = json!({"advertise": advertise, "devices": [{"kind": "cpu", "free_bytes": 1}]});
    let request = Request::post("/lode/v1/workers");
    let joined = app.send_as(&format!("Bearer {ENROLMENT}"), request, body.to_string()).await;
    assert_eq!(joined.status, 201, "{}", joined.text());
    let text = |name: &str| joined.json()[name].as_str().unwrap().to_owned();
    (format!("/lode/v1/workers/{}", text("id")), format!("Bearer {}", text("credential")))
}

impl Matrix {
    async fn start() -> Matrix {
        let app = App::with(Config {
            public_url: Some(URL.parse().unwrap()),
            worker_token: Some(Secret::new(ENROLMENT)),
            // The issuer and the worker are on this machine.
            allow_egress: vec!["127.0.0.0/8".parse().unwrap()],
            ..Config::default()
        })
        .await;
        push_model(&app, REPOSITORY, "latest").await;
        let stored = app.get(&format!("/v2/{REPOSITORY}/manifests/latest")).await;
        let first = json!({"name": "admin", "password": PASSWORD, "server_role": "admin"});
        assert_eq!(app.post_json("/lode/v1/accounts", first).await.status, 201);
        let mut headers = BTreeMap::from([("anonymous", String::new())]);
        headers.insert("admin", full_token(&app, &basic("admin", PASSWORD)).await);
        headers.insert("guest", access_token(&app, "", "pull").await);
        headers.insert("internal", format!("Bearer {}", app.registry.internal_token().expose()));
        // 1. Users, by role.
        for (name, target, role) in [
            ("user", "", ""),
            ("reader", "team/*", "read"),
            ("writer", "team/*", "write"),
            ("maintainer", "team/*", "maintain"),
            ("owner", "team/*", "own"),
            ("one-writer", REPOSITORY, "write"),
            ("one-owner", REPOSITORY, "own"),
            ("session", "team/*", "own"),
            ("stranger", "other/*", "own"),
            ("auditor", "", ""),
            ("disabled", "team/*", "own"),
        ] {
            headers.insert(name, full_token(&app, &app.user(name).await).await);
            if !role.is_empty() {
                app.grant(target, name, role).await;
            }
        }
        app.admin("PATCH", "/lode/v1/accounts/auditor", json!({"server_role": "auditor"})).await;
        app.admin("PATCH", "/lode/v1/accounts/disabled", json!({"disabled": true})).await;
        // 2. Limited credentials of the owner.
        let owner = headers["owner"].clone();
        for (name, request) in [
            ("infer", json!({"name": "x", "access": "infer"})),
            ("read", json!({"name": "x", "access": "read"})),
            ("write", json!({"name": "x", "access": "write"})),
            ("one-target", json!({"name": "x", "targets": [REPOSITORY]})),
            ("elsewhere", json!({"name": "x", "targets": ["other/*"]})),
        ] {
            headers.insert(name, app.token(&owner, request).await.0);
        }
        headers.insert("pull", access_token(&app, &owner, "pull").await);
        headers.insert("pull-push", access_token(&app, &owner, "pull,push").await);
        // 3. A robot with the role write, and a job that signs in as the robot.
        app.admin("POST", "/lode/v1/accounts", json!({"name": "team+ci", "kind": "robot"})).await;
        app.grant(REPOSITORY, "team+ci", "write").await;
        let robot = json!({"name": "x", "account": "team+ci"});
        headers.insert("robot", app.token(&headers["admin"], robot).await.0);
        let issuer = TestIssuer::start().await;
        let conditions = json!({"repository": "octo-org/octo-repo", "workflow": "publish.yml"});
        publishers::register(&app, &issuer, "github", conditions).await;
        let job = issuer.key().sign(&publishers::github(&issuer, &json!({ "aud": URL })));
        let exchanged = publishers::exchange(&app, &job, REPOSITORY).await.json();
        headers.insert("publisher", format!("Bearer {}", exchanged["access_token"].as_str().unwrap()));
        // 4. Workers. The session begins when it is used.
        let (address, _) = worker(|| records("{\"embeddings\":[[0.5]],\"done\":true}\n")).await;
        let inference = join(&app, &format!("http://{address}")).await;
        let (address, _) = worker(|| records("{\"embeddings\":[[0.5]],\"done\":true}\n")).await;
        let advertise = format!("http://{address}");
        let (worker, credentials) = join(&app, &advertise).await;
        headers.insert("worker", credentials);
        let manifest = (stored.text().to_owned(), stored.header("content-type").to_owned());
        let digest = stored.json()["config"]["digest"].as_str().unwrap().parse().unwrap();
        let (session, upload, addresses) = (None, Mutex::default(), AtomicU32::default());
        let matrix = Matrix {
            app,
            headers,
            session,
            worker,
            inference,
            advertise,
            manifest,
            digest,
            upload,
            addresses,
        };
        matrix.enrol_key().await;
        matrix
    }

    /// Adds the owner's key of ollama, which signing out removes.
    async fn enrol_key(&self) {
        let line = format!("ssh-ed25519 {} owner", Ollama::new(&self.app, 7).public());
        let (request, body) = (Request::post("/lode/v1/keys"), json!({"key": line}).to_string());
        let added = self.app.send_as(&self.headers["owner"], request, body).await;
        assert_eq!(added.status, 201, "{}", added.text());
    }

    /// Restores what a request of a caller may have deleted or ended.
    async fn restore(&mut self, caller: &str, route: &str, need: Need) {
        let (app, admin) = (&self.app, &self.headers["admin"]);
        if need == Need::Delete && app.pull_as(admin, REPOSITORY).await != 200 {
            let request = Request::put(format!("/v2/{REPOSITORY}/manifests/latest"));
            let request = request.header("content-type", &self.manifest.1);
            assert_eq!(app.send_as(admin, request, &self.manifest.0[..]).await.status, 201);
        }
        if ["/logout", "/-/account/sessions/end", "/-/account/password"].contains(&route) {
            self.session = None;
        }
        if caller == "key" && route == "/api/signout" {
            self.enrol_key().await;
        }
        if need == Need::RemoveWorker && expected(caller, "private", need) == "ok" {
            let (worker, credentials) = join(&self.app, &self.advertise).await;
            self.worker = worker;
            self.headers.insert("worker", credentials);
        }
    }

    /// The cookie and the form token of a session.
    async fn session(&mut self) -> (String, String) {
        if self.session.is_none() {
            let Browser { cookie, csrf, .. } = Browser::signed_in(&self.app, "session").await;
            self.session = Some((cookie, csrf));
        }
        self.session.clone().unwrap()
    }

    /// Tells the server that the worker for inference is still there. A heartbeat without a change would be
    /// written later.
    async fn beat(&self, free_bytes: u64) {
        let (path, credentials) = &self.inference;
        let body = json!({"devices": [{"kind": "cpu", "free_bytes": free_bytes}]}).to_string();
        assert_eq!(self.app.send_as(credentials, Request::put(path), body).await.status, 204);
    }

    /// Sends a request of a caller for a repository.
    async fn send(
        &mut self,
        caller: &str,
        (method, route, body): (&str, &str, &str),
        repository: &str,
    ) -> TestResponse {
        let mut path = address(method, route).replace(REPOSITORY, repository);
        let mut body = body.replace(REPOSITORY, repository);
        if route == "/v2/{name}/blobs/uploads/{id}" {
            path = path.replace(ID, &self.upload(repository).await).replace(ZERO, EMPTY);
        } else if route.starts_with("/v2/") {
            path = path.replace(ZERO, self.digest.as_str());
        } else if route == "/api/blobs/{digest}" {
            path = path.replace(ZERO, EMPTY);
        } else if route == "/lode/v1/workers/{id}" {
            path = self.worker.clone();
        }
        let mut request = Request::builder().method(method).header("x-request-id", "matrix");
        let at = self.addresses.fetch_add(1, Ordering::SeqCst);
        let address = Ipv4Addr::from_bits(Ipv4Addr::new(10, 0, 0, 0).to_bits() + at);
        request = request.extension(ConnectInfo(SocketAddr::from((address, 9))));
        let forms = ["/-/try", "/-/rules", "/-/settings", "/-/history", "/-/card", "/-/tags", "/-/quantise"];
        let is_form = is_page(&path) || forms.iter().any(|form| path.ends_with(form));
        request = match is_form || caller == "session" {
            true => from_page(request),
            false => request.header("host", "localhost:5000"),
        };
        if route == "/v2/{name}/manifests/{reference}" && method == "PUT" {
            request = request.header("content-type", &self.manifest.1);
            body = self.manifest.0.clone();
        }
        match caller {
            "key" => {
                let now = now_ms() / 1000;
                let message = match &path[..] {
                    "/token" => {
                        path = format!("{path}?nonce={at}&ts={now}");
                        format!("{method},{URL}{path},{SIGNED_BODY}")
                    }
                    _ => {
                        let message = format!("{method},{path}?ts={now}");
                        path = format!("{path}{}ts={now}", if path.contains('?') { '&' } else { '?' });
                        message
                    }
                };
                let signed = Ollama::new(&self.app, 7).authorization(&message);
                request = request.header("authorization", signed);
            }
            "session" => {
                let (cookie, csrf) = self.session().await;
                request = request.header("cookie", cookie).header("x-csrf-token", &csrf);
                if is_form {
                    body = format!("csrf={csrf}&{body}");
                }
            }
            _ if self.headers[caller].is_empty() => {}
            _ => request = request.header("authorization", &self.headers[caller]),
        }
        self.app.send(request.uri(path), Body::from(body)).await
    }

    /// A new upload of the administrator; for another repository the last one, which it does not have.
    async fn upload(&self, repository: &str) -> String {
        if repository != REPOSITORY {
            return self.upload.lock().unwrap().clone();
        }
        let request = Request::post(format!("/v2/{repository}/blobs/uploads/"));
        let begun = self.app.send_as(&self.headers["admin"], request, "").await;
        assert_eq!(begun.status, 202, "{}", begun.text());
        let id = begun.header("location").rsplit_once('/').unwrap().1.to_owned();
        self.upload.lock().unwrap().clone_from(&id);
        id
    }
}

/// The digest of no bytes.
const EMPTY: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// How a response looks in the table.
fn outcome(response: &TestResponse, need: Need, successes: &[u16]) -> String {
    let status = response.status.as_u16();
    let location = response.headers.get("location").and_then(|value| value.to_str().ok());
    // Pages send clients without a session to the sign-in.
    let is_sent_away = location.is_some_and(|location| location.starts_with("/login?next="));
    match successes.contains(&status) && !(need == Need::Session && is_sent_away) {
        true => "ok".to_owned(),
        false => status.to_string(),
    }
}

/// A key and a session count on some routes only: elsewhere they are no credentials.
fn row_of(caller: &'static str, route: &str) -> &'static str {
    let counts = match caller {
        "key" => SIGNED.contains(&route),
        "session" => accepts_session(route),
        _ => true,
    };
    if counts { caller } else { "anonymous" }
}

/// The routes of ollama's API that accept a signature.
const SIGNED: [&str; 9] = [
    "/api/me",
    "/api/tags",
    "/api/ps",
    "/api/show",
    "/api/generate",
    "/api/chat",
    "/api/embed",
    "/api/embeddings",
    "/api/signout",
];

/// The rows of the table: a caller, the visibility of the repository, and the cells.
fn rows() -> Vec<(&'static str, &'static str, Vec<&'static str>)> {
    let row = |line: &'static str| {
        let mut words = line.split_whitespace();
        (words.next().unwrap(), words.next().unwrap(), words.collect())
    };
    TABLE.lines().skip(1).map(row).collect()
}

/// What the table says.
fn expected(caller: &str, visibility: &str, need: Need) -> &'static str {
    let rows = rows();
    let row = rows.iter().find(|(name, of, _)| *name == caller && [visibility, "any"].contains(of));
    let (.., cells) = row.unwrap_or_else(|| panic!("no row for {caller}, {visibility}"));
    cells[NEEDS.iter().position(|known| *known == need).unwrap()]
}

/// What of a response a client can compare.
fn visible(response: &TestResponse, repository: &str) -> Value {
    let headers: BTreeMap<String, String> = response
        .headers
        .iter()
        .map(|(name, value)| (name.to_string(), value.to_str().unwrap().replace(repository, "NAME")))
        .filter(|(name, _)| !["content-length", "date"].contains(&&name[..]))
        .collect();
    let text = response.text().replace(repository, "NAME");
    json!([response.status.as_u16(), headers, text])
}

#[tokio::test]
async fn every_route_by_every_caller() {
    let mut matrix = Matrix::start().await;
    let mut callers: Vec<&'static str> = rows().into_iter().map(|(caller, ..)| caller).collect();
    callers.dedup();
    let mut wrong = Vec::new();
    for (round, visibility) in ["private", "internal", "public"].into_iter().enumerate() {
        matrix.app.show(REPOSITORY, visibility).await;
        for (turn, caller) in callers.iter().copied().enumerate() {
            matrix.beat((round * callers.len() + turn) as u64).await;
            for (method, route, body, need, successes) in ROUTES {
                let is_on_repository = ON_REPOSITORY.contains(need);
                if round > 0 && !is_on_repository {
                    continue;
                }
                let request = (*method, *route, *body);
                let response = matrix.send(caller, request, REPOSITORY).await;
                let row = row_of(caller, route);
                let (got, expect) = (outcome(&response, *need, successes), expected(row, visibility, *need));
                let place = format!("{caller}, {visibility}: {method} {route} ({need:?})");
                let is_expected =
                    got == expect || expect == "40x" && ["401", "403", "404"].contains(&&got[..]);
                if !is_expected {
                    wrong.push(format!(
                        "{place}: expected {expect}, got {} {}",
                        response.status,
                        response.text()
                    ));
                }
                // Without the right to read it, a repository looks as if it did not exist.
                if is_on_repository && ["401", "404"].contains(&expected(row, visibility, Need::Pull)) {
                    let missing = matrix.send(caller, request, MISSING).await;
                    let (hidden, missing) = (visible(&response, REPOSITORY), visible(&missing, MISSING));
                    if hidden != missing {
                        wrong.push(format!("{place}: hidden {hidden}, missing {missing}"));
                    }
                }
                matrix.restore(caller, route, *need).await;
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn every_need_has_a_column() {
    for (method, route, _, need, successes) in ROUTES {
        assert!(NEEDS.contains(need), "{method} {route}");
        assert!(successes.iter().all(|status| *status < 500), "{method} {route}");
    }
    for (caller, visibility, cells) in rows() {
        assert_eq!(cells.len(), NEEDS.len(), "{caller}, {visibility}");
    }
}

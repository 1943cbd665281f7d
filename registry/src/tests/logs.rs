//! Secrets in URLs: they are no credentials, and those that have to be there are not logged.

use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex};

use axum::body::Body;
use http::Request;
use lode_client::Secret;
use serde_json::json;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use super::access::{PASSWORD, basic, closed};
use super::issuer::TestIssuer;
use super::{App, single_sign_on};
use crate::Config;
use crate::http::arrival::RequestArrival;

/// Everything that this thread logs, at every level.
#[derive(Clone, Default)]
pub(super) struct Log(Arc<Mutex<String>>);

impl Log {
    pub(super) fn text(&self) -> String {
        self.0.lock().unwrap().clone()
    }
}

struct Fields<'a>(&'a mut String);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        write!(self.0, " {}={value:?}", field.name()).unwrap();
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("lode")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        span.record(&mut Fields(&mut self.0.lock().unwrap()));
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, values: &Record<'_>) {
        values.record(&mut Fields(&mut self.0.lock().unwrap()));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = self.0.lock().unwrap();
        write!(text, "\n{}", event.metadata().level()).unwrap();
        event.record(&mut Fields(&mut text));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[tokio::test]
async fn a_secret_in_the_query_is_no_credential() {
    let app = closed().await;
    let alice = app.user("alice").await;
    app.push_as(&alice, "alice/app").await;
    let (token, _) = app.token(&alice, json!({"name": "x"})).await;
    let secret = token.strip_prefix("Bearer ").unwrap();
    let exchanged = app.get_as(&token, "/token?scope=repository:alice/app:pull").await.json();
    for secret in [secret, exchanged["token"].as_str().unwrap()] {
        for name in [
            "token",
            "access_token",
            "api_key",
            "key",
            "authorization",
            "auth",
            "bearer",
            "password",
            "link",
            "sig",
        ] {
            for path in ["/v2/", "/v2/alice/app/manifests/latest", "/v1/models/alice/app", "/lode/v1/me"] {
                let response = app.get_as("", &format!("{path}?{name}={secret}")).await;
                assert_eq!(response.status, 401, "{path} {name}: {}", response.text());
            }
            let body = format!("{name}={secret}");
            for path in ["/lode/v1/tokens", "/api/show"] {
                let response = app.send_as("", Request::post(path), body.clone()).await;
                assert!([400, 401].contains(&response.status.as_u16()), "{path} {name}: {}", response.text());
            }
        }
        let user = Request::get(format!("http://alice:{secret}@localhost:5000/v2/"));
        assert_eq!(app.send_as("", user, "").await.status, 400);
    }
}

#[tokio::test]
async fn logs_have_no_secrets() {
    let log = Log::default();
    // With a single dispatcher, a line that other tests reach first would be off in all threads.
    let _second = tracing::Dispatch::new(Log::default());
    let _logging = tracing::subscriber::set_default(log.clone());
    let issuer = TestIssuer::start().await;
    let mut secrets = vec![PASSWORD.to_owned(), "a+long+password".to_owned(), "wrong-password".to_owned()];
    // 1. The link of the setup.
    let fresh = App::new().await;
    let setup = fresh.registry.setup_begin().unwrap();
    assert_eq!(fresh.get_as("", &setup).await.status, 200);
    assert_eq!(fresh.get_as("", "/setup?token=wrong-password").await.status, 403);
    secrets.push(setup.split_once('=').unwrap().1.to_owned());
    // 2. Links to blobs, valid and not.
    let provider =
        json!({"name": "corp", "issuer": issuer.url, "client_id": "lode", "client_secret": "hush-hush"});
    let app = App::with(Config {
        admin_password: Some(Secret::new(PASSWORD)),
        oidc: vec![serde_json::from_value(provider).unwrap()],
        ..Config::default()
    })
    .await;
    secrets.push("hush-hush".to_owned());
    let alice = app.user("alice").await;
    app.push_as(&alice, "alice/app").await;
    let (token, _) = app.token(&alice, json!({"name": "x"})).await;
    secrets.push(token.strip_prefix("Bearer ").unwrap().to_owned());
    let digest = lode_model::digest::Digest::sha256(b"{}");
    let probe = Request::get(format!("/v2/alice/app/blobs/{digest}")).header("user-agent", "ollama/0.9");
    let link = app.send_as(&token, probe, "").await.header("location").to_owned();
    let link = link.strip_prefix("http://localhost:5000").unwrap();
    assert_eq!(app.get_as("", link).await.text(), "{}");
    assert_ne!(app.get_as("", &format!("{link}x")).await.status, 200);
    secrets.push(link.split_once("?link=").unwrap().1.to_owned());
    // 3. Passwords and tokens that are wrong, or in the wrong place.
    app.get_as(&basic("alice", "wrong-password"), "/v2/").await;
    app.get_as("Bearer hf_lode-wrong-password", "/v2/").await;
    app.get_as("", "/v2/?token=wrong-password").await;
    app.send_as("", Request::post("/lode/v1/tokens"), "wrong-password").await;
    let raw =
        Request::get("/v2/").header("authorization", "Basic wrong-password").body(Body::empty()).unwrap();
    app.raw(raw).await;
    // 4. A sign-in at a provider: its code, its state, and the cookies.
    issuer.set(|issuer| issuer.claims = json!({"preferred_username": "bob"}));
    let mut browser = single_sign_on::Browser::new(&app, &issuer);
    let back = browser.authorize("/login/corp").await;
    secrets.push(back.split_once("state=").unwrap().1.split('&').next().unwrap().to_owned());
    assert_eq!(browser.get(&back).await.status, 303);
    assert_eq!(browser.get(&back).await.status, 400, "it counts once");
    secrets.extend(browser.cookies.iter().map(|(_, value)| value.clone()));
    assert!(browser.account().await.is_some());
    let text = log.text();
    for logged in ["/setup", "/login/corp/callback", "sign-in failed", "request refused"] {
        assert!(text.contains(logged), "{logged} is not in the log: {text}");
    }
    for secret in secrets.iter().filter(|secret| !secret.is_empty()) {
        assert!(!text.contains(secret.as_str()), "{secret} is in the log");
    }
}

/// The lines of the access log, in order.
fn access_lines(log: &Log) -> Vec<String> {
    let text = log.0.lock().unwrap();
    text.lines().filter(|line| line.contains("message=access")).map(str::to_owned).collect()
}

#[tokio::test]
async fn each_request_has_a_line_in_the_access_log() {
    let log = Log::default();
    let _second = tracing::Dispatch::new(Log::default());
    let _logging = tracing::subscriber::set_default(log.clone());
    let app = closed().await;
    let alice = app.user("alice").await;
    let blob = "x".repeat(100_000);
    let digest = {
        app.push_as(&alice, "alice/app").await;
        let upload = app.send_as(&alice, Request::post("/v2/alice/app/blobs/uploads/"), "").await;
        let digest = lode_model::digest::Digest::sha256(blob.as_bytes());
        let path = format!("{}?digest={digest}", upload.header("location").split('?').next().unwrap());
        let path = path[path.find("/v2/").unwrap()..].to_owned();
        assert_eq!(app.send_as(&alice, Request::put(path), blob.clone()).await.status, 201);
        digest
    };
    log.0.lock().unwrap().clear();

    // 1. The fields of a complete response.
    let path = format!("/v2/alice/app/blobs/{digest}");
    let request = Request::get(format!("{path}?token=hush"))
        .header("user-agent", "docker/24.0")
        .header("x-request-id", "edge-7");
    assert_eq!(app.send_as(&alice, request, "").await.status, 200);
    let lines = access_lines(&log);
    assert_eq!(lines.len(), 1, "{lines:?}");
    for field in [
        "method=\"GET\"",
        &format!("path=\"{path}\""),
        "status=200",
        "bytes=100000",
        "duration_ms=",
        "account=\"user:alice\"",
        "user_agent=\"docker/24.0\"",
        "request_id=\"edge-7\"",
    ] {
        assert!(lines[0].contains(field), "{field} is not in {}", lines[0]);
    }
    assert!(!lines[0].contains("hush") && !lines[0].contains("aborted"), "{}", lines[0]);

    // 2. A client that does not read its response, and one without credentials.
    log.0.lock().unwrap().clear();
    let request = Request::get(&path).header("authorization", &alice).body(Body::empty()).unwrap();
    drop(app.raw(request).await);
    assert_eq!(app.get_as("", &path).await.status, 401);
    let lines = access_lines(&log);
    assert!(lines[0].contains("bytes=0") && lines[0].contains("aborted=true"), "{}", lines[0]);
    assert!(lines[1].contains("status=401") && lines[1].contains("account=\"anonymous\""), "{}", lines[1]);
    assert!(!lines[1].contains("aborted"), "{}", lines[1]);

    // 3. Values of clients begin no line and control no terminal.
    log.0.lock().unwrap().clear();
    let agent = http::HeaderValue::from_bytes(b"a\tb\xc2\x9b31m").unwrap();
    app.send(Request::get("/nowhere%0a%1b").header("user-agent", agent), "").await;
    let lines = access_lines(&log);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains(r#"user_agent="a\\tb\\xc2\\x9b31m""#), "{}", lines[0]);
    assert!(lines[0].bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{}", lines[0]);

    // 4. A request of the process itself has no line at level info.
    log.0.lock().unwrap().clear();
    for internal in [true, false] {
        let arrival = RequestArrival { https: false, internal };
        app.send(Request::get("/v2/").extension(arrival), "").await;
    }
    let lines: Vec<_> = access_lines(&log).into_iter().filter(|line| line.contains("INFO")).collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
}

#[tokio::test]
async fn the_access_log_can_be_off() {
    let log = Log::default();
    let _second = tracing::Dispatch::new(Log::default());
    let _logging = tracing::subscriber::set_default(log.clone());
    let app = App::with(Config { access_log: false, ..Config::default() }).await;
    assert_eq!(app.get("/v2/").await.status, 200);
    assert!(access_lines(&log).is_empty());
}

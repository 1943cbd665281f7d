//! How long credentials are valid, and when they were last used. Rows are backdated in the place of waiting.

use http::Request;
use lode_client::Secret;
use serde_json::{Value, json};

use super::access::{PASSWORD, closed};
use super::issuer::TestIssuer;
use super::sign_in::{Browser, Ollama, from_page};
use super::{App, publishers};
use crate::Config;
use crate::store::query;
use crate::time::now_ms;

const HOST: &str = "localhost:5000";
const MINUTE: i64 = 60_000;
const HOUR: i64 = 60 * MINUTE;

/// Moves a time of all rows of a table into the past. What this replica remembers ends with the next change of
/// access control.
macro_rules! backdate {
    ($app:expr, $table:literal, $column:literal, $ms:expr) => {{
        let app: &App = $app;
        let text = concat!("update ", $table, " set ", $column, " = ", $column, " - $1");
        let ms: i64 = $ms;
        query!(app.registry.store().write(), c => sqlx::query(text).bind(ms).execute(c).await.map(drop)).unwrap();
        app.show("any/thing", "private").await;
    }};
}

#[tokio::test]
async fn tokens_expire() {
    let app = closed().await;
    let alice = app.user("alice").await;
    assert_eq!(app.push_as(&alice, "alice/app").await.status, 201);
    let (token, _) = app.token(&alice, json!({"name": "x", "expires_in_seconds": 3600})).await;
    let (lasting, _) = app.token(&alice, json!({"name": "y"})).await;
    let exchanged = app.get_as(&token, "/token?scope=repository:alice/app:pull").await.json();
    let exchanged = format!("Bearer {}", exchanged["token"].as_str().unwrap());
    let statuses = async || {
        let as_password = super::access::basic("alice", token.strip_prefix("Bearer ").unwrap());
        [
            app.pull_as(&token, "alice/app").await,
            app.pull_as(&as_password, "alice/app").await,
            // An access token ends with the token behind it.
            app.pull_as(&exchanged, "alice/app").await,
            app.pull_as(&lasting, "alice/app").await,
        ]
    };
    assert_eq!(statuses().await, [200; 4]);
    backdate!(&app, "access_tokens", "expires_at", HOUR - MINUTE);
    assert_eq!(statuses().await, [200; 4]);
    backdate!(&app, "access_tokens", "expires_at", MINUTE);
    assert_eq!(statuses().await, [401, 401, 401, 200]);
    // It is still listed, and cannot make itself valid again.
    let listed = app.get_as(&alice, "/lode/v1/tokens").await.json();
    assert_eq!(listed["tokens"].as_array().unwrap().len(), 2, "{listed}");
}

#[tokio::test]
async fn the_token_of_a_job_ends_after_an_hour() {
    let issuer = TestIssuer::start().await;
    let url = "http://localhost:5000";
    let app = App::with(Config {
        admin_password: Some(Secret::new(PASSWORD)),
        public_url: Some(url.parse().unwrap()),
        allow_egress: vec!["127.0.0.0/8".parse().unwrap()],
        ..Config::default()
    })
    .await;
    app.admin("POST", "/lode/v1/accounts", json!({"name": "team+ci", "kind": "robot"})).await;
    app.grant("team/*", "team+ci", "write").await;
    let conditions = json!({"repository": "octo-org/octo-repo", "workflow": "publish.yml"});
    publishers::register(&app, &issuer, "github", conditions).await;
    let job = issuer.key().sign(&publishers::github(&issuer, &json!({ "aud": url })));
    let exchanged = publishers::exchange(&app, &job, "team/app").await.json();
    let token = format!("Bearer {}", exchanged["access_token"].as_str().unwrap());
    assert_eq!(app.push_as(&token, "team/app").await.status, 201);
    backdate!(&app, "access_tokens", "expires_at", HOUR - MINUTE);
    assert_eq!(app.push_as(&token, "team/app").await.status, 201);
    backdate!(&app, "access_tokens", "expires_at", MINUTE);
    assert_eq!(app.push_as(&token, "team/app").await.status, 401);
}

#[tokio::test]
async fn sessions_end_when_idle_and_after_a_week() {
    let app = closed().await;
    app.user("alice").await;
    // 1. After twelve hours without a request.
    let browser = Browser::signed_in(&app, "alice").await;
    backdate!(&app, "sessions", "used_at", 12 * HOUR - MINUTE);
    assert_eq!(browser.get("/-/account").await.status, 200);
    backdate!(&app, "sessions", "used_at", 12 * HOUR);
    assert_eq!(browser.get("/-/account").await.status, 303);
    assert_eq!(browser.get("/lode/v1/me").await.status, 401);
    // 2. After a week, although it was used a moment ago.
    let browser = Browser::signed_in(&app, "alice").await;
    backdate!(&app, "sessions", "created_at", 7 * 24 * HOUR - MINUTE);
    assert_eq!(browser.get("/-/account").await.status, 200);
    backdate!(&app, "sessions", "created_at", MINUTE);
    assert_eq!(browser.get("/-/account").await.status, 303);
}

#[tokio::test]
async fn codes_for_devices_expire() {
    let app = closed().await;
    app.user("alice").await;
    let browser = Browser::signed_in(&app, "alice").await;
    let start = async || {
        let request = Request::post("/hf/oauth/device").header("host", HOST);
        app.send(request, "client_id=lode").await.json()
    };
    let poll = async |started: &Value| {
        let code = started["device_code"].as_str().unwrap();
        let form = format!("grant_type=urn:ietf:params:oauth:grant-type:device_code&device_code={code}");
        app.send(Request::post("/hf/oauth/token").header("host", HOST), form).await.json()
    };
    let (pending, allowed) = (start().await, start().await);
    let allow =
        |started: &Value| format!("user_code={}&decision=allow", started["user_code"].as_str().unwrap());
    assert_eq!(browser.post("/device", &allow(&allowed)).await.status, 200);
    backdate!(&app, "device_logins", "created_at", 14 * MINUTE);
    assert_eq!(poll(&pending).await["error"], "authorization_pending");
    backdate!(&app, "device_logins", "created_at", MINUTE);
    // Neither can be allowed or collected.
    let page = format!("/device?user_code={}", pending["user_code"].as_str().unwrap());
    assert_eq!(browser.get(&page).await.status, 404);
    assert_eq!(browser.post("/device", &allow(&pending)).await.status, 404);
    for started in [pending, allowed] {
        assert_eq!(poll(&started).await["error"], "expired_token");
    }
    let fresh = start().await;
    assert_eq!(browser.post("/device", &allow(&fresh)).await.status, 200);
    assert!(poll(&fresh).await["access_token"].is_string());
}

#[tokio::test]
async fn the_last_use_is_recorded() {
    let app = closed().await;
    let alice = app.user("alice").await;
    let (token, _) = app.token(&alice, json!({"name": "x"})).await;
    let ollama = Ollama::new(&app, 7);
    let line = format!("ssh-ed25519 {} alice", ollama.public());
    app.send_as(&alice, Request::post("/lode/v1/keys"), json!({"key": line}).to_string()).await;
    let list =
        async |name: &str| app.get_as(&alice, &format!("/lode/v1/{name}")).await.json()[name][0].clone();
    for name in ["tokens", "keys"] {
        assert_eq!(list(name).await["used_at"], Value::Null, "{name}");
    }
    // Times of one zone without its letter have the order of texts, whatever their number of decimals.
    let time = |of: &Value| of.as_str().unwrap().trim_end_matches('Z').to_owned();
    // A task records it.
    let recorded = async |name: &str| {
        super::wire::within(async {
            loop {
                let listed = list(name).await;
                if listed["used_at"].is_string() {
                    return listed;
                }
                tokio::task::yield_now().await;
            }
        })
        .await
    };
    assert_eq!(app.get_as(&token, "/v2/").await.status, 200);
    let at = recorded("tokens").await;
    assert!(time(&at["used_at"]) >= time(&at["created_at"]), "{at}");
    let at = now_ms() / 1000;
    let signed = ollama.authorization(&format!("POST,/api/me?ts={at}"));
    assert_eq!(app.send_as(&signed, Request::post(format!("/api/me?ts={at}")), "").await.status, 200);
    let at = recorded("keys").await;
    assert!(time(&at["used_at"]) >= time(&at["created_at"]), "{at}");
    // A session: its first request after an hour.
    let form = format!("name=alice&password={}", PASSWORD.replace(' ', "+"));
    let signed_in = app.send(from_page(Request::post("/login")), form).await;
    let cookie = signed_in.header("set-cookie").split(';').next().unwrap().to_owned();
    backdate!(&app, "sessions", "used_at", HOUR);
    let account = app.registry.store().account_find_by_name("alice").await.unwrap().unwrap();
    let used_at = async || app.registry.store().session_list(account.id).await.unwrap()[0].used_at;
    assert!(used_at().await <= now_ms() - HOUR + MINUTE);
    let request = Request::get("/-/account").header("host", HOST).header("cookie", cookie);
    assert_eq!(app.send(request, "").await.status, 200);
    super::wire::within(async {
        while used_at().await < now_ms() - MINUTE {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

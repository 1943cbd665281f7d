//! Two replicas with one database: what ends at one is refused at the other within a second, and a sign-in that
//! begins at one finishes at the other.

use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use http::Request;
use lode_client::Secret;
use serde_json::{Value, json};
use url::Url;

use super::access::{PASSWORD, basic};
use super::issuer::TestIssuer;
use super::sign_in::{Browser, Ollama, from_page};
use super::single_sign_on;
use super::{App, TestResponse};
use crate::Config;
use crate::time::now_ms;

/// Until when every replica has to refuse what was revoked at one.
const LIMIT: Duration = Duration::from_secs(1);
const HOST: &str = "localhost:5000";

/// A replica with the provider `corp`.
async fn replica(database: &Url, issuer: &TestIssuer) -> App {
    let provider =
        json!({"name": "corp", "title": "Corporate login", "issuer": issuer.url, "client_id": "lode"});
    App::with(Config {
        database: Some(database.clone()),
        admin_password: Some(Secret::new(PASSWORD)),
        secret_key: Some(Secret::new("0123456789abcdef0123")),
        oidc: vec![serde_json::from_value(provider).unwrap()],
        ..Config::default()
    })
    .await
}

/// A request at the replica that did not change anything.
type Probe<'a> = Box<dyn Fn() -> BoxFuture<'a, u16> + 'a>;

#[tokio::test]
async fn a_revocation_counts_on_every_replica_within_a_second() {
    let Some(database) = crate::store::postgres_for_test().await else { return };
    let issuer = TestIssuer::start().await;
    let (here, there) = (replica(&database, &issuer).await, replica(&database, &issuer).await);
    let admin = basic("admin", PASSWORD);
    assert_eq!(here.push_as(&admin, "team/app").await.status, 201);
    let tags = "/v2/team/app/tags/list";
    let get = |credentials: String, path: &'static str| -> Probe<'_> {
        let there = &there;
        Box::new(move || {
            let credentials = credentials.clone();
            Box::pin(async move { there.get_as(&credentials, path).await.status.as_u16() })
        })
    };
    // 1. Accounts with everything that is going to end.
    let (alice, bob, carol) = (here.user("alice").await, here.user("bob").await, here.user("carol").await);
    let (token, id) = here.token(&alice, json!({"name": "ci"})).await;
    let (rotated, rotated_id) = here.token(&alice, json!({"name": "rotated"})).await;
    let exchanged = here.get_as(&token, "/token?scope=repository:team/app:pull").await.json();
    let exchanged = format!("Bearer {}", exchanged["token"].as_str().unwrap());
    let (of_bob, _) = here.token(&bob, json!({"name": "ci"})).await;
    let (of_carol, _) = here.token(&carol, json!({"name": "ci"})).await;
    here.admin("POST", "/lode/v1/groups", json!({"name": "staff"})).await;
    here.admin("PUT", "/lode/v1/groups/staff/members/carol", json!(null)).await;
    here.grant("team/*", "alice", "read").await;
    here.grant("team/app", "bob", "read").await;
    here.grant("team/*", "staff", "read").await;
    let line = format!("ssh-ed25519 {} alice", Ollama::new(&here, 7).public());
    let added = here.send_as(&alice, Request::post("/lode/v1/keys"), json!({"key": line}).to_string()).await;
    assert_eq!(added.status, 201, "{}", added.text());
    let key_id = added.json()["id"].as_str().unwrap().to_owned();
    let signed: Probe<'_> = Box::new(|| {
        Box::pin(async {
            let at = now_ms() / 1000;
            let signature = Ollama::new(&there, 7).authorization(&format!("POST,/api/me?ts={at}"));
            let request = Request::post(format!("/api/me?ts={at}"));
            there.send_as(&signature, request, "").await.status.as_u16()
        })
    });
    let browser = Browser::signed_in(&here, "alice").await;
    let other = Browser::signed_in(&here, "alice").await;
    let page = |cookie: String| -> Probe<'_> {
        let there = &there;
        Box::new(move || {
            let request = Request::get("/-/account").header("host", HOST).header("cookie", &cookie);
            Box::pin(async move { there.send(request, "").await.status.as_u16() })
        })
    };
    // 2. Each is used at the other replica, which remembers it, and ends here.
    let change = |method: &'static str, path: String, body: Value| -> BoxFuture<'_, ()> {
        let here = &here;
        Box::pin(async move { drop(here.admin(method, &path, body).await) })
    };
    let nothing = || json!(null);
    let role = |subject: &str, target: &str| json!({"target": target, "subject": subject});
    let cases: Vec<(&str, Probe<'_>, u16, u16, BoxFuture<'_, ()>)> = vec![
        ("a visibility", get(String::new(), tags), 200, 401, {
            here.show("team/app", "public").await;
            change(
                "PUT",
                "/lode/v1/visibility".to_owned(),
                json!({"target": "team/app", "visibility": "private"}),
            )
        }),
        (
            "a role on a repository",
            get(of_bob, tags),
            200,
            404,
            change("PUT", "/lode/v1/grants".to_owned(), role("bob", "team/app")),
        ),
        (
            "a membership",
            get(of_carol.clone(), tags),
            200,
            404,
            change("DELETE", "/lode/v1/groups/staff/members/carol".to_owned(), nothing()),
        ),
        (
            "the key of ollama",
            signed,
            200,
            401,
            Box::pin(async {
                let request = Request::delete(format!("/lode/v1/keys/{key_id}"));
                assert_eq!(here.send_as(&alice, request, "").await.status, 204);
            }),
        ),
        (
            "a replaced token",
            get(rotated, "/v2/"),
            200,
            401,
            Box::pin(async {
                let request = Request::post(format!("/lode/v1/tokens/{rotated_id}/rotate"));
                assert_eq!(here.send_as(&alice, request, "null").await.status, 201);
            }),
        ),
        (
            "a session that signs out",
            page(browser.cookie.clone()),
            200,
            303,
            Box::pin(async { assert_eq!(browser.post("/logout", "").await.status, 303) }),
        ),
        (
            "a token",
            get(token, tags),
            200,
            401,
            Box::pin(async {
                let request = Request::delete(format!("/lode/v1/tokens/{id}"));
                assert_eq!(here.send_as(&alice, request, "").await.status, 204);
            }),
        ),
        (
            "a password",
            get(alice.clone(), "/v2/"),
            200,
            401,
            change("PATCH", "/lode/v1/accounts/alice".to_owned(), json!({"password": "another password"})),
        ),
        (
            "an account",
            get(of_carol, "/v2/"),
            200,
            401,
            change("PATCH", "/lode/v1/accounts/carol".to_owned(), json!({"disabled": true})),
        ),
    ];
    let mut slowest = (Duration::ZERO, "");
    for (name, probe, before, after, end) in cases {
        assert_eq!(probe().await, before, "{name}");
        end.await;
        let ended = Instant::now();
        let mut last = probe().await;
        while last == before && ended.elapsed() < 10 * LIMIT {
            last = probe().await;
        }
        slowest = slowest.max((ended.elapsed(), name));
        assert_eq!(last, after, "{name}");
    }
    assert!(slowest.0 <= LIMIT, "{slowest:?}");
    // 3. What depended on them has ended, too: the access token with the token, the other session with the password.
    assert_eq!(get(exchanged, tags)().await, 401);
    assert_eq!(page(other.cookie.clone())().await, 303);
}

#[tokio::test]
async fn sign_ins_continue_at_another_replica() {
    let Some(database) = crate::store::postgres_for_test().await else { return };
    let issuer = TestIssuer::start().await;
    let (here, there) = (replica(&database, &issuer).await, replica(&database, &issuer).await);
    // 1. At a provider: begun here, finished there, and usable at both.
    let mut browser = single_sign_on::Browser::new(&here, &issuer);
    let back = browser.authorize("/login/corp").await;
    let mut elsewhere = browser.at(&there);
    assert_eq!(elsewhere.get(&back).await.header("location"), "/-/account");
    assert_eq!(elsewhere.account().await.unwrap()["name"], "alice");
    assert_eq!(elsewhere.at(&here).account().await.unwrap()["name"], "alice");
    // The redirect counts once, on whichever replica.
    let repeated = browser.get(&back).await;
    assert_eq!(repeated.status, 400, "{}", repeated.text());
    // 2. In a browser, with a form of the other replica.
    here.admin("PATCH", "/lode/v1/accounts/alice", json!({"password": PASSWORD})).await;
    let Browser { cookie, csrf, .. } = Browser::signed_in(&here, "alice").await;
    let post = async |app: &App, path: &str, form: &str| -> TestResponse {
        let request = from_page(Request::post(path)).header("cookie", &cookie);
        app.send(request, format!("csrf={csrf}&{form}")).await
    };
    // 3. On another device: begun here, allowed there, and collected here.
    let started = here.send(Request::post("/hf/oauth/device").header("host", HOST), "client_id=lode").await;
    let started = started.json();
    let allow = format!("user_code={}&decision=allow", started["user_code"].as_str().unwrap());
    let allowed = post(&there, "/device", &allow).await;
    assert_eq!(allowed.status, 200, "{}", allowed.text());
    let poll = format!(
        "grant_type=urn:ietf:params:oauth:grant-type:device_code&device_code={}",
        started["device_code"].as_str().unwrap()
    );
    let got = here.send(Request::post("/hf/oauth/token").header("host", HOST), poll).await;
    assert_eq!(got.status, 200, "{}", got.text());
    let token = format!("Bearer {}", got.json()["access_token"].as_str().unwrap());
    for app in [&here, &there] {
        assert_eq!(app.get_as(&token, "/lode/v1/me").await.json()["name"], "alice");
    }
    // 4. Wrong passwords are counted together.
    let mut statuses = Vec::new();
    for at in 0..7 {
        let app = if at % 2 == 0 { &here } else { &there };
        statuses.push(app.get_as(&basic("alice", &format!("wrong {at}")), "/v2/").await.status.as_u16());
    }
    assert_eq!(statuses, [401, 401, 401, 401, 401, 401, 429]);
}

//! Signing in without an `Authorization` header of one's own: sessions of browsers, keys of ollama, programs on
//! other devices, and the setup of a new server.

use std::net::SocketAddr;

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use axum::extract::ConnectInfo;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Request;
use http::request::Builder;
use lode_client::Secret;
use lode_model::digest::Digest;
use serde_json::{Value, json};
use uuid::{NoContext, Timestamp, Uuid};

use super::access::{PASSWORD, basic, closed};
use super::{App, TestResponse, failure};
use crate::Config;
use crate::auth::token::digest_of;
use crate::store::SessionRow;
use crate::time::now_ms;

const HOST: &str = "localhost:5000";
const BASE: &str = "http://localhost:5000";

/// A browser on a page of the server.
pub(super) struct Browser<'a> {
    app: &'a App,
    pub(super) cookie: String,
    pub(super) csrf: String,
}

impl<'a> Browser<'a> {
    /// A browser after a sign-in.
    pub(super) async fn signed_in(app: &'a App, name: &str) -> Browser<'a> {
        let form = format!("name={name}&password={}", PASSWORD.replace(' ', "+"));
        let response = app.send(from_page(Request::post("/login")), form).await;
        assert_eq!(response.status, 303, "{}", response.text());
        assert_eq!(response.header("location"), "/-/account");
        let cookie = response.header("set-cookie");
        assert!(cookie.ends_with("; Path=/; Max-Age=604800; HttpOnly; SameSite=Lax"), "{cookie}");
        let cookie = cookie.split(';').next().unwrap().to_owned();
        let mut browser = Browser { app, cookie, csrf: String::new() };
        browser.csrf = csrf_of(app, &browser.cookie).await;
        browser
    }

    pub(super) async fn get(&self, path: &str) -> TestResponse {
        self.app.send(Request::get(path).header("host", HOST).header("cookie", &self.cookie), "").await
    }

    /// Sends a form of a page.
    pub(super) async fn post(&self, path: &str, form: &str) -> TestResponse {
        let request = from_page(Request::post(path)).header("cookie", &self.cookie);
        self.app.send(request, format!("csrf={}&{form}", self.csrf)).await
    }
}

/// The token of a session's forms.
async fn csrf_of(app: &App, cookie: &str) -> String {
    let request = Request::get("/-/account").header("host", HOST).header("cookie", cookie);
    let page = app.send(request, "").await;
    let (_, rest) = page.text().split_once("name=\"csrf\" value=\"").unwrap();
    rest.split('"').next().unwrap().to_owned()
}

pub(super) fn from_page(request: Builder) -> Builder {
    request.header("host", HOST).header("sec-fetch-site", "same-origin")
}

#[tokio::test]
async fn a_link_to_the_sign_in_leads_back() {
    let app = closed().await;
    for (from, expect) in [
        (format!("{BASE}/team/mini/-/tags?all=1"), "/team/mini/-/tags?all=1"),
        (format!("{BASE}/models?q=a%20b&sort=size"), "/models?q=a%20b&#38;sort=size"),
        (format!("{BASE}/login?next=x"), "/-/account"),
        (format!("{BASE}/-/account/tokens"), "/-/account"),
        (format!("{BASE}/-/admin/workers"), "/-/account"),
        (format!("{BASE}/-/admin/quotas?name=a"), "/-/admin/quotas?name=a"),
        (format!("{BASE}/-/robots/team+ci"), "/-/robots/team+ci"),
        ("https://evil.example/models".to_owned(), "/-/account"),
        ("models".to_owned(), "/-/account"),
    ] {
        let request = Request::get("/login").header("host", HOST).header("referer", &from);
        let page = app.send(request, "").await;
        let field = format!("name=\"next\" value=\"{expect}\"");
        assert!(page.text().contains(&field), "{from}: {}", page.text());
    }
}

#[tokio::test]
async fn a_browser_signs_in_and_out() {
    let app = closed().await;
    // With `no-referrer`, forms would have no origin over plain http.
    assert_eq!(app.get_as("", "/login").await.header("referrer-policy"), "same-origin");
    app.user("alice").await;
    // 1. Without a session, pages send to the sign-in, and come back afterwards.
    let page = app.get_as("", "/device?user_code=BCDF-GHJK").await;
    assert_eq!(
        (page.status.as_u16(), page.header("location")),
        (303, "/login?next=%2Fdevice%3Fuser%5Fcode%3DBCDF%2DGHJK")
    );
    let page = app.get_as("", "/team/mini/-/rules").await;
    assert_eq!(page.header("location"), "/login?next=%2Fteam%2Fmini%2F%2D%2Frules");
    let page = app.get_as("", "/login?next=%2Fdevice%3Fuser%5Fcode%3DBCDF%2DGHJK").await;
    assert!(page.text().contains("name=\"next\" value=\"/device?user_code=BCDF-GHJK\""), "{}", page.text());
    assert!(page.header("content-security-policy").starts_with("default-src 'none'"));
    let login = async |form: &str| app.send(from_page(Request::post("/login")), form.to_owned()).await;
    for (form, status, text) in [
        ("name=alice&password=wrong", 401, "wrong user name or password"),
        ("name=<script>&password=wrong", 401, "&#60;script&#62;"),
        ("", 401, "wrong user name or password"),
    ] {
        let response = login(form).await;
        assert_eq!(response.status.as_u16(), status, "{form}");
        assert!(
            response.text().contains(text) && !response.text().contains("<script>"),
            "{}",
            response.text()
        );
    }
    // 2. Another site's page cannot sign anyone in.
    let form = "name=alice&password=a+long+password";
    for (name, value) in [("sec-fetch-site", "cross-site"), ("origin", "https://evil.example"), ("x", "y")] {
        let request = Request::post("/login").header("host", HOST).header(name, value);
        let response = app.send(request, form).await;
        assert_eq!(response.status, 403, "{name}");
        assert!(!response.headers.contains_key("set-cookie"));
    }
    let older = Request::post("/login").header("host", HOST).header("origin", BASE);
    assert_eq!(app.send(older, form).await.status, 303, "a browser without the newer header");
    let elsewhere = login(&format!("{form}&next=https://evil.example")).await;
    assert_eq!(elsewhere.header("location"), "/-/account");
    // 3. The session works on pages and in Lode's own API, and nowhere else.
    let browser = Browser::signed_in(&app, "alice").await;
    assert_eq!(browser.get("/lode/v1/me").await.json()["name"], "alice");
    for path in ["/v2/", "/v1/models/x", "/hf/api/whoami-v2"] {
        assert_eq!(browser.get(path).await.status, 401, "{path}");
    }
    // 4. Signing out ends it at once.
    let other = Browser::signed_in(&app, "alice").await;
    assert_eq!(browser.post("/logout", "").await.status, 303);
    assert_eq!(browser.get("/-/account").await.status, 303);
    assert_eq!(other.get("/-/account").await.status, 200);
    assert_eq!(other.post("/-/account/sessions/end", "").await.status, 303);
    assert_eq!(other.get("/-/account").await.status, 303);
}

#[tokio::test]
async fn forms_of_other_sites_change_nothing() {
    let app = closed().await;
    app.user("alice").await;
    let browser = Browser::signed_in(&app, "alice").await;
    let csrf = &browser.csrf;
    let attempt = async |site: &str, form: String| {
        let request = Request::post("/-/account/tokens")
            .header("host", HOST)
            .header("sec-fetch-site", site)
            .header("cookie", &browser.cookie);
        app.send(request, form).await.status.as_u16()
    };
    let form = "change=create-token&name=ci&access=write&days=30";
    assert_eq!(attempt("cross-site", format!("csrf={csrf}&{form}")).await, 403);
    assert_eq!(attempt("same-site", format!("csrf={csrf}&{form}")).await, 403);
    assert_eq!(attempt("same-origin", form.to_owned()).await, 403);
    assert_eq!(attempt("same-origin", format!("csrf={csrf}x&{form}")).await, 403);
    let bob = app.user("bob").await;
    drop(bob);
    let other = Browser::signed_in(&app, "bob").await;
    assert_eq!(attempt("same-origin", format!("csrf={}&{form}", other.csrf)).await, 403);
    assert_eq!(attempt("same-origin", format!("csrf={csrf}&{form}")).await, 200);
    // The same in Lode's own API, where scripts send the token in a header.
    let create = async |csrf: Option<&str>| {
        let request = from_page(Request::post("/lode/v1/tokens")).header("cookie", &browser.cookie);
        let request = match csrf {
            Some(csrf) => request.header("x-csrf-token", csrf),
            None => request,
        };
        app.send(request, r#"{"name":"script"}"#).await.status.as_u16()
    };
    assert_eq!((create(None).await, create(Some("x")).await, create(Some(csrf)).await), (403, 403, 201));
    assert_eq!(browser.get("/lode/v1/me").await.json()["csrf"], csrf[..]);
    // A browser sends a remembered password with the requests of other sites, too.
    let remembered = async |name: &str, value: &str| {
        let request = Request::post("/lode/v1/tokens").header(name, value);
        app.send_as(&basic("alice", PASSWORD), request, r#"{"name":"x"}"#).await.status.as_u16()
    };
    for (name, value, status) in [
        ("sec-fetch-site", "cross-site", 403),
        ("origin", "https://evil.example", 403),
        ("origin", "null", 403),
        ("origin", BASE, 201),
        ("sec-fetch-site", "same-origin", 201),
        ("x-anything", "else", 201),
    ] {
        assert_eq!(remembered(name, value).await, status, "{name}: {value}");
    }
}

/// What ollama signs in the place of a body.
pub(super) const EMPTY: &str =
    "ZTNiMGM0NDI5OGZjMWMxNDlhZmJmNGM4OTk2ZmI5MjQyN2FlNDFlNDY0OWI5MzRjYTQ5NTk5MWI3ODUyYjg1NQ==";

/// A client of ollama with a key.
pub(super) struct Ollama<'a> {
    app: &'a App,
    key: Ed25519KeyPair,
}

impl<'a> Ollama<'a> {
    pub(super) fn new(app: &'a App, seed: u8) -> Ollama<'a> {
        Ollama { app, key: Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).unwrap() }
    }

    pub(super) fn public(&self) -> String {
        let part = |bytes: &[u8]| [&(bytes.len() as u32).to_be_bytes(), bytes].concat();
        STANDARD.encode([part(b"ssh-ed25519"), part(self.key.public_key().as_ref())].concat())
    }

    pub(super) fn authorization(&self, message: &str) -> String {
        format!("{}:{}", self.public(), STANDARD.encode(self.key.sign(message.as_bytes()).as_ref()))
    }

    /// Asks for an access token, as `ollama pull` does after a challenge.
    async fn token(&self, base: &str, scope: &str, at: i64, nonce: &str) -> TestResponse {
        let query = format!("nonce={nonce}&scope={scope}&service=localhost%3A5000&ts={at}");
        let signed = self.authorization(&format!("GET,{base}/token?{query},{EMPTY}"));
        self.app.send_as(&signed, Request::get(format!("/token?{query}")), "").await
    }

    /// A request to ollama's own API with a signature.
    async fn api(&self, method: &str, path: &str, body: &str) -> TestResponse {
        let at = now_ms() / 1000;
        let signed = self.authorization(&format!("{method},{path}?ts={at}"));
        let request = Request::builder().method(method).uri(format!("{path}?ts={at}"));
        self.app.send_as(&signed, request, body).await
    }
}

#[tokio::test]
async fn ollama_signs_with_a_key() {
    let app = closed().await;
    let alice = app.user("alice").await;
    app.push_as(&alice, "alice/app").await;
    let (ollama, now) = (Ollama::new(&app, 7), now_ms() / 1000);
    let pull = "repository%3Aalice%2Fapp%3Apull";
    // 1. Before it is enrolled: an error that ollama prints, with the page to open.
    let refused = ollama.token(BASE, pull, now, "a1").await;
    assert_eq!(refused.failure(), failure(403, "DENIED"));
    let message = refused.json()["errors"][0]["message"].as_str().unwrap().to_owned();
    assert!(
        message.contains("not enrolled here; open http://localhost:5000/connect?name=ollama&key="),
        "{message}"
    );
    assert!(!message.contains("unauthorized") && !message.contains("access denied"));
    let asked = ollama.api("POST", "/api/me", "").await;
    assert_eq!(asked.status, 401);
    let url = asked.json()["signin_url"].as_str().unwrap().to_owned();
    assert_eq!(asked.json()["error"], "unauthorized");
    assert!(message.contains(&url), "{url}");
    // Public models need no key.
    app.show("alice/app", "public").await;
    assert_eq!(ollama.token(BASE, pull, now, "a2").await.status, 200);
    app.show("alice/app", "private").await;
    // 2. A signed-in person opens the page, and confirms.
    let browser = Browser::signed_in(&app, "alice").await;
    let page = browser.get(url.strip_prefix(BASE).unwrap()).await;
    assert!(page.status == 200 && page.text().contains("SHA256:"), "{}", page.text());
    let (_, rest) = page.text().split_once("name=\"key\" value=\"").unwrap();
    let key = rest.split('"').next().unwrap();
    assert_eq!(browser.post("/connect", &format!("key={key}&name=laptop")).await.status, 200);
    assert_eq!(browser.post("/connect", &format!("key={key}&name=again")).await.status, 409);
    assert_eq!(browser.post("/connect", "key=nonsense&name=x").await.status, 400);
    // 3. Now it pulls and pushes.
    let granted = ollama.token(BASE, pull, now, "a3").await;
    let token = format!("Bearer {}", granted.json()["token"].as_str().unwrap());
    assert_eq!(app.pull_as(&token, "alice/app").await, 200);
    let push = ollama.token(BASE, "repository%3Aalice%2Fapp%3Apull%2Cpush", now, "a4").await;
    let push = format!("Bearer {}", push.json()["token"].as_str().unwrap());
    assert_eq!(app.push_as(&push, "alice/app").await.status, 201);
    let me = ollama.api("POST", "/api/me", "").await.json();
    assert_eq!(me["name"], "alice");
    assert!(me["id"].as_str().unwrap().parse::<uuid::Uuid>().is_ok());
    // 4. A signature counts once, soon, and for this server.
    for (base, at, nonce) in [
        (BASE, now, "a3"),
        (BASE, now - 400, "b1"),
        (BASE, now + 400, "b2"),
        ("http://other:5000", now, "b3"),
        ("https://localhost:5000", now, "b4"),
        (BASE, now, ""),
    ] {
        assert_eq!(ollama.token(base, pull, at, nonce).await.status, 401, "{base} {at} {nonce}");
    }
    let stranger = Ollama::new(&app, 8);
    let forged = format!("{}:{}", ollama.public(), stranger.authorization("x").split_once(':').unwrap().1);
    let path = format!("/token?nonce=c&scope={pull}&ts={now}");
    assert_eq!(app.get_as(&forged, &path).await.status, 401);
    // 5. In ollama's own API it reads, and changes nothing.
    assert_eq!(ollama.api("GET", "/api/tags", "").await.status, 200);
    for (method, path, body) in [
        ("POST", "/api/push", r#"{"model":"127.0.0.1:1/alice/app"}"#),
        ("POST", "/api/create", r#"{"model":"alice/b","from":"alice/app"}"#),
        ("POST", "/api/copy", r#"{"source":"alice/app","destination":"alice/b"}"#),
        ("DELETE", "/api/delete", r#"{"model":"alice/app"}"#),
    ] {
        assert_eq!(ollama.api(method, path, body).await.status, 401, "{path}");
    }
    // 6. Signing out removes the key, and what was made with it.
    assert_eq!(ollama.api("POST", "/api/signout", "").await.status, 200);
    assert_eq!(ollama.api("POST", "/api/me", "").await.status, 401);
    assert_eq!(app.pull_as(&token, "alice/app").await, 401);
}

/// Another server cannot pass on here what was signed for it.
#[tokio::test]
async fn signatures_need_a_known_address() {
    let (evil, pull, now) = ("http://evil.example", "repository%3Aalice%2Fapp%3Apull", now_ms() / 1000);
    for (public_url, base, expect) in [
        (None, evil, 403),
        (Some("http://lode.example"), evil, 401),
        (Some("http://lode.example"), "http://lode.example", 200),
    ] {
        let app = App::with(Config {
            admin_password: Some(Secret::new(PASSWORD)),
            public_url: public_url.map(|url| url.parse().unwrap()),
            ..Config::default()
        })
        .await;
        let alice = app.user("alice").await;
        app.push_as(&alice, "alice/app").await;
        let ollama = Ollama::new(&app, 7);
        add_key(&app, &alice, &ollama).await;
        let query = format!("nonce=n&scope={pull}&service=x&ts={now}");
        let signed = ollama.authorization(&format!("GET,{base}/token?{query},{EMPTY}"));
        let host = base.strip_prefix("http://").unwrap();
        let request = Request::get(format!("/token?{query}")).header("host", host);
        let response = app.send(request.header("authorization", signed), "").await;
        assert_eq!(response.status, expect, "{public_url:?} {base}: {}", response.text());
    }
}

/// Adds the key of an ollama client to an account.
async fn add_key(app: &App, credentials: &str, ollama: &Ollama<'_>) {
    let line = format!("ssh-ed25519 {} alice@laptop", ollama.public());
    let added =
        app.send_as(credentials, Request::post("/lode/v1/keys"), json!({"key": line}).to_string()).await;
    assert_eq!(added.status, 201, "{}", added.text());
}

/// The host that a trusted proxy forwards is the one that is signed, so it has to be the one that is checked.
#[tokio::test]
async fn signatures_need_a_known_address_behind_a_proxy() {
    let peer: SocketAddr = "127.0.0.1:4711".parse().unwrap();
    let app = App::with(Config {
        admin_password: Some(Secret::new(PASSWORD)),
        trusted_proxies: vec!["127.0.0.1/32".parse().unwrap()],
        ..Config::default()
    })
    .await;
    let alice = app.user("alice").await;
    app.push_as(&alice, "alice/app").await;
    let ollama = Ollama::new(&app, 7);
    add_key(&app, &alice, &ollama).await;
    let evil = "http://evil.example";
    for (n, (host, (name, value), base, expect)) in [
        (HOST, ("x-forwarded-host", "evil.example"), evil, 403),
        (HOST, ("forwarded", "for=192.0.2.1;host=evil.example"), evil, 403),
        (HOST, ("x-forwarded-host", "evil.example"), BASE, 403),
        ("inner.example", ("x-forwarded-host", HOST), BASE, 200),
        (HOST, ("x-forwarded-for", "192.0.2.1"), BASE, 200),
    ]
    .into_iter()
    .enumerate()
    {
        let (pull, now) = ("repository%3Aalice%2Fapp%3Apull", now_ms() / 1000);
        let query = format!("nonce=n{n}&scope={pull}&service=x&ts={now}");
        let signed = ollama.authorization(&format!("GET,{base}/token?{query},{EMPTY}"));
        let request = Request::get(format!("/token?{query}")).header("host", host).header(name, value);
        let request = request.header("authorization", signed).extension(ConnectInfo(peer));
        let response = app.send(request, "").await;
        assert_eq!(response.status, expect, "{host} {name}: {value}: {}", response.text());
    }
}

/// To ollama, `x` and `library/x` are one name.
#[tokio::test]
async fn ollama_pulls_a_private_model_by_either_spelling() {
    let app = closed().await;
    let alice = app.user("alice").await;
    let ollama = Ollama::new(&app, 7);
    add_key(&app, &alice, &ollama).await;
    for (n, (stored, visibility, expect)) in
        [("model", "internal", 200), ("library/other", "internal", 200), ("library/secret", "private", 404)]
            .into_iter()
            .enumerate()
    {
        app.push_as(&basic("admin", PASSWORD), stored).await;
        app.show(stored, visibility).await;
        let name = stored.trim_start_matches("library/");
        let scope = format!("repository%3Alibrary%2F{name}%3Apull");
        let token = ollama.token(BASE, &scope, now_ms() / 1000, &format!("n{n}")).await.json();
        let token = format!("Bearer {}", token["token"].as_str().unwrap());
        let request = Request::get(format!("/v2/library/{name}/manifests/latest"));
        let pulled = app.send_as(&token, request.header("user-agent", "ollama/0.9 (amd64 linux)"), "").await;
        assert_eq!(pulled.status, expect, "{stored}: {}", pulled.text());
    }
    // What the response says does not depend on whether a hidden repository exists.
    let refusal = async |path: &str| {
        let request = Request::get(path).header("user-agent", "ollama/0.9 (amd64 linux)");
        let response = app.send_as(&alice, request, "").await;
        (response.status.as_u16(), response.text().replace("secret", "NAME").replace("absent", "NAME"))
    };
    let digest = Digest::sha256(b"{}");
    for path in ["library/NAME/tags/list", "NAME/tags/list", "library/NAME/manifests/latest"] {
        let (hidden, absent) = (path.replace("NAME", "secret"), path.replace("NAME", "absent"));
        assert_eq!(
            refusal(&format!("/v2/{hidden}")).await,
            refusal(&format!("/v2/{absent}")).await,
            "{path}"
        );
    }
    for spelling in ["", "library/"] {
        let path = |name: &str| format!("/v2/{spelling}{name}/blobs/{digest}");
        assert_eq!(refusal(&path("secret")).await, refusal(&path("absent")).await, "{spelling}");
    }
}

#[tokio::test]
async fn keys_are_listed_and_removed() {
    let app = closed().await;
    let (alice, bob) = (app.user("alice").await, app.user("bob").await);
    let line = format!("ssh-ed25519 {} alice@laptop", Ollama::new(&app, 7).public());
    let add = async |credentials: &str, line: &str| {
        let body = json!({"key": line}).to_string();
        app.send_as(credentials, Request::post("/lode/v1/keys"), body).await
    };
    let added = add(&alice, &line).await;
    assert_eq!((added.status.as_u16(), added.json()["name"].as_str()), (201, Some("alice@laptop")));
    assert_eq!(add(&bob, &line).await.status, 409);
    assert_eq!(add(&bob, "ssh-rsa AAAA").await.status, 400);
    let id = added.json()["id"].as_str().unwrap().to_owned();
    let remove = async |credentials: &str| {
        app.send_as(credentials, Request::delete(format!("/lode/v1/keys/{id}")), "").await.status.as_u16()
    };
    assert_eq!((remove(&bob).await, remove(&alice).await, remove(&alice).await), (404, 204, 404));
    assert_eq!(app.get_as(&alice, "/lode/v1/keys").await.json()["keys"], json!([]));
    assert_eq!(add(&bob, &line).await.status, 201);
}

/// Posts a form of the device flow.
async fn oauth(app: &App, path: &str, form: &str) -> (u16, Value) {
    let response = app.send(Request::post(path).header("host", HOST), form.to_owned()).await;
    (response.status.as_u16(), response.json())
}

#[tokio::test]
async fn a_program_signs_in_through_a_browser() {
    let app = closed().await;
    let elsewhere =
        Request::post("/hf/oauth/device").header("host", HOST).header("origin", "https://evil.example");
    assert_eq!(app.send(elsewhere, "client_id=lode").await.status, 403);
    let alice = app.user("alice").await;
    app.push_as(&alice, "alice/app").await;
    let start = async |form: &str| {
        let (status, started) = oauth(&app, "/hf/oauth/device", form).await;
        assert_eq!(status, 200, "{started}");
        let code = started["device_code"].as_str().unwrap().to_owned();
        (code, started["user_code"].as_str().unwrap().to_owned(), started)
    };
    let poll = async |code: &str| {
        let form =
            format!("grant_type=urn:ietf:params:oauth:grant-type:device_code&device_code={code}&client_id=x");
        oauth(&app, "/hf/oauth/token", &form).await
    };
    // 1. A program starts, and waits.
    let (device, user, started) = start("client_id=hf-client").await;
    assert_eq!(started["verification_uri"], "http://localhost:5000/device");
    assert_eq!((&started["interval"], &started["expires_in"]), (&json!(5), &json!(900)));
    assert_eq!(poll(&device).await.1["error"], "authorization_pending");
    assert_eq!(poll(&device).await.1["error"], "slow_down");
    // 2. A person looks at it, and allows it.
    let browser = Browser::signed_in(&app, "alice").await;
    let page = browser.get(&format!("/device?user_code={}", user.to_lowercase().replace('-', ""))).await;
    assert!(page.text().contains("<dd>hf</dd>") && page.text().contains("pull and push"), "{}", page.text());
    assert_eq!(browser.get("/device?user_code=ZZZZ-ZZZZ").await.status, 404);
    assert_eq!(browser.post("/device", &format!("user_code={user}&decision=allow")).await.status, 200);
    assert_eq!(browser.post("/device", &format!("user_code={user}&decision=allow")).await.status, 404);
    // 3. The program gets a token, once.
    let (status, got) = poll(&device).await;
    assert_eq!((status, got["token_type"].as_str()), (200, Some("bearer")), "{got}");
    let token = format!("Bearer {}", got["access_token"].as_str().unwrap());
    assert_eq!(app.push_as(&token, "alice/app").await.status, 201);
    assert_eq!(app.get_as(&token, "/lode/v1/tokens").await.status, 403, "it may push, and no more");
    assert_eq!(poll(&device).await.1["error"], "expired_token");
    let me = app.get_as(&token, "/hf/api/whoami-v2").await.json();
    assert_eq!((&me["type"], &me["name"]), (&json!("user"), &json!("alice")));
    assert_eq!(me["auth"]["accessToken"]["role"], "write");
    let wrong = app.get_as("Bearer hf_wrong", "/hf/api/whoami-v2").await;
    assert_eq!(
        (wrong.status.as_u16(), wrong.header("x-error-message")),
        (401, "Invalid credentials in Authorization header")
    );
    // 4. A person denies another, which asks for everything.
    let (device, user, _) = start("client_id=lode&scope=full&client_name=lode+on+host").await;
    let page = browser.get(&format!("/device?user_code={user}")).await;
    assert!(
        page.text().contains("lode on host") && page.text().contains("everything that the account may do")
    );
    assert_eq!(browser.post("/device", &format!("user_code={user}&decision=deny")).await.status, 200);
    assert_eq!(poll(&device).await.1["error"], "access_denied");
    // 5. Bad input.
    assert_eq!(poll("nonsense").await.1["error"], "expired_token");
    assert_eq!(oauth(&app, "/hf/oauth/device", "scope=all").await.1["error"], "invalid_scope");
    assert_eq!(
        oauth(&app, "/hf/oauth/token", "grant_type=password").await.1["error"],
        "unsupported_grant_type"
    );
    assert_eq!(oauth(&app, "/hf/oauth/token", "grant_type=refresh_token").await.1["error"], "invalid_grant");
    let mut statuses = Vec::new();
    for _ in 0..21 {
        statuses
            .push(app.send(Request::post("/hf/oauth/device").header("host", HOST), "").await.status.as_u16());
    }
    assert_eq!((statuses[0], statuses[20]), (200, 429), "waiting programs are limited: {statuses:?}");
}

#[tokio::test]
async fn a_new_server_waits_for_its_administrator() {
    let app = App::new().await;
    app.push_image("team/app", "latest", "x").await;
    let joined = super::gateway::join(&app, SocketAddr::from(([127, 0, 0, 1], 9))).await;
    let path = app.registry.setup_begin().unwrap();
    for closed in ["/", "/v2/", "/api/tags", "/v1/models", "/lode/v1/models", "/login", "/metrics"] {
        let response = app.get_as("", closed).await;
        assert_eq!(response.status, 503, "{closed}");
        assert!(response.text().contains("not set up yet"), "{}", response.text());
    }
    let page = app.send(Request::get("/").header("accept", "text/html"), "").await;
    assert_eq!((page.status.as_u16(), page.header("content-type")), (503, "text/html; charset=utf-8"));
    for open in ["/healthz", "/readyz", "/static/lode.css", &path] {
        assert_eq!(app.get_as("", open).await.status, 200, "{open}");
    }
    let worker = format!("Bearer {}", app.registry.internal_token().expose());
    assert_eq!(app.get_as(&worker, "/lode/v1/models").await.status, 200, "the server's own worker works");
    // A registered worker reports, and its credential opens nothing else.
    let beat = async |credentials: &str| {
        let request = Request::put(joined.path()).header("content-type", "application/json");
        app.send_as(credentials, request, r#"{"devices": [], "loaded": [], "cached": []}"#)
            .await
            .status
            .as_u16()
    };
    let credential = format!("Bearer {}", joined.credential);
    assert_eq!((beat(&credential).await, beat("").await, beat("Bearer wrong").await), (204, 503, 503));
    assert_eq!(app.get_as(&credential, "/lode/v1/models").await.status, 503);
    assert!(app.get_as("", &path).await.text().contains("become internal"));
    let token = path.split_once('=').unwrap().1;
    let post = async |token: &str, rest: &str| {
        app.send(from_page(Request::post("/setup")), format!("token={token}&{rest}")).await
    };
    assert_eq!(app.get_as("", "/setup?token=wrong").await.status, 403);
    assert_eq!(post("wrong", "name=root&password=a+long+password").await.status, 403);
    assert_eq!(post(token, "name=root&password=short").await.status, 400);
    assert_eq!(post(token, "name=v2&password=a+long+password").await.status, 400);
    let done = post(token, "name=root&password=a+long+password").await;
    assert_eq!((done.status.as_u16(), done.header("location")), (303, "/-/account"));
    assert_eq!(app.get_as(&basic("root", PASSWORD), "/v2/").await.status, 200);
    assert_eq!(post(token, "name=second&password=a+long+password").await.status, 403, "the link works once");
    assert_eq!(app.pull_as("", "team/app").await, 401);
}

#[tokio::test]
async fn an_old_session_changes_no_credentials() {
    let app = closed().await;
    app.user("alice").await;
    let mut browser = Browser::signed_in(&app, "alice").await;
    // The same session, as if it had begun an hour ago.
    let account = app.registry.store().account_find_by_name("alice").await.unwrap().unwrap();
    let began = now_ms() - 3_600_000;
    let seconds = began.cast_unsigned() / 1000;
    let row = SessionRow {
        id: Uuid::new_v7(Timestamp::from_unix(NoContext, seconds, 0)),
        account: account.id,
        address: String::new(),
        agent: String::new(),
        provider: None,
        created_at: began,
        used_at: now_ms(),
        fresh_at: began,
    };
    let mut tx = app.registry.store().begin().await.unwrap();
    // A session of a password that has changed meanwhile does not begin.
    assert!(!tx.session_insert(&row, &digest_of("stale"), account.epoch - 1).await.unwrap());
    assert!(tx.session_insert(&row, &digest_of("old"), account.epoch).await.unwrap());
    tx.commit().await.unwrap();
    browser.cookie = "lode=old".to_owned();
    browser.csrf = csrf_of(&app, &browser.cookie).await;
    for (path, form) in [
        ("/-/account/tokens", "change=create-token&name=ci&access=write&days=30"),
        (
            "/-/account/keys",
            "key=ssh-ed25519+AAAAC3NzaC1lZDI1NTE5AAAAID%2BJ%2BsdSDaSdFp8SzO/s//NDYG1US57bEJgqMS0SLHRO",
        ),
    ] {
        let refused = browser.post(path, form).await;
        assert_eq!(refused.status, 403, "{path}: {}", refused.text());
        assert!(refused.text().contains("href=\"/login?again=1\""), "{}", refused.text());
    }
    let rights = json!({"target": "alice/*", "visibility": "public"}).to_string();
    let request = from_page(Request::put("/lode/v1/visibility"))
        .header("cookie", &browser.cookie)
        .header("x-csrf-token", &browser.csrf);
    assert_eq!(app.send(request, rights).await.status, 403);
    // It still shows what there is, and can sign in again.
    assert_eq!(browser.get("/login").await.status, 303);
    let page = browser.get("/login?again=1").await;
    assert!(page.text().contains(&format!("name=\"csrf\" value=\"{}\"", browser.csrf)), "{}", page.text());
    let form = format!("name=alice&password={}", PASSWORD.replace(' ', "+"));
    let again = browser.post("/login", &form).await;
    assert_eq!(again.status, 303, "{}", again.text());
    let fresh = again.header("set-cookie").split(';').next().unwrap().to_owned();
    let fresh = Browser { app: &app, csrf: csrf_of(&app, &fresh).await, cookie: fresh };
    assert_eq!(
        fresh.post("/-/account/tokens", "change=create-token&name=ci&access=write&days=30").await.status,
        200
    );
    // The old session ends when it signs out.
    assert_eq!(browser.post("/logout", "").await.status, 303);
}

//! Signing in at an OpenID Connect provider, with a provider in this process that tests control.

use http::Request;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use lode_client::Secret;
use serde_json::{Value, json};
use url::Url;

use super::access::{PASSWORD, basic};
use super::issuer::{Behaviour, TestIssuer, TestKey};
use super::{App, TestResponse};
use crate::{Config, OidcProvider};

const HOST: &str = "localhost:5000";

/// A server with the administrator `admin` and one provider.
async fn start(issuer: &TestIssuer, settings: Value) -> App {
    let mut provider = json!({
        "name": "corp", "title": "Corporate login", "issuer": issuer.url, "client_id": "lode",
        "client_secret": "hush", "groups_claim": "groups",
    });
    super::issuer::merge(&mut provider, &settings);
    let provider: OidcProvider = serde_json::from_value(provider).unwrap();
    let password = Some(Secret::new(PASSWORD));
    App::with(Config { admin_password: password, oidc: vec![provider], ..Config::default() }).await
}

/// A browser with its cookies.
pub(super) struct Browser<'a> {
    app: &'a App,
    issuer: &'a TestIssuer,
    pub(super) cookies: Vec<(String, String)>,
}

impl<'a> Browser<'a> {
    pub(super) fn new(app: &'a App, issuer: &'a TestIssuer) -> Browser<'a> {
        Browser { app, issuer, cookies: Vec::new() }
    }

    /// The same browser at another replica.
    pub(super) fn at(&self, app: &'a App) -> Browser<'a> {
        Browser { app, issuer: self.issuer, cookies: self.cookies.clone() }
    }

    fn cookie(&self) -> String {
        self.cookies.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("; ")
    }

    pub(super) async fn get(&mut self, path: &str) -> TestResponse {
        let request = Request::get(path).header("host", HOST).header("cookie", self.cookie());
        let response = self.app.send(request, "").await;
        self.keep(&response);
        response
    }

    /// Sends a form with the token of the session.
    async fn post(&mut self, path: &str, form: &str) -> TestResponse {
        let page = self.get("/-/account").await;
        let (_, rest) = page.text().split_once("name=\"csrf\" value=\"").expect("a session");
        let form = format!("csrf={}&{form}", rest.split('"').next().unwrap());
        let request = Request::post(path).header("host", HOST).header("sec-fetch-site", "same-origin");
        let response = self.app.send(request.header("cookie", self.cookie()), form).await;
        self.keep(&response);
        response
    }

    fn keep(&mut self, response: &TestResponse) {
        for value in response.headers.get_all("set-cookie") {
            let text = value.to_str().unwrap();
            assert!(text.contains("; HttpOnly; SameSite=Lax"), "{text}");
            let (name, rest) = text.split_once('=').unwrap();
            self.cookies.retain(|(known, _)| known != name);
            if !text.contains("Max-Age=0") {
                self.cookies.push((name.to_owned(), rest.split(';').next().unwrap().to_owned()));
            }
        }
    }

    /// Follows the link to the provider, where the person agrees; returns the address back.
    pub(super) async fn authorize(&mut self, path: &str) -> String {
        let response = self.get(path).await;
        assert_eq!(response.status, 303, "{}", response.text());
        self.agree(response.header("location"))
    }

    fn agree(&self, location: &str) -> String {
        let url: Url = location.parse().unwrap();
        assert!(location.starts_with(&format!("{}/authorize?tenant=1&", self.issuer.url)), "{location}");
        let field = |name: &str| url.query_pairs().find(|(key, _)| key == name).unwrap().1.into_owned();
        let redirect_uri = format!("http://{HOST}/login/corp/callback");
        for (name, expected) in [
            ("response_type", "code"),
            ("client_id", "lode"),
            ("scope", "openid profile email"),
            ("code_challenge_method", "S256"),
            ("redirect_uri", &redirect_uri),
            ("max_age", if location.contains("&prompt=login") { "0" } else { "604800" }),
        ] {
            assert_eq!(field(name), expected);
        }
        self.issuer.set(|issuer| {
            issuer.challenge = field("code_challenge");
            issuer.nonce = field("nonce");
        });
        let issuer: String = url::form_urlencoded::byte_serialize(self.issuer.url.as_bytes()).collect();
        format!("/login/corp/callback?code=good&state={}&iss={issuer}", field("state"))
    }

    async fn sign_in(&mut self) -> TestResponse {
        let back = self.authorize("/login/corp").await;
        self.get(&back).await
    }

    pub(super) async fn account(&mut self) -> Option<Value> {
        let me = self.get("/lode/v1/me").await;
        (me.status == 200).then(|| me.json())
    }
}

#[tokio::test]
async fn a_person_signs_in_and_out() {
    let issuer = TestIssuer::start().await;
    let app = start(&issuer, json!({})).await;
    let mut browser = Browser::new(&app, &issuer);
    let page = browser.get("/login?next=/device%3Fuser_code=A").await;
    let link = "href=\"/login/corp?next=%2Fdevice%3Fuser%5Fcode%3DA\">Sign in with Corporate login<";
    assert!(page.text().contains(link), "{}", page.text());
    // 1. The first sign-in creates the account, and leads to the page that was wanted.
    let back = browser.authorize("/login/corp?next=%2Fdevice%3Fuser%5Fcode%3DA").await;
    let response = browser.get(&back).await;
    assert_eq!((response.status.as_u16(), response.header("location")), (303, "/device?user_code=A"));
    let first = browser.account().await.unwrap();
    assert_eq!((&first["name"], &first["server_role"]), (&json!("alice"), &Value::Null));
    // 2. It is a user like others, with a namespace and without a password.
    assert_eq!(app.send_as(&basic("alice", ""), Request::get("/v2/"), "").await.status, 401);
    let created = browser.post("/-/account/tokens", "change=create-token&name=ci&access=write&days=30").await;
    let (_, rest) = created.text().split_once("class=\"secret\">").unwrap();
    let token = format!("Bearer {}", rest.split('<').next().unwrap());
    assert_eq!(app.push_as(&token, "alice/app").await.status, 201);
    assert_eq!(app.push_as(&token, "bob/app").await.status, 404);
    // 3. The next sign-in finds it, whatever the person is called now.
    issuer.set(|issuer| issuer.claims = json!({"preferred_username": "renamed"}));
    let mut other = Browser::new(&app, &issuer);
    assert_eq!(other.sign_in().await.header("location"), "/-/account");
    assert_eq!(other.account().await.unwrap()["id"], first["id"]);
    // 4. Signing out here leaves a link to the provider's own sign-out.
    let response = browser.post("/logout", "").await;
    let link = format!(
        "href=\"{}/sign-out?client_id=lode&#38;post_logout_redirect_uri=http%3A%2F%2Flocalhost%3A5000%2Flogin\"",
        issuer.url
    );
    assert!(response.status == 200 && response.text().contains(&link), "{}", response.text());
    assert!(browser.account().await.is_none() && other.account().await.is_some());
    // 5. A disabled account loses its sessions and its tokens at once.
    app.admin("PATCH", "/lode/v1/accounts/alice", json!({"disabled": true})).await;
    assert!(other.account().await.is_none());
    assert_eq!(app.pull_as(&token, "alice/app").await, 401);
    let refused = other.sign_in().await;
    assert!(refused.status == 403 && refused.text().contains("disabled"), "{}", refused.text());
    // 6. The audit log names the provider, and no secret.
    let records = app.admin("GET", "/lode/v1/audit?n=100", json!(null)).await;
    let actions: Vec<String> = records.text().lines().map(str::to_owned).collect();
    let created = actions.iter().find(|line| line.contains("account.create") && line.contains("user:alice"));
    assert!(created.is_some_and(|line| line.contains("corp") && line.contains("person-1")), "{actions:?}");
    assert!(!records.text().contains("hush"));
}

#[tokio::test]
async fn groups_follow_the_provider() {
    let issuer = TestIssuer::start().await;
    let app = start(&issuer, json!({"admin_group": "ops", "required_group": "staff"})).await;
    let group = async |body: Value| app.admin("POST", "/lode/v1/groups", body).await;
    group(json!({"name": "ml", "provider": "corp"})).await;
    group(json!({"name": "research", "provider": "corp", "claim": "/corp/Research"})).await;
    group(json!({"name": "local"})).await;
    app.grant("team/*", "ml", "write").await;
    let wrong = json!({"name": "x", "provider": "other"}).to_string();
    let refused = app.send_as(&basic("admin", PASSWORD), Request::post("/lode/v1/groups"), wrong).await;
    assert_eq!(refused.status, 404, "{}", refused.text());
    let sign_in = async |groups: Value| {
        issuer.set(|issuer| issuer.claims = json!({"groups": groups}));
        let mut browser = Browser::new(&app, &issuer);
        let response = browser.sign_in().await;
        let role = browser.account().await.map(|account| account["server_role"].clone());
        let listed = app.admin("GET", "/lode/v1/groups", json!(null)).await.json();
        let groups = listed["groups"].as_array().unwrap().iter();
        let joined: Vec<String> = groups
            .filter(|group| group["members"] == json!(["alice"]))
            .map(|group| group["name"].as_str().unwrap().to_owned())
            .collect();
        (response.status.as_u16(), role, joined.join(" "))
    };
    // 1. Without the group that may sign in, there is no account.
    assert_eq!(sign_in(json!(["ml"])).await, (403, None, String::new()));
    assert_eq!(sign_in(Value::Null).await, (403, None, String::new()));
    // 2. Each sign-in replaces the groups and the role. A local group of the same name is not the provider's.
    let all = json!(["staff", "ml", "/corp/Research", "local", "ops"]);
    assert_eq!(sign_in(all).await, (303, Some(json!("admin")), "ml research".to_owned()));
    assert_eq!(sign_in(json!(["staff", "ml"])).await, (303, Some(Value::Null), "ml".to_owned()));
    assert_eq!(sign_in(json!("staff")).await, (303, Some(Value::Null), String::new()));
    // 3. Nobody else decides the members of these groups.
    let request = Request::put("/lode/v1/groups/ml/members/alice");
    let refused = app.send_as(&basic("admin", PASSWORD), request, "").await;
    assert!(refused.status == 400 && refused.text().contains("provider"), "{}", refused.text());
    let request = Request::delete("/lode/v1/groups/ml/members/alice");
    assert_eq!(app.send_as(&basic("admin", PASSWORD), request, "").await.status, 204, "removing is allowed");
    // 4. Claims may be at the provider's other address.
    issuer.set(|issuer| issuer.userinfo = Some(json!({"sub": "person-1", "groups": ["staff", "ml"]})));
    assert_eq!(sign_in(Value::Null).await, (303, Some(Value::Null), "ml".to_owned()));
    issuer.set(|issuer| issuer.userinfo = Some(json!({"sub": "person-2", "groups": ["staff", "ops"]})));
    assert_eq!(sign_in(Value::Null).await.0, 403, "what it says of another person");
}

#[tokio::test]
async fn a_newcomer_owns_nothing_that_exists() {
    let issuer = TestIssuer::start().await;
    let app = start(&issuer, json!({})).await;
    let admin = basic("admin", PASSWORD);
    app.push_as(&admin, "team/app").await;
    app.admin("POST", "/lode/v1/accounts", json!({"name": "robots+ci", "kind": "robot"})).await;
    app.show("public/*", "public").await;
    app.admin("POST", "/lode/v1/groups", json!({"name": "ml"})).await;
    app.user("gone").await;
    app.push_as(&basic("gone", PASSWORD), "gone/app").await;
    app.admin("DELETE", "/lode/v1/accounts/gone", json!(null)).await;
    for (name, status, may_push) in [
        ("team", 303, false),
        ("robots", 303, false),
        ("public", 303, false),
        ("gone", 303, false),
        ("tea", 303, true),
        ("ml", 409, false),
    ] {
        issuer.set(|issuer| issuer.claims = json!({"sub": name, "preferred_username": name}));
        let mut browser = Browser::new(&app, &issuer);
        let response = browser.sign_in().await;
        assert_eq!(response.status, status, "{name}: {}", response.text());
        if status != 303 {
            continue;
        }
        let created =
            browser.post("/-/account/tokens", "change=create-token&name=ci&access=full&days=30").await;
        let (_, rest) = created.text().split_once("class=\"secret\">").unwrap();
        let token = format!("Bearer {}", rest.split('<').next().unwrap());
        let pushed = app.push_as(&token, &format!("{name}/new")).await;
        assert_eq!(pushed.status == 201, may_push, "{name}: {}", pushed.text());
        if name != "public" && !may_push {
            assert_eq!(app.pull_as(&token, &format!("{name}/app")).await, 404, "{name}");
        }
    }
}

#[tokio::test]
async fn what_a_provider_has_given_ends_with_the_identity() {
    let issuer = TestIssuer::start().await;
    let app = start(&issuer, json!({"admin_group": "ops"})).await;
    app.admin("POST", "/lode/v1/groups", json!({"name": "ml", "provider": "corp"})).await;
    issuer.set(|issuer| issuer.claims = json!({"groups": ["ops", "ml"]}));
    let mut browser = Browser::new(&app, &issuer);
    browser.sign_in().await;
    app.admin("PATCH", "/lode/v1/accounts/alice", json!({"password": PASSWORD})).await;
    let mut browser = Browser::new(&app, &issuer);
    browser.sign_in().await;
    let alice = basic("alice", PASSWORD);
    assert_eq!(app.get_as(&alice, "/lode/v1/accounts").await.status, 200);
    let escaped: String = url::form_urlencoded::byte_serialize(issuer.url.as_bytes()).collect();
    let remove = format!("issuer={escaped}&subject=person-1");
    let asked = browser.post("/-/account/identities/remove", &remove).await;
    assert!(asked.status == 200 && asked.text().contains("Remove the sign-in at Corporate login?"));
    assert_eq!(app.get_as(&alice, "/lode/v1/accounts").await.status, 200);
    let remove = format!("{remove}&confirmed=yes");
    assert_eq!(browser.post("/-/account/identities/remove", &remove).await.status, 303);
    assert_eq!(app.get_as(&alice, "/lode/v1/accounts").await.status, 403);
    let groups = app.admin("GET", "/lode/v1/groups", json!(null)).await.json();
    assert_eq!(groups["groups"][0]["members"], json!([]));
}

#[tokio::test]
async fn signing_in_again_needs_a_new_sign_in_there() {
    let issuer = TestIssuer::start().await;
    let app = start(&issuer, json!({})).await;
    let mut browser = Browser::new(&app, &issuer);
    browser.sign_in().await;
    let page = browser.get("/login?again=1").await;
    assert!(
        page.text().contains("href=\"/login/corp?next=%2F%2D%2Faccount&#38;again=1\""),
        "{}",
        page.text()
    );
    let now = crate::time::now_ms() / 1000;
    for (auth_time, status) in [(json!(now - 7200), 403), (json!(now), 303), (Value::Null, 303)] {
        issuer.set(|issuer| issuer.claims = json!({"auth_time": auth_time}));
        let response = browser.get("/login/corp?again=1").await;
        assert!(
            response.header("location").ends_with("&max_age=0&prompt=login"),
            "{}",
            response.header("location")
        );
        let back = browser.agree(response.header("location"));
        assert_eq!(browser.get(&back).await.status, status, "{auth_time}");
    }
}

/// A browser that is still signed in at the provider gets a session without anyone at the keyboard.
#[tokio::test]
async fn a_silent_sign_in_changes_no_credentials() {
    let issuer = TestIssuer::start().await;
    let app = start(&issuer, json!({})).await;
    let now = crate::time::now_ms() / 1000;
    for (path, auth_time, status) in [
        ("/login/corp", json!(now), 200),
        ("/login/corp", json!(now - 7200), 403),
        ("/login/corp", Value::Null, 403),
        ("/login/corp?again=1", Value::Null, 200),
        ("/login/corp?again=1", json!(now), 200),
    ] {
        issuer.set(|issuer| issuer.claims = json!({"auth_time": auth_time}));
        let mut browser = Browser::new(&app, &issuer);
        let back = browser.authorize(path).await;
        assert_eq!(browser.get(&back).await.status, 303, "{path} {auth_time}");
        let created =
            browser.post("/-/account/tokens", "change=create-token&name=ci&access=write&days=30").await;
        assert_eq!(created.status, status, "{path} {auth_time}: {}", created.text());
        assert_eq!(created.text().contains("/login?again=1"), status == 403, "{path} {auth_time}");
    }
}

#[tokio::test]
async fn an_account_is_connected_by_its_owner_only() {
    let issuer = TestIssuer::start().await;
    let app = start(&issuer, json!({})).await;
    app.user("alice").await;
    let mut browser = Browser::new(&app, &issuer);
    // 1. Whoever has the name at the provider does not get the account.
    let refused = browser.sign_in().await;
    assert!(refused.status == 409 && refused.text().contains("account page"), "{}", refused.text());
    // 2. Its owner connects it.
    let form = format!("name=alice&password={}", PASSWORD.replace(' ', "+"));
    let login = Request::post("/login").header("host", HOST).header("sec-fetch-site", "same-origin");
    let response = app.send(login, form).await;
    browser.keep(&response);
    let page = browser.post("/-/account/identities", "provider=corp").await;
    let (_, rest) = page.text().split_once("href=\"http://127").unwrap();
    let link = format!("http://127{}", rest.split('"').next().unwrap()).replace("&#38;", "&");
    let back = browser.agree(&link);
    // Not in another browser, and not for another account.
    let mut thief = Browser::new(&app, &issuer);
    thief.cookies = browser.cookies.iter().filter(|(name, _)| name.contains("sign-in")).cloned().collect();
    assert_eq!(thief.get(&back).await.status, 400);
    assert_eq!(browser.get(&back).await.header("location"), "/-/account");
    assert!(browser.get("/-/account").await.text().contains("person-1"));
    let mut later = Browser::new(&app, &issuer);
    assert_eq!(later.sign_in().await.status, 303);
    assert_eq!(later.account().await.unwrap()["name"], "alice");
    // 3. It can be removed again, unless nothing else is left to sign in with.
    let escaped: String = url::form_urlencoded::byte_serialize(issuer.url.as_bytes()).collect();
    let remove = format!("issuer={escaped}&subject=person-1&confirmed=yes");
    assert_eq!(later.post("/-/account/identities/remove", &remove).await.status, 303);
    issuer.set(|issuer| issuer.claims = json!({"preferred_username": "bob"}));
    let mut bob = Browser::new(&app, &issuer);
    assert_eq!(bob.sign_in().await.status, 303, "the identity is free");
    let refused = bob.post("/-/account/identities/remove", &remove).await;
    assert!(refused.status == 400 && refused.text().contains("no password"), "{}", refused.text());
}

#[tokio::test]
async fn redirects_that_belong_to_no_sign_in_are_refused() {
    let issuer = TestIssuer::start().await;
    let app = start(&issuer, json!({})).await;
    let mut browser = Browser::new(&app, &issuer);
    let back = browser.authorize("/login/corp").await;
    let refused = async |browser: &mut Browser<'_>, path: &str, expected: &str| {
        let response = browser.get(path).await;
        assert!(response.status.is_client_error(), "{path}: {}", response.status);
        assert!(response.text().contains(expected), "{path}: {}", response.text());
        assert!(!browser.cookies.iter().any(|(name, _)| name == "lode"), "{path}: a session");
    };
    // 1. Another browser, another state, a forged or damaged cookie.
    refused(&mut Browser::new(&app, &issuer), &back, "start it again").await;
    let mut other = Browser::new(&app, &issuer);
    other.authorize("/login/corp").await;
    refused(&mut other, &back, "start it again").await;
    let cookie = browser.cookies[0].1.clone();
    for damaged in [format!("{cookie}A"), cookie.replace('.', ""), format!("A{cookie}"), String::new()] {
        let mut browser = Browser::new(&app, &issuer);
        browser.cookies = vec![("lode-sign-in".to_owned(), damaged)];
        refused(&mut browser, &back, "start it again").await;
    }
    refused(&mut browser, "/login/other/callback?code=good", "no sign-in provider").await;
    // 2. Another issuer, or none where the provider names itself.
    let plain = back.split("&iss=").next().unwrap().to_owned();
    refused(&mut browser, &format!("{plain}&iss=https://evil.example"), "another issuer").await;
    let again = browser.authorize("/login/corp").await;
    refused(&mut browser, again.split("&iss=").next().unwrap(), "another issuer").await;
    // 3. The provider's own refusals. Its text is no part of the page's markup.
    let again = browser.authorize("/login/corp").await;
    let denied = format!("{again}&error=access_denied&error_description=%3Cscript%3Eno");
    refused(&mut browser, &denied, "&#60;script&#62;no").await;
    let again = browser.authorize("/login/corp").await;
    refused(&mut browser, &again.replace("code=good", "code=bad"), "the code is wrong").await;
    // 4. Each redirect counts once.
    let again = browser.authorize("/login/corp").await;
    let kept = browser.cookies.clone();
    assert_eq!(browser.get(&again).await.status, 303);
    let mut repeated = Browser::new(&app, &issuer);
    repeated.cookies = kept;
    refused(&mut repeated, &again, "start it again").await;
}

#[tokio::test]
async fn forged_id_tokens_are_refused() {
    let issuer = TestIssuer::start().await;
    let app = start(&issuer, json!({})).await;
    let attempt = async |change: &dyn Fn(&mut Behaviour)| {
        issuer.set(|issuer| {
            (issuer.claims, issuer.id_token) = (json!({}), None);
        });
        let mut browser = Browser::new(&app, &issuer);
        let back = browser.authorize("/login/corp").await;
        issuer.set(change);
        let response = browser.get(&back).await;
        assert!(response.status == 303 || !browser.cookies.iter().any(|(name, _)| name == "lode"));
        (response.status.as_u16(), response.text().to_owned())
    };
    assert_eq!(attempt(&|_| {}).await.0, 303);
    // 1. Claims of somebody else's, of another time, or for another server.
    let now = crate::time::now_ms() / 1000;
    for (claims, expected) in [
        (json!({"aud": "other"}), "`aud`"),
        (json!({"aud": null}), "`aud`"),
        (json!({"aud": ["lode", "other"]}), "`azp`"),
        (json!({"azp": "other"}), "`azp`"),
        (json!({"iss": "https://evil.example"}), "`iss`"),
        (json!({"nonce": "another"}), "`nonce`"),
        (json!({"nonce": null}), "`nonce`"),
        (json!({"exp": now - 61}), "expired"),
        (json!({"exp": null}), "`exp`"),
        (json!({"iat": now + 3600}), "not valid yet"),
        (json!({"iat": null}), "`iat`"),
        (json!({"nbf": now + 3600}), "not valid yet"),
        (json!({"sub": null}), "`sub`"),
        (json!({"sub": ""}), "`sub`"),
        (json!({"sub": "x".repeat(300)}), "`sub`"),
        (json!({"sub": 7}), "`sub`"),
        (json!({"at_hash": "AAAA"}), "`at_hash`"),
        (json!({"preferred_username": null}), "preferred_username"),
    ] {
        let (status, text) = attempt(&|issuer| {
            issuer.claims = claims.clone();
            // Else the identity is known, and its name is not needed.
            if claims.get("preferred_username").is_some() {
                issuer.claims["sub"] = json!("person-2");
            }
        })
        .await;
        assert!(status == 403 && text.contains(expected), "{claims}: {status} {text}");
    }
    // 2. Signatures of others: no algorithm, the public key as a shared secret, a key of the same name.
    let base = |nonce: &str| json!({"aud": "lode", "sub": "person-1", "nonce": nonce, "preferred_username": "alice"});
    let with_token = async |sign: &dyn Fn(&Value) -> String| {
        attempt(&|behaviour| {
            let mut claims = json!({"iss": issuer.url, "iat": now, "exp": now + 300});
            super::issuer::merge(&mut claims, &base(&behaviour.nonce));
            behaviour.id_token = Some(sign(&claims));
        })
        .await
    };
    let key = issuer.key();
    let none = |claims: &Value| {
        use base64::Engine as _;
        let encode = |text: &str| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(text);
        format!("{}.{}.", encode(r#"{"alg":"none","typ":"JWT"}"#), encode(&claims.to_string()))
    };
    let shared = |claims: &Value| {
        let header = Header { kid: Some("first".to_owned()), ..Header::new(Algorithm::HS256) };
        encode(&header, claims, &EncodingKey::from_secret(key.public())).unwrap()
    };
    let impostor = TestKey::new("first");
    for (name, sign) in [
        ("none", &none as &dyn Fn(&Value) -> String),
        ("HS256", &shared),
        ("another key", &|claims| impostor.sign(claims)),
        ("truncated", &|claims| {
            let token = key.sign(claims);
            token[..token.len() - 4].to_owned()
        }),
        ("no signature", &|claims| format!("{}.", key.sign(claims).rsplit_once('.').unwrap().0)),
        ("not a token", &|_| "token".to_owned()),
        ("huge", &|claims| key.sign(&json!({"claims": claims, "x": "x".repeat(20_000)}))),
    ] {
        let (status, text) = with_token(sign).await;
        assert!(status == 403 && text.contains("invalid identity"), "{name}: {status} {text}");
    }
    assert_eq!(with_token(&|claims| key.sign(claims)).await.0, 303);
}

#[tokio::test]
async fn keys_change_and_providers_fail() {
    let issuer = TestIssuer::start().await;
    let app = start(&issuer, json!({})).await;
    let sign_in = async || Browser::new(&app, &issuer).sign_in().await.status.as_u16();
    assert_eq!(sign_in().await, 303);
    assert_eq!(issuer.count("/keys"), 1, "keys are remembered");
    assert_eq!(sign_in().await, 303);
    assert_eq!(issuer.count("/keys"), 1);
    // 1. A new key is fetched once; the old one is no longer accepted.
    let old = issuer.key();
    issuer.set(|issuer| issuer.keys = vec![TestKey::new("second")]);
    tokio::time::sleep(super::issuer::COOLDOWN).await;
    assert_eq!((sign_in().await, issuer.count("/keys")), (303, 2));
    // 2. Tokens with unknown keys do not make this server ask again and again.
    for _ in 0..20 {
        let mut browser = Browser::new(&app, &issuer);
        let back = browser.authorize("/login/corp").await;
        issuer.set(|issuer| {
            let claims = json!({"iss": "x", "nonce": issuer.nonce});
            issuer.id_token = Some(old.sign(&claims));
        });
        assert_eq!(browser.get(&back).await.status, 403);
    }
    assert!(issuer.count("/keys") < 10, "{}", issuer.count("/keys"));
    issuer.set(|issuer| issuer.id_token = None);
    // 3. A provider that fails: people can still sign in with a password.
    issuer.set(|issuer| issuer.is_down = true);
    let mut browser = Browser::new(&app, &issuer);
    let back = browser.authorize("/login/corp").await;
    let response = browser.get(&back).await;
    assert!(response.status == 503 && response.text().contains("password"), "{}", response.text());
    let fresh = start(&issuer, json!({})).await;
    let response = Browser::new(&fresh, &issuer).get("/login/corp").await;
    assert!(response.status == 503 && response.text().contains("password"), "{}", response.text());
    assert_eq!(fresh.send_as(&basic("admin", PASSWORD), Request::get("/v2/"), "").await.status, 200);
    issuer.set(|issuer| issuer.is_down = false);
    tokio::time::sleep(super::issuer::COOLDOWN).await;
    assert_eq!(Browser::new(&fresh, &issuer).sign_in().await.status, 303);
    // 4. An issuer that names itself differently is another one.
    let other = start(&issuer, json!({"issuer": format!("{}/", issuer.url)})).await;
    let response = Browser::new(&other, &issuer).get("/login/corp").await;
    assert_eq!(response.status, 503, "{}", response.text());
}

#[tokio::test]
async fn a_server_without_accounts_has_no_single_sign_on() {
    let issuer = TestIssuer::start().await;
    let app = start(&issuer, json!({"create_accounts": false})).await;
    let refused = Browser::new(&app, &issuer).sign_in().await;
    assert!(refused.status == 403 && refused.text().contains("administrator"), "{}", refused.text());
    let provider: OidcProvider =
        serde_json::from_value(json!({"name": "corp", "issuer": issuer.url, "client_id": "lode"})).unwrap();
    let open = App::with(Config { oidc: vec![provider], ..Config::default() }).await;
    assert_eq!(Browser::new(&open, &issuer).get("/login/corp").await.status, 409);
    assert_eq!(open.get("/lode/v1/accounts").await.json()["accounts"], json!([]));
}

/// Each provider signs in its own people, and what one of them has sent does not count at the other.
#[tokio::test]
async fn providers_are_kept_apart() {
    let (one, two) = (TestIssuer::start().await, TestIssuer::start().await);
    let provider = |name: &str, issuer: &TestIssuer| -> OidcProvider {
        let settings = json!({
            "name": name, "title": format!("Login {name}"), "issuer": issuer.url, "client_id": "lode",
            "groups_claim": "groups",
        });
        serde_json::from_value(settings).unwrap()
    };
    let app = App::with(Config {
        admin_password: Some(Secret::new(PASSWORD)),
        oidc: vec![provider("corp", &one), provider("other", &two)],
        ..Config::default()
    })
    .await;
    app.admin("POST", "/lode/v1/groups", json!({"name": "ml", "provider": "corp"})).await;
    two.set(|issuer| issuer.claims = json!({"preferred_username": "bob", "groups": ["ml"]}));
    one.set(|issuer| issuer.claims = json!({"preferred_username": "alice", "groups": ["ml"]}));
    let page = app.get_as("", "/login").await;
    assert!(page.text().contains("Login corp") && page.text().contains("Login other"), "{}", page.text());
    // 1. The same subject at both is two people, and each provider decides about its own groups only.
    let mut browser = Browser::new(&app, &one);
    assert_eq!(browser.sign_in().await.status, 303);
    assert_eq!(browser.account().await.unwrap()["name"], "alice");
    let at_other = |back: &str| back.replace("/login/corp/", "/login/other/");
    let mut second = Browser::new(&app, &two);
    let begun = second.get("/login/other").await;
    let location = begun.header("location").replace("other%2Fcallback", "corp%2Fcallback");
    let back = at_other(&second.agree(&location));
    assert_eq!(second.get(&back).await.status, 303);
    assert_eq!(second.account().await.unwrap()["name"], "bob");
    let groups = app.admin("GET", "/lode/v1/groups", json!(null)).await.json();
    assert_eq!(groups["groups"][0]["members"], json!(["alice"]));
    // 2. A sign-in that began at one does not finish at the other.
    let mut mixed = Browser::new(&app, &one);
    let back = mixed.authorize("/login/corp").await;
    let refused = mixed.get(&at_other(&back)).await;
    assert_eq!(refused.status, 400, "{}", refused.text());
    assert!(mixed.account().await.is_none());
    // 3. While one is down, the other signs in.
    one.set(|issuer| issuer.is_down = true);
    let mut browser = Browser::new(&app, &two);
    let begun = browser.get("/login/other").await;
    let location = begun.header("location").replace("other%2Fcallback", "corp%2Fcallback");
    let back = at_other(&browser.agree(&location));
    assert_eq!(browser.get(&back).await.status, 303);
}

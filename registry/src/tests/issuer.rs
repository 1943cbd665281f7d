//! An issuer of tokens on its own port: its metadata, its keys, and the requests of a sign-in. The tests here
//! are of a server's client for it.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use axum::Router;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::StatusCode;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use lode_client::Egress;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;

use crate::http::Json;
pub(super) use crate::issuer::COOLDOWN;
use crate::issuer::{Issuer, IssuerError, Issuers, TIMEOUT};
use crate::time::now_ms;

const METADATA: &str = "/.well-known/openid-configuration";

/// A key pair, and its public half as a JSON Web Key.
#[derive(Clone)]
pub(super) struct TestKey {
    id: String,
    private: Vec<u8>,
    public: Vec<u8>,
}

impl TestKey {
    pub(super) fn new(id: &str) -> TestKey {
        let random = SystemRandom::new();
        let private = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, private.as_ref()).unwrap();
        TestKey {
            id: id.to_owned(),
            private: private.as_ref().to_vec(),
            public: pair.public_key().as_ref().to_vec(),
        }
    }

    fn jwk(&self) -> Value {
        let (x, y) = self.public[1..].split_at(32);
        let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        json!({"kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "kid": self.id, "x": encode(x), "y": encode(y)})
    }

    /// The public key, which a forger knows.
    pub(super) fn public(&self) -> &[u8] {
        &self.public
    }

    pub(super) fn sign(&self, claims: &Value) -> String {
        self.sign_with(Some(self.id.clone()), claims)
    }

    /// A token that does not say which key has signed it.
    fn sign_without_id(&self, claims: &Value) -> String {
        self.sign_with(None, claims)
    }

    fn sign_with(&self, kid: Option<String>, claims: &Value) -> String {
        let header = Header { kid, ..Header::new(Algorithm::ES256) };
        encode(&header, claims, &EncodingKey::from_ec_der(&self.private)).unwrap()
    }
}

/// What the issuer does; tests change it.
pub(super) struct Behaviour {
    pub(super) keys: Vec<TestKey>,
    /// Every request fails.
    pub(super) is_down: bool,
    /// Replaces claims of ID tokens; null removes one.
    pub(super) claims: Value,
    /// Replaces the whole ID token.
    pub(super) id_token: Option<String>,
    /// By default only the subject.
    pub(super) userinfo: Option<Value>,
    /// What the last authorization request had: the code challenge and the nonce.
    pub(super) challenge: String,
    pub(super) nonce: String,
    /// Paths of requests.
    pub(super) heard: Vec<String>,
}

#[derive(Clone)]
pub(super) struct TestIssuer {
    pub(super) url: String,
    pub(super) behaviour: Arc<Mutex<Behaviour>>,
    /// While it is true, requests get no response.
    is_hanging: Arc<watch::Sender<bool>>,
}

impl TestIssuer {
    pub(super) async fn start() -> TestIssuer {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let behaviour = Behaviour {
            keys: vec![TestKey::new("first")],
            is_down: false,
            claims: json!({}),
            id_token: None,
            userinfo: None,
            challenge: String::new(),
            nonce: String::new(),
            heard: Vec::new(),
        };
        let url = format!("http://{}", listener.local_addr().unwrap());
        let issuer = TestIssuer {
            url,
            behaviour: Arc::new(Mutex::new(behaviour)),
            is_hanging: Arc::new(watch::Sender::new(false)),
        };
        let routes = Router::new()
            .route(METADATA, get(metadata))
            .route("/keys", get(keys))
            .route("/token", post(token))
            .route("/userinfo", get(userinfo))
            .fallback(any(|| async { StatusCode::NOT_FOUND }))
            .layer(axum::middleware::from_fn_with_state(issuer.clone(), note))
            .with_state(issuer.clone());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        issuer
    }

    pub(super) fn set(&self, change: impl FnOnce(&mut Behaviour)) {
        change(&mut self.behaviour.lock().unwrap());
    }

    pub(super) fn key(&self) -> TestKey {
        self.behaviour.lock().unwrap().keys[0].clone()
    }

    /// How often a path was requested.
    pub(super) fn count(&self, path: &str) -> usize {
        self.behaviour.lock().unwrap().heard.iter().filter(|heard| *heard == path).count()
    }

    /// Waits until a path was requested so often.
    async fn wait_for_requests(&self, path: &str, count: usize) {
        while self.count(path) < count {
            tokio::task::yield_now().await;
        }
    }

    /// A token with the usual times and these claims; null removes one.
    pub(super) fn claims(&self, changes: &Value) -> Value {
        let now = now_ms() / 1000;
        let mut claims = json!({"iss": self.url, "iat": now, "nbf": now, "exp": now + 300});
        merge(&mut claims, changes);
        claims
    }
}

/// Replaces fields of an object; null removes one.
pub(super) fn merge(object: &mut Value, changes: &Value) {
    let object = object.as_object_mut().unwrap();
    for (name, value) in changes.as_object().unwrap() {
        match value {
            Value::Null => object.remove(name),
            value => object.insert(name.clone(), value.clone()),
        };
    }
}

async fn note(State(issuer): State<TestIssuer>, request: Request, next: axum::middleware::Next) -> Response {
    issuer.set(|issuer| issuer.heard.push(request.uri().path().to_owned()));
    issuer.is_hanging.subscribe().wait_for(|is_hanging| !is_hanging).await.unwrap();
    let is_down = issuer.behaviour.lock().unwrap().is_down;
    match is_down {
        true => StatusCode::BAD_GATEWAY.into_response(),
        false => next.run(request).await,
    }
}

async fn metadata(State(issuer): State<TestIssuer>) -> Json<Value> {
    let url = &issuer.url;
    Json(json!({
        "issuer": url,
        "jwks_uri": format!("{url}/keys"),
        "authorization_endpoint": format!("{url}/authorize?tenant=1"),
        "token_endpoint": format!("{url}/token"),
        "userinfo_endpoint": format!("{url}/userinfo"),
        "end_session_endpoint": format!("{url}/sign-out"),
        "authorization_response_iss_parameter_supported": true,
    }))
}

async fn keys(State(issuer): State<TestIssuer>) -> Json<Value> {
    let behaviour = issuer.behaviour.lock().unwrap();
    let keys: Vec<Value> = behaviour.keys.iter().map(TestKey::jwk).collect();
    Json(json!({ "keys": keys }))
}

async fn token(State(issuer): State<TestIssuer>, body: String) -> Response {
    let form: Vec<(String, String)> = url::form_urlencoded::parse(body.as_bytes()).into_owned().collect();
    let field = |name: &str| form.iter().find(|(key, _)| key == name).map(|(_, value)| &value[..]);
    let behaviour = issuer.behaviour.lock().unwrap();
    let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(field("code_verifier").unwrap_or_default()));
    if field("code") != Some("good") || challenge != behaviour.challenge {
        let error = json!({"error": "invalid_grant", "error_description": "the code is wrong"});
        return (StatusCode::BAD_REQUEST, Json(error)).into_response();
    }
    let mut claims = issuer.claims(&json!({
        "aud": "lode", "sub": "person-1", "nonce": behaviour.nonce, "preferred_username": "Alice",
        "auth_time": now_ms() / 1000,
    }));
    merge(&mut claims, &behaviour.claims);
    let id_token = behaviour.id_token.clone().unwrap_or_else(|| behaviour.keys[0].sign(&claims));
    Json(json!({"access_token": "access", "token_type": "Bearer", "id_token": id_token})).into_response()
}

async fn userinfo(State(issuer): State<TestIssuer>, request: Request) -> Response {
    let shown = request.headers().get("authorization").map(|value| value.to_str().unwrap().to_owned());
    assert_eq!(shown.as_deref(), Some("Bearer access"));
    let behaviour = issuer.behaviour.lock().unwrap();
    let subject = behaviour.claims.get("sub").cloned().unwrap_or(json!("person-1"));
    Json(behaviour.userinfo.clone().unwrap_or(json!({ "sub": subject }))).into_response()
}

/// An issuer, and a server's client for it.
async fn start() -> (TestIssuer, Arc<Issuer>) {
    let issuer = TestIssuer::start().await;
    let egress = Egress::new(vec!["127.0.0.0/8".parse().unwrap()]).unwrap();
    let client = Issuers::new(&egress, &[]).get(&issuer.url);
    (issuer, client)
}

#[tokio::test]
async fn known_keys_are_used_at_once() {
    let (issuer, client) = start().await;
    let audiences = ["here".to_owned()];
    let token = || issuer.key().sign(&issuer.claims(&json!({"aud": "here"})));
    client.verify(&token(), &audiences).await.unwrap();
    // 1. Old keys are in use while the issuer hangs.
    client.age();
    tokio::time::sleep(COOLDOWN).await;
    issuer.is_hanging.send_replace(true);
    for _ in 0..3 {
        let token = token();
        let verified = client.verify(&token, &audiences);
        tokio::time::timeout(Duration::from_secs(5), verified).await.expect("no wait").unwrap();
    }
    // 2. They are updated in the background, once.
    issuer.wait_for_requests(METADATA, 2).await;
    issuer.set(|issuer| issuer.keys = vec![TestKey::new("second")]);
    issuer.is_hanging.send_replace(false);
    client.verify(&token(), &audiences).await.unwrap();
    assert_eq!((issuer.count(METADATA), issuer.count("/keys")), (2, 2));
}

#[tokio::test]
async fn a_client_that_disconnects_does_not_stop_a_fetch() {
    let (issuer, client) = start().await;
    issuer.is_hanging.send_replace(true);
    let request = tokio::spawn({
        let client = client.clone();
        async move { client.metadata().await.map(drop) }
    });
    issuer.wait_for_requests(METADATA, 1).await;
    request.abort();
    assert!(request.await.unwrap_err().is_cancelled());
    issuer.is_hanging.send_replace(false);
    client.metadata().await.unwrap();
    assert_eq!(issuer.count(METADATA), 1);
}

#[tokio::test]
async fn those_that_wait_for_a_failed_fetch_do_not_repeat_it() {
    let (issuer, client) = start().await;
    issuer.is_hanging.send_replace(true);
    let requests = futures::future::join_all((0..4).map(|_| client.metadata()));
    let fail_late = async {
        issuer.wait_for_requests(METADATA, 1).await;
        tokio::time::sleep(COOLDOWN).await;
        issuer.set(|issuer| issuer.is_down = true);
        issuer.is_hanging.send_replace(false);
    };
    let (results, ()) = tokio::join!(requests, fail_late);
    assert!(results.iter().all(Result::is_err));
    assert_eq!(issuer.count(METADATA), 1);
}

#[tokio::test]
async fn tokens_without_a_key_id_find_a_new_key() {
    let (issuer, client) = start().await;
    let audiences = ["here".to_owned()];
    let token = || issuer.key().sign_without_id(&issuer.claims(&json!({"aud": "here"})));
    client.verify(&token(), &audiences).await.unwrap();
    issuer.set(|issuer| issuer.keys = vec![TestKey::new("second")]);
    tokio::time::sleep(COOLDOWN).await;
    client.verify(&token(), &audiences).await.unwrap();
    assert_eq!(issuer.count("/keys"), 2);
}

#[tokio::test]
async fn an_issuer_that_hangs_is_abandoned() {
    let (issuer, client) = start().await;
    issuer.is_hanging.send_replace(true);
    let begun = Instant::now();
    // All that wait share one fetch, and its timeout.
    let token = issuer.key().sign(&issuer.claims(&json!({"aud": "here"})));
    let audiences = ["here".to_owned()];
    let results = futures::future::join_all((0..4).map(|_| client.verify(&token, &audiences))).await;
    for result in results {
        assert!(matches!(result, Err(IssuerError::Unavailable { .. })));
    }
    let waited = begun.elapsed();
    assert!(waited >= TIMEOUT && waited < 3 * TIMEOUT, "{waited:?}");
    assert_eq!(issuer.count(METADATA), 1);
    // Right afterwards it is not asked again, and nothing waits.
    let begun = Instant::now();
    assert!(client.verify(&token, &audiences).await.is_err());
    assert!(begun.elapsed() < TIMEOUT, "{:?}", begun.elapsed());
    // It is used as soon as it responds again.
    issuer.is_hanging.send_replace(false);
    while client.verify(&token, &audiences).await.is_err() {
        tokio::task::yield_now().await;
    }
}

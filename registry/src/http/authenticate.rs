//! Authentication: the caller of a request, from its `Authorization` or `x-api-key` header, or its session cookie. A server
//! without accounts ignores both.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::ConnectInfo;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::request::Parts;
use http::{HeaderMap, Method, header};
use lode_client::Secret;
use uuid::Uuid;

use super::Failure;
use super::forwarded::forwarded_info;
use super::host::is_loopback;
use super::links::own_base_url;
use super::observe::RequestId;
use super::session_cookie::session_cookie;
use crate::app::WORKER_CREDENTIAL_PREFIX;
use crate::auth::{Access, Account, Caller, Identity, OllamaKey, Origin, Scope};
use crate::time::now_ms;
use crate::{Error, Registry};

/// Maximum length of the nonce of a signature.
const MAX_NONCE_LEN: usize = 128;
/// Maximum difference between the clocks of this server and of a client that signs requests.
const MAX_SKEW_SECONDS: i64 = 300;
/// base64(hex(sha256(""))), which ollama signs instead of the body.
const EMPTY_BODY: &str =
    "ZTNiMGM0NDI5OGZjMWMxNDlhZmJmNGM4OTk2ZmI5MjQyN2FlNDFlNDY0OWI5MzRjYTQ5NTk5MWI3ODUyYjg1NQ==";
/// The routes of ollama's API that accept a signature. It covers neither the body nor the server's name, so
/// that another server could send it here: these routes change nothing but the key's own enrolment, and send
/// nothing elsewhere.
const SIGNED_ROUTES: [&str; 9] = [
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
/// The route that exchanges credentials for an access token.
const TOKEN_ROUTE: &str = "/token";
/// The header in which scripts of this server's pages send the form token of their session.
const CSRF_HEADER: &str = "x-csrf-token";

/// The header of Anthropic's clients.
const API_KEY_HEADER: &str = "x-api-key";

/// Credentials of an `Authorization` header.
enum Shown {
    Basic {
        name: String,
        password: Secret,
    },
    Bearer(Secret),
    /// A signature of ollama.
    Signature {
        key: OllamaKey,
        signature: Vec<u8>,
    },
}

/// A key that has signed the request and belongs to no account.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnknownKey(pub(crate) OllamaKey);

/// The caller of a request. Stores an [`UnknownKey`] in the request's extensions.
pub(crate) async fn authenticate(registry: &Registry, parts: &mut Parts) -> Result<Caller, Failure> {
    let origin = origin_of(registry, parts);
    let client = Caller { identity: Identity::Anonymous, origin: Some(Arc::new(origin)) };
    if has_own_proof(parts) || is_public_metrics(registry, parts) || registry.is_open().await? {
        return Ok(client);
    }
    match identity_of(registry, parts, &client).await {
        Ok(identity) => Ok(client.with_identity(identity)),
        // It counts like a request without credentials.
        Err(failure) => {
            registry.rate_limits().check(&client)?;
            Err(failure)
        }
    }
}

/// The identity of a request's credentials.
async fn identity_of(registry: &Registry, parts: &mut Parts, client: &Caller) -> Result<Identity, Failure> {
    match shown(&parts.headers).or_else(|| api_key(parts)) {
        Some(shown) => identify(registry, parts, client, shown).await,
        None => match session_cookie(registry, parts) {
            Some(cookie) => sign_in_session(registry, parts, &cookie).await,
            None => Ok(Identity::Anonymous),
        },
    }
}

async fn identify(
    registry: &Registry,
    parts: &mut Parts,
    client: &Caller,
    shown: Shown,
) -> Result<Identity, Failure> {
    let upload = upload_of(parts.uri.path());
    match shown {
        Shown::Bearer(token) => match registry.sign_in_token(token.expose(), upload).await? {
            Some(identity) => Ok(identity),
            None => Err(invalid_token(registry, client)),
        },
        Shown::Basic { name, password } => {
            // A browser that remembers a password sends it with requests of other sites' pages, too.
            refuse_other_sites(registry, parts)?;
            Ok(registry.sign_in_basic(client, &name, &password, upload).await?)
        }
        // On routes that accept no signature, the client counts as one without credentials.
        Shown::Signature { .. } if !accepts_signatures(parts.uri.path()) => Ok(Identity::Anonymous),
        Shown::Signature { key, signature } => {
            let Some(signed) = signed(registry, parts, key, &signature)? else {
                return Err(invalid_token(registry, client));
            };
            let Some(identity) = registry.sign_in_key(key).await? else {
                parts.extensions.insert(UnknownKey(key));
                return Ok(Identity::Anonymous);
            };
            if let Some(nonce) = signed.nonce {
                let value = format!("ollama {} {nonce}", key.fingerprint());
                if !registry.value_use(&value, (signed.at + 2 * MAX_SKEW_SECONDS) * 1000).await? {
                    return Err(invalid_token(registry, client));
                }
            }
            Ok(match identity {
                Identity::Account(account) if parts.uri.path().starts_with("/api/") => {
                    let scope = Scope { access: Access::Read, ..Scope::default() };
                    Identity::Account(Arc::new(Account { scope, ..Account::clone(&account) }))
                }
                identity => identity,
            })
        }
    }
}

fn invalid_token(registry: &Registry, client: &Caller) -> Failure {
    registry.audit_invalid_token(client);
    if let Err(error) = registry.rate_limits().check_wrong_tokens(client) {
        return error.into();
    }
    Error::CredentialsInvalid { is_token: true }.into()
}

fn accepts_signatures(path: &str) -> bool {
    path == TOKEN_ROUTE || SIGNED_ROUTES.contains(&path)
}

/// What a valid signature of ollama contains.
struct Signed {
    /// The time of the signature, in seconds since 1970.
    at: i64,
    /// At the token endpoint: the nonce, which is accepted once.
    nonce: Option<String>,
}

/// `None` unless the key has signed this request recently.
fn signed(
    registry: &Registry,
    parts: &Parts,
    key: OllamaKey,
    signature: &[u8],
) -> Result<Option<Signed>, Failure> {
    let query = parts.uri.query().unwrap_or_default();
    let value = |name: &str| {
        url::form_urlencoded::parse(query.as_bytes())
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.into_owned())
    };
    let Some(at) = value("ts").and_then(|text| text.parse::<i64>().ok()) else { return Ok(None) };
    if (now_ms() / 1000).saturating_sub(at).saturating_abs() > MAX_SKEW_SECONDS {
        return Ok(None);
    }
    let (method, path) = (&parts.method, parts.uri.path());
    if path != TOKEN_ROUTE {
        let message = format!("{method},{path}?ts={at}");
        return Ok(key.verifies(message.as_bytes(), signature).then_some(Signed { at, nonce: None }));
    }
    let base = signed_base(registry, parts)?;
    let nonce = value("nonce").filter(|nonce| (1..=MAX_NONCE_LEN).contains(&nonce.len()));
    let message = format!("{method},{base}{path}?{query},{EMPTY_BODY}");
    let is_valid = nonce.is_some() && key.verifies(message.as_bytes(), signature);
    Ok(is_valid.then_some(Signed { at, nonce }))
}

/// The address of this server that a signature has to cover. A request can name any host: without a public URL,
/// another server could pass on here what was signed for it, so that only loopback names count. The host is checked
/// in the address itself: `Host` and `X-Forwarded-Host` may differ.
fn signed_base(registry: &Registry, parts: &Parts) -> Result<String, Failure> {
    let has_public_url = registry.config().public_url.is_some();
    let is_known =
        |base: &String| has_public_url || base.split_once("://").is_some_and(|(_, host)| is_loopback(host));
    own_base_url(parts, registry.config()).filter(is_known).ok_or(Failure::PublicUrlMissing)
}

/// The identity of a session. A request that changes something must come from a page of this server.
async fn sign_in_session(registry: &Registry, parts: &Parts, cookie: &str) -> Result<Identity, Failure> {
    // A cookie that is no longer valid is none: the page asks for a sign-in.
    let Some(identity) = registry.sign_in_session(cookie).await? else { return Ok(Identity::Anonymous) };
    if parts.method.is_safe() {
        return Ok(identity);
    }
    check_same_origin(registry, parts)?;
    if parts.uri.path().starts_with("/lode/v1") {
        let expected = registry.csrf_token(&Caller::from(identity.clone())).await?;
        let shown = parts.headers.get(CSRF_HEADER).and_then(|value| value.to_str().ok());
        if !expected.zip(shown).is_some_and(|(expected, shown)| expected.matches(shown)) {
            return Err(Failure::Csrf);
        }
    }
    Ok(identity)
}

/// Returns an error for a request that changes something, if a browser says that another site's page has sent
/// it. Programs do not send these headers.
pub(crate) fn refuse_other_sites(registry: &Registry, parts: &Parts) -> Result<(), Failure> {
    let from_browser = ["sec-fetch-site", "origin"].iter().any(|name| parts.headers.contains_key(*name));
    if parts.method.is_safe() || !from_browser {
        return Ok(());
    }
    check_same_origin(registry, parts)
}

/// Returns an error unless the browser says that a page of this server has sent the request.
pub(crate) fn check_same_origin(registry: &Registry, parts: &Parts) -> Result<(), Failure> {
    let text = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
    let origin = text("origin");
    let is_ours = match text("sec-fetch-site") {
        Some(site) => site == "same-origin" || site == "none",
        None => origin.is_some() && origin == own_base_url(parts, registry.config()).as_deref(),
    };
    match is_ours {
        true => Ok(()),
        false => Err(Failure::Origin { origin: origin.unwrap_or("another site").to_owned() }),
    }
}

/// Where a request came from.
fn origin_of(registry: &Registry, parts: &Parts) -> Origin {
    let peer = parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|peer| peer.0.ip());
    let agent = parts.headers.get(header::USER_AGENT).and_then(|agent| agent.to_str().ok());
    let request = parts.extensions.get::<RequestId>().and_then(|id| id.0.to_str().ok());
    Origin {
        address: forwarded_info(&parts.headers, &registry.config().trusted_proxies, peer).client,
        agent: agent.map(str::to_owned),
        request: request.unwrap_or_default().to_owned(),
    }
}

/// Metrics without a login. They check no credentials, so they work without the database and can report its failure.
fn is_public_metrics(registry: &Registry, parts: &Parts) -> bool {
    parts.uri.path() == "/metrics"
        && !registry.config().private_metrics
        && !parts.headers.contains_key(header::AUTHORIZATION)
}

/// Probes, and workers, whose credentials belong to no account. An administrator may remove a worker.
fn has_own_proof(parts: &Parts) -> bool {
    let path = parts.uri.path();
    if ["/healthz", "/readyz"].contains(&path) {
        return true;
    }
    let is_worker = || match shown(&parts.headers) {
        Some(Shown::Bearer(token)) => token.expose().starts_with(WORKER_CREDENTIAL_PREFIX),
        _ => false,
    };
    // Registrations, and reports of one worker. Deeper paths are for administrators.
    let is_of_workers = match path.strip_prefix("/lode/v1/workers") {
        Some(rest) => !rest.trim_start_matches('/').contains('/'),
        None => false,
    };
    is_of_workers
        && match parts.method {
            Method::GET => false,
            Method::DELETE => is_worker(),
            _ => true,
        }
}

/// The upload that a request continues.
fn upload_of(path: &str) -> Option<Uuid> {
    let (rest, id) = path.strip_prefix("/v2/")?.rsplit_once('/')?;
    if rest.ends_with("/blobs/uploads") { id.parse().ok() } else { None }
}

/// The credentials of the header. Other schemes are none.
fn shown(headers: &HeaderMap) -> Option<Shown> {
    let text = headers.get(header::AUTHORIZATION)?.to_str().ok()?.trim();
    let Some((scheme, value)) = text.split_once(' ') else { return shown_signature(text) };
    let value = value.trim();
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(Shown::Bearer(Secret::new(value)));
    }
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = STANDARD.decode(value).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    // A value that cannot be decoded is a wrong password, not a missing one.
    let (name, password) = decoded.as_deref().and_then(|text| text.split_once(':')).unwrap_or_default();
    Some(Shown::Basic { name: name.to_owned(), password: Secret::new(password) })
}

/// The header in which Anthropic's clients send a token, under `/v1`.
fn api_key(parts: &Parts) -> Option<Shown> {
    let key = parts.headers.get(API_KEY_HEADER).filter(|_| parts.uri.path().starts_with("/v1/"))?;
    let key = key.to_str().ok().map(str::trim).filter(|key| !key.is_empty())?;
    Some(Shown::Bearer(Secret::new(key)))
}

/// The key of a signature of ollama, valid or not.
pub(crate) fn shown_key(headers: &HeaderMap) -> Option<OllamaKey> {
    match shown(headers) {
        Some(Shown::Signature { key, .. }) => Some(key),
        _ => None,
    }
}

/// `KEY:SIGNATURE`, without a scheme, as ollama sends it.
fn shown_signature(text: &str) -> Option<Shown> {
    let (key, signature) = text.split_once(':')?;
    let (key, signature) = (OllamaKey::parse(key).ok()?, STANDARD.decode(signature).ok()?);
    Some(Shown::Signature { key, signature })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_parsed() {
        let read = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, text.parse().unwrap());
            shown(&headers).map(|shown| match shown {
                Shown::Basic { name, password } => format!("{name}|{}", password.expose()),
                Shown::Bearer(token) => token.expose().to_owned(),
                Shown::Signature { key, signature } => format!("{key:?} {}", signature.len()),
            })
        };
        let basic = |text: &str| format!("Basic {}", STANDARD.encode(text));
        assert_eq!(read("Bearer abc").as_deref(), Some("abc"));
        assert_eq!(read("bearer  abc ").as_deref(), Some("abc"));
        assert_eq!(read(&basic("alice:secret")).as_deref(), Some("alice|secret"));
        assert_eq!(read(&basic("alice:a:b")).as_deref(), Some("alice|a:b"));
        assert_eq!(read(&basic(":")).as_deref(), Some("|"));
        for wrong in ["Basic %%%", "basic QUJD", "Basic //8="] {
            assert_eq!(read(wrong).as_deref(), Some("|"), "{wrong}");
        }
        for none in ["", "Bearer", "Negotiate abc", "ssh-ed25519AAAA:sig", "Digest a b", "a:b", ":"] {
            assert_eq!(read(none), None, "{none}");
        }
        let key = OllamaKey::parse_line(
            "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAID+J+sdSDaSdFp8SzO/s//NDYG1US57bEJgqMS0SLHRO",
        );
        let line = key.unwrap().0.line();
        let signed = format!("{}:{}", line.split(' ').nth(1).unwrap(), STANDARD.encode([1; 64]));
        assert!(read(&signed).is_some_and(|text| text.starts_with("SHA256:") && text.ends_with(" 64")));
    }

    #[test]
    fn uploads_are_recognised() {
        let id = "0190a4c4-2f3e-7abc-8def-0123456789ab";
        assert_eq!(upload_of(&format!("/v2/team/app/blobs/uploads/{id}")), id.parse().ok());
        for path in ["/v2/team/app/blobs/uploads/", "/v2/blobs/uploads/x", "/lode/v1/blobs/uploads/1", "/"] {
            assert_eq!(upload_of(path), None, "{path}");
        }
    }
}

//! Authentication: parses the challenges of a 401 (RFC 9110) and implements Docker's token protocol. Only
//! [`fetch_token`] does I/O; the transport calls it.

use std::time::{Duration, Instant};

use base64::{Engine, prelude::BASE64_STANDARD};
use http::{HeaderMap, HeaderValue, header};
use lode_model::reference::Repository;
use serde::Deserialize;
use url::Url;

use crate::{
    Error, Login, error,
    response::{read_limited, transport_error},
};

/// The scopes that a request needs, in the syntax of the token protocol. Requests of the same scope share a token.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Scope {
    scopes: Vec<String>,
    /// For a mount from any repository, for which a server may ask for more than for a push.
    is_mount: bool,
}

impl Scope {
    /// No scope: for `/v2/` and for APIs that are not about one repository.
    pub(crate) fn none() -> Self {
        Scope::default()
    }

    pub(crate) fn pull(repository: &Repository) -> Self {
        Scope::of(format!("repository:{repository}:pull"))
    }

    pub(crate) fn push(repository: &Repository) -> Self {
        Scope::of(format!("repository:{repository}:pull,push"))
    }

    /// For a mount into `repository`. Without `from`, the server names the scope for all other repositories, if it has one.
    pub(crate) fn mount(repository: &Repository, from: Option<&Repository>) -> Self {
        let mut scope = Scope::push(repository);
        match from {
            Some(from) => {
                scope.scopes.push(format!("repository:{from}:pull"));
                scope
            }
            None => scope.for_mount(),
        }
    }

    /// The same scopes, for a mount from any repository.
    pub(crate) fn for_mount(self) -> Self {
        Scope { is_mount: true, ..self }
    }

    pub(crate) fn delete(repository: &Repository) -> Self {
        Scope::of(format!("repository:{repository}:pull,push,delete"))
    }

    fn of(scope: String) -> Self {
        Scope { scopes: vec![scope], is_mount: false }
    }
}

/// A supported challenge of a `WWW-Authenticate` header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Challenge {
    Basic,
    Bearer(BearerChallenge),
}

/// Where to get a token, and for what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BearerChallenge {
    pub(crate) realm: String,
    pub(crate) service: Option<String>,
    pub(crate) scope: Option<String>,
}

/// Selects the best challenge: Bearer before Basic, as Docker does.
pub(crate) fn challenge(headers: &HeaderMap) -> Option<Challenge> {
    let mut basic = false;
    for value in headers.get_all(header::WWW_AUTHENTICATE) {
        for (scheme, parameters) in parse_challenges(value.to_str().unwrap_or_default()) {
            if scheme.eq_ignore_ascii_case("basic") {
                basic = true;
            } else if scheme.eq_ignore_ascii_case("bearer") {
                let get = |name: &str| {
                    parameters
                        .iter()
                        .find(|(key, _)| key.eq_ignore_ascii_case(name))
                        .map(|(_, value)| value.clone())
                };
                if let Some(realm) = get("realm") {
                    let (service, scope) = (get("service"), get("scope"));
                    return Some(Challenge::Bearer(BearerChallenge { realm, service, scope }));
                }
            }
        }
    }
    basic.then_some(Challenge::Basic)
}

type Parameters = Vec<(String, String)>;

/// Splits `Bearer a="1",b=2, Basic realm="x"` into challenges. A word without `=` after it starts a new
/// challenge.
fn parse_challenges(text: &str) -> Vec<(String, Parameters)> {
    let mut found: Vec<(String, Parameters)> = Vec::new();
    let mut rest = text.trim_start_matches([' ', ',', '\t']);
    while !rest.is_empty() {
        let end = rest.find([' ', ',', '=', '\t']).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        let after_space = after.trim_start();
        if let Some(value) = after_space.strip_prefix('=') {
            let (value, remaining) = parse_value(value.trim_start());
            if let Some((_, parameters)) = found.last_mut() {
                parameters.push((word.to_owned(), value));
            }
            rest = remaining;
        } else {
            if !word.is_empty() {
                found.push((word.to_owned(), Vec::new()));
            }
            rest = after_space;
        }
        rest = rest.trim_start_matches([' ', ',', '\t']);
    }
    found
}

/// Parses a token or a quoted string with backslash escapes; returns it and the rest of the text.
fn parse_value(text: &str) -> (String, &str) {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find([' ', ',', '\t']).unwrap_or(text.len());
        return (text[..end].to_owned(), &text[end..]);
    };
    let mut value = String::new();
    let mut characters = quoted.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return (value, &quoted[at + 1..]),
            '\\' => value.extend(characters.next().map(|(_, escaped)| escaped)),
            _ => value.push(character),
        }
    }
    (value, "")
}

/// An `Authorization` header and its expiry.
#[derive(Clone)]
pub(crate) struct Ticket {
    pub(crate) header: HeaderValue,
    pub(crate) expires: Instant,
}

impl Ticket {
    pub(crate) fn is_fresh(&self) -> bool {
        Instant::now() < self.expires
    }
}

/// How long Basic credentials are sent without a new challenge.
const BASIC_LIFETIME: Duration = Duration::from_secs(3600);

pub(crate) fn basic_ticket(login: &Login) -> Ticket {
    Ticket { header: basic(login), expires: Instant::now() + BASIC_LIFETIME }
}

fn basic(login: &Login) -> HeaderValue {
    let encoded = BASE64_STANDARD.encode(format!("{}:{}", login.username, login.password));
    secret(&format!("Basic {encoded}"))
}

fn secret(text: &str) -> HeaderValue {
    // Base64 is always a valid header value. A token with control characters is not; the server refuses the
    // replacement like any wrong token.
    let mut value = HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static("Bearer"));
    value.set_sensitive(true);
    value
}

#[derive(Deserialize)]
struct TokenResponse {
    token: Option<String>,
    access_token: Option<String>,
    expires_in: Option<u64>,
}

/// Lifetime of a token without `expires_in`, and the minimum lifetime in the protocol.
const DEFAULT_LIFE_S: u64 = 60;
/// Maximum lifetime, even if the server grants a longer one.
const MAX_LIFE_S: u64 = 24 * 3600;
const MAX_TOKEN_RESPONSE: usize = 1 << 20;

/// The token that answers a challenge of `registry`: for `scope` and the scope of the challenge.
pub(crate) struct TokenRequest<'a> {
    pub(crate) registry: &'a Url,
    pub(crate) challenge: &'a BearerChallenge,
    pub(crate) scope: &'a Scope,
    pub(crate) login: Option<&'a Login>,
}

/// Fetches a token from the realm of a challenge.
pub(crate) async fn fetch_token(http: &reqwest::Client, request: TokenRequest<'_>) -> Result<Ticket, Error> {
    let TokenRequest { registry, challenge, scope, login } = request;
    let realm = &challenge.realm;
    let protocol = |why: String| Error::Protocol { server: error::server(registry), why };
    // A realm may be relative in practice, and is often on another host.
    let mut url =
        registry.join(realm).map_err(|_| protocol(format!("the token realm `{realm}` is not a URL")))?;
    let safe = url.scheme() == "https"
        || registry.scheme() == "http"
        || url.host().is_some_and(|host| crate::address::is_loopback(&host));
    if !safe || !matches!(url.scheme(), "http" | "https") {
        return Err(protocol(format!("the token realm `{realm}` would receive the credentials without TLS")));
    }
    {
        let mut query = url.query_pairs_mut();
        if let Some(service) = &challenge.service {
            query.append_pair("service", service);
        }
        let requested = scope.scopes.iter().map(String::as_str);
        let challenged = challenge.scope.as_deref().unwrap_or_default();
        let named = challenged.split(' ').filter(|s| !s.is_empty() && !includes(scope, s));
        for scope in requested.chain(named) {
            query.append_pair("scope", scope);
        }
        if let Some(login) = login {
            query.append_pair("account", &login.username);
        }
    }
    let mut request = http.get(url.clone()).timeout(Duration::from_secs(60));
    if let Some(login) = login {
        request = request.header(header::AUTHORIZATION, basic(login));
    }
    let requested_at = Instant::now();
    let server = error::server(&url);
    let response = request.send().await.map_err(|source| transport_error(server.clone(), source))?;
    let (status, may_retry) = (response.status(), error::may_retry(&response));
    let body = read_limited(response, MAX_TOKEN_RESPONSE, &server).await?;
    if !status.is_success() {
        let entries = error::entries(&body);
        return Err(match status.as_u16() {
            400 | 401 => Error::Unauthorized { server, entries },
            403 => Error::Denied { server, entries },
            _ => Error::Refused { server, status, may_retry, entries },
        });
    }
    let token_response: TokenResponse = serde_json::from_slice(&body)
        .map_err(|_| protocol("the response of the token endpoint is not valid JSON".into()))?;
    let token = token_response
        .token
        .or(token_response.access_token)
        .filter(|token| !token.is_empty())
        .ok_or_else(|| protocol("the response of the token endpoint has no token".into()))?;
    let life = token_response.expires_in.unwrap_or(DEFAULT_LIFE_S).clamp(DEFAULT_LIFE_S, MAX_LIFE_S);
    // Expire early, so that the token is still valid when a request arrives.
    Ok(Ticket {
        header: secret(&format!("Bearer {token}")),
        expires: requested_at + Duration::from_secs(life).mul_f64(0.9),
    })
}

/// Whether `scope` includes the scope of the challenge: the same resource with at least its actions.
fn includes(scope: &Scope, named: &str) -> bool {
    let Some((resource, actions)) = named.rsplit_once(':') else { return false };
    scope.scopes.iter().any(|ours| {
        ours.rsplit_once(':').is_some_and(|(our_resource, our_actions)| {
            our_resource == resource
                && actions.split(',').all(|action| our_actions.split(',').any(|our| our == action))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[&'static str]) -> Option<Challenge> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(header::WWW_AUTHENTICATE, HeaderValue::from_static(value));
        }
        challenge(&headers)
    }

    #[test]
    fn challenges_are_understood() {
        let bearer = |realm: &str, service: Option<&str>, scope: Option<&str>| {
            Some(Challenge::Bearer(BearerChallenge {
                realm: realm.to_owned(),
                service: service.map(str::to_owned),
                scope: scope.map(str::to_owned),
            }))
        };
        assert_eq!(
            of(&[r#"Bearer realm="https://a/token",service="hub",scope="repository:x:pull,push""#]),
            bearer("https://a/token", Some("hub"), Some("repository:x:pull,push"))
        );
        assert_eq!(of(&[r#"bearer REALM="/t" , service=hub"#]), bearer("/t", Some("hub"), None));
        assert_eq!(
            of(&[r#"Basic realm="x", Bearer realm="https://a\"b""#]),
            bearer("https://a\"b", None, None)
        );
        assert_eq!(of(&[r#"Basic realm="x""#]), Some(Challenge::Basic));
        assert_eq!(of(&["Negotiate", "Basic"]), Some(Challenge::Basic));
        assert_eq!(of(&["Bearer"]), None);
        assert_eq!(of(&["", ",,=", "\"", "Negotiate abc=="]), None);
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn a_challenge_is_not_asked_for_twice() {
        let repository: Repository = "team/x".parse().unwrap();
        let scope = Scope::push(&repository);
        assert!(includes(&scope, "repository:team/x:pull"));
        assert!(includes(&scope, "repository:team/x:push,pull"));
        assert!(!includes(&scope, "repository:team/x:delete"));
        assert!(!includes(&scope, "repository:team/y:pull"));
        assert!(!includes(&scope, "nonsense"));
    }
}

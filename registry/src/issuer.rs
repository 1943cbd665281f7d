//! Issuers of tokens, as clients see them (OpenID Connect Discovery 1.0): their metadata and keys, which are
//! fetched when they are first needed and then remembered, and the requests of a sign-in.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use jsonwebtoken::Algorithm;
use lode_client::{Egress, Secret};
use moka::sync::Cache;
use reqwest::RequestBuilder;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokio::sync::OwnedMutexGuard;
use tokio::task::JoinHandle;
use tracing::Instrument;
use url::Url;

use crate::auth::jwt::{self, Claims, JwtError, Keys};
use crate::config::{OidcProvider, check_issuer};
use crate::error::chain;

/// How long metadata and keys are used before they are fetched again.
const MAX_AGE: Duration = Duration::from_secs(3600);
/// How long after a request an issuer is not asked again for its metadata and keys, however many tokens have unknown
/// keys.
pub(crate) const COOLDOWN: Duration = Duration::from_millis(if cfg!(test) { 300 } else { 10_000 });
/// Timeout of one request, from the connection to the end of the response.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(if cfg!(test) { 3 } else { 10 });
const MAX_RESPONSE_BYTES: usize = 1 << 20;
/// How many issuers are remembered.
const MAX_ISSUERS: u64 = 1000;
/// Longer texts of an issuer are cut.
const MAX_TEXT_CHARS: usize = 200;

/// Why an issuer cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IssuerError {
    /// The source is for the log.
    #[error("{issuer} does not respond")]
    Unavailable {
        issuer: String,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("{issuer} sent an invalid response: {reason}")]
    Invalid { issuer: String, reason: String },
    /// It refused the request of a sign-in.
    #[error("{issuer} refused the sign-in: {reason}")]
    Refused { issuer: String, reason: String },
    #[error("the token is refused: {0}")]
    Token(#[from] JwtError),
}

/// What an issuer says about itself.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Metadata {
    issuer: String,
    jwks_uri: Url,
    pub(crate) authorization_endpoint: Option<Url>,
    token_endpoint: Option<Url>,
    userinfo_endpoint: Option<Url>,
    pub(crate) end_session_endpoint: Option<Url>,
    #[serde(default)]
    token_endpoint_auth_methods_supported: Vec<String>,
    /// Whether its redirects name it (RFC 9207).
    #[serde(default)]
    pub(crate) authorization_response_iss_parameter_supported: bool,
}

/// What an issuer gives for the code of a sign-in.
#[derive(Deserialize)]
pub(crate) struct Tokens {
    pub(crate) access_token: Secret,
    pub(crate) id_token: Secret,
}

/// The claims of an ID token.
pub(crate) struct IdToken {
    pub(crate) claims: Claims,
    pub(crate) algorithm: Algorithm,
}

#[derive(Clone)]
struct Known {
    metadata: Arc<Metadata>,
    keys: Arc<Keys>,
    at: Instant,
}

#[derive(Default)]
struct State {
    known: Option<Known>,
    /// When the last fetch ended.
    ended_at: Option<Instant>,
}

impl State {
    fn is_cooling(&self) -> bool {
        self.ended_at.is_some_and(|at| at.elapsed() < COOLDOWN)
    }
}

/// One issuer. Clones share what is known.
#[derive(Clone)]
pub(crate) struct Issuer {
    /// Exactly as in its tokens.
    url: String,
    egress: Egress,
    state: Arc<Mutex<State>>,
    /// One task at a time fetches for all that wait.
    fetching: Arc<tokio::sync::Mutex<()>>,
}

/// The issuers that this process has used.
pub(crate) struct Issuers {
    egress: Egress,
    configured: HashMap<String, Arc<Issuer>>,
    others: Cache<String, Arc<Issuer>>,
}

impl Issuers {
    /// The hosts of configured providers are permitted whatever their addresses; others are subject to the
    /// policy.
    pub(crate) fn new(egress: &Egress, providers: &[OidcProvider]) -> Issuers {
        let configured = providers.iter().map(|provider| {
            let egress = match provider.issuer.parse() {
                Ok(url) => egress.with_permitted(&url),
                Err(_) => egress.clone(),
            };
            (provider.issuer.clone(), Arc::new(Issuer::new(&provider.issuer, egress)))
        });
        Issuers { egress: egress.clone(), configured: configured.collect(), others: Cache::new(MAX_ISSUERS) }
    }

    pub(crate) fn get(&self, issuer: &str) -> Arc<Issuer> {
        if let Some(known) = self.configured.get(issuer) {
            return known.clone();
        }
        self.others.get_with_by_ref(issuer, || Arc::new(Issuer::new(issuer, self.egress.clone())))
    }
}

impl Issuer {
    fn new(url: &str, egress: Egress) -> Issuer {
        Issuer { url: url.to_owned(), egress, state: Arc::default(), fetching: Arc::default() }
    }

    /// Its metadata. When it does not respond, older metadata stays in use.
    pub(crate) async fn metadata(&self) -> Result<Arc<Metadata>, IssuerError> {
        self.known().await.map(|known| known.metadata)
    }

    /// Verifies a token of this issuer that has to be for one of `audiences`.
    pub(crate) async fn verify(&self, token: &str, audiences: &[String]) -> Result<IdToken, IssuerError> {
        let keys = self.known().await?.keys;
        let mut verified = jwt::verify(token, &keys, &self.url, audiences);
        if verified.as_ref().err() == Some(&JwtError::KeyUnknown) {
            // The issuer may have new keys.
            let newer = self.newer(Some(&keys)).await?.keys;
            verified = jwt::verify(token, &newer, &self.url, audiences);
        }
        let (claims, algorithm) = verified?;
        Ok(IdToken { claims, algorithm })
    }

    /// Exchanges the code of a sign-in.
    pub(crate) async fn exchange(
        &self,
        provider: &OidcProvider,
        code: &str,
        verifier: &Secret,
        redirect_uri: &str,
    ) -> Result<Tokens, IssuerError> {
        let metadata = self.metadata().await?;
        let url = metadata.token_endpoint.as_ref().ok_or_else(|| self.invalid("it has no token_endpoint"))?;
        let mut form = vec![
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", redirect_uri),
            ("code_verifier", verifier.expose()),
        ];
        let methods = &metadata.token_endpoint_auth_methods_supported;
        let takes_basic = methods.is_empty() || methods.iter().any(|method| method == "client_secret_basic");
        let mut request = self.request(url, |client| client.post(url.clone()))?;
        match &provider.client_secret {
            Some(secret) if takes_basic => {
                let encode = |text: &str| url::form_urlencoded::byte_serialize(text.as_bytes()).collect();
                let (id, secret): (String, String) = (encode(&provider.client_id), encode(secret.expose()));
                request = request.basic_auth(id, Some(secret));
            }
            Some(secret) => {
                form.extend([("client_id", &*provider.client_id), ("client_secret", secret.expose())])
            }
            None => form.push(("client_id", &provider.client_id)),
        }
        let body = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(form).finish();
        let request = request.header("content-type", "application/x-www-form-urlencoded").body(body);
        let tokens: Value = self.send(request).await?;
        serde_json::from_value(tokens).map_err(|_| self.invalid("the response has no ID token"))
    }

    /// What the issuer says about the person who signs in, if it has an address for that.
    pub(crate) async fn userinfo(&self, access_token: &Secret) -> Result<Option<Claims>, IssuerError> {
        let metadata = self.metadata().await?;
        let Some(url) = &metadata.userinfo_endpoint else { return Ok(None) };
        let request = self.request(url, |client| client.get(url.clone()))?;
        let claims: Map<String, Value> = self.send(request.bearer_auth(access_token.expose())).await?;
        Ok(Some(Claims(claims)))
    }

    /// What is known, at once. When it is old, it is updated in the background.
    async fn known(&self) -> Result<Known, IssuerError> {
        let known = self.lock().known.clone();
        let Some(known) = known else { return self.newer(None).await };
        if known.at.elapsed() >= MAX_AGE
            && let Ok(turn) = self.fetching.clone().try_lock_owned()
            && !self.lock().is_cooling()
        {
            drop(self.start_update(turn));
        }
        Ok(known)
    }

    /// What is known with other keys than these: after a fetch if need be, unless the last one was just now.
    async fn newer(&self, than: Option<&Arc<Keys>>) -> Result<Known, IssuerError> {
        let turn = self.fetching.clone().lock_owned().await;
        {
            let state = self.lock();
            let is_newer = |known: &Known| than.is_none_or(|keys| !Arc::ptr_eq(&known.keys, keys));
            match &state.known {
                Some(known) if is_newer(known) || state.is_cooling() => return Ok(known.clone()),
                None if state.is_cooling() => {
                    return Err(self.unavailable("the last request failed; trying again soon"));
                }
                _ => {}
            }
        }
        match self.start_update(turn).await {
            Ok(updated) => updated,
            Err(error) => Err(self.unavailable(error)),
        }
    }

    /// Fetches in a task of its own: a client that disconnects does not end it.
    fn start_update(&self, turn: OwnedMutexGuard<()>) -> JoinHandle<Result<Known, IssuerError>> {
        let this = self.clone();
        let update = async move {
            let _turn = turn;
            let fetched = this.fetch().await;
            let mut state = this.lock();
            state.ended_at = Some(Instant::now());
            match (fetched, &state.known) {
                (Ok((metadata, keys)), _) => {
                    let known = Known { metadata, keys, at: Instant::now() };
                    state.known = Some(known.clone());
                    Ok(known)
                }
                (Err(error), Some(known)) => {
                    tracing::warn!(
                        issuer = this.url,
                        error = chain(&error),
                        "failed to update the keys of an issuer; older ones stay in use"
                    );
                    Ok(known.clone())
                }
                (Err(error), None) => Err(error),
            }
        };
        tokio::spawn(update.in_current_span())
    }

    async fn fetch(&self) -> Result<(Arc<Metadata>, Arc<Keys>), IssuerError> {
        let base = check_issuer(&self.url).map_err(|reason| self.invalid(reason))?;
        let url = format!("{}/.well-known/openid-configuration", self.url.trim_end_matches('/'));
        let url: Url = url.parse().map_err(|_| self.invalid("expected a URL"))?;
        let metadata: Value = self.send(self.request(&url, |client| client.get(url.clone()))?).await?;
        let metadata: Metadata =
            serde_json::from_value(metadata).map_err(|error| self.invalid(&error.to_string()))?;
        if metadata.issuer != self.url {
            let named: String = metadata.issuer.chars().take(MAX_TEXT_CHARS).collect();
            return Err(self.invalid(&format!("it names itself `{named}`")));
        }
        let addresses = [
            Some(&metadata.jwks_uri),
            metadata.authorization_endpoint.as_ref(),
            metadata.token_endpoint.as_ref(),
            metadata.userinfo_endpoint.as_ref(),
            metadata.end_session_endpoint.as_ref(),
        ];
        if let Some(plain) =
            addresses.into_iter().flatten().find(|url| url.scheme() != "https" && base.scheme() == "https")
        {
            return Err(self.invalid(&format!("{plain} is not https")));
        }
        let url = &metadata.jwks_uri;
        let keys = Keys::parse(&self.send(self.request(url, |client| client.get(url.clone()))?).await?);
        if keys.is_empty() {
            return Err(self.invalid("it has no keys for signatures"));
        }
        Ok((Arc::new(metadata), Arc::new(keys)))
    }

    fn request(
        &self,
        url: &Url,
        build: impl FnOnce(&reqwest::Client) -> RequestBuilder,
    ) -> Result<RequestBuilder, IssuerError> {
        let client = self.egress.http(url).map_err(|error| self.unavailable(error))?;
        Ok(build(client).timeout(TIMEOUT).header("accept", "application/json"))
    }

    /// Sends a request whose response is a JSON object.
    async fn send<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T, IssuerError> {
        let mut response = request.send().await.map_err(|error| self.unavailable(error.without_url()))?;
        let status = response.status();
        let mut body = Vec::new();
        while let Some(chunk) =
            response.chunk().await.map_err(|error| self.unavailable(error.without_url()))?
        {
            if body.len() + chunk.len() > MAX_RESPONSE_BYTES {
                return Err(self.invalid("the response is too long"));
            }
            body.extend_from_slice(&chunk);
        }
        if status.is_success() {
            return serde_json::from_slice(&body).map_err(|_| self.invalid("the response is not JSON"));
        }
        let refused: Value = serde_json::from_slice(&body).unwrap_or_default();
        let text = |key: &str| refused[key].as_str();
        match text("error") {
            Some(code) if status.is_client_error() => {
                let reason = text("error_description").unwrap_or(code);
                let reason = reason.chars().filter(|c| !c.is_control()).take(MAX_TEXT_CHARS).collect();
                Err(IssuerError::Refused { issuer: self.url.clone(), reason })
            }
            _ => Err(self.unavailable(format!("it responded with {status}"))),
        }
    }

    fn unavailable(&self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> IssuerError {
        IssuerError::Unavailable { issuer: self.url.clone(), source: source.into() }
    }

    fn invalid(&self, reason: &str) -> IssuerError {
        IssuerError::Invalid { issuer: self.url.clone(), reason: reason.to_owned() }
    }

    /// Makes what is known old.
    #[cfg(test)]
    pub(crate) fn age(&self) {
        if let Some(known) = &mut self.lock().known {
            known.at -= MAX_AGE;
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

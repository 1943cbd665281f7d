//! One request and its answer: connection reuse, authorization, redirects, retries and time limits. Everything that the client sends goes through here.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use url::Url;

use crate::{
    Credentials, Egress, Error, PlainHttp, Registry, RetryPolicy, address,
    auth::{self, Challenge, Scope, Ticket},
    egress, error, retry,
    tls::http_client,
};

/// How a client behaves; the defaults suit a person's machine.
#[derive(Debug, Clone)]
pub struct ClientOptions {
    pub user_agent: String,
    pub credentials: Credentials,
    pub plain_http: PlainHttp,
    pub retry: RetryPolicy,
    /// A transfer that moves nothing for this long is cut (and then retried). There is no limit on its whole duration.
    pub idle_timeout: Duration,
    /// Ranges of one blob that are fetched at once.
    pub parallel_ranges: usize,
    /// How long a server may take to begin its response to a request that it can answer at once.
    pub response_timeout: Duration,
    /// Bytes of one range, and so what a crash may cost.
    pub range_bytes: u64,
    /// Bytes of the first PATCH when a blob is pushed; those after it grow.
    pub chunk_bytes: u64,
    /// A folder where sessions of unfinished uploads are remembered, so that a push that is repeated goes on where it stopped.
    pub upload_memory: Option<std::path::PathBuf>,
    /// Which addresses may be connected to; none: every address.
    pub egress: Option<Egress>,
}

impl Default for ClientOptions {
    fn default() -> Self {
        ClientOptions {
            user_agent: USER_AGENT.to_owned(),
            credentials: Credentials::none(),
            plain_http: PlainHttp::default(),
            retry: RetryPolicy::default(),
            idle_timeout: Duration::from_secs(60),
            response_timeout: Duration::from_secs(120),
            parallel_ranges: 6,
            range_bytes: 8 << 20,
            chunk_bytes: 64 << 20,
            upload_memory: None,
            egress: None,
        }
    }
}

/// Connections, tokens and settings, shared by the registries that are reached through it. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    pub(crate) inner: Arc<Inner>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("options", &self.inner.options).finish_non_exhaustive()
    }
}

pub(crate) struct Inner {
    connections: Connections,
    pub(crate) options: ClientOptions,
    tickets: Mutex<HashMap<(String, Scope), Ticket>>,
    /// Servers that have answered before: worth waiting for when they cannot be reached.
    answered: Mutex<HashSet<String>>,
}

enum Connections {
    Unlimited {
        /// Through the proxy that the environment names, if any.
        proxied: reqwest::Client,
        /// For this machine, which no proxy can reach.
        direct: reqwest::Client,
    },
    Limited(Egress),
}

pub(crate) const USER_AGENT: &str = concat!("lode/", env!("CARGO_PKG_VERSION"));
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_REDIRECTS: usize = 8;
const MAX_ERROR_BODY: usize = 64 << 10;

impl Client {
    pub fn new(options: ClientOptions) -> Result<Client, Error> {
        let builder = || http_builder(&options.user_agent);
        let connections = match &options.egress {
            Some(egress) => Connections::Limited(egress.clone()),
            None => Connections::Unlimited {
                proxied: http_client(builder).map_err(Error::Setup)?,
                direct: http_client(|| builder().no_proxy()).map_err(Error::Setup)?,
            },
        };
        Ok(Client {
            inner: Arc::new(Inner {
                connections,
                options,
                tickets: Mutex::default(),
                answered: Mutex::default(),
            }),
        })
    }

    /// The registry at `address`: a base URL (`http://127.0.0.1:5000`) or a bare `host[:port]`. Nothing is asked yet.
    pub fn registry(&self, address: &str) -> Result<Registry, Error> {
        Ok(Registry::new(self.clone(), address::base_url(address, self.inner.options.plain_http)?))
    }

    pub fn options(&self) -> &ClientOptions {
        &self.inner.options
    }
}

/// What every HTTP client here has in common. Redirects are followed by [`Inner::send`], which checks each hop.
pub(crate) fn http_builder(user_agent: &str) -> reqwest::ClientBuilder {
    reqwest::Client::builder()
        .user_agent(user_agent)
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_keepalive(Duration::from_secs(30))
        .redirect(reqwest::redirect::Policy::none())
}

/// What a request carries. A stream is made afresh for every time it is sent.
pub(crate) enum Body<'a> {
    Empty,
    Bytes(Bytes),
    Stream(&'a (dyn Fn() -> reqwest::Body + Send + Sync)),
}

/// When a failed request may be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Retry {
    /// Asking twice is the same as asking once.
    Always,
    /// Only when the server cannot have seen it.
    Unsent,
    /// The caller knows better how to go on.
    Never,
}

pub(crate) struct Request<'a> {
    pub(crate) method: Method,
    pub(crate) url: Url,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Body<'a>,
    pub(crate) scope: Scope,
    pub(crate) retry: Retry,
    /// How long the answer's first byte may take; none where the answer is worth any wait (or the caller watches).
    pub(crate) patience: Option<Duration>,
}

impl<'a> Request<'a> {
    pub(crate) fn new(method: Method, url: Url, scope: Scope) -> Self {
        Request {
            method,
            url,
            headers: HeaderMap::new(),
            body: Body::Empty,
            scope,
            retry: Retry::Always,
            patience: Some(Duration::from_secs(120)),
        }
    }

    pub(crate) fn header(mut self, name: header::HeaderName, value: HeaderValue) -> Self {
        self.headers.append(name, value);
        self
    }
}

impl Inner {
    /// The HTTP client for `url`, or an error where the egress policy refuses it. Asked for every hop.
    fn http(&self, url: &Url) -> Result<&reqwest::Client, Error> {
        match &self.connections {
            Connections::Limited(egress) => egress.http(url),
            Connections::Unlimited { direct, .. }
                if url.host().is_some_and(|host| address::is_loopback(&host)) =>
            {
                Ok(direct)
            }
            Connections::Unlimited { proxied, .. } => Ok(proxied),
        }
    }

    /// Sends until an answer comes that is neither a redirect, nor a challenge that can be met, nor (where `retry` allows) a passing failure.
    /// Any other status, 4xx included, is an answer.
    pub(crate) async fn send(&self, request: &Request<'_>) -> Result<reqwest::Response, Error> {
        let mut failed = 0;
        loop {
            let (error, wait) = match self.send_once(request).await {
                Ok(response) if !error::is_transient_status(response.status()) => return Ok(response),
                Ok(response) if request.retry != Retry::Always => return Ok(response),
                Ok(response) => {
                    let wait = retry::retry_after(response.headers());
                    if failed + 1 >= self.options.retry.attempts {
                        return Ok(response);
                    }
                    (refused(response, &request.url).await, wait)
                }
                Err(error) => (error, None),
            };
            failed += 1;
            if !self.may_retry(request, &error, failed) {
                return Err(error);
            }
            let delay = self.options.retry.delay(failed, wait);
            tracing::debug!(method = %request.method, server = %error::server(&request.url), %error, failed, delay_ms = delay.as_millis() as u64, "trying again");
            tokio::time::sleep(delay).await;
        }
    }

    /// Like [`Inner::send`], and a status that is not success is an error.
    pub(crate) async fn send_ok(&self, request: &Request<'_>) -> Result<reqwest::Response, Error> {
        let response = self.send(request).await?;
        if response.status().is_success() { Ok(response) } else { Err(refused(response, &request.url).await) }
    }

    fn may_retry(&self, request: &Request<'_>, error: &Error, failed: u32) -> bool {
        if !error.is_transient() || failed >= self.options.retry.attempts {
            return false;
        }
        match request.retry {
            Retry::Never => false,
            Retry::Unsent if !matches!(error, Error::Connect { .. }) => false,
            // A server that was never there is more likely misspelt than restarting: one more try, then say so.
            _ if matches!(error, Error::Connect { .. }) => failed < 2 || self.has_answered(&request.url),
            // On behalf of others, a port that does not speak HTTP takes no longer than a closed one.
            _ if matches!(error, Error::Transport { .. })
                && matches!(self.connections, Connections::Limited(_)) =>
            {
                failed < 2 || self.has_answered(&request.url)
            }
            _ => true,
        }
    }

    fn has_answered(&self, url: &Url) -> bool {
        self.answered.lock().unwrap_or_else(PoisonError::into_inner).contains(&error::server(url))
    }

    async fn send_once(&self, request: &Request<'_>) -> Result<reqwest::Response, Error> {
        let mut method = request.method.clone();
        let mut url = request.url.clone();
        let mut with_body = true;
        let mut challenged = false;
        let mut redirects = 0;
        loop {
            let at_home = url.origin() == request.url.origin();
            let mut builder =
                self.http(&url)?.request(method.clone(), url.clone()).headers(request.headers.clone());
            if with_body {
                builder = match &request.body {
                    Body::Empty if matches!(method, Method::POST | Method::PUT | Method::PATCH) => {
                        builder.header(header::CONTENT_LENGTH, 0)
                    }
                    Body::Empty => builder,
                    Body::Bytes(bytes) => builder.body(bytes.clone()),
                    Body::Stream(make) => builder.body(make()),
                };
            }
            // Authorization goes to the registry itself and never along with a redirect.
            let ticket = if at_home { self.ticket(&request.url, &request.scope) } else { None };
            if let Some(ticket) = &ticket {
                builder = builder.header(header::AUTHORIZATION, ticket.header.clone());
            }
            let server = error::server(&url);
            let sent = builder.send();
            let response = match request.patience.map(|patience| patience.min(self.options.response_timeout))
            {
                Some(patience) => tokio::time::timeout(patience, sent)
                    .await
                    .map_err(|_| Error::Stalled { server: server.clone(), seconds: patience.as_secs() })?,
                None => sent.await,
            }
            .map_err(|source| transport_error(server.clone(), source))?;
            self.answered.lock().unwrap_or_else(PoisonError::into_inner).insert(server);

            let status = response.status();
            if status == StatusCode::UNAUTHORIZED && at_home && !challenged {
                challenged = true;
                let fresh = self.answer_challenge(response.headers(), &request.url, &request.scope).await?;
                // The header that was just refused would be refused again.
                if fresh.is_none() || fresh == ticket.map(|ticket| ticket.header) {
                    return Ok(response);
                }
                continue;
            }
            let Some(target) = redirect_target(&response, &url) else { return Ok(response) };
            let keeps_method = matches!(status.as_u16(), 307 | 308);
            if !keeps_method && !matches!(method, Method::GET | Method::HEAD) {
                if status != StatusCode::SEE_OTHER {
                    return Ok(response);
                }
                method = Method::GET;
                with_body = false;
            }
            redirects += 1;
            let protocol = |why: &str| Error::Protocol { server: error::server(&url), why: why.to_owned() };
            if redirects > MAX_REDIRECTS {
                return Err(protocol("it redirects in circles"));
            }
            if url.scheme() == "https" && target.scheme() == "http" {
                return Err(protocol("it redirects from https to http"));
            }
            url = target;
        }
    }

    fn ticket(&self, registry: &Url, scope: &Scope) -> Option<Ticket> {
        let tickets = self.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        tickets.get(&(error::server(registry), scope.clone())).filter(|ticket| ticket.is_fresh()).cloned()
    }

    /// Gets a ticket for what a 401 asked. None: there is nothing to offer, so the 401 stands.
    async fn answer_challenge(
        &self,
        headers: &HeaderMap,
        registry: &Url,
        scope: &Scope,
    ) -> Result<Option<HeaderValue>, Error> {
        let login = self.options.credentials.get(&host_and_port(registry));
        let ticket = match auth::challenge(headers) {
            Some(Challenge::Bearer { realm, service, scope: named }) => {
                let realm_url = registry.join(&realm).unwrap_or_else(|_| registry.clone());
                let parts = (realm.as_str(), service.as_deref(), named.as_deref());
                auth::fetch_token(self.http(&realm_url)?, registry, parts, scope, login.as_ref()).await?
            }
            Some(Challenge::Basic) => match login {
                Some(login) => auth::basic_ticket(&login),
                None => return Ok(None),
            },
            None => return Ok(None),
        };
        let key = (error::server(registry), scope.clone());
        let mut tickets = self.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        // A mirror asks for any number of repositories.
        tickets.retain(|_, ticket| ticket.is_fresh());
        tickets.insert(key, ticket.clone());
        Ok(Some(ticket.header))
    }
}

/// `host[:port]` as credentials are kept: the port only where it was written.
pub(crate) fn host_and_port(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    match url.port() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    }
}

fn redirect_target(response: &reqwest::Response, from: &Url) -> Option<Url> {
    if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
        return None;
    }
    let location = response.headers().get(header::LOCATION)?.to_str().ok()?;
    from.join(location).ok().filter(|url| matches!(url.scheme(), "http" | "https"))
}

pub(crate) fn transport_error(server: String, source: reqwest::Error) -> Error {
    // The URL may be a signed one, and the server is named already.
    let source = source.without_url();
    if egress::is_refusal(&source) {
        tracing::debug!(server, error = ?source, "no permitted address");
        return Error::Egress { server };
    }
    if source.is_connect() { Error::Connect { server, source } } else { Error::Transport { server, source } }
}

/// The error that an answer stands for, its body read as far as is sensible.
pub(crate) async fn refused(response: reqwest::Response, url: &Url) -> Error {
    let server = error::server(url);
    let status = response.status();
    let body = read_limited(response, MAX_ERROR_BODY, &server).await.unwrap_or_default();
    let entries = error::entries(&body);
    match status {
        StatusCode::UNAUTHORIZED => Error::Unauthorized { server, entries },
        StatusCode::FORBIDDEN => Error::Denied { server, entries },
        _ => Error::Refused { server, status, entries },
    }
}

/// The body, refused beyond `limit`.
pub(crate) async fn read_limited(
    mut response: reqwest::Response,
    limit: usize,
    server: &str,
) -> Result<Vec<u8>, Error> {
    const IDLE: Duration = Duration::from_secs(60);
    /// A body that arrives more slowly than this, byte by byte for instance, is abandoned as well.
    const BYTES_A_SECOND: u64 = 32 << 10;
    let deadline = tokio::time::Instant::now() + IDLE + Duration::from_secs(limit as u64 / BYTES_A_SECOND);
    let mut body = Vec::new();
    loop {
        let chunk =
            tokio::time::timeout_at(deadline.min(tokio::time::Instant::now() + IDLE), response.chunk())
                .await
                .map_err(|_| Error::Stalled { server: server.to_owned(), seconds: IDLE.as_secs() })?
                .map_err(|source| transport_error(server.to_owned(), source))?;
        let Some(chunk) = chunk else { return Ok(body) };
        if body.len() + chunk.len() > limit {
            let why = format!("the answer is longer than {limit} bytes");
            return Err(Error::Protocol { server: server.to_owned(), why });
        }
        body.extend_from_slice(&chunk);
    }
}

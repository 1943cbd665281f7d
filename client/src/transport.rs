//! Sends requests: connection reuse, authorization, redirects, retries and timeouts. All requests of the
//! client go through here.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use url::Url;

use crate::{
    Credentials, Egress, Error, PlainHttp, RetryNotice, RetryPolicy, address,
    auth::{self, Challenge, Scope, Ticket, TokenRequest},
    error,
    http::{USER_AGENT, http_builder, http_client},
    response::{response_error, transport_error},
    retry,
    tls_problem::uses_https,
};

/// The settings of a client; the defaults suit a personal machine.
#[derive(Debug, Clone)]
pub struct ClientOptions {
    pub user_agent: String,
    pub credentials: Credentials,
    pub plain_http: PlainHttp,
    pub retry: RetryPolicy,
    /// Informs the user of attempts that are repeated.
    pub on_retry: Option<RetryNotice>,
    /// A transfer without progress for this long is aborted and then retried; so is a download of less than
    /// 16 KiB in this time. There is no limit on the total duration.
    pub idle_timeout: Duration,
    /// Number of ranges of a blob that are fetched in parallel.
    pub parallel_ranges: usize,
    /// Timeout for the start of a response that needs no long computation.
    pub response_timeout: Duration,
    /// Size of a range, which is the maximum loss in a crash.
    pub range_bytes: u64,
    /// Size of the first PATCH of an upload; later ones are larger.
    pub chunk_bytes: u64,
    /// Folder that remembers the sessions of unfinished uploads, so that a repeated push resumes.
    pub upload_sessions_folder: Option<std::path::PathBuf>,
    /// Certificate authorities that are trusted in addition to the system's.
    pub authorities: Vec<reqwest::Certificate>,
    /// The egress policy; `None` permits every address.
    pub egress: Option<Egress>,
}

impl Default for ClientOptions {
    fn default() -> Self {
        ClientOptions {
            user_agent: USER_AGENT.to_owned(),
            credentials: Credentials::none(),
            plain_http: PlainHttp::default(),
            retry: RetryPolicy::default(),
            on_retry: None,
            idle_timeout: Duration::from_secs(60),
            response_timeout: Duration::from_secs(120),
            parallel_ranges: 6,
            range_bytes: 8 << 20,
            chunk_bytes: 64 << 20,
            upload_sessions_folder: None,
            authorities: Vec::new(),
            egress: None,
        }
    }
}

/// Connections, tokens and settings, shared by the registries that are accessed through this client. Cheap to
/// clone.
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
    /// Servers that have responded before. If they become unreachable, retrying is worthwhile.
    responsive_servers: Mutex<HashSet<String>>,
}

enum Connections {
    Unlimited {
        /// Uses the proxy in the environment, if any.
        proxied: reqwest::Client,
        /// For this machine, which no proxy can reach.
        direct: reqwest::Client,
    },
    Limited(Egress),
}

const MAX_REDIRECTS: usize = 8;

impl Client {
    pub fn new(options: ClientOptions) -> Result<Client, Error> {
        let builder =
            || http_builder(&options.user_agent).tls_certs_merge(options.authorities.iter().cloned());
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
                responsive_servers: Mutex::default(),
            }),
        })
    }

    pub fn options(&self) -> &ClientOptions {
        &self.inner.options
    }
}

/// The body of a request. A stream is created again for each attempt.
pub(crate) enum Body<'a> {
    Empty,
    Bytes(Bytes),
    Stream(&'a (dyn Fn() -> reqwest::Body + Send + Sync)),
}

/// When a failed request may be retried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Retry {
    /// The request is idempotent.
    Always,
    /// Only if the server cannot have received the request.
    IfUnsent,
    /// Never; the caller handles failures.
    Never,
}

pub(crate) struct Request<'a> {
    pub(crate) method: Method,
    pub(crate) url: Url,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Body<'a>,
    pub(crate) scope: Scope,
    /// Send saved credentials at once. For APIs that respond to clients without credentials, too, with less.
    pub(crate) credentials_first: bool,
    pub(crate) retry: Retry,
    /// Timeout for the first byte of the response. `None` if the response may take any time, or if the caller
    /// watches the request.
    pub(crate) first_byte_timeout: Option<Duration>,
}

impl<'a> Request<'a> {
    pub(crate) fn new(method: Method, url: Url, scope: Scope) -> Self {
        Request {
            method,
            url,
            headers: HeaderMap::new(),
            body: Body::Empty,
            scope,
            credentials_first: false,
            retry: Retry::Always,
            first_byte_timeout: Some(Duration::from_secs(120)),
        }
    }

    pub(crate) fn header(mut self, name: header::HeaderName, value: HeaderValue) -> Self {
        self.headers.append(name, value);
        self
    }
}

impl Inner {
    /// Returns the HTTP client for `url`, or an error if the egress policy refuses it. Called for each hop.
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

    /// Sends a request, follows redirects, authenticates and retries transient failures as `retry` allows.
    /// Returns any other response, including 4xx.
    pub(crate) async fn send(&self, request: &Request<'_>) -> Result<reqwest::Response, Error> {
        self.send_after(&mut 0, request).await
    }

    /// Like [`Inner::send`], for a caller that has failed attempts of its own: they count, and those of this request
    /// are added.
    pub(crate) async fn send_after(
        &self,
        failed: &mut u32,
        request: &Request<'_>,
    ) -> Result<reqwest::Response, Error> {
        loop {
            let (error, wait) = match self.send_once(request).await {
                Ok(response) if !error::may_retry(&response) => return Ok(response),
                Ok(response) if request.retry != Retry::Always => return Ok(response),
                Ok(response) => {
                    let wait = retry::retry_after(response.headers());
                    if *failed + 1 >= self.options.retry.attempts {
                        return Ok(response);
                    }
                    (response_error(response, &request.url).await, wait)
                }
                Err(error) => (error, None),
            };
            *failed += 1;
            let is_first = *failed == 1 && !self.has_responded(&request.url);
            if !self.may_retry(request, &error, *failed)
                || is_first
                    && matches!(error, Error::Transport { .. })
                    && self.is_tls_port(&request.url).await
            {
                return Err(error);
            }
            tracing::debug!(method = %request.method, server = %error::server(&request.url), %error, failed, "request failed; retrying");
            self.wait_to_retry(&error, *failed, wait).await;
        }
    }

    /// Waits after the `failed`-th attempt (from 1) and reports the error to the user. `requested`: by the server.
    pub(crate) async fn wait_to_retry(&self, error: &Error, failed: u32, requested: Option<Duration>) {
        let delay = self.options.retry.delay(failed, requested);
        if let Some(notice) = &self.options.on_retry {
            notice.report(error, delay);
        }
        tokio::time::sleep(delay).await;
    }

    /// Like [`Inner::send`], but a status other than success is an error.
    pub(crate) async fn send_ok(&self, request: &Request<'_>) -> Result<reqwest::Response, Error> {
        let response = self.send(request).await?;
        if response.status().is_success() {
            Ok(response)
        } else {
            Err(response_error(response, &request.url).await)
        }
    }

    /// Whether the port of an `http://` URL expects TLS, which no retry changes.
    async fn is_tls_port(&self, url: &Url) -> bool {
        let is_limited = matches!(self.connections, Connections::Limited(_));
        !is_limited && url.scheme() == "http" && url.port().is_some() && uses_https(url).await
    }

    fn may_retry(&self, request: &Request<'_>, error: &Error, failed: u32) -> bool {
        if !error.is_transient() || failed >= self.options.retry.attempts {
            return false;
        }
        match request.retry {
            Retry::Never => false,
            Retry::IfUnsent if !matches!(error, Error::Connect { .. } | Error::Redirect { .. }) => false,
            // The address of a server that never responded is more likely wrong than the server restarting:
            // retry once.
            _ if matches!(error, Error::Connect { .. }) => failed < 2 || self.has_responded(&request.url),
            // With an egress policy, a port that does not speak HTTP must take no longer than a closed one.
            _ if matches!(error, Error::Transport { .. })
                && matches!(self.connections, Connections::Limited(_)) =>
            {
                failed < 2 || self.has_responded(&request.url)
            }
            _ => true,
        }
    }

    pub(crate) fn has_responded(&self, url: &Url) -> bool {
        self.responsive_servers.lock().unwrap_or_else(PoisonError::into_inner).contains(&error::server(url))
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
            // Authorization is sent only to the registry itself, never to a redirect target.
            let ticket = match at_home {
                true => {
                    self.ticket(&request.url, &request.scope).or_else(|| self.ticket_of_credentials(request))
                }
                false => None,
            };
            if let Some(ticket) = &ticket {
                builder = builder.header(header::AUTHORIZATION, ticket.header.clone());
            }
            let server = error::server(&url);
            let sent = builder.send();
            let response =
                match request.first_byte_timeout.map(|timeout| timeout.min(self.options.response_timeout)) {
                    Some(timeout) => tokio::time::timeout(timeout, sent)
                        .await
                        .map_err(|_| Error::Stalled { server: server.clone(), seconds: timeout.as_secs() })?,
                    None => sent.await,
                }
                .map_err(|source| match transport_error(server.clone(), source) {
                    Error::Connect { server: target, source } if !at_home => {
                        Error::Redirect { server: error::server(&request.url), target, source }
                    }
                    other => other,
                })?;
            self.responsive_servers.lock().unwrap_or_else(PoisonError::into_inner).insert(server);

            let status = response.status();
            if status == StatusCode::UNAUTHORIZED && at_home && !challenged {
                challenged = true;
                let fresh = self.authenticate(response.headers(), &request.url, &request.scope).await?;
                // Do not repeat a header that was just refused.
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
                return Err(protocol("too many redirects"));
            }
            if url.scheme() == "https" && target.scheme() == "http" {
                return Err(protocol("redirect from https to http"));
            }
            url = target;
        }
    }

    /// The saved credentials, for a request that sends them without a challenge.
    fn ticket_of_credentials(&self, request: &Request<'_>) -> Option<Ticket> {
        let login = || self.options.credentials.get(&request.url);
        request.credentials_first.then(login)?.map(|login| auth::basic_ticket(&login))
    }

    fn ticket(&self, registry: &Url, scope: &Scope) -> Option<Ticket> {
        let tickets = self.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        // A ticket for a mount is one for a push, too.
        [scope.clone(), scope.clone().for_mount()]
            .into_iter()
            .filter_map(|scope| tickets.get(&(error::server(registry), scope)))
            .find(|ticket| ticket.is_fresh())
            .cloned()
    }

    /// Obtains a ticket for the challenge of a 401. Returns `None` if there are no credentials; then the 401
    /// is returned.
    async fn authenticate(
        &self,
        headers: &HeaderMap,
        registry: &Url,
        scope: &Scope,
    ) -> Result<Option<HeaderValue>, Error> {
        let login = self.options.credentials.get(registry);
        let ticket = match auth::challenge(headers) {
            Some(Challenge::Bearer(challenge)) => {
                let realm_url = registry.join(&challenge.realm).unwrap_or_else(|_| registry.clone());
                let request = TokenRequest { registry, challenge: &challenge, scope, login: login.as_ref() };
                auth::fetch_token(self.http(&realm_url)?, request).await?
            }
            Some(Challenge::Basic) => match login {
                Some(login) => auth::basic_ticket(&login),
                None => return Ok(None),
            },
            None => return Ok(None),
        };
        let key = (error::server(registry), scope.clone());
        let mut tickets = self.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        // Remove expired tickets: a mirror requests many repositories.
        tickets.retain(|_, ticket| ticket.is_fresh());
        tickets.insert(key, ticket.clone());
        Ok(Some(ticket.header))
    }
}

fn redirect_target(response: &reqwest::Response, from: &Url) -> Option<Url> {
    if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
        return None;
    }
    let location = response.headers().get(header::LOCATION)?.to_str().ok()?;
    from.join(location).ok().filter(|url| matches!(url.scheme(), "http" | "https"))
}

//! The access log: one line for each request, when its response has been sent or was abandoned. Values that clients
//! choose are printable ASCII with escapes, so that they cannot begin a line or control a terminal.

use std::net::IpAddr;
use std::time::Instant;

use http::{HeaderMap, HeaderValue, Method, StatusCode, header};

use crate::auth::Caller;

/// The target of the lines, for filters such as LODE_LOG=info,lode_access=off.
const TARGET: &str = "lode_access";
/// Longer paths and agents are cut.
const MAX_PATH_LEN: usize = 1024;
const MAX_AGENT_LEN: usize = 256;
/// What a proxy logs for a client that did not wait for its response.
const CLIENT_CLOSED: u16 = 499;

/// A request that is logged when it ends; dropping it logs that it was abandoned.
pub(super) struct AccessRecord {
    started: Instant,
    method: Method,
    path: String,
    client: Option<IpAddr>,
    agent: String,
    request_id: HeaderValue,
    account: Option<String>,
    status: Option<StatusCode>,
    bytes: u64,
    is_quiet: bool,
    is_complete: bool,
}

impl AccessRecord {
    /// `None` if no line would be written. `is_internal` marks a request of this process itself, such as the
    /// import of the demo model or a download of the local worker.
    pub(super) fn begin(
        method: &Method,
        path: &str,
        headers: &HeaderMap,
        client: Option<IpAddr>,
        request_id: &HeaderValue,
        is_internal: bool,
    ) -> Option<Box<AccessRecord>> {
        let is_quiet = is_internal || is_probe(method, path);
        let is_written = match is_quiet {
            true => tracing::enabled!(target: TARGET, tracing::Level::DEBUG),
            false => tracing::enabled!(target: TARGET, tracing::Level::INFO),
        };
        is_written.then(|| {
            let agent = headers.get(header::USER_AGENT).map_or(&[][..], HeaderValue::as_bytes);
            Box::new(AccessRecord {
                started: Instant::now(),
                method: method.clone(),
                path: printable(path.as_bytes(), MAX_PATH_LEN),
                client,
                agent: printable(agent, MAX_AGENT_LEN),
                request_id: request_id.clone(),
                account: None,
                status: None,
                bytes: 0,
                is_quiet,
                is_complete: false,
            })
        })
    }

    /// Records the response's head, and who sent the request.
    pub(super) fn respond(&mut self, status: StatusCode, caller: Option<&Caller>) {
        self.status = Some(status);
        self.account = caller.map(Caller::actor);
    }

    pub(super) fn add_bytes(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// The bytes of the response so far.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Records that the whole response was passed to the connection.
    pub(super) fn complete(&mut self) {
        self.is_complete = true;
    }
}

impl Drop for AccessRecord {
    fn drop(&mut self) {
        let status = self.status.map_or(CLIENT_CLOSED, |status| status.as_u16());
        let (method, path, bytes) = (self.method.as_str(), self.path.as_str(), self.bytes);
        let duration_ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let client = self.client.map(tracing::field::display);
        let account = self.account.as_deref().unwrap_or("-");
        let user_agent = if self.agent.is_empty() { "-" } else { &self.agent };
        let request_id = self.request_id.to_str().unwrap_or_default();
        // Only present on requests whose client did not get all of the response.
        let aborted = (!self.is_complete).then_some(true);
        macro_rules! write_line {
            ($level:ident) => {
                tracing::$level!(
                    target: TARGET,
                    parent: None,
                    method, path, status, bytes, duration_ms, client, account, user_agent, request_id, aborted,
                    "access"
                )
            };
        }
        match self.is_quiet {
            true => write_line!(debug),
            false => write_line!(info),
        }
    }
}

/// Probes, scrapes and heartbeats, which are logged at level debug, like requests of this process.
fn is_probe(method: &Method, path: &str) -> bool {
    ["/healthz", "/readyz", "/metrics"].contains(&path)
        || method == Method::PUT && path.starts_with("/lode/v1/workers/") && path.split('/').count() == 5
}

/// Printable ASCII; other bytes and backslashes are escaped.
fn printable(bytes: &[u8], max_len: usize) -> String {
    let mut text = String::with_capacity(bytes.len().min(max_len));
    for &byte in bytes {
        if text.len() >= max_len {
            text.push_str("...");
            break;
        }
        match byte {
            b' '..=b'~' if byte != b'\\' => text.push(char::from(byte)),
            _ => text.extend(byte.escape_ascii().map(char::from)),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_clients_are_printable() {
        let check = |bytes: &[u8], expect: &str| assert_eq!(printable(bytes, 20), expect);
        check(b"docker/24.0 \"x\"", "docker/24.0 \"x\"");
        check(b"a\r\nb\x1b[2J\tc", "a\\r\\nb\\x1b[2J\\tc");
        check("\u{9b}31m\u{2028}".as_bytes(), "\\xc2\\x9b31m\\xe2\\x80\\xa8");
        check(b"back\\slash", "back\\\\slash");
        check(&[b'a'; 30], "aaaaaaaaaaaaaaaaaaaa...");
    }

    #[test]
    fn probes_scrapes_and_heartbeats_are_quiet() {
        let probe = |method: Method, path: &str| is_probe(&method, path);
        assert!(probe(Method::GET, "/healthz") && probe(Method::GET, "/metrics"));
        assert!(probe(Method::PUT, "/lode/v1/workers/1"));
        assert!(!probe(Method::PUT, "/lode/v1/workers/1/drain"));
        assert!(!probe(Method::DELETE, "/lode/v1/workers/1") && !probe(Method::GET, "/v2/healthz"));
    }
}

//! Command failures: the message, hints on what to type next, and the exit code. Commands return [`Failure`];
//! only `main` prints one.

use std::{error::Error as StdError, fmt, io};

use http::StatusCode;
use lode_client::{Registry, TlsProblem};
pub(crate) use lode_model::error_chain as chain;

/// The command failed.
pub(crate) const FAILED: u8 = 1;
/// `fsck` failed to run, or the command line or the settings are invalid.
pub(crate) const CANNOT_RUN: u8 = 2;
/// Standard output was closed by its reader: the code that shells report for SIGPIPE.
pub(crate) const PIPE_CLOSED: u8 = 141;

/// The error of a command.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    hints: Vec<String>,
    code: u8,
    /// The name that the registry does not have; similar names become a hint.
    missing: Option<Box<MissingModel>>,
    /// The server at `http://` whose response was no HTTP. It may use https.
    over_http: Option<String>,
    /// The server that requires a login. It may have no accounts.
    unauthorized: Option<String>,
    /// The server or the connection failed, and may be available again.
    is_transient: bool,
}

/// A name that a registry does not have.
#[derive(Debug)]
pub(crate) struct MissingModel {
    pub(crate) registry: Registry,
    /// `team/mini:latest`
    pub(crate) name: String,
}

pub(crate) type Outcome<T = ()> = Result<T, Failure>;

const REPEAT: &str = "repeat the command: it resumes where it stopped";

impl Failure {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Failure {
            message: message.into(),
            hints: Vec::new(),
            code: FAILED,
            missing: None,
            over_http: None,
            unauthorized: None,
            is_transient: false,
        }
    }

    /// An error with its sources; `doing` names the operation that failed.
    pub(crate) fn with_source(doing: impl fmt::Display, error: &dyn StdError) -> Self {
        Failure::new(format!("{doing}: {}", chain(error)))
    }

    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    /// Adds a hint before the others.
    #[must_use]
    pub(crate) fn first_hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.insert(0, hint.into());
        self
    }

    /// Notes which name was not found.
    #[must_use]
    pub(crate) fn missing(mut self, registry: Registry, name: String) -> Self {
        self.missing = Some(Box::new(MissingModel { registry, name }));
        self
    }

    fn unexpected_over_http(mut self, server: &str) -> Self {
        self.over_http = Some(server.to_owned());
        self
    }

    fn unauthorized(mut self, server: &str) -> Self {
        self.unauthorized = Some(server.to_owned());
        self
    }

    pub(crate) fn take_unauthorized(&mut self) -> Option<String> {
        self.unauthorized.take()
    }

    pub(crate) fn take_over_http(&mut self) -> Option<String> {
        self.over_http.take()
    }

    /// Adds that a repeated command does not send again what `registry` has stored, if uploads to it were interrupted. A
    /// server that never responded stored nothing.
    #[must_use]
    pub(crate) fn of_uploads(self, registry: &Registry) -> Self {
        let is_interrupted = self.is_transient && registry.has_responded();
        if is_interrupted && !self.hints.iter().any(|hint| hint == REPEAT) { self.hint(REPEAT) } else { self }
    }

    /// Replaces all hints.
    #[must_use]
    pub(crate) fn only_hint(mut self, hint: impl Into<String>) -> Self {
        self.hints = vec![hint.into()];
        self
    }

    pub(crate) fn take_missing(&mut self) -> Option<Box<MissingModel>> {
        self.missing.take()
    }

    #[must_use]
    pub(crate) fn code(mut self, code: u8) -> Self {
        self.code = code;
        self
    }

    pub(crate) fn exit_code(&self) -> u8 {
        self.code
    }

    /// The message without the hints.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// Prefixes the message with the operation that failed.
    #[must_use]
    pub(crate) fn with_context(mut self, doing: impl fmt::Display) -> Self {
        self.message = format!("{doing}: {}", self.message);
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.message)?;
        if !self.hints.is_empty() {
            writeln!(f)?;
        }
        for hint in &self.hints {
            write!(f, "\nhint: {hint}")?;
        }
        Ok(())
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Failure::new("the output was closed").code(PIPE_CLOSED);
        }
        Failure::new(chain(&error))
    }
}

impl From<lode_client::Error> for Failure {
    fn from(error: lode_client::Error) -> Self {
        use lode_client::Error as E;
        let failure = Failure { is_transient: error.is_transient(), ..Failure::new(chain(&error)) };
        if let (Some(problem), E::Connect { server, .. } | E::Transport { server, .. }) =
            (error.tls_problem(), &error)
        {
            // No option makes this certificate acceptable.
            let hint = match failure.message.contains("CaUsedAsEndEntity") {
                true => format!(
                    "the certificate of {} is that of an authority: create one for the server without `CA:TRUE` in its basic constraints",
                    bare(server)
                ),
                false => tls_hint(problem, server),
            };
            return failure.hint(hint);
        }
        match &error {
            E::Connect { server, .. } => failure.hint(format!(
                "is a server running at {server}? `lode serve` starts one; LODE_HOST or --host names another"
            )),
            E::Redirect { server, target, .. } => failure.hint(format!(
                "{target} is the storage of {server}: is it running, and does this machine reach it? With `redirect = false`, the server sends the content itself"
            )),
            E::Unauthorized { server, .. } => failure
                .hint(format!("`lode login {}` saves credentials for it", bare(server)))
                .unauthorized(server),
            E::ManifestUnknown { .. } | E::NameUnknown { .. } => {
                failure.hint("`lode repo list` shows the repositories")
            }
            E::Refused { server, status, entries, .. } if entries.is_empty() => {
                match proxy_hint(*status, server) {
                    Some(hint) => failure.hint(hint),
                    None => failure,
                }
            }
            E::InvalidAddress { .. } => failure.hint("write `http://host:port`, or `host:port` for https"),
            E::Transport { server, source } if source.is_body() || source.is_request() => {
                let is_plain = server.starts_with("http://") && source.is_request();
                let failure = failure.hint(REPEAT);
                if is_plain { failure.unexpected_over_http(server) } else { failure }
            }
            E::Stalled { .. } => failure.hint(REPEAT),
            E::Busy { .. } => failure.hint("wait for the other download to end, or write to another folder"),
            E::DigestMismatch { .. } => failure.hint(
                "the content was damaged in the storage or on the way: repeat the command; `lode fsck` checks what a server has stored",
            ),
            _ => failure,
        }
    }
}

/// What to do about a failed TLS handshake with `server`, which is `https://host:port`.
fn tls_hint(problem: TlsProblem, server: &str) -> String {
    let host = bare(server);
    match problem {
        TlsProblem::UnknownAuthority => format!(
            "no authority that this machine trusts has signed the certificate of {host}: name a PEM file with the authority in --ca-file (LODE_CA_FILE), or set SSL_CERT_FILE to a file with all of them"
        ),
        TlsProblem::WrongName => {
            format!("the certificate is not for `{host}`: use a name that it lists, or replace it")
        }
        TlsProblem::Expired => {
            format!("the certificate of {host} has expired: renew it, and check the clock of this machine")
        }
        TlsProblem::NotTls => {
            format!("{host} does not use https on this port: write http://{host}, or add --plain-http")
        }
        TlsProblem::Other => format!("the TLS handshake with {host} failed: does its port use https?"),
    }
}

/// What to do about a response that has no error code of a registry, so that a proxy in front of `server` sent it.
fn proxy_hint(status: StatusCode, server: &str) -> Option<String> {
    let host = bare(server);
    match status {
        StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT => Some(format!(
            "a proxy in front of {host} cannot reach the server: is it running, and is the address in the proxy's settings right?"
        )),
        StatusCode::PAYLOAD_TOO_LARGE => Some(format!(
            "a proxy in front of {host} limits the size of requests: remove its limit (nginx: `client_max_body_size 0;`)"
        )),
        _ => None,
    }
}

/// `https://hub.local:5000` as a person writes it after `login`.
fn bare(server: &str) -> &str {
    server.strip_prefix("https://").unwrap_or(server)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_formatted_with_hints() {
        let failure = Failure::new("model `acme/llama:9b` not found on `hub.local`")
            .hint("`lode list acme/llama` shows its tags");
        assert_eq!(
            failure.to_string(),
            "error: model `acme/llama:9b` not found on `hub.local`\n\nhint: `lode list acme/llama` shows its tags"
        );
        assert_eq!(failure.exit_code(), 1);
        assert_eq!(Failure::new("x").to_string(), "error: x");
    }

    #[test]
    fn responses_of_a_proxy_have_hints() {
        let refused = |status, entries| {
            let server = "https://hub.local:5000".to_owned();
            Failure::from(lode_client::Error::Refused { server, status, may_retry: false, entries })
                .to_string()
        };
        let text = refused(StatusCode::PAYLOAD_TOO_LARGE, Vec::new());
        assert!(
            text.contains("hint: a proxy in front of hub.local:5000 limits the size of requests"),
            "{text}"
        );
        let text = refused(StatusCode::BAD_GATEWAY, Vec::new());
        assert!(text.contains("hint: a proxy in front of hub.local:5000 cannot reach the server"), "{text}");

        let of_registry =
            lode_client::ErrorEntry { code: "DENIED".into(), message: "the quota is exceeded".into() };
        let text = refused(StatusCode::PAYLOAD_TOO_LARGE, vec![of_registry]);
        assert!(!text.contains("hint"), "{text}");
    }

    #[test]
    fn a_closed_pipe_has_its_own_code() {
        assert_eq!(Failure::from(io::Error::from(io::ErrorKind::BrokenPipe)).exit_code(), PIPE_CLOSED);
    }
}

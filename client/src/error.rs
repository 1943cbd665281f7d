//! Errors of the client. Callers match on the variants; the messages are for people.

use std::path::PathBuf;

use http::StatusCode;
use lode_model::{
    digest::Digest,
    reference::{Reference, Repository},
};
use serde::Deserialize;
use url::Url;

use crate::TlsProblem;

/// An entry of a registry's error response, unchanged.
#[derive(Debug, Clone, Deserialize, PartialEq, Eq)]
pub struct ErrorEntry {
    /// The code of the specification, such as `MANIFEST_UNKNOWN`.
    #[serde(default)]
    pub code: String,
    #[serde(default)]
    pub message: String,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("`{address}` is not a valid registry address: {why}")]
    InvalidAddress { address: String, why: &'static str },

    /// No connection was established, so the server has not received the request.
    #[error("cannot connect to {server}")]
    Connect {
        server: String,
        #[source]
        source: reqwest::Error,
    },

    /// No connection to a server to which the registry redirects, such as its storage.
    #[error("cannot connect to {target}, to which {server} redirects")]
    Redirect {
        server: String,
        target: String,
        #[source]
        source: reqwest::Error,
    },

    /// The egress policy permits no address of this host. Nothing was sent to it.
    #[error(
        "connection to {server} is not permitted: it has no public address and is not listed in the server's option `--allow-egress` (LODE_ALLOW_EGRESS)"
    )]
    Egress { server: String },

    /// The connection was interrupted during a request or a response.
    #[error("the connection to {server} was interrupted")]
    Transport {
        server: String,
        #[source]
        source: reqwest::Error,
    },

    #[error("{server} made no progress for {seconds} seconds")]
    Stalled { server: String, seconds: u64 },

    #[error("`{repository}` has no manifest `{reference}` on {server}")]
    ManifestUnknown { server: String, repository: Repository, reference: Box<Reference> },

    #[error("`{repository}` has no blob {digest} on {server}")]
    BlobUnknown { server: String, repository: Repository, digest: Digest },

    #[error("repository `{repository}` not found on {server}")]
    NameUnknown { server: String, repository: Repository },

    /// Credentials are missing or were rejected.
    #[error("{server} requires a login{}", detail(.entries))]
    Unauthorized { server: String, entries: Vec<ErrorEntry> },

    #[error("{server} denied the request{}", detail(.entries))]
    Denied { server: String, entries: Vec<ErrorEntry> },

    /// Any other status that is not success, after the last retry. `may_retry`: a later request may succeed.
    #[error("{server} returned {status}{}", detail(.entries))]
    Refused { server: String, status: StatusCode, may_retry: bool, entries: Vec<ErrorEntry> },

    #[error("expected content with digest {expected}, got {got}")]
    DigestMismatch { expected: Digest, got: Digest },

    #[error("expected {expected} bytes of {digest}, got {got}")]
    SizeMismatch { digest: Digest, expected: u64, got: u64 },

    /// The server's response violates the protocol.
    #[error("invalid response from {server}: {why}")]
    Protocol { server: String, why: String },

    #[error("{} is being written by another process", path.display())]
    Busy { path: PathBuf },

    #[error("cannot {action} {}", path.display())]
    File {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },

    /// The caller's content could not be read during an upload.
    #[error("cannot read the content of blob {digest} for the upload")]
    Content {
        digest: Digest,
        #[source]
        source: std::io::Error,
    },

    #[error("cannot set up the HTTP client")]
    Setup(#[source] reqwest::Error),
}

impl Error {
    /// Whether a retry of the request may succeed.
    pub fn is_transient(&self) -> bool {
        match self {
            Error::Connect { .. }
            | Error::Redirect { .. }
            | Error::Transport { .. }
            | Error::Stalled { .. } => true,
            Error::Refused { may_retry, .. } => *may_retry,
            _ => false,
        }
    }

    /// Why the connection has no TLS, if the failure is one of TLS.
    pub fn tls_problem(&self) -> Option<TlsProblem> {
        match self {
            Error::Connect { source, .. }
            | Error::Redirect { source, .. }
            | Error::Transport { source, .. } => TlsProblem::of(source),
            _ => None,
        }
    }

    /// Whether the server reported that the requested content does not exist.
    pub fn is_not_found(&self) -> bool {
        match self {
            Error::ManifestUnknown { .. } | Error::BlobUnknown { .. } | Error::NameUnknown { .. } => true,
            Error::Refused { status, .. } => *status == StatusCode::NOT_FOUND,
            _ => false,
        }
    }

    /// A message without the server's own words, for callers who must not learn what a server that they named
    /// responds to this process, or whether anything listens there. `Display` has the full message, for this
    /// process's log or its own user.
    pub fn summary(&self) -> String {
        match self {
            Error::Connect { server, .. }
            | Error::Redirect { server, .. }
            | Error::Transport { server, .. }
            | Error::Stalled { server, .. } => {
                format!("the registry at {server} gave no usable response")
            }
            Error::Unauthorized { server, .. } => format!("the registry at {server} requires a login (401)"),
            Error::Denied { server, .. } => format!("the registry at {server} refused the request (403)"),
            Error::Refused { server, status, .. } => {
                format!("the registry at {server} refused the request ({})", status.as_u16())
            }
            Error::Protocol { server, .. } => {
                format!("the registry at {server} sent a response that does not follow the protocol")
            }
            Error::DigestMismatch { expected, .. } => {
                format!("the content received for {expected} does not have that digest")
            }
            Error::SizeMismatch { digest, .. } => {
                format!("the content received for {digest} does not have the expected size")
            }
            Error::InvalidAddress { .. }
            | Error::Egress { .. }
            | Error::ManifestUnknown { .. }
            | Error::BlobUnknown { .. }
            | Error::NameUnknown { .. } => self.to_string(),
            Error::Busy { .. } | Error::File { .. } | Error::Content { .. } | Error::Setup(_) => {
                "content could not be read or written here".to_owned()
            }
        }
    }

    /// Whether the server's response has the error code `code`.
    pub fn has_code(&self, code: &str) -> bool {
        match self {
            Error::Unauthorized { entries, .. }
            | Error::Denied { entries, .. }
            | Error::Refused { entries, .. } => entries.iter().any(|entry| entry.code == code),
            _ => false,
        }
    }

    /// The status of the response, if there was one.
    pub fn status(&self) -> Option<StatusCode> {
        match self {
            Error::Refused { status, .. } => Some(*status),
            Error::ManifestUnknown { .. } | Error::BlobUnknown { .. } | Error::NameUnknown { .. } => {
                Some(StatusCode::NOT_FOUND)
            }
            Error::Unauthorized { .. } => Some(StatusCode::UNAUTHORIZED),
            Error::Denied { .. } => Some(StatusCode::FORBIDDEN),
            _ => None,
        }
    }
}

/// Whether a repetition of the request may succeed: the status is temporary, and the server does not forbid it with the
/// header that the clients of OpenAI and Anthropic read, too.
pub(crate) fn may_retry(response: &reqwest::Response) -> bool {
    let forbidden = response.headers().get("x-should-retry").is_some_and(|value| value == "false");
    is_transient_status(response.status()) && !forbidden
}

fn is_transient_status(status: StatusCode) -> bool {
    status.is_server_error()
        && status != StatusCode::NOT_IMPLEMENTED
        && status != StatusCode::INSUFFICIENT_STORAGE
        || status == StatusCode::TOO_MANY_REQUESTS
        || status == StatusCode::REQUEST_TIMEOUT
}

fn detail(entries: &[ErrorEntry]) -> String {
    let mut text = String::new();
    for entry in entries {
        let message = if entry.message.is_empty() { &entry.code } else { &entry.message };
        if !message.is_empty() {
            text.push_str(if text.is_empty() { ": " } else { "; " });
            text.push_str(message);
        }
    }
    text
}

/// Parses the body of an error response: the OCI format, problem details, the `{"error": "..."}` of other
/// APIs, or short plain text.
pub(crate) fn entries(body: &[u8]) -> Vec<ErrorEntry> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum ErrorField {
        Text(String),
        Object(ErrorEntry),
    }
    #[derive(Deserialize)]
    struct Envelope {
        #[serde(default)]
        errors: Vec<ErrorEntry>,
        error: Option<ErrorField>,
        /// Field of problem details (RFC 9457).
        detail: Option<String>,
        title: Option<String>,
        /// A text in Lode's problem details; other servers may use the name for anything.
        #[serde(default)]
        code: serde_json::Value,
    }
    if let Ok(envelope) = serde_json::from_slice::<Envelope>(body) {
        let mut entries = envelope.errors;
        let code = envelope.code.as_str().unwrap_or_default().to_owned();
        match envelope.error {
            Some(ErrorField::Text(message)) => entries.push(ErrorEntry { code, message }),
            Some(ErrorField::Object(entry)) => entries.push(entry),
            None if entries.is_empty() => {
                let message = envelope.detail.or(envelope.title);
                entries.extend(message.map(|message| ErrorEntry { code, message }));
            }
            None => {}
        }
        return entries;
    }
    let text = String::from_utf8_lossy(body);
    let text = text.trim();
    // The HTML page of a proxy is of no use in a message.
    if text.is_empty() || text.starts_with('<') || text.len() > 500 {
        return Vec::new();
    }
    vec![ErrorEntry { code: String::new(), message: text.to_owned() }]
}

/// The origin of a URL for messages, such as `https://hub.local:5000`. It has no path or query, so that
/// signed URLs are never printed.
pub(crate) fn server(url: &Url) -> String {
    url.origin().ascii_serialization()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_bodies_are_read_in_every_shape() {
        let check =
            |body: &str, expect: &str| assert_eq!(detail(&entries(body.as_bytes())), expect, "{body}");
        check(r#"{"errors":[{"code":"DENIED","message":"not yours"}]}"#, ": not yours");
        check(r#"{"errors":[{"code":"A"},{"code":"B","message":"b","detail":{"x":1}}]}"#, ": A; b");
        check(r#"{"error":"model not found"}"#, ": model not found");
        check(r#"{"title":"Not Found","status":404,"detail":"no such job"}"#, ": no such job");
        check(r#"{"title":"Not Found","detail":"no such job","error":"no such job"}"#, ": no such job");
        check(r#"{"error":{"message":"no","type":"x"}}"#, ": no");
        check(r#"{"code":404,"error":"no such job"}"#, ": no such job");
        check("disk full\n", ": disk full");
        check("<html>bad gateway</html>", "");
        check("", "");
        check("{}", "");
        let problem =
            entries(br#"{"status":503,"detail":"no worker","code":"NO_WORKER","error":"no worker"}"#);
        let expect = ErrorEntry { code: "NO_WORKER".into(), message: "no worker".into() };
        assert_eq!(problem, [expect]);
    }
}

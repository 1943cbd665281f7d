//! What can go wrong between this process and a registry, with the names of what was asked for. Callers match on variants; the text is for people.

use std::path::PathBuf;

use http::StatusCode;
use lode_model::{
    digest::Digest,
    reference::{Reference, Repository},
};
use serde::Deserialize;
use url::Url;

/// One entry of a registry's error envelope, as it was sent.
#[derive(Debug, Clone, Deserialize, PartialEq, Eq)]
pub struct ErrorEntry {
    /// The spec's code, such as `MANIFEST_UNKNOWN`.
    #[serde(default)]
    pub code: String,
    #[serde(default)]
    pub message: String,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("`{address}` is not an address of a registry: {why}")]
    InvalidAddress { address: String, why: &'static str },

    /// No connection came about, so nothing was asked and nothing was changed.
    #[error("cannot connect to {server}")]
    Connect {
        server: String,
        #[source]
        source: reqwest::Error,
    },

    /// The egress policy permits no address of this host: nothing was sent to it.
    #[error(
        "{server} has no public address, and `--allow-egress` (LODE_ALLOW_EGRESS) does not list it: the server does not connect to it"
    )]
    Egress { server: String },

    /// The connection broke in the middle of a request or an answer.
    #[error("the connection to {server} broke")]
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

    #[error("{server} does not know `{repository}`")]
    NameUnknown { server: String, repository: Repository },

    /// Credentials are missing or were not accepted.
    #[error("{server} asks for a login{}", detail(.entries))]
    Unauthorized { server: String, entries: Vec<ErrorEntry> },

    #[error("{server} does not allow this{}", detail(.entries))]
    Denied { server: String, entries: Vec<ErrorEntry> },

    /// Any other status that is not success, once retries were used up.
    #[error("{server} answered {status}{}", detail(.entries))]
    Refused { server: String, status: StatusCode, entries: Vec<ErrorEntry> },

    #[error("expected content of digest {expected} and got {got}")]
    DigestMismatch { expected: Digest, got: Digest },

    #[error("expected {expected} bytes of {digest} and got {got}")]
    SizeMismatch { digest: Digest, expected: u64, got: u64 },

    /// The server's answer breaks the protocol.
    #[error("{server} gave an answer that is not understood: {why}")]
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

    /// The caller's own content could not be read while it was being sent.
    #[error("cannot read what is to be uploaded as {digest}")]
    Content {
        digest: Digest,
        #[source]
        source: std::io::Error,
    },

    #[error("cannot set up the HTTP client")]
    Setup(#[source] reqwest::Error),
}

impl Error {
    /// Whether the same request may succeed a moment later.
    pub fn is_transient(&self) -> bool {
        match self {
            Error::Connect { .. } | Error::Transport { .. } | Error::Stalled { .. } => true,
            Error::Refused { status, .. } => is_transient_status(*status),
            _ => false,
        }
    }

    /// Whether the server said that what was asked for does not exist.
    pub fn is_not_found(&self) -> bool {
        match self {
            Error::ManifestUnknown { .. } | Error::BlobUnknown { .. } | Error::NameUnknown { .. } => true,
            Error::Refused { status, .. } => *status == StatusCode::NOT_FOUND,
            _ => false,
        }
    }

    /// The error in words of our own, for callers who must not learn what a server that they name says to this process,
    /// nor whether anything listens there. `Display` has the whole, for this process's own log or its own user.
    pub fn summary(&self) -> String {
        match self {
            Error::Connect { server, .. }
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

    /// The status of the answer, where there was one.
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

pub(crate) fn is_transient_status(status: StatusCode) -> bool {
    status.is_server_error()
        && status != StatusCode::NOT_IMPLEMENTED
        && status != StatusCode::INSUFFICIENT_STORAGE
        || status == StatusCode::TOO_MANY_REQUESTS
        || status == StatusCode::REQUEST_TIMEOUT
}

fn detail(entries: &[ErrorEntry]) -> String {
    let mut text = String::new();
    for entry in entries {
        let said = if entry.message.is_empty() { &entry.code } else { &entry.message };
        if !said.is_empty() {
            text.push_str(if text.is_empty() { ": " } else { "; " });
            text.push_str(said);
        }
    }
    text
}

/// The entries of an error body: the OCI envelope, problem details, the `{"error": "..."}` of the other APIs, or short plain text.
pub(crate) fn entries(body: &[u8]) -> Vec<ErrorEntry> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Said {
        Text(String),
        Object(ErrorEntry),
    }
    #[derive(Deserialize)]
    struct Envelope {
        #[serde(default)]
        errors: Vec<ErrorEntry>,
        error: Option<Said>,
        /// Of problem details (RFC 9457).
        detail: Option<String>,
        title: Option<String>,
    }
    if let Ok(envelope) = serde_json::from_slice::<Envelope>(body) {
        let mut entries = envelope.errors;
        match envelope.error {
            Some(Said::Text(message)) => entries.push(ErrorEntry { code: String::new(), message }),
            Some(Said::Object(entry)) => entries.push(entry),
            None if entries.is_empty() => {
                let message = envelope.detail.or(envelope.title);
                entries.extend(message.map(|message| ErrorEntry { code: String::new(), message }));
            }
            None => {}
        }
        return entries;
    }
    let text = String::from_utf8_lossy(body);
    let text = text.trim();
    // A proxy's HTML page helps nobody.
    if text.is_empty() || text.starts_with('<') || text.len() > 500 {
        return Vec::new();
    }
    vec![ErrorEntry { code: String::new(), message: text.to_owned() }]
}

/// `https://hub.local:5000`, for messages: no path, no query, so no signed address is ever printed.
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
        check("disk full\n", ": disk full");
        check("<html>bad gateway</html>", "");
        check("", "");
        check("{}", "");
    }
}

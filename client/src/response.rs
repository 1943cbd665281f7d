//! What a server sent back: errors of connections and of responses, and bodies up to a limit.

use std::time::Duration;

use reqwest::StatusCode;
use url::Url;

use crate::{Error, egress, error};

const MAX_ERROR_BODY: usize = 64 << 10;

/// Converts an error of the connection, without the URL.
pub(crate) fn transport_error(server: String, source: reqwest::Error) -> Error {
    // The URL may be signed and must not be printed. The error has the server's name.
    let source = source.without_url();
    if egress::is_refusal(&source) {
        tracing::debug!(server, error = ?source, "no permitted address");
        return Error::Egress { server };
    }
    if source.is_connect() { Error::Connect { server, source } } else { Error::Transport { server, source } }
}

/// Converts an error response, including its body up to a limit.
pub(crate) async fn response_error(response: reqwest::Response, url: &Url) -> Error {
    let server = error::server(url);
    let (status, may_retry) = (response.status(), error::may_retry(&response));
    let body = read_limited(response, MAX_ERROR_BODY, &server).await.unwrap_or_default();
    let entries = error::entries(&body);
    match status {
        StatusCode::UNAUTHORIZED => Error::Unauthorized { server, entries },
        StatusCode::FORBIDDEN => Error::Denied { server, entries },
        _ => Error::Refused { server, status, may_retry, entries },
    }
}

/// Reads a body of at most `limit` bytes.
pub(crate) async fn read_limited(
    mut response: reqwest::Response,
    limit: usize,
    server: &str,
) -> Result<Vec<u8>, Error> {
    const IDLE: Duration = Duration::from_secs(60);
    /// Minimum speed of a body, against responses that trickle in byte by byte.
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
            let why = format!("the response is longer than {limit} bytes");
            return Err(Error::Protocol { server: server.to_owned(), why });
        }
        body.extend_from_slice(&chunk);
    }
}

//! One match from what can go wrong to a status and ollama's `{"error": text}`.
//! A 503 makes the gateway try another worker; anything else is the caller's answer.

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde_json::json;

use super::stream;
use crate::error::Error;
use crate::runner::protocol::{ErrorKind, RunnerError};

impl Error {
    pub(super) fn status(&self) -> StatusCode {
        match self {
            Error::Invalid(_) | Error::Unsupported(_) => StatusCode::BAD_REQUEST,
            Error::Runner(RunnerError { kind: ErrorKind::Invalid | ErrorKind::Unsupported, .. }) => {
                StatusCode::BAD_REQUEST
            }
            Error::Unauthorized => StatusCode::UNAUTHORIZED,
            Error::ModelUnknown(_) => StatusCode::NOT_FOUND,
            Error::Busy | Error::Memory { .. } | Error::CacheFull { .. } | Error::Stopping => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Error::Pull { source, .. } if source.is_transient() => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        let status = self.status();
        if status.is_server_error() {
            tracing::warn!(error = %chain(&self), "a request failed");
        }
        stream::json(status, &json!({ "error": self.to_string() }))
    }
}

/// What the gateway passes on and this worker does not know.
pub(super) async fn not_served(uri: http::Uri) -> Response {
    let text = format!("{} is not served by this version of the worker", uri.path());
    stream::json(StatusCode::NOT_FOUND, &json!({ "error": text }))
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

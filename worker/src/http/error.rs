//! Maps errors to a status and ollama's `{"error": text}`. Errors name a model by its manifest's digest; the
//! response replaces the digest with the name from the request. A 503 makes the gateway try another worker;
//! any other response is returned to the caller.

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use lode_client::BodyError;
use lode_model::digest::Digest;
use lode_model::error_chain;
use serde_json::json;

use super::request;
use super::response::json_response;
use crate::error::Error;
use crate::runner::protocol::{ErrorKind, RunnerError};

impl Error {
    pub(super) fn status(&self) -> StatusCode {
        match self {
            Error::Invalid(_) | Error::Unsupported(_) => StatusCode::BAD_REQUEST,
            Error::Runner(RunnerError { kind: ErrorKind::Invalid | ErrorKind::Unsupported, .. }) => {
                StatusCode::BAD_REQUEST
            }
            Error::Runner(RunnerError { kind: ErrorKind::Unavailable, .. }) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Error::Body(error) => match error {
                BodyError::TooLarge { .. } | BodyError::TooCostly { .. } => StatusCode::PAYLOAD_TOO_LARGE,
                BodyError::BudgetExhausted => StatusCode::SERVICE_UNAVAILABLE,
                BodyError::Interrupted(_) => StatusCode::BAD_REQUEST,
            },
            Error::Unauthorized => StatusCode::UNAUTHORIZED,
            Error::ModelUnknown(_) => StatusCode::NOT_FOUND,
            Error::Load(error) => error.status(),
            Error::Busy
            | Error::Memory { .. }
            | Error::TooLarge { .. }
            | Error::CacheFull { .. }
            | Error::Stopping => StatusCode::SERVICE_UNAVAILABLE,
            Error::Pull { source, .. } if source.is_transient() => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

/// An error's text, for [`replace_digest_with_name`].
#[derive(Clone)]
struct ErrorText(String);

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        let status = self.status();
        if status.is_server_error() {
            tracing::warn!(error = %error_chain(&self), "request failed");
        }
        let text = self.to_string();
        let mut response = json_response(status, &json!({ "error": text }));
        response.extensions_mut().insert(ErrorText(text));
        response
    }
}

/// Replaces the model's digest in an error with the name from the request.
pub(super) async fn replace_digest_with_name(request: Request, next: Next) -> Response {
    let named = request::model_and_name(request.headers());
    let response = next.run(request).await;
    match (named, response.extensions().get::<ErrorText>()) {
        (Some((digest, name)), Some(ErrorText(text))) => {
            json_response(response.status(), &json!({ "error": with_name(text, &digest, &name) }))
        }
        _ => response,
    }
}

/// Replaces the model's digest in a message with `name`.
pub(super) fn with_name(text: &str, digest: &Digest, name: &str) -> String {
    text.replace(digest.as_str(), name)
}

/// Response for an unknown route.
pub(super) async fn unknown_route(uri: http::Uri) -> Response {
    let text = format!("{} is not served by this version of the worker", uri.path());
    json_response(StatusCode::NOT_FOUND, &json!({ "error": text }))
}

//! Error responses under `/v1/messages`, in Anthropic's format.

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde_json::{Value, json};

use crate::http::{Failure, Json};

/// `id`: of the request.
pub(crate) fn respond(failure: &Failure, id: &str) -> Response {
    let status = failure.status();
    let mut error = error_object(error_kind(status), &failure.message());
    error["request_id"] = json!(id);
    (status, Json(error)).into_response()
}

pub(super) fn error_object(kind: &str, message: &str) -> Value {
    json!({ "type": "error", "error": { "type": kind, "message": message } })
}

fn error_kind(status: StatusCode) -> &'static str {
    match status.as_u16() {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        408 | 504 => "timeout_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        400..500 => "invalid_request_error",
        503 | 529 => "overloaded_error",
        _ => "api_error",
    }
}

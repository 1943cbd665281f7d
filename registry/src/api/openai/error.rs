//! Error responses under `/v1`, in OpenAI's format.

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde_json::json;

use crate::http::{Failure, Json};

pub(crate) fn respond(failure: &Failure) -> Response {
    let status = failure.status();
    let kind = match status.as_u16() {
        404 => "not_found_error",
        429 => "rate_limit_error",
        400..500 => "invalid_request_error",
        _ => "api_error",
    };
    let code = (status == StatusCode::UNAUTHORIZED).then_some("invalid_api_key");
    let param = match failure {
        Failure::Field { field, .. } => Some(field),
        _ => None,
    };
    let error = json!({ "message": failure.message(), "type": kind, "param": param, "code": code });
    (status, Json(json!({ "error": error }))).into_response()
}

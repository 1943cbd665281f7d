//! Error responses: problem details (RFC 9457) under `/lode/v1`; under `/api`, and everywhere without a
//! format of its own, `{"error":"text"}`, as ollama's clients expect.

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, header};
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use crate::http::{Failure, Json};

pub(crate) fn respond(failure: &Failure) -> Response {
    (failure.status(), Json(json!({ "error": failure.message() }))).into_response()
}

/// Problem details, RFC 9457.
#[derive(Serialize, ToSchema)]
pub(super) struct Problem<'a> {
    /// Always `about:blank`: programs act on the status, and on `code`.
    #[serde(rename = "type")]
    kind: &'static str,
    title: &'static str,
    status: u16,
    detail: &'a str,
    /// The request's id, as in the log.
    instance: &'a str,
    /// Why, for programs: `NO_WORKER` if no worker is attached or responds. Absent if the status says enough.
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'static str>,
    /// The same as `detail`, for clients of earlier versions.
    error: &'a str,
}

/// `id`: of the request.
pub(crate) fn problem(failure: &Failure, id: &str) -> Response {
    let (status, message) = (failure.status(), failure.message());
    let problem = Problem {
        kind: "about:blank",
        title: status.canonical_reason().unwrap_or("Error"),
        status: status.as_u16(),
        detail: &message,
        instance: id,
        code: failure.code(),
        error: &message,
    };
    let kind = HeaderValue::from_static("application/problem+json");
    let mut response = (status, Json(problem)).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

//! Responses with one JSON value.

use axum::response::{IntoResponse, Response};
use http::{StatusCode, header};
use serde::Serialize;

pub(super) fn json_response(status: StatusCode, value: &impl Serialize) -> Response {
    let body = serde_json::to_vec(value).unwrap_or_default();
    (status, [(header::CONTENT_TYPE, "application/json; charset=utf-8")], body).into_response()
}

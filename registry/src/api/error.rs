//! From a failure to an answer under `/api`, `/lode/v1` and everywhere that has no words of its own: `{"error":"text"}`, as ollama's clients read it.

use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::http::{Failure, Json};

pub(crate) fn respond(failure: &Failure) -> Response {
    (failure.status(), Json(json!({ "error": failure.message() }))).into_response()
}

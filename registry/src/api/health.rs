//! The operators' probes: alive, and ready.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde_json::json;

use crate::Registry;
use crate::http::Json;

/// Answers while the process serves.
pub(crate) async fn healthz() -> &'static str {
    "ok\n"
}

/// 200 once everything that was asked for is there, otherwise 503 with what is missing.
pub(crate) async fn readyz(State(registry): State<Registry>) -> Response {
    match registry.ready().await {
        Ok(()) => Json(json!({ "ready": true })).into_response(),
        Err(missing) => {
            (StatusCode::SERVICE_UNAVAILABLE, Json(json!({ "ready": false, "missing": missing })))
                .into_response()
        }
    }
}

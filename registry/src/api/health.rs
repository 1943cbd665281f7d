//! What operators' tools ask: alive, ready, and how it goes.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{StatusCode, header};
use serde_json::json;

use crate::Registry;
use crate::http::Json;
use crate::metrics::page;

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

/// Prometheus' text format. Numbers about the whole server only, so that it asks for no more rights than the probes do.
pub(crate) async fn metrics(State(registry): State<Registry>) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], page(&registry).await)
        .into_response()
}

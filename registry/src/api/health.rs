//! Health, readiness and metrics, for operators' tools.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{StatusCode, header};
use serde_json::json;

use crate::Registry;
use crate::http::Json;
use crate::metrics::render_metrics;

/// Succeeds while the process serves.
pub(crate) async fn healthz() -> &'static str {
    "ok\n"
}

/// 200 once all required parts are available; otherwise 503 with the list of missing ones.
pub(crate) async fn readyz(State(registry): State<Registry>) -> Response {
    match registry.ready().await {
        Ok(()) => Json(json!({ "ready": true })).into_response(),
        Err(missing) => {
            (StatusCode::SERVICE_UNAVAILABLE, Json(json!({ "ready": false, "missing": missing })))
                .into_response()
        }
    }
}

/// Metrics in Prometheus' text format. They cover only the whole server, so they need no more rights than the
/// probes.
pub(crate) async fn metrics(State(registry): State<Registry>) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], render_metrics(&registry).await)
        .into_response()
}

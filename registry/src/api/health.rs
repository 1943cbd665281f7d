//! Health, readiness and metrics, for operators' tools.

use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{StatusCode, header};
use serde_json::json;

use crate::auth::{Action, Caller, Target};
use crate::http::{Failure, Json};
use crate::metrics::{self, DatabaseGauges};
use crate::{Error, Registry};

/// Timeout of the database queries of `/metrics`; a database that is down must not hide the other metrics.
const COUNT_TIMEOUT: Duration = Duration::from_secs(2);

/// Succeeds while the process serves.
pub(crate) async fn healthz() -> &'static str {
    "ok\n"
}

/// 200 once all required parts are available; otherwise 503 with the list of missing ones, unless it is private.
pub(crate) async fn readyz(State(registry): State<Registry>) -> Response {
    match registry.ready().await {
        Ok(()) => Json(json!({ "ready": true })).into_response(),
        Err(missing) => {
            let mut body = json!({ "ready": false });
            if !registry.config().private_metrics {
                body["missing"] = missing.into();
            }
            (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response()
        }
    }
}

/// Metrics in Prometheus' text format. They cover only the whole server, so they need no more rights than the
/// probes, unless they are private.
pub(crate) async fn metrics(State(registry): State<Registry>, caller: Caller) -> Result<Response, Failure> {
    if registry.config().private_metrics {
        registry.authorize(&caller, Action::Inspect, Target::Server).await?;
    }
    let gauges = tokio::time::timeout(COUNT_TIMEOUT, database_gauges(&registry)).await;
    let gauges = gauges.ok().and_then(Result::ok);
    let page = metrics::render(&registry.store().connections(), gauges);
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], page).into_response())
}

async fn database_gauges(registry: &Registry) -> Result<DatabaseGauges, Error> {
    let workers = registry.workers_attached().await?;
    let counts = registry.store().counts().await?;
    Ok(DatabaseGauges {
        uploads: counts.uploads,
        workers: workers.len(),
        workers_draining: workers.len() - workers.open().len(),
        webhooks: counts.webhooks,
        index_queue: counts.index_queue,
    })
}

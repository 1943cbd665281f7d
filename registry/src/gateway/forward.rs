//! Sends one request to one of several workers. The next worker is tried until the first byte of a response
//! arrives, never after it. Dropping the response closes the connection to the worker, which then stops the
//! work. A client that does not read the response causes the same.

use std::cmp::Reverse;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use http::{HeaderValue, StatusCode, header};
use lode_model::digest::Digest;
use lode_model::reference::Repository;
use rand::Rng;
use serde_json::json;
use url::Url;

use super::choose::{Candidates, rank_workers};
use super::clients::{InProgress, network};
use super::{Gateway, GatewayError};
use crate::app::Worker;
use crate::error::chain;
use crate::http::Failure;
use crate::http::extract::InferenceBody;
use crate::http::forwarded::ClientAddress;
use crate::http::stall::{CancelUnread, ReadTimeout};
use crate::{Registry, traces};

const NDJSON: &str = "application/x-ndjson";

/// An inference request whose model is resolved.
pub(crate) struct InferenceRequest {
    pub(crate) repository: Repository,
    pub(crate) digest: Digest,
    /// As the caller wrote it; workers repeat it in their responses.
    pub(crate) name: String,
    pub(crate) client: ClientAddress,
    /// The worker's path.
    pub(crate) path: &'static str,
    /// With its charge, which is kept until a worker begins its response.
    pub(crate) body: InferenceBody,
}

/// A worker's response, from its first byte.
pub(crate) struct WorkerResponse {
    pub(crate) status: StatusCode,
    pub(crate) content_type: HeaderValue,
    pub(crate) bytes: BoxStream<'static, Result<Bytes, GatewayError>>,
}

/// Sends the request to attached workers in order of preference, until one of them accepts it.
pub(crate) async fn forward(registry: &Registry, ask: InferenceRequest) -> Result<WorkerResponse, Failure> {
    let in_progress = registry.gateway().clients.admit(ask.client.0)?;
    let table = registry.workers_attached().await?;
    let classes = [
        Candidates::Places(table.loaded(&ask.digest)),
        Candidates::Places(table.cached(&ask.digest)),
        Candidates::All(table.len()),
    ];
    let gateway = registry.gateway();
    let load = |at: usize| {
        let worker = table.worker(at);
        (gateway.requests_at(worker.id), Reverse(free_bytes(worker)))
    };
    let random = |below: usize| rand::rng().random_range(0..below);
    let workers: Vec<_> =
        rank_workers(&classes, random, load).into_iter().map(|at| table.worker(at).clone()).collect();
    if workers.is_empty() {
        return Err(GatewayError::NoWorker { model: ask.name }.into());
    }
    let stall_timeout = registry.config().stall_timeout;
    let tried = workers.len();
    let mut busy = None;
    for worker in workers {
        match send(registry.gateway(), &worker, &ask).await {
            Ok(answer) if answer.status == StatusCode::SERVICE_UNAVAILABLE => {
                busy = Some(answer.cancel_if_unread(stall_timeout, None));
            }
            Ok(answer) if is_auth_refusal(answer.status) => {
                tracing::warn!(worker = %worker.id, status = answer.status.as_u16(), "worker refused this registry's secret");
            }
            Ok(answer) => return Ok(answer.cancel_if_unread(stall_timeout, in_progress)),
            Err(error) => tracing::warn!(worker = %worker.id, error = chain(&error), "worker request failed"),
        }
    }
    busy.ok_or_else(|| GatewayError::NoWorkerResponded { model: ask.name, tried }.into())
}

fn free_bytes(worker: &Worker) -> u64 {
    worker.devices.iter().fold(0, |sum, device| sum.saturating_add(device.free_bytes))
}

/// The worker was restarted and has a new secret, which its next registration reports.
fn is_auth_refusal(status: StatusCode) -> bool {
    matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
}

async fn send(
    gateway: &Gateway,
    worker: &Worker,
    ask: &InferenceRequest,
) -> Result<WorkerResponse, reqwest::Error> {
    // Counted until the response has been passed on, or dropped.
    let counted = gateway.count_request(worker.id);
    let client = ask.client.0.map(|client| network(client).to_string()).unwrap_or_default();
    let response = gateway
        .client
        .post(address(&worker.advertise, ask.path))
        .headers(traces::trace_headers())
        .bearer_auth(&worker.secret)
        .header(header::CONTENT_TYPE, "application/json")
        .header("lode-model", format!("{}@{}", ask.repository, ask.digest))
        .header("lode-model-name", HeaderValue::from_str(&ask.name).unwrap_or(HeaderValue::from_static("")))
        // Workers serve clients in turn when requests wait for a model.
        .header("lode-client", client)
        .body(ask.body.bytes.clone())
        .send()
        .await?;
    let status = response.status();
    let json = HeaderValue::from_static("application/json");
    let content_type = response.headers().get(header::CONTENT_TYPE).cloned().unwrap_or(json);
    let mut rest = response.bytes_stream();
    let first = rest.next().await.transpose()?;
    let bytes = stream::iter(first.map(Ok)).chain(rest).map_err(GatewayError::ResponseInterrupted).map(
        move |piece| {
            let _counted = &counted;
            piece
        },
    );
    let bytes = bytes.boxed();
    Ok(WorkerResponse { status, content_type, bytes })
}

/// The URL of `path` on the worker, whose advertised URL may have a path.
pub(super) fn address(advertise: &Url, path: &str) -> Url {
    let mut url = advertise.clone();
    url.set_path(&format!("{}{path}", advertise.path().trim_end_matches('/')));
    url
}

impl WorkerResponse {
    /// Cancels the response if its client does not read it, and counts it among the client's requests until
    /// it ends.
    fn cancel_if_unread(self, limit: Duration, in_progress: Option<InProgress>) -> WorkerResponse {
        let counted = self.bytes.inspect(move |_| {
            let _until_the_end = &in_progress;
        });
        let bytes = CancelUnread::new(counted, limit).map(move |item| {
            item.unwrap_or_else(|ReadTimeout| {
                tracing::info!(
                    limit_ms = limit.as_millis() as u64,
                    "cancelled response: client did not read it"
                );
                Err(GatewayError::NotRead { limit })
            })
        });
        WorkerResponse { bytes: bytes.boxed(), ..self }
    }
}

impl IntoResponse for WorkerResponse {
    /// Passes the response through. If a stream of records ends early, its last record reports the error.
    fn into_response(self) -> Response {
        let is_stream = self.content_type.as_bytes().starts_with(NDJSON.as_bytes());
        let bytes = self.bytes.or_else(move |error| async move {
            tracing::warn!(error = chain(&error), "response ended early");
            let record = Bytes::from(format!("{}\n", json!({ "error": error.to_string() })));
            if is_stream { Ok(record) } else { Err(error) }
        });
        (self.status, [(header::CONTENT_TYPE, self.content_type)], Body::from_stream(bytes)).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_join() {
        for (advertise, expect) in [
            ("http://10.0.0.1:7000", "http://10.0.0.1:7000/api/chat"),
            ("http://10.0.0.1:7000/", "http://10.0.0.1:7000/api/chat"),
            ("https://gpu.example/w1/", "https://gpu.example/w1/api/chat"),
        ] {
            assert_eq!(address(&advertise.parse().unwrap(), "/api/chat").as_str(), expect);
        }
    }
}

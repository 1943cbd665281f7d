//! Sends one request to one of several workers. The next worker is tried until the first byte of a response
//! arrives, never after it. Dropping the response closes the connection to the worker, which then stops the
//! work. A client that does not read the response causes the same.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt, TryStreamExt};
use http::{HeaderValue, StatusCode, header};
use lode_client::{Charge, Urgency};
use lode_model::digest::Digest;
use lode_model::reference::Repository;
use rand::Rng;
use serde::Deserialize;
use serde_json::Value;
use url::Url;
use uuid::Uuid;

use super::choose::{prefer_home, put_first, rank_workers};
use super::clients::{Clients, InProgress, RequestClient};
use super::conversation::ConversationKey;
use super::error::GatewayError;
use super::unread::{CancelUnread, ReadTimeout};
use crate::app::{Worker, WorkerTable};
use crate::error::chain;
use crate::{Config, OpenError, traces};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Timeout of a worker's list of loaded models.
const LISTING_TIMEOUT: Duration = Duration::from_secs(2);

/// How many workers receive the request to unload a model at the same time.
const MAX_CONCURRENT_UNLOADS: usize = 16;

/// How many workers are examined to find an idle one.
const MAX_IDLE_LOOKED_AT: usize = 16;

/// The connections to workers, and the requests of each client.
#[derive(Clone)]
pub(crate) struct Gateway {
    client: reqwest::Client,
    /// Requests of this replica in progress, by worker.
    requests: Arc<Mutex<HashMap<Uuid, usize>>>,
    clients: Clients,
    stall_timeout: Duration,
}

/// A request in progress on a worker; dropping it decrements the count.
struct CountedRequest {
    requests: Arc<Mutex<HashMap<Uuid, usize>>>,
    worker: Uuid,
}

impl Drop for CountedRequest {
    fn drop(&mut self) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = requests.get_mut(&self.worker) {
            *count -= 1;
            if *count == 0 {
                requests.remove(&self.worker);
            }
        }
    }
}

impl Gateway {
    pub(crate) fn new(config: &Config) -> Result<Gateway, OpenError> {
        // A response has no timeout as long as the client reads it; it ends when the client disconnects.
        let configure = || {
            reqwest::Client::builder()
                .no_proxy()
                .redirect(reqwest::redirect::Policy::none())
                .connect_timeout(CONNECT_TIMEOUT)
        };
        let client = lode_client::http_client(configure)
            .map_err(|error| OpenError::Config { setting: "gateway", reason: error.to_string() })?;
        Ok(Gateway {
            client,
            requests: Arc::default(),
            clients: Clients::new(config.max_per_client),
            stall_timeout: config.stall_timeout,
        })
    }

    fn requests_at(&self, worker: Uuid) -> usize {
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        requests.get(&worker).copied().unwrap_or(0)
    }

    fn count_request(&self, worker: Uuid) -> CountedRequest {
        *self.requests.lock().unwrap_or_else(PoisonError::into_inner).entry(worker).or_insert(0) += 1;
        CountedRequest { requests: self.requests.clone(), worker }
    }

    /// Sends the request to attached workers in order of preference, until one of them accepts it.
    pub(crate) async fn forward(
        &self,
        table: &WorkerTable,
        request: InferenceRequest,
    ) -> Result<WorkerResponse, GatewayError> {
        let in_progress = self.clients.admit(request.client.as_ref())?;
        let workers = self.rank(table, &request);
        if workers.is_empty() {
            return Err(match table.len() {
                0 => GatewayError::NoWorker { model: request.name },
                count if table.all_draining() => GatewayError::AllDraining { model: request.name, count },
                count => GatewayError::AllReserved { model: request.name, count },
            });
        }
        let tried = workers.len();
        let mut busy = None;
        for worker in workers {
            match self.send(&worker, &request).await {
                Ok(response) if response.status == StatusCode::SERVICE_UNAVAILABLE => {
                    busy = Some(response.cancel_if_unread(self.stall_timeout, None));
                }
                Ok(response) if is_auth_refusal(response.status) => {
                    tracing::warn!(worker = %worker.id, status = response.status.as_u16(), "worker refused this registry's secret");
                }
                Ok(response) => return Ok(response.cancel_if_unread(self.stall_timeout, in_progress)),
                Err(error) => {
                    tracing::warn!(worker = %worker.id, error = chain(&error), "worker request failed")
                }
            }
        }
        busy.ok_or(GatewayError::NoWorkerResponded { model: request.name, tried })
    }

    /// Returns the workers to try, in order.
    fn rank(&self, table: &WorkerTable, request: &InferenceRequest) -> Vec<Arc<Worker>> {
        let (loaded, cached) = (table.loaded(&request.digest), table.cached(&request.digest));
        let requests = |at: usize| self.requests_at(table.worker(at).id);
        let load = |at: usize| (requests(at), Reverse(free_bytes(table.worker(at))));
        let random = |below: usize| rand::rng().random_range(0..below);
        let mut chosen =
            rank_workers(&[loaded, table.reserved(&request.repository), cached, table.open()], random, load);
        // 1. The worker that has the start of this conversation in its cache.
        if loaded.len() > 1
            && let Some(key) = ConversationKey::read(request.path, &request.body)
            && let Some(home) = loaded.iter().max_by_key(|at| key.weight(table.worker(**at).id))
        {
            prefer_home(&mut chosen, *home, requests);
        }
        // 2. If the request would wait there: an idle worker that has the model on disk, which loads it.
        let is_full = |at: usize| {
            let most = table.worker(at).max_requests(&request.digest);
            most.is_some_and(|most| requests(at) as u64 >= most)
        };
        if chosen.first().is_some_and(|first| is_full(*first)) {
            let start = random(cached.len().max(1));
            let looked_at = cached.iter().cycle().skip(start).take(cached.len().min(MAX_IDLE_LOOKED_AT));
            if let Some(idle) = looked_at.copied().find(|at| !loaded.contains(at) && requests(*at) == 0) {
                put_first(&mut chosen, idle);
            }
        }
        chosen.into_iter().map(|at| table.worker(at).clone()).collect()
    }

    /// Sends a request that unloads a model to each worker that has reported it as loaded. A worker that
    /// does not respond in time unloads it when its keep-alive ends.
    pub(crate) async fn send_to_loaded(&self, table: &WorkerTable, request: &InferenceRequest) {
        let mut requests = Vec::new();
        for at in table.loaded(&request.digest) {
            requests.push(self.send_unload(table.worker(*at).clone(), request).boxed());
        }
        stream::iter(requests).buffer_unordered(MAX_CONCURRENT_UNLOADS).collect::<()>().await;
    }

    async fn send_unload(&self, worker: Arc<Worker>, request: &InferenceRequest) {
        match tokio::time::timeout(LISTING_TIMEOUT, self.send(&worker, request)).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => {
                tracing::warn!(worker = %worker.id, error = chain(&error), "worker request failed");
            }
            Err(_) => tracing::warn!(worker = %worker.id, "worker did not respond in time"),
        }
    }

    async fn send(
        &self,
        worker: &Worker,
        request: &InferenceRequest,
    ) -> Result<WorkerResponse, reqwest::Error> {
        // Counted until the response has been passed on, or dropped.
        let counted = self.count_request(worker.id);
        let client = request.client.as_ref();
        let urgency = client.map(|client| client.urgency).unwrap_or_default();
        let response = self
            .client
            .post(address(&worker.advertise, request.path))
            .headers(traces::trace_headers())
            .bearer_auth(worker.secret.expose())
            .header(header::CONTENT_TYPE, "application/json")
            .header("lode-model", format!("{}@{}", request.repository, request.digest))
            .header(
                "lode-model-name",
                HeaderValue::from_str(&request.name).unwrap_or(HeaderValue::from_static("")),
            )
            // When requests wait for a model, workers serve the most urgent ones first, and their clients in turn.
            .header("lode-client", client.map(|client| &client.key[..]).unwrap_or_default())
            .header(Urgency::HEADER, urgency.to_string())
            .body(request.body.clone())
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

    /// The models that a worker has loaded, as it reports them; `None` if it does not respond in time.
    pub(crate) async fn loaded_models(&self, worker: &Worker) -> Option<Vec<Value>> {
        let request =
            self.client.get(address(&worker.advertise, "/api/ps")).bearer_auth(worker.secret.expose());
        let response = request.timeout(LISTING_TIMEOUT).send().await.ok()?.error_for_status().ok()?;
        let listed: LoadedModels = serde_json::from_slice(&response.bytes().await.ok()?).ok()?;
        Some(listed.models)
    }
}

#[derive(Deserialize)]
struct LoadedModels {
    #[serde(default)]
    models: Vec<Value>,
}

/// An inference request whose model is resolved.
pub(crate) struct InferenceRequest {
    pub(crate) repository: Repository,
    pub(crate) digest: Digest,
    /// The name as the caller wrote it; workers repeat it in their responses.
    pub(crate) name: String,
    /// `None` if the request comes from this process.
    pub(crate) client: Option<RequestClient>,
    /// The path of the request to the worker.
    pub(crate) path: &'static str,
    pub(crate) body: Bytes,
    /// The charge of the body, which is kept until a worker begins its response.
    pub(crate) _charge: Charge,
}

/// A worker's response, from its first byte.
pub(crate) struct WorkerResponse {
    pub(crate) status: StatusCode,
    pub(crate) content_type: HeaderValue,
    pub(crate) bytes: BoxStream<'static, Result<Bytes, GatewayError>>,
}

fn free_bytes(worker: &Worker) -> u64 {
    worker.devices.iter().fold(0, |sum, device| sum.saturating_add(device.free_bytes))
}

/// The worker was restarted and has a new secret, which its next registration reports.
fn is_auth_refusal(status: StatusCode) -> bool {
    matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
}

/// The URL of `path` on the worker, whose advertised URL may have a path.
fn address(advertise: &Url, path: &str) -> Url {
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

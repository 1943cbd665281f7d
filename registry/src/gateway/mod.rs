//! The gateway: sends an inference request to a worker that can serve it, and streams the response back.
//! It resolves names with the caller's rights, and authenticates to each worker with the secret of its
//! registration.

mod choose;
mod clients;
mod forward;
mod passthrough;
mod ps;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::StatusCode;
use uuid::Uuid;

use crate::{Config, Error};
use clients::Clients;

#[cfg(test)]
pub(crate) use choose::{Candidates, rank_workers};
pub(crate) use forward::{InferenceRequest, WorkerResponse, forward};
pub(crate) use passthrough::{embeddings, passthrough_route, read_json, resolve};
pub(crate) use ps::{ps_for_ollama, ps_page};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The connections to workers, and the requests of each client.
#[derive(Clone)]
pub(crate) struct Gateway {
    client: reqwest::Client,
    /// Requests of this replica in progress, by worker.
    requests: Arc<Mutex<HashMap<Uuid, usize>>>,
    clients: Clients,
}

/// A request in progress on a worker; dropping it decrements the count.
pub(super) struct CountedRequest {
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
    pub(crate) fn new(config: &Config) -> Result<Gateway, Error> {
        // A response has no timeout as long as the client reads it; it ends when the client disconnects.
        let configure = || {
            reqwest::Client::builder()
                .no_proxy()
                .redirect(reqwest::redirect::Policy::none())
                .connect_timeout(CONNECT_TIMEOUT)
        };
        let client = lode_client::http_client(configure)
            .map_err(|error| Error::Config { setting: "gateway", reason: error.to_string() })?;
        Ok(Gateway { client, requests: Arc::default(), clients: Clients::new(config.max_per_client) })
    }

    fn requests_at(&self, worker: Uuid) -> usize {
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        requests.get(&worker).copied().unwrap_or(0)
    }

    fn count_request(&self, worker: Uuid) -> CountedRequest {
        *self.requests.lock().unwrap_or_else(PoisonError::into_inner).entry(worker).or_insert(0) += 1;
        CountedRequest { requests: self.requests.clone(), worker }
    }
}

/// Why a worker could not serve a request.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GatewayError {
    #[error("no worker is attached that can run '{model}'; start one with `lode worker --registry URL`")]
    NoWorker { model: String },
    #[error("no worker responded for '{model}' ({tried} tried); `GET /lode/v1/workers` lists them")]
    NoWorkerResponded { model: String, tried: usize },
    #[error(
        "client {client} has {limit} inference requests in progress, which is the limit (LODE_MAX_PER_CLIENT); try again when one has finished"
    )]
    ClientLimitReached { client: IpAddr, limit: usize },
    #[error("the response was cancelled: it was not read for {} s (LODE_STALL_TIMEOUT)", .limit.as_secs_f32())]
    NotRead { limit: Duration },
    #[error("the worker's response ended early")]
    ResponseInterrupted(#[source] reqwest::Error),
    #[error("the worker's response is invalid")]
    InvalidResponse(#[source] serde_json::Error),
    #[error("a record of the worker's response is larger than {limit_bytes} bytes")]
    LineTooLong { limit_bytes: usize },
}

impl GatewayError {
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            GatewayError::NoWorker { .. } | GatewayError::NoWorkerResponded { .. } => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            GatewayError::ClientLimitReached { .. } => StatusCode::TOO_MANY_REQUESTS,
            GatewayError::NotRead { .. } => StatusCode::REQUEST_TIMEOUT,
            GatewayError::ResponseInterrupted(_)
            | GatewayError::InvalidResponse(_)
            | GatewayError::LineTooLong { .. } => StatusCode::BAD_GATEWAY,
        }
    }
}

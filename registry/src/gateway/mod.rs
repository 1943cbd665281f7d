//! The gateway: a request for a model goes to a worker that can answer it, and the answer comes back as it is made.
//! It resolves names under the caller's rights and shows each worker the secret of its registration.

mod choose;
mod clients;
mod forward;
mod passed_on;
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
pub(crate) use choose::{Class, by_preference};
pub(crate) use forward::{Answer, Ask, forward};
pub(crate) use passed_on::{embeddings, passed_on, read_json, resolve};
pub(crate) use ps::{ps_for_ollama, ps_page};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The connections to workers, and the clients served over them.
#[derive(Clone)]
pub(crate) struct Gateway {
    client: reqwest::Client,
    /// How many requests this replica has at each worker.
    requests: Arc<Mutex<HashMap<Uuid, usize>>>,
    clients: Clients,
}

/// A request at a worker; dropping it takes it off the count.
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
        // There is no time limit on a response as long as the client reads it; a client that leaves ends it.
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

/// Why no worker answered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GatewayError {
    #[error("no worker is attached that could run '{model}'; start one with `lode worker --registry URL`")]
    NoWorker { model: String },
    #[error("no worker answered for '{model}' ({tried} tried); `GET /lode/v1/workers` lists them")]
    NoAnswer { model: String, tried: usize },
    #[error(
        "client {client} has {limit} requests for models in progress, which is the limit (LODE_MAX_PER_CLIENT); try again when one has ended"
    )]
    TooManyOfClient { client: IpAddr, limit: usize },
    #[error("the response was cancelled: it was not read for {} s (LODE_STALL_TIMEOUT)", .limit.as_secs_f32())]
    NotRead { limit: Duration },
    #[error("the worker's answer broke off")]
    Broken(#[source] reqwest::Error),
    #[error("the worker's answer is not what was expected")]
    Unreadable(#[source] serde_json::Error),
    #[error("a record of the worker's answer has more than {limit_bytes} bytes")]
    LineTooLong { limit_bytes: usize },
}

impl GatewayError {
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            GatewayError::NoWorker { .. } | GatewayError::NoAnswer { .. } => StatusCode::SERVICE_UNAVAILABLE,
            GatewayError::TooManyOfClient { .. } => StatusCode::TOO_MANY_REQUESTS,
            GatewayError::NotRead { .. } => StatusCode::REQUEST_TIMEOUT,
            GatewayError::Broken(_) | GatewayError::Unreadable(_) | GatewayError::LineTooLong { .. } => {
                StatusCode::BAD_GATEWAY
            }
        }
    }
}

//! The worker's membership of a registry: it registers, sends heartbeats, and deregisters. If the registry no
//! longer knows the worker, the worker registers again; until it is registered, its own API refuses every
//! request.

use std::sync::{Arc, RwLock};
use std::time::{Duration, SystemTime};

use http::StatusCode;
use lode_client::{Secret, TlsProblem};
use lode_model::error_chain;
use lode_model::reference::Name;
use reqwest::{Client, Method, RequestBuilder};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::watch;
use url::Url;

use crate::cache::Models;
use crate::config::Config;
use crate::device::cpu::processor_name;
use crate::error::Error;
use crate::reserved::{ReservedModel, ReservedModels};
use crate::scheduler::Scheduler;
use crate::scheduler::memory::Memory;

const TIMEOUT: Duration = Duration::from_secs(10);
const FIRST_RETRY: Duration = Duration::from_millis(200);
const LONGEST_RETRY: Duration = Duration::from_secs(5);

/// The secrets of the current registration, for other parts of the worker.
pub(crate) struct Received {
    /// The secret that the gateway sends to this worker.
    pub(crate) secret: Arc<RwLock<Option<Secret>>>,
    /// The credential that this worker sends to the registry.
    pub(crate) credential: Arc<RwLock<Option<Secret>>>,
}

impl Received {
    fn set(&self, registration: &Registration) {
        for (shared, value) in
            [(&self.secret, &registration.secret), (&self.credential, &registration.credential)]
        {
            *shared.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(value.clone());
        }
    }
}

/// The state that registration and heartbeats need.
pub(crate) struct Membership {
    http: Client,
    registry: Url,
    token: Option<Secret>,
    advertise: Url,
    scheduler: Scheduler,
    models: Arc<Models>,
    reserved_for: Vec<Name>,
    received: Received,
    device: Device,
    registered: watch::Sender<bool>,
}

#[derive(Clone, Debug, Serialize)]
struct Device {
    kind: &'static str,
    name: String,
    memory_bytes: u64,
    free_bytes: u64,
}

#[derive(Deserialize)]
struct Registration {
    id: String,
    /// The credential that this worker sends with its heartbeats.
    credential: Secret,
    /// The secret that the gateway sends to this worker.
    secret: Secret,
    heartbeat_ms: u64,
}

/// The registry's reply to a heartbeat; without a body, none of it applies.
#[derive(Default, Deserialize)]
#[serde(default)]
struct HeartbeatReply {
    /// An administrator drains this worker: it gets no new requests.
    draining: bool,
    /// The models that this worker is reserved for.
    reserved_for: Vec<ReservedModel>,
}

/// Why a registration failed.
enum RegisterError {
    /// An operator has to change a setting, most likely the token or the URL of the registry.
    Refused { error: String, hint: &'static str },
    /// Retry.
    Failed(String),
}

/// Why a heartbeat failed.
enum HeartbeatError {
    /// The registry does not know this worker: register again.
    UnknownWorker,
    /// The registry cannot be reached; retry.
    Unreachable(String),
}

impl Membership {
    pub(crate) fn new(
        config: &Config,
        advertise: Url,
        scheduler: Scheduler,
        models: Arc<Models>,
        received: Received,
    ) -> Result<Membership, Error> {
        let registry = config.registry.clone();
        let configure = || {
            let http = Client::builder().timeout(TIMEOUT).connect_timeout(TIMEOUT);
            let http = http.tls_certs_merge(config.authorities.iter().cloned());
            // A proxy cannot reach this machine's loopback addresses.
            let is_local = registry.host_str().is_some_and(lode_client::is_loopback_host);
            if is_local { http.no_proxy() } else { http }
        };
        Ok(Membership {
            http: lode_client::http_client(configure)?,
            registry,
            token: config.worker_token.clone(),
            advertise,
            scheduler,
            models,
            reserved_for: config.models.clone(),
            received,
            device: Device { kind: "cpu", name: processor_name(), memory_bytes: 0, free_bytes: 0 },
            registered: watch::Sender::new(false),
        })
    }

    /// True while the registry knows this worker.
    pub(crate) fn registered(&self) -> watch::Receiver<bool> {
        self.registered.subscribe()
    }

    /// Registers and sends heartbeats until `stop` turns true, then deregisters.
    pub(crate) async fn run(self, mut stop: watch::Receiver<bool>) {
        let mut retry = FIRST_RETRY;
        while !*stop.borrow() {
            match self.register().await {
                Ok(registration) => {
                    retry = FIRST_RETRY;
                    tracing::info!(worker = registration.id, registry = %self.registry, "registered");
                    self.received.set(&registration);
                    // Set before the first heartbeat, which follows at once and reports the cached models.
                    self.registered.send_replace(true);
                    self.send_heartbeats(&registration, &mut stop).await;
                    self.registered.send_replace(false);
                    if *stop.borrow() {
                        self.deregister(&registration).await;
                    }
                }
                Err(error) => {
                    match error {
                        RegisterError::Refused { error, hint } => tracing::error!(
                            registry = %self.registry, error, hint, "registration refused; will retry"
                        ),
                        RegisterError::Failed(error) => {
                            tracing::warn!(registry = %self.registry, error, "registration failed; will retry");
                        }
                    }
                    tokio::select! {
                        () = tokio::time::sleep(retry) => {}
                        _ = stop.wait_for(|stop| *stop) => {}
                    }
                    retry = (retry * 2).min(LONGEST_RETRY);
                }
            }
        }
    }

    /// Sends heartbeats until `stop` turns true or the registry no longer knows this worker.
    async fn send_heartbeats(&self, registration: &Registration, stop: &mut watch::Receiver<bool>) {
        let period = Duration::from_millis(registration.heartbeat_ms.clamp(50, 60_000));
        let mut is_draining = false;
        let reserved = ReservedModels::new(self.scheduler.clone());
        loop {
            match self.heartbeat(registration).await {
                Ok(reply) => {
                    if reply.draining != is_draining {
                        is_draining = reply.draining;
                        match is_draining {
                            true => tracing::info!(
                                worker = registration.id,
                                "drained by an administrator: no new requests; unloading models when they are idle"
                            ),
                            false => tracing::info!(worker = registration.id, "resumed by an administrator"),
                        }
                    }
                    if is_draining {
                        // Repeated, because requests in progress may have loaded models since the last heartbeat.
                        self.scheduler.loaded().iter().for_each(|model| self.scheduler.unload(&model.digest));
                        reserved.clear();
                    } else {
                        reserved.update(reply.reserved_for);
                    }
                }
                Err(HeartbeatError::UnknownWorker) => {
                    tracing::info!(
                        worker = registration.id,
                        "the registry does not know this worker; registering again"
                    );
                    return;
                }
                Err(HeartbeatError::Unreachable(error)) => {
                    tracing::warn!(worker = registration.id, error, "heartbeat failed");
                }
            }
            tokio::select! {
                () = tokio::time::sleep(period) => {}
                stopped = stop.wait_for(|stop| *stop) => {
                    drop(stopped);
                    return;
                }
            }
        }
    }

    async fn register(&self) -> Result<Registration, RegisterError> {
        let body = json!({
            "advertise": self.advertise,
            "devices": [self.device()],
            "version": env!("CARGO_PKG_VERSION"),
            "reserved_for": self.reserved_for,
        });
        let request = self.request(Method::POST, "lode/v1/workers", self.token.as_ref());
        let response = request.map_err(RegisterError::Failed)?.json(&body).send().await;
        let response = response.map_err(|error| {
            let unread = error.is_request() && !error.is_connect() && !error.is_timeout();
            let hint = match TlsProblem::of(&error) {
                Some(problem) => tls_hint(problem),
                None if unread && self.registry.scheme() == "http" => {
                    Some("the port does not use http: write https:// in --registry, if it uses https")
                }
                None => None,
            };
            let error = error_chain(&error);
            hint.map_or(RegisterError::Failed(error.clone()), |hint| RegisterError::Refused { error, hint })
        })?;
        let status = response.status();
        if !status.is_success() {
            // Other bodies are pages of a proxy.
            let problem: Option<Value> = response.json().await.ok();
            let detail = problem.as_ref().and_then(|problem| problem["detail"].as_str());
            let error = detail.map_or_else(
                || status.to_string(),
                |detail| format!("{status}: {}", detail.chars().take(300).collect::<String>()),
            );
            return Err(match refusal_hint(status, self.token.is_some()) {
                Some(hint) => RegisterError::Refused { error, hint },
                None => RegisterError::Failed(error),
            });
        }
        response.json().await.map_err(|error| RegisterError::Failed(error_chain(&error)))
    }

    async fn heartbeat(&self, registration: &Registration) -> Result<HeartbeatReply, HeartbeatError> {
        let models = self.models.clone();
        let cached = tokio::task::spawn_blocking(move || models.cached()).await.unwrap_or_default();
        let loaded: Vec<_> = self
            .scheduler
            .loaded()
            .iter()
            .map(|model| {
                json!({
                    "repository": model.repository,
                    "digest": model.digest,
                    "name": model.name,
                    "size_bytes": model.size_bytes,
                    "context_length": model.context_length,
                    "device": model.device,
                    "device_bytes": model.device_bytes,
                    "num_parallel": model.num_parallel,
                    "requests": model.users,
                    "expires_at": unix_ms(model.expires_at),
                })
            })
            .collect();
        let body = json!({"devices": [self.device()], "loaded": loaded, "cached": cached});
        let request = self
            .request(
                Method::PUT,
                &format!("lode/v1/workers/{}", registration.id),
                Some(&registration.credential),
            )
            .map_err(HeartbeatError::Unreachable)?;
        let response = request
            .json(&body)
            .send()
            .await
            .map_err(|error| HeartbeatError::Unreachable(error_chain(&error)))?;
        match response.status() {
            StatusCode::NO_CONTENT => Ok(HeartbeatReply::default()),
            status if status.is_success() => Ok(response.json().await.unwrap_or_default()),
            StatusCode::NOT_FOUND => Err(HeartbeatError::UnknownWorker),
            status => Err(HeartbeatError::Unreachable(status.to_string())),
        }
    }

    async fn deregister(&self, registration: &Registration) {
        let path = format!("lode/v1/workers/{}", registration.id);
        let request = self.request(Method::DELETE, &path, Some(&registration.credential));
        let result = match request {
            Ok(request) => {
                request.timeout(Duration::from_secs(2)).send().await.map_err(|error| error_chain(&error))
            }
            Err(error) => Err(error),
        };
        match result {
            Ok(_) => tracing::info!(worker = registration.id, "deregistered"),
            // The registry notices missing heartbeats anyway.
            Err(error) => tracing::debug!(worker = registration.id, error, "deregistration failed"),
        }
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        credential: Option<&Secret>,
    ) -> Result<RequestBuilder, String> {
        let mut base = self.registry.clone();
        if !base.path().ends_with('/') {
            base.set_path(&format!("{}/", base.path()));
        }
        let url = base.join(path).map_err(|error| error.to_string())?;
        let request = self.http.request(method, url);
        Ok(match credential {
            Some(credential) => request.bearer_auth(credential.expose()),
            None => request,
        })
    }

    fn device(&self) -> Device {
        if let Some((name, memory)) = self.scheduler.card() {
            let Memory { total_bytes: memory_bytes, free_bytes } = memory;
            return Device { kind: "cuda", name: name.to_owned(), memory_bytes, free_bytes };
        }
        let memory = Memory::now();
        Device { memory_bytes: memory.total_bytes, free_bytes: memory.free_bytes, ..self.device.clone() }
    }
}

/// A hint on which side to change the token after a refused registration.
fn refusal_hint(status: StatusCode, has_token: bool) -> Option<&'static str> {
    match (status, has_token) {
        (StatusCode::UNAUTHORIZED, true) => Some(
            "the server has another worker token: start this worker with the server's (--token or LODE_WORKER_TOKEN)",
        ),
        (StatusCode::UNAUTHORIZED, false) => Some(
            "the server requires a worker token: start this worker with the server's (--token or LODE_WORKER_TOKEN)",
        ),
        (StatusCode::FORBIDDEN, true) => Some(
            "the server has no worker token: set LODE_WORKER_TOKEN of the server to the token of this worker, and restart the server",
        ),
        (StatusCode::FORBIDDEN, false) => Some(
            "the server has no worker token, so only workers on its own machine may join: set the same LODE_WORKER_TOKEN for the server and this worker",
        ),
        _ => None,
    }
}

/// A hint on what to change after a failed TLS handshake, unless time may help.
fn tls_hint(problem: TlsProblem) -> Option<&'static str> {
    match problem {
        TlsProblem::UnknownAuthority => Some(
            "no authority that this machine trusts has signed the certificate: name a PEM file with the authority in --ca-file (LODE_CA_FILE)",
        ),
        TlsProblem::WrongName => Some("the certificate is not for this host: use a name that it lists"),
        TlsProblem::Expired => {
            Some("the certificate has expired: renew it, and check the clock of this machine")
        }
        TlsProblem::NotTls => Some("the port does not use https: write http:// in --registry"),
        TlsProblem::Other => None,
    }
}

fn unix_ms(at: SystemTime) -> u64 {
    at.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_side_to_change() {
        let check = |status: u16, has_token: bool, expect: Option<&str>| {
            let hint = refusal_hint(StatusCode::from_u16(status).unwrap(), has_token);
            assert_eq!(hint.map(|hint| hint.split(':').next().unwrap()), expect, "{status} {has_token}");
        };
        check(401, true, Some("the server has another worker token"));
        check(401, false, Some("the server requires a worker token"));
        check(403, true, Some("the server has no worker token"));
        check(
            403,
            false,
            Some("the server has no worker token, so only workers on its own machine may join"),
        );
        check(503, true, None);
    }
}

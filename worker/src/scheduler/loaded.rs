//! A loaded model: its runner, its places, and how long it stays loaded after its last request.
//! A request holds a ticket; a model without tickets and without waiting requests is idle.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use lode_model::digest::Digest;
use lode_model::reference::Repository;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::keep_alive::KeepAlive;
use super::ledger::LoadId;
use super::places::{Permit, Places};
use super::requirements::{ModelRequirements, model_context};
use crate::cache::Model;
use crate::metrics::{Counted, ModelMetrics};
use crate::runner::Client;
use crate::runner::process::Runner;
use crate::runner::protocol::{LoadRequest, LoadResponse, MIN_CONTEXT};

pub struct LoadedModel {
    name: String,
    model: Model,
    runner: Runner,
    loaded: LoadResponse,
    load_id: LoadId,
    loaded_at: Instant,
    /// One per request that the runner serves at the same time.
    places: Arc<Places>,
    num_parallel: usize,
    /// Number of tokens in the KV cache, for all requests together.
    cache_tokens: usize,
    /// The context length requested at load; the loaded one is shorter if the model supports no more.
    requested_context: usize,
    usage: Mutex<Usage>,
    /// Wakes the scheduler when a request has ended.
    changed: Arc<Notify>,
    metrics: ModelMetrics,
    _counted: Counted,
}

struct Usage {
    /// Requests that hold a ticket or wait for a place.
    users: usize,
    keep_alive: KeepAlive,
    last_used: Instant,
    /// The context length of the last request.
    context_length: usize,
    /// About to be unloaded: new requests are not admitted.
    is_draining: bool,
}

/// The load that a model comes from.
pub(super) struct LoadContext<'a> {
    pub(super) id: LoadId,
    pub(super) wanted: &'a ModelRequirements,
    pub(super) request: &'a LoadRequest,
    pub(super) keep_alive: KeepAlive,
    pub(super) changed: Arc<Notify>,
    pub(super) metrics: ModelMetrics,
}

/// A loaded model's state, for reports.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub name: String,
    pub repository: Repository,
    pub digest: Digest,
    pub format: &'static str,
    pub family: String,
    pub parameter_size: String,
    pub quantization: String,
    /// Weights and the full KV cache; on a GPU, what is allocated there.
    pub size_bytes: u64,
    /// Bytes in the memory of a GPU; 0 on the CPU.
    pub device_bytes: u64,
    /// The context length of the last request, at most the loaded one.
    pub context_length: usize,
    pub device: String,
    /// How many requests it computes at the same time.
    pub num_parallel: usize,
    pub users: usize,
    /// While the model is in use, counted from now.
    pub expires_at: SystemTime,
}

impl LoadedModel {
    pub(super) fn new(
        start: LoadContext<'_>,
        model: Model,
        runner: Runner,
        loaded: LoadResponse,
    ) -> LoadedModel {
        let LoadContext { id, wanted, request, keep_alive, changed, metrics } = start;
        let num_parallel = request.num_parallel.max(1);
        let context_length = loaded.context_length;
        LoadedModel {
            name: wanted.name.clone(),
            model,
            runner,
            loaded,
            load_id: id,
            loaded_at: Instant::now(),
            places: Places::new(num_parallel),
            num_parallel,
            cache_tokens: request.cache_tokens,
            requested_context: request.context_length,
            usage: Mutex::new(Usage {
                users: 0,
                keep_alive,
                last_used: Instant::now(),
                context_length,
                is_draining: false,
            }),
            changed,
            metrics,
            _counted: Counted::loaded(),
        }
    }

    pub fn digest(&self) -> &Digest {
        &self.model.digest
    }

    pub fn repository(&self) -> &Repository {
        &self.model.repository
    }

    /// The model's files, configuration and prompts.
    pub fn model(&self) -> &Model {
        &self.model
    }

    pub fn loaded(&self) -> &LoadResponse {
        &self.loaded
    }

    pub(crate) fn metrics(&self) -> &ModelMetrics {
        &self.metrics
    }

    pub fn client(&self) -> &Client {
        self.runner.client()
    }

    pub(super) fn load_id(&self) -> LoadId {
        self.load_id
    }

    pub(super) fn loaded_at(&self) -> Instant {
        self.loaded_at
    }

    pub(super) fn is_alive(&self) -> bool {
        self.runner.is_alive()
    }

    /// Whether a request can use the model as it is.
    pub(super) fn can_serve(&self, wanted: &ModelRequirements) -> bool {
        self.is_alive() && self.has_context_for(wanted) && !self.usage().is_draining
    }

    /// Whether the loaded context is long enough for a request, or as long as the model supports.
    pub(super) fn has_context_for(&self, wanted: &ModelRequirements) -> bool {
        let is_longest = self.loaded.context_length < self.requested_context;
        let requested = wanted.context(&self.model.params);
        is_longest || requested.is_none_or(|requested| requested <= self.loaded.context_length)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.usage().users == 0
    }

    pub(super) fn last_used(&self) -> Instant {
        self.usage().last_used
    }

    /// A draining model finishes the requests that have a place and rejects those that wait for one.
    pub(super) fn set_draining(&self, is_draining: bool) {
        let mut usage = self.usage();
        if std::mem::replace(&mut usage.is_draining, is_draining) != is_draining {
            drop(usage);
            self.places.set_open(!is_draining);
        }
    }

    pub(super) fn keep_alive(&self) -> KeepAlive {
        self.usage().keep_alive
    }

    pub(super) fn set_keep_alive(&self, keep_alive: KeepAlive) {
        self.usage().keep_alive = keep_alive;
    }

    /// When the model expires; `None` while it is in use or if it never expires.
    pub(super) fn expires_at(&self) -> Option<Instant> {
        let usage = self.usage();
        match usage.keep_alive {
            KeepAlive::For(duration) if usage.users == 0 => Some(usage.last_used + duration),
            _ => None,
        }
    }

    pub(super) async fn stop(&self) {
        self.close();
        self.runner.stop().await;
    }

    /// Grants no more places.
    pub(super) fn close(&self) {
        self.places.close();
    }

    /// Resolves when its runner has ended.
    pub(crate) fn wait_until_ended(&self) -> impl Future<Output = ()> + Send + 'static {
        self.runner.ended()
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        let keep = match self.keep_alive() {
            KeepAlive::For(duration) => duration,
            // Go's longest duration, which ollama reports for a model that never expires.
            KeepAlive::Forever => Duration::from_nanos(i64::MAX as u64),
        };
        let left = self.expires_at().map_or(keep, |at| at.saturating_duration_since(Instant::now()));
        let expires_at = SystemTime::now() + left;
        let details = &self.model.details;
        let family = self.model.config.get("model_type").and_then(serde_json::Value::as_str);
        let longest = self.loaded.context_length.saturating_mul(self.num_parallel);
        let tokens = self.cache_tokens.min(longest);
        let cache = self.loaded.kv_bytes_per_token.saturating_mul(tokens) as u64;
        let (context_length, users) = {
            let usage = self.usage();
            (usage.context_length, usage.users)
        };
        Snapshot {
            name: self.name.clone(),
            repository: self.model.repository.clone(),
            digest: self.model.digest.clone(),
            format: self.model.spec.format(),
            family: family.unwrap_or(&self.loaded.architecture).to_owned(),
            parameter_size: details.model_type.clone(),
            quantization: details.file_type.clone(),
            size_bytes: match self.loaded.device_bytes {
                0 => self.loaded.weights_bytes.saturating_add(cache),
                device_bytes => device_bytes,
            },
            device_bytes: self.loaded.device_bytes,
            context_length,
            device: self.loaded.device.clone(),
            num_parallel: self.num_parallel,
            users,
            expires_at,
        }
    }

    fn usage(&self) -> MutexGuard<'_, Usage> {
        self.usage.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// A request that uses the model or waits for a place in it.
pub(super) struct User(Arc<LoadedModel>);

impl User {
    pub(super) fn new(model: Arc<LoadedModel>) -> User {
        model.usage().users += 1;
        User(model)
    }

    /// Another user of the same model.
    pub(super) fn join(&self) -> User {
        User::new(self.0.clone())
    }

    pub(super) fn model(&self) -> &LoadedModel {
        &self.0
    }

    /// Waits for one of the places; `None` when the model is being drained or its runner has ended.
    pub(super) async fn wait_for_place(self, wanted: &ModelRequirements, arrival: u64) -> Option<Place> {
        let permit = self.0.places.take(&wanted.client, wanted.urgency, arrival).await?;
        Some(Place { _permit: permit, user: self })
    }
}

impl Drop for User {
    fn drop(&mut self) {
        let mut usage = self.0.usage();
        usage.users -= 1;
        usage.last_used = Instant::now();
        drop(usage);
        self.0.changed.notify_one();
    }
}

pub(super) struct Place {
    // Fields drop in order: the place is freed before the keep-alive starts.
    _permit: Permit,
    user: User,
}

/// The right to use a loaded model; kept until the response has been sent.
pub struct Ticket {
    place: Place,
    load: Duration,
    _counted: Counted,
}

impl Ticket {
    /// A request without a keep-alive does not change the model's.
    pub(super) fn new(place: Place, wanted: &ModelRequirements, load: Duration) -> Ticket {
        let ticket = Ticket { place, load, _counted: Counted::running() };
        let model = ticket.model();
        let requested = wanted.num_ctx.or_else(|| model_context(&model.model.params));
        let mut usage = model.usage();
        usage.keep_alive = wanted.keep_alive.unwrap_or(usage.keep_alive);
        usage.context_length = requested.map_or(model.loaded.context_length, |requested| {
            requested.max(MIN_CONTEXT).min(model.loaded.context_length)
        });
        drop(usage);
        ticket
    }

    pub fn model(&self) -> &LoadedModel {
        &self.place.user.0
    }

    /// How long this request waited for the model to be loaded; zero if it was loaded already.
    pub fn load_duration(&self) -> Duration {
        self.load
    }
}

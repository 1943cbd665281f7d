//! A loaded model: its runner, its places, and the clock that runs while nobody uses it.
//! Tickets are held by requests; everything here is decided under one small lock.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use lode_model::digest::Digest;
use lode_model::reference::Repository;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::{Inner, KeepAlive, Wanted};
use crate::cache::Model;
use crate::runner::Client;
use crate::runner::process::Runner;
use crate::runner::protocol::{LoadRequest, Loaded};

pub struct LoadedModel {
    name: String,
    model: Model,
    runner: Runner,
    loaded: Loaded,
    /// One a request that the runner answers at once.
    places: Arc<Semaphore>,
    num_parallel: usize,
    /// What was asked for at load; what was loaded is less where the model cannot do more.
    asked_context: usize,
    usage: Mutex<Usage>,
}

struct Usage {
    /// Requests that hold a ticket or wait for a place.
    users: usize,
    keep_alive: KeepAlive,
    last_used: Instant,
    /// To be replaced: nobody new gets in.
    retired: bool,
}

/// A loaded model as reports show it.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub name: String,
    pub repository: Repository,
    pub digest: Digest,
    pub format: &'static str,
    pub family: String,
    pub parameter_size: String,
    pub quantization: String,
    /// Weights and the cache at its fullest.
    pub size_bytes: u64,
    pub context_length: usize,
    pub device: String,
    pub users: usize,
    /// Counted from now while it is in use.
    pub expires_at: SystemTime,
}

impl LoadedModel {
    pub(super) fn new(
        wanted: &Wanted,
        model: Model,
        runner: Runner,
        loaded: Loaded,
        request: &LoadRequest,
        keep_alive: KeepAlive,
    ) -> LoadedModel {
        let num_parallel = request.num_parallel.max(1);
        LoadedModel {
            name: wanted.name.clone(),
            model,
            runner,
            loaded,
            places: Arc::new(Semaphore::new(num_parallel)),
            num_parallel,
            asked_context: request.context_length,
            usage: Mutex::new(Usage { users: 0, keep_alive, last_used: Instant::now(), retired: false }),
        }
    }

    pub fn digest(&self) -> &Digest {
        &self.model.digest
    }

    pub fn repository(&self) -> &Repository {
        &self.model.repository
    }

    /// What the model brought with it.
    pub fn model(&self) -> &Model {
        &self.model
    }

    pub fn loaded(&self) -> &Loaded {
        &self.loaded
    }

    pub fn client(&self) -> &Client {
        self.runner.client()
    }

    /// Whether a request can use it as it is.
    pub(super) fn suits(&self, wanted: &Wanted) -> bool {
        let is_longest = self.loaded.context_length < self.asked_context;
        let long_enough =
            wanted.num_ctx.is_none_or(|asked| asked <= self.loaded.context_length) || is_longest;
        self.runner.is_alive() && long_enough && !self.usage().retired
    }

    pub(super) fn is_idle(&self) -> bool {
        self.usage().users == 0
    }

    pub(super) fn last_used(&self) -> Instant {
        self.usage().last_used
    }

    pub(super) fn retire(&self) {
        self.usage().retired = true;
    }

    pub(super) fn set_keep_alive(&self, keep_alive: KeepAlive) {
        self.usage().keep_alive = keep_alive;
    }

    /// When it is to be unloaded; `None` while it is in use or for ever.
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

    /// Lets nobody wait for a place any more.
    pub(super) fn close(&self) {
        self.places.close();
    }

    /// Returns when its runner has gone.
    pub(crate) fn ended(&self) -> impl Future<Output = ()> + Send + 'static {
        self.runner.ended()
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        let keep = match self.usage().keep_alive {
            KeepAlive::For(duration) => duration,
            // Go's longest duration, which ollama shows for what never expires.
            KeepAlive::Forever => Duration::from_nanos(i64::MAX as u64),
        };
        let left = self.expires_at().map_or(keep, |at| at.saturating_duration_since(Instant::now()));
        let expires_at = SystemTime::now() + left;
        let details = &self.model.details;
        let family = self.model.config.get("model_type").and_then(serde_json::Value::as_str);
        let tokens = self.loaded.context_length.saturating_mul(self.num_parallel);
        let cache = self.loaded.kv_bytes_per_token.saturating_mul(tokens) as u64;
        Snapshot {
            name: self.name.clone(),
            repository: self.model.repository.clone(),
            digest: self.model.digest.clone(),
            format: if self.model.spec.is_gguf() { "gguf" } else { "safetensors" },
            family: family.unwrap_or(&self.loaded.architecture).to_owned(),
            parameter_size: details.model_type.clone(),
            quantization: details.file_type.clone(),
            size_bytes: self.loaded.weights_bytes.saturating_add(cache),
            context_length: self.loaded.context_length,
            device: self.loaded.device.clone(),
            users: self.usage().users,
            expires_at,
        }
    }

    fn usage(&self) -> MutexGuard<'_, Usage> {
        self.usage.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Counts as using the model, waiting or not.
pub(super) struct User(Arc<LoadedModel>);

impl User {
    pub(super) fn new(model: Arc<LoadedModel>) -> User {
        model.usage().users += 1;
        User(model)
    }

    /// Waits for one of the places; `None` when the runner has gone.
    pub(super) async fn place(self) -> Option<Place> {
        let permit = self.0.places.clone().acquire_owned().await.ok()?;
        Some(Place { _permit: permit, user: self })
    }
}

impl Drop for User {
    fn drop(&mut self) {
        let mut usage = self.0.usage();
        usage.users -= 1;
        usage.last_used = Instant::now();
    }
}

pub(super) struct Place {
    // Fields drop in order: the place is free before the clock starts.
    _permit: OwnedSemaphorePermit,
    user: User,
}

/// The right to use a loaded model; kept until the answer has been sent.
pub struct Ticket {
    place: Option<Place>,
    model: Arc<LoadedModel>,
    scheduler: Arc<Inner>,
    load: Duration,
}

impl Ticket {
    pub(super) fn new(
        scheduler: Arc<Inner>,
        place: Place,
        keep_alive: Option<KeepAlive>,
        load: Duration,
    ) -> Ticket {
        let model = place.user.0.clone();
        model.set_keep_alive(keep_alive.unwrap_or_else(|| scheduler.default_keep_alive()));
        Ticket { place: Some(place), model, scheduler, load }
    }

    pub fn model(&self) -> &LoadedModel {
        &self.model
    }

    /// How long this request waited for the model to be loaded; zero if it was.
    pub fn load_duration(&self) -> Duration {
        self.load
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.place.take();
        self.scheduler.released();
    }
}

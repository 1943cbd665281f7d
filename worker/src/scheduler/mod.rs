//! The scheduler: loads and unloads models and queues the requests for them. Loads run concurrently as far as
//! memory allows, and no lock is held while one runs. A request gets a [`Ticket`]; when the last ticket of a
//! model is dropped, its keep-alive starts.

mod keep_alive;
mod ledger;
mod loaded;
pub mod memory;
mod placement;
mod places;
mod requirements;
mod waiting;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, Shared, WeakShared};
use lode_kernels::cuda::DeviceMemory;
use lode_model::digest::Digest;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

pub use keep_alive::{KeepAlive, KeepAliveError};
use ledger::LoadId;
use loaded::{LoadContext, User};
pub use loaded::{LoadedModel, Snapshot, Ticket};
use placement::{Decision, Limits, State};
pub use requirements::ModelRequirements;
use waiting::WaitingRequests;

use crate::cache::{Model, Models};
use crate::device::{CardMemory, Device};
use crate::error::Error;
use crate::metrics::{Counted, ModelLabels, ModelMetrics};
use crate::runner::TextLimits;
use crate::runner::process::{Launch, Runner};
use crate::runner::protocol::{LoadRequest, LoadResponse};
use memory::{Estimate, Memory};

/// Maximum number of prompt tokens in one step, over all its sequences.
const BATCH_TOKENS: usize = 256;

/// Interval for reconsidering queued loads: other processes do not announce the memory that they free.
const RECHECK: Duration = Duration::from_millis(250);

/// Maximum time until the task ends after the scheduler was dropped.
const MAX_SLEEP: Duration = Duration::from_secs(5);

/// How long [`Scheduler::stop`] waits for the last runners.
const STOP_TIMEOUT: Duration = Duration::from_secs(6);

/// The scheduler's settings.
pub struct Options {
    pub keep_alive: KeepAlive,
    pub max_queue: usize,
    pub num_parallel: usize,
    pub max_loaded_models: usize,
    pub kv_cache_type: String,
    pub context_length: usize,
    pub load_timeout: Duration,
    pub threads: Option<usize>,
    pub cpu: String,
    /// The maximum number of models that metrics name.
    pub metrics_models: usize,
    pub text: TextLimits,
    /// A model in use is not evicted within this time after it was loaded or after another load was queued.
    pub eviction_delay: Duration,
    /// Reads this machine's total and free memory.
    pub memory: Box<dyn Fn() -> Memory + Send + Sync>,
    /// The device that runners compute on.
    pub device: Device,
    /// The memory of the GPU, which models are placed in instead of this machine's.
    pub card: Option<Arc<CardMemory>>,
}

/// Loads, shares and unloads models. Cheap to clone.
#[derive(Clone)]
pub struct Scheduler {
    inner: Arc<Inner>,
}

struct Inner {
    options: Options,
    models: Arc<Models>,
    launcher: Arc<dyn Launch>,
    state: Mutex<State>,
    /// Loads in progress. Lock order: before `state`.
    loads: Mutex<HashMap<Digest, Vec<PendingLoad>>>,
    waiting: Arc<WaitingRequests>,
    arrivals: AtomicU64,
    labels: ModelLabels,
    /// Signals a change that can affect which models are loaded.
    changed: Arc<Notify>,
    stopping: watch::Sender<bool>,
    /// Signals that a runner has ended.
    ended: Notify,
}

/// A load that several requests wait for. It is cancelled when the last of them is dropped.
struct PendingLoad {
    num_ctx: Option<usize>,
    load: WeakShared<LoadFuture>,
}

impl PendingLoad {
    /// The load, unless it has ended. Requests that wait for it keep it until each has its result, and one for which
    /// the loaded context is too short must not wait for the same load again.
    fn in_progress(&self) -> Option<Shared<LoadFuture>> {
        self.load.upgrade().filter(|load| load.peek().is_none())
    }
}

/// Yields a user of the model, which keeps it loaded until each waiting request has its own user.
type LoadFuture = BoxFuture<'static, Result<Arc<User>, Arc<Error>>>;

/// A loaded model, or a load to wait for.
enum Entry {
    Loaded(User),
    Loading(Shared<LoadFuture>),
}

impl Scheduler {
    /// Starts the task that unloads expired models and places queued loads.
    pub fn start(options: Options, models: Arc<Models>, launcher: Arc<dyn Launch>) -> Scheduler {
        let waiting = WaitingRequests::new(options.max_queue);
        let labels = ModelLabels::new(options.metrics_models);
        let inner = Arc::new(Inner {
            options,
            models,
            launcher,
            state: Mutex::default(),
            loads: Mutex::default(),
            waiting,
            arrivals: AtomicU64::new(0),
            labels,
            changed: Arc::default(),
            stopping: watch::Sender::new(false),
            ended: Notify::new(),
        });
        tokio::spawn(run_maintenance(Arc::downgrade(&inner)));
        Scheduler { inner }
    }

    /// Waits for the model to be loaded and for a place in it. Dropping the future cancels the wait, and the
    /// load with it if no other request waits for it.
    pub async fn acquire(&self, wanted: ModelRequirements) -> Result<Ticket, Error> {
        let mut waiting = self.inner.waiting.enter(&wanted.client, wanted.urgency).ok_or(Error::Busy)?;
        let _counted = Counted::waiting();
        tokio::select! {
            biased;
            ticket = self.wait_for_ticket(wanted) => ticket,
            () = waiting.displaced() => Err(Error::Busy),
        }
    }

    async fn wait_for_ticket(&self, wanted: ModelRequirements) -> Result<Ticket, Error> {
        let arrival = self.inner.arrivals.fetch_add(1, Ordering::Relaxed);
        let started = Instant::now();
        let mut load = Duration::ZERO;
        loop {
            let user = match self.inner.join_or_load(&wanted)? {
                Entry::Loaded(user) => user,
                Entry::Loading(loading) => {
                    let loaded = loading.await;
                    let first = loaded.map_err(|error| Arc::try_unwrap(error).unwrap_or_else(Error::Load))?;
                    load = started.elapsed();
                    if !first.model().has_context_for(&wanted) {
                        continue;
                    }
                    first.join()
                }
            };
            // `None`: the model is being drained for another one, or its runner has ended.
            if let Some(place) = user.wait_for_place(&wanted, arrival).await {
                return Ok(Ticket::new(place, &wanted, load));
            }
        }
    }

    /// Loads a model for later requests, or sets how long it stays loaded.
    pub async fn preload(&self, wanted: ModelRequirements) -> Result<Duration, Error> {
        Ok(self.acquire(wanted).await?.load_duration())
    }

    /// Unloads a model as soon as it is idle.
    pub fn unload(&self, digest: &Digest) {
        let model = self.inner.state().loaded.get(digest).cloned();
        if let Some(model) = model {
            model.set_keep_alive(KeepAlive::For(Duration::ZERO));
            self.inner.changed.notify_one();
        }
    }

    /// The loaded models, for reports.
    pub fn loaded(&self) -> Vec<Snapshot> {
        let mut loaded: Vec<Snapshot> =
            self.inner.state().loaded.values().map(|model| model.snapshot()).collect();
        loaded.sort_by(|a, b| a.name.cmp(&b.name));
        loaded
    }

    /// Ends every runner; requests in flight get an error, later ones are refused.
    pub async fn stop(&self) {
        let models: Vec<_> = {
            let mut state = self.inner.state();
            state.is_stopping = true;
            state.refuse_all(|| Error::Stopping);
            state.loaded.drain().map(|(_, model)| model).collect()
        };
        self.inner.stopping.send_replace(true);
        futures::future::join_all(models.iter().map(|model| model.stop())).await;
        let all_ended = async {
            loop {
                let ended = self.inner.ended.notified();
                if self.inner.state().ledger.is_empty() {
                    return;
                }
                ended.await;
            }
        };
        // Wait for loads in progress and for models that were already being unloaded.
        if tokio::time::timeout(STOP_TIMEOUT, all_ended).await.is_err() {
            tracing::warn!("timed out waiting for runners to end");
        }
    }

    /// The name of the GPU, and its memory that no model of this worker uses; `None` on the CPU.
    pub fn card(&self) -> Option<(&str, Memory)> {
        let card = self.inner.options.card.as_ref()?;
        let memory = self.inner.memory();
        let free_bytes = self.inner.state().ledger.available(memory.free_bytes);
        Some((card.name(), Memory { free_bytes, ..memory }))
    }

    /// Number of queued loads.
    #[cfg(test)]
    fn queued(&self) -> usize {
        self.inner.state().queued()
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The memory that models are placed in, before the ledger's promises: the GPU's if there is one.
    fn memory(&self) -> Memory {
        match &self.options.card {
            None => (self.options.memory)(),
            Some(card) => {
                let DeviceMemory { total_bytes, free_bytes } = card.idle();
                Memory { total_bytes, free_bytes }
            }
        }
    }

    /// Makes a request a user of the loaded model, or lets it wait for a load. Starts the load if none is in progress.
    fn join_or_load(self: &Arc<Inner>, wanted: &ModelRequirements) -> Result<Entry, Error> {
        // Abandoned loads may be dropped under this lock. It is separate from the state's lock because
        // dropping a load locks the state.
        let mut loads = self.loads.lock().unwrap_or_else(PoisonError::into_inner);
        let mut wanted = wanted.clone();
        {
            let state = self.state();
            if state.is_stopping {
                return Err(Error::Stopping);
            }
            if let Some(model) = state.loaded.get(&wanted.digest) {
                if model.can_serve(&wanted) {
                    return Ok(Entry::Loaded(User::new(model.clone())));
                }
                wanted.keep_alive = Some(wanted.keep_alive.unwrap_or(model.keep_alive()));
            }
        }
        loads.retain(|_, pending| {
            pending.retain(|pending| pending.in_progress().is_some());
            !pending.is_empty()
        });
        let needed = wanted.num_ctx.max(wanted.sequence_length);
        let pending = loads.entry(wanted.digest.clone()).or_default();
        let joined = pending.iter().find(|pending| needed <= pending.num_ctx);
        if let Some(load) = joined.and_then(PendingLoad::in_progress) {
            return Ok(Entry::Loading(load));
        }
        let (inner, load) = (self.clone(), wanted.clone());
        let load = async move { inner.load(load).await.map(Arc::new).map_err(Arc::new) };
        let load: Shared<LoadFuture> = load.boxed().shared();
        pending.extend(load.downgrade().map(|load| PendingLoad { num_ctx: needed, load }));
        Ok(Entry::Loading(load))
    }

    async fn load(self: Arc<Inner>, wanted: ModelRequirements) -> Result<User, Error> {
        let mut stopping = self.stopping.subscribe();
        let (started, label) = (Instant::now(), self.labels.label(wanted.repository.as_str()));
        let loaded = tokio::select! {
            loaded = self.load_until_stopped(wanted) => loaded,
            _ = stopping.wait_for(|stopping| *stopping) => return Err(Error::Stopping),
        };
        match &loaded {
            // Another load may have been faster.
            Ok(user) if user.model().loaded_at() < started => {}
            Ok(_) => label.record_load(Some(started.elapsed())),
            Err(_) => label.record_load(None),
        }
        loaded
    }

    async fn load_until_stopped(self: &Arc<Inner>, wanted: ModelRequirements) -> Result<User, Error> {
        if let Some(card) = &self.options.card
            && self.state().ledger.is_empty()
        {
            card.measure(|| self.state().ledger.is_empty()).await;
        }
        let total = self.memory().total_bytes;
        let model = self.models.fetch(&wanted.repository, &wanted.digest, total).await?;
        let default = self.options.context_length;
        let context = wanted.context(&model.params).map_or(default, |requested| requested.max(default));
        let (num_parallel, kv_cache_type) = (self.options.num_parallel, &self.options.kv_cache_type);
        let estimate = match &self.options.card {
            None => Estimate::of(&model, context, num_parallel, kv_cache_type),
            Some(_) => Estimate::on_card(&model, context, num_parallel, kv_cache_type),
        };
        let estimate = estimate.fit_into(self.state().ledger.without_models(self.memory().free_bytes));
        if estimate.needed() > total {
            return Err(Error::TooLarge { needed: estimate.needed(), total });
        }
        let reservation = match self.wait_for_memory(&wanted, estimate).await? {
            Placement::Existing(user) => return Ok(user),
            Placement::Reserved(reservation) => reservation,
        };
        let id = reservation.id;
        let request = LoadRequest {
            model: model.spec.clone(),
            kv_cache_type: self.options.kv_cache_type.clone(),
            context_length: context,
            num_parallel: self.options.num_parallel,
            cache_tokens: usize::try_from(estimate.cache.tokens).unwrap_or(usize::MAX),
            batch_tokens: BATCH_TOKENS,
            threads: self.options.threads,
            cpu: self.options.cpu.clone(),
            device: self.options.device.clone(),
            text: self.options.text,
        };
        let (runner, loaded) = self.start_runner(reservation, &model, &request).await?;
        let keep_alive = wanted.keep_alive.unwrap_or(self.options.keep_alive);
        let start = LoadContext {
            id,
            wanted: &wanted,
            request: &request,
            keep_alive,
            changed: self.changed.clone(),
            metrics: ModelMetrics::new(&self.labels.label(wanted.repository.as_str())),
        };
        let loaded = Arc::new(LoadedModel::new(start, model, runner, loaded));
        let user = {
            let mut state = self.state();
            if state.is_stopping {
                return Err(Error::Stopping);
            }
            let user = User::new(loaded.clone());
            state.loaded.insert(wanted.digest, loaded.clone());
            user
        };
        tokio::spawn(watch_runner(Arc::downgrade(self), loaded));
        self.changed.notify_one();
        Ok(user)
    }

    async fn wait_for_memory(
        self: &Arc<Inner>,
        wanted: &ModelRequirements,
        estimate: Estimate,
    ) -> Result<Placement, Error> {
        let (id, decided) = self.state().enqueue(wanted.clone(), estimate);
        let queued = QueuePosition { inner: self, id };
        self.place();
        loop {
            let decision = self.state().take_decision(queued.id);
            match decision {
                Some(Decision::Start) => {
                    return Ok(Placement::Reserved(Reservation { inner: Arc::downgrade(self), id }));
                }
                Some(Decision::Existing(user)) => return Ok(Placement::Existing(user)),
                Some(Decision::Refuse(error)) => return Err(error),
                None => decided.notified().await,
            }
        }
    }

    /// Starts a runner and loads a model into it, within the load timeout.
    async fn start_runner(
        self: &Arc<Inner>,
        reservation: Reservation,
        model: &Model,
        request: &LoadRequest,
    ) -> Result<(Runner, LoadResponse), Error> {
        let started = Instant::now();
        let load = async {
            let id = reservation.id;
            let runner = StartingRunner { inner: self, id, runner: Some(self.launcher.launch().await?) };
            // The measured memory of a card is that without this worker's models.
            if self.options.card.is_none() {
                self.state().ledger.attach(id, Box::new(runner.anonymous_bytes()));
            }
            let ended = runner.ended();
            // The promised memory becomes available when the process has ended, for whatever reason.
            tokio::spawn(async move {
                ended.await;
                drop(reservation);
            });
            match runner.client().load(request).await {
                Err(error) if error.is_gone() => Err(Error::LoadEnded),
                loaded => {
                    let loaded = loaded?;
                    Ok((runner.finish(), loaded))
                }
            }
        };
        let timeout = self.options.load_timeout;
        let (runner, loaded) =
            tokio::time::timeout(timeout, load).await.map_err(|_| Error::LoadTimeout(timeout))??;
        tracing::info!(
            repository = %model.repository, digest = %model.digest, architecture = loaded.architecture,
            device = loaded.device, context_length = loaded.context_length,
            cache_tokens = request.cache_tokens,
            duration_ms = started.elapsed().as_millis() as u64, "loaded"
        );
        Ok((runner, loaded))
    }

    /// Places queued loads, and begins to unload the models evicted for them.
    fn place(self: &Arc<Inner>) {
        let limits = Limits {
            max_loaded_models: self.options.max_loaded_models.max(1),
            eviction_delay: self.options.eviction_delay,
        };
        let to_stop = {
            let mut state = self.state();
            let memory = if state.is_waiting() { self.memory() } else { Memory::default() };
            state.place(memory, &limits, Instant::now())
        };
        to_stop.into_iter().for_each(stop_runner);
    }

    /// Unloads models whose keep-alive has expired. Returns when the next one expires.
    fn unload_expired(&self) -> Option<Instant> {
        let now = Instant::now();
        let mut state = self.state();
        let models: Vec<_> = state.loaded.values().cloned().collect();
        let is_due = |model: &Arc<LoadedModel>| model.expires_at().is_some_and(|at| at <= now);
        let due: Vec<_> =
            models.iter().filter(|model| is_due(model) && state.remove_idle(model)).cloned().collect();
        drop(state);
        due.into_iter().for_each(stop_runner);
        models.iter().filter_map(|model| model.expires_at()).filter(|at| *at > now).min()
    }
}

/// Memory for a load, or the loaded model.
enum Placement {
    Reserved(Reservation),
    Existing(User),
}

/// A place in the queue of loads.
struct QueuePosition<'a> {
    inner: &'a Inner,
    id: LoadId,
}

impl Drop for QueuePosition<'_> {
    fn drop(&mut self) {
        self.inner.state().cancel(self.id);
        self.inner.changed.notify_one();
    }
}

/// Memory promised to a load, until it is dropped.
struct Reservation {
    inner: Weak<Inner>,
    id: LoadId,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.upgrade() {
            inner.state().ledger.release(self.id);
            inner.changed.notify_one();
            inner.ended.notify_waiters();
        }
    }
}

/// A runner whose model is not loaded yet. If the load fails or is cancelled, its memory becomes available
/// soon.
struct StartingRunner<'a> {
    inner: &'a Inner,
    id: LoadId,
    runner: Option<Runner>,
}

impl StartingRunner<'_> {
    fn finish(mut self) -> Runner {
        self.runner.take().expect("the runner is only taken here")
    }
}

impl std::ops::Deref for StartingRunner<'_> {
    type Target = Runner;

    fn deref(&self) -> &Runner {
        self.runner.as_ref().expect("the runner is only taken by `finish`, which consumes this value")
    }
}

impl Drop for StartingRunner<'_> {
    fn drop(&mut self) {
        if self.runner.is_some() {
            self.inner.state().ledger.leave(self.id);
        }
    }
}

fn stop_runner(model: Arc<LoadedModel>) {
    tokio::spawn(async move {
        model.stop().await;
        tracing::info!(repository = %model.repository(), digest = %model.digest(), "unloaded");
    });
}

/// Removes a model whose runner ended unexpectedly, so that the next request starts it again.
async fn watch_runner(inner: Weak<Inner>, model: Arc<LoadedModel>) {
    model.wait_until_ended().await;
    model.close();
    let Some(inner) = inner.upgrade() else { return };
    let mut state = inner.state();
    if state.loaded.get(model.digest()).is_some_and(|other| Arc::ptr_eq(other, &model)) {
        state.loaded.remove(model.digest());
        drop(state);
        tracing::error!(repository = %model.repository(), digest = %model.digest(), "runner exited unexpectedly");
        inner.changed.notify_one();
    }
}

/// Unloads expired models and places queued loads, until the scheduler is dropped.
async fn run_maintenance(inner: Weak<Inner>) {
    loop {
        let Some(strong) = inner.upgrade() else { return };
        let expires = strong.unload_expired();
        strong.place();
        let recheck = if strong.state().is_waiting() { RECHECK } else { MAX_SLEEP };
        let changed = strong.changed.clone();
        drop(strong);
        let latest = Instant::now() + recheck;
        tokio::select! {
            () = changed.notified() => {}
            () = tokio::time::sleep_until(expires.unwrap_or(latest).min(latest)) => {}
        }
    }
}

#[cfg(test)]
mod tests;

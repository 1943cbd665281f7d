//! Which model is loaded, and who waits for it: one load at a time, the least recently used idle model makes room.
//! The HTTP side asks for a [`Ticket`] and talks to its runner; the ticket's end starts the keep-alive clock.

mod keep_alive;
mod loaded;
pub mod memory;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use lode_model::digest::Digest;
use lode_model::reference::Repository;
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;

pub use keep_alive::{KeepAlive, KeepAliveError};
use loaded::User;
pub use loaded::{LoadedModel, Snapshot, Ticket};

use crate::cache::{Model, Models};
use crate::error::Error;
use crate::runner::TextLimits;
use crate::runner::process::Launch;
use crate::runner::protocol::LoadRequest;
use memory::Estimate;

/// Prompt tokens that one step computes, over all its sequences.
const BATCH_TOKENS: usize = 256;

/// What the scheduler is told once.
pub struct Options {
    pub keep_alive: KeepAlive,
    pub max_queue: usize,
    pub num_parallel: usize,
    pub max_loaded_models: usize,
    pub kv_cache_type: String,
    pub context_length: usize,
    pub load_timeout: Duration,
    pub threads: Option<usize>,
    pub text: TextLimits,
    /// Bytes that a model may take now.
    pub free_memory: Box<dyn Fn() -> u64 + Send + Sync>,
}

/// What a request wants loaded.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub repository: Repository,
    /// Of the manifest.
    pub digest: Digest,
    /// As the caller wrote it.
    pub name: String,
    /// Context asked for in the request's options.
    pub num_ctx: Option<usize>,
    pub keep_alive: Option<KeepAlive>,
}

/// Loads, shares and unloads models. Cheap to clone.
#[derive(Clone)]
pub struct Scheduler {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    options: Options,
    models: Arc<Models>,
    launcher: Arc<dyn Launch>,
    state: Mutex<State>,
    /// One load at a time.
    loading: tokio::sync::Mutex<()>,
    queue: Arc<Semaphore>,
    /// A model became idle, or went.
    changed: Notify,
}

#[derive(Default)]
struct State {
    loaded: HashMap<Digest, Arc<LoadedModel>>,
    stopping: bool,
}

impl Scheduler {
    /// Starts the task that unloads what has expired.
    pub fn start(options: Options, models: Arc<Models>, launcher: Arc<dyn Launch>) -> Scheduler {
        let queue = Arc::new(Semaphore::new(options.max_queue.clamp(1, Semaphore::MAX_PERMITS)));
        let inner = Arc::new(Inner {
            options,
            models,
            launcher,
            state: Mutex::default(),
            loading: tokio::sync::Mutex::default(),
            queue,
            changed: Notify::new(),
        });
        tokio::spawn(expire(Arc::downgrade(&inner)));
        Scheduler { inner }
    }

    /// Waits for the model to be loaded and for a place in it. Dropping the future gives up the wait.
    pub async fn acquire(&self, wanted: Wanted) -> Result<Ticket, Error> {
        let _waiting = self.inner.queue.clone().try_acquire_owned().map_err(|_| Error::Busy)?;
        let started = Instant::now();
        let mut load = Duration::ZERO;
        loop {
            let user = match self.inner.find(&wanted)? {
                Some(user) => user,
                None => {
                    // In a task of its own: whoever asked first may leave, others may wait for the same.
                    let (inner, wanted) = (self.inner.clone(), wanted.clone());
                    tokio::spawn(async move { inner.load(wanted).await })
                        .await
                        .unwrap_or_else(|_| Err(Error::Stopping))?;
                    load = started.elapsed();
                    continue;
                }
            };
            match user.place().await {
                Some(place) => return Ok(Ticket::new(self.inner.clone(), place, wanted.keep_alive, load)),
                // Its runner went away while we waited.
                None => continue,
            }
        }
    }

    /// Loads a model for later requests, or tells how long it is to stay.
    pub async fn preload(&self, wanted: Wanted) -> Result<Duration, Error> {
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

    /// What is loaded now, as reports show it.
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
            state.stopping = true;
            state.loaded.drain().map(|(_, model)| model).collect()
        };
        futures::future::join_all(models.iter().map(|model| model.stop())).await;
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The loaded model, if it will do; using it keeps it from being unloaded.
    fn find(&self, wanted: &Wanted) -> Result<Option<User>, Error> {
        let state = self.state();
        if state.stopping {
            return Err(Error::Stopping);
        }
        Ok(state.loaded.get(&wanted.digest).filter(|model| model.suits(wanted)).cloned().map(User::new))
    }

    async fn load(self: Arc<Inner>, wanted: Wanted) -> Result<(), Error> {
        // Pulling takes long and needs no turn: the cache sees to it that nothing is pulled twice.
        let model = self.models.fetch(&wanted.repository, &wanted.digest).await?;
        let _turn = self.loading.lock().await;
        if self.find(&wanted)?.is_some() {
            return Ok(());
        }
        let default = self.options.context_length;
        let context = wanted.num_ctx.map_or(default, |asked| asked.max(default));
        let estimate = Estimate::of(&model, context, self.options.num_parallel, &self.options.kv_cache_type);
        self.make_room(&wanted.digest, &estimate).await?;
        let loaded = self.start(&wanted, model, context).await?;
        let mut state = self.state();
        if state.stopping {
            return Err(Error::Stopping);
        }
        state.loaded.insert(wanted.digest.clone(), loaded.clone());
        drop(state);
        tokio::spawn(watch(Arc::downgrade(&self), loaded));
        Ok(())
    }

    async fn start(&self, wanted: &Wanted, model: Model, context: usize) -> Result<Arc<LoadedModel>, Error> {
        let options = &self.options;
        let started = Instant::now();
        let request = LoadRequest {
            model: model.spec.clone(),
            kv_cache_type: options.kv_cache_type.clone(),
            context_length: context,
            num_parallel: options.num_parallel,
            batch_tokens: BATCH_TOKENS,
            threads: options.threads,
            text: options.text,
        };
        let load = async {
            let runner = self.launcher.launch().await?;
            match runner.client().load(&request).await {
                Err(error) if error.is_gone() => Err(Error::LoadEnded),
                loaded => Ok((runner, loaded?)),
            }
        };
        let (runner, loaded) = tokio::time::timeout(options.load_timeout, load)
            .await
            .map_err(|_| Error::LoadTimeout(options.load_timeout))??;
        tracing::info!(
            repository = %model.repository, digest = %model.digest, architecture = loaded.architecture,
            device = loaded.device, context_length = loaded.context_length,
            duration_ms = started.elapsed().as_millis() as u64, "loaded"
        );
        let keep_alive = wanted.keep_alive.unwrap_or(options.keep_alive);
        Ok(Arc::new(LoadedModel::new(wanted, model, runner, loaded, &request, keep_alive)))
    }

    /// Unloads idle models, the least recently used first, until the new one fits in number and in memory.
    async fn make_room(&self, digest: &Digest, estimate: &Estimate) -> Result<(), Error> {
        loop {
            let changed = self.changed.notified();
            let (victim, any) = {
                let state = self.state();
                if state.stopping {
                    return Err(Error::Stopping);
                }
                let free = (self.options.free_memory)();
                let fits = state.loaded.len() < self.options.max_loaded_models && estimate.fits(free);
                // The same model with another context has to go in any case.
                let same = state.loaded.get(digest).cloned();
                if same.is_none() && fits {
                    return Ok(());
                }
                if same.is_none() && state.loaded.is_empty() {
                    // Nothing more can go. A tight fit is tried, an impossible one is not.
                    return if estimate.needed() <= free {
                        Ok(())
                    } else {
                        Err(Error::Memory { needed: estimate.needed(), available: free })
                    };
                }
                let lru = || {
                    let idle = state.loaded.values().filter(|model| model.is_idle());
                    idle.min_by_key(|model| model.last_used()).cloned()
                };
                let victim = match same {
                    Some(same) => {
                        same.retire();
                        same.is_idle().then_some(same)
                    }
                    None => lru(),
                };
                (victim, !state.loaded.is_empty())
            };
            match victim {
                Some(victim) => self.unload(&victim).await,
                None if any => {
                    // Becoming idle is told; the timeout covers what is not, such as memory that others free.
                    let _ = tokio::time::timeout(Duration::from_millis(500), changed).await;
                }
                None => {}
            }
        }
    }

    /// Takes a model out and ends its runner, unless somebody has begun to use it.
    async fn unload(&self, model: &Arc<LoadedModel>) {
        {
            let mut state = self.state();
            let is_it = state.loaded.get(model.digest()).is_some_and(|other| Arc::ptr_eq(other, model));
            if !is_it || !model.is_idle() {
                return;
            }
            state.loaded.remove(model.digest());
        }
        model.stop().await;
        tracing::info!(repository = %model.repository(), digest = %model.digest(), "unloaded");
        self.changed.notify_waiters();
    }

    /// A ticket ended: clocks start, waiters look again.
    pub(crate) fn released(&self) {
        self.changed.notify_waiters();
        self.changed.notify_one();
    }

    pub(crate) fn default_keep_alive(&self) -> KeepAlive {
        self.options.keep_alive
    }
}

/// Removes a model whose runner went away by itself, so that the next request starts it again.
async fn watch(inner: std::sync::Weak<Inner>, model: Arc<LoadedModel>) {
    model.ended().await;
    model.close();
    let Some(inner) = inner.upgrade() else { return };
    let mut state = inner.state();
    if state.loaded.get(model.digest()).is_some_and(|other| Arc::ptr_eq(other, &model)) {
        state.loaded.remove(model.digest());
        drop(state);
        tracing::error!(repository = %model.repository(), digest = %model.digest(), "the runner of a model went away");
        inner.changed.notify_waiters();
    }
}

/// Unloads models whose time has come, until the scheduler is gone.
async fn expire(inner: std::sync::Weak<Inner>) {
    loop {
        let Some(strong) = inner.upgrade() else { return };
        let now = Instant::now();
        let (due, next) = {
            let state = strong.state();
            let expiring = || state.loaded.values().filter_map(|model| Some((model.expires_at()?, model)));
            let due: Vec<_> =
                expiring().filter(|(at, _)| *at <= now).map(|(_, model)| model.clone()).collect();
            (due, expiring().map(|(at, _)| at).filter(|at| *at > now).min())
        };
        for model in due {
            strong.unload(&model).await;
        }
        let changed = strong.changed.notified();
        // Also looked at now and then without being told, so that a dropped scheduler ends this task.
        let wake = next.unwrap_or(now + Duration::from_secs(3600)).min(now + Duration::from_secs(5));
        tokio::select! {
            () = changed => {}
            () = tokio::time::sleep_until(wake) => {}
        }
    }
}

#[cfg(test)]
mod tests;

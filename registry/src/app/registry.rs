//! The registry's handle: its state, how it opens and stops, and functions that all its methods use.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures::FutureExt;
use lode_client::{BodyBudget, Egress, Secret};
use lode_model::digest::Digest;
use lode_model::reference::{Name, ReferenceError};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument;
use uuid::Uuid;

use super::access_cache::AccessCache;
use super::audit_queue::AuditQueue;
use super::card_cache::Cards;
use super::coalescing::Coalescer;
use super::indexing::Indexing;
use super::job_control::Jobs;
use super::limits::{IndexLimits, Limits, UploadTimeouts};
use super::manifest_files::FileLists;
use super::measurements::Measurements;
use super::pulls::PullCounter;
use super::rate_limits::RateLimits;
use super::setup_link::SetupLink;
use super::sign_in_cache::SignIns;
use super::worker_table::Workers;
use crate::auth::token::new_token;
use crate::auth::vault::Vault;
use crate::blobs::{Blobs, Locks};
use crate::config::check_providers;
use crate::error::chain;
use crate::issuer::Issuers;
use crate::retention::Retention;
use crate::store::{PostgresOptions, Store, XetUploader};
use crate::time::millis;
use crate::upstream::Upstream;
use crate::{Config, Error, OpenError, config, metrics};

/// How many listed blobs are checked before the storage is considered to belong to another registry.
const SAMPLE_BLOBS: i64 = 4;
const SAMPLE_LIMIT: Duration = Duration::from_secs(5);

/// The minimum length of `secret_key`: a shorter one could be guessed.
const MIN_SECRET_LEN: usize = 16;

/// How many pairs of tensors are decoded and compared at a time.
const MAX_CONCURRENT_COMPARISONS: usize = 2;

/// How many times a transaction is attempted when it ends in a deadlock.
pub(super) const TRIES: u32 = 5;

/// Retries a transaction that the database ended to resolve a deadlock.
macro_rules! retry_on_deadlock {
    ($attempt:expr) => {{
        let mut tries = 1;
        loop {
            match $attempt {
                Err(error) if $crate::Error::is_deadlock(&error) && tries < $crate::app::registry::TRIES => {
                    tries += 1
                }
                outcome => break outcome,
            }
        }
    }};
}
pub(super) use retry_on_deadlock;

/// The registry: a handle that is cheap to clone.
#[derive(Clone)]
pub struct Registry(Arc<Inner>);

pub struct Inner {
    pub(super) config: Config,
    pub(super) store: Store,
    pub(super) blobs: Blobs,
    pub(super) timeouts: UploadTimeouts,
    /// Locks of the writers of one upload; the newest writer wins.
    pub(super) writers: Locks<Uuid>,
    /// Locks that serialise commits and deletions of one digest.
    pub(super) digests: Locks<Digest>,
    /// Locks that serialise the assembly of files from the chunks of one uploader.
    pub(super) assembling: Locks<XetUploader>,
    pub(super) retention: Retention,
    /// Held during a collection: one runs at a time.
    pub(super) collecting: tokio::sync::Mutex<()>,
    /// The files of recently read manifests.
    pub(super) file_lists: FileLists,
    /// Manifests that are being indexed as models.
    pub(crate) indexing: Indexing,
    pub(crate) index_limits: IndexLimits,
    /// The jobs that this process runs.
    pub(crate) jobs: Jobs,
    /// Permits to decode tensors for comparisons, held by the threads that do it.
    pub(super) comparing: Arc<tokio::sync::Semaphore>,
    /// Rendered model cards.
    pub(super) cards: Cards,
    /// The attached workers, and their heartbeats.
    pub(super) workers: Workers,
    /// Cached accounts and their rights.
    pub(super) access: AccessCache,
    pub(super) sign_ins: SignIns,
    pub(super) audit_queue: AuditQueue,
    pub(super) pulls: PullCounter,
    pub(super) setup: SetupLink,
    /// The token that other parts of this process, such as its worker, send.
    pub(super) internal_token: Secret,
    /// The memory budget for request bodies.
    pub(super) body_budget: BodyBudget,
    /// The addresses that this server may connect to on behalf of its callers.
    pub(super) egress: Egress,
    /// The upstreams of mirrored repositories.
    pub(super) upstreams: Vec<Arc<Upstream>>,
    /// Fetches from upstreams in progress.
    pub(super) fetches: Coalescer,
    /// The server is not ready until this model exists.
    pub(super) awaited_model: Option<Name>,
    pub(super) started: Instant,
    /// The latest measurements of this process.
    pub(super) measurements: Measurements,
    /// When this process opened the registry, by the database's clock.
    pub(super) opened_at: i64,
    /// Encrypts the keys in the database.
    pub(super) vault: Vault,
    /// The issuers of tokens with which people and CI jobs sign in.
    pub(super) issuers: Issuers,
    rate_limits: RateLimits,
    /// Cancelled when the shutdown begins, while requests are still served.
    shutdown: CancellationToken,
    /// A copy of this state that requests read without a lock.
    is_shutting_down: AtomicBool,
    pub(super) stopping: CancellationToken,
    pub(super) tasks: TaskTracker,
}

impl Deref for Registry {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

/// Opens the registry without starting background tasks.
pub(crate) async fn open_idle(mut config: Config, limits: Limits) -> Result<Registry, OpenError> {
    check_providers(&mut config.oidc)?;
    let egress = Egress::new(config.allow_egress.clone())
        .map_err(|error| OpenError::Config { setting: "allow_egress", reason: chain(&error) })?;
    let rate_limits = RateLimits::new(&config);
    let issuers = Issuers::new(&egress, &config.oidc);
    let upstreams = config.mirror.iter().map(|mirror| Upstream::open(mirror, &egress).map(Arc::new));
    let upstreams = upstreams.collect::<Result<_, OpenError>>()?;
    let retention = Retention::new(&config.retention)?;
    let awaited_model = config.wait_for_model.as_deref().map(str::parse).transpose();
    let awaited_model = awaited_model.map_err(|error: ReferenceError| OpenError::Config {
        setting: "wait_for_model",
        reason: error.to_string(),
    })?;
    let settings = config.clone();
    // Before anything records.
    metrics::install();
    let blobs = tokio::task::spawn_blocking(move || Blobs::open(&settings, limits.write))
        .await
        .map_err(|_| Error::Interrupted)??;
    blobs.check().await?;
    let reach = PostgresOptions { connections: config.database_connections, wait: config.database_wait };
    let store = Store::open_with(config.database.as_ref(), &config.data, reach).await?;
    let opened_at = store.database_now_ms().await?;
    let body_budget = BodyBudget::new(config.body_budget.0);
    let vault = Vault::new(read_secret(&config)?.as_ref());
    let registry = Registry(Arc::new(Inner {
        config,
        store,
        blobs,
        timeouts: limits.timeouts,
        writers: Locks::default(),
        digests: Locks::default(),
        assembling: Locks::default(),
        retention,
        collecting: tokio::sync::Mutex::default(),
        file_lists: FileLists::default(),
        indexing: Indexing::default(),
        index_limits: limits.index,
        jobs: Jobs::default(),
        comparing: Arc::new(tokio::sync::Semaphore::new(MAX_CONCURRENT_COMPARISONS)),
        cards: Cards::default(),
        workers: Workers::default(),
        access: AccessCache::default(),
        sign_ins: SignIns::default(),
        audit_queue: AuditQueue::default(),
        pulls: PullCounter::default(),
        setup: SetupLink::default(),
        internal_token: new_token()?,
        body_budget,
        egress,
        upstreams,
        fetches: Coalescer::default(),
        awaited_model,
        started: Instant::now(),
        measurements: Measurements::default(),
        opened_at,
        vault,
        issuers,
        rate_limits,
        shutdown: CancellationToken::new(),
        is_shutting_down: AtomicBool::new(false),
        stopping: CancellationToken::new(),
        tasks: TaskTracker::new(),
    }));
    Ok(registry)
}

impl Registry {
    pub fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) fn rate_limits(&self) -> &RateLimits {
        &self.rate_limits
    }

    /// The token with which other parts of this process call it. It may do everything, and is valid while this
    /// process runs.
    pub fn internal_token(&self) -> &Secret {
        &self.internal_token
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    pub(crate) fn blobs(&self) -> &Blobs {
        &self.blobs
    }

    pub(crate) fn body_budget(&self) -> &BodyBudget {
        &self.body_budget
    }

    pub(crate) fn egress(&self) -> &Egress {
        &self.egress
    }

    /// Runs a job until it ends or the registry stops.
    pub(crate) fn start(&self, job: impl Future<Output = ()> + Send + 'static) {
        let stopping = self.stopping.clone();
        let job = async move {
            tokio::select! {
                () = job => {}
                () = stopping.cancelled() => {}
            }
        };
        // As a trait object, so that tokio's task is compiled once.
        self.tasks.spawn(job.boxed());
    }

    /// Runs work that checks `stopping` itself and must not be dropped before its end.
    pub(crate) fn start_draining(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(work.boxed());
    }

    pub(crate) fn stopping(&self) -> &CancellationToken {
        &self.stopping
    }

    /// Begins the shutdown: this server is no longer ready, and asks clients for new connections, but serves
    /// everything.
    pub fn begin_shutdown(&self) {
        self.is_shutting_down.store(true, Ordering::SeqCst);
        self.shutdown.cancel();
    }

    pub(crate) fn is_shutting_down(&self) -> bool {
        self.is_shutting_down.load(Ordering::Relaxed)
    }

    pub(crate) async fn shutdown_begun(&self) {
        self.shutdown.cancelled().await;
    }

    /// Stops the jobs and closes the database. Requests in flight should have ended.
    pub async fn close(&self) {
        self.stopping.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        self.remove_replica().await;
        self.store.close().await;
    }

    /// Checks that this server can do its work. Otherwise returns the missing parts, one line each.
    pub async fn ready(&self) -> Result<(), Vec<String>> {
        if self.is_shutting_down() {
            return Err(vec!["the server is stopping".to_owned()]);
        }
        let (database, storage) =
            tokio::join!(self.store.ping(), metrics::measure_storage("ping", self.blobs.ping()));
        let mut missing: Vec<String> = [("database", database), ("storage", storage)]
            .into_iter()
            .filter_map(|(name, result)| result.err().map(|error| (name, error)))
            .map(|(name, error)| {
                tracing::warn!(%error, "the {name} does not respond");
                format!("the {name} does not respond")
            })
            .collect();
        if missing.is_empty() {
            missing = self.list_missing().await;
            // An error or a timeout does not prove that the storage is the wrong one.
            if let Ok(Ok(false)) = tokio::time::timeout(SAMPLE_LIMIT, self.has_listed_blobs()).await {
                missing.push(
                    "the storage has none of the blobs that the database lists; check that it is the right one"
                        .to_owned(),
                );
            }
        }
        if missing.is_empty() { Ok(()) } else { Err(missing) }
    }

    /// Checks that the storage has at least one of the blobs that the database lists. With the settings of
    /// another storage, or a misspelt prefix, pushes of listed blobs would be acknowledged, and other blobs
    /// would be stored where they are not found later.
    pub(super) async fn has_listed_blobs(&self) -> Result<bool, Error> {
        let listed = self.store.blobs_live("", SAMPLE_BLOBS).await?;
        for blob in &listed {
            let is_there = self.blobs.size(&blob.store_key).await?.is_some();
            // A collection may have deleted it meanwhile.
            if is_there || self.store.blob_live(&blob.digest).await?.is_none() {
                return Ok(true);
            }
        }
        Ok(listed.is_empty())
    }

    /// A key that all replicas share. The first one that needs it creates it.
    pub(super) async fn server_key(&self, name: &str) -> Result<Vec<u8>, Error> {
        let mut fresh = [0; 32];
        getrandom::fill(&mut fresh)
            .map_err(|error| Error::io("random bytes", std::io::Error::other(error)))?;
        let stored = self.store.server_key(name, &self.vault.seal(name, &fresh)?).await?;
        let (key, is_plain) = self.vault.open(name, &stored)?;
        if is_plain && !self.config.read_only {
            self.store.server_key_replace(name, &stored, &self.vault.seal(name, &key)?).await?;
        }
        Ok(key)
    }

    /// Checks that the keys in the database can be read, and warns if others could read them there.
    pub(crate) async fn check_keys(&self) -> Result<(), Error> {
        self.access_token_key().await?;
        if !self.vault.has_key() && self.store.is_shared() {
            tracing::warn!(
                "keys of this server are stored unencrypted in the database; set LODE_SECRET_KEY to encrypt them"
            );
        }
        Ok(())
    }

    /// Returns an error on a read-only server.
    pub(crate) fn check_writable(&self) -> Result<(), Error> {
        if self.config.read_only { Err(Error::ReadOnly) } else { Ok(()) }
    }

    /// How long an upload, a mount or a HEAD keeps a blob, in milliseconds.
    pub(super) fn lease_ms(&self) -> i64 {
        millis(self.config.upload_lease)
    }
}

/// The key that encrypts keys in the database.
fn read_secret(config: &Config) -> Result<Option<Secret>, OpenError> {
    let found = config::secret("secret_key", &config.secret_key, &config.secret_key_file)?;
    match &found {
        Some(secret) if secret.expose().len() < MIN_SECRET_LEN => Err(OpenError::Config {
            setting: "secret_key",
            reason: format!(
                "expected at least {MIN_SECRET_LEN} characters, such as `openssl rand -hex 32` prints"
            ),
        }),
        _ => Ok(found),
    }
}

/// Runs `work` to its end even if the client of the request disconnects.
pub(super) async fn detached<T: Send + 'static>(
    work: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<T, Error> {
    match tokio::spawn(work.in_current_span().boxed()).await {
        Ok(result) => result,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => Err(Error::Interrupted),
    }
}

//! The rules of the registry: `impl Registry`, one noun a file. Each method checks the policy first. Called
//! by the edge (`oci`, `api`, `hub`, `gateway`) and by `jobs`; it uses `store` for SQL and `blobs` for bytes.

mod blobs;
mod coalescing;
mod create;
mod diff;
mod fsck;
mod gc;
mod index;
mod jobs;
mod lineage;
mod links;
mod manifests;
mod migrate;
mod mirror;
mod models;
mod read_at;
mod receive;
mod referrers;
mod spellings;
mod staging;
mod tags;
#[cfg(test)]
mod tests;
mod transfer;
mod uploads;
mod walk;
mod webhooks;
mod worker_table;
mod workers;

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::BoxStream;
use lode_client::{BodyBudget, Egress};
use lode_model::digest::Digest;
use lode_model::reference::Tag;
use uuid::Uuid;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use crate::blobs::{Blobs, Locks, WriteLimit};
use crate::error::chain;
use crate::gateway::Gateway;
use crate::retention::Retention;
use crate::store::{self, PostgresOptions, Store};
use crate::upstream::Upstream;
use crate::{Config, Error, metrics};

pub use crate::blobs::BlobStream;
pub(crate) use crate::store::StoredBlob;
use coalescing::Coalescer;
pub use create::{CreateError, CreateStep, ExtraFile, ModelSource, NewModel};
pub use diff::{DiffOutcome, DiffRecord, DiffSide, DiffStatus, DiffStream, DiffTotal, TensorDiff};
pub use fsck::{Damage, FsckSummary};
pub(crate) use fsck::{Finding, FindingSink};
pub use gc::{GcReport, Removal, RemovalPage, RestoredContent};
pub(crate) use jobs::JobControl;
pub use jobs::{FindingKind, Job, JobKind};
pub use lineage::{Ancestor, Descendant, Lineage, Relative};
pub use links::BlobLink;
pub use migrate::{MigrateReport, migrate};
pub use models::{Model, ModelPage, ModelState, ModelSummary, TaggedModel};
pub use referrers::Referrer;
pub use spellings::Spellings;
pub use transfer::{RemoteModel, TransferError, TransferEvent, TransferSink};
use uploads::UploadTimeouts;
pub use webhooks::WebhookDelivery;
pub use workers::{Device, Heartbeat, JoinProof, LoadedModel, Registration, Worker, WorkerAnnouncement};

/// How many listed blobs are checked before the storage is considered to belong to another registry.
const SAMPLE_BLOBS: i64 = 4;
const SAMPLE_LIMIT: Duration = Duration::from_secs(5);

/// How many pairs of tensors are decoded and compared at a time.
const COMPARING_AT_ONCE: usize = 2;

/// Why a request body was interrupted.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;
/// A request body.
pub type Body = BoxStream<'static, Result<Bytes, BodyError>>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlobInfo {
    pub digest: Digest,
    pub size_bytes: u64,
}

/// The progress of an upload: every byte before `offset` is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UploadStatus {
    pub id: Uuid,
    pub offset: u64,
}

/// The range and length that the client declares for a body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChunkRange {
    /// First and last byte, both inclusive, as in `Content-Range`. Absent: append at the upload's offset.
    pub range: Option<(u64, u64)>,
    /// The body's length, as in `Content-Length`.
    pub length: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredManifest {
    pub digest: Digest,
    pub media_type: String,
    pub bytes: Bytes,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestPut {
    pub digest: Digest,
    pub subject: Option<Digest>,
    pub tags: Vec<Tag>,
}

/// One page of a listing, and whether another one follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<T> {
    pub items: Vec<T>,
    pub more: bool,
}

/// How many times a transaction is attempted when it ends in a deadlock.
const TRIES: u32 = 5;

/// Retries a transaction that the database ended to resolve a deadlock.
macro_rules! retry_on_deadlock {
    ($attempt:expr) => {{
        let mut tries = 1;
        loop {
            match $attempt {
                Err(error) if $crate::Error::is_deadlock(&error) && tries < $crate::app::TRIES => tries += 1,
                outcome => break outcome,
            }
        }
    }};
}
use retry_on_deadlock;

/// The registry: a handle that is cheap to clone.
#[derive(Clone)]
pub struct Registry(Arc<Inner>);

pub struct Inner {
    config: Config,
    store: Store,
    blobs: Blobs,
    timeouts: UploadTimeouts,
    /// Locks of the writers of one upload; the newest writer wins.
    writers: Locks<Uuid>,
    /// Locks that serialise commits and deletions of one digest.
    digests: Locks<Digest>,
    retention: Retention,
    /// One collection at a time.
    collecting: tokio::sync::Mutex<()>,
    /// Manifests that are being indexed as models.
    pub(crate) indexing: index::Indexing,
    pub(crate) index_limits: IndexLimits,
    /// The jobs that this process runs.
    pub(crate) jobs: jobs::Jobs,
    /// Permits to decode tensors for comparisons, held by the threads that do it.
    comparing: Arc<tokio::sync::Semaphore>,
    /// The attached workers, and their heartbeats.
    workers: worker_table::Workers,
    /// The memory budget for request bodies.
    body_budget: BodyBudget,
    /// Routes inference requests to the workers.
    gateway: Gateway,
    /// The addresses that this server may connect to on behalf of its callers.
    egress: Egress,
    /// The upstreams of mirrored repositories.
    upstreams: Vec<Arc<Upstream>>,
    /// Fetches from them in progress.
    fetches: Coalescer,
    /// When this process opened the registry, by the database's clock.
    opened_at: i64,
    /// The key of signed links, loaded on first use.
    link_key: tokio::sync::OnceCell<Vec<u8>>,
    stopping: CancellationToken,
    tasks: TaskTracker,
}

impl Deref for Registry {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

/// Limits that only tests change.
#[derive(Clone, Copy, Default)]
struct Limits {
    write: WriteLimit,
    timeouts: UploadTimeouts,
    index: IndexLimits,
}

/// Limits for processing the queue of manifests.
#[derive(Clone, Copy)]
pub(crate) struct IndexLimits {
    /// How many queued manifests are indexed at a time.
    pub(crate) at_once: usize,
    /// How long a listing waits for manifests that were pushed a moment ago.
    pub(crate) list_wait: Duration,
}

impl Default for IndexLimits {
    fn default() -> Self {
        IndexLimits { at_once: 2, list_wait: Duration::from_secs(2) }
    }
}

/// Opens the registry of `config`: locks the data folder, migrates the database and starts the jobs.
pub async fn open(config: Config) -> Result<Registry, Error> {
    open_limited(config, Limits::default()).await
}

async fn open_limited(config: Config, limits: Limits) -> Result<Registry, Error> {
    crate::webhooks::check(&config.webhook)?;
    let registry = open_idle(config, limits).await?;
    metrics::start(&registry);
    worker_table::start(&registry);
    registry.store.jobs_recover().await?;
    crate::jobs::start_runner(&registry);
    if !registry.config.read_only {
        registry.store.index_recover().await?;
        crate::backup::remove_backup_marker(&registry.config.data)?;
        crate::jobs::start(&registry);
        crate::webhooks::start(&registry)?;
    }
    Ok(registry)
}

/// Opens the registry without starting background tasks.
async fn open_idle(config: Config, limits: Limits) -> Result<Registry, Error> {
    let egress = Egress::new(config.allow_egress.clone())
        .map_err(|error| Error::Config { setting: "allow_egress", reason: chain(&error) })?;
    let upstreams = config.mirror.iter().map(|mirror| Upstream::open(mirror, &egress).map(Arc::new));
    let upstreams = upstreams.collect::<Result<_, Error>>()?;
    let retention = Retention::new(&config.retention)?;
    let settings = config.clone();
    let blobs = tokio::task::spawn_blocking(move || Blobs::open(&settings, limits.write))
        .await
        .map_err(|_| Error::Interrupted)??;
    blobs.check().await?;
    let reach = PostgresOptions { connections: config.database_connections, wait: config.database_wait };
    let store = Store::open_with(config.database.as_ref(), &config.data, reach).await?;
    let opened_at = store.database_now_ms().await?;
    let body_budget = BodyBudget::new(config.body_budget.0);
    let gateway = Gateway::new(&config)?;
    let registry = Registry(Arc::new(Inner {
        config,
        store,
        blobs,
        timeouts: limits.timeouts,
        writers: Locks::default(),
        digests: Locks::default(),
        retention,
        collecting: tokio::sync::Mutex::default(),
        indexing: index::Indexing::default(),
        index_limits: limits.index,
        jobs: jobs::Jobs::default(),
        comparing: Arc::new(tokio::sync::Semaphore::new(COMPARING_AT_ONCE)),
        workers: worker_table::Workers::default(),
        body_budget,
        gateway,
        egress,
        upstreams,
        fetches: Coalescer::default(),
        opened_at,
        link_key: tokio::sync::OnceCell::new(),
        stopping: CancellationToken::new(),
        tasks: TaskTracker::new(),
    }));
    Ok(registry)
}

impl Registry {
    pub fn config(&self) -> &Config {
        &self.config
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

    pub(crate) fn gateway(&self) -> &Gateway {
        &self.gateway
    }

    pub(crate) fn egress(&self) -> &Egress {
        &self.egress
    }

    /// Runs a job until it ends or the registry stops.
    pub(crate) fn start(&self, job: impl Future<Output = ()> + Send + 'static) {
        let stopping = self.stopping.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = job => {}
                () = stopping.cancelled() => {}
            }
        });
    }

    /// Runs work that checks `stopping` itself and must not be dropped before its end.
    pub(crate) fn start_draining(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(work);
    }

    pub(crate) fn stopping(&self) -> &CancellationToken {
        &self.stopping
    }

    /// Stops the jobs and closes the database. Requests in flight should have ended.
    pub async fn close(&self) {
        self.stopping.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        self.store.close().await;
    }

    /// Checks that this server can do its work. Otherwise returns the missing parts, one line each.
    pub async fn ready(&self) -> Result<(), Vec<String>> {
        let (database, storage) =
            tokio::join!(self.store.ping(), metrics::measure_storage("ping", self.blobs.ping()));
        let mut missing: Vec<String> = [("database", database), ("storage", storage)]
            .into_iter()
            .filter_map(|(name, answer)| answer.err().map(|error| (name, error)))
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
    async fn has_listed_blobs(&self) -> Result<bool, Error> {
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

    /// Returns an error on a read-only server.
    pub(crate) fn check_writable(&self) -> Result<(), Error> {
        if self.config.read_only { Err(Error::ReadOnly) } else { Ok(()) }
    }

    /// How long an upload, a mount or a HEAD keeps a blob, in milliseconds.
    fn lease_ms(&self) -> i64 {
        store::millis(self.config.upload_lease)
    }
}

/// Runs `work` to its end even if the client of the request disconnects.
async fn detached<T: Send + 'static>(
    work: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<T, Error> {
    match tokio::spawn(work.in_current_span()).await {
        Ok(result) => result,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => Err(Error::Interrupted),
    }
}

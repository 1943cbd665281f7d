//! The state of a server on one page, for operators: itself, its database and storage, workers and jobs. It reads
//! what is measured in the background, and a bounded number of rows.

use lode_model::digest::Digest;
use lode_model::reference::Name;
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::replicas::ReplicaStatus;
use super::{Job, Registry, Worker};
use crate::Error;
use crate::auth::{Action, Caller, Target};
use crate::metrics::{ContentSize, Disk, WaitingRemovals};
use crate::time::rfc3339;

/// How many of the newest jobs are considered.
const NEWEST_JOBS: u32 = 200;
/// How many failed jobs are reported.
const FAILED_JOBS: usize = 5;

#[derive(Debug, Serialize, ToSchema)]
pub struct Status {
    pub server: ServerStatus,
    pub database: DatabaseStatus,
    pub storage: StorageStatus,
    /// What waits for a collection.
    pub waiting: Option<WaitingRemovals>,
    /// The servers that share the database, by address; none with SQLite.
    pub replicas: Vec<ReplicaStatus>,
    /// The attached workers of all replicas.
    pub workers: Vec<WorkerStatus>,
    pub jobs: JobsStatus,
}

/// The process that responds.
#[derive(Debug, Serialize, ToSchema)]
pub struct ServerStatus {
    pub version: &'static str,
    #[schema(format = DateTime)]
    pub started_at: String,
    pub uptime_seconds: u64,
    pub ready: bool,
    /// Why it is not ready.
    pub missing: Vec<String>,
    pub read_only: bool,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct DatabaseStatus {
    /// `sqlite` or `postgresql`.
    pub kind: &'static str,
    pub connections: u32,
    pub idle: u32,
    pub max: u32,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct StorageStatus {
    /// `folder`, or a scheme such as `s3`.
    pub kind: String,
    pub location: String,
    /// Null before the first measurement.
    pub content: Option<ContentSize>,
    /// The file systems of the folders.
    pub disks: Vec<Disk>,
    /// A file system has no space left: writes fail, and reads continue. The space of object storage is not known.
    pub full: bool,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct WorkerStatus {
    pub id: Uuid,
    pub address: String,
    /// `ready`; `draining`, or `drained` once no model is loaded.
    pub state: &'static str,
    pub version: String,
    /// The names of its devices.
    pub devices: Vec<String>,
    pub memory_bytes: u64,
    pub free_bytes: u64,
    pub models: Vec<WorkerModel>,
    /// The only models that it serves; empty: all models.
    pub reserved_for: Vec<Name>,
    /// The last heartbeat.
    #[schema(format = DateTime)]
    pub seen_at: String,
}

/// A model that a worker has loaded.
#[derive(Debug, Serialize, ToSchema)]
pub struct WorkerModel {
    pub repository: String,
    /// The name that it was loaded by, such as `team/mini:q4`; without a tag if the worker does not report it.
    pub name: String,
    pub digest: Digest,
    pub size_bytes: u64,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct JobsStatus {
    /// Queued and running ones.
    pub unfinished: Vec<Job>,
    /// The newest that failed.
    pub failed: Vec<Job>,
}

impl Worker {
    /// `ready`; `draining`, or `drained` once no model is loaded.
    pub fn state(&self) -> &'static str {
        match (self.draining, self.loaded.is_empty()) {
            (false, _) => "ready",
            (true, false) => "draining",
            (true, true) => "drained",
        }
    }
}

impl From<Worker> for WorkerStatus {
    fn from(worker: Worker) -> WorkerStatus {
        let sum = |bytes: &dyn Fn(&super::Device) -> u64| {
            worker.devices.iter().fold(0_u64, |sum, device| sum.saturating_add(bytes(device)))
        };
        WorkerStatus {
            id: worker.id,
            address: worker.advertise.to_string(),
            state: worker.state(),
            devices: (worker.devices.iter().map(|device| device.name.clone()))
                .filter(|name| !name.is_empty())
                .collect(),
            memory_bytes: sum(&|device| device.memory_bytes),
            free_bytes: sum(&|device| device.free_bytes),
            models: worker
                .loaded
                .into_iter()
                .map(|model| WorkerModel {
                    name: model.name(),
                    repository: model.repository.to_string(),
                    digest: model.digest,
                    size_bytes: model.size_bytes,
                })
                .collect(),
            reserved_for: worker.reserved_for,
            version: worker.version,
            seen_at: rfc3339(worker.seen_at),
        }
    }
}

impl Registry {
    /// The state of this server, and of what all replicas share.
    pub async fn status(&self, caller: &Caller) -> Result<Status, Error> {
        self.authorize(caller, Action::Inspect, Target::Server).await?;
        let missing = self.ready().await.err().unwrap_or_default();
        let measured = self.measured();
        let jobs = self.job_list(&Caller::INTERNAL, None, NEWEST_JOBS).await?.items;
        let (unfinished, finished): (Vec<Job>, Vec<Job>) =
            jobs.into_iter().partition(|job| job.finished_at.is_none());
        let failed = finished.into_iter().filter(|job| job.state == "failed").take(FAILED_JOBS).collect();
        let workers = self.worker_list(&Caller::INTERNAL).await?;
        let (kind, location) = self.blobs.location(&self.config);
        // Now, because the last measurement may be some seconds old.
        let disks = self.blobs.disks(&self.config).await;
        let full = disks.iter().any(Disk::is_full);
        let pools = self.store.connections();
        let sum = |count: &dyn Fn(&crate::metrics::PoolState) -> u32| pools.iter().map(count).sum();
        Ok(Status {
            server: ServerStatus {
                version: env!("CARGO_PKG_VERSION"),
                started_at: rfc3339(self.opened_at),
                uptime_seconds: self.started.elapsed().as_secs(),
                ready: missing.is_empty(),
                missing,
                read_only: self.config.read_only,
            },
            database: DatabaseStatus {
                kind: if self.store.is_shared() { "postgresql" } else { "sqlite" },
                connections: sum(&|pool| pool.size),
                idle: sum(&|pool| pool.idle),
                max: sum(&|pool| pool.max),
            },
            storage: StorageStatus { kind, location, content: measured.content, disks, full },
            waiting: measured.waiting,
            replicas: self.replica_list().await?,
            workers: workers.into_iter().map(WorkerStatus::from).collect(),
            jobs: JobsStatus { unfinished, failed },
        })
    }
}

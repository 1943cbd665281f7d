//! The rules of the registry: `impl Registry`, one noun a file. Each method checks the policy first. Called
//! by the edge (`oci`, `api`, `hub`, `gateway`) and by `jobs`; it uses `store` for SQL and `blobs` for bytes.

mod blobs;
mod coalescing;
mod create;
mod diff;
mod event;
mod fsck;
mod gc;
mod index;
mod indexing;
mod job_control;
mod jobs;
mod limits;
mod lineage;
mod links;
mod manifests;
mod migrate;
mod mirror;
mod models;
mod read_at;
mod receive;
mod referrers;
mod registry;
mod spellings;
mod staging;
mod tags;
#[cfg(test)]
mod tests;
mod transfer;
mod uploads;
mod values;
mod walk;
mod webhooks;
mod worker;
mod worker_table;
mod workers;

pub use crate::blobs::BlobStream;
pub(crate) use crate::store::StoredBlob;
pub use create::{CreateError, CreateStep, ExtraFile, ModelSource, NewModel};
pub use diff::{DiffOutcome, DiffRecord, DiffSide, DiffStatus, DiffStream, DiffTotal, TensorDiff};
pub use fsck::{Damage, FsckSummary};
pub(crate) use fsck::{Finding, FindingSink};
pub use gc::{GcReport, Removal, RemovalPage, RestoredContent};
pub(crate) use job_control::JobControl;
pub use jobs::{FindingKind, Job, JobKind};
pub(crate) use limits::Limits;
#[cfg(test)]
pub(crate) use limits::{IndexLimits, UploadTimeouts};
pub use lineage::{Ancestor, Descendant, Lineage, Relative};
pub use links::BlobLink;
pub use migrate::{MigrateReport, migrate};
pub use models::{Model, ModelPage, ModelState, ModelSummary, TaggedModel};
pub use referrers::Referrer;
pub use registry::Registry;
pub(crate) use registry::open_idle;
use registry::{TRIES, detached, retry_on_deadlock};
pub use spellings::Spellings;
pub use transfer::{RemoteModel, TransferError, TransferEvent, TransferSink};
pub use values::{BlobInfo, Body, ChunkRange, ManifestPut, Page, StoredManifest, UploadStatus};
pub use webhooks::WebhookDelivery;
pub use worker::{Device, Heartbeat, JoinProof, LoadedModel, Registration, Worker, WorkerAnnouncement};
pub(crate) use worker_table::WorkerTable;

//! The rules of the registry: `impl Registry`, one noun a file. Each method checks the policy first. Called
//! by the edge (`oci`, `api`, `hub`, `gateway`) and by `jobs`; it uses `store` for SQL and `blobs` for bytes.

mod access;
mod access_cache;
mod accounts;
mod audit;
mod audit_queue;
mod blobs;
mod coalescing;
mod create;
mod create_job;
mod create_layers;
pub(crate) mod devices;
mod diff;
mod event;
mod fsck;
mod gc;
mod grants;
mod index;
mod indexing;
mod job_control;
mod job_kind;
mod jobs;
mod limits;
mod lineage;
mod manifests;
mod measure;
mod measurements;
mod migrate;
mod mirror;
mod model_files;
mod models;
mod protected_tags;
mod publishers;
mod quotas;
mod rate_limits;
mod read_at;
mod receive;
mod referrers;
mod registry;
mod repositories;
mod sessions;
mod setup;
mod setup_link;
mod sign_in;
mod sign_in_cache;
mod sign_in_errors;
mod sign_in_upkeep;
mod single_sign_on;
mod spellings;
mod staging;
mod status;
mod tags;
#[cfg(test)]
mod tests;
mod tokens;
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
pub use accounts::{AccountChange, AccountError, AccountInfo, Group, NewAccount};
pub use audit::{AuditFilter, AuditRecord};
pub use create::{CreateError, CreateStep, ExtraFile, ModelSource, NewModel};
pub(crate) use create_job::JobError;
pub(crate) use devices::{DevicePoll, DeviceRequest, DeviceStart};
pub use diff::{DiffOutcome, DiffRecord, DiffSide, DiffStatus, DiffStream, DiffTotal, TensorDiff};
pub use fsck::{Damage, FsckSummary};
pub(crate) use fsck::{Finding, FindingSink};
pub use gc::{GcReport, GcWaiting, Removal, RemovalPage, RestoredContent};
pub use grants::{Grant, TargetVisibility};
pub(crate) use job_control::JobControl;
pub use job_kind::JobKind;
pub use jobs::{FindingKind, Job};
pub(crate) use limits::Limits;
#[cfg(test)]
pub(crate) use limits::{IndexLimits, UploadTimeouts};
pub use lineage::{Ancestor, Descendant, Lineage, Relative};
pub use migrate::{MigrateReport, migrate};
pub use models::{Model, ModelPage, ModelState, ModelSummary, TaggedModel};
pub use publishers::{NewPublisher, Publisher, PublisherKind};
pub use quotas::Quota;
pub use referrers::Referrer;
pub use registry::Registry;
pub(crate) use registry::open_idle;
use registry::{TRIES, detached, retry_on_deadlock};
pub use repositories::{ContentKind, ContentSummary, ManifestSummary, RepositorySummary, TagSummary};
pub(crate) use sign_in::SESSION_TIME;
pub use sign_in_errors::{PublisherError, SignOnError};
pub(crate) use single_sign_on::{
    IdentityInfo, ProviderInfo, SIGN_ON_TIME, SignOnAnswer, SignOnGoal, SignOnStart, SignedOn,
};
pub use spellings::Spellings;
pub use status::{
    DatabaseStatus, JobsStatus, ServerStatus, Status, StorageStatus, WorkerModel, WorkerStatus,
};
pub use tokens::{KeyInfo, NewToken, TokenInfo};
pub use transfer::{RemoteModel, TransferError, TransferEvent, TransferSink};
pub use values::{BlobInfo, Body, ChunkRange, ManifestPut, Page, StoredManifest, UploadStatus};
pub use webhooks::WebhookDelivery;
pub(crate) use worker::WORKER_CREDENTIAL_PREFIX;
pub use worker::{
    Device, Heartbeat, HeartbeatReply, JoinProof, LoadedModel, Registration, Worker, WorkerAnnouncement,
};
pub(crate) use worker_table::WorkerTable;

//! The registry server: the OCI distribution API and Lode's own APIs over an SQL database and object storage.
//! `open` creates a `Registry` from a `Config`; `serve` serves it over HTTP.

// Handlers nest futures deeply, and an optimised build counts every level against the limit.
#![recursion_limit = "256"]

mod api;
mod app;
pub mod auth;
mod backup;
mod blobs;
mod card;
mod config;
mod error;
mod gateway;
mod hf;
mod hf_client;
mod http;
mod hub;
mod issuer;
mod jobs;
mod layers;
mod metrics;
mod network;
mod oci;
mod open;
#[cfg(test)]
#[allow(dead_code, unreachable_pub, reason = "shared with the end-to-end tests, which use all of it")]
#[path = "../../tests/src/report.rs"]
mod report;
mod retention;
mod router;
mod serve;
mod store;
mod surface;
#[cfg(test)]
mod tests;
mod time;
mod tls;
mod traces;
mod upstream;

pub use app::{
    AccountChange, AccountError, AccountInfo, Ancestor, AuditFilter, AuditRecord, BlobInfo, BlobStream, Body,
    ChunkRange, ContentKind, ContentSummary, CreateError, CreateStep, Damage, DatabaseStatus, Derivative,
    Descendant, Device, DiffOutcome, DiffRecord, DiffSide, DiffStatus, DiffStream, DiffTotal, ExtraFile,
    FindingKind, FsckSummary, GcReport, GcWaiting, Grant, Group, Heartbeat, HeartbeatReply, Job, JobKind,
    JobsStatus, JoinProof, KeyInfo, Lineage, LoadedModel, ManifestPut, ManifestSummary, MigrateReport, Model,
    ModelPage, ModelSource, ModelState, ModelSummary, NewAccount, NewModel, NewPublisher, NewToken, Page,
    Publisher, PublisherError, PublisherKind, Quota, Referrer, Registration, Registry, Relative, RemoteModel,
    Removal, RemovalPage, RepositorySummary, ReservedModel, RestoredContent, ServerStatus, SignOnError,
    Spellings, Status, StorageStatus, StoredManifest, TagSummary, TaggedModel, TargetVisibility, TensorDiff,
    TokenInfo, TransferError, TransferEvent, TransferSink, UploadStatus, WebhookDelivery, Worker,
    WorkerAnnouncement, WorkerModel, WorkerStatus, migrate,
};
pub use backup::{BackupReport, backup};
pub use blobs::BackupMode;
pub use config::{
    AllowedOrigin, Cidr, Config, ConfigError, EventKind, MirrorConfig, OidcProvider, Patterns, RetentionRule,
    Switch, Webhook,
};
pub use error::{BodyError, DatabaseError, Error, OpenError};
pub use metrics::{ContentSize, Disk, WaitingRemovals, reference as metrics_reference};
pub use open::open;
pub use router::router;
pub use serve::{Server, serve};
pub use tls::{Tls, TlsError};
pub use traces::enable_traces;

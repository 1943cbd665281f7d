//! All SQL of the registry: one query text for SQLite and Postgres, run by the `on!` macro on either pool.
//! `app` and `jobs` call these methods, and group statements that must change together in one `Tx`.

mod backup;
mod blobs;
mod check;
mod collect;
mod counts;
mod database;
mod index_queue;
mod indexes;
mod jobs;
mod keys;
mod locks;
mod manifest_row;
mod manifests;
mod mirror;
mod models;
mod plan;
pub(crate) mod postgres;
mod read_cache;
mod removals;
mod retention;
mod tags;
mod transfer;
mod uploads;
mod webhooks;
mod workers;

pub(crate) use backup::{database_file, snapshot};
pub(crate) use blobs::StoredBlob;
pub(crate) use check::{Dangling, DanglingKind};
pub(crate) use collect::{TimeCursor, UnreferencedContent};
#[cfg(test)]
pub(crate) use database::postgres_for_test;
pub(crate) use database::{Engine, Store, Tx, measured, on, parse_stored};
use database::{bigint, digest_list, placeholders, size};
pub(crate) use index_queue::IndexClaim;
pub(crate) use jobs::{JobEnd, JobRow, JobRun, NewJob};
pub(crate) use locks::ReplicaLock;
pub(crate) use manifests::{ManifestReferences, NewManifest, ReferrerQuery, ReferrerRow, RemovedManifest};
pub use models::Relative;
pub(crate) use models::{IndexState, ModelRow, TaggedRow, TensorRow};
pub(crate) use postgres::PostgresOptions;
pub(crate) use removals::{RemovalCause, RemovalReason, RemovalRow};
pub(crate) use retention::AgedTag;
pub(crate) use transfer::MoveState;
pub(crate) use uploads::{NewUpload, UploadCheckpoint, UploadRow};
pub(crate) use webhooks::{Delivery, NewDelivery};
pub(crate) use workers::{WorkerInventory, WorkerRow};

//! The registry: OCI distribution and our own APIs over an index in SQL and bytes in object storage.
//! `open` makes a `Registry` out of a `Config`; whoever holds it serves it or calls its methods.

mod app;
pub mod auth;
mod blobs;
mod config;
mod error;
mod jobs;
mod store;

pub use app::{
    BlobInfo, BlobStream, Body, BodyError, ChunkRange, Damage, FsckReport, GcReport, ManifestPut, Page, Referrer, Registry,
    StoredManifest, UploadStatus, open,
};
pub use config::{Cidr, Config, ConfigError, Secret};
pub use error::Error;

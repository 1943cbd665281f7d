//! The rules of the registry: `impl Registry`, one noun a file, each method asking the policy first.
//! Called by the edge (`oci`, `api`, `hub`, `gateway`) and by `jobs`; it reaches SQL through `store` and bytes through `blobs`.

mod blobs;
mod fsck;
mod gc;
mod manifests;
mod referrers;
mod tags;
mod uploads;

use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream::BoxStream;
use lode_model::digest::Digest;
use lode_model::reference::Tag;
use uuid::Uuid;

use crate::{Config, Error};

pub use fsck::FsckReport;
pub use gc::GcReport;
pub use referrers::Referrer;

/// Why a request body broke off.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;
/// A request body.
pub type Body = BoxStream<'static, Result<Bytes, BodyError>>;
/// A blob's bytes on their way out.
pub type BlobStream = BoxStream<'static, std::io::Result<Bytes>>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlobInfo {
    pub digest: Digest,
    pub size_bytes: u64,
}

/// Where an upload stands: every byte before `offset` is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UploadStatus {
    pub id: Uuid,
    pub offset: u64,
}

/// What the client said about the bytes it is about to send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChunkRange {
    /// First and last byte, both included, as in `Content-Range`. Absent: append where the upload stands.
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

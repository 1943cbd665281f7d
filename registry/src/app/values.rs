//! Values that the methods of `Registry` and their callers exchange.

use bytes::Bytes;
use futures::stream::BoxStream;
use lode_model::digest::Digest;
use lode_model::manifest::Manifest;
use lode_model::reference::Tag;
use uuid::Uuid;

use crate::{BodyError, Error};

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

impl StoredManifest {
    /// Parses the manifest, which was valid when it was stored.
    pub(crate) fn parse(&self) -> Result<Manifest, Error> {
        Manifest::parse(Some(&self.media_type), &self.bytes)
            .map_err(|_| Error::Corrupt { what: "manifest", value: self.digest.to_string() })
    }
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

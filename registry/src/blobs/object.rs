//! Stored bytes as callers see them.

use bytes::Bytes;
use futures::stream::BoxStream;
use lode_model::digest::Digest;

/// A blob's bytes as a stream.
pub type BlobStream = BoxStream<'static, std::io::Result<Bytes>>;

/// A small blob's key and, in a folder, the temporary name of its bytes.
pub(crate) struct PlacedBlob {
    pub(crate) key: String,
    pub(crate) temporary: Option<String>,
}

#[derive(Clone, Debug)]
pub(crate) struct ListedObject {
    pub(crate) key: String,
    pub(crate) size_bytes: u64,
    pub(crate) modified_ms: i64,
}

/// The location of a blob's bytes.
#[derive(Clone, Debug)]
pub(crate) struct BlobLocation {
    pub(crate) digest: Digest,
    pub(crate) size_bytes: u64,
    pub(crate) store_key: String,
}

//! A row of `manifests`: a stored manifest.

use bytes::Bytes;
use lode_model::digest::Digest;

#[derive(Clone, Debug)]
pub(crate) struct ManifestRow {
    pub(crate) digest: Digest,
    pub(crate) media_type: String,
    pub(crate) bytes: Bytes,
}

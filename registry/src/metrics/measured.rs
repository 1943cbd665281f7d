//! What a server measures in the background, for `/metrics` and the status page.

use serde::Serialize;
use utoipa::ToSchema;

/// The last measurements. A part is `None` before it was measured.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measured {
    /// Why this process is not ready; empty if it is.
    pub(crate) missing: Option<Vec<String>>,
    pub(crate) content: Option<ContentSize>,
    pub(crate) waiting: Option<WaitingRemovals>,
    pub(crate) disks: Vec<Disk>,
}

/// The size of the content, of all replicas together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct ContentSize {
    pub blobs: u64,
    pub stored_bytes: u64,
    /// Every manifest with every blob that it refers to: the size without sharing.
    pub logical_bytes: u64,
    /// When the measurement ended.
    #[serde(serialize_with = "crate::time::as_rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub measured_at: i64,
}

/// Content that waits for a collection, counted up to a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct WaitingRemovals {
    pub manifests: u64,
    pub links: u64,
    pub blobs: u64,
    /// Bytes that could not be deleted yet.
    pub deletions: u64,
    /// Bytes of the blobs and deletions.
    pub size_bytes: u64,
}

/// The file system of a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Disk {
    /// `data` or `storage`.
    pub folder: &'static str,
    pub free_bytes: u64,
    pub size_bytes: u64,
}

/// With less free space, a disk counts as full: the database needs some to record a push, whatever the size of its blobs.
const MIN_FREE_BYTES: u64 = 1 << 20;

impl Disk {
    /// Whether writes fail for lack of space.
    pub(crate) fn is_full(&self) -> bool {
        self.free_bytes < MIN_FREE_BYTES
    }
}

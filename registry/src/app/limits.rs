//! Limits of the registry's work that only tests change.

use std::time::Duration;

use crate::blobs::WriteLimit;

#[derive(Clone, Copy, Default)]
pub(crate) struct Limits {
    pub(crate) write: WriteLimit,
    pub(crate) timeouts: UploadTimeouts,
    pub(crate) index: IndexLimits,
}

/// Limits for processing the queue of manifests.
#[derive(Clone, Copy)]
pub(crate) struct IndexLimits {
    /// How many queued manifests are indexed at a time.
    pub(crate) at_once: usize,
    /// How long a listing waits for manifests that were pushed a moment ago.
    pub(crate) list_wait: Duration,
}

impl Default for IndexLimits {
    fn default() -> Self {
        IndexLimits { at_once: 2, list_wait: Duration::from_secs(2) }
    }
}

/// How long a request waits for an unresponsive storage.
#[derive(Clone, Copy)]
pub(crate) struct UploadTimeouts {
    /// For another writer of the same upload to stop: longer than a part takes on a slow connection.
    pub(crate) writer_lock: Duration,
    /// The same for a cancellation. It could skip the wait: a writer on another replica is not waited for
    /// either.
    pub(crate) cancel_writer_lock: Duration,
    /// For the deletion of an upload's bytes, which continues in the background. If it fails, the upload is
    /// deleted when it is cancelled again or expires.
    pub(crate) deletion: Duration,
}

impl Default for UploadTimeouts {
    fn default() -> Self {
        let [writer_lock, cancel_writer_lock, deletion] = [30, 5, 15].map(Duration::from_secs);
        UploadTimeouts { writer_lock, cancel_writer_lock, deletion }
    }
}

//! One run of the collection: its times, the size of its transactions, and its report.

use serde::Serialize;

use super::removals::Removal;
use crate::auth::Caller;
use crate::metrics::RemovedObjects;
use crate::store::{RemovalCause, RemovalReason};

/// How many rows one transaction changes: few enough not to delay pushes.
pub(super) const BATCH: i64 = 500;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GcReport {
    /// Nothing was changed; the other fields are what would have been removed.
    pub dry_run: bool,
    /// Tags that a retention rule removed.
    pub tags: u64,
    pub manifests: u64,
    /// Blobs unlinked from a repository.
    pub links: u64,
    /// Blobs whose bytes were deleted.
    pub blobs: u64,
    pub size_bytes: u64,
    /// Expired records of earlier removals, and records of blobs that these kept for an undo.
    #[serde(skip_serializing_if = "is_zero")]
    pub records: u64,
    /// The first 10,000 removals of a dry run. Those of a real run are stored in the database.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub removals: Vec<Removal>,
}

impl GcReport {
    pub(super) fn removed_objects(&self) -> RemovedObjects {
        RemovedObjects {
            tags: self.tags,
            manifests: self.manifests,
            links: self.links,
            blobs: self.blobs,
            size_bytes: self.size_bytes,
        }
    }
}

/// The times that apply to one run.
#[derive(Clone, Copy)]
pub(super) struct RunTimes {
    pub(super) now: i64,
    /// Content that lost its last reference after this time stays.
    pub(super) cutoff: i64,
    /// Until when the removals of this run can be undone.
    pub(super) undo_until: i64,
}

impl RunTimes {
    pub(super) fn removal_cause(&self, reason: RemovalReason) -> RemovalCause {
        RemovalCause { reason, actor: Caller::INTERNAL.actor(), at: self.now, undo_until: self.undo_until }
    }
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

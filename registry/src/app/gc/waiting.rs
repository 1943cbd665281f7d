//! What the collection will delete later: content without references whose grace period, lease or undo window
//! has not ended.

use serde::Serialize;
use utoipa::ToSchema;

use crate::auth::{Action, Caller, Target};
use crate::store::WaitingContent;
use crate::time::{as_rfc3339_option, millis};
use crate::{Error, Registry};

/// What waits for its deletion, and when that begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct GcWaiting {
    pub manifests: u64,
    /// References of repositories to blobs that none of their manifests names.
    pub links: u64,
    pub blobs: u64,
    /// The total size of these blobs.
    pub size_bytes: u64,
    /// When a collection may delete the first of it. Null if nothing waits.
    #[serde(serialize_with = "as_rfc3339_option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub first_at: Option<i64>,
    /// More may wait than is counted here: of each kind, only the 10,000 objects that lost their references first
    /// are examined.
    pub is_partial: bool,
    /// How long content stays after its last reference was removed.
    pub grace_seconds: u64,
    /// How long the bytes of a deleted manifest stay after that, so that it can be restored.
    pub undo_seconds: u64,
}

impl Registry {
    pub async fn gc_waiting(&self, caller: &Caller) -> Result<GcWaiting, Error> {
        self.authorize(caller, Action::Inspect, Target::Server).await?;
        let found = self.store.waiting_content(millis(self.config.gc_grace)).await?;
        let WaitingContent { manifests, links, blobs, size_bytes, first_at, is_partial } = found;
        Ok(GcWaiting {
            manifests,
            links,
            blobs,
            size_bytes,
            first_at,
            is_partial,
            grace_seconds: self.config.gc_grace.as_secs(),
            undo_seconds: self.config.gc_undo.unwrap_or(self.config.gc_grace).as_secs(),
        })
    }
}

//! What a replica remembers of access control: its state, rights, and the patterns of protected tags. All of it
//! belongs to one version, which is read again every half second.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lode_model::reference::Repository;
use moka::sync::Cache;
use uuid::Uuid;

use crate::Error;
use crate::auth::{AccessTarget, ProtectedTags, Rights};
use crate::store::{AccessState, Store};

/// How long the version of access control is used before it is read again.
const MAX_AGE: Duration = Duration::from_millis(500);
/// How many rights are remembered.
const MAX_RIGHTS: u64 = 100_000;
/// For how many repositories the patterns of protected tags are remembered.
const MAX_RULES: u64 = 10_000;

/// What this replica remembers of access control.
pub(super) struct AccessCache {
    last: Mutex<Option<LastRead>>,
    /// Counts the changes of this replica, so that its next request sees them.
    changes: AtomicU64,
    /// One caller reads the state for all that wait for it.
    pub(super) reading: tokio::sync::Mutex<()>,
    pub(super) rights: Cache<RightsKey, Rights>,
    /// By version.
    pub(super) protected_tags: Cache<(i64, Repository), Arc<ProtectedTags>>,
}

/// Which rights are remembered. The groups are part of the key: the caller's may have been read at an earlier version.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct RightsKey {
    pub(super) version: i64,
    /// The ids of the account and its groups; none for clients without an account.
    pub(super) subjects: Vec<Uuid>,
    pub(super) target: AccessTarget,
}

#[derive(Clone, Copy)]
struct LastRead {
    at: Instant,
    changes: u64,
    state: AccessState,
}

impl Default for AccessCache {
    fn default() -> AccessCache {
        AccessCache {
            last: Mutex::default(),
            changes: AtomicU64::default(),
            reading: tokio::sync::Mutex::default(),
            rights: Cache::new(MAX_RIGHTS),
            protected_tags: Cache::new(MAX_RULES),
        }
    }
}

impl AccessCache {
    /// The state, if it was read recently and this replica has changed nothing since.
    pub(super) fn fresh(&self) -> Option<AccessState> {
        let changes = self.changes.load(Ordering::SeqCst);
        let is_fresh = |last: &LastRead| last.at.elapsed() < MAX_AGE && last.changes == changes;
        self.last().filter(is_fresh).map(|last| last.state)
    }

    /// The state as it was read last, however old it is.
    pub(super) fn last_state(&self) -> Option<AccessState> {
        self.last().map(|last| last.state)
    }

    fn last(&self) -> Option<LastRead> {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the state again.
    pub(super) async fn read(&self, store: &Store) -> Result<AccessState, Error> {
        let (at, changes) = (Instant::now(), self.changes.load(Ordering::SeqCst));
        let state = store.access_state().await?;
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(LastRead { at, changes, state });
        Ok(state)
    }

    /// Makes the next request read the state: this replica changed it.
    pub(super) fn changed(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
    }
}

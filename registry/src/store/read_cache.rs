//! A cache of recent reads, valid as long as nothing has changed since. Only for the SQLite database in the
//! data folder, whose only writer is this process: SQLite reports each row change before it is committed.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, PoisonError, RwLock};

use lode_model::reference::Tag;
use sqlx::sqlite::{SqliteConnection, SqlitePool};

use super::manifests::ManifestRow;

/// The size limit of the cache; beyond it the cache is cleared.
const KEPT_BYTES: usize = 32 * 1024 * 1024;
/// The memory that an entry uses in addition to its content.
const ENTRY_BYTES: usize = 256;
/// The tables that cached reads use. A change to any other table does not invalidate the cache.
const TABLES: [&str; 2] = ["manifests", "tags"];

#[derive(Clone, Debug)]
pub(super) enum CachedValue {
    Manifest(ManifestRow),
    Tags(Vec<Tag>),
}

#[derive(Default)]
pub(super) struct ReadCache {
    /// Counts changed rows, incremented within the statement that changes them.
    changes: AtomicU64,
    /// How many of these are known to be committed or rolled back. While it is lower, some change is in
    /// progress.
    settled: AtomicU64,
    settling: AtomicBool,
    kept: RwLock<CacheEntries>,
}

#[derive(Default)]
struct CacheEntries {
    /// The number of changes that these entries include.
    at: u64,
    bytes: usize,
    cached_values: HashMap<String, CachedValue>,
}

/// A cached value, or the number of changes at the time of the lookup.
pub(super) enum CacheLookup {
    Known(CachedValue),
    Unknown(Option<u64>),
}

impl ReadCache {
    /// Counts the changes that a connection makes.
    pub(super) async fn watch(self: Arc<Self>, connection: &mut SqliteConnection) -> sqlx::Result<()> {
        connection.lock_handle().await?.set_update_hook(move |change| {
            if TABLES.contains(&change.table) {
                self.changes.fetch_add(1, SeqCst);
            }
        });
        Ok(())
    }

    /// Returns the cached value, if nothing changed since it was kept. Otherwise the caller queries the
    /// database, then calls [`keep`](Self::keep).
    pub(super) fn look(self: &Arc<Self>, writer: &SqlitePool, key: &str) -> CacheLookup {
        let now = self.now();
        let Some(at) = now else {
            self.settle(writer);
            return CacheLookup::Unknown(None);
        };
        let kept = self.kept.read().unwrap_or_else(PoisonError::into_inner);
        match kept.cached_values.get(key).filter(|_| kept.at == at) {
            Some(known) => CacheLookup::Known(known.clone()),
            None => CacheLookup::Unknown(now),
        }
    }

    /// Keeps a value, if nothing changed while the database was queried: then it includes every change up to
    /// `asked_at` and no other.
    pub(super) fn keep(&self, asked_at: Option<u64>, key: String, known: &CachedValue) {
        let Some(at) = asked_at.filter(|_| self.now() == asked_at) else { return };
        let bytes = key.len() + known.bytes() + ENTRY_BYTES;
        let mut kept = self.kept.write().unwrap_or_else(PoisonError::into_inner);
        if kept.at > at || bytes > KEPT_BYTES {
            return;
        }
        if kept.at < at || kept.bytes + bytes > KEPT_BYTES {
            *kept = CacheEntries { at, ..CacheEntries::default() };
        }
        kept.bytes += bytes;
        kept.cached_values.insert(key, known.clone());
    }

    /// The number of changes, unless one of them may still be in progress.
    fn now(&self) -> Option<u64> {
        let changes = self.changes.load(SeqCst);
        (self.settled.load(SeqCst) == changes).then_some(changes)
    }

    /// Waits for the only write connection. Holding it proves that every earlier transaction has ended,
    /// including an abandoned one.
    fn settle(self: &Arc<Self>, writer: &SqlitePool) {
        if self.settling.swap(true, SeqCst) {
            return;
        }
        let (this, writer) = (self.clone(), writer.clone());
        tokio::spawn(async move {
            let settled: sqlx::Result<()> = async {
                let mut connection = writer.acquire().await?;
                // Completes after every earlier statement of this connection.
                sqlx::query("select 1").execute(&mut *connection).await?;
                this.settled.store(this.changes.load(SeqCst), SeqCst);
                Ok(())
            }
            .await;
            if let Err(error) = settled {
                // All reads query the database until a later one succeeds here.
                tracing::debug!(%error, "failed to settle the read cache; will retry");
            }
            this.settling.store(false, SeqCst);
        });
    }
}

impl CachedValue {
    fn bytes(&self) -> usize {
        match self {
            CachedValue::Manifest(row) => row.bytes.len() + row.media_type.len(),
            CachedValue::Tags(tags) => tags.iter().map(|tag| tag.as_str().len() + size_of::<Tag>()).sum(),
        }
    }
}

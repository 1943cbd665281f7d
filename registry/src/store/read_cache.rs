//! A cache of recent reads, valid as long as nothing has changed since. Only for the SQLite database in the
//! data folder, whose only writer is this process: SQLite reports each row change before it is committed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use lode_model::reference::Tag;
use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use sqlx::sqlite::{SqliteConnection, SqlitePool};

use super::manifest_row::ManifestRow;

/// The size limit of the cache, beyond which the least recently used entries are evicted.
const MAX_BYTES: u64 = 32 * 1024 * 1024;
/// The memory that an entry uses in addition to its content.
const ENTRY_BYTES: usize = 256;
/// The tables that cached reads use. A change to any other table does not invalidate the cache.
const TABLES: [&str; 2] = ["manifests", "tags"];

#[derive(Clone, Debug)]
pub(super) enum CachedValue {
    Manifest(ManifestRow),
    Tags(Vec<Tag>),
}

pub(super) struct ReadCache {
    /// Counts changed rows, incremented within the statement that changes them.
    changes: AtomicU64,
    /// How many of these are known to be committed or rolled back. While it is lower, some change is in
    /// progress.
    settled: AtomicU64,
    settling: AtomicBool,
    entries: Cache<String, Arc<CacheEntry>>,
}

struct CacheEntry {
    /// The number of changes that the value includes. After another change the value is obsolete.
    at: u64,
    value: CachedValue,
}

/// A cached value, or the number of changes at the time of the lookup.
pub(super) enum CacheLookup {
    Known(CachedValue),
    Unknown(Option<u64>),
}

impl Default for ReadCache {
    fn default() -> ReadCache {
        let entries = Cache::builder()
            .max_capacity(MAX_BYTES)
            .weigher(|key: &String, entry: &Arc<CacheEntry>| {
                u32::try_from(key.len() + entry.value.bytes() + ENTRY_BYTES).unwrap_or(u32::MAX)
            })
            // The default policy prefers entries that were used often, which obsolete ones may have been.
            .eviction_policy(EvictionPolicy::lru())
            .build();
        ReadCache {
            changes: AtomicU64::default(),
            settled: AtomicU64::default(),
            settling: AtomicBool::default(),
            entries,
        }
    }
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
        let Some(now) = self.now() else {
            self.settle(writer);
            return CacheLookup::Unknown(None);
        };
        match self.entries.get(key).filter(|entry| entry.at == now) {
            Some(entry) => CacheLookup::Known(entry.value.clone()),
            None => CacheLookup::Unknown(Some(now)),
        }
    }

    /// Keeps a value, if nothing changed while the database was queried: then it includes every change up to
    /// `queried_at` and no other.
    pub(super) fn keep(&self, queried_at: Option<u64>, key: String, known: &CachedValue) {
        let Some(at) = queried_at.filter(|_| self.now() == queried_at) else { return };
        self.entries.insert(key, Arc::new(CacheEntry { at, value: known.clone() }));
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

//! What was read of the index a moment ago, for as long as nothing has changed since. Only for the SQLite index in the
//! data folder, whose one writer is this process: its row changes are heard of as they happen, before they are committed.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, PoisonError, RwLock};

use lode_model::reference::Tag;
use sqlx::sqlite::{SqliteConnection, SqlitePool};

use super::manifests::ManifestRow;

/// How much is kept; beyond that it starts over.
const KEPT_BYTES: usize = 32 * 1024 * 1024;
/// What an entry costs beside its content.
const ENTRY_BYTES: usize = 256;
/// The tables that answers are read from. A change to any other leaves them as they are.
const TABLES: [&str; 2] = ["manifests", "tags"];

#[derive(Clone, Debug)]
pub(super) enum Known {
    Manifest(ManifestRow),
    Tags(Vec<Tag>),
}

#[derive(Default)]
pub(super) struct Recent {
    /// Counts changed rows, from within the statement that changes them.
    changes: AtomicU64,
    /// How many of these are known to be committed or undone. While it is behind, some change is under way.
    settled: AtomicU64,
    settling: AtomicBool,
    kept: RwLock<Kept>,
}

#[derive(Default)]
struct Kept {
    /// The number of changes that these answers include.
    at: u64,
    bytes: usize,
    answers: HashMap<String, Known>,
}

/// An answer, or when the question was asked.
pub(super) enum Look {
    Known(Known),
    Unknown(Option<u64>),
}

impl Recent {
    /// Hears of the changes that a connection makes.
    pub(super) async fn watch(self: Arc<Self>, connection: &mut SqliteConnection) -> sqlx::Result<()> {
        connection.lock_handle().await?.set_update_hook(move |change| {
            if TABLES.contains(&change.table) {
                self.changes.fetch_add(1, SeqCst);
            }
        });
        Ok(())
    }

    /// The answer to a question, if nothing changed since it was kept. Otherwise ask the index, then [`keep`](Self::keep).
    pub(super) fn look(self: &Arc<Self>, writer: &SqlitePool, key: &str) -> Look {
        let now = self.now();
        let Some(at) = now else {
            self.settle(writer);
            return Look::Unknown(None);
        };
        let kept = self.kept.read().unwrap_or_else(PoisonError::into_inner);
        match kept.answers.get(key).filter(|_| kept.at == at) {
            Some(known) => Look::Known(known.clone()),
            None => Look::Unknown(now),
        }
    }

    /// Keeps an answer, if nothing changed while the index was asked: then it shows every change up to `asked_at` and no other.
    pub(super) fn keep(&self, asked_at: Option<u64>, key: String, known: &Known) {
        let Some(at) = asked_at.filter(|_| self.now() == asked_at) else { return };
        let bytes = key.len() + known.bytes() + ENTRY_BYTES;
        let mut kept = self.kept.write().unwrap_or_else(PoisonError::into_inner);
        if kept.at > at || bytes > KEPT_BYTES {
            return;
        }
        if kept.at < at || kept.bytes + bytes > KEPT_BYTES {
            *kept = Kept { at, ..Kept::default() };
        }
        kept.bytes += bytes;
        kept.answers.insert(key, known.clone());
    }

    /// How many changes there have been, unless one of them may not have ended yet.
    fn now(&self) -> Option<u64> {
        let changes = self.changes.load(SeqCst);
        (self.settled.load(SeqCst) == changes).then_some(changes)
    }

    /// Waits for the one connection that writes. Whoever has it knows that every transaction before has ended, also
    /// one that was given up halfway.
    fn settle(self: &Arc<Self>, writer: &SqlitePool) {
        if self.settling.swap(true, SeqCst) {
            return;
        }
        let (this, writer) = (self.clone(), writer.clone());
        tokio::spawn(async move {
            let settled: sqlx::Result<()> = async {
                let mut connection = writer.acquire().await?;
                // Answered after everything that was asked of this connection before.
                sqlx::query("select 1").execute(&mut *connection).await?;
                this.settled.store(this.changes.load(SeqCst), SeqCst);
                Ok(())
            }
            .await;
            if let Err(error) = settled {
                // Until one of the next reads succeeds with it, all ask the index.
                tracing::debug!(%error, "nothing is kept of what is read");
            }
            this.settling.store(false, SeqCst);
        });
    }
}

impl Known {
    fn bytes(&self) -> usize {
        match self {
            Known::Manifest(row) => row.bytes.len() + row.media_type.len(),
            Known::Tags(tags) => tags.iter().map(|tag| tag.as_str().len() + size_of::<Tag>()).sum(),
        }
    }
}

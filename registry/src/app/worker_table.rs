//! A cache of the attached workers, valid for about a second, so that routing a request costs no query.
//! Heartbeat data is read and written for all workers at once; a worker's inventory only when it changed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lode_model::digest::Digest;
use lode_model::reference::Repository;
use uuid::Uuid;

use super::worker::{ABSENT_AFTER, Device, Heartbeat, LoadedModel, WORKER_SECRET, Worker};
use crate::Error;
use crate::auth::vault::Vault;
use crate::error::chain;
use crate::store::{Store, WorkerRow};

/// How long the table is used before it is read again.
const MAX_AGE: Duration = Duration::from_secs(1);
/// How often every row is read again: replicas of the previous version do not number their changes.
const FULL_INTERVAL: Duration = Duration::from_secs(30);
/// A change of free memory by less than this fraction of all memory does not cause a write.
const MEMORY_STEPS: u64 = 8;
/// Fields that change with each request to a loaded model, and do not cause a write.
const VOLATILE: [&str; 2] = ["expires_at", "requests"];
/// How many rows one query reads.
const ROWS: usize = 1000;

/// The attached workers at one moment, oldest registration first.
#[derive(Default)]
pub(crate) struct WorkerTable {
    entries: Vec<Entry>,
    places: HashMap<Uuid, usize>,
    loaded: HashMap<Digest, Vec<usize>>,
    cached: HashMap<Digest, Vec<usize>>,
    /// The places of the workers that are reserved for a model of this repository.
    reserved: HashMap<Repository, Vec<usize>>,
    /// The places of the workers that get requests for every model.
    open: Vec<usize>,
}

struct Entry {
    worker: Arc<Worker>,
    inventory: i64,
    seen_at: i64,
}

impl WorkerTable {
    fn new(entries: Vec<Entry>) -> WorkerTable {
        let mut table = WorkerTable::default();
        for (at, entry) in entries.iter().enumerate() {
            table.places.insert(entry.worker.id, at);
            if entry.worker.draining {
                continue;
            }
            let reserved: BTreeSet<&Repository> =
                entry.worker.reserved_for.iter().map(|name| &name.repository).collect();
            let is_reserved = !reserved.is_empty();
            for repository in reserved {
                table.reserved.entry(repository.clone()).or_default().push(at);
            }
            let loaded: BTreeSet<&Digest> = entry.worker.loaded.iter().map(|model| &model.digest).collect();
            for digest in loaded {
                table.loaded.entry(digest.clone()).or_default().push(at);
            }
            // What it has on disk may be from an earlier run, with other models.
            if is_reserved {
                continue;
            }
            table.open.push(at);
            for digest in &entry.worker.cached {
                table.cached.entry(digest.clone()).or_default().push(at);
            }
        }
        table.entries = entries;
        table
    }

    /// How many workers are attached, draining ones included.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The places of the workers that get requests for every model.
    pub(crate) fn open(&self) -> &[usize] {
        &self.open
    }

    /// Whether no attached worker gets requests.
    pub(crate) fn all_draining(&self) -> bool {
        self.entries.iter().all(|entry| entry.worker.draining)
    }

    pub(crate) fn worker(&self, at: usize) -> &Arc<Worker> {
        &self.entries[at].worker
    }

    /// The places of the workers that have this model loaded and get requests.
    pub(crate) fn loaded(&self, digest: &Digest) -> &[usize] {
        self.loaded.get(digest).map_or(&[], Vec::as_slice)
    }

    /// The places of the workers that are reserved for a model of this repository and get requests.
    pub(crate) fn reserved(&self, repository: &Repository) -> &[usize] {
        self.reserved.get(repository).map_or(&[], Vec::as_slice)
    }

    /// The places of the workers that have this model on disk and get requests for every model.
    pub(crate) fn cached(&self, digest: &Digest) -> &[usize] {
        self.cached.get(digest).map_or(&[], Vec::as_slice)
    }

    pub(super) fn all(&self) -> Vec<Worker> {
        let worker = |entry: &Entry| Worker { seen_at: entry.seen_at, ..Worker::clone(&entry.worker) };
        self.entries.iter().map(worker).collect()
    }

    pub(super) fn find(&self, id: Uuid) -> Option<&Arc<Worker>> {
        self.places.get(&id).map(|at| self.worker(*at))
    }
}

/// This replica's table, and the heartbeats that it has not written yet.
#[derive(Default)]
pub(super) struct Workers {
    last: Mutex<LastRead>,
    /// One caller reads the table for all that wait for it.
    reading: tokio::sync::Mutex<()>,
    /// Counts the changes of this replica, so that its next request sees them.
    changes: AtomicU64,
    beats: Mutex<BTreeSet<Uuid>>,
}

#[derive(Clone, Default)]
struct LastRead {
    table: Arc<WorkerTable>,
    /// When it was read, and with which changes.
    read: Option<(Instant, u64)>,
    /// When every row of it was read.
    full: Option<Instant>,
}

impl Workers {
    fn last(&self) -> LastRead {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn fresh(&self) -> Option<Arc<WorkerTable>> {
        let last = self.last();
        let (at, changes) = last.read?;
        (at.elapsed() < MAX_AGE && changes == self.changes.load(Ordering::SeqCst)).then_some(last.table)
    }

    /// The table, read again if it is older than a second or this replica changed something. While the
    /// database is unavailable the last table is used, as long as its workers would count as attached.
    pub(super) async fn table(&self, store: &Store, vault: &Vault) -> Result<Arc<WorkerTable>, Error> {
        if let Some(table) = self.fresh() {
            return Ok(table);
        }
        let _reading = self.reading.lock().await;
        if let Some(table) = self.fresh() {
            return Ok(table);
        }
        let last = self.last();
        let changes = self.changes.load(Ordering::SeqCst);
        match self.read(store, vault, &last).await {
            Ok((table, full)) => {
                let table = Arc::new(table);
                let read = Some((Instant::now(), changes));
                *self.last.lock().unwrap_or_else(PoisonError::into_inner) =
                    LastRead { table: table.clone(), read, full };
                Ok(table)
            }
            Err(error @ Error::Unavailable { .. })
                if last.read.is_some_and(|(at, _)| at.elapsed() < ABSENT_AFTER) =>
            {
                tracing::warn!(error = chain(&error), "routing with the last known workers");
                Ok(last.table)
            }
            Err(error) => Err(error),
        }
    }

    async fn read(
        &self,
        store: &Store,
        vault: &Vault,
        last: &LastRead,
    ) -> Result<(WorkerTable, Option<Instant>), Error> {
        let is_full = last.full.is_none_or(|at| at.elapsed() >= FULL_INTERVAL);
        let full = if is_full { Some(Instant::now()) } else { last.full };
        let states = store.worker_states(ABSENT_AFTER).await?;
        let known = |id: &Uuid| last.table.places.get(id).map(|at| &last.table.entries[*at]);
        let changed: Vec<Uuid> = states
            .iter()
            .filter(|state| {
                is_full || known(&state.id).is_none_or(|entry| entry.inventory != state.inventory)
            })
            .map(|state| state.id)
            .collect();
        let mut rows: BTreeMap<Uuid, WorkerRow> = BTreeMap::new();
        for ids in changed.chunks(ROWS) {
            rows.extend(store.worker_rows(ids).await?.into_iter().map(|row| (row.id, row)));
        }
        let mut entries = Vec::with_capacity(states.len());
        for state in states {
            let (worker, inventory) = match (rows.remove(&state.id), known(&state.id)) {
                (Some(row), _) => {
                    let inventory = row.inventory;
                    let secret = vault.open_text(WORKER_SECRET, &row.secret)?;
                    (Arc::new(Worker { secret, ..Worker::try_from(row)? }), inventory)
                }
                (None, Some(entry)) if !is_full => (entry.worker.clone(), entry.inventory),
                // It was deleted meanwhile.
                (None, _) => continue,
            };
            entries.push(Entry { worker, inventory, seen_at: state.seen_at });
        }
        Ok((WorkerTable::new(entries), full))
    }

    /// Records that this replica changed a worker's row.
    pub(super) fn changed(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
    }

    /// Records a heartbeat, to be written with those of other workers.
    pub(super) fn beat(&self, id: Uuid) {
        self.beats.lock().unwrap_or_else(PoisonError::into_inner).insert(id);
    }

    /// Writes the heartbeats of the last second. Returns how many.
    pub(super) async fn write_beats(&self, store: &Store) -> Result<usize, Error> {
        let beats = std::mem::take(&mut *self.beats.lock().unwrap_or_else(PoisonError::into_inner));
        if beats.is_empty() {
            return Ok(0);
        }
        let ids: Vec<Uuid> = beats.into_iter().collect();
        match store.workers_seen(&ids).await {
            Ok(known) => {
                if known < ids.len() as u64 {
                    // Another replica deleted one of them; its next heartbeat makes it register again.
                    self.changed();
                }
                Ok(ids.len())
            }
            Err(error) => {
                self.beats.lock().unwrap_or_else(PoisonError::into_inner).extend(ids);
                Err(error)
            }
        }
    }
}

/// Whether a heartbeat has changes that other replicas must see at once.
pub(super) fn is_changed(worker: &Worker, heartbeat: &Heartbeat) -> bool {
    let models_differ = |a: &LoadedModel, b: &LoadedModel| {
        let lasting = |model: &LoadedModel| {
            let mut more = model.more.clone();
            more.retain(|name, _| !VOLATILE.contains(&&name[..]));
            (model.repository.clone(), model.digest.clone(), model.size_bytes, model.num_parallel, more)
        };
        lasting(a) != lasting(b)
    };
    let devices_differ = |a: &Device, b: &Device| {
        let step = a.memory_bytes / MEMORY_STEPS;
        a.free_bytes.abs_diff(b.free_bytes) > step
            || Device { free_bytes: 0, ..a.clone() } != Device { free_bytes: 0, ..b.clone() }
    };
    worker.cached != heartbeat.cached
        || worker.loaded.len() != heartbeat.loaded.len()
        || worker.loaded.iter().zip(&heartbeat.loaded).any(|(a, b)| models_differ(a, b))
        || worker.devices.len() != heartbeat.devices.len()
        || worker.devices.iter().zip(&heartbeat.devices).any(|(a, b)| devices_differ(a, b))
}

#[cfg(test)]
mod tests {
    use lode_client::Secret;
    use serde_json::json;

    use super::*;

    #[test]
    fn only_lasting_changes_count() {
        let digest = Digest::sha256(b"x");
        let beat = |free: u64, requests: u64, cached: bool| -> Heartbeat {
            serde_json::from_value(json!({
                "devices": [{"kind": "cpu", "memory_bytes": 800, "free_bytes": free}],
                "loaded": [{"repository": "m", "digest": digest, "requests": requests, "name": "m"}],
                "cached": if cached { vec![&digest] } else { Vec::new() },
            }))
            .unwrap()
        };
        let Heartbeat { devices, loaded, cached } = beat(500, 0, true);
        let worker = Worker {
            id: Uuid::nil(),
            advertise: "http://127.0.0.1:1".parse().unwrap(),
            version: String::new(),
            devices,
            loaded,
            cached,
            reserved_for: Vec::new(),
            registered_at: 0,
            seen_at: 0,
            draining: false,
            secret: Secret::new(""),
            credential: None,
        };
        assert!(!is_changed(&worker, &beat(600, 7, true)));
        assert!(is_changed(&worker, &beat(601, 0, true)));
        assert!(is_changed(&worker, &beat(500, 0, false)));
        let mut other = beat(500, 0, true);
        other.loaded.clear();
        assert!(is_changed(&worker, &other));
    }
}

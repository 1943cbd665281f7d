//! The content-addressed folder: its blobs, their leases, and eviction. A file appears under its digest only
//! after the client has verified it, and is never written again.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, SystemTime};

use lode_client::{BlobInfo, NoProgress, Registry};
use lode_model::digest::Digest;
use lode_model::reference::Repository;

use crate::error::Error;

/// Interval for checking a download by another process.
const BUSY_POLL: Duration = Duration::from_millis(500);
/// How long the partial file of an interrupted download is kept for resuming.
const PART_AGE: Duration = Duration::from_secs(7 * 24 * 3600);
/// Suffix that the client adds to a path during a download, and the further suffix for its state file.
const PART: &str = ".part";
const PART_STATE: &str = ".state";

/// Blobs by digest.
pub struct Cache {
    root: PathBuf,
    sources: Vec<PathBuf>,
    /// Maximum total size of the blobs in the cache folder.
    limit: Option<u64>,
    state: Mutex<State>,
    pulls: Mutex<HashMap<Digest, Weak<tokio::sync::Mutex<()>>>>,
}

#[derive(Default)]
struct State {
    blobs: HashMap<Digest, Blob>,
    /// Partial files of interrupted downloads that are not being resumed, with their sizes.
    parts: HashMap<Digest, u64>,
    /// Total of blobs, partial files and reservations.
    total_bytes: u64,
}

impl State {
    fn add_part(&mut self, digest: Digest, size_bytes: u64) {
        self.drop_part_record(&digest);
        self.total_bytes += size_bytes;
        self.parts.insert(digest, size_bytes);
    }

    fn drop_part_record(&mut self, digest: &Digest) {
        self.total_bytes -= self.parts.remove(digest).unwrap_or(0);
    }
}

struct Blob {
    size_bytes: u64,
    last_used: SystemTime,
    leases: usize,
}

/// Keeps a blob in the cache until dropped.
pub struct Lease {
    path: PathBuf,
    /// `None` for a blob in another program's folder.
    cache_entry: Option<(Arc<Cache>, Digest)>,
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Lease").field(&self.path).finish()
    }
}

impl Lease {
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some((cache, digest)) = &self.cache_entry
            && let Some(blob) = cache.state().blobs.get_mut(digest)
        {
            blob.leases -= 1;
            blob.last_used = SystemTime::now();
        }
    }
}

/// Reserves the size of a blob while it is pulled. Releases it when dropped, except for the size of a partial
/// file.
struct Reservation<'a> {
    cache: &'a Cache,
    digest: &'a Digest,
    size_bytes: u64,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        let part = fs::metadata(self.cache.part_path(self.digest));
        let mut state = self.cache.state();
        state.total_bytes -= self.size_bytes;
        if let Ok(part) = part {
            state.add_part(self.digest.clone(), part.len());
        }
    }
}

impl Cache {
    /// Opens the cache folder, creating it if it is missing, and lists its content. Blocks.
    pub fn open(root: &Path, sources: Vec<PathBuf>, limit: Option<u64>) -> io::Result<Arc<Cache>> {
        let mut state = State::default();
        for algorithm in ["sha256", "sha512"] {
            let folder = root.join("blobs").join(algorithm);
            fs::create_dir_all(&folder)?;
            for entry in fs::read_dir(&folder)? {
                let entry = entry?;
                let metadata = match entry.metadata() {
                    // Another worker that shares this folder has evicted it or renamed a finished download.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    metadata => metadata?,
                };
                let name = entry.file_name();
                let Some(name) = name.to_str().filter(|_| metadata.is_file()) else { continue };
                let used = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                match format!("{algorithm}:{name}").parse::<Digest>() {
                    Ok(digest) => {
                        state.total_bytes += metadata.len();
                        state
                            .blobs
                            .insert(digest, Blob { size_bytes: metadata.len(), last_used: used, leases: 0 });
                    }
                    Err(_) if used.elapsed().is_ok_and(|age| age > PART_AGE) => remove(&entry.path())?,
                    Err(_) => {
                        let hex = name.strip_suffix(PART);
                        let part = hex.and_then(|hex| format!("{algorithm}:{hex}").parse().ok());
                        if let Some(digest) = part {
                            state.add_part(digest, metadata.len());
                        }
                    }
                }
            }
        }
        fs::create_dir_all(root.join("manifests"))?;
        Ok(Arc::new(Cache {
            root: root.to_owned(),
            sources,
            limit,
            state: Mutex::new(state),
            pulls: Mutex::default(),
        }))
    }

    /// Whether the blob is on this machine. Checks files, so it blocks briefly.
    pub fn contains(&self, digest: &Digest) -> bool {
        self.state().blobs.contains_key(digest)
            || self
                .sources
                .iter()
                .any(|source| source_paths(source, digest).iter().any(|path| path.is_file()))
    }

    /// Returns the blob from a source, the cache or the registry. If another request pulls it already, waits
    /// for that.
    pub async fn fetch(
        self: &Arc<Cache>,
        registry: &Registry,
        repository: &Repository,
        digest: &Digest,
        size_bytes: u64,
    ) -> Result<Lease, Error> {
        if let Some(lease) = self.find(digest, size_bytes).await? {
            return Ok(lease);
        }
        let pull = self.pull_lock(digest);
        // If a request is cancelled, the next waiter gets the lock and resumes the download.
        let _one_at_a_time = pull.lock().await;
        if let Some(lease) = self.find(digest, size_bytes).await? {
            return Ok(lease);
        }
        let reservation = self.evict_for(digest, size_bytes)?;
        let path = self.path(digest);
        let blob = BlobInfo { digest: digest.clone(), size_bytes };
        loop {
            match registry.blob_pull_to_file(repository, &blob, &path, Arc::new(NoProgress)).await {
                Ok(()) => break,
                // Another worker shares this folder.
                Err(lode_client::Error::Busy { .. }) => tokio::time::sleep(BUSY_POLL).await,
                Err(source) => {
                    return Err(Error::Pull { repository: repository.clone(), source: Box::new(source) });
                }
            }
        }
        tracing::info!(%repository, %digest, size_bytes, "pulled");
        let mut state = self.state();
        let (old_bytes, old_leases) =
            state.blobs.get(digest).map_or((0, 0), |old| (old.size_bytes, old.leases));
        state.total_bytes = state.total_bytes + size_bytes - old_bytes;
        // If the file was deleted while leased, the old leases are still dropped later, so they count.
        let blob = Blob { size_bytes, last_used: SystemTime::now(), leases: old_leases + 1 };
        state.blobs.insert(digest.clone(), blob);
        drop(state);
        drop(reservation);
        Ok(Lease { path, cache_entry: Some((self.clone(), digest.clone())) })
    }

    /// Folder for the cached manifests.
    pub(super) fn manifests(&self) -> PathBuf {
        self.root.join("manifests")
    }

    async fn find(self: &Arc<Cache>, digest: &Digest, size_bytes: u64) -> Result<Option<Lease>, Error> {
        let (cache, digest) = (self.clone(), digest.clone());
        let find = move || cache.find_blocking(&digest, size_bytes);
        tokio::task::spawn_blocking(find).await.map_err(|error| Error::Cache(io::Error::other(error)))
    }

    fn find_blocking(self: &Arc<Cache>, digest: &Digest, size_bytes: u64) -> Option<Lease> {
        let is_it =
            |path: &PathBuf| fs::metadata(path).is_ok_and(|data| data.is_file() && data.len() == size_bytes);
        for source in &self.sources {
            if let Some(path) = source_paths(source, digest).into_iter().find(is_it) {
                return Some(Lease { path, cache_entry: None });
            }
        }
        let path = self.path(digest);
        let mut state = self.state();
        let blob = state.blobs.get_mut(digest)?;
        if !is_it(&path) {
            // The file was deleted by another program, or this manifest has the wrong size. Leased files stay
            // mapped.
            let size_bytes = blob.size_bytes;
            if blob.leases == 0 && !path.is_file() {
                state.blobs.remove(digest);
                state.total_bytes -= size_bytes;
            }
            return None;
        }
        blob.leases += 1;
        blob.last_used = SystemTime::now();
        drop(state);
        // Keeps the order of use across restarts. Ignore errors: a read-only cache still works.
        let _ = fs::File::open(&path).and_then(|file| file.set_modified(SystemTime::now()));
        Some(Lease { path, cache_entry: Some((self.clone(), digest.clone())) })
    }

    /// Evicts the least recently used blobs until a new one fits, and reserves its size.
    fn evict_for<'a>(&'a self, digest: &'a Digest, size_bytes: u64) -> Result<Reservation<'a>, Error> {
        let mut evicted = Vec::new();
        {
            let mut state = self.state();
            if let Some(limit) = self.limit {
                let taken_up = state.parts.get(digest).copied().unwrap_or(0);
                while (state.total_bytes - taken_up).saturating_add(size_bytes) > limit {
                    // Remove partial downloads before complete blobs.
                    if let Some(part) = state.parts.keys().find(|part| *part != digest).cloned() {
                        state.drop_part_record(&part);
                        remove_part(&self.part_path(&part)).map_err(Error::Cache)?;
                        continue;
                    }
                    let idle = state.blobs.iter().filter(|(_, blob)| blob.leases == 0);
                    let Some(digest) =
                        idle.min_by_key(|(_, blob)| blob.last_used).map(|(digest, _)| digest.clone())
                    else {
                        return Err(Error::CacheFull { limit, needed: size_bytes });
                    };
                    if let Some(blob) = state.blobs.remove(&digest) {
                        state.total_bytes -= blob.size_bytes;
                    }
                    // Under the lock, so that no request finds the blob in between.
                    remove(&self.path(&digest)).map_err(Error::Cache)?;
                    evicted.push(digest);
                }
            }
            state.drop_part_record(digest);
            state.total_bytes += size_bytes;
        }
        for digest in evicted {
            tracing::info!(%digest, "evicted from the cache");
        }
        Ok(Reservation { cache: self, digest, size_bytes })
    }

    fn pull_lock(&self, digest: &Digest) -> Arc<tokio::sync::Mutex<()>> {
        let mut pulls = self.pulls.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(lock) = pulls.get(digest).and_then(Weak::upgrade) {
            return lock;
        }
        pulls.retain(|_, lock| lock.strong_count() > 0);
        let lock = Arc::new(tokio::sync::Mutex::new(()));
        pulls.insert(digest.clone(), Arc::downgrade(&lock));
        lock
    }

    fn path(&self, digest: &Digest) -> PathBuf {
        self.root.join("blobs").join(digest.algorithm().as_str()).join(digest.hex())
    }

    /// Path of the client's partial download.
    fn part_path(&self, digest: &Digest) -> PathBuf {
        with_suffix(&self.path(digest), PART)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Removes a file; ignores that it is already deleted.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Removes the files of an interrupted download, unless another process is resuming it.
fn remove_part(path: &Path) -> io::Result<()> {
    if fs::File::open(path).is_ok_and(|file| file.try_lock().is_err()) {
        return Ok(());
    }
    remove(path)?;
    remove(&with_suffix(path, PART_STATE))
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}

/// Paths of a blob in another program's folder: OCI layouts and Lode's registry, then ollama.
fn source_paths(source: &Path, digest: &Digest) -> [PathBuf; 2] {
    let (algorithm, hex) = (digest.algorithm().as_str(), digest.hex());
    let blobs = source.join("blobs");
    [blobs.join(algorithm).join(hex), blobs.join(format!("{algorithm}-{hex}"))]
}

//! A whole blob to a file: ranges in parallel into `<path>.part`, hashed in order as they land, taken up after a crash, renamed only once verified and synced.
//! A server that ignores ranges is read from one connection instead.

use std::{
    fs::{File, OpenOptions},
    io,
    ops::Range,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
};

use futures::{StreamExt, TryStreamExt};
use lode_model::{
    digest::{Digest, Hasher},
    reference::Repository,
};
use serde::{Deserialize, Serialize};

use crate::{Error, Progress, Registry};

/// Bytes are gathered up to this before they go to the file.
const WRITE_BYTES: usize = 1 << 20;
const HASH_BYTES: usize = 1 << 20;

impl Registry {
    /// Downloads a blob of `size` bytes to `path`, which appears only when its bytes are verified and durable; a file that was there is replaced.
    /// Until then they are in `<path>.part`, and `<path>.part.state` tells which of them have landed: calling again after a crash or an error goes on from there.
    /// Two processes may not download to one path at once: the second gets [`Error::Busy`].
    pub async fn blob_pull_to_file(
        &self,
        repository: &Repository,
        digest: &Digest,
        size: u64,
        path: &Path,
        progress: Arc<dyn Progress>,
    ) -> Result<(), Error> {
        let pull = Pull { registry: self, repository, digest, size, progress: &progress };
        let (part, landed) = Part::open(path, digest, size).await?;
        let resumed = landed.total() > 0;
        match pull.into_part(&part, landed).await {
            // What an earlier run left may be wrong where this run's bytes are not.
            Err(Error::DigestMismatch { .. }) if resumed => {
                progress.undone(size);
                tracing::warn!(%digest, "what an earlier download left is damaged: starting again");
                pull.into_part(&part, Landed::default()).await
            }
            other => other,
        }
        .inspect_err(|error| {
            if matches!(error, Error::DigestMismatch { .. } | Error::SizeMismatch { .. }) {
                part.discard();
            }
        })?;
        part.commit().await
    }
}

struct Pull<'a> {
    registry: &'a Registry,
    repository: &'a Repository,
    digest: &'a Digest,
    size: u64,
    progress: &'a Arc<dyn Progress>,
}

/// Why a range did not arrive.
enum RangeError {
    /// The server sends the whole blob whatever is asked.
    Ignored,
    Failed(Error),
}

impl From<Error> for RangeError {
    fn from(error: Error) -> Self {
        RangeError::Failed(error)
    }
}

impl Pull<'_> {
    /// Fills the part file and verifies it.
    async fn into_part(&self, part: &Part, landed: Landed) -> Result<(), Error> {
        let options = &self.registry.inner().options;
        let got = if self.size <= options.range_bytes {
            self.sequential(part).await?
        } else {
            match self.parallel(part, landed).await {
                Ok(got) => got,
                Err(RangeError::Ignored) => {
                    tracing::debug!(digest = %self.digest, "the server ignores ranges");
                    self.sequential(part).await?
                }
                Err(RangeError::Failed(error)) => return Err(error),
            }
        };
        if got == *self.digest {
            Ok(())
        } else {
            Err(Error::DigestMismatch { expected: self.digest.clone(), got })
        }
    }

    /// Ranges side by side; the hash follows the bytes that have landed without a gap, read back from the page cache.
    async fn parallel(&self, part: &Part, landed: Landed) -> Result<Digest, RangeError> {
        let options = &self.registry.inner().options;
        let missing = landed.missing(self.size, options.range_bytes);
        self.progress.moved(landed.total());
        let (prefix, follow) = mpsc::channel::<u64>();
        let file = part.file.clone();
        let (algorithm, size) = (self.digest.algorithm(), self.size);
        let hashing = tokio::task::spawn_blocking(move || {
            hash_as_it_lands(&file, Hasher::new(algorithm), &follow, size)
        });
        // The hashing task ends when its sender does, so a send fails only after its own error, which is told below.
        let _sent = prefix.send(landed.prefix());

        let mut landed = landed;
        let mut arriving = futures::stream::iter(missing)
            .map(|range| async move { self.range(part, range.clone()).await.map(|()| range) })
            .buffer_unordered(options.parallel_ranges.max(1));
        let fetched = async {
            while let Some(range) = arriving.try_next().await? {
                landed.insert(range);
                part.save(self.digest, self.size, &landed).await?;
                let _sent = prefix.send(landed.prefix());
            }
            Ok::<_, RangeError>(())
        }
        .await;
        drop(arriving);
        drop(prefix);
        let hashed = hashing.await.map_err(|_| self.registry.protocol("hashing was interrupted"));
        if let Err(error) = fetched {
            if matches!(error, RangeError::Ignored) {
                self.progress.undone(landed.total());
            }
            return Err(error);
        }
        Ok(hashed?.map_err(|source| part.failed("read", source))?)
    }

    /// One range into its place, taken up where a cut left it.
    async fn range(&self, part: &Part, range: Range<u64>) -> Result<(), RangeError> {
        let mut at = range.start;
        let mut failed = 0;
        while at < range.end {
            let before = at;
            match self.range_once(part, &mut at, range.end).await {
                Ok(()) if at < range.end => {
                    return Err(self.registry.protocol("a range ended early").into());
                }
                Ok(()) => {}
                Err(RangeError::Failed(error)) if error.is_transient() => {
                    failed = if at > before { 1 } else { failed + 1 };
                    let policy = &self.registry.inner().options.retry;
                    if failed >= policy.attempts {
                        self.progress.undone(at - range.start);
                        return Err(error.into());
                    }
                    tokio::time::sleep(policy.delay(failed, None)).await;
                }
                Err(error) => {
                    self.progress.undone(at - range.start);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    async fn range_once(&self, part: &Part, at: &mut u64, end: u64) -> Result<(), RangeError> {
        let mut stream = self.registry.blob_get(self.repository, self.digest, Some(*at..end)).await?;
        self.check_total(stream.total)?;
        if stream.range.start != *at {
            return Err(RangeError::Ignored);
        }
        // From byte 0 a server that ignores ranges looks right until its length is compared.
        if stream.range.end > end {
            return Err(RangeError::Ignored);
        }
        let mut buffer = Vec::with_capacity(WRITE_BYTES);
        loop {
            let next = stream.bytes.next().await;
            let full = buffer.len() >= WRITE_BYTES;
            if full || !matches!(next, Some(Ok(_))) {
                // What came before a cut is kept.
                let length = buffer.len() as u64;
                buffer = part.write_at(buffer, *at).await?;
                *at += length;
                self.progress.moved(length);
            }
            match next {
                Some(chunk) => buffer.extend_from_slice(&chunk?),
                None => return Ok(()),
            }
        }
    }

    /// One connection from the first byte to the last, hashed as it arrives; a cut is taken up by range where the server can.
    async fn sequential(&self, part: &Part) -> Result<Digest, Error> {
        part.forget_state();
        let mut hasher = Hasher::new(self.digest.algorithm());
        let mut at = 0;
        let mut failed = 0;
        loop {
            let before = at;
            match self.sequential_once(part, &mut hasher, &mut at).await {
                Ok(()) if at == self.size => break,
                Ok(()) => {
                    self.progress.undone(at);
                    return Err(Error::SizeMismatch {
                        digest: self.digest.clone(),
                        expected: self.size,
                        got: at,
                    });
                }
                Err(error) if error.is_transient() => {
                    failed = if at > before { 1 } else { failed + 1 };
                    let policy = &self.registry.inner().options.retry;
                    if failed >= policy.attempts {
                        self.progress.undone(at);
                        return Err(error);
                    }
                    tokio::time::sleep(policy.delay(failed, None)).await;
                }
                Err(error) => {
                    self.progress.undone(at);
                    return Err(error);
                }
            }
        }
        Ok(hasher.finish())
    }

    async fn sequential_once(&self, part: &Part, hasher: &mut Hasher, at: &mut u64) -> Result<(), Error> {
        // An empty range cannot be asked for, and everything may have come before the cut.
        if *at == self.size && *at > 0 {
            return Ok(());
        }
        let range = (*at > 0).then_some(*at..self.size);
        let mut stream = self.registry.blob_get(self.repository, self.digest, range).await?;
        self.check_total(stream.total)?;
        if stream.range.start != *at {
            // No ranges here: from the start again.
            self.progress.undone(*at);
            *hasher = Hasher::new(self.digest.algorithm());
            *at = 0;
        }
        let mut buffer = Vec::with_capacity(WRITE_BYTES.min(self.size as usize));
        loop {
            let next = stream.bytes.next().await;
            if buffer.len() >= WRITE_BYTES || !matches!(next, Some(Ok(_))) {
                let length = buffer.len() as u64;
                if *at + length > self.size {
                    return Err(Error::SizeMismatch {
                        digest: self.digest.clone(),
                        expected: self.size,
                        got: *at + length,
                    });
                }
                hasher.update(&buffer);
                buffer = part.write_at(buffer, *at).await?;
                *at += length;
                self.progress.moved(length);
            }
            match next {
                Some(chunk) => buffer.extend_from_slice(&chunk?),
                None => return Ok(()),
            }
        }
    }

    fn check_total(&self, total: Option<u64>) -> Result<(), Error> {
        match total {
            Some(got) if got != self.size => {
                Err(Error::SizeMismatch { digest: self.digest.clone(), expected: self.size, got })
            }
            _ => Ok(()),
        }
    }
}

/// Hashes the first `size` bytes of `file`, never beyond the prefix that it was told has landed.
fn hash_as_it_lands(
    file: &File,
    mut hasher: Hasher,
    prefix: &mpsc::Receiver<u64>,
    size: u64,
) -> io::Result<Digest> {
    let mut buffer = vec![0; HASH_BYTES];
    let mut at = 0;
    while let Ok(landed) = prefix.recv() {
        while at < landed.min(size) {
            let length = HASH_BYTES.min((landed.min(size) - at) as usize);
            file.read_exact_at(&mut buffer[..length], at)?;
            hasher.update(&buffer[..length]);
            at += length as u64;
        }
    }
    Ok(hasher.finish())
}

/// `<path>.part`, locked, and the notes beside it.
struct Part {
    file: Arc<File>,
    path: PathBuf,
    part: PathBuf,
    state: PathBuf,
}

/// What `<path>.part.state` holds. Only a hint: the digest of the whole is compared in the end.
#[derive(Serialize, Deserialize)]
struct State {
    digest: Digest,
    size_bytes: u64,
    landed: Landed,
}

impl Part {
    async fn open(path: &Path, digest: &Digest, size: u64) -> Result<(Part, Landed), Error> {
        let (path, digest) = (path.to_owned(), digest.clone());
        blocking(move || {
            let part = with_suffix(&path, ".part");
            let state = with_suffix(&path, ".part.state");
            let failed =
                |action: &'static str, source: io::Error| Error::File { action, path: part.clone(), source };
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(&part)
                .map_err(|source| failed("create", source))?;
            match file.try_lock() {
                Ok(()) => {}
                Err(std::fs::TryLockError::WouldBlock) => return Err(Error::Busy { path: part.clone() }),
                Err(std::fs::TryLockError::Error(source)) => return Err(failed("lock", source)),
            }
            let known = std::fs::read(&state)
                .ok()
                .and_then(|bytes| serde_json::from_slice::<State>(&bytes).ok())
                .filter(|known| {
                    known.digest == digest && known.size_bytes == size && known.landed.is_within(size)
                })
                // A state without its bytes says nothing.
                .filter(|_| file.metadata().is_ok_and(|metadata| metadata.len() == size));
            let landed = match known {
                Some(known) => known.landed,
                None => {
                    file.set_len(0).map_err(|source| failed("truncate", source))?;
                    Landed::default()
                }
            };
            file.set_len(size).map_err(|source| failed("reserve", source))?;
            Ok((Part { file: Arc::new(file), path, part, state }, landed))
        })
        .await
    }

    /// Writes and hands the emptied buffer back.
    async fn write_at(&self, mut buffer: Vec<u8>, offset: u64) -> Result<Vec<u8>, Error> {
        if buffer.is_empty() {
            return Ok(buffer);
        }
        let file = self.file.clone();
        let (buffer, written) = blocking(move || {
            let written = file.write_all_at(&buffer, offset);
            buffer.clear();
            (buffer, written)
        })
        .await;
        written.map_err(|source| self.failed("write", source))?;
        Ok(buffer)
    }

    async fn save(&self, digest: &Digest, size: u64, landed: &Landed) -> Result<(), Error> {
        let state = State { digest: digest.clone(), size_bytes: size, landed: landed.clone() };
        let path = self.state.clone();
        let saved = blocking(move || {
            let text = serde_json::to_vec(&state)?;
            let fresh = with_suffix(&path, ".tmp");
            std::fs::write(&fresh, text)?;
            std::fs::rename(&fresh, &path)
        })
        .await;
        saved.map_err(|source| Error::File { action: "write", path: self.state.clone(), source })
    }

    fn forget_state(&self) {
        let _absent = std::fs::remove_file(&self.state);
    }

    fn discard(&self) {
        self.forget_state();
        let _absent = std::fs::remove_file(&self.part);
    }

    /// Makes the bytes durable and gives them their name.
    async fn commit(self) -> Result<(), Error> {
        blocking(move || {
            self.file.sync_all().map_err(|source| self.failed("sync", source))?;
            std::fs::rename(&self.part, &self.path).map_err(|source| self.failed("rename", source))?;
            self.forget_state();
            let folder =
                self.path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            let synced = File::open(folder).and_then(|folder| folder.sync_all());
            synced.map_err(|source| Error::File { action: "sync", path: folder.to_owned(), source })
        })
        .await
    }

    fn failed(&self, action: &'static str, source: io::Error) -> Error {
        Error::File { action, path: self.part.clone(), source }
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Runs file work off the async threads. Such a task is never cancelled, and a panic in it is ours.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is shutting down and drops this future too.
            Err(_) => std::future::pending().await,
        },
    }
}

/// Which bytes are in the file: disjoint ranges in order, touching ones joined.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Landed(Vec<(u64, u64)>);

impl Landed {
    fn insert(&mut self, range: Range<u64>) {
        let mut joined = (range.start, range.end);
        self.0.retain(|&(start, end)| {
            let apart = end < joined.0 || start > joined.1;
            if !apart {
                joined = (joined.0.min(start), joined.1.max(end));
            }
            apart
        });
        let at = self.0.partition_point(|&(start, _)| start < joined.0);
        self.0.insert(at, joined);
    }

    /// How far the bytes go without a gap.
    fn prefix(&self) -> u64 {
        self.0.first().filter(|&&(start, _)| start == 0).map_or(0, |&(_, end)| end)
    }

    fn total(&self) -> u64 {
        self.0.iter().map(|(start, end)| end - start).sum()
    }

    /// The gaps below `size`, cut into ranges of at most `most` bytes.
    fn missing(&self, size: u64, most: u64) -> Vec<Range<u64>> {
        let most = most.max(1);
        let mut missing = Vec::new();
        let mut at = 0;
        for &(start, end) in self.0.iter().chain([&(size, size)]) {
            while at < start {
                let next = start.min(at + most);
                missing.push(at..next);
                at = next;
            }
            at = end;
        }
        missing
    }

    /// Read from a file that anything may have written.
    fn is_within(&self, size: u64) -> bool {
        let ordered = self.0.windows(2).all(|pair| pair[0].1 < pair[1].0);
        ordered && self.0.iter().all(|&(start, end)| start < end && end <= size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_join_and_gaps_are_found() {
        let mut landed = Landed::default();
        assert_eq!(landed.missing(10, 4), [0..4, 4..8, 8..10]);
        landed.insert(4..8);
        assert_eq!((landed.prefix(), landed.total()), (0, 4));
        assert_eq!(landed.missing(10, 3), [0..3, 3..4, 8..10]);
        landed.insert(0..4);
        assert_eq!(landed, Landed(vec![(0, 8)]));
        landed.insert(9..10);
        assert_eq!(landed.missing(10, 100), [8..9]);
        landed.insert(8..9);
        assert_eq!(landed, Landed(vec![(0, 10)]));
        assert!(landed.missing(10, 4).is_empty());
        assert!(Landed::default().missing(0, 4).is_empty());
    }

    #[test]
    fn nonsense_in_a_state_is_not_believed() {
        for nonsense in
            [vec![(0, 11)], vec![(5, 5)], vec![(6, 4)], vec![(0, 5), (4, 6)], vec![(5, 6), (0, 1)]]
        {
            assert!(!Landed(nonsense.clone()).is_within(10), "{nonsense:?}");
        }
        assert!(Landed(vec![(0, 4), (5, 10)]).is_within(10));
    }
}

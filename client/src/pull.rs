//! Downloads a blob to a file: fetches ranges in parallel into `<path>.part`, hashes them in order, resumes
//! after a crash, and renames the file only when it is verified and synced. If the server ignores ranges, one
//! connection is used.

use std::{
    fs::File,
    io,
    ops::Range,
    os::unix::fs::FileExt,
    path::Path,
    sync::{Arc, mpsc},
};

use futures::{StreamExt, TryStreamExt};
use lode_model::{
    digest::{Digest, Hasher},
    reference::Repository,
};

use crate::{
    BlobInfo, Destination, Error, Progress, Registry,
    part::{ByteRanges, Part},
    retry::failures_after,
};

/// Buffered bytes before a write to the file.
const WRITE_BYTES: usize = 1 << 20;
const HASH_BYTES: usize = 1 << 20;

impl Registry {
    /// Downloads a blob to `path`. The file appears only when its content is verified and durable; an existing
    /// file is replaced. Until then the data is in `<path>.part`, and `<path>.part.state` records the received
    /// ranges, so that another call after a crash or an error resumes. A second process that downloads to the
    /// same path gets [`Error::Busy`].
    pub async fn blob_pull_to_file(
        &self,
        repository: &Repository,
        blob: &BlobInfo,
        path: &Path,
        progress: Arc<dyn Progress>,
    ) -> Result<(), Error> {
        let destination = Destination::at(path).map_err(|source| Error::File {
            action: "write",
            path: path.to_owned(),
            source,
        })?;
        self.blob_pull_into(repository, blob, destination, progress).await
    }

    /// Like [`Registry::blob_pull_to_file`], into an open folder.
    pub async fn blob_pull_into(
        &self,
        repository: &Repository,
        blob: &BlobInfo,
        destination: Destination,
        progress: Arc<dyn Progress>,
    ) -> Result<(), Error> {
        let (digest, size) = (&blob.digest, blob.size_bytes);
        let pull = Pull { registry: self, repository, digest, size, progress: &progress };
        let (part, landed) = Part::open(destination, digest, size).await?;
        let resumed = landed.total() > 0;
        match pull.download(&part, landed).await {
            // The data of an earlier run may be damaged.
            Err(Error::DigestMismatch { .. }) if resumed => {
                progress.retracted(size);
                tracing::warn!(%digest, "data of an earlier download is damaged; restarting");
                pull.download(&part, ByteRanges::default()).await
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

/// The error of a range request.
enum RangeError {
    /// The server ignores ranges and sends the whole blob.
    Ignored,
    Failed(Error),
}

impl From<Error> for RangeError {
    fn from(error: Error) -> Self {
        RangeError::Failed(error)
    }
}

impl Pull<'_> {
    /// Downloads the missing ranges and verifies the digest.
    async fn download(&self, part: &Part, landed: ByteRanges) -> Result<(), Error> {
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

    /// Fetches ranges in parallel. The hash follows the contiguous prefix and reads it from the page cache.
    async fn parallel(&self, part: &Part, landed: ByteRanges) -> Result<Digest, RangeError> {
        let options = &self.registry.inner().options;
        let missing = landed.missing(self.size, options.range_bytes);
        self.progress.transferred(landed.total());
        let (prefix, follow) = mpsc::channel::<u64>();
        let file = part.file.clone();
        let (algorithm, size) = (self.digest.algorithm(), self.size);
        let hashing = tokio::task::spawn_blocking(move || {
            hash_contiguous(&file, Hasher::new(algorithm), &follow, size)
        });
        // The hashing task ends when the sender is dropped. A send fails only after an error in that task,
        // which is returned below.
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
        let hashed = hashing.await.map_err(|_| self.registry.protocol("the hashing task was cancelled"));
        if let Err(error) = fetched {
            if matches!(error, RangeError::Ignored) {
                self.progress.retracted(landed.total());
            }
            return Err(error);
        }
        Ok(hashed?.map_err(|source| part.failed("read", source))?)
    }

    /// Fetches one range and resumes after interruptions.
    async fn range(&self, part: &Part, range: Range<u64>) -> Result<(), RangeError> {
        let mut at = range.start;
        let mut failed = 0;
        while at < range.end {
            let before = at;
            match self.range_once(part, &mut at, range.end).await {
                Ok(()) if at < range.end => {
                    return Err(self
                        .registry
                        .protocol("the response ended before the end of the range")
                        .into());
                }
                Ok(()) => {}
                Err(RangeError::Failed(error)) if error.is_transient() => {
                    failed = failures_after(failed, at - before, range.end - before, &error);
                    let policy = &self.registry.inner().options.retry;
                    if failed >= policy.attempts {
                        self.progress.retracted(at - range.start);
                        return Err(error.into());
                    }
                    self.registry.inner().wait_to_retry(&error, failed, None).await;
                }
                Err(error) => {
                    self.progress.retracted(at - range.start);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    async fn range_once(&self, part: &Part, at: &mut u64, end: u64) -> Result<(), RangeError> {
        // Its attempts do not count for the range: together they outlast the restart of a server.
        let mut stream = self.registry.blob_get(self.repository, self.digest, Some(*at..end)).await?;
        self.check_total(stream.total)?;
        if stream.range.start != *at {
            return Err(RangeError::Ignored);
        }
        // At offset 0, a server that ignores ranges is recognised only by the length.
        if stream.range.end > end {
            return Err(RangeError::Ignored);
        }
        let mut buffer = Vec::with_capacity(WRITE_BYTES);
        loop {
            let next = stream.bytes.next().await;
            let full = buffer.len() >= WRITE_BYTES;
            if full || !matches!(next, Some(Ok(_))) {
                // Keep the bytes before the interruption.
                let length = buffer.len() as u64;
                buffer = part.write_at(buffer, *at).await?;
                *at += length;
                self.progress.transferred(length);
            }
            match next {
                Some(chunk) => buffer.extend_from_slice(&chunk?),
                None => return Ok(()),
            }
        }
    }

    /// Reads the blob over one connection and hashes it. Resumes by range after an interruption, if the
    /// server supports ranges.
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
                    self.progress.retracted(at);
                    return Err(Error::SizeMismatch {
                        digest: self.digest.clone(),
                        expected: self.size,
                        got: at,
                    });
                }
                Err(error) if error.is_transient() => {
                    failed = failures_after(failed, at.saturating_sub(before), self.size - before, &error);
                    let policy = &self.registry.inner().options.retry;
                    if failed >= policy.attempts {
                        self.progress.retracted(at);
                        return Err(error);
                    }
                    self.registry.inner().wait_to_retry(&error, failed, None).await;
                }
                Err(error) => {
                    self.progress.retracted(at);
                    return Err(error);
                }
            }
        }
        Ok(hasher.finish())
    }

    async fn sequential_once(&self, part: &Part, hasher: &mut Hasher, at: &mut u64) -> Result<(), Error> {
        // An empty range cannot be requested, and the interruption may have followed the last byte.
        if *at == self.size && *at > 0 {
            return Ok(());
        }
        let range = (*at > 0).then_some(*at..self.size);
        let mut stream = self.registry.blob_get(self.repository, self.digest, range).await?;
        self.check_total(stream.total)?;
        if stream.range.start != *at {
            // The server does not support ranges: restart.
            self.progress.retracted(*at);
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
                self.progress.transferred(length);
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

/// Hashes the first `size` bytes of `file`, up to the prefix lengths that `prefix` receives.
fn hash_contiguous(
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

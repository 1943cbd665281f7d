//! A file that is being downloaded (`<path>.part`), and the state file that records which of its bytes are
//! written. Only pull.rs uses it.

use std::{
    fs::{File, TryLockError},
    io::{self, Write},
    ops::Range,
    os::unix::fs::FileExt,
    sync::Arc,
};

use lode_model::digest::Digest;
use serde::{Deserialize, Serialize};

use crate::{Destination, Error};

/// The locked `<path>.part` and its state file.
pub(crate) struct Part {
    pub(crate) file: Arc<File>,
    whole: Destination,
    part: Destination,
    state: Destination,
}

/// The content of `<path>.part.state`. It is only a hint: the digest of the whole file is verified at the
/// end.
#[derive(Serialize, Deserialize)]
struct State {
    digest: Digest,
    size_bytes: u64,
    landed: ByteRanges,
}

impl Part {
    pub(crate) async fn open(
        whole: Destination,
        digest: &Digest,
        size: u64,
    ) -> Result<(Part, ByteRanges), Error> {
        let digest = digest.clone();
        blocking(move || {
            let (part, state) = (whole.with_suffix(".part"), whole.with_suffix(".part.state"));
            let failed =
                |action: &'static str, source: io::Error| Error::File { action, path: part.path(), source };
            let file = part.open_locked().map_err(|error| match error {
                TryLockError::WouldBlock => Error::Busy { path: part.path() },
                TryLockError::Error(source) => failed("open", source),
            })?;
            let known = state
                .read()
                .ok()
                .and_then(|bytes| serde_json::from_slice::<State>(&bytes).ok())
                .filter(|known| {
                    known.digest == digest && known.size_bytes == size && known.landed.is_within(size)
                })
                // The state is valid only with its part file.
                .filter(|_| file.metadata().is_ok_and(|metadata| metadata.len() == size));
            let landed = match known {
                Some(known) => known.landed,
                None => {
                    file.set_len(0).map_err(|source| failed("truncate", source))?;
                    ByteRanges::default()
                }
            };
            file.set_len(size).map_err(|source| failed("reserve", source))?;
            Ok((Part { file: Arc::new(file), whole, part, state }, landed))
        })
        .await
    }

    /// Writes the buffer and returns it emptied.
    pub(crate) async fn write_at(&self, mut buffer: Vec<u8>, offset: u64) -> Result<Vec<u8>, Error> {
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

    pub(crate) async fn save(&self, digest: &Digest, size: u64, landed: &ByteRanges) -> Result<(), Error> {
        let state = State { digest: digest.clone(), size_bytes: size, landed: landed.clone() };
        let destination = self.state.clone();
        let saved = blocking(move || {
            let text = serde_json::to_vec(&state)?;
            let fresh = destination.with_suffix(".tmp");
            let mut file = fresh.open_or_create()?;
            file.set_len(0)?;
            file.write_all(&text)?;
            fresh.rename_to(&destination)
        })
        .await;
        saved.map_err(|source| Error::File { action: "write", path: self.state.path(), source })
    }

    pub(crate) fn forget_state(&self) {
        let _absent = self.state.remove();
    }

    pub(crate) fn discard(&self) {
        // Another process may have replaced the files.
        if !self.part.is_name_of(&self.file).unwrap_or(false) {
            return;
        }
        self.forget_state();
        let _absent = self.part.remove();
    }

    /// Syncs the file and gives it its final name.
    pub(crate) async fn commit(self) -> Result<(), Error> {
        blocking(move || {
            self.file.sync_all().map_err(|source| self.failed("sync", source))?;
            self.part.rename_to(&self.whole).map_err(|source| self.failed("rename", source))?;
            self.forget_state();
            let folder = self.whole.folder();
            folder.sync().map_err(|source| Error::File {
                action: "sync",
                path: folder.path().to_owned(),
                source,
            })
        })
        .await
    }

    pub(crate) fn failed(&self, action: &'static str, source: io::Error) -> Error {
        Error::File { action, path: self.part.path(), source }
    }
}

/// Runs file operations on a thread that may block. The task is never cancelled; its panic is propagated.
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

/// The byte ranges that are written: disjoint, sorted, adjacent ranges merged.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ByteRanges(Vec<(u64, u64)>);

impl ByteRanges {
    pub(crate) fn insert(&mut self, range: Range<u64>) {
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

    /// The length of the contiguous prefix.
    pub(crate) fn prefix(&self) -> u64 {
        self.0.first().filter(|&&(start, _)| start == 0).map_or(0, |&(_, end)| end)
    }

    pub(crate) fn total(&self) -> u64 {
        self.0.iter().map(|(start, end)| end - start).sum()
    }

    /// The missing ranges below `size`, split into ranges of at most `most` bytes. They are not collected: the server
    /// chooses `size`, which may stand for any number of ranges.
    pub(crate) fn missing(&self, size: u64, most: u64) -> impl Iterator<Item = Range<u64>> + use<> {
        let most = most.max(1);
        let mut at = 0;
        self.0.clone().into_iter().chain([(size, size)]).flat_map(move |(start, end)| {
            let mut from = std::mem::replace(&mut at, end);
            std::iter::from_fn(move || {
                let next = start.min(from.saturating_add(most));
                (from < start).then(|| std::mem::replace(&mut from, next)..next)
            })
        })
    }

    /// Validates ranges that were read from the state file, which may have any content.
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
        let mut landed = ByteRanges::default();
        let missing = |landed: &ByteRanges, most| landed.missing(10, most).collect::<Vec<_>>();
        assert_eq!(missing(&landed, 4), [0..4, 4..8, 8..10]);
        landed.insert(4..8);
        assert_eq!((landed.prefix(), landed.total()), (0, 4));
        assert_eq!(missing(&landed, 3), [0..3, 3..4, 8..10]);
        landed.insert(0..4);
        assert_eq!(landed, ByteRanges(vec![(0, 8)]));
        landed.insert(9..10);
        assert_eq!(missing(&landed, 100).first(), Some(&(8..9)));
        landed.insert(8..9);
        assert_eq!(landed, ByteRanges(vec![(0, 10)]));
        assert!(missing(&landed, 4).is_empty());
        assert_eq!(ByteRanges::default().missing(0, 4).count(), 0);
    }

    #[test]
    fn the_ranges_of_a_huge_blob_take_no_memory() {
        let mut landed = ByteRanges::default();
        landed.insert(0..4);
        let mut missing = landed.missing(u64::MAX, 8);
        assert_eq!((missing.next(), missing.next()), (Some(4..12), Some(12..20)));
        landed.insert(4..u64::MAX - 3);
        assert_eq!(landed.missing(u64::MAX, 8).last(), Some(u64::MAX - 3..u64::MAX));
    }

    #[test]
    fn invalid_states_are_rejected() {
        for nonsense in
            [vec![(0, 11)], vec![(5, 5)], vec![(6, 4)], vec![(0, 5), (4, 6)], vec![(5, 6), (0, 1)]]
        {
            assert!(!ByteRanges(nonsense.clone()).is_within(10), "{nonsense:?}");
        }
        assert!(ByteRanges(vec![(0, 4), (5, 10)]).is_within(10));
    }
}

//! Reads stored blobs at any offset, for parsing model files. Reading blocks: it must run on blocking
//! threads, never on those that serve requests.

use std::io;
use std::sync::{Mutex, MutexGuard};

use lode_model::digest::Digest;
use lode_model::read_at::ReadAt;
use lode_model::reference::Repository;
use tokio::runtime::Handle;

use super::Registry;
use crate::Error;
use crate::auth::Caller;

/// The size of the first read, which covers the whole header of most tensor blobs.
const FIRST_WINDOW_BYTES: u64 = 4096;
/// Sequential reads grow up to this size.
const MAX_WINDOW_BYTES: u64 = 1 << 20;

/// A blob that is read by range. The last window is kept, because headers are read in small pieces.
pub(crate) struct BlobReader {
    registry: Registry,
    repository: Repository,
    caller: Caller,
    digest: Digest,
    size_bytes: u64,
    runtime: Handle,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The offset of the window.
    start: u64,
    window: Vec<u8>,
    /// The size of the next window.
    next_bytes: u64,
    failed: Option<Error>,
}

impl Registry {
    /// A reader of the blob, if the repository has it.
    pub(crate) async fn blob_reader(
        &self,
        caller: &Caller,
        repository: &Repository,
        digest: &Digest,
    ) -> Result<Option<BlobReader>, Error> {
        let size_bytes = match self.blob_find(caller, repository, digest).await {
            Ok(info) => info.size_bytes,
            Err(Error::BlobUnknown { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        Ok(Some(BlobReader {
            registry: self.clone(),
            repository: repository.clone(),
            caller: caller.clone(),
            digest: digest.clone(),
            size_bytes,
            runtime: Handle::current(),
            state: Mutex::default(),
        }))
    }
}

impl BlobReader {
    /// The error of a failed read of the storage, if any.
    pub(crate) fn failed(self) -> Option<Error> {
        self.state.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()).failed
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn fetch(&self, start: u64, end: u64) -> Result<Vec<u8>, Error> {
        let part = self.registry.blob_part(&self.caller, &self.repository, &self.digest, start..end);
        self.runtime.block_on(part)
    }
}

impl ReadAt for BlobReader {
    fn len(&self) -> u64 {
        self.size_bytes
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(buf.len() as u64).filter(|end| *end <= self.size_bytes);
        let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
        let mut state = self.state();
        let held = state.start + state.window.len() as u64;
        if offset < state.start || end > held {
            // Sequential reads grow the window; a seek starts with a small one again.
            let grown = if offset <= held && offset >= state.start { state.next_bytes } else { 0 };
            let bytes = grown.max(FIRST_WINDOW_BYTES).max(buf.len() as u64);
            let until = offset.saturating_add(bytes).min(self.size_bytes);
            match self.fetch(offset, until) {
                Ok(window) if window.len() as u64 == until - offset => state.window = window,
                Ok(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) => {
                    state.failed = Some(error);
                    return Err(io::Error::other("the storage did not respond"));
                }
            }
            state.start = offset;
            state.next_bytes = (bytes * 4).min(MAX_WINDOW_BYTES);
        }
        let at = (offset - state.start) as usize;
        buf.copy_from_slice(&state.window[at..at + buf.len()]);
        Ok(())
    }
}

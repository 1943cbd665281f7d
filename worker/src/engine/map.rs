//! Maps a file of weights read-only; all its tensors share the mapping. The engines call it for blobs and
//! whole model files.
#![allow(unsafe_code)] // Mapping a file is unsafe: another process could change it.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use memmap2::{Advice, Mmap};

use crate::engine::Extent;

/// Bytes faulted in by one call. A dropped mapping stays mapped until the current call ends.
const PREFAULT_BYTES: usize = 32 << 20;

/// A mapping shared by the tensors and, for a short time, [`prefault`].
#[derive(Clone)]
struct Shared(Arc<Mmap>);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// The part of a mapping that a model file occupies.
pub(super) struct Part {
    map: Shared,
    offset: usize,
    len: usize,
}

/// Maps a file, or the part of it in `extent`. Reading the bytes may fault pages in; nothing is copied.
pub(super) fn map(path: &Path, extent: Option<Extent>) -> io::Result<(Bytes, Part)> {
    let file = File::open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    // SAFETY: blobs are named by their digest and never written in place, neither in our cache nor in the
    // folders of other programs that are mapped. If another program truncates one, only the runner that maps
    // it dies: a runner is a separate process.
    let map = unsafe { Mmap::map(&file)? };
    let (offset, len) = match extent {
        None => (0, map.len()),
        Some(Extent { offset, size }) => {
            let inside =
                |offset: usize, len: usize| offset.checked_add(len).is_some_and(|end| end <= map.len());
            let range = usize::try_from(offset).ok().zip(usize::try_from(size).ok());
            range.filter(|(offset, len)| inside(*offset, *len)).ok_or_else(|| {
                io::Error::new(io::ErrorKind::UnexpectedEof, "it is shorter than the file within it")
            })?
        }
    };
    // Ignore errors: without the advice, only the first pass is slower.
    let _ = map.advise_range(Advice::WillNeed, offset, len);
    let map = Shared(Arc::new(map));
    Ok((Bytes::from_owner(map.clone()).slice(offset..offset + len), Part { map, offset, len }))
}

/// Faults mapped files in on a separate thread while the loader continues, so that the first pass over the
/// weights is as fast as later ones. On kernels without support (before Linux 5.14), the first pass faults
/// them in.
pub(super) fn prefault(parts: Vec<Part>) {
    #[cfg(target_os = "linux")]
    let work = move || {
        for Part { map, offset, len } in parts {
            for at in (0..len).step_by(PREFAULT_BYTES) {
                let len = PREFAULT_BYTES.min(len - at);
                if map.0.advise_range(Advice::PopulateRead, offset + at, len).is_err() {
                    return;
                }
            }
        }
    };
    #[cfg(not(target_os = "linux"))]
    let work = move || drop(parts);
    // Ignore a failure to start the thread: prefaulting is optional.
    let _ = std::thread::Builder::new().name("prefault".into()).spawn(work);
}

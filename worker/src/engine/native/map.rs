//! Maps a file of weights read-only; the bytes are shared by every tensor cut from it.
//! The native loader calls it for blobs and whole safetensors files.
#![allow(unsafe_code)] // Mapping a file is unsafe: somebody else could change it.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use memmap2::{Advice, Mmap};

use crate::engine::Extent;

/// Bytes that are faulted in by one call, so that a mapping which is given up is held no longer than that takes.
const PREFAULT_BYTES: usize = 32 << 20;

/// A mapping that several hold: the tensors, and for a moment [`prefault`].
#[derive(Clone)]
struct Shared(Arc<Mmap>);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// The part of a mapping that a model lies in.
pub(super) struct Part {
    map: Shared,
    offset: usize,
    len: usize,
}

/// The bytes of a file, or of one that lies in it, mapped. Reading them may fault pages in; nothing is copied.
pub(super) fn map(path: &Path, extent: Option<Extent>) -> io::Result<(Bytes, Part)> {
    let file = File::open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    // SAFETY: blobs are named by their digest and never written in place, neither in our cache nor in the folders of
    // other programs that are mapped. Whoever cuts one short ends the runner that maps it and nothing else: a runner
    // is a process of its own.
    let map = unsafe { Mmap::map(&file)? };
    let (offset, len) = match extent {
        None => (0, map.len()),
        Some(Extent { offset, size }) => {
            let inside =
                |offset: usize, len: usize| offset.checked_add(len).is_some_and(|end| end <= map.len());
            let range = usize::try_from(offset).ok().zip(usize::try_from(size).ok());
            range.filter(|(offset, len)| inside(*offset, *len)).ok_or_else(|| {
                io::Error::new(io::ErrorKind::UnexpectedEof, "it ends before the file in it does")
            })?
        }
    };
    // Only advice: without it the first pass waits for the disk page by page.
    let _ = map.advise_range(Advice::WillNeed, offset, len);
    let map = Shared(Arc::new(map));
    Ok((Bytes::from_owner(map.clone()).slice(offset..offset + len), Part { map, offset, len }))
}

/// Faults mapped files in on a thread of its own, while the loader does something else: the first pass over the weights is then
/// as fast as the others. Where the kernel cannot (before Linux 5.14), that pass does it.
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
    // A thread that cannot be had is one that need not be.
    let _ = std::thread::Builder::new().name("prefault".into()).spawn(work);
}

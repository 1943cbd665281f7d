//! Maps a file of weights read-only; the bytes are shared by every tensor cut from it.
//! The native loader calls it for blobs and whole safetensors files.
#![allow(unsafe_code)] // Mapping a file is unsafe: somebody else could change it.

use std::fs::File;
use std::io;
use std::path::Path;

use bytes::Bytes;
use memmap2::{Advice, Mmap};

/// The bytes of a file, mapped. Reading them may fault pages in; nothing is copied.
pub(super) fn map(path: &Path) -> io::Result<Bytes> {
    let file = File::open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    // SAFETY: blobs are named by their digest and never written in place, neither in our cache nor in the folders of
    // other programs that are mapped. Whoever cuts one short ends the runner that maps it and nothing else: a runner
    // is a process of its own.
    let map = unsafe { Mmap::map(&file)? };
    // Only advice: without it the first pass faults pages in one by one.
    let _ = map.advise(Advice::WillNeed);
    Ok(Bytes::from_owner(map))
}

//! Writes layers that are expensive to build to an unnamed temporary file, and hashes them meanwhile. Uploads
//! read from the file. Memory use is a few pieces, whatever the size of the layer.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read},
    os::unix::fs::{FileExt, OpenOptionsExt},
    process,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use futures::{StreamExt, TryStreamExt};
use lode_client::{Content, Progress};
use lode_model::{
    digest::{Algorithm, Digest, Hasher},
    import::{PlannedLayer, Source},
};

use crate::{
    error::{Failure, Outcome},
    files, ui,
};

/// Bytes that one core builds at a time.
const PIECE_BYTES: u64 = 1 << 20;

/// A layer in a temporary file.
pub(crate) struct Spooled {
    file: Arc<File>,
    size: u64,
}

/// Builds a layer on all cores. Returns its digest and its content.
pub(crate) async fn spool(
    layer: PlannedLayer,
    source: Arc<dyn Source>,
    meter: &Arc<ui::Meter>,
) -> Outcome<(Digest, Spooled)> {
    let size = layer.size;
    let file = Arc::new(unnamed_file().map_err(|error| spool_error(&error))?);
    let cores = files::cores();
    let offsets = (0..size.div_ceil(PIECE_BYTES)).map(|piece| piece * PIECE_BYTES);
    let hasher = futures::stream::iter(offsets)
        .map(|offset| {
            let (layer, source) = (layer.clone(), source.clone());
            files::blocking(move || {
                let length = PIECE_BYTES.min(layer.size - offset);
                let mut bytes = vec![0; length as usize];
                let made = layer.range_reader(&source, offset, length).read_exact(&mut bytes);
                made.map(|()| (offset, bytes)).map_err(|error| {
                    let name = layer.name.as_deref().unwrap_or("a layer");
                    Failure::with_source(format!("cannot build {name}"), &error)
                })
            })
        })
        // One more than the number of cores, so that hashing a piece does not leave a core idle.
        .buffered(cores + 1)
        .try_fold(Hasher::new(Algorithm::Sha256), |mut hasher, (offset, bytes)| {
            let (file, meter) = (file.clone(), meter.clone());
            files::blocking(move || {
                hasher.update(&bytes);
                file.write_all_at(&bytes, offset).map_err(|error| spool_error(&error))?;
                meter.transferred(bytes.len() as u64);
                Ok(hasher)
            })
        })
        .await?;
    Ok((hasher.finish(), Spooled { file, size }))
}

/// Like [`spool`], for a layer that can only be built sequentially. Call it on a thread that may block.
pub(crate) fn spool_in_order(
    layer: &PlannedLayer,
    source: &Arc<dyn Source>,
    meter: &ui::Meter,
) -> Outcome<(Digest, Spooled)> {
    let file = Arc::new(unnamed_file().map_err(|error| spool_error(&error))?);
    let mut reader = layer.reader(source);
    let mut hasher = Hasher::new(Algorithm::Sha256);
    let mut piece = vec![0; PIECE_BYTES.min(layer.size) as usize];
    let mut at = 0;
    while at < layer.size {
        let piece = &mut piece[..PIECE_BYTES.min(layer.size - at) as usize];
        reader.read_exact(piece).map_err(|error| {
            let name = layer.name.as_deref().unwrap_or("a layer");
            Failure::with_source(format!("cannot build {name}"), &error)
        })?;
        hasher.update(piece);
        file.write_all_at(piece, at).map_err(|error| spool_error(&error))?;
        at += piece.len() as u64;
        meter.transferred(piece.len() as u64);
    }
    Ok((hasher.finish(), Spooled { file, size: layer.size }))
}

fn spool_error(error: &io::Error) -> Failure {
    let folder = std::env::temp_dir();
    Failure::with_source(format!("cannot write to {}", folder.display()), error)
        .hint("set TMPDIR to a folder with enough space for the converted model")
}

/// Creates a file without a name; it is deleted when it is closed, even if the process crashes.
fn unnamed_file() -> io::Result<File> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let folder = std::env::temp_dir();
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!(".lode-{}-{number}", process::id()));
        match OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path) {
            Ok(file) => {
                fs::remove_file(&path)?;
                return Ok(file);
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
}

impl Content for Spooled {
    fn size(&self) -> u64 {
        self.size
    }

    fn reader(&self, offset: u64) -> io::Result<Box<dyn Read + Send + '_>> {
        Ok(Box::new(SpoolReader { file: &self.file, at: offset }))
    }
}

/// A reader with its own position: several readers may use one file.
struct SpoolReader<'a> {
    file: &'a File,
    at: u64,
}

impl Read for SpoolReader<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buf, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spool_has_no_name_and_is_read_from_anywhere() {
        let spooled = Spooled { file: Arc::new(unnamed_file().unwrap()), size: 6 };
        spooled.file.write_all_at(b"abcdef", 0).unwrap();
        let read = |offset| {
            let mut bytes = Vec::new();
            spooled.reader(offset).unwrap().read_to_end(&mut bytes).unwrap();
            bytes
        };
        assert_eq!((read(0), read(4), read(6)), (b"abcdef".to_vec(), b"ef".to_vec(), Vec::new()));
        let mine = format!(".lode-{}-", process::id());
        let left = fs::read_dir(std::env::temp_dir()).unwrap();
        assert!(!left.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with(&mine)));
    }
}

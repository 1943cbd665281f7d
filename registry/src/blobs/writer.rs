//! The append writer of the folder store: it appends to an upload's file and makes it durable on demand.
//! File work blocks, so it runs on blocking threads.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use lode_model::digest::{Algorithm, Digest, Hasher};

use super::files::{blocking, sync_folder};
use crate::Error;

const READ_BYTES: usize = 1024 * 1024;

/// An upload's file. Cheap to clone; all clones share it.
#[derive(Clone, Debug)]
pub(crate) struct AppendFile(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    file: File,
    path: Box<Path>,
    /// Set if the file's name may not be durable yet, because nothing was saved before.
    folder: Option<Box<Path>>,
    limit: WriteLimit,
}

/// The size at which writes fail with a full disk, in tests.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WriteLimit(pub(crate) Option<u64>);

impl AppendFile {
    /// Opens the file at `offset`, discarding later bytes that a crash or an interruption left. At offset 0
    /// it may be absent.
    pub(super) fn open(path: &Path, offset: u64, limit: WriteLimit) -> io::Result<AppendFile> {
        let options = OpenOptions::new().read(true).write(true).create(offset == 0).truncate(false).clone();
        let mut file = options.open(path)?;
        let metadata = file.metadata()?;
        if metadata.nlink() > 1 {
            // A commit interrupted by a crash linked the bytes as a blob too, and a blob must not change.
            copy_over(path)?;
            file = options.open(path)?;
        }
        let len = metadata.len();
        if len < offset {
            let reason = format!("the file has {len} bytes, but {offset} were saved");
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, reason));
        }
        if len > offset {
            file.set_len(offset)?;
        }
        let folder = path.parent().filter(|_| offset == 0).map(Box::from);
        Ok(AppendFile(Arc::new(Inner { file, path: path.into(), folder, limit })))
    }

    /// Writes the pieces in order, starting at `offset`.
    pub(crate) async fn write(&self, offset: u64, pieces: Arc<Vec<Bytes>>) -> Result<(), Error> {
        self.run("failed to write an upload", move |inner| inner.write(offset, &pieces)).await
    }

    /// Returns once all bytes written before are durable.
    pub(crate) async fn sync(&self) -> Result<(), Error> {
        self.run("failed to sync an upload", |inner| inner.file.sync_data()).await
    }

    /// Like `sync`, but also makes the file's name durable.
    pub(crate) async fn save(&self) -> Result<(), Error> {
        self.sync().await?;
        self.run("failed to save an upload", |inner| inner.folder.as_deref().map_or(Ok(()), sync_folder))
            .await
    }

    /// Discards the bytes after `offset`.
    pub(crate) async fn truncate(&self, offset: u64) -> Result<(), Error> {
        self.run("failed to truncate an upload", move |inner| inner.file.set_len(offset)).await
    }

    /// Reads the first `len` bytes again, for a digest that was not announced at the start.
    pub(crate) async fn digest(&self, len: u64, algorithm: Algorithm) -> Result<Digest, Error> {
        self.run("failed to read an upload", move |inner| inner.digest(len, algorithm)).await
    }

    async fn run<T: Send + 'static>(
        &self,
        what: &str,
        work: impl FnOnce(&Inner) -> io::Result<T> + Send + 'static,
    ) -> Result<T, Error> {
        let inner = self.0.clone();
        let done = blocking(what, move || work(&inner)).await;
        if let Err(Error::StorageFull) = &done {
            // Responses do not reveal the path.
            tracing::error!(path = %self.0.path.display(), "no space left on the disk; free some, uploads then resume");
        }
        done
    }
}

impl Inner {
    fn write(&self, mut offset: u64, pieces: &[Bytes]) -> io::Result<()> {
        for piece in pieces {
            if self.limit.0.is_some_and(|limit| offset + piece.len() as u64 > limit) {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.file.write_all_at(piece, offset)?;
            offset += piece.len() as u64;
        }
        Ok(())
    }

    fn digest(&self, len: u64, algorithm: Algorithm) -> io::Result<Digest> {
        digest(&self.file, len, algorithm)
    }
}

fn digest(file: &File, len: u64, algorithm: Algorithm) -> io::Result<Digest> {
    let mut hasher = Hasher::new(algorithm);
    let mut buffer = vec![0; READ_BYTES];
    let mut at = 0;
    while at < len {
        let wanted = usize::try_from(len - at).unwrap_or(READ_BYTES).min(READ_BYTES);
        let read = file.read_at(&mut buffer[..wanted], at)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        hasher.update(&buffer[..read]);
        at += read as u64;
    }
    Ok(hasher.finish())
}

/// The digest of a whole file.
pub(crate) fn digest_of(path: &Path, algorithm: Algorithm) -> io::Result<Digest> {
    let file = File::open(path)?;
    let len = file.metadata()?.len();
    digest(&file, len, algorithm)
}

/// Writes a small file durably under a temporary name, then links it at `path`.
pub(crate) fn write_whole(temporary: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let written = File::create(temporary)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
        .and_then(|()| link_over(temporary, path));
    if written.is_err() {
        // The remains are useless; report the first error.
        let _ = std::fs::remove_file(temporary);
    }
    written
}

/// Links a durable file at `to`, replacing an existing file.
///
/// It is a link rather than a move, because the upload keeps its bytes until the database has the blob.
pub(crate) fn link_over(from: &Path, to: &Path) -> io::Result<()> {
    use io::ErrorKind::{PermissionDenied, TooManyLinks, Unsupported};
    match std::fs::hard_link(from, to) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let aside = from.with_extension("link");
            let _ = std::fs::remove_file(&aside);
            std::fs::hard_link(from, &aside)?;
            std::fs::rename(&aside, to)?;
            // Renaming a hard link onto another link to the same file keeps both.
            let _ = std::fs::remove_file(&aside);
        }
        // The file system has no hard links, so move the upload's file.
        Err(error) if matches!(error.kind(), Unsupported | PermissionDenied | TooManyLinks) => {
            std::fs::rename(from, to)?;
        }
        Err(error) => return Err(error),
    }
    to.parent().map_or(Ok(()), sync_folder)
}

/// Replaces a hard link to shared bytes with a copy.
fn copy_over(path: &Path) -> io::Result<()> {
    let aside = path.with_extension("copy");
    std::fs::copy(path, &aside)?;
    File::open(&aside)?.sync_all()?;
    std::fs::rename(&aside, path)?;
    path.parent().map_or(Ok(()), sync_folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(text: &'static [u8]) -> Arc<Vec<Bytes>> {
        Arc::new(text.chunks(4).map(Bytes::from_static).collect())
    }

    #[tokio::test]
    async fn an_upload_resumes_at_the_saved_offset() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("upload");
        let file = AppendFile::open(&path, 0, WriteLimit::default()).expect("open");
        file.write(0, pieces(b"hello world")).await.expect("write");
        file.save().await.expect("save");

        // Bytes after the saved offset are discarded, those before it are kept.
        let file = AppendFile::open(&path, 6, WriteLimit::default()).expect("open");
        file.write(6, pieces(b"there")).await.expect("write");
        assert_eq!(std::fs::read(&path).expect("read"), b"hello there");
        let digest = file.digest(5, Algorithm::Sha512).await.expect("digest");
        assert_eq!(digest, Digest::of(Algorithm::Sha512, b"hello"));
        assert!(file.digest(99, Algorithm::Sha512).await.is_err());

        let short = AppendFile::open(&path, 12, WriteLimit::default())
            .expect_err("the file is shorter than the saved offset");
        assert_eq!(short.kind(), io::ErrorKind::UnexpectedEof);
        AppendFile::open(&folder.path().join("gone"), 1, WriteLimit::default()).expect_err("gone");
    }

    #[tokio::test]
    async fn a_link_replaces_and_leaves_the_source() {
        let folder = tempfile::tempdir().expect("folder");
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        std::fs::write(&from, b"new").expect("write");
        std::fs::write(&to, b"orphan").expect("write");
        for _ in 0..2 {
            link_over(&from, &to).expect("link");
            assert_eq!(std::fs::read(&to).expect("read"), b"new");
            assert_eq!(std::fs::read(&from).expect("read"), b"new");
        }
        assert_eq!(std::fs::read_dir(folder.path()).expect("list").count(), 2);

        // An upload that continues after that does not change the blob's bytes.
        let file = AppendFile::open(&from, 1, WriteLimit::default()).expect("open");
        file.write(1, pieces(b"ext")).await.expect("write");
        assert_eq!(std::fs::read(&to).expect("read"), b"new");
        assert_eq!(std::fs::read(&from).expect("read"), b"next");
    }
}

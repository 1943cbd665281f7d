//! Blob store in a folder, for one server. Our own append writer makes uploads durable and resumable. The
//! layout is an OCI image layout, so that other tools, and a worker on this machine, can read it.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};
use lode_model::digest::Digest;
use object_store::local::LocalFileSystem;
use object_store::{GetOptions, GetRange, GetResultPayload, ObjectStore};
use tokio::task::{JoinHandle, spawn_blocking};
use uuid::Uuid;

use super::files::{blocking, create_private, lock_folder, sync_folder};
#[cfg(test)]
use super::testing_folder as testing;
use super::writer::{self, AppendFile, WriteLimit};
use super::{BlobStream, KeyGuard, ListedObject, key};
use crate::{Config, Error, OpenError};

/// Read-ahead of a download: large enough to be fast, small enough for hundreds at once.
const READ_BYTES: usize = 256 * 1024;

#[derive(Clone)]
pub(crate) struct Folder(Arc<Inner>);

struct Inner {
    root: PathBuf,
    store: LocalFileSystem,
    write_limit: WriteLimit,
    /// Held while this process may write. The kernel releases it when the process ends.
    _lock: Option<File>,
}

impl Folder {
    /// Opens the folder and locks it against other servers. (The data folder is already locked.)
    pub(super) fn open(root: PathBuf, config: &Config, write_limit: WriteLimit) -> Result<Folder, OpenError> {
        let opened = || -> io::Result<PathBuf> {
            create_private(&root)?;
            for algorithm in key::ALGORITHMS {
                std::fs::create_dir_all(root.join(key::BLOBS).join(algorithm.as_str()))?;
            }
            std::fs::create_dir_all(root.join(key::UPLOADS))?;
            for folder in [root.join(key::BLOBS), root.clone()] {
                sync_folder(&folder)?;
            }
            root.canonicalize()
        };
        let root = opened().map_err(|e| Error::io(format!("failed to open {}", root.display()), e))?;
        let apart = config.data.canonicalize().ok().as_ref() != Some(&root);
        let lock = apart.then(|| lock_folder(&root, config.read_only)).transpose()?;
        let store = LocalFileSystem::new_with_prefix(&root)
            .map_err(|e| Error::io("failed to open the storage folder", e.into()))?;
        Ok(Folder(Arc::new(Inner { root, store, write_limit, _lock: lock })))
    }

    fn path(&self, key: &str) -> PathBuf {
        self.0.root.join(key)
    }

    /// The bytes at a key, from `range.start` to `range.end`.
    pub(crate) async fn read(&self, key: &str, range: Range<u64>) -> Result<BlobStream, Error> {
        if range.is_empty() {
            // object_store rejects empty ranges, and an empty blob has no other range.
            return Ok(stream::empty().boxed());
        }
        let options = GetOptions { range: Some(GetRange::Bounded(range.clone())), ..GetOptions::default() };
        let result = self
            .0
            .store
            .get_opts(&object_store::path::Path::from(key), options)
            .await
            .map_err(|e| Error::io(format!("failed to read {key}"), e.into()))?;
        if result.range != range {
            let short =
                io::Error::new(io::ErrorKind::UnexpectedEof, format!("only {:?} is stored", result.range));
            return Err(Error::io(format!("failed to read {key}"), short));
        }
        Ok(match result.payload {
            GetResultPayload::File(file, _) => read_ahead(file, range),
            GetResultPayload::Stream(bytes) => bytes.map_err(io::Error::from).boxed(),
        })
    }

    /// Opens the file at a key, which must be at least as long as its blob.
    pub(crate) async fn file(&self, key: &str, size_bytes: u64) -> Result<File, Error> {
        let path = self.path(key);
        blocking(key, move || {
            let file = File::open(path)?;
            match file.metadata()?.len() < size_bytes {
                true => Err(io::ErrorKind::UnexpectedEof.into()),
                false => Ok(file),
            }
        })
        .await
    }

    /// The size of the file at a key, if it exists.
    pub(crate) async fn size(&self, key: &str) -> Result<Option<u64>, Error> {
        let path = self.path(key);
        blocking(key, move || match std::fs::metadata(path) {
            Ok(metadata) => Ok(Some(metadata.len())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        })
        .await
    }

    /// Opens an upload's file at the offset of its row.
    pub(crate) async fn append(&self, key: &str, offset: u64) -> Result<AppendFile, Error> {
        let (path, limit) = (self.path(key), self.0.write_limit);
        blocking(key, move || AppendFile::open(&path, offset, limit)).await
    }

    /// Links an upload's durable bytes as a blob; the upload keeps them too, until it is removed. `guard` is
    /// the digest's.
    pub(crate) async fn place(
        &self,
        upload_key: &str,
        digest: &Digest,
        guard: KeyGuard,
    ) -> Result<String, Error> {
        let key = key::blob(digest);
        let (from, to) = (self.path(upload_key), self.path(&key));
        blocking(&key, move || {
            let _guard = guard;
            #[cfg(test)]
            testing::pass(&to);
            writer::link_over(&from, &to)
        })
        .await?;
        Ok(key)
    }

    /// Writes a small blob whole. Returns its key, and the temporary name that its bytes keep until the
    /// caller passes it to [`discard`](Self::discard). `guard` is the digest's.
    pub(crate) async fn put(
        &self,
        digest: &Digest,
        bytes: Bytes,
        guard: KeyGuard,
    ) -> Result<(String, String), Error> {
        let (key, temporary) = (key::blob(digest), key::temporary(Uuid::now_v7()));
        let (from, to) = (self.path(&temporary), self.path(&key));
        let limit = self.0.write_limit;
        blocking(&key, move || {
            let _guard = guard;
            #[cfg(test)]
            testing::pass(&to);
            match limit.0 {
                Some(limit) if bytes.len() as u64 > limit => Err(io::ErrorKind::StorageFull.into()),
                _ => writer::write_whole(&from, &to, &bytes),
            }
        })
        .await?;
        Ok((key, temporary))
    }

    /// The blob that an upload's bytes are already linked as, if a crash interrupted the commit.
    pub(crate) async fn placed(&self, upload_key: &str) -> Result<Option<Digest>, Error> {
        let (path, this) = (self.path(upload_key), self.clone());
        blocking(upload_key, move || {
            let metadata = match std::fs::metadata(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                metadata => metadata?,
            };
            if metadata.nlink() < 2 {
                return Ok(None);
            }
            for algorithm in key::ALGORITHMS {
                let digest = writer::digest_of(&path, algorithm)?;
                let blob = std::fs::metadata(this.path(&key::blob(&digest)));
                if blob.is_ok_and(|blob| (blob.dev(), blob.ino()) == (metadata.dev(), metadata.ino())) {
                    return Ok(Some(digest));
                }
            }
            Ok(None)
        })
        .await
    }

    /// Removes the files at these keys, if they exist, and returns once that is durable. `guards` are those
    /// of the keys' digests.
    pub(crate) async fn remove(&self, keys: Vec<String>, guards: Vec<KeyGuard>) -> Result<(), Error> {
        let paths: Vec<PathBuf> = keys.iter().map(|key| self.path(key)).collect();
        blocking("failed to remove files", move || {
            let _guards = guards;
            let mut folders: Vec<&Path> = Vec::new();
            for path in &paths {
                #[cfg(test)]
                testing::pass(path);
                match std::fs::remove_file(path) {
                    Ok(()) => folders.extend(path.parent()),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => return Err(error),
                }
            }
            folders.sort();
            folders.dedup();
            folders.into_iter().try_for_each(sync_folder)
        })
        .await
    }

    /// Deletes an upload's bytes. If that fails, the purge of unused uploads deletes them.
    pub(crate) async fn discard(&self, upload_key: &str) {
        let path = self.path(upload_key);
        match blocking(upload_key, move || std::fs::remove_file(path)).await {
            Err(Error::Storage { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                tracing::warn!(key = upload_key, %error, "failed to delete upload file; will retry")
            }
            Ok(()) => {}
        }
    }

    /// Every key under a prefix with its size and its modification time.
    pub(crate) fn list(&self, prefix: &str) -> BoxStream<'static, Result<ListedObject, Error>> {
        let prefix = object_store::path::Path::from(prefix);
        self.0
            .store
            .list(Some(&prefix))
            .map_ok(|meta| ListedObject {
                key: meta.location.to_string(),
                size_bytes: meta.size,
                modified_ms: meta.last_modified.timestamp_millis(),
            })
            .map_err(|e| Error::io("failed to list the storage", e.into()))
            .boxed()
    }

    /// Checks that the storage is accessible.
    pub(crate) async fn ping(&self) -> Result<(), Error> {
        let path = self.path(key::UPLOADS);
        blocking("failed to check the storage folder", move || std::fs::metadata(path).map(drop)).await
    }
}

/// Warns about a data folder that other users of this machine can open.
pub(super) fn warn_if_shared(folder: &Path) {
    let Ok(metadata) = std::fs::metadata(folder) else { return };
    if metadata.mode() & 0o077 != 0 {
        let mode = format!("{:o}", metadata.mode() & 0o7777);
        tracing::warn!(path = %folder.display(), mode, "data folder is open to other users; restrict it with chmod 700");
    }
}

/// Streams a part of a file, reading the next piece while the current one is sent.
fn read_ahead(file: File, range: Range<u64>) -> BlobStream {
    type Piece = io::Result<(File, Bytes)>;
    fn next(mut file: File, at: Range<u64>) -> JoinHandle<Piece> {
        spawn_blocking(move || {
            let wanted = (at.end - at.start).min(READ_BYTES as u64);
            let mut buffer =
                Vec::with_capacity(READ_BYTES.min(usize::try_from(wanted).unwrap_or(READ_BYTES)));
            file.seek(SeekFrom::Start(at.start))?;
            file.by_ref().take(wanted).read_to_end(&mut buffer)?;
            match buffer.len() as u64 == wanted {
                true => Ok((file, Bytes::from(buffer))),
                false => Err(io::ErrorKind::UnexpectedEof.into()),
            }
        })
    }
    let first = next(file, range.clone());
    stream::try_unfold(Some((first, range)), |state| async move {
        let Some((reading, at)) = state else { return Ok(None) };
        let (file, bytes) = reading.await.map_err(io::Error::other)??;
        let rest = at.start + bytes.len() as u64..at.end;
        let state = if rest.is_empty() { None } else { Some((next(file, rest.clone()), rest)) };
        Ok(Some((bytes, state)))
    })
    .boxed()
}

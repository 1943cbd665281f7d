//! The bytes of blobs and uploads, at keys that only `key` formats: in a folder, or in object storage.
//! `Blobs` dispatches between the two; `app` and `jobs` call it, and only this module uses object_store.
//!
//! Callers see one difference. A folder has one server, which turns an upload into a blob with a hard link.
//! Object storage has any number of servers and no links: a blob keeps its upload's key. The upload's row
//! leads to the leftovers, so it is deleted last.

mod folder;
pub(crate) mod key;
mod lock;
mod remote;
mod take;
#[cfg(test)]
pub(crate) mod testing_folder;
mod writer;

use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use lode_model::digest::{Algorithm, Digest};
use url::Url;
use uuid::Uuid;

use crate::metrics::measure_storage;
use crate::store::{UploadProgress, UploadRow};
use crate::{Config, Error};

use folder::Folder;
pub(crate) use lock::{KeyGuard, KeyLock, Locks};
#[cfg(test)]
pub(crate) use remote::testing;
use remote::{PartWriter, Remote};
pub use take::BackupMode;
pub(crate) use take::{blob_root, lock_target, take};
use writer::AppendFile;
pub(crate) use writer::WriteLimit;

/// A blob's bytes as a stream.
pub type BlobStream = BoxStream<'static, std::io::Result<Bytes>>;

#[derive(Clone)]
pub(crate) struct Blobs {
    backend: Backend,
    /// Locks the data folder against other servers, unless it is unused.
    _lock: Option<Arc<File>>,
}

#[derive(Clone)]
enum Backend {
    Folder(Folder),
    Remote(Remote),
}

impl Blobs {
    /// Opens the configured storage (default: the data folder), and locks the data folder against other
    /// servers.
    pub(crate) fn open(config: &Config, write_limit: WriteLimit) -> Result<Blobs, Error> {
        let lock = || folder::lock_folder(&config.data, config.read_only).map(Arc::new);
        let lock = is_data_used(config).then(lock).transpose()?;
        if lock.is_some() {
            folder::warn_if_shared(&config.data);
        }
        let folder = |root: &Path| Folder::open(root.to_owned(), config, write_limit).map(Backend::Folder);
        let room = match &config.storage {
            None => folder(&config.data)?,
            Some(url) if url.scheme() == "file" => folder(&folder::folder_of(url)?)?,
            Some(url) => Backend::Remote(Remote::open(url, config)?),
        };
        Ok(Blobs { backend: room, _lock: lock })
    }

    /// Whether it is object storage, which any number of servers share.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self.backend, Backend::Remote(_))
    }

    /// Fails if the storage is misconfigured, for example if the bucket does not exist. One that is only
    /// unreachable is accepted.
    pub(crate) async fn check(&self) -> Result<(), Error> {
        match &self.backend {
            Backend::Folder(_) => Ok(()),
            Backend::Remote(remote) => remote.check().await,
        }
    }

    /// Checks that the storage is accessible.
    pub(crate) async fn ping(&self) -> Result<(), Error> {
        match &self.backend {
            Backend::Folder(folder) => folder.ping().await,
            Backend::Remote(remote) => remote.ping().await,
        }
    }

    /// The bytes at a key, from `range.start` to `range.end`.
    pub(crate) async fn read(&self, key: &str, range: Range<u64>) -> Result<BlobStream, Error> {
        if range.is_empty() {
            // object_store rejects empty ranges, and an empty blob has no other range.
            return Ok(stream::empty().boxed());
        }
        match &self.backend {
            Backend::Folder(folder) => measure_storage("read", folder.read(key, range)).await,
            Backend::Remote(remote) => measure_storage("read", remote.read(key, range)).await,
        }
    }

    /// A presigned URL for these bytes, if the storage supports one.
    pub(crate) async fn signed_url(&self, key: &str) -> Result<Option<Url>, Error> {
        match &self.backend {
            Backend::Folder(_) => Ok(None),
            Backend::Remote(remote) => remote.signed_url(key).await,
        }
    }

    /// The file at a key, if the storage is a folder.
    pub(crate) async fn file(&self, key: &str, size_bytes: u64) -> Result<Option<File>, Error> {
        match &self.backend {
            Backend::Folder(folder) => folder.file(key, size_bytes).await.map(Some),
            Backend::Remote(_) => Ok(None),
        }
    }

    /// The size of the object at a key, if it exists.
    pub(crate) async fn size(&self, key: &str) -> Result<Option<u64>, Error> {
        match &self.backend {
            Backend::Folder(folder) => measure_storage("size", folder.size(key)).await,
            Backend::Remote(remote) => measure_storage("size", remote.size(key)).await,
        }
    }

    /// Every key under a prefix with its size and its modification time.
    pub(crate) fn list(&self, prefix: &str) -> BoxStream<'static, Result<ListedObject, Error>> {
        match &self.backend {
            Backend::Folder(folder) => folder.list(prefix),
            Backend::Remote(remote) => remote.list(prefix),
        }
    }

    /// Removes the objects at these keys, if they exist, and returns once that is durable. `guards` are those
    /// of the digests whose bytes these are.
    pub(crate) async fn remove(&self, keys: Vec<String>, guards: Vec<KeyGuard>) -> Result<(), Error> {
        match &self.backend {
            Backend::Folder(folder) => measure_storage("remove", folder.remove(keys, guards)).await,
            Backend::Remote(remote) => measure_storage("remove", remote.remove(keys)).await,
        }
    }

    /// The key of an upload's bytes, for its row.
    pub(crate) fn upload_key(&self, id: Uuid) -> String {
        match &self.backend {
            Backend::Folder(_) => key::upload(id),
            Backend::Remote(_) => key::objects(id),
        }
    }

    /// Opens an upload's bytes at the offset of its row.
    pub(crate) async fn append(&self, row: &UploadRow) -> Result<UploadWriter, Error> {
        Ok(match &self.backend {
            Backend::Folder(folder) => UploadWriter::File(folder.append(&row.store_key, row.offset).await?),
            Backend::Remote(remote) => {
                UploadWriter::Parts(Box::new(PartWriter::open(remote.clone(), row).await?))
            }
        })
    }

    /// Turns an upload's durable bytes into a blob, and returns its key. In a folder the upload keeps them
    /// too, until it is removed.
    pub(crate) async fn place(
        &self,
        upload: &UploadWriter,
        row_key: &str,
        digest: &Digest,
        guard: KeyGuard,
    ) -> Result<String, Error> {
        match (&self.backend, upload) {
            (Backend::Folder(folder), _) => {
                measure_storage("place", folder.place(row_key, digest, guard)).await
            }
            (Backend::Remote(_), UploadWriter::Parts(parts)) => {
                parts.key().map(str::to_owned).ok_or(Error::Interrupted)
            }
            (Backend::Remote(_), UploadWriter::File(_)) => Err(Error::Interrupted),
        }
    }

    /// Writes a small blob whole and durably, for the upload `id`.
    pub(crate) async fn put(
        &self,
        id: Uuid,
        digest: &Digest,
        bytes: Bytes,
        guard: KeyGuard,
    ) -> Result<PlacedBlob, Error> {
        Ok(match &self.backend {
            Backend::Folder(folder) => {
                let (key, temporary) = measure_storage("put", folder.put(digest, bytes, guard)).await?;
                PlacedBlob { key, temporary: Some(temporary) }
            }
            Backend::Remote(remote) => {
                PlacedBlob { key: remote.put_whole(id, bytes).await?, temporary: None }
            }
        })
    }

    /// The blob that an upload's bytes are already linked as, if a crash interrupted the commit.
    pub(crate) async fn find_linked_blob(&self, upload_key: &str) -> Result<Option<Digest>, Error> {
        match &self.backend {
            Backend::Folder(folder) => folder.placed(upload_key).await,
            Backend::Remote(_) => Ok(None),
        }
    }

    /// Deletes an unreferenced object. If that fails, the purge deletes it.
    pub(crate) async fn discard(&self, key: &str) {
        match &self.backend {
            Backend::Folder(folder) => folder.discard(key).await,
            Backend::Remote(remote) => {
                if let Err(error) = remote.remove(vec![key.to_owned()]).await {
                    tracing::warn!(
                        key,
                        error = crate::error::chain(&error),
                        "failed to delete object; will retry"
                    );
                }
            }
        }
    }

    /// Removes all objects of an upload from object storage, except the one that became a blob.
    pub(crate) async fn clear(&self, row: &UploadRow, keep: Option<&str>) -> Result<(), Error> {
        match &self.backend {
            Backend::Folder(_) => Ok(()),
            Backend::Remote(remote) => remote.clear(row, keep).await,
        }
    }
}

/// Whether the data folder is used: for blobs, the database, or the cache of this process's worker.
fn is_data_used(config: &Config) -> bool {
    let elsewhere = |url: &Option<Url>, here: &str| url.as_ref().is_some_and(|url| url.scheme() != here);
    !elsewhere(&config.storage, "file") || !elsewhere(&config.database, "sqlite") || config.wait_for_worker
}

/// A small blob's key and, in a folder, the temporary name of its bytes.
pub(crate) struct PlacedBlob {
    pub(crate) key: String,
    pub(crate) temporary: Option<String>,
}

#[derive(Clone, Debug)]
pub(crate) struct ListedObject {
    pub(crate) key: String,
    pub(crate) size_bytes: u64,
    pub(crate) modified_ms: i64,
}

/// An upload's bytes, open for appending.
pub(crate) enum UploadWriter {
    File(AppendFile),
    Parts(Box<PartWriter>),
}

/// The result of a checkpoint: the notes for the upload's row, the new object, and the object that is
/// obsolete once the row has the notes.
#[derive(Default)]
pub(crate) struct Checkpoint {
    pub(crate) progress: UploadProgress,
    pub(crate) fresh: Option<String>,
    pub(crate) obsolete: Option<String>,
}

impl UploadWriter {
    /// How many bytes may be written in one call after `len` more bytes.
    pub(crate) fn writable_after(&self, len: u64) -> u64 {
        match self {
            UploadWriter::File(_) => u64::MAX,
            UploadWriter::Parts(parts) => parts.room_after(len),
        }
    }

    /// Writes the pieces in order, starting at `offset`.
    pub(crate) async fn write(&mut self, offset: u64, pieces: Arc<Vec<Bytes>>) -> Result<(), Error> {
        match self {
            UploadWriter::File(file) => measure_storage("write", file.write(offset, pieces)).await,
            UploadWriter::Parts(parts) => parts.write(&pieces),
        }
    }

    /// The part writer, if a complete part is ready to send. Object storage only.
    pub(crate) fn whole_part(&mut self) -> Option<&mut PartWriter> {
        match self {
            UploadWriter::Parts(parts) if parts.is_whole() => Some(parts),
            _ => None,
        }
    }

    /// Whether the upload accepts no more bytes, because a commit has begun and may be complete in the
    /// storage.
    pub(crate) fn is_sealed(&self) -> bool {
        matches!(self, UploadWriter::Parts(parts) if parts.is_sealed())
    }

    /// Whether a checkpoint has no extra cost here.
    pub(crate) fn is_checkpoint_free(&self) -> bool {
        match self {
            UploadWriter::File(_) => true,
            UploadWriter::Parts(parts) => parts.is_at_boundary(),
        }
    }

    /// Makes everything written so far durable, while more is written.
    pub(crate) fn checkpoint(
        &mut self,
        generation: i64,
    ) -> impl Future<Output = Result<Checkpoint, Error>> + Send + 'static {
        enum Durable<P> {
            File(AppendFile),
            Parts(P),
        }
        let durable = match self {
            UploadWriter::File(file) => Durable::File(file.clone()),
            UploadWriter::Parts(parts) => Durable::Parts(parts.checkpoint(generation)),
        };
        async move {
            match durable {
                Durable::File(file) => {
                    measure_storage("sync", file.save()).await.map(|()| Checkpoint::default())
                }
                Durable::Parts(parts) => parts.await,
            }
        }
    }

    /// Discards the bytes after `offset`.
    pub(crate) async fn truncate(&self, offset: u64) -> Result<(), Error> {
        match self {
            UploadWriter::File(file) => file.truncate(offset).await,
            // Bytes after the last saved part are not stored yet.
            UploadWriter::Parts(_) => Ok(()),
        }
    }

    /// Reads the first `len` bytes again, for a digest that was not announced at the start.
    pub(crate) async fn digest(&self, len: u64, algorithm: Algorithm) -> Result<Digest, Error> {
        match self {
            UploadWriter::File(file) => file.digest(len, algorithm).await,
            UploadWriter::Parts(parts) => parts.digest(len, algorithm).await,
        }
    }
}

//! The bytes of blobs and uploads, under keys that only `key` formats: in a folder, or in object storage. `Blobs` is the switch
//! between the two; `app` and `jobs` call it, and only this room knows object_store.
//!
//! The two differ in one thing that callers see. A folder has one server, which makes an upload's bytes a blob by giving them
//! a second name. Object storage has any number of servers and no names to give: a blob stays under its upload's own key, and
//! what must be cleaned away is found through the upload's row, which goes last.

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

use crate::metrics::storage;
use crate::store::{UploadProgress, UploadRow};
use crate::{Config, Error};

use folder::Folder;
pub(crate) use lock::{Guard, Held, Locks};
#[cfg(test)]
pub(crate) use remote::testing;
use remote::{PartWriter, Remote};
pub use take::Take;
pub(crate) use take::{lock_target, root_of, take};
use writer::AppendFile;
pub(crate) use writer::WriteLimit;

/// A blob's bytes on their way out.
pub type BlobStream = BoxStream<'static, std::io::Result<Bytes>>;

#[derive(Clone)]
pub(crate) struct Blobs {
    room: Room,
    /// Keeps other servers out of the data folder, unless nothing lies there.
    _lock: Option<Arc<File>>,
}

#[derive(Clone)]
enum Room {
    Folder(Folder),
    Remote(Remote),
}

impl Blobs {
    /// Opens the storage that the settings name (default: the data folder), and keeps other servers out of the data folder.
    pub(crate) fn open(config: &Config, write_limit: WriteLimit) -> Result<Blobs, Error> {
        let lock = || folder::lock_folder(&config.data, config.read_only).map(Arc::new);
        let lock = is_data_used(config).then(lock).transpose()?;
        if lock.is_some() {
            folder::warn_if_shared(&config.data);
        }
        let folder = |root: &Path| Folder::open(root.to_owned(), config, write_limit).map(Room::Folder);
        let room = match &config.storage {
            None => folder(&config.data)?,
            Some(url) if url.scheme() == "file" => folder(&folder::folder_of(url)?)?,
            Some(url) => Room::Remote(Remote::open(url, config)?),
        };
        Ok(Blobs { room, _lock: lock })
    }

    /// In object storage, which any number of servers share.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self.room, Room::Remote(_))
    }

    /// Refuses a storage that will never do, such as a bucket that is not there. One that is away may come.
    pub(crate) async fn check(&self) -> Result<(), Error> {
        match &self.room {
            Room::Folder(_) => Ok(()),
            Room::Remote(remote) => remote.check().await,
        }
    }

    /// Does the storage answer?
    pub(crate) async fn ping(&self) -> Result<(), Error> {
        match &self.room {
            Room::Folder(folder) => folder.ping().await,
            Room::Remote(remote) => remote.ping().await,
        }
    }

    /// The bytes under a key, from `range.start` to `range.end`.
    pub(crate) async fn read(&self, key: &str, range: Range<u64>) -> Result<BlobStream, Error> {
        if range.is_empty() {
            // object_store refuses empty ranges, and an empty blob has no other.
            return Ok(stream::empty().boxed());
        }
        match &self.room {
            Room::Folder(folder) => storage("read", folder.read(key, range)).await,
            Room::Remote(remote) => storage("read", remote.read(key, range)).await,
        }
    }

    /// An address that opens these bytes by itself for a while, where the storage has such.
    pub(crate) async fn signed_url(&self, key: &str) -> Result<Option<Url>, Error> {
        match &self.room {
            Room::Folder(_) => Ok(None),
            Room::Remote(remote) => remote.signed_url(key).await,
        }
    }

    /// The file under a key, where the storage has files.
    pub(crate) async fn file(&self, key: &str, size_bytes: u64) -> Result<Option<File>, Error> {
        match &self.room {
            Room::Folder(folder) => folder.file(key, size_bytes).await.map(Some),
            Room::Remote(_) => Ok(None),
        }
    }

    /// How many bytes lie under a key, if any do.
    pub(crate) async fn size(&self, key: &str) -> Result<Option<u64>, Error> {
        match &self.room {
            Room::Folder(folder) => storage("size", folder.size(key)).await,
            Room::Remote(remote) => storage("size", remote.size(key)).await,
        }
    }

    /// Every key under a prefix with its size and when it was written.
    pub(crate) fn list(&self, prefix: &str) -> BoxStream<'static, Result<Listed, Error>> {
        match &self.room {
            Room::Folder(folder) => folder.list(prefix),
            Room::Remote(remote) => remote.list(prefix),
        }
    }

    /// Removes the bytes under these keys, where they exist, and returns once that is durable. `guards` are those of the digests
    /// whose bytes these are.
    pub(crate) async fn remove(&self, keys: Vec<String>, guards: Vec<Guard>) -> Result<(), Error> {
        match &self.room {
            Room::Folder(folder) => storage("remove", folder.remove(keys, guards)).await,
            Room::Remote(remote) => storage("remove", remote.remove(keys)).await,
        }
    }

    /// What an upload's row says of where its bytes lie.
    pub(crate) fn upload_key(&self, id: Uuid) -> String {
        match &self.room {
            Room::Folder(_) => key::upload(id),
            Room::Remote(_) => key::objects(id),
        }
    }

    /// Opens an upload's bytes where its row says that they end.
    pub(crate) async fn append(&self, row: &UploadRow) -> Result<Append, Error> {
        Ok(match &self.room {
            Room::Folder(folder) => Append::File(folder.append(&row.store_key, row.offset).await?),
            Room::Remote(remote) => Append::Parts(Box::new(PartWriter::open(remote.clone(), row).await?)),
        })
    }

    /// Makes an upload's durable bytes a blob, and says its key. In a folder the upload keeps them too, until it is removed.
    pub(crate) async fn place(
        &self,
        upload: &Append,
        row_key: &str,
        digest: &Digest,
        guard: Guard,
    ) -> Result<String, Error> {
        match (&self.room, upload) {
            (Room::Folder(folder), _) => storage("place", folder.place(row_key, digest, guard)).await,
            (Room::Remote(_), Append::Parts(parts)) => {
                parts.key().map(str::to_owned).ok_or(Error::Interrupted)
            }
            (Room::Remote(_), Append::File(_)) => Err(Error::Interrupted),
        }
    }

    /// Writes a small blob whole, and durable, for the upload `id`.
    pub(crate) async fn put(
        &self,
        id: Uuid,
        digest: &Digest,
        bytes: Bytes,
        guard: Guard,
    ) -> Result<Placed, Error> {
        Ok(match &self.room {
            Room::Folder(folder) => {
                let (key, temporary) = storage("put", folder.put(digest, bytes, guard)).await?;
                Placed { key, temporary: Some(temporary) }
            }
            Room::Remote(remote) => Placed { key: remote.put_whole(id, bytes).await?, temporary: None },
        })
    }

    /// Which blob's name an upload's bytes have been given, if a crash kept its commit from dropping theirs.
    pub(crate) async fn placed(&self, upload_key: &str) -> Result<Option<Digest>, Error> {
        match &self.room {
            Room::Folder(folder) => folder.placed(upload_key).await,
            Room::Remote(_) => Ok(None),
        }
    }

    /// Drops what lies under a key that nothing names any more. What a crash or an error leaves of it the purge finds.
    pub(crate) async fn discard(&self, key: &str) {
        match &self.room {
            Room::Folder(folder) => folder.discard(key).await,
            Room::Remote(remote) => {
                if let Err(error) = remote.remove(vec![key.to_owned()]).await {
                    tracing::warn!(key, error = crate::error::chain(&error), "bytes stay for the purge");
                }
            }
        }
    }

    /// Removes everything that an upload has in object storage but for the object that became a blob.
    pub(crate) async fn clear(&self, row: &UploadRow, keep: Option<&str>) -> Result<(), Error> {
        match &self.room {
            Room::Folder(_) => Ok(()),
            Room::Remote(remote) => remote.clear(row, keep).await,
        }
    }
}

/// Does anything lie in the data folder: bytes, index, or the cache of this process's worker?
fn is_data_used(config: &Config) -> bool {
    let elsewhere = |url: &Option<Url>, here: &str| url.as_ref().is_some_and(|url| url.scheme() != here);
    !elsewhere(&config.storage, "file") || !elsewhere(&config.database, "sqlite") || config.wait_for_worker
}

/// A small blob's key and, in a folder, the first name of its bytes.
pub(crate) struct Placed {
    pub(crate) key: String,
    pub(crate) temporary: Option<String>,
}

#[derive(Clone, Debug)]
pub(crate) struct Listed {
    pub(crate) key: String,
    pub(crate) size_bytes: u64,
    pub(crate) modified_ms: i64,
}

/// An upload's bytes, open at their end.
pub(crate) enum Append {
    File(AppendFile),
    Parts(Box<PartWriter>),
}

/// What a checkpoint made durable: the notes for the row, the object that it made, and the one that is not needed once the row
/// has the notes.
#[derive(Default)]
pub(crate) struct Checkpoint {
    pub(crate) progress: UploadProgress,
    pub(crate) fresh: Option<String>,
    pub(crate) obsolete: Option<String>,
}

impl Append {
    /// How much may be written in one go after `len` more bytes.
    pub(crate) fn room_after(&self, len: u64) -> u64 {
        match self {
            Append::File(_) => u64::MAX,
            Append::Parts(parts) => parts.room_after(len),
        }
    }

    /// Writes the pieces one after the other from `offset` on.
    pub(crate) async fn write(&mut self, offset: u64, pieces: Arc<Vec<Bytes>>) -> Result<(), Error> {
        match self {
            Append::File(file) => storage("write", file.write(offset, pieces)).await,
            Append::Parts(parts) => parts.write(&pieces),
        }
    }

    /// Object storage only, with a part to send.
    pub(crate) fn whole_part(&mut self) -> Option<&mut PartWriter> {
        match self {
            Append::Parts(parts) if parts.is_whole() => Some(parts),
            _ => None,
        }
    }

    /// No byte can follow: somebody set out to commit what is there, and the storage may have done its part.
    pub(crate) fn is_sealed(&self) -> bool {
        matches!(self, Append::Parts(parts) if parts.is_sealed())
    }

    /// Can a checkpoint be made here without extra cost?
    pub(crate) fn is_at_rest(&self) -> bool {
        match self {
            Append::File(_) => true,
            Append::Parts(parts) => parts.is_at_boundary(),
        }
    }

    /// Makes everything that was written so far durable, while more is written.
    pub(crate) fn checkpoint(
        &mut self,
        generation: i64,
    ) -> impl Future<Output = Result<Checkpoint, Error>> + Send + 'static {
        enum Durable<P> {
            File(AppendFile),
            Parts(P),
        }
        let durable = match self {
            Append::File(file) => Durable::File(file.clone()),
            Append::Parts(parts) => Durable::Parts(parts.checkpoint(generation)),
        };
        async move {
            match durable {
                Durable::File(file) => storage("sync", file.save()).await.map(|()| Checkpoint::default()),
                Durable::Parts(parts) => parts.await,
            }
        }
    }

    /// Gives back what lies behind `offset`.
    pub(crate) async fn truncate(&self, offset: u64) -> Result<(), Error> {
        match self {
            Append::File(file) => file.truncate(offset).await,
            // What is behind the last saved part never became part of anything.
            Append::Parts(_) => Ok(()),
        }
    }

    /// Reads the first `len` bytes again, for a digest that nobody announced.
    pub(crate) async fn digest(&self, len: u64, algorithm: Algorithm) -> Result<Digest, Error> {
        match self {
            Append::File(file) => file.digest(len, algorithm).await,
            Append::Parts(parts) => parts.digest(len, algorithm).await,
        }
    }
}

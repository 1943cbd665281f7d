//! `Blobs`: one interface to the bytes, whether they are in a folder or in object storage.

use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use lode_model::digest::Digest;
use url::Url;
use uuid::Uuid;

use super::files::{folder_of, lock_folder};
use super::folder::{self, Folder};
use super::key;
use super::lock::KeyGuard;
use super::object::{BlobStream, ListedObject, PlacedBlob};
use super::remote::Remote;
use super::remote::parts::PartWriter;
use super::upload::StoredUpload;
use super::upload_writer::UploadWriter;
use super::writer::WriteLimit;
use crate::metrics::measure_storage;
use crate::{Config, Error, OpenError};

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
    pub(crate) fn open(config: &Config, write_limit: WriteLimit) -> Result<Blobs, OpenError> {
        let lock = || lock_folder(&config.data, config.read_only).map(Arc::new);
        let lock = is_data_used(config).then(lock).transpose()?;
        if lock.is_some() {
            folder::warn_if_shared(&config.data);
        }
        let folder = |root: &Path| Folder::open(root.to_owned(), config, write_limit).map(Backend::Folder);
        let backend = match &config.storage {
            None => folder(&config.data)?,
            Some(url) if url.scheme() == "file" => folder(&folder_of(url)?)?,
            Some(url) => Backend::Remote(Remote::open(url, config)?),
        };
        Ok(Blobs { backend, _lock: lock })
    }

    /// Whether it is object storage, which any number of servers share.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self.backend, Backend::Remote(_))
    }

    /// Fails if the storage is misconfigured, for example if the bucket does not exist. One that is only
    /// unreachable is accepted.
    pub(crate) async fn check(&self) -> Result<(), OpenError> {
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
    pub(crate) async fn signed_url(&self, key: &str, valid: Duration) -> Result<Option<Url>, Error> {
        match &self.backend {
            Backend::Folder(_) => Ok(None),
            Backend::Remote(remote) => remote.signed_url(key, valid).await,
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
    pub(crate) async fn append(&self, upload: &StoredUpload) -> Result<UploadWriter, Error> {
        Ok(match &self.backend {
            Backend::Folder(folder) => {
                UploadWriter::File(folder.append(&upload.store_key, upload.offset).await?)
            }
            Backend::Remote(remote) => {
                UploadWriter::Parts(Box::new(PartWriter::open(remote.clone(), upload).await?))
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
            (Backend::Folder(folder), UploadWriter::File(_)) => {
                measure_storage("place", folder.place(row_key, digest, guard)).await
            }
            (Backend::Remote(_), UploadWriter::Parts(parts)) => parts.key(),
            (Backend::Folder(_), UploadWriter::Parts(_)) | (Backend::Remote(_), UploadWriter::File(_)) => {
                unreachable!("`append` returns the writer of its backend")
            }
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
    pub(crate) async fn clear(&self, upload: &StoredUpload, keep: Option<&str>) -> Result<(), Error> {
        match &self.backend {
            Backend::Folder(_) => Ok(()),
            Backend::Remote(remote) => remote.clear(upload, keep).await,
        }
    }
}

/// Whether the data folder is used: for blobs, the database, or the cache of this process's worker.
pub(super) fn is_data_used(config: &Config) -> bool {
    let elsewhere = |url: &Option<Url>, here: &str| url.as_ref().is_some_and(|url| url.scheme() != here);
    !elsewhere(&config.storage, "file") || !elsewhere(&config.database, "sqlite") || config.wait_for_worker
}

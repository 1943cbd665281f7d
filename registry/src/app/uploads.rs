//! Uploads: bytes are hashed and written as they stream, and an offset is reported only once all bytes before
//! it are durable. An interrupted upload continues from its last checkpoint, in this process or after a
//! restart.

use std::time::Duration;

use bytes::Bytes;
use lode_model::digest::{Algorithm, Digest};
use lode_model::reference::Repository;
use uuid::Uuid;

use super::receive::UploadSession;
use super::{BlobInfo, Body, ChunkRange, Registry, UploadStatus, detached, retry_on_deadlock};
use crate::Error;
use crate::auth::{Action, Caller, Target};
use crate::blobs::{KeyLock, PlacedBlob, UploadWriter, key};
use crate::store::{NewUpload, Tx, UploadRow};

impl Registry {
    /// Opens an upload. `algorithm` is the digest algorithm that the client announces.
    pub async fn upload_create(
        &self,
        caller: &Caller,
        repository: &Repository,
        algorithm: Option<Algorithm>,
    ) -> Result<UploadStatus, Error> {
        self.check_push(caller, repository).await?;
        self.check_space(caller, repository, 1).await?;
        let row = self.upload_insert(repository, algorithm, owner(caller), false).await?;
        Ok(UploadStatus { id: row.id, offset: 0 })
    }

    async fn upload_insert(
        &self,
        repository: &Repository,
        algorithm: Option<Algorithm>,
        account: Option<Uuid>,
        in_one: bool,
    ) -> Result<UploadRow, Error> {
        let id = Uuid::new_v4();
        let store_key = &self.blobs.upload_key(id);
        let algorithm = algorithm.unwrap_or(Algorithm::Sha256);
        self.store
            .upload_insert(NewUpload {
                id,
                repository,
                store_key,
                algorithm,
                account,
                commits_at_once: in_one,
            })
            .await
    }

    /// The offset of an upload.
    pub async fn upload_status(
        &self,
        caller: &Caller,
        repository: &Repository,
        id: Uuid,
    ) -> Result<UploadStatus, Error> {
        self.authorize(caller, Action::Push, Target::Repository(repository)).await?;
        let row = self.upload_row(repository, id).await?;
        Ok(UploadStatus { id, offset: row.offset })
    }

    /// Cancels an upload and stops its writer.
    pub async fn upload_cancel(
        &self,
        caller: &Caller,
        repository: &Repository,
        id: Uuid,
    ) -> Result<(), Error> {
        self.check_push(caller, repository).await?;
        self.upload_row_to_remove(repository, id).await?;
        let this = self.clone();
        let repository = repository.clone();
        detached(async move {
            let _lock = this.upload_writer_lock(id, this.timeouts.cancel_writer_lock).await;
            // A writer on another replica may save or commit first; after a commit there is no row.
            while !this.upload_remove_in_time(this.upload_row_to_remove(&repository, id).await?).await? {}
            Ok(())
        })
        .await
    }

    /// Appends a chunk. The returned offset is durable; after an error the upload's status has the durable
    /// offset.
    pub async fn upload_append(
        &self,
        caller: &Caller,
        repository: &Repository,
        id: Uuid,
        chunk: ChunkRange,
        body: Body,
    ) -> Result<UploadStatus, Error> {
        self.check_push(caller, repository).await?;
        let (this, caller, repository) = (self.clone(), caller.clone(), repository.clone());
        detached(async move {
            let mut writing = this.upload_open(&repository, id, chunk, false).await?;
            let more_bytes = chunk.length.unwrap_or_default();
            writing.space = this.check_space(&caller, &repository, more_bytes).await?;
            let outcome = async {
                this.upload_receive(&mut writing, chunk, body).await?;
                this.upload_save(&mut writing).await?;
                Ok(UploadStatus { id, offset: writing.offset })
            };
            let outcome = outcome.await;
            this.upload_map_outcome(&repository, outcome).await
        })
        .await
    }

    /// Appends the last chunk (which may be empty) and commits the upload as the blob `digest`.
    pub async fn upload_finish(
        &self,
        caller: &Caller,
        repository: &Repository,
        id: Uuid,
        chunk: ChunkRange,
        body: Body,
        digest: &Digest,
    ) -> Result<BlobInfo, Error> {
        self.check_push(caller, repository).await?;
        let (this, caller, repository) = (self.clone(), caller.clone(), repository.clone());
        let digest = digest.clone();
        detached(async move {
            let mut writing = this.upload_open(&repository, id, chunk, true).await?;
            // The commit checks what was received before.
            if chunk.length != Some(0) {
                let more_bytes = chunk.length.unwrap_or_default();
                writing.space = this.check_space(&caller, &repository, more_bytes).await?;
            }
            let outcome =
                this.upload_receive_and_commit(&repository, &mut writing, chunk, body, Some(digest)).await;
            this.upload_map_outcome(&repository, outcome).await
        })
        .await
    }

    async fn upload_receive_and_commit(
        &self,
        repository: &Repository,
        writing: &mut UploadSession,
        chunk: ChunkRange,
        body: Body,
        expected: Option<Digest>,
    ) -> Result<BlobInfo, Error> {
        // 1. Write the rest of the bytes.
        self.upload_receive(writing, chunk, body).await?;
        // 2. Check the digest. No later chunk can correct a mismatch.
        let algorithm = expected.as_ref().map_or(Algorithm::Sha256, Digest::algorithm);
        if !writing.can_compute_digest(algorithm) {
            // Parts cannot be read until they are one object.
            self.upload_store(writing).await?;
        }
        let digest = writing.digest(algorithm).await?;
        if let Some(expected) = expected.filter(|expected| *expected != digest) {
            self.upload_delete_own(writing).await?;
            return Err(Error::DigestMismatch { expected, got: digest });
        }
        // 3. Make the bytes durable, unless the blob exists, then make the blob visible.
        if self.store.blob_live(&digest).await?.is_none() {
            self.upload_store(writing).await?;
        }
        self.upload_commit(repository, writing, &digest).await?;
        tracing::debug!(%repository, %digest, size_bytes = writing.offset, "blob stored");
        Ok(BlobInfo { digest, size_bytes: writing.offset })
    }

    /// Stores a blob from a single body. A failed one leaves nothing behind.
    pub async fn blob_put(
        &self,
        caller: &Caller,
        repository: &Repository,
        digest: &Digest,
        chunk: ChunkRange,
        body: Body,
    ) -> Result<BlobInfo, Error> {
        self.blob_receive(caller, repository, Some(digest.clone()), chunk, body).await
    }

    /// Like [`Registry::blob_put`], for bytes that the server produces, whose digest is known only at the
    /// end.
    pub(super) async fn blob_put_produced(
        &self,
        caller: &Caller,
        repository: &Repository,
        size: u64,
        body: Body,
    ) -> Result<BlobInfo, Error> {
        let chunk = ChunkRange { range: None, length: Some(size) };
        self.blob_receive(caller, repository, None, chunk, body).await
    }

    /// Stores a blob whose digest and size are known only at the end of the body.
    pub(crate) async fn blob_put_stream(
        &self,
        caller: &Caller,
        repository: &Repository,
        body: Body,
    ) -> Result<BlobInfo, Error> {
        self.blob_receive(caller, repository, None, ChunkRange::default(), body).await
    }

    async fn blob_receive(
        &self,
        caller: &Caller,
        repository: &Repository,
        digest: Option<Digest>,
        chunk: ChunkRange,
        body: Body,
    ) -> Result<BlobInfo, Error> {
        self.check_push(caller, repository).await?;
        let algorithm = digest.as_ref().map(Digest::algorithm);
        let space = self.check_space(caller, repository, chunk.length.unwrap_or(1)).await?;
        let row = self.upload_insert(repository, algorithm, owner(caller), true).await?;
        let (this, repository) = (self.clone(), repository.clone());
        detached(async move {
            let id = row.id;
            let stored = async {
                chunk.fits(&row)?;
                // No other request knows this upload, so there is nothing to take over.
                let writer_lock = this.writers.lock(id).await;
                let mut writing = this.upload_start(row, writer_lock).await?;
                writing.space = space;
                this.upload_receive_and_commit(&repository, &mut writing, chunk, body, digest).await
            };
            let stored = stored.await;
            if stored.is_err() {
                // The first error is returned; a remaining session expires.
                let _lock = this.writers.lock(id).await;
                if let Ok(Some(row)) = this.store.upload_find(&repository, id).await {
                    let _ = this.upload_remove_in_time(row).await;
                }
            }
            stored
        })
        .await
    }

    /// Writes a small blob at once, under its digest's lock. In object storage, an upload's row records the
    /// key until the blob's row does.
    pub(super) async fn bytes_put(
        &self,
        repository: &Repository,
        digest: &Digest,
        bytes: Bytes,
        lock: &KeyLock<Digest>,
    ) -> Result<(PlacedBlob, Option<UploadRow>), Error> {
        if !self.blobs.is_shared() {
            return Ok((self.blobs.put(Uuid::new_v4(), digest, bytes, lock.guard()).await?, None));
        }
        let row = self.upload_insert(repository, Some(digest.algorithm()), None, true).await?;
        match self.blobs.put(row.id, digest, bytes, lock.guard()).await {
            Ok(placed) => Ok((placed, Some(row))),
            Err(error) => {
                // The first error is returned; a remaining upload expires.
                let _ = self.upload_remove_in_time(row).await;
                Err(error)
            }
        }
    }

    /// Deletes an upload. Returns false if another writer, a commit or a cancellation came first. Once begun
    /// it runs to its end, even if the caller stops waiting.
    pub(crate) async fn upload_remove(&self, row: UploadRow) -> Result<bool, Error> {
        let this = self.clone();
        detached(async move {
            if !this.blobs.is_shared() {
                if !this.store.upload_delete(&row.repository, row.id).await? {
                    return Ok(false);
                }
                this.upload_file_delete(&row.store_key).await?;
                return Ok(true);
            }
            // From here on every writer fails. The row is deleted last, because it records where the bytes
            // are.
            let Some(row) = this.store.upload_take_to_remove(row.id, row.generation).await? else {
                return Ok(false);
            };
            this.blobs.clear(&row.stored(), None).await?;
            this.store.upload_delete(&row.repository, row.id).await
        })
        .await
    }

    /// Like `upload_remove`, while a client waits: after a timeout the deletion continues in the background.
    async fn upload_remove_in_time(&self, row: UploadRow) -> Result<bool, Error> {
        tokio::time::timeout(self.timeouts.deletion, self.upload_remove(row))
            .await
            .map_err(storage_timeout)?
    }

    /// Takes the lock of an upload's only writer in this process. With object storage the database decides
    /// between writers, so the wait is limited.
    async fn upload_writer_lock(&self, id: Uuid, limit: Duration) -> Result<KeyLock<Uuid>, Error> {
        let lock = self.writers.lock(id);
        match self.blobs.is_shared() {
            true => tokio::time::timeout(limit, lock).await.map_err(storage_timeout),
            false => Ok(lock.await),
        }
    }

    /// Deletes the upload of this writer: no later chunk can make it valid, or its bytes are not needed.
    async fn upload_delete_own(&self, writing: &UploadSession) -> Result<(), Error> {
        let row = UploadRow { generation: writing.saved.generation, ..writing.row.clone() };
        self.upload_remove_in_time(row).await.map(drop)
    }

    /// Deletes a file whose upload no longer exists. Once begun it runs to its end, even if the caller stops
    /// waiting.
    pub(crate) async fn upload_file_delete_detached(&self, store_key: &str) -> Result<(), Error> {
        let (this, store_key) = (self.clone(), store_key.to_owned());
        detached(async move { this.upload_file_delete(&store_key).await }).await
    }

    async fn upload_file_delete(&self, store_key: &str) -> Result<(), Error> {
        // A commit may also have linked the file as a blob, and crashed before it wrote the blob's row.
        if let Some(digest) = self.blobs.find_linked_blob(store_key).await? {
            let lock = self.digests.lock(digest.clone()).await;
            self.blob_delete_unlisted(&digest, &lock).await?;
        }
        self.blobs.discard(store_key).await;
        Ok(())
    }

    /// Deletes a blob's bytes unless the database lists them.
    pub(super) async fn blob_delete_unlisted(
        &self,
        digest: &Digest,
        lock: &KeyLock<Digest>,
    ) -> Result<(), Error> {
        match self.store.blob_live(digest).await? {
            Some(_) => Ok(()),
            None => self.blobs.remove(vec![key::blob(digest)], vec![lock.guard()]).await,
        }
    }

    /// The row of an upload to delete, even if an earlier attempt to delete it failed.
    async fn upload_row_to_remove(&self, repository: &Repository, id: Uuid) -> Result<UploadRow, Error> {
        let row = self.store.upload_find_any(id).await?;
        row.filter(|row| row.repository == *repository).ok_or(Error::UploadUnknown { id })
    }

    async fn upload_row(&self, repository: &Repository, id: Uuid) -> Result<UploadRow, Error> {
        self.store.upload_find(repository, id).await?.ok_or(Error::UploadUnknown { id })
    }

    /// Becomes the upload's only writer, if the chunk starts at the upload's offset.
    async fn upload_open(
        &self,
        repository: &Repository,
        id: Uuid,
        chunk: ChunkRange,
        to_commit: bool,
    ) -> Result<UploadSession, Error> {
        // 1. A chunk with a wrong offset must not disturb the current writer.
        let row = self.upload_row(repository, id).await?;
        chunk.fits(&row)?;
        let start = row.offset;
        // 2. One with the right offset takes over: the server may not know yet that the client's old
        //    connection is dead. A writer in this process stops; one on another replica fails at its next
        //    save. Taking over waits for a commit whose response was lost, so from here on it is certain that
        //    there was none.
        let writer_lock = self.upload_writer_lock(id, self.timeouts.writer_lock).await?;
        let row = self.upload_row(repository, id).await?;
        let placed = self.blobs.find_linked_blob(&row.store_key).await?;
        let row = match self.blobs.is_shared() || placed.is_some() {
            true => self.store.upload_take_over(id, row.generation, to_commit).await?,
            false => Some(row),
        };
        let Some(row) = row else {
            return self.upload_map_outcome(repository, Err(Error::UploadUnknown { id })).await;
        };
        if row.offset != start {
            return Err(Error::UploadConflict { id, offset: row.offset });
        }
        if let Some(digest) = placed {
            let lock = self.digests.lock(digest.clone()).await;
            self.blob_delete_unlisted(&digest, &lock).await?;
        }
        self.upload_start(row, writer_lock).await
    }

    /// Opens the bytes and the hash of an upload at its row's offset.
    async fn upload_start(&self, row: UploadRow, writer_lock: KeyLock<Uuid>) -> Result<UploadSession, Error> {
        let file = self.blobs.append(&row.stored()).await?;
        UploadSession::start(row, file, writer_lock)
    }

    /// Distinguishes an upload that another writer advanced from one that no longer exists.
    async fn upload_map_outcome<T>(
        &self,
        repository: &Repository,
        outcome: Result<T, Error>,
    ) -> Result<T, Error> {
        match outcome {
            Err(Error::UploadUnknown { id }) => {
                let row = self.upload_row(repository, id).await?;
                Err(Error::UploadConflict { id, offset: row.offset })
            }
            Err(Error::UploadLost { id }) => {
                // The rest of it is useless. If the deletion fails, it expires.
                if let Ok(Some(row)) = self.store.upload_find(repository, id).await {
                    let _ = self.upload_remove_in_time(row).await;
                }
                Err(Error::UploadLost { id })
            }
            outcome => outcome,
        }
    }

    /// Commits durable bytes as a live, linked blob, and deletes the upload.
    async fn upload_commit(
        &self,
        repository: &Repository,
        writing: &mut UploadSession,
        digest: &Digest,
    ) -> Result<(), Error> {
        let lock = self.digests.lock(digest.clone()).await;
        // 1. Content that is already live only gets a link, and the new bytes are deleted. If the bytes of a
        //    live row are missing or have a wrong size, the new bytes replace them. No row is locked while
        //    the storage is read.
        let mut damaged = None;
        if let Some((size_bytes, held)) = self.store.blob_live(digest).await? {
            if self.blobs.size(&held).await? != Some(size_bytes) {
                damaged = Some(held);
            } else if retry_on_deadlock!(self.upload_commit_live(repository, writing, digest, &held).await)? {
                return self.upload_delete_redundant(writing).await;
            }
        }
        // 2. Otherwise the bytes are moved to their final location before the row is written. A crash in
        //    between leaves the upload, and unlisted bytes; they are deleted when the upload continues or
        //    expires.
        self.upload_store(writing).await?;
        let store_key = self.blobs.place(&writing.file, &writing.row.store_key, digest, lock.guard()).await?;
        let damaged = damaged.as_deref();
        match retry_on_deadlock!(
            self.upload_commit_fresh(repository, writing, digest, &store_key, damaged).await
        ) {
            Ok(true) => {
                self.upload_delete_leftovers(writing, &store_key).await;
                Ok(())
            }
            // Another replica stored the same content meanwhile.
            Ok(false) => self.upload_delete_redundant(writing).await,
            Err(error) => {
                // Only if another writer came first is it certain that this commit failed. An object
                // completed from the parts may belong to that writer as well.
                if matches!(error, Error::UploadUnknown { .. }) {
                    // The first error is returned; what cannot be undone now is undone when the upload
                    // continues or expires.
                    match &writing.file {
                        UploadWriter::File(_) => drop(self.blob_delete_unlisted(digest, &lock).await),
                        UploadWriter::Parts(parts) => {
                            if let Some(key) = parts.own_object() {
                                self.blobs.discard(key).await;
                            }
                        }
                    }
                }
                Err(error)
            }
        }
    }

    /// Deletes the leftovers of an upload whose bytes became a blob. The expiry job deletes what a crash
    /// leaves.
    async fn upload_delete_leftovers(&self, writing: &UploadSession, store_key: &str) {
        match &writing.file {
            UploadWriter::File(_) => self.blobs.discard(&writing.row.store_key).await,
            UploadWriter::Parts(parts) => {
                if writing.row.attempts > 1 {
                    // Earlier attempts may have left separate objects.
                    if let Err(error) = self.blobs.clear(&writing.row.stored(), Some(store_key)).await {
                        tracing::warn!(id = %writing.row.id, %error, "failed to delete objects of earlier commit attempts");
                    }
                } else if let Some(tail) = parts.tail() {
                    self.blobs.discard(tail).await;
                }
            }
        }
    }

    /// Deletes the bytes of an upload whose blob exists already. In object storage its row still records
    /// where they are.
    async fn upload_delete_redundant(&self, writing: &UploadSession) -> Result<(), Error> {
        if !writing.has_objects() {
            self.upload_delete_leftovers(writing, "").await;
        } else if let Err(error) = self.upload_delete_own(writing).await {
            tracing::warn!(id = %writing.row.id, %error, "failed to delete redundant upload; it will expire");
        }
        Ok(())
    }

    async fn upload_commit_live(
        &self,
        repository: &Repository,
        writing: &UploadSession,
        digest: &Digest,
        held: &str,
    ) -> Result<bool, Error> {
        let mut tx = self.store.begin().await?;
        match tx.blob_lock(digest).await? {
            Some((_, store_key)) if store_key == held => {}
            _ => return Ok(false),
        }
        self.upload_link(tx, repository, writing, digest, !writing.has_objects()).await?;
        Ok(true)
    }

    /// Returns false if the content became live meanwhile under another key: it is linked, and the new bytes
    /// are redundant.
    async fn upload_commit_fresh(
        &self,
        repository: &Repository,
        writing: &UploadSession,
        digest: &Digest,
        store_key: &str,
        damaged: Option<&str>,
    ) -> Result<bool, Error> {
        let mut tx = self.store.begin().await?;
        let ours = tx.blob_insert(digest, writing.offset, store_key, damaged).await?;
        self.upload_link(tx, repository, writing, digest, ours).await?;
        Ok(ours)
    }

    /// Links a blob in the transaction that locks the blob's row. Also deletes the upload's row, unless
    /// cleaning up needs it.
    async fn upload_link(
        &self,
        mut tx: Tx,
        repository: &Repository,
        writing: &UploadSession,
        digest: &Digest,
        finish: bool,
    ) -> Result<(), Error> {
        self.link_within_quota(&mut tx, repository, digest).await?;
        let id = writing.id();
        if finish && !tx.upload_delete_committed(id, writing.saved.generation).await? {
            return Err(Error::UploadUnknown { id });
        }
        tx.commit().await
    }
}

/// The account of an upload, which may continue it.
fn owner(caller: &Caller) -> Option<Uuid> {
    caller.account().map(|account| account.id)
}

fn storage_timeout(elapsed: tokio::time::error::Elapsed) -> Error {
    Error::Unavailable { what: "the storage".to_owned(), source: elapsed.into() }
}

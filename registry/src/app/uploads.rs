//! Uploads: bytes are hashed and written as they stream, and an offset is told only once everything before it is durable.
//! An upload that was cut off goes on from its last checkpoint, in this process or after a restart.

use lode_model::digest::{Algorithm, Digest};
use lode_model::reference::Repository;
use uuid::Uuid;

use super::receive::Writing;
use super::{BlobInfo, Body, ChunkRange, Registry, UploadStatus, again, detached};
use crate::Error;
use crate::auth::{Action, Caller, Target, allow};
use crate::blobs::key;
use crate::store::{Tx, UploadRow};

impl Registry {
    /// Opens an upload. `algorithm` is what the client says it will name the blob by.
    pub async fn upload_create(
        &self,
        caller: &Caller,
        repository: &Repository,
        algorithm: Option<Algorithm>,
    ) -> Result<UploadStatus, Error> {
        self.may_push(caller, repository)?;
        let id = Uuid::new_v4();
        let algorithm = algorithm.unwrap_or(Algorithm::Sha256);
        self.store.upload_insert(repository, id, &key::upload(id), algorithm).await?;
        Ok(UploadStatus { id, offset: 0 })
    }

    /// Where an upload stands.
    pub async fn upload_status(
        &self,
        caller: &Caller,
        repository: &Repository,
        id: Uuid,
    ) -> Result<UploadStatus, Error> {
        allow(caller, Action::Push, Target::Repository(repository))?;
        let row = self.upload_row(repository, id).await?;
        Ok(UploadStatus { id, offset: row.offset })
    }

    /// Ends an upload without a blob. Whoever is writing to it is stopped.
    pub async fn upload_cancel(
        &self,
        caller: &Caller,
        repository: &Repository,
        id: Uuid,
    ) -> Result<(), Error> {
        allow(caller, Action::Push, Target::Repository(repository))?;
        let row = self.upload_row(repository, id).await?;
        let this = self.clone();
        let repository = repository.clone();
        detached(async move {
            let _turn = this.writers.lock(id).await;
            if !this.store.upload_delete(&repository, id).await? {
                return Err(Error::UploadUnknown { id });
            }
            this.upload_drop(&row.store_key).await
        })
        .await
    }

    /// Appends a chunk. The answer's offset is durable; on an error the upload's status tells what is.
    pub async fn upload_append(
        &self,
        caller: &Caller,
        repository: &Repository,
        id: Uuid,
        chunk: ChunkRange,
        body: Body,
    ) -> Result<UploadStatus, Error> {
        allow(caller, Action::Push, Target::Repository(repository))?;
        let (this, repository) = (self.clone(), repository.clone());
        detached(async move {
            let mut writing = this.upload_open(&repository, id, chunk).await?;
            let outcome = async {
                this.upload_receive(&mut writing, chunk, body).await?;
                this.upload_save(&mut writing).await?;
                Ok(UploadStatus { id, offset: writing.offset })
            };
            let outcome = outcome.await;
            this.upload_outcome(&repository, outcome).await
        })
        .await
    }

    /// Appends the last chunk (which may be empty) and makes the upload the blob that `digest` names.
    pub async fn upload_finish(
        &self,
        caller: &Caller,
        repository: &Repository,
        id: Uuid,
        chunk: ChunkRange,
        body: Body,
        digest: &Digest,
    ) -> Result<BlobInfo, Error> {
        allow(caller, Action::Push, Target::Repository(repository))?;
        let (this, repository, digest) = (self.clone(), repository.clone(), digest.clone());
        detached(async move {
            let mut writing = this.upload_open(&repository, id, chunk).await?;
            let outcome = this.upload_end(&repository, &mut writing, chunk, body, digest).await;
            this.upload_outcome(&repository, outcome).await
        })
        .await
    }

    async fn upload_end(
        &self,
        repository: &Repository,
        writing: &mut Writing,
        chunk: ChunkRange,
        body: Body,
        digest: Digest,
    ) -> Result<BlobInfo, Error> {
        // 1. The rest of the bytes.
        self.upload_receive(writing, chunk, body).await?;
        // 2. Are they what the client says? If not, no later chunk can make them so.
        let got = writing.digest(digest.algorithm()).await?;
        if got != digest {
            self.store.upload_delete(repository, writing.id).await?;
            self.blobs.discard(&writing.store_key).await;
            return Err(Error::DigestMismatch { expected: digest, got });
        }
        // 3. Durable, unless the registry has it already, then visible.
        if self.store.blob_live(&digest).await?.is_none() {
            writing.file.sync().await?;
        }
        self.upload_commit(repository, writing, &digest).await?;
        self.blobs.discard(&writing.store_key).await;
        tracing::debug!(%repository, %digest, size_bytes = writing.offset, "blob stored");
        Ok(BlobInfo { digest, size_bytes: writing.offset })
    }

    /// Stores a blob from a single body; nothing stays of one that fails.
    pub async fn blob_put(
        &self,
        caller: &Caller,
        repository: &Repository,
        digest: &Digest,
        chunk: ChunkRange,
        body: Body,
    ) -> Result<BlobInfo, Error> {
        let UploadStatus { id, .. } =
            self.upload_create(caller, repository, Some(digest.algorithm())).await?;
        let stored = self.upload_finish(caller, repository, id, chunk, body, digest).await;
        if stored.is_err() {
            // The first error counts; a session that stays behind expires.
            let _ = self.upload_cancel(caller, repository, id).await;
        }
        stored
    }

    /// Drops the bytes of an upload that is no more.
    pub(crate) async fn upload_drop(&self, store_key: &str) -> Result<(), Error> {
        self.upload_unplace(store_key).await?;
        self.blobs.discard(store_key).await;
        Ok(())
    }

    /// Takes back the blob's name that a commit gave an upload's bytes, if it died before the index knew of it.
    async fn upload_unplace(&self, store_key: &str) -> Result<(), Error> {
        if let Some(digest) = self.blobs.placed(store_key).await? {
            let _turn = self.digests.lock(digest.clone()).await;
            self.blob_unplace(&digest).await?;
        }
        Ok(())
    }

    /// Removes a blob's bytes unless the index lists them. The digest's turn is the caller's.
    pub(super) async fn blob_unplace(&self, digest: &Digest) -> Result<(), Error> {
        match self.store.blob_live(digest).await? {
            Some(_) => Ok(()),
            None => self.blobs.remove(vec![key::blob(digest)]).await,
        }
    }

    async fn upload_row(&self, repository: &Repository, id: Uuid) -> Result<UploadRow, Error> {
        self.store.upload_find(repository, id).await?.ok_or(Error::UploadUnknown { id })
    }

    /// Becomes the upload's one writer, if the chunk starts where the upload stands.
    async fn upload_open(
        &self,
        repository: &Repository,
        id: Uuid,
        chunk: ChunkRange,
    ) -> Result<Writing, Error> {
        // 1. A chunk that does not fit must not disturb the writer at work.
        let row = self.upload_row(repository, id).await?;
        let start = chunk.range.map_or(row.offset, |(first, _)| first);
        let at =
            |offset: u64| if offset == start { Ok(()) } else { Err(Error::UploadConflict { id, offset }) };
        at(row.offset)?;
        if let (Some(declared), Some(got)) = (chunk.declared(), chunk.length)
            && declared != got
        {
            return Err(Error::RangeMismatch { id, offset: row.offset, declared, got });
        }
        // 2. One that does takes over: the old connection of a client that came back may not know that it is dead.
        let turn = self.writers.lock(id).await;
        let row = self.upload_row(repository, id).await?;
        at(row.offset)?;
        // 3. The bytes and the hash, as they were at that offset.
        self.upload_unplace(&row.store_key).await?;
        let file = self.blobs.append(&row.store_key, row.offset).await?;
        Writing::start(id, row, file, turn)
    }

    /// Tells an upload that another writer moved from one that is gone.
    async fn upload_outcome<T>(
        &self,
        repository: &Repository,
        outcome: Result<T, Error>,
    ) -> Result<T, Error> {
        match outcome {
            Err(Error::UploadUnknown { id }) => {
                let row = self.upload_row(repository, id).await?;
                Err(Error::UploadConflict { id, offset: row.offset })
            }
            outcome => outcome,
        }
    }

    /// Makes durable bytes a live blob, linked, and ends the upload.
    async fn upload_commit(
        &self,
        repository: &Repository,
        writing: &Writing,
        digest: &Digest,
    ) -> Result<(), Error> {
        let _turn = self.digests.lock(digest.clone()).await;
        // 1. Content that is live already only gets a link, and the fresh bytes are dropped.
        if again!(self.upload_commit_live(repository, writing, digest).await)? {
            return Ok(());
        }
        // 2. Otherwise the bytes take their place, and the row follows. A crash in between leaves both the upload and a
        //    file that nothing lists; it goes when the upload goes on or is purged.
        writing.file.sync().await?;
        let store_key = self.blobs.place(&writing.store_key, digest).await?;
        let committed = again!(self.upload_commit_fresh(repository, writing, digest, &store_key).await);
        // Only a commit that another writer forestalled is certain not to have happened.
        if matches!(committed, Err(Error::UploadUnknown { .. })) {
            // The first error counts; what cannot be undone now is when the upload goes on or is purged.
            let _ = self.blob_unplace(digest).await;
        }
        committed
    }

    async fn upload_commit_live(
        &self,
        repository: &Repository,
        writing: &Writing,
        digest: &Digest,
    ) -> Result<bool, Error> {
        let mut tx = self.store.begin().await?;
        let Some((size_bytes, store_key)) = tx.blob_lock(digest).await? else { return Ok(false) };
        // A live row whose bytes are gone or torn is damage, which these bytes repair.
        if self.blobs.size(&store_key).await? != Some(size_bytes) {
            return Ok(false);
        }
        self.upload_link(tx, repository, writing, digest).await?;
        Ok(true)
    }

    async fn upload_commit_fresh(
        &self,
        repository: &Repository,
        writing: &Writing,
        digest: &Digest,
        store_key: &str,
    ) -> Result<(), Error> {
        let mut tx = self.store.begin().await?;
        // The folder's key is the digest's own: whatever the row says, these are its bytes.
        tx.blob_insert(digest, writing.offset, store_key, None).await?;
        self.upload_link(tx, repository, writing, digest).await
    }

    /// Links a blob and ends its upload, in the transaction that holds the blob's row.
    async fn upload_link(
        &self,
        mut tx: Tx,
        repository: &Repository,
        writing: &Writing,
        digest: &Digest,
    ) -> Result<(), Error> {
        tx.link(repository, digest, self.lease_ms()).await?;
        if !tx.upload_finish(writing.id, writing.saved.generation).await? {
            return Err(Error::UploadUnknown { id: writing.id });
        }
        tx.commit().await
    }
}

//! Uploads: bytes are hashed and written as they stream, and an offset is told only once everything before it is durable.
//! An upload that was cut off goes on from its last checkpoint, in this process or after a restart.

use bytes::Bytes;
use futures::StreamExt;
use lode_model::digest::{Algorithm, Digest, Hasher};
use lode_model::reference::Repository;
use tokio::task::{JoinHandle, spawn_blocking};
use uuid::Uuid;

use super::{BlobInfo, Body, BodyError, ChunkRange, Registry, UploadStatus, again, detached};
use crate::Error;
use crate::auth::{Action, Caller, Target, allow};
use crate::blobs::{AppendFile, Held, key};
use crate::store::{Tx, UploadRow};

/// How much is hashed and written in one go; two of these are in memory for each upload.
const BATCH_BYTES: usize = 1024 * 1024;
/// A body of tiny pieces is not gathered beyond this many.
const BATCH_PIECES: usize = 512;
/// How much may be written before it is made durable and the upload's row moves on.
const CHECKPOINT_BYTES: u64 = 64 * 1024 * 1024;

impl Registry {
    /// Opens an upload. `algorithm` is what the client says it will name the blob by.
    pub async fn upload_create(
        &self,
        caller: &Caller,
        repository: &Repository,
        algorithm: Option<Algorithm>,
    ) -> Result<UploadStatus, Error> {
        allow(caller, Action::Push, Target::Repository(repository))?;
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
            this.blobs.discard(&row.store_key).await;
            Ok(())
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
        // 3. Durable, then visible.
        sync(writing.file.clone()).await?;
        self.upload_commit(repository, writing, &digest).await?;
        self.blobs.discard(&writing.store_key).await;
        tracing::info!(%repository, %digest, size_bytes = writing.offset, "blob stored");
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
        let file = self.blobs.append(&row.store_key, row.offset).await?;
        let hasher = Hasher::restore(&row.hash_state)
            .map_err(|_| Error::Corrupt { what: "hash state", value: id.to_string() })?;
        Ok(Writing {
            id,
            store_key: row.store_key,
            saved: Saved { offset: row.offset, generation: row.generation },
            offset: row.offset,
            synced: row.offset,
            file,
            hasher: Some(hasher),
            checkpoint: None,
            turn,
        })
    }

    /// Writes the body behind what is there, with a checkpoint now and then and at a cut.
    async fn upload_receive(
        &self,
        writing: &mut Writing,
        chunk: ChunkRange,
        body: Body,
    ) -> Result<(), Error> {
        let outcome = self.upload_stream(writing, chunk, body).await;
        // Nobody else may have the file before the checkpoint under way is through.
        let settled = writing.settle().await;
        match outcome {
            Ok(()) => settled,
            Err(Error::BodyCut(reason)) => {
                settled?;
                self.upload_save(writing).await?;
                Err(Error::BodyCut(reason))
            }
            Err(error) => {
                // What the disk could not take, or does not fit: give it back at once.
                let (file, offset) = (writing.file.clone(), writing.saved.offset);
                let _ = spawn_blocking(move || file.truncate(offset)).await;
                Err(error)
            }
        }
    }

    /// Reads the next batch while the last one is hashed and written.
    async fn upload_stream(
        &self,
        writing: &mut Writing,
        chunk: ChunkRange,
        mut body: Body,
    ) -> Result<(), Error> {
        let (id, start) = (writing.id, writing.offset);
        let mut next = gather(&mut body, &mut writing.turn).await;
        loop {
            let Batch { pieces, len, end } = next;
            let got = writing.offset - start + len;
            // 1. A body that is longer than announced is refused before it is written, a shorter one when it ends.
            let whole = matches!(end, Some(End::Whole));
            let fits = |announced: u64| if whole { got == announced } else { got <= announced };
            if let Some(declared) = chunk.declared().filter(|declared| !fits(*declared)) {
                return Err(Error::RangeMismatch { id, offset: writing.saved.offset, declared, got });
            }
            if let Some(expected) = chunk.length.filter(|length| !fits(*length)) {
                return Err(Error::SizeMismatch { expected, got });
            }
            // 2. Write this batch to its end, whatever comes: the next writer must find the file at rest.
            let written = write(&writing.file, &mut writing.hasher, writing.offset, pieces);
            let ahead = async {
                match end {
                    None => Ok(gather(&mut body, &mut writing.turn).await),
                    Some(end) => Err(end),
                }
            };
            let (written, ahead) = tokio::join!(written, ahead);
            written?;
            writing.offset += len;
            // 3. Go on, unless that was all.
            next = match ahead {
                Ok(batch) => batch,
                Err(End::Whole) => return Ok(()),
                Err(End::Cut(reason)) => return Err(Error::BodyCut(reason)),
                Err(End::Superseded) => {
                    return Err(Error::UploadConflict { id, offset: writing.saved.offset });
                }
            };
            if writing.offset - writing.synced >= CHECKPOINT_BYTES {
                writing.settle().await?;
                self.upload_checkpoint(writing);
            }
        }
    }

    /// Makes what was written so far durable and saves it, while the stream goes on.
    fn upload_checkpoint(&self, writing: &mut Writing) {
        let (this, id, file, offset) = (self.clone(), writing.id, writing.file.clone(), writing.offset);
        let generation = writing.saved.generation;
        let state = writing.hasher.as_ref().map(Hasher::save).unwrap_or_default();
        writing.synced = offset;
        writing.checkpoint = Some(tokio::spawn(async move {
            sync(file).await?;
            match this.store.upload_save(id, generation, offset, &state).await? {
                true => Ok(Saved { offset, generation: generation + 1 }),
                false => Err(Error::UploadUnknown { id }),
            }
        }));
    }

    /// Makes everything that was written durable, and says so in the upload's row.
    async fn upload_save(&self, writing: &mut Writing) -> Result<(), Error> {
        if writing.offset > writing.saved.offset {
            self.upload_checkpoint(writing);
            writing.settle().await?;
        }
        Ok(())
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
        //    file that nothing lists; the next commit of this digest replaces it.
        let store_key = self.blobs.place(&writing.store_key, digest).await?;
        again!(self.upload_commit_fresh(repository, writing, digest, &store_key).await)
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
        tx.blob_insert(digest, writing.offset, store_key).await?;
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

impl ChunkRange {
    /// How many bytes the range names. A range whose last byte lies before its first names none.
    fn declared(&self) -> Option<u64> {
        self.range.map(|(first, last)| if last < first { 0 } else { (last - first).saturating_add(1) })
    }
}

/// An upload in the hands of its one writer.
struct Writing {
    id: Uuid,
    store_key: String,
    /// What the row says.
    saved: Saved,
    /// How far the file is written, and the hash with it.
    offset: u64,
    /// How far it is durable, or about to be.
    synced: u64,
    file: AppendFile,
    /// Away only while a batch is hashed.
    hasher: Option<Hasher>,
    checkpoint: Option<JoinHandle<Result<Saved, Error>>>,
    turn: Held<Uuid>,
}

#[derive(Clone, Copy)]
struct Saved {
    offset: u64,
    generation: i64,
}

impl Writing {
    /// Waits for the checkpoint under way.
    async fn settle(&mut self) -> Result<(), Error> {
        if let Some(checkpoint) = self.checkpoint.take() {
            self.saved = checkpoint.await.map_err(|_| Error::Interrupted)??;
        }
        Ok(())
    }

    /// The digest of everything written. Another algorithm than the session's costs one more reading of the file.
    async fn digest(&mut self, algorithm: Algorithm) -> Result<Digest, Error> {
        match self.hasher.take() {
            Some(hasher) if hasher.algorithm() == algorithm => Ok(hasher.finish()),
            _ => {
                let (file, len) = (self.file.clone(), self.offset);
                spawn_blocking(move || rehash(&file, len, algorithm)).await.map_err(|_| Error::Interrupted)?
            }
        }
    }
}

fn rehash(file: &AppendFile, len: u64, algorithm: Algorithm) -> Result<Digest, Error> {
    let mut hasher = Hasher::new(algorithm);
    let mut buffer = vec![0; BATCH_BYTES];
    let mut at = 0;
    while at < len {
        let read = file.read_at(&mut buffer, at).map_err(|e| Error::io("reading an upload", e))?;
        if read == 0 {
            return Err(Error::io("reading an upload", std::io::ErrorKind::UnexpectedEof.into()));
        }
        hasher.update(&buffer[..read]);
        at += read as u64;
    }
    Ok(hasher.finish())
}

async fn sync(file: AppendFile) -> Result<(), Error> {
    spawn_blocking(move || file.sync())
        .await
        .map_err(|_| Error::Interrupted)?
        .map_err(|e| Error::io("making an upload durable", e))
}

/// Hashes and writes a batch, each on its own thread.
async fn write(
    file: &AppendFile,
    hasher: &mut Option<Hasher>,
    offset: u64,
    pieces: Vec<Bytes>,
) -> Result<(), Error> {
    if pieces.is_empty() {
        return Ok(());
    }
    let pieces = std::sync::Arc::new(pieces);
    let (file, to_write) = (file.clone(), pieces.clone());
    let mut hashing = hasher.take().ok_or(Error::Interrupted)?;
    let (hashed, written) = tokio::join!(
        spawn_blocking(move || {
            pieces.iter().for_each(|piece| hashing.update(piece));
            hashing
        }),
        spawn_blocking(move || file.write(offset, &to_write)),
    );
    *hasher = Some(hashed.map_err(|_| Error::Interrupted)?);
    written.map_err(|_| Error::Interrupted)?.map_err(|e| Error::io("writing an upload", e))
}

/// Pieces of a body, and what came after them if that was its end.
#[derive(Default)]
struct Batch {
    pieces: Vec<Bytes>,
    len: u64,
    end: Option<End>,
}

enum End {
    Whole,
    Cut(BodyError),
    /// Another writer waits for the upload.
    Superseded,
}

async fn gather(body: &mut Body, turn: &mut Held<Uuid>) -> Batch {
    let mut batch = Batch::default();
    while batch.len < BATCH_BYTES as u64 && batch.pieces.len() < BATCH_PIECES {
        let piece = tokio::select! {
            piece = body.next() => piece,
            () = turn.superseded() => {
                batch.end = Some(End::Superseded);
                break;
            }
        };
        match piece {
            Some(Ok(piece)) => {
                batch.len += piece.len() as u64;
                batch.pieces.push(piece);
            }
            Some(Err(reason)) => {
                batch.end = Some(End::Cut(reason));
                break;
            }
            None => {
                batch.end = Some(End::Whole);
                break;
            }
        }
    }
    batch
}

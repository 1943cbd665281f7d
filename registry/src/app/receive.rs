//! Writes a request body to an upload: hashed and written as it streams, through a bounded buffer.
//! Checkpoints are made regularly, so that an interruption or a crash loses only the bytes after the last
//! one.

use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use lode_model::digest::{Algorithm, Digest, Hasher};
use tokio::task::{JoinHandle, spawn_blocking};
use uuid::Uuid;

use super::quotas::QuotaSpace;
use super::{Body, ChunkRange, Registry};
use crate::blobs::{Checkpoint, KeyLock, UploadWriter};
use crate::store::{UploadCheckpoint, UploadRow};
use crate::{BodyError, Error};

/// How much is hashed and written at once; two of these are in memory for each upload.
const BATCH_BYTES: usize = 1024 * 1024;
/// The most pieces in a batch, for bodies of tiny pieces.
const BATCH_PIECES: usize = 512;
/// How much may be written before the next checkpoint.
const CHECKPOINT_BYTES: u64 = 64 * 1024 * 1024;

impl Registry {
    /// Appends the body to the upload, with regular checkpoints and one when the body is interrupted.
    pub(super) async fn upload_receive(
        &self,
        writing: &mut UploadSession,
        chunk: ChunkRange,
        body: Body,
    ) -> Result<(), Error> {
        let outcome = self.upload_stream(writing, chunk, body).await;
        // No other writer may use the file before the checkpoint in progress has ended.
        let settled = writing.settle().await;
        match outcome {
            Ok(()) => settled,
            Err(Error::BodyInterrupted(reason)) => {
                settled?;
                self.upload_save(writing).await?;
                Err(Error::BodyInterrupted(reason))
            }
            Err(error) => {
                // Free the space at once: the disk is full, or the body does not match its declaration. Not if the
                // row may have a later offset than this writer knows of.
                if !writing.has_failed_checkpoint {
                    let _ = writing.file.truncate(writing.saved.offset).await;
                }
                Err(error)
            }
        }
    }

    /// Reads the next batch while the last one is hashed and written.
    async fn upload_stream(
        &self,
        writing: &mut UploadSession,
        chunk: ChunkRange,
        mut body: Body,
    ) -> Result<(), Error> {
        let (id, start) = (writing.id(), writing.offset);
        let mut rest = None;
        let mut next =
            next_batch(&mut body, &mut rest, writing.file.writable_after(0), &mut writing.writer_lock).await;
        loop {
            let Batch { pieces, len, end } = next;
            let got = writing.offset - start + len;
            // 1. A body that is longer than declared is rejected before it is written, a shorter one when it
            //    ends.
            let whole = matches!(end, Some(BodyEnd::Whole));
            let fits = |announced: u64| if whole { got == announced } else { got <= announced };
            if let Some(declared) = chunk.declared().filter(|declared| !fits(*declared)) {
                return Err(Error::RangeMismatch { id, offset: writing.saved.offset, declared, got });
            }
            if let Some(expected) = chunk.length.filter(|length| !fits(*length)) {
                return Err(Error::SizeMismatch { expected, got });
            }
            if let Some(space) = &writing.space {
                space.check(got)?;
            }
            if len > 0 && writing.file.is_sealed() {
                return Err(Error::UploadConflict { id, offset: writing.saved.offset });
            }
            // 2. Write the whole batch in any case, so that no write is in progress when the next writer
            //    starts.
            let writable = writing.file.writable_after(len);
            let written = write(&mut writing.file, &mut writing.hasher, writing.offset, pieces);
            let ahead = async {
                match end {
                    None => Ok(next_batch(&mut body, &mut rest, writable, &mut writing.writer_lock).await),
                    Some(end) => Err(end),
                }
            };
            let (written, ahead) = tokio::join!(written, ahead);
            written?;
            writing.offset += len;
            if writing.file.whole_part().is_some() {
                self.upload_send(writing).await?;
            }
            // 3. Continue, unless the body has ended.
            next = match ahead {
                Ok(batch) => batch,
                Err(BodyEnd::Whole) => return Ok(()),
                Err(BodyEnd::Cut(reason)) => return Err(Error::BodyInterrupted(reason)),
                Err(BodyEnd::Superseded) => {
                    return Err(Error::UploadConflict { id, offset: writing.saved.offset });
                }
            };
            if writing.offset - writing.synced >= CHECKPOINT_BYTES && writing.file.is_checkpoint_free() {
                writing.settle().await?;
                self.upload_checkpoint(writing);
            }
        }
    }

    /// Starts to make the written bytes durable and to save the offset, while the stream continues.
    fn upload_checkpoint(&self, writing: &mut UploadSession) {
        let (this, id, offset, generation) =
            (self.clone(), writing.id(), writing.offset, writing.saved.generation);
        let durable = writing.file.checkpoint(generation);
        let state = writing.hasher.as_ref().map(Hasher::save).unwrap_or_default();
        writing.synced = offset;
        writing.checkpoint = Some(tokio::spawn(async move {
            let Checkpoint { progress, fresh, obsolete } = durable.await?;
            let checkpoint = UploadCheckpoint { offset, hash_state: &state, progress: &progress };
            if !this.store.upload_save(id, generation, checkpoint).await? {
                if let Some(key) = fresh {
                    this.blobs.discard(&key).await;
                }
                return Err(Error::UploadUnknown { id });
            }
            if let Some(key) = obsolete {
                this.blobs.discard(&key).await;
            }
            Ok(SavedState { offset, generation: generation + 1 })
        }));
    }

    /// Sends a whole part. Before the first one, the upload's row records where the parts go, so that they
    /// can be found after any failure.
    async fn upload_send(&self, writing: &mut UploadSession) -> Result<(), Error> {
        writing.settle().await?;
        let (id, generation) = (writing.id(), writing.saved.generation);
        let Some(parts) = writing.file.whole_part() else { return Ok(()) };
        if let Some(progress) = parts.begin(generation).await? {
            // After an error the row may have recorded it nevertheless. The next writer then continues with
            // it; without a part it costs nothing.
            if !self.store.upload_record_location(id, generation, &progress).await? {
                parts.abort_multipart_upload().await;
                return Err(Error::UploadUnknown { id });
            }
            writing.saved.generation += 1;
        }
        match writing.file.whole_part() {
            Some(parts) => parts.send().await,
            None => Ok(()),
        }
    }

    /// Makes all written bytes durable at the location of the future blob, so that only its row is missing.
    pub(super) async fn upload_store(&self, writing: &mut UploadSession) -> Result<(), Error> {
        writing.settle().await?;
        let len = writing.offset;
        let sealed = match &mut writing.file {
            UploadWriter::File(file) => return file.sync().await,
            UploadWriter::Parts(parts) => !parts.is_sealed() && parts.seal().await?,
        };
        if sealed {
            self.upload_checkpoint(writing);
            writing.settle().await?;
        }
        match &mut writing.file {
            UploadWriter::File(_) => Ok(()),
            UploadWriter::Parts(parts) => parts.store(len, writing.saved.generation).await,
        }
    }

    /// Makes all written bytes durable, and saves the offset in the upload's row.
    pub(super) async fn upload_save(&self, writing: &mut UploadSession) -> Result<(), Error> {
        if writing.offset > writing.saved.offset {
            self.upload_checkpoint(writing);
            writing.settle().await?;
        }
        Ok(())
    }
}

impl ChunkRange {
    /// Checks that the chunk starts at the upload's offset, and that its range and length agree.
    pub(super) fn fits(&self, row: &UploadRow) -> Result<(), Error> {
        let (id, offset) = (row.id, row.offset);
        if self.range.is_some_and(|(first, _)| first != offset) {
            return Err(Error::UploadConflict { id, offset });
        }
        match (self.declared(), self.length) {
            (Some(declared), Some(got)) if declared != got => {
                Err(Error::RangeMismatch { id, offset, declared, got })
            }
            _ => Ok(()),
        }
    }

    /// The number of bytes in the range; 0 if the last byte is before the first.
    pub(super) fn declared(&self) -> Option<u64> {
        self.range.map(|(first, last)| if last < first { 0 } else { (last - first).saturating_add(1) })
    }
}

/// An upload and its only writer.
pub(super) struct UploadSession {
    /// The row at the time when this writer took over.
    pub(super) row: UploadRow,
    /// The last saved state of the row.
    pub(super) saved: SavedState,
    /// The end of the written and hashed bytes.
    pub(super) offset: u64,
    /// The end of the bytes that are durable, or will be after the current checkpoint.
    synced: u64,
    /// The space for the body of the request. `None` without a quota.
    pub(super) space: Option<QuotaSpace>,
    pub(super) file: UploadWriter,
    /// `None` only while a batch is hashed.
    hasher: Option<Hasher>,
    checkpoint: Option<JoinHandle<Result<SavedState, Error>>>,
    /// A checkpoint failed. The row may have it nevertheless, if only the response of the database was lost.
    has_failed_checkpoint: bool,
    writer_lock: KeyLock<Uuid>,
}

#[derive(Clone, Copy)]
pub(super) struct SavedState {
    pub(super) offset: u64,
    pub(super) generation: i64,
}

impl UploadSession {
    /// Continues at the row's offset, holding the lock of the upload's only writer.
    pub(super) fn start(
        row: UploadRow,
        file: UploadWriter,
        writer_lock: KeyLock<Uuid>,
    ) -> Result<UploadSession, Error> {
        let hasher = Hasher::restore(&row.hash_state)
            .map_err(|_| Error::Corrupt { what: "hash state", value: row.id.to_string() })?;
        Ok(UploadSession {
            saved: SavedState { offset: row.offset, generation: row.generation },
            offset: row.offset,
            synced: row.offset,
            space: None,
            file,
            hasher: Some(hasher),
            checkpoint: None,
            has_failed_checkpoint: false,
            writer_lock,
            row,
        })
    }

    pub(super) fn id(&self) -> Uuid {
        self.row.id
    }

    /// Whether the upload has objects that can only be found through its row.
    pub(super) fn has_objects(&self) -> bool {
        matches!(&self.file, UploadWriter::Parts(parts) if parts.has_objects())
    }

    /// Whether the digest can be computed now.
    pub(super) fn can_compute_digest(&self, algorithm: Algorithm) -> bool {
        self.hasher.as_ref().is_some_and(|hasher| hasher.algorithm() == algorithm)
            || !matches!(&self.file, UploadWriter::Parts(parts) if parts.has_objects())
    }

    /// Waits for the checkpoint in progress.
    async fn settle(&mut self) -> Result<(), Error> {
        if let Some(checkpoint) = self.checkpoint.take() {
            let saved = checkpoint.await.unwrap_or(Err(Error::Interrupted));
            self.has_failed_checkpoint |= saved.is_err();
            self.saved = saved?;
        }
        Ok(())
    }

    /// The digest of all written bytes. If the algorithm differs from the session's, the file is read again.
    pub(super) async fn digest(&mut self, algorithm: Algorithm) -> Result<Digest, Error> {
        match self.hasher.clone() {
            Some(hasher) if hasher.algorithm() == algorithm => Ok(hasher.finish()),
            _ => self.file.digest(self.offset, algorithm).await,
        }
    }
}

/// Hashes and writes a batch concurrently, on two threads.
async fn write(
    file: &mut UploadWriter,
    hasher: &mut Option<Hasher>,
    offset: u64,
    pieces: Vec<Bytes>,
) -> Result<(), Error> {
    if pieces.is_empty() {
        return Ok(());
    }
    let pieces = Arc::new(pieces);
    let to_hash = pieces.clone();
    let mut hashing = hasher.take().ok_or(Error::Interrupted)?;
    let hashed = spawn_blocking(move || {
        to_hash.iter().for_each(|piece| hashing.update(piece));
        hashing
    });
    let (hashed, written) = tokio::join!(hashed, file.write(offset, pieces));
    *hasher = Some(hashed.map_err(|_| Error::Interrupted)?);
    written
}

/// Pieces of a body, and how the body ended, if it did.
#[derive(Default)]
struct Batch {
    pieces: Vec<Bytes>,
    len: u64,
    end: Option<BodyEnd>,
}

enum BodyEnd {
    Whole,
    Cut(BodyError),
    /// Another writer waits for the upload.
    Superseded,
}

/// The next batch of at most `writable` bytes. Excess bytes of the last piece are kept in `rest` for the
/// following batch.
async fn next_batch(
    body: &mut Body,
    rest: &mut Option<Bytes>,
    writable: u64,
    writer_lock: &mut KeyLock<Uuid>,
) -> Batch {
    let most = writable.min(BATCH_BYTES as u64);
    let mut batch = Batch::default();
    while batch.len < most && batch.pieces.len() < BATCH_PIECES {
        let piece = match rest.take() {
            Some(piece) => Some(Ok(piece)),
            None => tokio::select! {
                piece = body.next() => piece,
                () = writer_lock.wait_for_contender() => {
                    batch.end = Some(BodyEnd::Superseded);
                    break;
                }
            },
        };
        match piece {
            Some(Ok(mut piece)) => {
                // A file accepts any number of bytes, so its pieces are never split.
                let fits = usize::try_from(writable - batch.len).unwrap_or(usize::MAX);
                if piece.len() > fits {
                    *rest = Some(piece.split_off(fits));
                }
                batch.len += piece.len() as u64;
                batch.pieces.push(piece);
            }
            Some(Err(reason)) => {
                batch.end = Some(BodyEnd::Cut(reason));
                break;
            }
            None => {
                batch.end = Some(BodyEnd::Whole);
                break;
            }
        }
    }
    batch
}

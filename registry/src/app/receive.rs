//! A request body becomes durable bytes of an upload: hashed and written as it streams, through a bounded buffer,
//! with a checkpoint now and then, so that a cut or a crash costs no more than what came after the last.

use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use lode_model::digest::{Algorithm, Digest, Hasher};
use tokio::task::{JoinHandle, spawn_blocking};
use uuid::Uuid;

use super::{Body, BodyError, ChunkRange, Registry};
use crate::Error;
use crate::blobs::{Append, Checkpoint, Held};
use crate::store::UploadRow;

/// How much is hashed and written in one go; two of these are in memory for each upload.
const BATCH_BYTES: usize = 1024 * 1024;
/// A body of tiny pieces is not gathered beyond this many.
const BATCH_PIECES: usize = 512;
/// How much may be written before it is made durable and the upload's row moves on.
const CHECKPOINT_BYTES: u64 = 64 * 1024 * 1024;

impl Registry {
    /// Writes the body behind what is there, with a checkpoint now and then and at a cut.
    pub(super) async fn upload_receive(
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
                let _ = writing.file.truncate(writing.saved.offset).await;
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
        let (id, start) = (writing.id(), writing.offset);
        let mut rest = None;
        let mut next = gather(&mut body, &mut rest, writing.file.room_after(0), &mut writing.turn).await;
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
            if len > 0 && writing.file.is_sealed() {
                return Err(Error::UploadConflict { id, offset: writing.saved.offset });
            }
            // 2. Write this batch to its end, whatever comes: the next writer must find the file at rest.
            let room = writing.file.room_after(len);
            let written = write(&mut writing.file, &mut writing.hasher, writing.offset, pieces);
            let ahead = async {
                match end {
                    None => Ok(gather(&mut body, &mut rest, room, &mut writing.turn).await),
                    Some(end) => Err(end),
                }
            };
            let (written, ahead) = tokio::join!(written, ahead);
            written?;
            writing.offset += len;
            if writing.file.whole_part().is_some() {
                self.upload_send(writing).await?;
            }
            // 3. Go on, unless that was all.
            next = match ahead {
                Ok(batch) => batch,
                Err(End::Whole) => return Ok(()),
                Err(End::Cut(reason)) => return Err(Error::BodyCut(reason)),
                Err(End::Superseded) => {
                    return Err(Error::UploadConflict { id, offset: writing.saved.offset });
                }
            };
            if writing.offset - writing.synced >= CHECKPOINT_BYTES && writing.file.is_at_rest() {
                writing.settle().await?;
                self.upload_checkpoint(writing);
            }
        }
    }

    /// Makes what was written so far durable and saves it, while the stream goes on.
    fn upload_checkpoint(&self, writing: &mut Writing) {
        let (this, id, offset, generation) =
            (self.clone(), writing.id(), writing.offset, writing.saved.generation);
        let durable = writing.file.checkpoint(generation);
        let state = writing.hasher.as_ref().map(Hasher::save).unwrap_or_default();
        writing.synced = offset;
        writing.checkpoint = Some(tokio::spawn(async move {
            let Checkpoint { progress, fresh, obsolete } = durable.await?;
            if !this.store.upload_save(id, generation, offset, &state, &progress).await? {
                if let Some(key) = fresh {
                    this.blobs.discard(&key).await;
                }
                return Err(Error::UploadUnknown { id });
            }
            if let Some(key) = obsolete {
                this.blobs.discard(&key).await;
            }
            Ok(Saved { offset, generation: generation + 1 })
        }));
    }

    /// Sends a whole part on its way. Before the first one the row is told where they go, so that they are found whatever happens.
    async fn upload_send(&self, writing: &mut Writing) -> Result<(), Error> {
        writing.settle().await?;
        let (id, generation) = (writing.id(), writing.saved.generation);
        let Some(parts) = writing.file.whole_part() else { return Ok(()) };
        if let Some(progress) = parts.begin(generation).await? {
            // On an error the row may know of it all the same: whoever goes on goes on with it, and without a part it costs nothing.
            if !self.store.upload_announce(id, generation, &progress).await? {
                parts.take_back().await;
                return Err(Error::UploadUnknown { id });
            }
            writing.saved.generation += 1;
        }
        match writing.file.whole_part() {
            Some(parts) => parts.send().await,
            None => Ok(()),
        }
    }

    /// Makes everything that was written durable where a blob of it can lie, so that only its row is missing.
    pub(super) async fn upload_store(&self, writing: &mut Writing) -> Result<(), Error> {
        writing.settle().await?;
        let len = writing.offset;
        let sealed = match &mut writing.file {
            Append::File(file) => return file.sync().await,
            Append::Parts(parts) => !parts.is_sealed() && parts.seal().await?,
        };
        if sealed {
            self.upload_checkpoint(writing);
            writing.settle().await?;
        }
        match &mut writing.file {
            Append::File(_) => Ok(()),
            Append::Parts(parts) => parts.store(len, writing.saved.generation).await,
        }
    }

    /// Makes everything that was written durable, and says so in the upload's row.
    pub(super) async fn upload_save(&self, writing: &mut Writing) -> Result<(), Error> {
        if writing.offset > writing.saved.offset {
            self.upload_checkpoint(writing);
            writing.settle().await?;
        }
        Ok(())
    }
}

impl ChunkRange {
    /// Does the chunk start where the upload stands, and say one thing only?
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

    /// How many bytes the range names. A range whose last byte lies before its first names none.
    pub(super) fn declared(&self) -> Option<u64> {
        self.range.map(|(first, last)| if last < first { 0 } else { (last - first).saturating_add(1) })
    }
}

/// An upload in the hands of its one writer.
pub(super) struct Writing {
    /// The row as it was when this writer took it.
    pub(super) row: UploadRow,
    /// What the row says by now.
    pub(super) saved: Saved,
    /// How far the file is written, and the hash with it.
    pub(super) offset: u64,
    /// How far it is durable, or about to be.
    synced: u64,
    pub(super) file: Append,
    /// Away only while a batch is hashed.
    hasher: Option<Hasher>,
    checkpoint: Option<JoinHandle<Result<Saved, Error>>>,
    turn: Held<Uuid>,
}

#[derive(Clone, Copy)]
pub(super) struct Saved {
    pub(super) offset: u64,
    pub(super) generation: i64,
}

impl Writing {
    /// Goes on where the row stands, in the turn of its one writer.
    pub(super) fn start(row: UploadRow, file: Append, turn: Held<Uuid>) -> Result<Writing, Error> {
        let hasher = Hasher::restore(&row.hash_state)
            .map_err(|_| Error::Corrupt { what: "hash state", value: row.id.to_string() })?;
        Ok(Writing {
            saved: Saved { offset: row.offset, generation: row.generation },
            offset: row.offset,
            synced: row.offset,
            file,
            hasher: Some(hasher),
            checkpoint: None,
            turn,
            row,
        })
    }

    pub(super) fn id(&self) -> Uuid {
        self.row.id
    }

    /// Does the upload have objects that only its row leads to?
    pub(super) fn has_objects(&self) -> bool {
        matches!(&self.file, Append::Parts(parts) if parts.has_objects())
    }

    /// Can the digest be told from what is at hand?
    pub(super) fn can_tell(&self, algorithm: Algorithm) -> bool {
        self.hasher.as_ref().is_some_and(|hasher| hasher.algorithm() == algorithm)
            || !matches!(&self.file, Append::Parts(parts) if parts.has_objects())
    }

    /// Waits for the checkpoint under way.
    async fn settle(&mut self) -> Result<(), Error> {
        if let Some(checkpoint) = self.checkpoint.take() {
            self.saved = checkpoint.await.map_err(|_| Error::Interrupted)??;
        }
        Ok(())
    }

    /// The digest of everything written. Another algorithm than the session's costs one more reading of the file.
    pub(super) async fn digest(&mut self, algorithm: Algorithm) -> Result<Digest, Error> {
        match self.hasher.clone() {
            Some(hasher) if hasher.algorithm() == algorithm => Ok(hasher.finish()),
            _ => self.file.digest(self.offset, algorithm).await,
        }
    }
}

/// Hashes and writes a batch, each on its own thread.
async fn write(
    file: &mut Append,
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

/// The next batch of at most `room` bytes; what came with them and is too much is the `rest`, for the batch after.
async fn gather(body: &mut Body, rest: &mut Option<Bytes>, room: u64, turn: &mut Held<Uuid>) -> Batch {
    let most = room.min(BATCH_BYTES as u64);
    let mut batch = Batch::default();
    while batch.len < most && batch.pieces.len() < BATCH_PIECES {
        let piece = match rest.take() {
            Some(piece) => Some(Ok(piece)),
            None => tokio::select! {
                piece = body.next() => piece,
                () = turn.superseded() => {
                    batch.end = Some(End::Superseded);
                    break;
                }
            },
        };
        match piece {
            Some(Ok(mut piece)) => {
                // Whole pieces go where there is room for any number of bytes.
                let fits = usize::try_from(room - batch.len).unwrap_or(usize::MAX);
                if piece.len() > fits {
                    *rest = Some(piece.split_off(fits));
                }
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

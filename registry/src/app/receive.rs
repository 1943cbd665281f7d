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
use crate::blobs::{AppendFile, Held};
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
            file.save().await?;
            match this.store.upload_save(id, generation, offset, &state).await? {
                true => Ok(Saved { offset, generation: generation + 1 }),
                false => Err(Error::UploadUnknown { id }),
            }
        }));
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
    /// How many bytes the range names. A range whose last byte lies before its first names none.
    pub(super) fn declared(&self) -> Option<u64> {
        self.range.map(|(first, last)| if last < first { 0 } else { (last - first).saturating_add(1) })
    }
}

/// An upload in the hands of its one writer.
pub(super) struct Writing {
    pub(super) id: Uuid,
    pub(super) store_key: String,
    /// What the row says.
    pub(super) saved: Saved,
    /// How far the file is written, and the hash with it.
    pub(super) offset: u64,
    /// How far it is durable, or about to be.
    synced: u64,
    pub(super) file: AppendFile,
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
    pub(super) fn start(
        id: Uuid,
        row: UploadRow,
        file: AppendFile,
        turn: Held<Uuid>,
    ) -> Result<Writing, Error> {
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

    /// Waits for the checkpoint under way.
    async fn settle(&mut self) -> Result<(), Error> {
        if let Some(checkpoint) = self.checkpoint.take() {
            self.saved = checkpoint.await.map_err(|_| Error::Interrupted)??;
        }
        Ok(())
    }

    /// The digest of everything written. Another algorithm than the session's costs one more reading of the file.
    pub(super) async fn digest(&mut self, algorithm: Algorithm) -> Result<Digest, Error> {
        match self.hasher.take() {
            Some(hasher) if hasher.algorithm() == algorithm => Ok(hasher.finish()),
            _ => self.file.digest(self.offset, algorithm).await,
        }
    }
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

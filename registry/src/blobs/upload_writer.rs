//! The writer of an upload, for both kinds of storage.

use std::sync::Arc;

use bytes::Bytes;
use lode_model::digest::{Algorithm, Digest};

use super::remote::parts::PartWriter;
use super::upload::Checkpoint;
use super::writer::AppendFile;
use crate::Error;
use crate::metrics::measure_storage;

/// An upload's bytes, open for appending.
pub(crate) enum UploadWriter {
    File(AppendFile),
    Parts(Box<PartWriter>),
}

impl UploadWriter {
    /// How many bytes may be written in one call after `len` more bytes.
    pub(crate) fn writable_after(&self, len: u64) -> u64 {
        match self {
            UploadWriter::File(_) => u64::MAX,
            UploadWriter::Parts(parts) => parts.writable_after(len),
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

//! The writer of one upload. It collects bytes into parts, sends several parts at a time, and at each
//! checkpoint stores the bytes after the last part in an object of their own (the tail). An upload that never
//! fills a part becomes one object at the end, with one request.
//!
//! A blob is completed only from the parts in its row, after the row marks the list as final (sealed). A
//! writer that was replaced by another one cannot seal, so it cannot complete; and parts that it still sends
//! are not in the list.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::{BoxFuture, FutureExt, Shared};
use futures::{StreamExt, TryStreamExt};
use lode_model::digest::{Algorithm, Digest, Hasher};
use object_store::PutPayload;
use object_store::multipart::PartId;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::spawn_blocking;
use tokio::time::Instant;
use uuid::Uuid;

use super::notes::{PartNotes, corrupt, notes_of, progress};
use super::{Remote, part_sizes, retry_on_conflict, storage_error};
use crate::Error;
use crate::blobs::key;
use crate::blobs::upload::{Checkpoint, StoredUpload, UploadProgress};
use crate::metrics::measure_storage;

/// How many parts of one upload are sent at a time.
const MAX_CONCURRENT_PARTS: usize = 4;

/// How long to wait for the object of a multipart upload that another writer is completing, and how often to
/// look. Some storages report the upload as gone while they assemble its parts.
const ASSEMBLY_TIMEOUT: Duration = Duration::from_secs(8);
const ASSEMBLY_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Clone)]
struct Multipart {
    key: String,
    id: String,
}

pub(crate) struct PartWriter {
    remote: Remote,
    upload: Uuid,
    multipart: Option<Multipart>,
    parts: Vec<Part>,
    /// Bytes after the last part.
    buffered_pieces: Vec<Bytes>,
    buffered_bytes: u64,
    /// The key that the row has for them.
    tail: Option<String>,
    sealed: bool,
    /// The key of the blob's bytes, once they are complete.
    stored_key: Option<String>,
}

/// A part that is stored or being sent.
#[derive(Clone)]
enum Part {
    Uploaded(String),
    Uploading(Shared<BoxFuture<'static, Result<String, Arc<object_store::Error>>>>),
}

impl Part {
    fn is_uploading(&self) -> bool {
        matches!(self, Part::Uploading(sending) if sending.peek().is_none())
    }

    async fn wait_until_stored(self, id: Uuid) -> Result<String, Error> {
        let error = match self {
            Part::Uploaded(etag) => return Ok(etag),
            Part::Uploading(sending) => match sending.await {
                Ok(etag) => return Ok(etag),
                Err(error) => error,
            },
        };
        match *error {
            // Another process aborted or completed the multipart upload.
            object_store::Error::NotFound { .. } => Err(Error::UploadLost { id }),
            _ => Err(storage_error(format!("failed to send a part of upload {id}"), error)),
        }
    }
}

impl PartWriter {
    /// Resumes the upload at its row's state.
    pub(crate) async fn open(remote: Remote, upload: &StoredUpload) -> Result<PartWriter, Error> {
        let notes = notes_of(upload)?;
        let mut filling = Vec::new();
        let start = part_sizes::start(notes.etags.len());
        let filled =
            if notes.sealed { 0 } else { upload.offset.checked_sub(start).ok_or_else(|| corrupt(upload))? };
        if filled > 0 {
            let key = notes.tail.as_deref().ok_or_else(|| corrupt(upload))?;
            let broken = |error| Error::io(format!("failed to read {key}"), error);
            filling = remote.read(key, 0..filled).await?.try_collect().await.map_err(broken)?;
        }
        let multipart = match (&upload.progress.multipart_id, notes.key) {
            (Some(id), Some(key)) => Some(Multipart { key, id: id.clone() }),
            _ => None,
        };
        Ok(PartWriter {
            remote,
            upload: upload.id,
            multipart,
            parts: notes.etags.into_iter().map(Part::Uploaded).collect(),
            buffered_pieces: filling,
            buffered_bytes: filled,
            tail: notes.tail,
            sealed: notes.sealed,
            stored_key: None,
        })
    }

    /// How many bytes complete the current part after `len` more bytes, or the next part if these complete it.
    pub(crate) fn writable_after(&self, len: u64) -> u64 {
        let writable = part_sizes::size(self.parts.len()).saturating_sub(self.buffered_bytes + len);
        if writable == 0 { part_sizes::size(self.parts.len() + 1) } else { writable }
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.buffered_bytes >= part_sizes::size(self.parts.len())
    }

    pub(crate) fn is_at_boundary(&self) -> bool {
        self.buffered_bytes == 0
    }

    /// Whether the upload accepts no more bytes, because a commit has begun.
    pub(crate) fn is_sealed(&self) -> bool {
        self.sealed
    }

    pub(crate) fn write(&mut self, pieces: &[Bytes]) -> Result<(), Error> {
        if self.parts.len() >= part_sizes::MAX_PARTS {
            return Err(Error::StorageFull);
        }
        self.buffered_bytes += pieces.iter().map(|piece| piece.len() as u64).sum::<u64>();
        self.buffered_pieces.extend(pieces.iter().filter(|piece| !piece.is_empty()).cloned());
        Ok(())
    }

    /// Creates the multipart upload, if there is none yet. Its notes must be in the row before the first part
    /// is sent.
    pub(crate) async fn begin(&mut self, generation: i64) -> Result<Option<UploadProgress>, Error> {
        if self.multipart.is_some() {
            return Ok(None);
        }
        let key = key::object(self.upload, generation);
        let path = self.remote.path(&key);
        let create = retry_on_conflict(|| self.remote.0.multipart.create_multipart(&path));
        let id = measure_storage("begin", create).await;
        let id = id.map_err(|error| {
            storage_error(format!("failed to create the multipart upload of {key}"), error)
        })?;
        let notes = PartNotes { key: Some(key.clone()), tail: self.tail.clone(), ..PartNotes::default() };
        self.multipart = Some(Multipart { key, id: id.clone() });
        Ok(Some(progress(Some(id), &notes)?))
    }

    /// Aborts a multipart upload that could not be stored in the row.
    pub(crate) async fn abort_multipart_upload(&mut self) {
        if let Some(Multipart { key, id }) = self.multipart.take() {
            // If this fails, what remains has no parts and costs nothing.
            let _ = self.remote.0.multipart.abort_multipart(&self.remote.path(&key), &id).await;
        }
    }

    /// Sends the collected bytes as a part, as soon as a permit is available.
    pub(crate) async fn send(&mut self) -> Result<(), Error> {
        let permit = self.permit().await?;
        let Multipart { key, id } = self.multipart.clone().ok_or(Error::UploadLost { id: self.upload })?;
        let (remote, number) = (self.remote.clone(), self.parts.len());
        let payload = PutPayload::from_iter(std::mem::take(&mut self.buffered_pieces));
        self.buffered_bytes = 0;
        let sending = tokio::spawn(async move {
            let _permit = permit;
            let path = remote.path(&key);
            measure_storage("part", remote.0.multipart.put_part(&path, &id, number, payload)).await
        });
        let sending = async move {
            match sending.await {
                Ok(Ok(part)) => Ok(part.content_id),
                Ok(Err(error)) => Err(Arc::new(error)),
                Err(source) => Err(Arc::new(object_store::Error::JoinError { source })),
            }
        };
        self.parts.push(Part::Uploading(sending.boxed().shared()));
        Ok(())
    }

    /// Each upload may always send one part. More parts share the pool, so that uploads cannot starve each
    /// other.
    async fn permit(&self) -> Result<Option<OwnedSemaphorePermit>, Error> {
        let units = u32::try_from(self.buffered_bytes >> 20).unwrap_or(u32::MAX);
        let recent = self.parts.iter().rev().take(2 * MAX_CONCURRENT_PARTS);
        let mut flying: Vec<Part> =
            recent.filter(|part| matches!(part, Part::Uploading(_))).cloned().collect();
        flying.reverse();
        loop {
            let mut still = Vec::new();
            for part in flying {
                if part.is_uploading() {
                    still.push(part)
                } else {
                    drop(part.wait_until_stored(self.upload).await?)
                }
            }
            flying = still;
            let Some(oldest) = flying.first().cloned() else { return Ok(None) };
            if flying.len() < MAX_CONCURRENT_PARTS
                && let Ok(permit) = self.remote.0.pool.clone().try_acquire_many_owned(units)
            {
                return Ok(Some(permit));
            }
            oldest.wait_until_stored(self.upload).await?;
        }
    }

    /// Makes everything so far durable: the parts being sent, and the bytes after them as a tail.
    pub(crate) fn checkpoint(
        &mut self,
        generation: i64,
    ) -> impl Future<Output = Result<Checkpoint, Error>> + Send + 'static {
        let tail = (self.buffered_bytes > 0).then(|| key::tail(self.upload, generation));
        let obsolete = std::mem::replace(&mut self.tail, tail.clone());
        let payload = PutPayload::from_iter(self.buffered_pieces.iter().cloned());
        let (remote, multipart, parts) = (self.remote.clone(), self.multipart.clone(), self.parts.clone());
        let (sealed, upload) = (self.sealed, self.upload);
        async move {
            let kept = async {
                match &tail {
                    Some(key) => remote.put(key, payload).await,
                    None => Ok(()),
                }
            };
            let landed = async {
                let mut etags = Vec::with_capacity(parts.len());
                for part in parts {
                    etags.push(part.wait_until_stored(upload).await?);
                }
                Ok::<_, Error>(etags)
            };
            let (kept, etags) = tokio::join!(kept, landed);
            kept?;
            let (key, id) = multipart.map(|multipart| (multipart.key, multipart.id)).unzip();
            let fresh = tail.clone();
            let progress = progress(id, &PartNotes { key, etags: etags?, tail, sealed })?;
            Ok(Checkpoint { progress, fresh, obsolete })
        }
    }

    /// Sends the last, short part. The next notes for the row mark the list of parts as final. Returns false
    /// if no part was ever sent.
    pub(crate) async fn seal(&mut self) -> Result<bool, Error> {
        if self.multipart.is_none() {
            return Ok(false);
        }
        if self.buffered_bytes > 0 {
            self.send().await?;
        }
        self.sealed = true;
        Ok(true)
    }

    /// Turns a sealed upload, or one without parts, into an object of `len` bytes. Its key belongs to this
    /// writer, or can be filled only with exactly these parts.
    pub(crate) async fn store(&mut self, len: u64, generation: i64) -> Result<(), Error> {
        if self.stored_key.is_some() {
            return Ok(());
        }
        let key = match self.multipart.clone() {
            None => {
                let key = key::object(self.upload, generation);
                self.remote.put(&key, PutPayload::from_iter(self.buffered_pieces.iter().cloned())).await?;
                key
            }
            Some(multipart) => {
                self.complete(&multipart, len).await?;
                multipart.key
            }
        };
        self.stored_key = Some(key);
        Ok(())
    }

    async fn complete(&self, multipart: &Multipart, len: u64) -> Result<(), Error> {
        let mut parts = Vec::with_capacity(self.parts.len());
        for part in self.parts.clone() {
            parts.push(PartId { content_id: part.wait_until_stored(self.upload).await? });
        }
        let path = self.remote.path(&multipart.key);
        let door = &self.remote.0.multipart;
        let complete = || door.complete_multipart(&path, &multipart.id, parts.clone());
        let Err(error) = measure_storage("complete", retry_on_conflict(complete)).await else {
            return Ok(());
        };
        // An earlier attempt, whose response was lost, or another writer may have completed it or be doing so.
        // With `InvalidPart`, a replaced writer may also have sent another part in place of one in the list.
        let is_gone = matches!(error, object_store::Error::NotFound { .. })
            || crate::error::chain(&error).contains("InvalidPart");
        let deadline = Instant::now() + if is_gone { ASSEMBLY_TIMEOUT } else { Duration::ZERO };
        loop {
            if self.remote.size(&multipart.key).await? == Some(len) {
                return Ok(());
            }
            if Instant::now() >= deadline {
                break;
            }
            tokio::time::sleep(ASSEMBLY_INTERVAL).await;
        }
        match error {
            _ if is_gone => Err(Error::UploadLost { id: self.upload }),
            error => Err(storage_error(
                format!("failed to complete the multipart upload of {}", multipart.key),
                error,
            )),
        }
    }

    /// The key of the blob's bytes, once they are complete.
    pub(crate) fn key(&self) -> Result<String, Error> {
        self.stored_key.clone().ok_or(Error::UploadLost { id: self.upload })
    }

    /// The key that the row has for the bytes after the last part.
    pub(crate) fn tail(&self) -> Option<&str> {
        self.tail.as_deref()
    }

    /// The object that only this writer can have created and referenced.
    pub(crate) fn own_object(&self) -> Option<&str> {
        self.stored_key.as_deref().filter(|_| self.multipart.is_none())
    }

    pub(crate) fn has_objects(&self) -> bool {
        self.multipart.is_some() || self.stored_key.is_some()
    }

    pub(crate) async fn digest(&self, len: u64, algorithm: Algorithm) -> Result<Digest, Error> {
        let mut hasher = Hasher::new(algorithm);
        let mut bytes = match &self.stored_key {
            Some(key) if len > 0 => self.remote.read(key, 0..len).await?,
            _ => futures::stream::iter(self.buffered_pieces.clone()).map(Ok).boxed(),
        };
        let broken = |error| Error::io("failed to read an upload", error);
        while let Some(piece) = bytes.try_next().await.map_err(broken)? {
            let hashing = spawn_blocking(move || {
                hasher.update(&piece);
                hasher
            });
            hasher = hashing.await.map_err(|_| Error::Interrupted)?;
        }
        Ok(hasher.finish())
    }
}

//! Stores the layers of a planned model: mounts those that are stored already, and produces the others.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use lode_model::digest::{Algorithm, Digest, Hasher};
use lode_model::import::{ImportError, PlannedLayer, Source};
use lode_model::reference::Repository;
use tokio::sync::mpsc;

use super::create::{CreateError, blocking};
use super::model_files::ModelFiles;
use super::{Body, ChunkRange, Registry};
use crate::auth::Caller;
use crate::{BodyError, Error};

const READ_BYTES: usize = 1 << 20;
/// How much of a layer one core encodes at a time.
const PIECE_BYTES: u64 = 1 << 20;
/// How many pieces are buffered between the thread that produces a layer and the storage.
const PIECES: usize = 4;

impl Registry {
    /// Stores one layer. Returns its digest and whether the layer is new.
    pub(super) async fn layer_store(
        &self,
        caller: &Caller,
        repository: &Repository,
        layer: PlannedLayer,
        files: &Arc<ModelFiles>,
        made: &Arc<AtomicU64>,
    ) -> Result<(Digest, bool), CreateError> {
        let source: Arc<dyn Source> = files.clone();
        // 1. A file that is stored unchanged as a layer is already a blob. Scales are untrusted until they are
        //    checked.
        let whole = layer.content.whole_file().and_then(|path| files.digest(path));
        if layer.has_checks() && whole.is_some() {
            let (looking, reading) = (layer.clone(), source.clone());
            let looked = blocking(move || read_through(&mut looking.checked_reader(&reading))).await?;
            looked.map_err(|error| unreadable(&layer, error))?;
        }
        if let Some(digest) = whole
            && let Some(info) = self.blob_mount(caller, repository, digest, Some(files.repository())).await?
            && info.size_bytes == layer.size
        {
            return Ok((digest.clone(), false));
        }
        // 2. A layer that costs more to produce than to store is produced only once, and its digest is known
        //    afterwards.
        if layer.is_computed() {
            let (size, made) = (layer.size, made.clone());
            let counted = move |bytes: &Bytes| {
                made.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            };
            let body = layer_body(layer.clone(), source.clone()).inspect_ok(counted).boxed();
            return match self.blob_put_produced(caller, repository, size, body).await {
                Ok(info) => Ok((info.digest, true)),
                Err(Error::BodyInterrupted(reason)) => Err(match reason.downcast::<io::Error>() {
                    Ok(error) => unreadable(&layer, *error),
                    Err(reason) => Error::BodyInterrupted(reason).into(),
                }),
                Err(error) => Err(error.into()),
            };
        }
        // 3. The files of a stored model are parts of such layers. One that does not change is found without
        //    reading it.
        if !layer.has_checks() {
            let (looking, reading) = (layer.clone(), files.clone());
            if let Some(digest) = blocking(move || reading.layer_blob(&looking)).await?
                && let Some(info) =
                    self.blob_mount(caller, repository, &digest, Some(files.repository())).await?
                && info.size_bytes == layer.size
            {
                return Ok((digest, false));
            }
        }
        // 4. The same layer may be stored already, from a related model.
        let (hashing, reading) = (layer.clone(), source.clone());
        let digest = blocking(move || hash(&mut hashing.checked_reader(&reading))).await?;
        let digest = digest.map_err(|error| unreadable(&layer, error))?;
        if self.blob_mount(caller, repository, &digest, None).await?.is_some() {
            return Ok((digest, false));
        }
        // 5. Store it.
        let chunk = ChunkRange { range: None, length: Some(layer.size) };
        let body = layer_body(layer, source.clone());
        self.blob_put(caller, repository, &digest, chunk, body).await?;
        Ok((digest, true))
    }
}

fn hash(reader: &mut dyn Read) -> io::Result<Digest> {
    let mut hasher = Hasher::new(Algorithm::Sha256);
    let mut piece = vec![0; READ_BYTES];
    loop {
        match reader.read(&mut piece)? {
            0 => return Ok(hasher.finish()),
            read => hasher.update(&piece[..read]),
        }
    }
}

/// Reads to the end, for the checks that the reader makes. Object storage is read in long parts.
fn read_through(reader: &mut dyn Read) -> io::Result<()> {
    let mut piece = vec![0; 8 * READ_BYTES];
    while reader.read(&mut piece)? > 0 {}
    Ok(())
}

/// The bytes of a layer: encoded on all cores where encoding can start at any offset, otherwise produced by
/// one dedicated thread as they are consumed.
fn layer_body(layer: PlannedLayer, source: Arc<dyn Source>) -> Body {
    if layer.is_encoded() {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let offsets = (0..layer.size.div_ceil(PIECE_BYTES)).map(|piece| piece * PIECE_BYTES);
        return stream::iter(offsets)
            .map(move |offset| layer_piece(layer.clone(), source.clone(), offset))
            .buffered(cores)
            .boxed();
    }
    let (sender, receiver) = mpsc::channel::<Result<Bytes, BodyError>>(PIECES);
    tokio::task::spawn_blocking(move || {
        let mut reader = layer.reader(&source);
        loop {
            let mut piece = vec![0; READ_BYTES];
            let sent = match reader.read(&mut piece) {
                Ok(0) => return,
                Ok(read) => {
                    piece.truncate(read);
                    sender.blocking_send(Ok(piece.into()))
                }
                Err(error) => sender.blocking_send(Err(error.into())),
            };
            if sent.is_err() {
                return;
            }
        }
    });
    stream::unfold(receiver, |mut receiver| async move { Some((receiver.recv().await?, receiver)) }).boxed()
}

async fn layer_piece(layer: PlannedLayer, source: Arc<dyn Source>, offset: u64) -> Result<Bytes, BodyError> {
    let made = blocking(move || {
        let length = PIECE_BYTES.min(layer.size - offset);
        let mut piece = vec![0; length as usize];
        layer.range_reader(&source, offset, length).read_exact(&mut piece).map(|()| piece)
    });
    Ok(made.await??.into())
}

fn unreadable(layer: &PlannedLayer, source: io::Error) -> CreateError {
    CreateError::Import(ImportError::Read { path: layer.name.clone().unwrap_or_default(), source })
}

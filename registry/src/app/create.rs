//! Creates models on the server: from a stored model, whose layers are referenced again, or from uploaded
//! files. The manifest is written last, so that an interrupted creation leaves nothing visible, and a
//! repeated one continues.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use lode_model::digest::{Algorithm, Digest, Hasher};
use lode_model::gguf::PartName;
use lode_model::import::{
    self, FinishError, ImportError, Options, Plan, PlannedLayer, Quantize, ReadAt, SmallBlob, Source,
    SourceFile,
};
use lode_model::manifest::Descriptor;
use lode_model::media_type;
use lode_model::modelfile::{Base, DeriveError, DerivedModel, Edits, derive};
use lode_model::reference::{Reference, Repository};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::staging::staging;
use super::{Body, ChunkRange, Registry};
use crate::auth::{Action, Caller, Target};
use crate::error::chain;
use crate::{BodyError, Error};

/// How many layers are created at a time.
const LAYERS_AT_ONCE: usize = 4;
const READ_BYTES: usize = 1 << 20;
/// How much of a layer one core encodes at a time.
const PIECE_BYTES: u64 = 1 << 20;
/// How many pieces are buffered between the thread that produces a layer and the storage.
const PIECES: usize = 4;
/// How often the progress of quantisation is reported.
const QUANTISE_REPORT_INTERVAL: Duration = Duration::from_millis(250);
/// File name extensions of an adapter's weights.
const ADAPTER_EXTENSIONS: [&str; 2] = [".gguf", ".safetensors"];

/// The description of a model to create.
#[derive(Clone, Debug)]
pub struct NewModel {
    pub repository: Repository,
    pub reference: Reference,
    pub from: ModelSource,
    /// Files of adapters and draft models, with the path of each.
    pub extra: Vec<ExtraFile>,
    pub edits: Edits,
    pub quantize: Option<Quantize>,
}

/// The source of a new model.
#[derive(Clone, Debug)]
pub enum ModelSource {
    Model {
        repository: Repository,
        reference: Reference,
        name: String,
    },
    /// Files that were uploaded before, by path.
    Files(BTreeMap<String, Digest>),
}

#[derive(Clone, Debug)]
pub struct ExtraFile {
    pub media_type: &'static str,
    pub path: String,
    pub digest: Digest,
}

/// A step of the creation, for progress reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CreateStep {
    Reading,
    /// A notice for the user.
    Notice(String),
    /// The progress over all quantised layers, in bytes.
    Quantising {
        to: Quantize,
        total: u64,
        completed: u64,
    },
    /// A layer that was already stored.
    Existing(Digest),
    /// A layer that was created or stored.
    Created(Digest),
    WritingManifest,
}

/// Why a model cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    #[error(transparent)]
    Registry(#[from] Error),
    #[error("model '{name}' not found")]
    BaseUnknown { name: String },
    #[error("no files provided to convert")]
    NoFiles,
    #[error("file `{path}` ({digest}) was not sent: POST it to /api/blobs/{digest} first")]
    FileUnknown { path: String, digest: Digest },
    #[error("cannot import these files")]
    Import(#[source] ImportError),
    #[error("cannot create the model")]
    Derive(#[from] DeriveError),
    #[error("cannot create the model")]
    Finish(#[from] FinishError),
    #[error("quantising needs files: a stored model keeps its weights")]
    QuantizeModel,
}

impl Registry {
    /// Checks that a model can be created, as far as that is known at once.
    pub async fn model_create_check(&self, caller: &Caller, new: &NewModel) -> Result<(), CreateError> {
        // 1. Check the permission and the source.
        self.check_push_manifest(caller, &new.repository).await?;
        match &new.from {
            ModelSource::Model { repository, reference, name } => {
                let base = self.model_show(caller, repository, reference).await?;
                base.ok_or_else(|| CreateError::BaseUnknown { name: name.clone() })?;
                if new.quantize.is_some() {
                    return Err(CreateError::QuantizeModel);
                }
            }
            ModelSource::Files(files) if files.is_empty() => return Err(CreateError::NoFiles),
            ModelSource::Files(files) => {
                for (path, digest) in files {
                    self.staged_size(caller, path, digest).await?;
                }
            }
        }
        // 2. Check the edits and the additional files.
        new.edits.check()?;
        for file in &new.extra {
            self.extra_check(caller, file).await?;
        }
        Ok(())
    }

    /// Creates a model. `tell` receives each step.
    pub async fn model_create(
        &self,
        caller: &Caller,
        mut new: NewModel,
        tell: &(dyn Fn(CreateStep) + Send + Sync),
    ) -> Result<Digest, CreateError> {
        self.check_push_manifest(caller, &new.repository).await?;
        for file in &new.extra {
            let size = self.staged_size(caller, &file.path, &file.digest).await?;
            self.blob_mount(caller, &new.repository, &file.digest, Some(&staging(caller))).await?;
            let mut layer = Descriptor::new(file.media_type, file.digest.clone(), size);
            layer.name = Some(file.path.clone());
            new.edits.layers.push(layer);
            tell(CreateStep::Existing(file.digest.clone()));
        }
        let derived = match &new.from {
            ModelSource::Model { repository, reference, name } => {
                self.create_from_model(caller, &new, (repository, reference), name, tell).await?
            }
            ModelSource::Files(files) => self.create_from_files(caller, &new, files, tell).await?,
        };
        for blob in &derived.blobs {
            self.small_put(caller, &new.repository, blob).await?;
            tell(CreateStep::Created(blob.descriptor.digest.clone()));
        }
        tell(CreateStep::WritingManifest);
        let (kind, bytes) = (derived.media_type, Bytes::from(derived.manifest));
        let put = self.manifest_put(caller, &new.repository, &new.reference, Some(&kind), bytes, &[]).await?;
        Ok(put.digest)
    }

    async fn create_from_model(
        &self,
        caller: &Caller,
        new: &NewModel,
        (repository, reference): (&Repository, &Reference),
        name: &str,
        tell: &(dyn Fn(CreateStep) + Send + Sync),
    ) -> Result<DerivedModel, CreateError> {
        // 1. Read the base model.
        let stored = match self.manifest_get(caller, repository, reference).await {
            Err(Error::ManifestUnknown { .. } | Error::NameUnknown { .. }) => {
                return Err(CreateError::BaseUnknown { name: name.to_owned() });
            }
            stored => stored?,
        };
        self.audit_pull(caller, repository, &stored.digest);
        let manifest = stored.parse()?;
        let params = manifest.layers.iter().find(|layer| layer.media_type == media_type::OLLAMA_PARAMS);
        let params = match params {
            Some(layer) => self.blob_text(caller, repository, layer).await?,
            None => None,
        };
        let config = match &manifest.config {
            Some(config) => self.blob_text(caller, repository, config).await?.unwrap_or_default(),
            None => Vec::new(),
        };
        let named = name.strip_suffix(":latest").unwrap_or(name);
        let base = Base {
            manifest: &manifest,
            config: &config,
            params: params.as_deref(),
            origin_name: Some((named, &stored.digest)),
        };
        let derived = derive(&base, &new.edits)?;
        // 2. Link its blobs in the new model's repository. No bytes are copied.
        let mut seen = BTreeSet::new();
        for blob in manifest.blobs().filter(|blob| seen.insert(blob.digest.clone())) {
            if *repository != new.repository {
                self.blob_link_from(caller, repository, &new.repository, blob).await?;
            }
            tell(CreateStep::Existing(blob.digest.clone()));
        }
        Ok(derived)
    }

    async fn blob_link_from(
        &self,
        caller: &Caller,
        from: &Repository,
        to: &Repository,
        blob: &Descriptor,
    ) -> Result<(), Error> {
        if self.blob_mount(caller, to, &blob.digest, Some(from)).await?.is_some() {
            return Ok(());
        }
        // Not stored here: below a mirrored prefix, reading it fetches it.
        self.blob_find(caller, from, &blob.digest).await?;
        match self.blob_mount(caller, to, &blob.digest, Some(from)).await? {
            Some(_) => Ok(()),
            None => Err(Error::BlobUnknown { digest: blob.digest.clone() }),
        }
    }

    async fn create_from_files(
        &self,
        caller: &Caller,
        new: &NewModel,
        files: &BTreeMap<String, Digest>,
        tell: &(dyn Fn(CreateStep) + Send + Sync),
    ) -> Result<DerivedModel, CreateError> {
        // 1. Plan the layers.
        tell(CreateStep::Reading);
        let mut staged = Vec::new();
        for (path, digest) in files {
            let size = self.staged_size(caller, path, digest).await?;
            staged.push(StagedFile { path: path.clone(), digest: digest.clone(), size });
        }
        let source: Arc<dyn Source> = Arc::new(self.staged(caller, staged));
        let options = Options { quantize: new.quantize, architectures: &[] };
        let (planning, edits) = (source.clone(), new.edits.clone());
        let plan = blocking(move || {
            let plan = import::plan(&*planning, &options).map_err(CreateError::Import)?;
            plan.check(&edits)?;
            Ok::<_, CreateError>(plan)
        });
        let plan = plan.await??;
        plan.notices.iter().for_each(|notice| tell(CreateStep::Notice(notice.clone())));
        // 2. Create the layers that are not stored yet.
        let made = Arc::new(AtomicU64::new(0));
        let telling = report_quantising(new.quantize, &plan, &made, tell);
        let layers = stream::iter(plan.layers.clone())
            .map(|layer| self.layer_store(caller, &new.repository, layer, &source, files, &made))
            .buffered(LAYERS_AT_ONCE)
            .inspect_ok(|(digest, is_new)| {
                tell(if *is_new {
                    CreateStep::Created(digest.clone())
                } else {
                    CreateStep::Existing(digest.clone())
                });
            });
        let digests: Vec<Digest> = tokio::select! {
            digests = layers.map_ok(|(digest, _)| digest).try_collect() => digests?,
            never = telling => match never {},
        };
        let total = encoded_bytes(&plan);
        if let Some(to) = new.quantize.filter(|_| total > 0) {
            tell(CreateStep::Quantising { to, total, completed: total });
        }
        // 3. Make the metadata.
        Ok(plan.model(&digests, files, &new.edits)?)
    }

    /// Stores one layer. Returns its digest and whether the layer is new.
    async fn layer_store(
        &self,
        caller: &Caller,
        repository: &Repository,
        layer: PlannedLayer,
        source: &Arc<dyn Source>,
        files: &BTreeMap<String, Digest>,
        made: &Arc<AtomicU64>,
    ) -> Result<(Digest, bool), CreateError> {
        // 1. A file that is stored unchanged as a layer was already uploaded. Scales are untrusted until they
        //    are checked.
        let whole = layer.content.whole_file().and_then(|path| files.get(path));
        if layer.has_checks() && whole.is_some() {
            let (looking, reading) = (layer.clone(), source.clone());
            let looked = blocking(move || read_through(&mut looking.checked_reader(&reading))).await?;
            looked.map_err(|error| unreadable(&layer, error))?;
        }
        if let Some(digest) = whole
            && let Some(info) = self.blob_mount(caller, repository, digest, Some(&staging(caller))).await?
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
        // 3. The same layer may be stored already, from a related model.
        let (hashing, reading) = (layer.clone(), source.clone());
        let digest = blocking(move || hash(&mut hashing.checked_reader(&reading))).await?;
        let digest = digest.map_err(|error| unreadable(&layer, error))?;
        if self.blob_mount(caller, repository, &digest, None).await?.is_some() {
            return Ok((digest, false));
        }
        // 4. Store it.
        let chunk = ChunkRange { range: None, length: Some(layer.size) };
        let body = layer_body(layer, source.clone());
        self.blob_put(caller, repository, &digest, chunk, body).await?;
        Ok((digest, true))
    }

    async fn small_put(
        &self,
        caller: &Caller,
        repository: &Repository,
        blob: &SmallBlob,
    ) -> Result<(), Error> {
        let SmallBlob { descriptor, bytes } = blob;
        let chunk = ChunkRange { range: None, length: Some(descriptor.size) };
        let bytes = Bytes::from(bytes.clone());
        let body: Body = stream::once(async move { Ok(bytes) }).boxed();
        self.blob_put(caller, repository, &descriptor.digest, chunk, body).await.map(drop)
    }

    /// Checks that the header of an adapter's or a draft model's file matches its file name.
    async fn extra_check(&self, caller: &Caller, file: &ExtraFile) -> Result<(), CreateError> {
        let size = self.staged_size(caller, &file.path, &file.digest).await?;
        let (_, name) = file.path.rsplit_once('/').unwrap_or(("", &file.path));
        let lower = name.to_ascii_lowercase();
        // A part of a split file cannot be checked alone.
        let is_part = PartName::parse(name).is_some();
        if is_part || !ADAPTER_EXTENSIONS.iter().any(|end| lower.ends_with(end)) {
            return Ok(());
        }
        let alone = StagedFile { path: name.to_owned(), digest: file.digest.clone(), size };
        let source = self.staged(caller, vec![alone]);
        let planned = blocking(move || import::plan(&source, &Options::default())).await?;
        planned.map(drop).map_err(CreateError::Import)
    }

    fn staged(&self, caller: &Caller, files: Vec<StagedFile>) -> StagedFiles {
        StagedFiles { registry: self.clone(), caller: caller.clone(), files, runtime: Handle::current() }
    }

    /// The size of a file that was uploaded, or that is stored where this caller may use it.
    async fn staged_size(&self, caller: &Caller, path: &str, digest: &Digest) -> Result<u64, CreateError> {
        self.authorize(caller, Action::Push, Target::Repository(&staging(caller))).await?;
        match self.staged_stat(caller, digest).await? {
            true => Ok(self.blob_find(caller, &staging(caller), digest).await?.size_bytes),
            false => Err(CreateError::FileUnknown { path: path.to_owned(), digest: digest.clone() }),
        }
    }
}

fn encoded_bytes(plan: &Plan) -> u64 {
    plan.layers.iter().filter(|layer| layer.is_computed()).map(|layer| layer.size).sum()
}

/// Reports the progress of quantisation until it is dropped.
async fn report_quantising(
    to: Option<Quantize>,
    plan: &Plan,
    made: &AtomicU64,
    tell: &(dyn Fn(CreateStep) + Send + Sync),
) -> Infallible {
    let total = encoded_bytes(plan);
    let Some(to) = to.filter(|_| total > 0) else { return std::future::pending().await };
    let (mut ticks, mut last_reported) = (tokio::time::interval(QUANTISE_REPORT_INTERVAL), None);
    loop {
        ticks.tick().await;
        let completed = made.load(Ordering::Relaxed).min(total);
        if last_reported.replace(completed) != Some(completed) {
            tell(CreateStep::Quantising { to, total, completed });
        }
    }
}

/// Files that were uploaded before, for the planner to read.
struct StagedFiles {
    registry: Registry,
    caller: Caller,
    files: Vec<StagedFile>,
    runtime: Handle,
}

struct StagedFile {
    path: String,
    digest: Digest,
    size: u64,
}

impl Source for StagedFiles {
    fn files(&self) -> Vec<SourceFile> {
        self.files.iter().map(|file| SourceFile { path: file.path.clone(), size: file.size }).collect()
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn ReadAt>> {
        let file = self.files.iter().find(|file| file.path == path).ok_or(io::ErrorKind::NotFound)?;
        let found = self.runtime.block_on(async {
            let blob = self.registry.blob_visible(&self.caller, &staging(&self.caller), &file.digest).await?;
            self.registry.blob_file(&blob).await
        });
        // A file in the blob folder is read in place; from object storage, each part is fetched.
        Ok(match found.map_err(|error| log_and_hide_cause(error, &file.digest))? {
            Some(opened) => Box::new(StagedFileReader { file: opened, size: file.size }),
            None => Box::new(StagedBlobReader {
                registry: self.registry.clone(),
                caller: self.caller.clone(),
                digest: file.digest.clone(),
                size: file.size,
                runtime: self.runtime.clone(),
            }),
        })
    }
}

/// Logs the cause, which names places in the storage, and returns an error that the caller may see.
fn log_and_hide_cause(error: Error, digest: &Digest) -> io::Error {
    tracing::error!(%digest, error = chain(&error), "failed to read a staged blob");
    io::Error::other("the storage failed to read it; the server's log has the reason")
}

struct StagedFileReader {
    file: File,
    size: u64,
}

impl ReadAt for StagedFileReader {
    fn len(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buf, offset)
    }
}

struct StagedBlobReader {
    registry: Registry,
    caller: Caller,
    digest: Digest,
    size: u64,
    runtime: Handle,
}

impl ReadAt for StagedBlobReader {
    fn len(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let range = offset..offset.saturating_add(buf.len() as u64);
        let staging = staging(&self.caller);
        let part = self.registry.blob_part(&self.caller, &staging, &self.digest, range);
        let bytes = self.runtime.block_on(part).map_err(|error| log_and_hide_cause(error, &self.digest))?;
        if bytes.len() != buf.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        buf.copy_from_slice(&bytes);
        Ok(())
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

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Error> {
    tokio::task::spawn_blocking(work).await.map_err(|_| Error::Interrupted)
}

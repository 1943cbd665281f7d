//! Creates models on the server: from a stored model, whose layers are referenced again or converted, or from
//! uploaded files. The manifest is written last, so that an interrupted creation leaves nothing visible, and a
//! repeated one continues.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use lode_model::digest::Digest;
use lode_model::files_view::{FileView, FileViewError, MAX_VIEW_BYTES};
use lode_model::gguf::PartName;
use lode_model::import::{self, Conversion, FinishError, ImportError, Options, Plan, SmallBlob};
use lode_model::manifest::{Descriptor, Manifest};
use lode_model::media_type;
use lode_model::modelfile::{Base, DeriveError, DerivedModel, Edits, derive};
use lode_model::recognise::Artifact;
use lode_model::reference::{Reference, Repository};
use serde_json::{Map, Value};

use super::model_files::ModelFiles;
use super::staging::staging;
use super::{Body, ChunkRange, ManifestFile, Registry, StoredManifest};
use crate::Error;
use crate::auth::{Action, Caller, Target};

/// How many layers are created at a time.
const MAX_CONCURRENT_LAYERS: usize = 4;
/// How often the progress of a conversion is reported.
const CONVERSION_REPORT_INTERVAL: Duration = Duration::from_millis(250);
/// The types of layers that are added to a model's files.
const ADDITIONS: [&str; 9] = [
    media_type::OLLAMA_TEMPLATE,
    media_type::OLLAMA_PROMPT,
    media_type::OLLAMA_SYSTEM,
    media_type::OLLAMA_PARAMS,
    media_type::OLLAMA_MESSAGES,
    media_type::OLLAMA_LICENSE,
    media_type::OLLAMA_ADAPTER,
    media_type::OLLAMA_PROJECTOR,
    media_type::OLLAMA_DRAFT,
];
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
    pub conversion: Option<Conversion>,
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
    /// The progress over all converted layers, in bytes.
    Converting {
        to: Conversion,
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
    #[error(
        "a job creates a model from a stored one: 'files', 'adapters' and 'draft_files' need /api/create"
    )]
    JobFiles,
    #[error("file `{path}` ({digest}) was not sent: POST it to /api/blobs/{digest} first")]
    FileUnknown { path: String, digest: Digest },
    #[error("cannot import these files")]
    Import(#[source] ImportError),
    #[error("cannot create the model")]
    Derive(#[from] DeriveError),
    #[error("cannot create the model")]
    Finish(#[from] FinishError),
    #[error("cannot read the files of model '{name}'")]
    BaseFiles { name: String, source: FileViewError },
    #[error("the file view of model '{name}' has {size} bytes, expected at most {MAX_VIEW_BYTES}")]
    BaseFilesTooLarge { name: String, size: u64 },
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

    /// Creates a model. `report_step` receives each step.
    pub async fn model_create(
        &self,
        caller: &Caller,
        new: NewModel,
        report_step: &(dyn Fn(CreateStep) + Send + Sync),
    ) -> Result<Digest, CreateError> {
        let (repository, reference) = (new.repository.clone(), new.reference.clone());
        let (caller, kind, bytes) = self.layers_create(caller, new, report_step).await?;
        Ok(self.manifest_put(&caller, &repository, &reference, Some(&kind), bytes, &[]).await?.digest)
    }

    /// Stores the layers of a model. Returns its manifest with the media type, and the caller with the rights that it
    /// has now.
    pub(super) async fn layers_create(
        &self,
        caller: &Caller,
        mut new: NewModel,
        report_step: &(dyn Fn(CreateStep) + Send + Sync),
    ) -> Result<(Caller, String, Bytes), CreateError> {
        self.check_push_manifest(caller, &new.repository).await?;
        for file in &new.extra {
            let size = self.staged_size(caller, &file.path, &file.digest).await?;
            self.blob_mount(caller, &new.repository, &file.digest, Some(&staging(caller))).await?;
            let mut layer = Descriptor::new(file.media_type, file.digest.clone(), size);
            layer.name = Some(file.path.clone());
            new.edits.layers.push(layer);
            report_step(CreateStep::Existing(file.digest.clone()));
        }
        let derived = match &new.from {
            ModelSource::Model { repository, reference, name } => {
                let base = self.base_read(caller, repository, reference, name).await?;
                match new.conversion {
                    None => self.create_from_model(caller, &new, &base, report_step).await?,
                    Some(_) => self.create_from_model_files(caller, &new, &base, report_step).await?,
                }
            }
            ModelSource::Files(files) => {
                let files = Arc::new(self.staged_files(caller, files).await?);
                self.files_import(caller, &new.repository, new.conversion, &files, &new.edits, report_step)
                    .await?
            }
        };
        for blob in &derived.blobs {
            self.small_put(caller, &new.repository, blob).await?;
            report_step(CreateStep::Created(blob.descriptor.digest.clone()));
        }
        report_step(CreateStep::WritingManifest);
        // The rights may have ended while the layers were created.
        let base = match &new.from {
            ModelSource::Model { repository, .. } => Some(repository),
            ModelSource::Files(_) => None,
        };
        let caller = self.caller_recheck(caller, &new.repository, base).await?;
        Ok((caller, derived.media_type, Bytes::from(derived.manifest)))
    }

    /// Reads what a new model needs of its base.
    async fn base_read(
        &self,
        caller: &Caller,
        repository: &Repository,
        reference: &Reference,
        name: &str,
    ) -> Result<StoredBase, CreateError> {
        let stored = match self.manifest_get(caller, repository, reference).await {
            Err(Error::ManifestUnknown { .. } | Error::NameUnknown { .. }) => {
                return Err(CreateError::BaseUnknown { name: name.to_owned() });
            }
            stored => stored?,
        };
        self.audit_pull(caller, repository, &stored.digest);
        self.base_of(caller, repository, stored, name).await
    }

    pub(super) async fn base_of(
        &self,
        caller: &Caller,
        repository: &Repository,
        stored: StoredManifest,
        name: &str,
    ) -> Result<StoredBase, CreateError> {
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
        let name = name.strip_suffix(":latest").unwrap_or(name).to_owned();
        Ok(StoredBase {
            repository: repository.clone(),
            digest: stored.digest,
            name,
            manifest,
            config,
            params,
        })
    }

    /// Creates a model with the weights of its base.
    async fn create_from_model(
        &self,
        caller: &Caller,
        new: &NewModel,
        base: &StoredBase,
        report_step: &(dyn Fn(CreateStep) + Send + Sync),
    ) -> Result<DerivedModel, CreateError> {
        let derived = derive(&base.base(), &new.edits)?;
        self.blobs_link(caller, new, base, base.manifest.blobs(), report_step).await?;
        Ok(derived)
    }

    /// Creates a model with converted weights: imports the files of its base again, and keeps what was added to
    /// them there.
    async fn create_from_model_files(
        &self,
        caller: &Caller,
        new: &NewModel,
        base: &StoredBase,
        report_step: &(dyn Fn(CreateStep) + Send + Sync),
    ) -> Result<DerivedModel, CreateError> {
        if base.manifest.is_index() {
            return Err(DeriveError::Index.into());
        }
        // 1. Import the base's files, with its texts, options and adapters.
        let files = Arc::new(self.base_files(caller, base).await?);
        let inherited = base.additions();
        self.blobs_link(caller, new, base, inherited.layers.iter(), report_step).await?;
        let (repository, conversion) = (&new.repository, new.conversion);
        let imported =
            self.files_import(caller, repository, conversion, &files, &inherited, report_step).await?;
        // 2. Apply the edits of the new model.
        let manifest =
            Manifest::parse(Some(&imported.media_type), &imported.manifest).map_err(FinishError::from)?;
        let config = imported.blobs.iter().find(|blob| {
            manifest.config.as_ref().is_some_and(|config| config.digest == blob.descriptor.digest)
        });
        let on = Base {
            manifest: &manifest,
            config: config.map(|blob| &blob.bytes[..]).unwrap_or_default(),
            ..base.base()
        };
        let mut derived = derive(&on, &new.edits)?;
        derived.blobs.splice(..0, imported.blobs);
        Ok(derived)
    }

    async fn base_files(&self, caller: &Caller, base: &StoredBase) -> Result<ModelFiles, CreateError> {
        let view = match FileView::find(&base.manifest) {
            Some(view) if view.size > MAX_VIEW_BYTES => {
                return Err(CreateError::BaseFilesTooLarge { name: base.name.clone(), size: view.size });
            }
            Some(view) => Some(self.blob_part(caller, &base.repository, &view.digest, 0..view.size).await?),
            None => None,
        };
        let (repository, view) = (base.repository.clone(), view.as_deref());
        ModelFiles::stored(self, caller, repository, &base.manifest, &base.config, view)
            .map_err(|source| CreateError::BaseFiles { name: base.name.clone(), source })
    }

    /// Links blobs of the base in the new model's repository. No bytes are copied.
    async fn blobs_link(
        &self,
        caller: &Caller,
        new: &NewModel,
        base: &StoredBase,
        blobs: impl Iterator<Item = &Descriptor>,
        report_step: &(dyn Fn(CreateStep) + Send + Sync),
    ) -> Result<(), Error> {
        let mut seen = BTreeSet::new();
        for blob in blobs.filter(|blob| seen.insert(blob.digest.clone())) {
            if base.repository != new.repository {
                self.blob_link_from(caller, &base.repository, &new.repository, blob).await?;
            }
            report_step(CreateStep::Existing(blob.digest.clone()));
        }
        Ok(())
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

    /// Imports files as a model of a repository.
    pub(super) async fn files_import(
        &self,
        caller: &Caller,
        repository: &Repository,
        conversion: Option<Conversion>,
        files: &Arc<ModelFiles>,
        edits: &Edits,
        report_step: &(dyn Fn(CreateStep) + Send + Sync),
    ) -> Result<DerivedModel, CreateError> {
        // 1. Plan the layers.
        report_step(CreateStep::Reading);
        let options = Options { conversion };
        let (planning, planned_edits) = (files.clone(), edits.clone());
        let plan = blocking(move || {
            let plan = import::plan(&*planning, &options).map_err(CreateError::Import)?;
            plan.check(&planned_edits)?;
            Ok::<_, CreateError>(plan)
        });
        let plan = plan.await??;
        plan.notices.iter().for_each(|notice| report_step(CreateStep::Notice(notice.clone())));
        // 2. Create the layers that are not stored yet.
        let made = Arc::new(AtomicU64::new(0));
        let reporting = report_converting(conversion, &plan, &made, report_step);
        let layers = stream::iter(plan.layers.clone())
            .map(|layer| self.layer_store(caller, repository, layer, files, &made))
            .buffered(MAX_CONCURRENT_LAYERS)
            .inspect_ok(|(digest, is_new)| {
                report_step(if *is_new {
                    CreateStep::Created(digest.clone())
                } else {
                    CreateStep::Existing(digest.clone())
                });
            });
        let digests: Vec<Digest> = tokio::select! {
            digests = layers.map_ok(|(digest, _)| digest).try_collect() => digests?,
            never = reporting => match never {},
        };
        let total = encoded_bytes(&plan);
        if let Some(to) = conversion.filter(|_| total > 0) {
            report_step(CreateStep::Converting { to, total, completed: total });
        }
        // 3. Make the metadata.
        let mut split: BTreeMap<String, Digest> = BTreeMap::new();
        for path in plan.files_to_hash() {
            let digest = match files.digest(path) {
                Some(digest) => digest.clone(),
                None => {
                    let (hashing, of) = (files.clone(), path.to_owned());
                    let read = |source| ImportError::Read { path: path.to_owned(), source };
                    let hashed = blocking(move || import::hash_file(&*hashing, &of)).await?;
                    hashed.map_err(|error| CreateError::Import(read(error)))?
                }
            };
            split.insert(path.to_owned(), digest);
        }
        Ok(plan.model(&digests, &split, edits)?)
    }

    pub(super) async fn small_put(
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
        let alone = [(name.to_owned(), file.digest.clone(), size)];
        let source = ModelFiles::whole(self, caller, staging(caller), alone);
        let planned = blocking(move || import::plan(&source, &Options::default())).await?;
        planned.map(drop).map_err(CreateError::Import)
    }

    /// Files that were uploaded before.
    async fn staged_files(
        &self,
        caller: &Caller,
        files: &BTreeMap<String, Digest>,
    ) -> Result<ModelFiles, CreateError> {
        let mut staged = Vec::new();
        for (path, digest) in files {
            let size = self.staged_size(caller, path, digest).await?;
            staged.push((path.clone(), digest.clone(), size));
        }
        Ok(ModelFiles::whole(self, caller, staging(caller), staged))
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

/// A stored model from which another is created.
pub(super) struct StoredBase {
    repository: Repository,
    digest: Digest,
    /// As the caller named it, without the default tag.
    name: String,
    manifest: Manifest,
    config: Vec<u8>,
    /// The bytes of its options.
    params: Option<Vec<u8>>,
}

impl StoredBase {
    fn base(&self) -> Base<'_> {
        Base {
            manifest: &self.manifest,
            config: &self.config,
            params: self.params.as_deref(),
            origin_name: Some((&self.name, &self.digest)),
        }
    }

    pub(super) fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    pub(super) fn artifact(&self) -> Artifact {
        Artifact::read(&self.manifest, Some(&self.config))
    }

    /// Whether it is more than plain files of a commit.
    pub(super) fn is_model(&self) -> bool {
        self.manifest.artifact_type.as_deref() != Some(media_type::LODE_FILES)
    }

    /// Whether each layer is a part of one of the files, or was added to them.
    pub(super) fn is_listed(&self, files: &BTreeMap<String, ManifestFile>) -> bool {
        let parts: HashSet<&Digest> = files.values().flat_map(ManifestFile::blobs).collect();
        let view = FileView::find(&self.manifest).map(|layer| &layer.digest);
        let is_listed = |layer: &Descriptor| {
            is_addition(layer) || Some(&layer.digest) == view || parts.contains(&layer.digest)
        };
        self.manifest.layers.iter().all(is_listed)
    }

    /// What was added to the model's files: texts, options, adapters, and names in its config.
    pub(super) fn additions(&self) -> Edits {
        let config: Map<String, Value> = serde_json::from_slice(&self.config).unwrap_or_default();
        let named = |key: &str| config.get(key).and_then(Value::as_str).map(str::to_owned);
        Edits {
            layers: self.manifest.layers.iter().filter(|layer| is_addition(layer)).cloned().collect(),
            renderer: named("renderer"),
            parser: named("parser"),
            requires: named("requires"),
            annotations: self.manifest.annotations.clone(),
            ..Edits::default()
        }
    }
}

fn is_addition(layer: &Descriptor) -> bool {
    ADDITIONS.contains(&media_type::essence(&layer.media_type))
}

fn encoded_bytes(plan: &Plan) -> u64 {
    plan.layers.iter().filter(|layer| layer.is_computed()).map(|layer| layer.size).sum()
}

/// Reports the progress of a conversion until it is dropped.
async fn report_converting(
    to: Option<Conversion>,
    plan: &Plan,
    made: &AtomicU64,
    report_step: &(dyn Fn(CreateStep) + Send + Sync),
) -> Infallible {
    let total = encoded_bytes(plan);
    let Some(to) = to.filter(|_| total > 0) else { return std::future::pending().await };
    let (mut ticks, mut last_reported) = (tokio::time::interval(CONVERSION_REPORT_INTERVAL), None);
    loop {
        ticks.tick().await;
        let completed = made.load(Ordering::Relaxed).min(total);
        if last_reported.replace(completed) != Some(completed) {
            report_step(CreateStep::Converting { to, total, completed });
        }
    }
}

/// Runs work that blocks.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Error> {
    tokio::task::spawn_blocking(work).await.map_err(|_| Error::Interrupted)
}

//! Models: which manifests are models, their content, and copying them. A manifest is indexed after its push,
//! or by the first request that needs it; never by the push itself.

use std::collections::BTreeMap;
use std::time::Duration;

use lode_model::config::ModelConfig;
use lode_model::digest::Digest;
use lode_model::gguf;
use lode_model::index;
use lode_model::manifest::{Descriptor, Manifest};
use lode_model::media_type;
use lode_model::recognise::{Artifact, FileKind};
use lode_model::reference::{Reference, Repository, Tag};
use lode_model::tensor::TensorInfo;
use serde::Serialize;
use utoipa::ToSchema;

use super::index::MAX_TENSORS;
use super::model_facts::ModelFacts;
use super::walk::blobs_of;
use super::{Page, Registry, StoredManifest};
use crate::Error;
use crate::auth::{Action, Caller, Target};
use crate::error::chain;
use crate::store::{IndexState, ModelRow, TaggedRow};
use crate::time::now_ms;

/// The longest page of a listing.
const MAX_PAGE: u32 = 1000;
/// A listing waits for at most this many manifests, pushed within `FRESH_MS`.
const MAX_AWAITED: usize = 16;
const FRESH_MS: i64 = 10_000;
const RECHECK: Duration = Duration::from_millis(100);

/// The largest config, template or other text of a model that is read into memory.
const MAX_TEXT_BYTES: u64 = 4 * 1024 * 1024;

/// The summary of a model that listings show.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct ModelSummary {
    /// `safetensors`, `gguf`, ...
    pub format: String,
    pub architecture: Option<String>,
    pub parameters: Option<u64>,
    pub quantization: Option<String>,
    /// Config and layers together.
    pub size_bytes: u64,
    pub tensor_count: u64,
    /// Why it could not be indexed completely.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// A model under one of its tags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaggedModel {
    pub repository: Repository,
    pub tag: Tag,
    pub digest: Digest,
    /// When the tag was last moved, in milliseconds since 1970.
    pub modified_at: i64,
    pub state: ModelState,
}

/// The index state of a tag's manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelState {
    Indexed(ModelSummary),
    /// Not indexed yet, so it may turn out not to be a model. `problem`: why an attempt failed.
    Pending {
        problem: Option<String>,
    },
}

impl TaggedModel {
    /// Its summary, or `None` while it is pending.
    pub fn summary(&self) -> Option<&ModelSummary> {
        match &self.state {
            ModelState::Indexed(summary) => Some(summary),
            ModelState::Pending { .. } => None,
        }
    }
}

/// One page of models, and its last tag if more follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelPage {
    pub models: Vec<TaggedModel>,
    pub next: Option<(Repository, Tag)>,
}

/// A manifest and its model summary, which is absent if it is not a model.
#[derive(Clone, Debug)]
pub struct Model {
    pub digest: Digest,
    pub modified_at: i64,
    /// Who has set the tag, for callers with an account: `user:alice`.
    pub actor: Option<String>,
    pub manifest: Manifest,
    pub summary: Option<ModelSummary>,
    /// Its config blob, if it is ollama's.
    pub config: Option<ModelConfig>,
}

impl Registry {
    /// Resolves a name for inference. `None` if there is no such manifest or the caller may not know of it.
    pub async fn model_resolve(
        &self,
        caller: &Caller,
        repository: &Repository,
        reference: &Reference,
    ) -> Result<Option<Digest>, Error> {
        let found = self.manifest_get_to(Action::Infer, caller, repository, reference).await;
        Ok(none_if_unknown(found)?.map(|manifest| manifest.digest))
    }

    /// Tags whose manifest is a model or not indexed yet, in name order: at most `n`, after `after`. It
    /// returns what the model index has and indexes nothing.
    pub async fn model_list(
        &self,
        caller: &Caller,
        after: Option<(&Repository, &Tag)>,
        n: u32,
    ) -> Result<ModelPage, Error> {
        self.authorize(caller, Action::List, Target::Catalog).await?;
        let n = n.clamp(1, MAX_PAGE);
        let mut rows = self.tagged_list_waiting(caller, after, n.saturating_add(1)).await?;
        let more = rows.len() > n as usize;
        rows.truncate(n as usize);
        let next = rows.last().filter(|_| more).map(|row| (row.repository.clone(), row.tag.clone()));
        let mut models = Vec::with_capacity(rows.len());
        for row in rows {
            let TaggedRow { repository, tag, digest, updated_at, state } = row;
            let state = match state {
                IndexState::Indexed(row) => match summary_of(row) {
                    Some(summary) => ModelState::Indexed(summary),
                    None => continue,
                },
                IndexState::Queued { problem, .. } => ModelState::Pending { problem },
                IndexState::NotQueued => {
                    if !self.config().read_only {
                        self.model_enqueue(&repository, &digest).await?;
                    }
                    ModelState::Pending { problem: None }
                }
            };
            models.push(TaggedModel { repository, tag, digest, modified_at: updated_at, state });
        }
        Ok(ModelPage { models, next })
    }

    /// All models, for APIs without paging.
    pub async fn model_list_all(&self, caller: &Caller) -> Result<Vec<TaggedModel>, Error> {
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let last = after.as_ref().map(|(repository, tag)| (repository, tag));
            let page = self.model_list(caller, last, MAX_PAGE).await?;
            all.extend(page.models);
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(all),
            }
        }
    }

    /// The next tags with their index states. A client that lists a model right after its push should see its
    /// summary: the listing waits shortly for a few manifests without an attempt, and never for a backlog.
    async fn tagged_list_waiting(
        &self,
        caller: &Caller,
        after: Option<(&Repository, &Tag)>,
        limit: u32,
    ) -> Result<Vec<TaggedRow>, Error> {
        let filter = self.list_filter(caller).await?;
        let deadline = tokio::time::Instant::now() + self.index_limits.list_wait;
        loop {
            let attempted = self.indexing.attempted.notified();
            let mut attempted = std::pin::pin!(attempted);
            attempted.as_mut().enable();
            let rows = self.store().tagged_list(&filter, after, limit).await?;
            let fresh_since = now_ms().saturating_sub(FRESH_MS);
            let fresh = rows.iter().filter(|row| {
                matches!(row.state, IndexState::Queued { queued_at, attempts: 0 | 1, problem: None }
                    if queued_at > fresh_since)
            });
            let is_over = tokio::time::Instant::now() >= deadline;
            if is_over || !(1..=MAX_AWAITED).contains(&fresh.count()) {
                return Ok(rows);
            }
            // Another replica may index it, which does not notify this one.
            let recheck = deadline.min(tokio::time::Instant::now() + RECHECK);
            let _late = tokio::time::timeout_at(recheck, attempted).await;
        }
    }

    /// One manifest and its summary. `None` if there is no such manifest.
    pub async fn model_show(
        &self,
        caller: &Caller,
        repository: &Repository,
        reference: &Reference,
    ) -> Result<Option<Model>, Error> {
        let Some(stored) = none_if_unknown(self.manifest_get(caller, repository, reference).await)? else {
            return Ok(None);
        };
        let summary = summary_of(self.model_index(repository, &stored.digest).await?);
        let manifest = stored.parse()?;
        let config = match &manifest.config {
            Some(config) if config.media_type == media_type::DOCKER_CONFIG => {
                let bytes = self.blob_text(caller, repository, config).await?;
                bytes.and_then(|bytes| ModelConfig::parse(&bytes).ok())
            }
            _ => None,
        };
        let (modified_at, actor) = self.store().manifest_change(repository, reference).await?;
        let actor = actor.filter(|_| caller.account().is_some());
        Ok(Some(Model { digest: stored.digest, modified_at, actor, manifest, summary, config }))
    }

    /// The summaries of those manifests that are indexed models.
    pub(crate) async fn model_summaries(
        &self,
        caller: &Caller,
        repository: &Repository,
        digests: &[Digest],
    ) -> Result<BTreeMap<Digest, ModelSummary>, Error> {
        self.authorize(caller, Action::Pull, Target::Repository(repository)).await?;
        let found = self.store().models_find(digests).await?;
        Ok(found.into_iter().filter_map(|(digest, row)| Some((digest, summary_of(row)?))).collect())
    }

    /// The facts of a manifest as a model; none while it is not indexed.
    pub(crate) async fn model_facts(
        &self,
        caller: &Caller,
        repository: &Repository,
        digest: &Digest,
    ) -> Result<ModelFacts, Error> {
        self.authorize(caller, Action::Pull, Target::Repository(repository)).await?;
        let json = self.store().facts_find(digest).await?;
        Ok(json.as_deref().map(ModelFacts::from_json).unwrap_or_default())
    }

    /// Runs `look` on the metadata of a model's GGUF file. `None` if it has no such file or the file is
    /// unreadable; the model's summary has the reason.
    pub(crate) async fn gguf_inspect<T: Send + 'static>(
        &self,
        repository: &Repository,
        model: &Model,
        look: impl FnOnce(&gguf::Metadata) -> T + Send + 'static,
    ) -> Result<Option<T>, Error> {
        let artifact = Artifact::read(&model.manifest, None);
        let weights = artifact.weights();
        // An adapter that was pushed alone has metadata, too.
        let alone = artifact.files.iter().filter(|_| weights.is_empty());
        let mut files = weights.iter().filter_map(|at| artifact.files.get(*at)).chain(alone);
        let Some(file) = files.find(|file| file.kind() == Some(FileKind::Gguf)) else { return Ok(None) };
        let looked = self.file_inspect(repository, file, move |bytes| {
            let header = gguf::Header::read_up_to(bytes, index::MAX_GGUF_HEADER_BYTES);
            header.map(|header| look(&header.metadata)).map_err(|error| chain(&error))
        });
        Ok(looked.await?.ok())
    }

    /// The tensors of a model. `None` if there is no such manifest.
    pub async fn tensor_list(
        &self,
        caller: &Caller,
        repository: &Repository,
        reference: &Reference,
    ) -> Result<Option<Vec<TensorInfo>>, Error> {
        let page = self.tensor_page(caller, repository, reference, 0, MAX_TENSORS).await?;
        Ok(page.map(|(_, page)| page.items))
    }

    /// At most `n` tensors from the position `from`, with the manifest's digest, so that all pages use the
    /// same manifest.
    pub async fn tensor_page(
        &self,
        caller: &Caller,
        repository: &Repository,
        reference: &Reference,
        from: u64,
        n: u32,
    ) -> Result<Option<(Digest, Page<TensorInfo>)>, Error> {
        let Some(stored) = none_if_unknown(self.manifest_get(caller, repository, reference).await)? else {
            return Ok(None);
        };
        self.model_index(repository, &stored.digest).await?;
        let mut details = self.store().tensor_list(&stored.digest, from, n.saturating_add(1)).await?;
        let more = details.len() > n as usize;
        details.truncate(n as usize);
        let read = |detail: String| {
            serde_json::from_str(&detail)
                .map_err(|_| Error::Corrupt { what: "tensor", value: detail.clone() })
        };
        let items = details.into_iter().map(read).collect::<Result<_, _>>()?;
        Ok(Some((stored.digest, Page { items, more })))
    }

    /// Deletes a name. Its content is collected after its grace period. Returns false if there is no such
    /// name.
    pub async fn model_delete(
        &self,
        caller: &Caller,
        repository: &Repository,
        reference: &Reference,
    ) -> Result<bool, Error> {
        Ok(none_if_unknown(self.manifest_delete(caller, repository, reference).await)?.is_some())
    }

    /// Copies a manifest to a second name, and links its content if the repository differs. Returns false if
    /// there is no source.
    pub async fn model_copy(
        &self,
        caller: &Caller,
        (from, reference): (&Repository, &Reference),
        (to, name): (&Repository, &Reference),
    ) -> Result<bool, Error> {
        if from == to {
            // All its content is already in the repository.
            let found = none_if_unknown(self.manifest_get(caller, from, reference).await)?;
            let Some(StoredManifest { digest, media_type, bytes }) = found else { return Ok(false) };
            self.audit_pull(caller, from, &digest);
            self.manifest_put(caller, to, name, Some(&media_type), bytes, &[]).await?;
            return Ok(true);
        }
        let found = none_if_unknown(self.manifests_below(caller, from, reference).await)?;
        let Some(manifests) = found else { return Ok(false) };
        if let Some((named, _)) = manifests.last() {
            self.audit_pull(caller, from, &named.digest);
        }
        for blob in blobs_of(&manifests) {
            // A mirror now fetches missing blobs.
            match self.blob_find(caller, from, &blob.digest).await {
                Ok(_) | Err(Error::BlobUnknown { .. }) => {}
                Err(error) => return Err(error),
            }
            // A blob that is absent there stays absent here; storing the manifest decides whether that is
            // accepted.
            self.blob_mount(caller, to, &blob.digest, Some(from)).await?;
        }
        let last = manifests.len();
        for (at, (stored, _)) in (1..).zip(manifests) {
            let StoredManifest { digest, media_type, bytes } = stored;
            let by_digest = Reference::Digest(digest);
            let name = if at == last { name } else { &by_digest };
            self.manifest_put(caller, to, name, Some(&media_type), bytes, &[]).await?;
        }
        Ok(true)
    }

    /// Reads a small blob into memory. `None` if it is absent or too large.
    pub async fn blob_text(
        &self,
        caller: &Caller,
        repository: &Repository,
        blob: &Descriptor,
    ) -> Result<Option<Vec<u8>>, Error> {
        match self.blob_find(caller, repository, &blob.digest).await {
            Ok(info) if info.size_bytes <= MAX_TEXT_BYTES => {
                self.blob_part(caller, repository, &blob.digest, 0..info.size_bytes).await.map(Some)
            }
            Ok(_) | Err(Error::BlobUnknown { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Turns an unknown manifest or repository into `None`.
fn none_if_unknown<T>(result: Result<T, Error>) -> Result<Option<T>, Error> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(Error::ManifestUnknown { .. } | Error::NameUnknown { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

pub(super) fn summary_of(row: ModelRow) -> Option<ModelSummary> {
    let ModelRow { format, architecture, parameters, quantization, size_bytes, tensor_count, problem } = row;
    if format.is_empty() {
        return None;
    }
    Some(ModelSummary { format, architecture, parameters, quantization, size_bytes, tensor_count, problem })
}

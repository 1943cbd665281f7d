//! Models: which manifests are one, what they consist of, and copying them.
//! A manifest is read after its push, or by the first request that needs to know; never by the push itself.

use std::time::Duration;

use lode_model::config::ModelConfig;
use lode_model::digest::Digest;
use lode_model::gguf;
use lode_model::index;
use lode_model::manifest::{Descriptor, Manifest};
use lode_model::media_type;
use lode_model::recognise::{Artifact, FileKind};
use lode_model::reference::{Name, Reference, ReferenceError, Repository, Tag};
use lode_model::tensor::TensorInfo;
use serde::Serialize;

use super::index::MAX_TENSORS;
use super::walk::blobs_of;
use super::{Page, Registry, StoredManifest};
use crate::Error;
use crate::auth::{Action, Caller, Target, allow};
use crate::error::chain;
use crate::store::{IndexState, ModelRow, TaggedRow, now_ms};

/// The longest page of a listing.
const MAX_PAGE: u32 = 1000;
/// A listing waits for so many manifests at most, pushed within this time.
const WAITED_FOR: usize = 16;
const FRESH_MS: i64 = 10_000;
const RECHECK: Duration = Duration::from_millis(100);

/// The largest config, template or other text of a model that is read whole.
const MAX_TEXT_BYTES: u64 = 4 * 1024 * 1024;

/// What a model is, in the few words that lists show.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ModelSummary {
    /// `safetensors`, `gguf`, ...
    pub format: String,
    pub architecture: Option<String>,
    pub parameters: Option<u64>,
    pub quantization: Option<String>,
    /// Config and layers together.
    pub size_bytes: u64,
    pub tensor_count: u64,
    /// Why it could not be read further.
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

/// What is known of a tag's manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelState {
    Indexed(ModelSummary),
    /// It was not read yet, so it may turn out to be no model. `problem`: why an attempt failed.
    Pending {
        problem: Option<String>,
    },
}

impl TaggedModel {
    /// What is known of it as a model; none while it waits to be read.
    pub fn summary(&self) -> Option<&ModelSummary> {
        match &self.state {
            ModelState::Indexed(summary) => Some(summary),
            ModelState::Pending { .. } => None,
        }
    }
}

/// One page of the models, and the tag that it ends with where more follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelPage {
    pub models: Vec<TaggedModel>,
    pub next: Option<(Repository, Tag)>,
}

/// A manifest with what is known of it as a model; no summary where it is none.
#[derive(Clone, Debug)]
pub struct Model {
    pub digest: Digest,
    pub modified_at: i64,
    pub manifest: Manifest,
    pub summary: Option<ModelSummary>,
    /// Its config blob, where that is ollama's.
    pub config: Option<ModelConfig>,
}

impl Registry {
    /// What a name means for inference; None if nothing, or nothing the caller may know of.
    pub async fn model_resolve(
        &self,
        caller: &Caller,
        repository: &Repository,
        reference: &Reference,
    ) -> Result<Option<Digest>, Error> {
        allow(caller, Action::Infer, Target::Repository(repository))?;
        Ok(known(self.manifest_get(caller, repository, reference).await)?.map(|manifest| manifest.digest))
    }

    /// What a name of this server's own settings means.
    pub(super) async fn model_named(&self, name: &str) -> Result<Option<Digest>, Error> {
        let name: Name = name
            .parse()
            .map_err(|error: ReferenceError| Error::Config { setting: "model", reason: error.to_string() })?;
        self.model_resolve(&Caller::Internal, &name.repository, &name.reference).await
    }

    /// Tags that name a model, or a manifest that was not read yet, in name order: at most `n`, after `after`. It shows what
    /// the index knows and reads no model itself.
    pub async fn model_list(
        &self,
        caller: &Caller,
        after: Option<(&Repository, &Tag)>,
        n: u32,
    ) -> Result<ModelPage, Error> {
        allow(caller, Action::List, Target::Catalog)?;
        let n = n.clamp(1, MAX_PAGE);
        let mut rows = self.tagged_settled(after, n.saturating_add(1)).await?;
        let more = rows.len() > n as usize;
        rows.truncate(n as usize);
        let next = rows.last().filter(|_| more).map(|row| (row.repository.clone(), row.tag.clone()));
        let mut models = Vec::with_capacity(rows.len());
        for row in rows {
            let TaggedRow { repository, tag, digest, updated_at, state } = row;
            if allow(caller, Action::Pull, Target::Repository(&repository)).is_err() {
                continue;
            }
            let state = match state {
                IndexState::Indexed(row) => match summary_of(row) {
                    Some(summary) => ModelState::Indexed(summary),
                    None => continue,
                },
                IndexState::Queued { problem, .. } => ModelState::Pending { problem },
                IndexState::Missed => {
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

    /// All of them, for APIs that know no pages.
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

    /// The next tags with what the index knows. Whoever pushed a model a moment ago and lists it sees what it is: the listing
    /// waits a little for a few manifests that no attempt was made at, and never for a backlog.
    async fn tagged_settled(
        &self,
        after: Option<(&Repository, &Tag)>,
        limit: u32,
    ) -> Result<Vec<TaggedRow>, Error> {
        let deadline = tokio::time::Instant::now() + self.index_limits.list_wait;
        loop {
            let attempted = self.indexing.attempted.notified();
            let mut attempted = std::pin::pin!(attempted);
            attempted.as_mut().enable();
            let rows = self.store().tagged_list(after, limit).await?;
            let fresh_since = now_ms().saturating_sub(FRESH_MS);
            let fresh = rows.iter().filter(|row| {
                matches!(row.state, IndexState::Queued { queued_at, attempts: 0 | 1, problem: None }
                    if queued_at > fresh_since)
            });
            let is_over = tokio::time::Instant::now() >= deadline;
            if is_over || !(1..=WAITED_FOR).contains(&fresh.count()) {
                return Ok(rows);
            }
            // Another replica may be at it, which does not notify this one.
            let recheck = deadline.min(tokio::time::Instant::now() + RECHECK);
            let _late = tokio::time::timeout_at(recheck, attempted).await;
        }
    }

    /// One manifest, and what is known of it; None if there is none.
    pub async fn model_show(
        &self,
        caller: &Caller,
        repository: &Repository,
        reference: &Reference,
    ) -> Result<Option<Model>, Error> {
        let Some(stored) = known(self.manifest_get(caller, repository, reference).await)? else {
            return Ok(None);
        };
        let summary = summary_of(self.model_index(repository, &stored.digest).await?);
        let manifest = parse(&stored)?;
        let config = match &manifest.config {
            Some(config) if config.media_type == media_type::DOCKER_CONFIG => {
                let bytes = self.blob_text(caller, repository, config).await?;
                bytes.and_then(|bytes| ModelConfig::parse(&bytes).ok())
            }
            _ => None,
        };
        let modified_at = self.store().manifest_time(repository, reference).await?;
        Ok(Some(Model { digest: stored.digest, modified_at, manifest, summary, config }))
    }

    /// What a look at the keys of a model's GGUF file says; none where it has no such file. Why one cannot be read, the
    /// model's summary says.
    pub(crate) async fn gguf_look<T: Send + 'static>(
        &self,
        repository: &Repository,
        model: &Model,
        look: impl FnOnce(&gguf::Metadata) -> T + Send + 'static,
    ) -> Result<Option<T>, Error> {
        let artifact = Artifact::read(&model.manifest, None);
        let weights = artifact.weights();
        // An adapter that was pushed alone has keys, too.
        let alone = artifact.files.iter().filter(|_| weights.is_empty());
        let mut files = weights.iter().filter_map(|at| artifact.files.get(*at)).chain(alone);
        let Some(file) = files.find(|file| file.kind() == Some(FileKind::Gguf)) else { return Ok(None) };
        let looked = self.file_read(repository, file, move |bytes| {
            let header = gguf::Header::read_up_to(bytes, index::MAX_GGUF_HEADER_BYTES);
            header.map(|header| look(&header.metadata)).map_err(|error| chain(&error))
        });
        Ok(looked.await?.ok())
    }

    /// The tensors of a model; None if there is no such manifest.
    pub async fn tensor_list(
        &self,
        caller: &Caller,
        repository: &Repository,
        reference: &Reference,
    ) -> Result<Option<Vec<TensorInfo>>, Error> {
        let page = self.tensor_page(caller, repository, reference, 0, MAX_TENSORS).await?;
        Ok(page.map(|(_, page)| page.items))
    }

    /// At most `n` of them from the position `from` on, with the manifest's digest, which stays the same from page to page.
    pub async fn tensor_page(
        &self,
        caller: &Caller,
        repository: &Repository,
        reference: &Reference,
        from: u64,
        n: u32,
    ) -> Result<Option<(Digest, Page<TensorInfo>)>, Error> {
        let Some(stored) = known(self.manifest_get(caller, repository, reference).await)? else {
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

    /// Deletes a name; what it named is collected after its grace. False if there is none.
    pub async fn model_delete(
        &self,
        caller: &Caller,
        repository: &Repository,
        reference: &Reference,
    ) -> Result<bool, Error> {
        Ok(known(self.manifest_delete(caller, repository, reference).await)?.is_some())
    }

    /// Gives a manifest a second name, and its content a second repository where that differs. False if there is no source.
    pub async fn model_copy(
        &self,
        caller: &Caller,
        (from, reference): (&Repository, &Reference),
        (to, name): (&Repository, &Reference),
    ) -> Result<bool, Error> {
        if from == to {
            // All that it names is here already.
            let found = known(self.manifest_get(caller, from, reference).await)?;
            let Some(StoredManifest { media_type, bytes, .. }) = found else { return Ok(false) };
            self.manifest_put(caller, to, name, Some(&media_type), bytes, &[]).await?;
            return Ok(true);
        }
        let found = known(self.manifests_below(caller, from, reference).await)?;
        let Some(manifests) = found else { return Ok(false) };
        for blob in blobs_of(&manifests) {
            // What a mirror has not fetched yet it fetches now.
            match self.blob_find(caller, from, &blob.digest).await {
                Ok(_) | Err(Error::BlobUnknown { .. }) => {}
                Err(error) => return Err(error),
            }
            // What is absent there stays absent here; whether that is accepted is the manifest's rule.
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

    /// The whole of a small blob; None where it is absent or not small.
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

/// The registry's answer where "not there" is no failure.
fn known<T>(answer: Result<T, Error>) -> Result<Option<T>, Error> {
    match answer {
        Ok(found) => Ok(Some(found)),
        Err(Error::ManifestUnknown { .. } | Error::NameUnknown { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A stored manifest was parsed before it was stored.
pub(super) fn parse(stored: &StoredManifest) -> Result<Manifest, Error> {
    Manifest::parse(Some(&stored.media_type), &stored.bytes)
        .map_err(|_| Error::Corrupt { what: "manifest", value: stored.digest.to_string() })
}

fn summary_of(row: ModelRow) -> Option<ModelSummary> {
    let ModelRow { format, architecture, parameters, quantization, size_bytes, tensor_count, problem } = row;
    if format.is_empty() {
        return None;
    }
    Some(ModelSummary { format, architecture, parameters, quantization, size_bytes, tensor_count, problem })
}

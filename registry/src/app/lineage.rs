//! The origins of a model, read from its manifest, layers and files, and their own origins; the models that name it as
//! their origin; and its relatives: other models with the same bytes. Names are returned as written, together with the
//! local name if this server has the model.

use std::collections::{BTreeSet, HashMap};

use lode_model::digest::Digest;
use lode_model::lineage::{self, Origin, Relation};
use lode_model::recognise::{Artifact, Role};
use lode_model::reference::{Name, Reference, Repository, Tag};
use serde::Serialize;
use utoipa::ToSchema;

use super::model_facts::ModelFacts;
use super::{Model, Registry};
use crate::Error;
use crate::auth::{Action, Caller, Target};
pub use crate::store::Relative;
use crate::store::{DerivedModel, SharedBlobs, SharedBytes};

/// The most relatives, and the most referrers, in a response.
const MAX_RELATIVES: u32 = 100;
/// Two models that share only blobs smaller than this are not relatives: an empty config, a license.
const MIN_SHARED_BYTES: u64 = 64 * 1024;
/// Of a model whose hundredth part is smaller than that, tensors of this part count: smaller ones, such as norms that are
/// all ones, may be the same in any model.
const SMALL_PARTS: u64 = 100;
/// The largest text file that is searched for origins.
const MAX_TEXT_BYTES: u64 = 1024 * 1024;
/// The most derived models that are listed.
const MAX_DERIVED: u32 = 100;
/// The most origins that are looked up for a page.
const MAX_BASES: usize = 8;
/// How many generations are looked up, of origins and of derived models.
const GENERATIONS: u32 = 4;
/// The most origins of all generations.
const MAX_ANCESTORS: usize = 128;
/// For how many derived models the models are looked up that were made from them.
const MAX_EXPANDED: usize = 32;

/// The origins of a model, and its relatives.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct Lineage {
    pub digest: Digest,
    /// The models that it was made from, according to its parts.
    pub from: Vec<Ancestor>,
    /// The models that name it as their origin, and those that name these, each after the one that it names.
    pub derived: Vec<Derivative>,
    /// Referrers in its repository: adapters, signatures, other forms of it.
    pub referrers: Vec<Descendant>,
    /// Tags whose models share bytes with it, most bytes first.
    pub relatives: Vec<Relative>,
}

#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct Ancestor {
    pub relation: Relation,
    /// As written in the source.
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// The part of the model that names it.
    pub source: &'static str,
    /// Its name on this server, if the model is stored here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub here: Option<String>,
    /// Its own origins, if the model is stored here.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(no_recursion)]
    pub from: Vec<Ancestor>,
}

/// A tag whose model names another one as its origin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Derivative {
    /// 1: it names the model itself.
    pub generation: u32,
    pub repository: Repository,
    pub tag: Tag,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantization: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parameters: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct Descendant {
    pub digest: Digest,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub artifact_type: Option<String>,
}

impl Registry {
    /// The origins and relatives of a model. `None` if there is no such manifest.
    pub async fn model_lineage(
        &self,
        caller: &Caller,
        repository: &Repository,
        reference: &Reference,
    ) -> Result<Option<Lineage>, Error> {
        let Some(model) = self.model_show(caller, repository, reference).await? else { return Ok(None) };
        let mut family = Family { seen: BTreeSet::from([model.digest.clone()]), left: MAX_ANCESTORS };
        let from = self.ancestors(caller, (repository, &model), GENERATIONS, &mut family).await?;
        let derived = self.derivatives(caller, repository, &model.digest).await?;
        let referrers = self.referrers(caller, repository, &model.digest, None, None, MAX_RELATIVES).await?;
        let referrers = referrers.items.into_iter();
        let filter = self.list_filter(caller).await?;
        let size = model.summary.as_ref().map(|summary| summary.size_bytes / SMALL_PARTS);
        let shared = match size.filter(|size| *size < MIN_SHARED_BYTES) {
            Some(least) => SharedBlobs { least, only_tensors: true },
            None => SharedBlobs { least: MIN_SHARED_BYTES, only_tensors: false },
        };
        let relatives =
            self.store().relatives(repository, &model.digest, &filter, shared, MAX_RELATIVES).await?;
        Ok(Some(Lineage {
            from,
            derived,
            referrers: referrers
                .map(|row| Descendant { digest: row.digest, artifact_type: row.artifact_type })
                .collect(),
            relatives,
            digest: model.digest,
        }))
    }

    /// The size of a manifest's content, and how much of it other manifests name that the caller may read.
    pub(crate) async fn shared_bytes(
        &self,
        caller: &Caller,
        repository: &Repository,
        digest: &Digest,
    ) -> Result<SharedBytes, Error> {
        self.authorize(caller, Action::Pull, Target::Repository(repository)).await?;
        let filter = self.list_filter(caller).await?;
        self.store().shared_bytes(repository, digest, &filter).await
    }

    /// The blobs of a manifest that other manifests name that the caller may read, each with the repository of one of them.
    pub(crate) async fn shared_blobs(
        &self,
        caller: &Caller,
        repository: &Repository,
        digest: &Digest,
    ) -> Result<HashMap<Digest, Repository>, Error> {
        self.authorize(caller, Action::Pull, Target::Repository(repository)).await?;
        let filter = self.list_filter(caller).await?;
        self.store().shared_blobs(repository, digest, &filter).await
    }

    /// Models that name a repository as their origin, of those that the caller may read. Of the models in the
    /// repository itself, those that name a tag of this manifest.
    pub(crate) async fn derived_models(
        &self,
        caller: &Caller,
        repository: &Repository,
        digest: &Digest,
    ) -> Result<Vec<DerivedModel>, Error> {
        self.authorize(caller, Action::Pull, Target::Repository(repository)).await?;
        let filter = self.list_filter(caller).await?;
        self.store().derived_models((repository, digest), &filter, MAX_DERIVED).await
    }

    /// The first origins that a manifest names, and whether each is a repository here that the caller may read.
    pub(crate) async fn stored_bases(
        &self,
        caller: &Caller,
        facts: &ModelFacts,
    ) -> Result<Vec<(String, bool)>, Error> {
        let mut bases = Vec::new();
        for base in facts.bases.iter().take(MAX_BASES) {
            let name = base.parse::<Name>().ok().filter(|name| name.host.is_none());
            // What the caller may not read is reported as absent. No refusal is recorded, because the request did not
            // ask for it.
            let is_here = match name {
                Some(Name { repository, .. }) => {
                    self.may(caller, Action::Pull, &repository).await?
                        && self.store().repository_exists(&repository).await?
                }
                None => false,
            };
            bases.push((base.clone(), is_here));
        }
        Ok(bases)
    }

    /// The origins that a model's parts name.
    async fn origins(
        &self,
        caller: &Caller,
        repository: &Repository,
        model: &Model,
    ) -> Result<Vec<Origin>, Error> {
        let manifest = &model.manifest;
        let config = match &manifest.config {
            Some(config) => self.blob_text(caller, repository, config).await?,
            None => None,
        };
        let artifact = Artifact::read(manifest, config.as_deref());
        let mut origins = lineage::manifest_origins(manifest, &artifact, config.as_deref());
        for file in artifact.files.iter().filter(|file| file.is_layer() && file.size <= MAX_TEXT_BYTES) {
            let name = file.path.as_deref().map(|path| path.rsplit_once('/').map_or(path, |(_, name)| name));
            let Some(name) = name.filter(|name| file.role == Role::File && lineage::has_origins(name)) else {
                continue;
            };
            if let Some(bytes) = self.blob_text(caller, repository, &file.layer).await? {
                origins.extend(lineage::file_origins(name, &bytes));
            }
        }
        let keys = self.gguf_inspect(repository, model, lineage::gguf_origins).await?;
        origins.extend(keys.unwrap_or_default());
        // Several parts may name the same origin, some without its digest; keep the first.
        let mut seen = BTreeSet::new();
        origins.retain(|origin| {
            let is_new = seen.insert((origin.name.clone(), origin.digest.clone()));
            seen.insert((origin.name.clone(), None));
            is_new
        });
        Ok(origins)
    }

    /// The origins of a model, each with its own.
    async fn ancestors(
        &self,
        caller: &Caller,
        (repository, model): (&Repository, &Model),
        generations: u32,
        family: &mut Family,
    ) -> Result<Vec<Ancestor>, Error> {
        let mut ancestors = Vec::new();
        for origin in self.origins(caller, repository, model).await? {
            if family.left == 0 {
                break;
            }
            family.left -= 1;
            let (mut ancestor, found) = self.ancestor(caller, model, origin).await?;
            if let Some((repository, base)) = found
                && generations > 1
                && family.seen.insert(base.digest.clone())
            {
                let more = self.ancestors(caller, (&repository, &base), generations - 1, family);
                ancestor.from = Box::pin(more).await?;
            }
            ancestors.push(ancestor);
        }
        Ok(ancestors)
    }

    /// The models that name a manifest as their origin, and those that name these.
    async fn derivatives(
        &self,
        caller: &Caller,
        repository: &Repository,
        digest: &Digest,
    ) -> Result<Vec<Derivative>, Error> {
        let filter = self.list_filter(caller).await?;
        let (mut derived, mut seen) = (Vec::new(), BTreeSet::from([digest.clone()]));
        let mut expanded = 1;
        let next = |generation: u32, mut found: Vec<DerivedModel>| {
            // The last one is looked at first.
            found.reverse();
            found.into_iter().map(move |model| (generation, model))
        };
        let first = self.store().derived_models((repository, digest), &filter, MAX_DERIVED).await?;
        let mut waiting: Vec<(u32, DerivedModel)> = next(1, first).collect();
        while let Some((generation, model)) = waiting.pop() {
            if derived.len() >= MAX_DERIVED as usize {
                break;
            }
            if model.digest == *digest {
                continue;
            }
            let is_new = seen.insert(model.digest.clone());
            if is_new && generation < GENERATIONS && expanded < MAX_EXPANDED {
                expanded += 1;
                let of = (&model.repository, &model.digest);
                let found = self.store().derived_models(of, &filter, MAX_DERIVED).await?;
                waiting.extend(next(generation + 1, found));
            }
            let DerivedModel { repository, tag, quantization, parameters, .. } = model;
            derived.push(Derivative { generation, repository, tag, quantization, parameters });
        }
        Ok(derived)
    }

    /// Also returns the origin itself, if the caller may read it here.
    async fn ancestor(
        &self,
        caller: &Caller,
        model: &Model,
        origin: Origin,
    ) -> Result<(Ancestor, Option<(Repository, Model)>), Error> {
        let Origin { mut relation, name, digest, source } = origin;
        let mut found = None;
        let mut here = None;
        if let Some(local) = lineage::local_name(&name).and_then(|name| name.parse::<Name>().ok())
            && local.host.is_none()
        {
            let (repository, reference) = match &digest {
                Some(digest) => (local.repository, Reference::Digest(digest.clone())),
                None => (local.repository, local.reference),
            };
            // A model that the caller may not read is reported as absent. The request did not ask for it, so
            // no refusal is recorded.
            let stored = match self.may(caller, Action::Pull, &repository).await? {
                true => self.model_show(caller, &repository, &reference).await?,
                false => None,
            };
            if let Some(base) = stored {
                here = Some(match &reference {
                    Reference::Tag(tag) => format!("{repository}:{tag}"),
                    Reference::Digest(digest) => format!("{repository}@{digest}"),
                });
                if relation == Relation::Base && is_quantised_from(model, &base) {
                    relation = Relation::Quantized;
                }
                found = Some((repository, base));
            }
        }
        Ok((Ancestor { relation, name, digest, source, here, from: Vec::new() }, found))
    }
}

/// What has been looked up for the origins of a model.
struct Family {
    /// The models whose origins were looked up: a model may name one of its derivatives.
    seen: BTreeSet<Digest>,
    /// How many origins may still be looked up.
    left: usize,
}

/// The types of weights that are not quantised.
const FLOATS: [&str; 3] = ["F32", "F16", "BF16"];

/// Whether both have the same architecture and number of parameters, with a different quantisation; floats that were
/// decoded from blocks are none.
fn is_quantised_from(model: &Model, base: &Model) -> bool {
    let (Some(ours), Some(theirs)) = (&model.summary, &base.summary) else { return false };
    let is_float = |kind: &Option<String>| kind.as_deref().is_some_and(|kind| FLOATS.contains(&kind));
    ours.quantization != theirs.quantization
        && !is_float(&ours.quantization)
        && ours.parameters.is_some()
        && ours.parameters == theirs.parameters
        && ours.architecture == theirs.architecture
}

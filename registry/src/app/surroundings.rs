//! What surrounds a model on this server: what it shares with other models, those that were made from it, and the
//! workers that have it loaded.

use std::collections::BTreeMap;

use lode_model::digest::Digest;
use lode_model::reference::{Name, Repository, Tag};

use super::model_facts::ModelFacts;
use super::models::summary_of;
use super::{ModelSummary, Registry};
use crate::Error;
use crate::auth::{Action, Caller, Target};
use crate::store::{DerivedModel, SharedBytes};

/// The most derived models that are listed.
const MAX_DERIVED: u32 = 100;
/// The most origins that are looked up.
const MAX_BASES: usize = 8;
/// The most loaded models that are listed.
const MAX_LOADED: usize = 20;

/// A model that some worker has loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LoadedHere {
    pub(crate) repository: Repository,
    pub(crate) digest: Digest,
    pub(crate) workers: usize,
}

impl Registry {
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

    /// Models that name a repository as their origin, of those that the caller may read.
    pub(crate) async fn derived_models(
        &self,
        caller: &Caller,
        repository: &Repository,
    ) -> Result<Vec<DerivedModel>, Error> {
        self.authorize(caller, Action::Pull, Target::Repository(repository)).await?;
        let filter = self.list_filter(caller).await?;
        self.store().derived_models(repository, &filter, MAX_DERIVED).await
    }

    /// The summaries of those manifests that are models and have been read.
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

    /// What a manifest says about itself; nothing while it is not read.
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

    /// The origins that a manifest names, a few of them, and whether each is a repository that the caller may read.
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

    /// How many workers have a manifest loaded.
    pub(crate) async fn workers_with(
        &self,
        caller: &Caller,
        repository: &Repository,
        digest: &Digest,
    ) -> Result<usize, Error> {
        self.authorize(caller, Action::Infer, Target::Repository(repository)).await?;
        Ok(self.workers_attached().await?.loaded(digest).len())
    }

    /// The models that workers have loaded and that the caller may run, a few of them.
    pub(crate) async fn loaded_here(&self, caller: &Caller) -> Result<Vec<LoadedHere>, Error> {
        self.authorize(caller, Action::List, Target::Catalog).await?;
        let workers = self.workers_attached().await?;
        let mut found: Vec<LoadedHere> = Vec::new();
        for worker in workers.open().iter().map(|at| workers.worker(*at)) {
            for model in &worker.loaded {
                let same =
                    |known: &LoadedHere| known.repository == model.repository && known.digest == model.digest;
                if found.len() >= MAX_LOADED || found.iter().any(same) {
                    continue;
                }
                if self.may(caller, Action::Pull, &model.repository).await? {
                    found.push(LoadedHere {
                        repository: model.repository.clone(),
                        digest: model.digest.clone(),
                        workers: workers.loaded(&model.digest).len(),
                    });
                }
            }
        }
        Ok(found)
    }

    /// The tag that a page about a repository shows: `latest`, else the one that was moved last. `None`: it has no tags.
    pub(crate) async fn default_tag(
        &self,
        caller: &Caller,
        repository: &Repository,
    ) -> Result<Option<Tag>, Error> {
        self.authorize(caller, Action::Pull, Target::Repository(repository)).await?;
        let tag = self.store().default_tag(repository).await?;
        self.check_repository_exists(repository, tag.is_none()).await?;
        Ok(tag)
    }
}

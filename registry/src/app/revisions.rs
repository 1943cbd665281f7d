//! Repositories as Hugging Face's clients see them: a tag is a revision with a commit id, the branch `main` is the tag
//! `main` or else `latest`, and listings have one entry for each repository with a model.

use std::sync::Arc;

use lode_model::digest::Digest;
use lode_model::reference::{Reference, Repository, Tag};

use super::model_facts::ModelFacts;
use super::{FilesError, ManifestFiles, Registry, StoredManifest};
use crate::Error;
use crate::auth::{Action, Caller, Target};
use crate::store::{ModelRow, PullTotals};

/// The branch that clients request unless they name a revision.
pub(crate) const MAIN: &str = "main";
/// The length of a commit id, in hexadecimal digits.
const COMMIT_LEN: usize = 40;
/// How many tags an error names.
const NAMED_TAGS: i64 = 10;
/// How many tags are listed as revisions.
const MAX_TAGS: i64 = 10_000;

/// The commit id of a manifest: the first digits of its digest.
pub(crate) fn commit_id(digest: &Digest) -> &str {
    &digest.hex()[..COMMIT_LEN]
}

/// A revision of a repository: a manifest, and its files.
#[derive(Clone, Debug)]
pub(crate) struct Revision {
    pub(crate) repository: Repository,
    /// As the client has named it.
    pub(crate) name: String,
    /// The tag or digest to which the name leads.
    pub(crate) reference: Reference,
    pub(crate) digest: Digest,
    pub(crate) files: Arc<ManifestFiles>,
}

impl Revision {
    pub(crate) fn commit(&self) -> &str {
        commit_id(&self.digest)
    }

    pub(crate) fn entry_unknown(&self, path: &str) -> FilesError {
        FilesError::EntryUnknown {
            path: path.to_owned(),
            revision: self.name.clone(),
            commit: self.commit().to_owned(),
        }
    }
}

/// What a listing shows of a repository with a model.
#[derive(Clone, Debug)]
pub(crate) struct ListedModel {
    pub(crate) repository: Repository,
    /// The manifest of `main`, or of the tag that was moved last.
    pub(crate) digest: Digest,
    pub(crate) created_at: i64,
    pub(crate) modified_at: i64,
    pub(crate) pulls: PullTotals,
    /// Empty if the manifest is no model or is not indexed yet.
    pub(crate) model: ModelRow,
    pub(crate) facts: ModelFacts,
    /// Whether a client without credentials may not read it.
    pub(crate) is_private: bool,
}

impl Registry {
    /// The manifest of a revision, and its files.
    pub(crate) async fn revision(
        &self,
        caller: &Caller,
        repository: &Repository,
        name: &str,
    ) -> Result<Revision, FilesError> {
        let (reference, stored) = self.revision_manifest(caller, repository, name).await?;
        let files = self.manifest_files(caller, repository, &stored, name).await?;
        let (repository, name, digest) = (repository.clone(), name.to_owned(), stored.digest);
        Ok(Revision { repository, name, reference, digest, files })
    }

    /// The reference of a revision that may be neither a tag nor a digest: a commit id, or `main`.
    pub(crate) async fn revision_reference(
        &self,
        caller: &Caller,
        repository: &Repository,
        name: &str,
    ) -> Result<Option<Reference>, Error> {
        if name != MAIN && !is_commit(name) {
            return Ok(None);
        }
        match self.revision_manifest(caller, repository, name).await {
            Ok((reference, _)) => Ok(Some(reference)),
            Err(FilesError::Registry(error)) => Err(error),
            Err(_) => Ok(None),
        }
    }

    pub(super) async fn revision_manifest(
        &self,
        caller: &Caller,
        repository: &Repository,
        name: &str,
    ) -> Result<(Reference, StoredManifest), FilesError> {
        self.authorize(caller, Action::Pull, Target::Repository(repository)).await?;
        let mut candidates: Vec<Reference> = Vec::new();
        if is_commit(name)
            && let Some(digest) = self.store.manifest_of_commit(repository, name).await?
        {
            candidates.push(Reference::Digest(digest));
        }
        candidates.extend(name.parse::<Reference>());
        if name == MAIN {
            candidates.push(Reference::Tag(Tag::default()));
        }
        for reference in candidates {
            match self.manifest_get(caller, repository, &reference).await {
                Ok(stored) => return Ok((reference, stored)),
                Err(Error::ManifestUnknown { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let tags = self.store.tag_page(repository, "", NAMED_TAGS).await?;
        if tags.is_empty() && !self.store.repository_has_manifests(repository).await? {
            return Err(Error::NameUnknown { repository: repository.clone() }.into());
        }
        let tags = tags.iter().map(Tag::to_string).collect();
        Err(FilesError::RevisionUnknown { revision: name.to_owned(), tags })
    }

    /// The tags of a repository with their manifests, in name order.
    pub(crate) async fn revisions(
        &self,
        caller: &Caller,
        repository: &Repository,
    ) -> Result<Vec<(Tag, Digest)>, Error> {
        self.authorize(caller, Action::Pull, Target::Repository(repository)).await?;
        let tags = self.store.tag_targets(repository, MAX_TAGS).await?;
        if tags.is_empty() && !self.store.repository_has_manifests(repository).await? {
            return Err(Error::NameUnknown { repository: repository.clone() });
        }
        Ok(tags)
    }

    /// What is known of the model of a revision.
    pub(crate) async fn revision_facts(&self, revision: &Revision) -> Result<ListedModel, Error> {
        let (repository, digest) = (&revision.repository, &revision.digest);
        let model = self.store.model_find(digest).await?;
        let facts = self.store.facts_find(digest).await?;
        let (modified_at, _) = self.store.manifest_change(repository, &revision.reference).await?;
        let created_at = self.store.repository_created_at(repository).await?.unwrap_or(modified_at);
        Ok(ListedModel {
            repository: repository.clone(),
            digest: digest.clone(),
            created_at,
            modified_at,
            pulls: self.store.pull_totals(repository).await?,
            model: model.unwrap_or_default(),
            facts: facts.as_deref().map(ModelFacts::from_json).unwrap_or_default(),
            is_private: self.is_private(repository).await?,
        })
    }

    pub(super) async fn is_private(&self, repository: &Repository) -> Result<bool, Error> {
        Ok(!self.may(&Caller::ANONYMOUS, Action::Pull, repository).await?)
    }
}

/// The tag that is the branch `main`.
pub(crate) fn main_tag(tags: &[(Tag, Digest)]) -> Option<&(Tag, Digest)> {
    let named = |wanted: &str| tags.iter().find(|(tag, _)| tag.as_str() == wanted);
    named(MAIN).or_else(|| named(Tag::default().as_str()))
}

/// Whether a revision has the form of a commit id.
fn is_commit(name: &str) -> bool {
    name.len() == COMMIT_LEN && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

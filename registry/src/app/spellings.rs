//! Names that ollama's clients spell in two ways: to them `x` and `library/x` are one model, here they may be
//! two repositories. Reads use the spelling that has the content, writes the one that exists. The edge
//! decides which names have two spellings.

use lode_model::digest::Digest;
use lode_model::reference::{Reference, Repository};
use uuid::Uuid;

use super::Registry;
use crate::Error;
use crate::auth::{Action, Caller};
use crate::upstream::find_upstream;

/// The repositories that a name can mean, in the order in which they are tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spellings {
    first: Repository,
    second: Option<Repository>,
}

impl Spellings {
    pub fn two(first: Repository, second: Repository) -> Spellings {
        Spellings { first, second: Some(second) }
    }

    pub fn first(&self) -> &Repository {
        &self.first
    }

    pub fn iter(&self) -> impl Iterator<Item = &Repository> {
        std::iter::once(&self.first).chain(&self.second)
    }

    /// The other spelling, if there is one.
    pub fn other_than(&self, repository: &Repository) -> Option<&Repository> {
        self.iter().find(|spelling| *spelling != repository)
    }
}

/// A name with one spelling.
impl From<Repository> for Spellings {
    fn from(repository: Repository) -> Spellings {
        Spellings { first: repository, second: None }
    }
}

impl Registry {
    /// The spelling that has the manifest, if the caller may run or read it; otherwise the first.
    pub async fn spelling_of_manifest(
        &self,
        caller: &Caller,
        names: &Spellings,
        reference: &Reference,
    ) -> Result<Repository, Error> {
        if let Some(second) = &names.second {
            for repository in [&names.first, second] {
                match self.manifest_get_to(Action::Infer, caller, repository, reference).await {
                    Ok(_) => return Ok(repository.clone()),
                    Err(Error::ManifestUnknown { .. }) => {}
                    Err(error) if error.is_refusal() => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(names.first.clone())
    }

    /// The spelling that has the blob, if the caller may read it; otherwise the one that exists, because a mirror may
    /// fetch the blob.
    pub async fn spelling_of_blob(
        &self,
        caller: &Caller,
        names: &Spellings,
        digest: &Digest,
    ) -> Result<Repository, Error> {
        if names.second.is_some() {
            for repository in names.iter() {
                if self.store.blob_find(repository, digest).await?.is_some()
                    && self.may_see(caller, repository).await?
                {
                    return Ok(repository.clone());
                }
            }
        }
        self.spelling_existing(caller, names).await
    }

    /// The spelling under which the upload was opened; the first if there is no such upload.
    pub async fn spelling_of_upload(&self, names: &Spellings, id: Uuid) -> Result<Repository, Error> {
        if names.second.is_some()
            && let Some(upload) = self.store.upload_find_any(id).await?
            && let Some(repository) = names.iter().find(|repository| **repository == upload.repository)
        {
            return Ok(repository.clone());
        }
        Ok(names.first.clone())
    }

    /// The spelling that exists for the caller; the first if both or neither do.
    pub async fn spelling_existing(&self, caller: &Caller, names: &Spellings) -> Result<Repository, Error> {
        if let Some(second) = &names.second
            && !self.exists_for(caller, &names.first).await?
            && self.exists_for(caller, second).await?
        {
            return Ok(second.clone());
        }
        Ok(names.first.clone())
    }

    /// The spelling for a write: the one that exists, else the one without a namespace. A mirrored repository
    /// accepts no writes, so an existing mirror is not chosen.
    pub async fn spelling_to_write(&self, caller: &Caller, names: &Spellings) -> Result<Repository, Error> {
        let Some(second) = &names.second else { return Ok(names.first.clone()) };
        for repository in [&names.first, second] {
            if find_upstream(&self.upstreams, repository).is_none()
                && self.exists_for(caller, repository).await?
            {
                return Ok(repository.clone());
            }
        }
        let is_bare = |repository: &&Repository| !repository.as_str().contains('/');
        Ok(names.iter().find(is_bare).unwrap_or(&names.first).clone())
    }

    /// Whether a repository exists, and the caller may know that.
    async fn exists_for(&self, caller: &Caller, repository: &Repository) -> Result<bool, Error> {
        Ok(self.store.repository_exists(repository).await? && self.may_see(caller, repository).await?)
    }

    /// Links the blobs that only the other spelling of `repository` has: a client that takes both for one
    /// repository was told that they exist. Returns true if all of them are linked now.
    pub async fn link_from_other_spelling(
        &self,
        caller: &Caller,
        names: &Spellings,
        repository: &Repository,
        blobs: &[Digest],
    ) -> Result<bool, Error> {
        let Some(other) = names.other_than(repository) else { return Ok(false) };
        for digest in blobs {
            if self.blob_mount(caller, repository, digest, Some(other)).await?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

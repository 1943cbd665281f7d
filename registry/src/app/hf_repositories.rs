//! Repositories, branches and tags, as Hugging Face's clients create and delete them. To them a repository exists
//! while it has a manifest; a new one begins with an empty one.

use bytes::Bytes;
use futures::TryStreamExt;
use lode_model::import::plain_files;
use lode_model::reference::{Reference, Repository, Tag};
use serde_json::Value;

use super::commit::{Files, branch_tag};
use super::commit_error::CommitError;
use super::revisions::MAIN;
use super::{FilesError, Registry, retry_on_deadlock};
use crate::Error;
use crate::auth::{AccessTarget, Action, Caller, Target, Visibility};
use crate::store::UnreferencedContent;

/// How many manifests of a repository are deleted in one transaction.
const PAGE: i64 = 500;
/// The rules of a repository: which files are not uploaded to it.
const IGNORE_FILE: &str = ".gitignore";
/// Longer ones do not count.
const MAX_IGNORE_BYTES: u64 = 64 << 10;

impl Registry {
    /// Creates a repository with an empty manifest. Without `visibility` it has that of its namespace.
    pub(crate) async fn hf_repository_create(
        &self,
        caller: &Caller,
        repository: &Repository,
        visibility: Option<Visibility>,
    ) -> Result<(), CommitError> {
        let exists = || CommitError::Exists { what: format!("repository {repository}") };
        self.check_push_manifest(caller, repository).await?;
        if self.store.repository_has_manifests(repository).await? {
            return Err(exists());
        }
        // Set before the repository exists, so that a private one is never visible to others.
        if let Some(visibility) = visibility {
            self.hf_visibility_set(caller, repository, visibility).await?;
        }
        let made = plain_files([], &[])?;
        for blob in &made.blobs {
            self.small_put(caller, repository, blob).await?;
        }
        let (at, kind, bytes) = ((&Tag::default(), None), &made.media_type, made.manifest.into());
        let message = Some("Create the repository");
        match self.manifest_put_after(caller, repository, at, kind, bytes, message).await {
            Ok(_) => Ok(()),
            Err(Error::TagMoved { .. }) => Err(exists()),
            Err(error) => Err(error.into()),
        }
    }

    /// Changes the settings of a repository that Hugging Face's clients know.
    pub(crate) async fn hf_settings(
        &self,
        caller: &Caller,
        repository: &Repository,
        visibility: Option<Visibility>,
    ) -> Result<(), CommitError> {
        self.authorize(caller, Action::Own, Target::Repository(repository)).await?;
        self.check_writable()?;
        if !self.store.repository_has_manifests(repository).await? {
            return Err(Error::NameUnknown { repository: repository.clone() }.into());
        }
        match visibility {
            Some(visibility) => self.hf_visibility_set(caller, repository, visibility).await,
            None => Ok(()),
        }
    }

    /// Sets who may read a repository without a role, unless that is so already.
    pub(super) async fn hf_visibility_set(
        &self,
        caller: &Caller,
        repository: &Repository,
        visibility: Visibility,
    ) -> Result<(), CommitError> {
        // On a server without accounts everyone may read everything.
        if self.is_open().await? {
            return Ok(());
        }
        let target = AccessTarget::Repository(repository.clone());
        let (rights, _) = self.store().rights_find(&target, &[]).await?;
        if rights.visibility == visibility {
            return Ok(());
        }
        Ok(self.visibility_put(caller, &target, Some(visibility)).await?)
    }

    /// Deletes all manifests of a repository. Its content can be restored for as long as that of any deletion.
    pub(crate) async fn repository_delete(
        &self,
        caller: &Caller,
        repository: &Repository,
    ) -> Result<(), CommitError> {
        self.authorize(caller, Action::Delete, Target::Repository(repository)).await?;
        self.check_writable()?;
        if !self.store.repository_has_manifests(repository).await? {
            return Err(Error::NameUnknown { repository: repository.clone() }.into());
        }
        while retry_on_deadlock!(self.hf_manifests_remove(caller, repository).await)? {}
        tracing::info!(%repository, "repository deleted");
        Ok(())
    }

    /// Deletes some manifests. Returns whether there may be more.
    async fn hf_manifests_remove(&self, caller: &Caller, repository: &Repository) -> Result<bool, Error> {
        let protected = self.protected_tags(repository).await?;
        let mut tx = self.store.begin().await?;
        tx.repository_lock(repository).await?;
        let why = self.deletion_cause(caller);
        // A protected tag protects the repository.
        for tag in tx.tags_all(repository).await? {
            protected.check(&tag)?;
        }
        let digests = tx.manifest_digests(repository, PAGE).await?;
        let content = |digest| {
            let (repository, unreferenced_at) = (repository.clone(), why.at);
            UnreferencedContent { repository, digest, unreferenced_at }
        };
        let manifests: Vec<UnreferencedContent> = digests.into_iter().map(content).collect();
        let removed = self.manifests_remove(&mut tx, &manifests, &why).await?;
        for manifest in &removed {
            let target = format!("{repository}@{}", manifest.digest);
            self.audit(&mut tx, caller, "manifest.delete", target, Value::Null).await?;
        }
        tx.commit().await?;
        Ok(!removed.is_empty() && manifests.len() as i64 == PAGE)
    }

    /// Sets a new tag to a revision. `message`: what the client says of the tag.
    pub(crate) async fn hf_tag_create(
        &self,
        caller: &Caller,
        repository: &Repository,
        name: &str,
        revision: &str,
        message: Option<&str>,
    ) -> Result<(), CommitError> {
        self.check_push_manifest(caller, repository).await?;
        let tag = branch_tag(name)?;
        let exists = || CommitError::Exists { what: format!("tag {tag}") };
        let (_, stored) = match self.revision_manifest(caller, repository, revision).await {
            Err(FilesError::RevisionUnknown { revision, tags }) => {
                return Err(CommitError::BranchUnknown { branch: revision, tags });
            }
            found => found?,
        };
        let is_main = name == MAIN;
        if is_main || self.tag_head(repository, &tag).await?.is_some() {
            return Err(exists());
        }
        let bytes: Bytes = stored.bytes;
        let at = (&tag, None);
        match self.manifest_put_after(caller, repository, at, &stored.media_type, bytes, message).await {
            Ok(_) => Ok(()),
            Err(Error::TagMoved { .. }) => Err(exists()),
            Err(error) => Err(error.into()),
        }
    }

    /// Deletes a tag, as far as it is not protected.
    pub(crate) async fn hf_tag_delete(
        &self,
        caller: &Caller,
        repository: &Repository,
        name: &str,
    ) -> Result<(), CommitError> {
        self.authorize(caller, Action::Delete, Target::Repository(repository)).await?;
        let name = name.strip_prefix("refs/heads/").unwrap_or(name);
        if name == MAIN {
            return Err(CommitError::MainBranch);
        }
        let tag = branch_tag(name)?;
        match self.manifest_delete(caller, repository, &Reference::Tag(tag)).await {
            Err(Error::ManifestUnknown { .. }) => {
                Err(CommitError::BranchUnknown { branch: name.to_owned(), tags: Vec::new() })
            }
            deleted => Ok(deleted?),
        }
    }

    /// The files of a branch to which a client is about to upload.
    pub(crate) async fn preupload_files(
        &self,
        caller: &Caller,
        repository: &Repository,
        branch: &str,
    ) -> Result<Files, CommitError> {
        let found = self.branch_find(caller, repository, branch).await?;
        Ok(self.commit_base(caller, repository, &found, branch).await?.1)
    }

    /// The rules in the repository by which files are not uploaded to it.
    pub(crate) async fn preupload_rules(
        &self,
        caller: &Caller,
        repository: &Repository,
        files: &Files,
    ) -> Result<String, CommitError> {
        let Some(file) = files.get(IGNORE_FILE).filter(|file| file.size <= MAX_IGNORE_BYTES) else {
            return Ok(String::new());
        };
        let mut bytes = self.file_stream(caller, repository, file, 0..file.size).await?;
        let mut text = Vec::new();
        while let Some(piece) = bytes.try_next().await.map_err(|error| Error::io(IGNORE_FILE, error))? {
            text.extend_from_slice(&piece);
        }
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

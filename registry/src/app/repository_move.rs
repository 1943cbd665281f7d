//! Moves and copies of repositories. Each is one transaction: a repository has one name at any time, and a copy is complete.

use std::collections::BTreeMap;

use lode_model::digest::Digest;
use lode_model::reference::{Repository, Tag};
use serde_json::json;

use super::commit_error::CommitError;
use super::event::Event;
use super::protected_tags::MAX_PATTERNS;
use super::quotas::namespace_of;
use super::staging::is_staging;
use super::{Registry, retry_on_deadlock};
use crate::Error;
use crate::auth::{AccessTarget, Action, Caller, Target, Visibility};
use crate::store::{TaggedManifest, Tx};
use crate::upstream::find_upstream;

impl Registry {
    /// Moves a repository to a name that has no content. Grants, protected tags and visibility move with it, so the caller
    /// needs the role `own` on both names.
    pub(crate) async fn repository_move(
        &self,
        caller: &Caller,
        from: &Repository,
        to: &Repository,
    ) -> Result<(), CommitError> {
        self.check_recent(caller).await?;
        self.authorize(caller, Action::Own, Target::Repository(from)).await?;
        self.authorize(caller, Action::Own, Target::Repository(to)).await?;
        self.check_push_manifest(caller, to).await?;
        self.check_own_content(from)?;
        // The pulls that wait to be counted have the old name.
        self.write_pulls().await?;
        retry_on_deadlock!(self.move_once(caller, from, to).await)??;
        self.access.changed();
        tracing::info!(repository = %from, %to, "repository moved");
        Ok(())
    }

    async fn move_once(
        &self,
        caller: &Caller,
        from: &Repository,
        to: &Repository,
    ) -> Result<Result<(), CommitError>, Error> {
        let protected = self.protected_tags(from).await?;
        let mut tx = self.store.begin_long().await?;
        tx.lock_for_move(from, to).await?;
        if let Err(refusal) = check_names(&mut tx, from, to).await? {
            return Ok(Err(refusal));
        }
        // Under its old name, a tag would be gone.
        for tag in tx.tags_all(from).await? {
            protected.check(&tag)?;
        }
        tx.repository_move(from, to).await?;
        // Changes of quotas take these locks in the same order.
        tx.access_changed().await?;
        if namespace_of(from) != namespace_of(to) {
            tx.quotas_recount([from.as_str(), to.as_str()]).await?;
            self.check_quota_of(&mut tx, to).await?;
        }
        if tx.access_move(from, to).await? > MAX_PATTERNS {
            return Ok(Err(CommitError::TooManyPatterns { repository: to.clone(), limit: MAX_PATTERNS }));
        }
        self.announce(&mut tx, &caller.actor(), Event::Move { repository: to, from }).await?;
        self.audit(&mut tx, caller, "repository.move", from.to_string(), json!({ "to": to })).await?;
        tx.commit().await?;
        Ok(Ok(()))
    }

    /// Copies a repository to a name that has no content: its manifests, tags, history and card. Without `visibility` the
    /// copy has that of its namespace, or that of the source if fewer may read the source.
    pub(crate) async fn repository_copy(
        &self,
        caller: &Caller,
        from: &Repository,
        to: &Repository,
        visibility: Option<Visibility>,
    ) -> Result<(), CommitError> {
        self.authorize(caller, Action::Pull, Target::Repository(from)).await?;
        self.check_push_manifest(caller, to).await?;
        self.check_own_content(from)?;
        if !self.store.repository_has_manifests(from).await? {
            return Err(Error::NameUnknown { repository: from.clone() }.into());
        }
        if self.store.repository_has_manifests(to).await? {
            return Err(exists(to));
        }
        let of_source = self.visibility_of(from).await?;
        let visibility = match visibility {
            None if of_source < self.visibility_of(to).await? => Some(of_source),
            chosen => chosen,
        };
        // Set before the copy exists, so that a private one is never visible to others.
        if let Some(visibility) = visibility {
            self.hf_visibility_set(caller, to, visibility).await?;
        }
        retry_on_deadlock!(self.copy_once(caller, from, to).await)??;
        self.indexing.queued.notify_one();
        tracing::info!(repository = %from, %to, "repository copied");
        Ok(())
    }

    async fn copy_once(
        &self,
        caller: &Caller,
        from: &Repository,
        to: &Repository,
    ) -> Result<Result<(), CommitError>, Error> {
        let mut tx = self.store.begin_long().await?;
        tx.lock_for_copy(from, to).await?;
        if let Err(refusal) = check_names(&mut tx, from, to).await? {
            return Ok(Err(refusal));
        }
        tx.repository_copy(from, to).await?;
        tx.quotas_recount([to.as_str()]).await?;
        self.check_quota_of(&mut tx, to).await?;
        self.announce_copy(&mut tx, caller, to).await?;
        self.audit(&mut tx, caller, "repository.copy", to.to_string(), json!({ "from": from })).await?;
        tx.commit().await?;
        Ok(Ok(()))
    }

    /// Announces the tagged manifests of a new repository as if they were pushed.
    async fn announce_copy(
        &self,
        tx: &mut Tx,
        caller: &Caller,
        repository: &Repository,
    ) -> Result<(), Error> {
        if self.config.webhook.is_empty() {
            return Ok(());
        }
        let mut pushed: BTreeMap<Digest, (TaggedManifest, Vec<Tag>)> = BTreeMap::new();
        for (tag, manifest) in tx.tagged_manifests(repository).await? {
            pushed.entry(manifest.digest.clone()).or_insert_with(|| (manifest, Vec::new())).1.push(tag);
        }
        for (digest, (TaggedManifest { media_type, size_bytes, .. }, tags)) in &pushed {
            let size_bytes = *size_bytes;
            let push = Event::Push { repository, digest, media_type, size_bytes, tags };
            let moved: Vec<(Tag, Option<Digest>)> = tags.iter().map(|tag| (tag.clone(), None)).collect();
            self.announce_push(tx, &caller.actor(), push, &moved).await?;
        }
        Ok(())
    }

    /// Who may read a repository without a role.
    async fn visibility_of(&self, repository: &Repository) -> Result<Visibility, Error> {
        let (rights, _) = self.store.rights_find(&AccessTarget::Repository(repository.clone()), &[]).await?;
        Ok(rights.visibility)
    }

    /// Refuses repositories whose content this server manages itself: staged blobs, and mirrors.
    fn check_own_content(&self, repository: &Repository) -> Result<(), Error> {
        if is_staging(repository) {
            return Err(Error::Denied { needs: format!("{repository} is only for uploads") });
        }
        match find_upstream(&self.upstreams, repository) {
            Some(_) => Err(Error::Mirrored { repository: repository.clone() }),
            None => Ok(()),
        }
    }
}

/// Checks that there is a repository `from` and none `to`, with both locked.
async fn check_names(
    tx: &mut Tx,
    from: &Repository,
    to: &Repository,
) -> Result<Result<(), CommitError>, Error> {
    if !tx.has_manifests(from).await? {
        return Err(Error::NameUnknown { repository: from.clone() });
    }
    Ok(if tx.has_manifests(to).await? { Err(exists(to)) } else { Ok(()) })
}

fn exists(repository: &Repository) -> CommitError {
    CommitError::Exists { what: format!("repository {repository}") }
}

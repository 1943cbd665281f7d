//! Undo: restores a removal within its time limit. A manifest is restored with its tags and, if it is an
//! index, its children; their bytes were kept for it.

use std::time::Duration;

use futures::TryStreamExt;
use lode_model::digest::Digest;
use lode_model::manifest::Manifest;
use lode_model::reference::{Reference, Repository, Tag};
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use crate::Error;
use crate::app::event::Event;
use crate::app::manifests::{Checks, PushedManifest};
use crate::app::{Registry, TRIES, detached, retry_on_deadlock};
use crate::auth::{Action, Caller, Target};
use crate::store::{RemovalRow, parse_stored};
use crate::time::millis;

/// The minimum lease on restored content, which protects it from the collection until all of it is restored.
const LEASE: Duration = Duration::from_secs(60);
/// The greatest depth of nested indexes that is restored.
const DEPTH: u32 = 8;

/// The restored content.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct RestoredContent {
    pub manifests: Vec<Digest>,
    pub tags: Vec<Tag>,
}

impl Registry {
    /// Restores a removed manifest with its tags, or a removed tag with its manifest.
    pub async fn gc_undo(
        &self,
        caller: &Caller,
        repository: &Repository,
        reference: &Reference,
    ) -> Result<RestoredContent, Error> {
        self.authorize(caller, Action::Administer, Target::Server).await?;
        self.check_writable()?;
        let (this, repository, reference) = (self.clone(), repository.clone(), reference.clone());
        let caller = caller.clone();
        detached(async move { this.undo(&caller, &repository, &reference).await }).await
    }

    async fn undo(
        &self,
        caller: &Caller,
        repository: &Repository,
        reference: &Reference,
    ) -> Result<RestoredContent, Error> {
        let unknown = || Error::RemovalUnknown { reference: reference.clone() };
        // 1. Find the manifest and the tags.
        let (digest, tags) = match reference {
            Reference::Digest(digest) => {
                (digest.clone(), self.store.removals_of_manifest_tags(repository, digest).await?)
            }
            Reference::Tag(tag) => {
                if self.store.manifest_find(repository, reference).await?.is_some() {
                    return Err(Error::TagInUse { tag: tag.clone() });
                }
                let row = self.store.removal_of_tag(repository, tag).await?.ok_or_else(unknown)?;
                (parse_stored("digest", &row.digest)?, vec![row])
            }
        };
        let (mut restored, by_digest) = (RestoredContent::default(), Reference::Digest(digest.clone()));
        for _ in 0..TRIES {
            // 2. Restore the manifest, unless it still exists.
            if self.store.manifest_find(repository, &by_digest).await?.is_none() {
                self.manifest_restore(caller, repository, &digest, &mut restored, 0).await?;
            } else if tags.is_empty() {
                break;
            }
            // 3. Restore its tags, unless a collection removed the manifest meanwhile.
            if let Some(tags) =
                retry_on_deadlock!(self.tags_restore(caller, repository, &digest, &tags).await)?
            {
                tracing::info!(%repository, %reference, tags = tags.len(), "removal undone");
                restored.tags = tags;
                return Ok(restored);
            }
        }
        Err(unknown())
    }

    async fn manifest_restore(
        &self,
        caller: &Caller,
        repository: &Repository,
        digest: &Digest,
        restored: &mut RestoredContent,
        depth: u32,
    ) -> Result<(), Error> {
        let unknown = || Error::RemovalUnknown { reference: Reference::Digest(digest.clone()) };
        let row = self.store.removal_of_manifest(repository, digest).await?.ok_or_else(unknown)?;
        let (size_bytes, key) = self.store.blob_live(digest).await?.ok_or_else(unknown)?;
        let bytes = self.blobs.read(&key, 0..size_bytes).await?;
        let bytes = bytes.try_fold(Vec::new(), async |mut all, piece| {
            all.extend_from_slice(&piece);
            Ok(all)
        });
        let bytes = bytes.await.map_err(|error| Error::io(format!("reading {key}"), error))?;
        let manifest = Manifest::parse(row.media_type.as_deref(), &bytes).map_err(Error::ManifestInvalid)?;
        let children: Vec<Digest> = manifest.children().map(|child| child.digest.clone()).collect();
        // 1. The manifests of an index that were removed too.
        for child in self.store.manifests_missing(repository, &children).await? {
            if depth < DEPTH && self.store.removal_of_manifest(repository, &child).await?.is_some() {
                Box::pin(self.manifest_restore(caller, repository, &child, restored, depth + 1)).await?;
            }
        }
        // 2. All of the blobs that it had.
        let blobs = self.store.removal_blobs(&row.id).await?;
        retry_on_deadlock!(self.links_restore(repository, &blobs).await).and_then(|all| match all {
            true => Ok(()),
            false => Err(unknown()),
        })?;
        // 3. The manifest itself, like a push. References that were absent before may be absent again.
        let (reference, media_type) = (Reference::Digest(digest.clone()), row.media_type.as_deref());
        let new =
            PushedManifest { content_type: media_type, ..PushedManifest::new(&reference, bytes.into()) };
        self.manifest_store(caller, repository, new, Checks::NONE).await?;
        let mut tx = self.store.begin().await?;
        tx.removals_mark_restored(&[row.id]).await?;
        tx.commit().await?;
        restored.manifests.push(digest.clone());
        Ok(())
    }

    async fn links_restore(&self, repository: &Repository, blobs: &[Digest]) -> Result<bool, Error> {
        let mut tx = self.store.begin().await?;
        for digest in blobs {
            if tx.blob_lock(digest).await?.is_none() {
                return Ok(false);
            }
        }
        tx.repository_lock_or_create(repository).await?;
        for digest in blobs {
            tx.link(repository, digest, self.lease_ms().max(millis(LEASE))).await?;
        }
        tx.commit().await?;
        Ok(true)
    }

    /// Restores removed tags of a manifest. Returns `None` if the manifest is no longer there, and an error if one of
    /// the tags was pushed since its removal was read.
    pub(in crate::app) async fn tags_restore(
        &self,
        caller: &Caller,
        repository: &Repository,
        digest: &Digest,
        removals: &[RemovalRow],
    ) -> Result<Option<Vec<Tag>>, Error> {
        let mut tx = self.store.begin().await?;
        tx.repository_lock(repository).await?;
        if !tx.manifests_reference(repository, std::slice::from_ref(digest)).await?.is_empty() {
            return Ok(None);
        }
        let (actor, mut tags) = (caller.actor(), Vec::<Tag>::new());
        for row in removals {
            let tag: Tag = parse_stored("tag", row.tag.as_deref().unwrap_or_default())?;
            if !tags.contains(&tag) {
                match tx.tag_put(repository, &tag, digest, &actor, None).await? {
                    // It was pushed after its removal was read.
                    Some(other) if other != *digest => return Err(Error::TagInUse { tag }),
                    Some(_) => {}
                    None => {
                        let event = Event::Tag { repository, tag: &tag, digest, previous: None };
                        self.announce(&mut tx, &actor, event).await?;
                    }
                }
                tags.push(tag);
            }
        }
        let ids: Vec<String> = removals.iter().map(|row| row.id.clone()).collect();
        tx.removals_mark_restored(&ids).await?;
        self.audit(
            &mut tx,
            caller,
            "removal.undo",
            format!("{repository}@{digest}"),
            json!({ "tags": tags }),
        )
        .await?;
        tx.commit().await?;
        Ok(Some(tags))
    }
}

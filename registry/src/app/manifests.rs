//! Manifests: read as they came, written together with their tags, refused when they name what is not there.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use lode_model::digest::{Algorithm, Digest};
use lode_model::manifest::{MAX_MANIFEST_BYTES, Manifest, ManifestError};
use lode_model::reference::{Reference, Repository, Tag};

use super::{ManifestPut, Registry, StoredManifest, again, detached};
use crate::Error;
use crate::auth::{Action, Caller, Target, allow};
use crate::blobs::Placed;
use crate::store::{Named, ReferrerRow, UploadRow};
use crate::webhooks::Event;

impl Registry {
    pub async fn manifest_get(
        &self,
        caller: &Caller,
        repository: &Repository,
        reference: &Reference,
    ) -> Result<StoredManifest, Error> {
        allow(caller, Action::Pull, Target::Repository(repository))?;
        let mut found = self.store.manifest_read(repository, reference).await?;
        if self.is_mirrored(caller, repository)
            && Box::pin(self.mirror_manifest(caller, repository, reference, found.is_some())).await?
        {
            found = self.store.manifest_read(repository, reference).await?;
        }
        match found {
            Some(row) => {
                Ok(StoredManifest { digest: row.digest, media_type: row.media_type, bytes: row.bytes })
            }
            None => Err(self.manifest_unknown(repository, reference).await?),
        }
    }

    /// Stores a manifest and moves its tags, all or nothing.
    pub async fn manifest_put(
        &self,
        caller: &Caller,
        repository: &Repository,
        reference: &Reference,
        content_type: Option<&str>,
        bytes: Bytes,
        tags: &[Tag],
    ) -> Result<ManifestPut, Error> {
        self.may_push(caller, repository)?;
        Box::pin(self.manifest_store(
            repository,
            reference,
            content_type,
            bytes,
            tags,
            Checks { sparse: self.config.allow_sparse, sizes: true },
        ))
        .await
    }

    /// As `manifest_put`, without asking the policy.
    pub(super) async fn manifest_store(
        &self,
        repository: &Repository,
        reference: &Reference,
        content_type: Option<&str>,
        bytes: Bytes,
        tags: &[Tag],
        checks: Checks,
    ) -> Result<ManifestPut, Error> {
        // 1. Is it one?
        let manifest = Manifest::parse(content_type, &bytes).map_err(|error| match error {
            ManifestError::TooLarge { .. } => {
                Error::ManifestTooLarge { limit_bytes: MAX_MANIFEST_BYTES as u64 }
            }
            other => Error::ManifestInvalid(other),
        })?;
        // 2. What will it be called?
        let mut tags: Vec<Tag> = tags.to_vec();
        let digest = match reference {
            Reference::Digest(expected) => {
                let got = Digest::of(expected.algorithm(), &bytes);
                if got != *expected {
                    return Err(Error::DigestMismatch { expected: expected.clone(), got });
                }
                got
            }
            Reference::Tag(tag) => {
                tags.insert(0, tag.clone());
                Digest::of(Algorithm::Sha256, &bytes)
            }
        };
        let mut seen = BTreeSet::new();
        tags.retain(|tag| seen.insert(tag.clone()));
        // 3. Is everything there that it names? Asked before anything is written, and again with everything locked.
        let named = Names::of(&manifest);
        let sizes = self.store.link_sizes(repository, &named.all()).await?;
        let missing_blobs =
            named.blobs.iter().filter(|digest| !sizes.contains_key(digest)).cloned().collect();
        let missing_children = self.store.manifests_missing(repository, &named.children).await?;
        refuse_missing(missing_blobs, missing_children, checks.sparse)?;
        // A digest has one size, so what is checked here need not be checked again under the locks.
        if checks.sizes {
            refuse_other_sizes(&manifest, &sizes)?;
        }
        // 4. Its bytes, an ordinary blob, and everything that refers to them, in one transaction. Once begun this runs to its end,
        //    whatever becomes of the client's connection.
        let put = Put { digest, manifest, named, bytes, tags, sparse: checks.sparse };
        let (this, target) = (self.clone(), repository.clone());
        let put = detached(async move {
            this.manifest_write(&target, &put).await?;
            this.indexing.queued.notify_one();
            Ok(put)
        });
        let Put { digest, manifest, tags, bytes, .. } = put.await?;
        tracing::info!(%repository, %digest, size_bytes = bytes.len(), "manifest stored");
        Ok(ManifestPut { digest, subject: manifest.subject.map(|subject| subject.digest), tags })
    }

    async fn manifest_write(&self, repository: &Repository, put: &Put) -> Result<(), Error> {
        let lock = self.digests.lock(put.digest.clone()).await;
        loop {
            // 1. Bytes that are there already, or fresh ones.
            let found = self.store.blob_live(&put.digest).await?;
            let sound = match &found {
                Some((size_bytes, key)) => self.blobs.size(key).await? == Some(*size_bytes),
                None => false,
            };
            let stored = match found {
                Some((_, key)) if sound => ManifestBytes::Stored { key },
                other => {
                    let (placed, announced) =
                        self.bytes_put(repository, &put.digest, put.bytes.clone(), &lock).await?;
                    ManifestBytes::Written {
                        placed,
                        announced: announced.map(Box::new),
                        damaged: other.map(|(_, key)| key),
                    }
                }
            };
            // 2. The rows.
            let recorded = again!(self.manifest_record(repository, put, &stored).await);
            // 3. The bytes' first name goes once it is certain what became of them; otherwise it stays for the purge.
            match stored {
                ManifestBytes::Written { placed: Placed { temporary: Some(temporary), .. }, .. } => {
                    let certain = match &recorded {
                        Ok(_) => true,
                        // Where the index says that it has no room, it took nothing.
                        Err(Error::ManifestBlobsUnknown(_) | Error::StorageFull) => {
                            self.blob_unplace(&put.digest, &lock).await.is_ok()
                        }
                        Err(_) => false,
                    };
                    if certain {
                        self.blobs.discard(&temporary).await;
                    }
                }
                // Ending what announced them waits for a commit whose answer was lost, and does nothing if there was one.
                ManifestBytes::Written { announced: Some(row), .. }
                    if !matches!(recorded, Ok(Recorded::Done)) =>
                {
                    let _ = self.upload_end(*row).await;
                }
                ManifestBytes::Written { .. } | ManifestBytes::Stored { .. } => {}
            }
            match recorded? {
                Recorded::Done => return Ok(()),
                // Another replica stored it as well; its bytes are the blob's.
                Recorded::Spare => return Ok(()),
                // A collection on another replica took them between the two looks.
                Recorded::Gone => {}
            }
        }
    }

    async fn manifest_record(
        &self,
        repository: &Repository,
        put: &Put,
        stored: &ManifestBytes,
    ) -> Result<Recorded, Error> {
        let Put { digest, manifest, named, bytes, tags, sparse } = put;
        let size_bytes = bytes.len() as u64;
        let mut tx = self.store.begin().await?;
        let mut recorded = Recorded::Done;
        // Rows are locked in the order that `store/locks.rs` tells.
        match stored {
            ManifestBytes::Stored { key } => match tx.blob_lock(digest).await? {
                Some((_, now)) if now == *key => {}
                _ => return Ok(Recorded::Gone),
            },
            ManifestBytes::Written { placed, announced, damaged } => {
                let ours = tx.blob_insert(digest, size_bytes, &placed.key, damaged.as_deref()).await?;
                match announced {
                    _ if !ours => recorded = Recorded::Spare,
                    Some(row) if !tx.upload_finish(row.id, row.generation).await? => {
                        return Err(Error::UploadUnknown { id: row.id });
                    }
                    _ => {}
                }
            }
        }
        tx.blobs_share(&named.all()).await?;
        // The lock of the repository comes before any row of it.
        tx.repository_lock_or_create(repository).await?;
        tx.link(repository, digest, self.lease_ms()).await?;
        // What it names is marked first, which keeps the collection from it, and then looked at.
        let missing_blobs = tx.links_reference(repository, &named.blobs).await?;
        let missing_children = tx.manifests_reference(repository, &named.children).await?;
        tx.links_reference(repository, &named.elsewhere).await?;
        let present = named.split(&missing_blobs, &missing_children);
        refuse_missing(missing_blobs, missing_children, *sparse)?;
        let artifact_type = manifest.referrer_type();
        tx.manifest_insert(repository, digest, &manifest.media_type, artifact_type, bytes).await?;
        tx.named_replace(repository, digest, &present).await?;
        let row = manifest.subject.as_ref().map(|subject| {
            let annotations = Some(&manifest.annotations).filter(|annotations| !annotations.is_empty());
            let annotations = annotations.and_then(|annotations| serde_json::to_string(annotations).ok());
            let row = ReferrerRow::new(digest, &manifest.media_type, size_bytes, artifact_type, annotations);
            (&subject.digest, row)
        });
        tx.referrer_replace(repository, digest, row.as_ref().map(|(subject, row)| (*subject, row))).await?;
        let mut moved = Vec::new();
        for tag in tags {
            moved.push((tag.clone(), tx.tag_put(repository, tag, digest).await?));
        }
        let media_type = &manifest.media_type;
        let push = Event::Push { repository, digest, media_type, size_bytes, tags };
        self.announce_push(&mut tx, push, &moved).await?;
        tx.commit().await?;
        Ok(recorded)
    }

    /// A tag goes alone; a digest takes its tags along. What they named is collected after its grace.
    pub async fn manifest_delete(
        &self,
        caller: &Caller,
        repository: &Repository,
        reference: &Reference,
    ) -> Result<(), Error> {
        allow(caller, Action::Delete, Target::Repository(repository))?;
        self.may_write()?;
        if !again!(self.manifest_remove(repository, reference).await)? {
            return Err(self.manifest_unknown(repository, reference).await?);
        }
        tracing::info!(%repository, %reference, "manifest deleted");
        Ok(())
    }

    async fn manifest_remove(&self, repository: &Repository, reference: &Reference) -> Result<bool, Error> {
        let mut tx = self.store.begin().await?;
        tx.repository_lock(repository).await?;
        let why = self.why_deleted();
        let found = match reference {
            Reference::Digest(digest) => {
                let manifest = (repository.clone(), digest.clone(), why.at);
                self.manifests_take_away(&mut tx, &[manifest], &why).await? > 0
            }
            Reference::Tag(tag) => match tx.tag_delete(repository, tag, &why).await? {
                Some(digest) => {
                    tx.manifest_untagged(repository, &digest, why.at).await?;
                    let event = Event::Untag { repository, tag, digest: &digest, reason: why.reason.word() };
                    self.announce(&mut tx, event).await?;
                    true
                }
                None => false,
            },
        };
        tx.commit().await?;
        Ok(found)
    }

    /// The error for a manifest that is not there: is it the manifest or the whole repository?
    async fn manifest_unknown(&self, repository: &Repository, reference: &Reference) -> Result<Error, Error> {
        Ok(match self.store.repository_exists(repository).await? {
            true => Error::ManifestUnknown { reference: reference.clone() },
            false => Error::NameUnknown { repository: repository.clone() },
        })
    }
}

fn refuse_missing(mut missing: Vec<Digest>, children: Vec<Digest>, sparse: bool) -> Result<(), Error> {
    missing.extend(children);
    match missing.is_empty() || sparse {
        true => Ok(()),
        false => Err(Error::ManifestBlobsUnknown(missing)),
    }
}

/// Refuses a manifest that gives content of this repository another size than it has. Clients allocate, verify and seek by these sizes.
fn refuse_other_sizes(manifest: &Manifest, sizes: &BTreeMap<Digest, u64>) -> Result<(), Error> {
    for described in manifest.config.iter().chain(&manifest.layers).chain(manifest.children()) {
        match sizes.get(&described.digest) {
            Some(stored) if *stored != described.size => {
                return Err(Error::DescriptorSize {
                    digest: described.digest.clone(),
                    described: described.size,
                    stored: *stored,
                });
            }
            _ => {}
        }
    }
    Ok(())
}

/// What a manifest is checked for before it is stored.
#[derive(Clone, Copy)]
pub(super) struct Checks {
    /// What it names may be absent.
    pub(super) sparse: bool,
    /// The sizes of its descriptors have to be those of the content that is present.
    pub(super) sizes: bool,
}

impl Checks {
    /// For manifests that were accepted before, here or by an upstream.
    pub(super) const NONE: Checks = Checks { sparse: true, sizes: false };
}

/// A manifest that may be stored.
struct Put {
    digest: Digest,
    manifest: Manifest,
    named: Names,
    bytes: Bytes,
    tags: Vec<Tag>,
    /// What it names may be absent.
    sparse: bool,
}

/// Where a manifest's bytes are before its rows are written.
enum ManifestBytes {
    /// A live blob has them.
    Stored { key: String },
    /// They were written for it, in object storage under an upload's row; `damaged` is the key of a live blob with wrong bytes.
    Written { placed: Placed, announced: Option<Box<UploadRow>>, damaged: Option<String> },
}

enum Recorded {
    Done,
    /// With bytes that are the blob's already, in place of the fresh ones.
    Spare,
    /// The bytes that were there are on their way out.
    Gone,
}

/// What a manifest names, each digest once.
struct Names {
    blobs: Vec<Digest>,
    children: Vec<Digest>,
    /// Layers that live elsewhere; should they be here all the same, they stay.
    elsewhere: Vec<Digest>,
}

impl Names {
    fn of(manifest: &Manifest) -> Names {
        let unique = |digests: BTreeSet<Digest>| digests.into_iter().collect::<Vec<_>>();
        let blobs: BTreeSet<Digest> = manifest.blobs().map(|d| d.digest.clone()).collect();
        let elsewhere =
            manifest.layers.iter().map(|d| d.digest.clone()).filter(|d| !blobs.contains(d)).collect();
        Names {
            children: unique(manifest.children().map(|d| d.digest.clone()).collect()),
            elsewhere: unique(elsewhere),
            blobs: unique(blobs),
        }
    }

    fn all(&self) -> Vec<&Digest> {
        [&self.blobs, &self.children, &self.elsewhere].into_iter().flatten().collect()
    }

    /// What must stay there, and what was not there to begin with.
    fn split(&self, missing_blobs: &[Digest], missing_children: &[Digest]) -> Named {
        let apart = |all: &[Digest], missing: &[Digest]| {
            let missing: BTreeSet<&Digest> = missing.iter().collect();
            all.iter().cloned().partition(|digest| missing.contains(digest))
        };
        let (optional_blobs, blobs) = apart(&self.blobs, missing_blobs);
        let (optional_children, children) = apart(&self.children, missing_children);
        let mut named = Named { blobs, optional_blobs, children, optional_children };
        named.optional_blobs.extend(self.elsewhere.iter().cloned());
        named
    }
}

//! Manifests: returned byte for byte, written together with their tags, rejected when they reference missing
//! content.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use lode_model::digest::{Algorithm, Digest};
use lode_model::manifest::{MAX_MANIFEST_BYTES, Manifest, ManifestError};
use lode_model::reference::{Reference, Repository, Tag};
use serde::Serialize;
use serde_json::{Value, json};

use super::event::Event;
use super::{ManifestPut, Registry, StoredManifest, detached, retry_on_deadlock};
use crate::Error;
use crate::auth::{Action, Caller, ProtectedTags, Target};
use crate::blobs::PlacedBlob;
use crate::store::{JobRun, ManifestReferences, NewManifest, ReferrerRow, UnreferencedContent, UploadRow};

impl Registry {
    pub async fn manifest_get(
        &self,
        caller: &Caller,
        repository: &Repository,
        reference: &Reference,
    ) -> Result<StoredManifest, Error> {
        self.manifest_get_to(Action::Pull, caller, repository, reference).await
    }

    /// Like `manifest_get`, for a caller that wants to do `action` with the manifest.
    pub(super) async fn manifest_get_to(
        &self,
        action: Action,
        caller: &Caller,
        repository: &Repository,
        reference: &Reference,
    ) -> Result<StoredManifest, Error> {
        self.authorize(caller, action, Target::Repository(repository)).await?;
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

    /// Stores a manifest and moves its tags, all or nothing. Reads the caller's rights again, because the request may
    /// have begun long before.
    pub async fn manifest_put(
        &self,
        caller: &Caller,
        repository: &Repository,
        reference: &Reference,
        content_type: Option<&str>,
        bytes: Bytes,
        tags: &[Tag],
    ) -> Result<ManifestPut, Error> {
        let caller = &self.caller_refresh(caller).await?;
        self.check_push_manifest(caller, repository).await?;
        let checks = Checks { sparse: self.config.allow_sparse, sizes: true };
        let pushed = PushedManifest { content_type, tags, ..PushedManifest::new(reference, bytes) };
        Box::pin(self.manifest_store(caller, repository, pushed, checks)).await
    }

    /// Like `manifest_put`, for a job: one transaction stores the manifest and the job's result, which `result_of`
    /// computes from the digest. Returns the result as JSON. The error is [`Error::Interrupted`] if the run no longer
    /// holds the job, or the job has ended.
    pub(super) async fn manifest_put_for_job<T: Serialize>(
        &self,
        caller: &Caller,
        (repository, reference): (&Repository, &Reference),
        (content_type, bytes): (&str, Bytes),
        run: &JobRun,
        result_of: impl FnOnce(Digest) -> T,
    ) -> Result<String, Error> {
        let caller = &self.caller_refresh(caller).await?;
        self.check_push_manifest(caller, repository).await?;
        let digest = match reference {
            Reference::Digest(digest) => digest.clone(),
            Reference::Tag(_) => Digest::of(Algorithm::Sha256, &bytes),
        };
        let result = serde_json::to_string(&result_of(digest)).expect("texts and numbers serialise to JSON");
        let checks = Checks { sparse: self.config.allow_sparse, sizes: true };
        let job = Some(JobResult { run: run.clone(), result: result.clone() });
        let content_type = Some(content_type);
        let pushed = PushedManifest { content_type, job, ..PushedManifest::new(reference, bytes) };
        Box::pin(self.manifest_store(caller, repository, pushed, checks)).await?;
        Ok(result)
    }

    /// Like `manifest_put`, but fails with [`Error::TagMoved`] unless the tag still points to `head` (`None`: unless it
    /// does not exist). `message` is the commit message.
    pub(super) async fn manifest_put_after(
        &self,
        caller: &Caller,
        repository: &Repository,
        (tag, head): (&Tag, Option<&Digest>),
        content_type: &str,
        bytes: Bytes,
        message: Option<&str>,
    ) -> Result<Digest, Error> {
        let caller = &self.caller_refresh(caller).await?;
        self.check_push_manifest(caller, repository).await?;
        let checks = Checks { sparse: self.config.allow_sparse, sizes: true };
        let (reference, content_type) = (&Reference::Tag(tag.clone()), Some(content_type));
        let pushed = PushedManifest {
            content_type,
            replaces: Some(head),
            message,
            ..PushedManifest::new(reference, bytes)
        };
        Ok(Box::pin(self.manifest_store(caller, repository, pushed, checks)).await?.digest)
    }

    /// Like `manifest_put`, without checking the policy.
    pub(super) async fn manifest_store(
        &self,
        caller: &Caller,
        repository: &Repository,
        pushed: PushedManifest<'_>,
        checks: Checks,
    ) -> Result<ManifestPut, Error> {
        let PushedManifest { reference, content_type, bytes, tags, replaces, message, job } = pushed;
        let (replaces, message) = (replaces.map(|head| head.cloned()), message.map(str::to_owned));
        // 1. Parse it.
        let manifest = Manifest::parse(content_type, &bytes).map_err(|error| match error {
            ManifestError::TooLarge { .. } => {
                Error::ManifestTooLarge { limit_bytes: MAX_MANIFEST_BYTES as u64 }
            }
            other => Error::ManifestInvalid(other),
        })?;
        // 2. Determine its digest and tags.
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
        // 3. Check that all references exist: now, before anything is written, and again with everything
        //    locked.
        let named = ManifestNames::of(&manifest);
        let sizes = self.store.link_sizes(repository, &named.all()).await?;
        let missing_blobs =
            named.blobs.iter().filter(|digest| !sizes.contains_key(digest)).cloned().collect();
        let missing_children = self.store.manifests_missing(repository, &named.children).await?;
        refuse_missing(missing_blobs, missing_children, checks.sparse)?;
        // A digest has one size, so this check need not be repeated under the locks.
        if checks.sizes {
            refuse_other_sizes(&manifest, &sizes)?;
        }
        // 4. Write its bytes as an ordinary blob, and all its rows in one transaction. Once begun this runs
        //    to its end, even if the client disconnects.
        let protected = self.protected_tags(repository).await?;
        let (sparse, caller) = (checks.sparse, caller.clone());
        let put = CheckedManifest {
            digest,
            manifest,
            named,
            bytes,
            tags,
            replaces,
            message,
            job,
            sparse,
            caller,
            protected,
        };
        let (this, target) = (self.clone(), repository.clone());
        let put = detached(async move {
            this.manifest_write(&target, &put).await?;
            this.indexing.queued.notify_one();
            Ok(put)
        });
        let CheckedManifest { digest, manifest, tags, bytes, .. } = put.await?;
        tracing::info!(%repository, %digest, size_bytes = bytes.len(), "manifest stored");
        Ok(ManifestPut { digest, subject: manifest.subject.map(|subject| subject.digest), tags })
    }

    async fn manifest_write(&self, repository: &Repository, put: &CheckedManifest) -> Result<(), Error> {
        let lock = self.digests.lock(put.digest.clone()).await;
        loop {
            // 1. Use stored bytes, or write new ones.
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
            // 2. Write the rows.
            let recorded = retry_on_deadlock!(self.manifest_record(repository, put, &stored).await);
            // 3. Delete the temporary name of the bytes once their outcome is certain; otherwise the expiry
            //    job deletes it.
            match stored {
                ManifestBytes::Written { placed: PlacedBlob { temporary: Some(temporary), .. }, .. } => {
                    let certain = match &recorded {
                        Ok(_) => true,
                        // A refusal or a full database has written nothing.
                        Err(
                            Error::ManifestBlobsUnknown(_)
                            | Error::TagProtected { .. }
                            | Error::TagMoved { .. }
                            | Error::QuotaExceeded { .. }
                            | Error::Interrupted
                            | Error::StorageFull,
                        ) => self.blob_delete_unlisted(&put.digest, &lock).await.is_ok(),
                        Err(_) => false,
                    };
                    if certain {
                        self.blobs.discard(&temporary).await;
                    }
                }
                // Ending the upload that announced them waits for a commit whose response was lost, and does
                // nothing if it succeeded.
                ManifestBytes::Written { announced: Some(row), .. }
                    if !matches!(recorded, Ok(RecordOutcome::Done)) =>
                {
                    let _ = self.upload_remove(*row).await;
                }
                ManifestBytes::Written { .. } | ManifestBytes::Stored { .. } => {}
            }
            match recorded? {
                RecordOutcome::Done => return Ok(()),
                // Another replica stored it as well, and the blob uses its bytes.
                RecordOutcome::Redundant => return Ok(()),
                // A collection on another replica deleted them meanwhile.
                RecordOutcome::BytesDeleted => {}
            }
        }
    }

    async fn manifest_record(
        &self,
        repository: &Repository,
        put: &CheckedManifest,
        stored: &ManifestBytes,
    ) -> Result<RecordOutcome, Error> {
        let CheckedManifest { digest, manifest, named, bytes, tags, replaces, message, .. } = put;
        let CheckedManifest { job, sparse, caller, protected, .. } = put;
        let actor = caller.actor();
        let size_bytes = bytes.len() as u64;
        let mut tx = self.store.begin().await?;
        let mut recorded = RecordOutcome::Done;
        // Rows are locked in the order that `store/locks.rs` documents.
        match stored {
            ManifestBytes::Stored { key } => match tx.blob_lock(digest).await? {
                Some((_, now)) if now == *key => {}
                _ => return Ok(RecordOutcome::BytesDeleted),
            },
            ManifestBytes::Written { placed, announced, damaged } => {
                let ours = tx.blob_insert(digest, size_bytes, &placed.key, damaged.as_deref()).await?;
                match announced {
                    _ if !ours => recorded = RecordOutcome::Redundant,
                    Some(row) if !tx.upload_delete_committed(row.id, row.generation).await? => {
                        return Err(Error::UploadUnknown { id: row.id });
                    }
                    _ => {}
                }
            }
        }
        tx.blobs_lock_shared(&named.all()).await?;
        // The repository is locked before any row of it.
        tx.repository_lock_or_create(repository).await?;
        self.link_within_quota(&mut tx, repository, digest).await?;
        // Its references are marked first, which protects them from the collection, and then checked.
        let missing_blobs = tx.links_reference(repository, &named.blobs).await?;
        let missing_children = tx.manifests_reference(repository, &named.children).await?;
        tx.links_reference(repository, &named.elsewhere).await?;
        let present = named.split(&missing_blobs, &missing_children);
        refuse_missing(missing_blobs, missing_children, *sparse)?;
        let (media_type, artifact_type) = (&manifest.media_type, manifest.referrer_type());
        let new = NewManifest { digest, media_type, artifact_type, bytes };
        tx.manifest_insert(repository, new).await?;
        tx.references_replace(repository, digest, &present).await?;
        let row = manifest.subject.as_ref().map(|subject| {
            let annotations = Some(&manifest.annotations).filter(|annotations| !annotations.is_empty());
            let annotations = annotations.and_then(|annotations| serde_json::to_string(annotations).ok());
            (&subject.digest, ReferrerRow::new(new, annotations))
        });
        tx.referrer_replace(repository, digest, row.as_ref().map(|(subject, row)| (*subject, row))).await?;
        let mut moved = Vec::new();
        for tag in tags {
            let previous = tx.tag_put(repository, tag, digest, &actor, message.as_deref()).await?;
            if replaces.as_ref().is_some_and(|head| *head != previous) {
                return Err(Error::TagMoved { tag: tag.clone() });
            }
            if previous.as_ref().is_some_and(|previous| previous != digest) {
                protected.check(tag)?;
            }
            moved.push((tag.clone(), previous));
        }
        let push = Event::Push { repository, digest, media_type, size_bytes, tags };
        self.announce_push(&mut tx, &actor, push, &moved).await?;
        let target = format!("{repository}@{digest}");
        self.audit(&mut tx, caller, "manifest.push", target, json!({ "tags": tags })).await?;
        if let Some(JobResult { run, result }) = job
            && !tx.job_record_result(run, result).await?
        {
            return Err(Error::Interrupted);
        }
        tx.commit().await?;
        Ok(recorded)
    }

    /// Deletes a tag, or a manifest with its tags. Content that they named is collected after its grace
    /// period.
    pub async fn manifest_delete(
        &self,
        caller: &Caller,
        repository: &Repository,
        reference: &Reference,
    ) -> Result<(), Error> {
        self.authorize(caller, Action::Delete, Target::Repository(repository)).await?;
        self.check_writable()?;
        let protected = self.protected_tags(repository).await?;
        if !retry_on_deadlock!(self.manifest_remove(caller, repository, reference, &protected).await)? {
            return Err(self.manifest_unknown(repository, reference).await?);
        }
        tracing::info!(%repository, %reference, "manifest deleted");
        Ok(())
    }

    async fn manifest_remove(
        &self,
        caller: &Caller,
        repository: &Repository,
        reference: &Reference,
        protected: &ProtectedTags,
    ) -> Result<bool, Error> {
        let mut tx = self.store.begin().await?;
        tx.repository_lock(repository).await?;
        let why = self.deletion_cause(caller);
        let found = match reference {
            Reference::Digest(digest) => {
                // The tag of an index names all its manifests.
                for tag in tx.tags_above(repository, digest).await? {
                    protected.check(&tag)?;
                }
                let manifest = UnreferencedContent {
                    repository: repository.clone(),
                    digest: digest.clone(),
                    unreferenced_at: why.at,
                };
                !self.manifests_remove(&mut tx, &[manifest], &why).await?.is_empty()
            }
            Reference::Tag(tag) => match tx.tag_delete(repository, tag, &why).await? {
                Some(digest) => {
                    protected.check(tag)?;
                    tx.manifest_mark_untagged(repository, &digest, why.at).await?;
                    let event =
                        Event::Untag { repository, tag, digest: &digest, reason: why.reason.as_str() };
                    self.announce(&mut tx, &why.actor, event).await?;
                    true
                }
                None => false,
            },
        };
        if found {
            let (action, target) = match reference {
                Reference::Digest(digest) => ("manifest.delete", format!("{repository}@{digest}")),
                Reference::Tag(tag) => ("tag.delete", format!("{repository}:{tag}")),
            };
            self.audit(&mut tx, caller, action, target, Value::Null).await?;
        }
        tx.commit().await?;
        Ok(found)
    }

    /// The error for a missing manifest: either only the manifest or the whole repository is unknown.
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

/// Rejects a manifest with a wrong size for content of this repository. Clients allocate, verify and seek by
/// these sizes.
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

/// The checks of a manifest before it is stored.
#[derive(Clone, Copy)]
pub(super) struct Checks {
    /// Its references may be absent.
    pub(super) sparse: bool,
    /// The sizes of its descriptors must match those of existing content.
    pub(super) sizes: bool,
}

impl Checks {
    /// For manifests that were accepted before, here or by an upstream.
    pub(super) const NONE: Checks = Checks { sparse: true, sizes: false };
}

/// A manifest to store, and the tags to set in addition to that of the reference.
pub(super) struct PushedManifest<'a> {
    pub(super) reference: &'a Reference,
    pub(super) content_type: Option<&'a str>,
    pub(super) bytes: Bytes,
    pub(super) tags: &'a [Tag],
    /// The digest that all tags must point to before the push. `Some(None)`: they must not exist.
    pub(super) replaces: Option<Option<&'a Digest>>,
    /// The client's commit message.
    pub(super) message: Option<&'a str>,
    /// The job that the manifest is the result of.
    pub(super) job: Option<JobResult>,
}

impl<'a> PushedManifest<'a> {
    pub(super) fn new(reference: &'a Reference, bytes: Bytes) -> PushedManifest<'a> {
        let (content_type, replaces, message) = (None, None, None);
        PushedManifest { reference, content_type, bytes, tags: &[], replaces, message, job: None }
    }
}

/// A run of a job, and its result as JSON.
pub(super) struct JobResult {
    run: JobRun,
    result: String,
}

/// A manifest that passed the checks.
struct CheckedManifest {
    digest: Digest,
    manifest: Manifest,
    named: ManifestNames,
    bytes: Bytes,
    tags: Vec<Tag>,
    replaces: Option<Option<Digest>>,
    message: Option<String>,
    job: Option<JobResult>,
    /// Its references may be absent.
    sparse: bool,
    caller: Caller,
    protected: Arc<ProtectedTags>,
}

/// The location of a manifest's bytes before its rows are written.
enum ManifestBytes {
    /// In a live blob.
    Stored { key: String },
    /// Written for this manifest; in object storage an upload's row records them. `damaged` is the key of a
    /// live blob with wrong bytes.
    Written { placed: PlacedBlob, announced: Option<Box<UploadRow>>, damaged: Option<String> },
}

enum RecordOutcome {
    Done,
    /// The blob already had other bytes, so the new ones are redundant.
    Redundant,
    /// The stored bytes are being deleted.
    BytesDeleted,
}

/// The references of a manifest, without duplicates.
struct ManifestNames {
    blobs: Vec<Digest>,
    children: Vec<Digest>,
    /// Layers that are stored elsewhere. If they also exist here, they are kept.
    elsewhere: Vec<Digest>,
}

impl ManifestNames {
    fn of(manifest: &Manifest) -> ManifestNames {
        let unique = |digests: BTreeSet<Digest>| digests.into_iter().collect::<Vec<_>>();
        let blobs: BTreeSet<Digest> = manifest.blobs().map(|d| d.digest.clone()).collect();
        let elsewhere =
            manifest.layers.iter().map(|d| d.digest.clone()).filter(|d| !blobs.contains(d)).collect();
        ManifestNames {
            children: unique(manifest.children().map(|d| d.digest.clone()).collect()),
            elsewhere: unique(elsewhere),
            blobs: unique(blobs),
        }
    }

    fn all(&self) -> Vec<&Digest> {
        [&self.blobs, &self.children, &self.elsewhere].into_iter().flatten().collect()
    }

    /// Separates references that must exist from those that were absent.
    fn split(&self, missing_blobs: &[Digest], missing_children: &[Digest]) -> ManifestReferences {
        let apart = |all: &[Digest], missing: &[Digest]| {
            let missing: BTreeSet<&Digest> = missing.iter().collect();
            all.iter().cloned().partition(|digest| missing.contains(digest))
        };
        let (optional_blobs, blobs) = apart(&self.blobs, missing_blobs);
        let (optional_children, children) = apart(&self.children, missing_children);
        let mut named = ManifestReferences { blobs, optional_blobs, children, optional_children };
        named.optional_blobs.extend(self.elsewhere.iter().cloned());
        named
    }
}

//! Pull-through mirrors: missing content below a mirrored prefix is fetched from its upstream, verified,
//! stored like any pushed content, and served. Concurrent requests, here and on other replicas, share one
//! fetch. Stored content is served even while the upstream is down.

use std::sync::Arc;
use std::time::Duration;

use lode_model::digest::Digest;
use lode_model::manifest::{Descriptor, Manifest};
use lode_model::recognise::Artifact;
use lode_model::reference::{Reference, Repository, Tag};
use uuid::Uuid;

use super::accounts::is_reserved;
use super::manifests::{Checks, PushedManifest};
use super::staging::{is_staging, staging};
use super::transfer::body_while_held;
use super::{BlobInfo, ChunkRange, Page, Registry, retry_on_deadlock};
use crate::Error;
use crate::auth::{Action, Caller, Target};
use crate::error::chain;
use crate::upstream::{Upstream, find_upstream};

/// The lease of a fetch, after which other replicas consider its holder dead. The holder renews it meanwhile.
const LEASE: Duration = Duration::from_secs(30);
const RENEW: Duration = Duration::from_secs(8);
/// How often a replica checks whether another one has finished a fetch.
const POLL: Duration = Duration::from_millis(200);
/// How long an upstream may take to resolve a tag whose previous target is stored.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);

/// When only so many files of a model are missing, each of at most so many bytes, they are fetched without a request.
const MAX_OTHER_FILES: usize = 16;
const MAX_OTHER_FILE_BYTES: u64 = 16 << 20;

/// Content to fetch from an upstream.
#[derive(Clone)]
struct FetchRequest {
    upstream: Arc<Upstream>,
    ours: Repository,
    /// The name of the repository on the upstream.
    theirs: Repository,
    what: FetchTarget,
}

#[derive(Clone)]
enum FetchTarget {
    Manifest(Reference),
    Blob(Digest),
}

impl FetchRequest {
    /// The key of the fetch within the repository.
    fn key(&self) -> String {
        match &self.what {
            FetchTarget::Manifest(reference) => reference.to_string(),
            FetchTarget::Blob(digest) => format!("blob {digest}"),
        }
    }
}

impl Registry {
    /// Checks that the caller may push there. Below a mirrored prefix only this server itself may, and no
    /// repository is created in a reserved namespace.
    pub(super) async fn check_push(&self, caller: &Caller, repository: &Repository) -> Result<(), Error> {
        self.authorize(caller, Action::Push, Target::Repository(repository)).await?;
        self.check_writable()?;
        if is_reserved(repository)
            && !caller.is_internal()
            && *repository != staging(caller)
            && !self.store.repository_exists(repository).await?
        {
            return Err(Error::NameReserved { repository: repository.clone() });
        }
        match find_upstream(&self.upstreams, repository) {
            Some(_) if !caller.is_internal() => Err(Error::Mirrored { repository: repository.clone() }),
            _ => Ok(()),
        }
    }

    /// Like `check_push`, for a manifest. Staged blobs are for models in other repositories: only the server
    /// itself stores manifests with them.
    pub(crate) async fn check_push_manifest(
        &self,
        caller: &Caller,
        repository: &Repository,
    ) -> Result<(), Error> {
        self.check_push(caller, repository).await?;
        match is_staging(repository) && !caller.is_internal() {
            true => {
                Err(Error::Denied { needs: format!("{repository} is only for uploads, without manifests") })
            }
            false => Ok(()),
        }
    }

    /// The upstream of a repository and its name there, for callers that trigger fetches. The server's own
    /// jobs use only stored content.
    fn mirror_upstream(
        &self,
        caller: &Caller,
        repository: &Repository,
    ) -> Option<(Arc<Upstream>, Repository)> {
        if self.upstreams.is_empty() || self.config.read_only || caller.is_internal() {
            return None;
        }
        let upstream = find_upstream(&self.upstreams, repository)?;
        Some((upstream.clone(), upstream.repository(repository)?))
    }

    /// Whether a repository is mirrored. Checked before the futures below are created, which are large.
    pub(super) fn is_mirrored(&self, caller: &Caller, repository: &Repository) -> bool {
        self.mirror_upstream(caller, repository).is_some()
    }

    /// Updates a manifest. Returns true if the stored one may have changed.
    pub(super) async fn mirror_manifest(
        &self,
        caller: &Caller,
        repository: &Repository,
        reference: &Reference,
        held: bool,
    ) -> Result<bool, Error> {
        let Some((upstream, theirs)) = self.mirror_upstream(caller, repository) else { return Ok(false) };
        if held
            && (upstream.is_backing_off() || self.manifest_is_fresh(&upstream, repository, reference).await?)
        {
            return Ok(false);
        }
        let what = FetchTarget::Manifest(reference.clone());
        match self.fetch(FetchRequest { upstream, ours: repository.clone(), theirs, what }).await {
            Ok(()) => Ok(true),
            Err(error @ (Error::UpstreamUnavailable(_) | Error::UpstreamInvalid(_))) if held => {
                tracing::warn!(%repository, %reference, error = chain(&error), "upstream failed; serving the stored manifest");
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Fetches a missing blob. Returns true if it may be stored now.
    pub(super) async fn mirror_blob(
        &self,
        caller: &Caller,
        repository: &Repository,
        digest: &Digest,
    ) -> Result<bool, Error> {
        let Some((upstream, theirs)) = self.mirror_upstream(caller, repository) else { return Ok(false) };
        let what = FetchTarget::Blob(digest.clone());
        self.fetch(FetchRequest { upstream, ours: repository.clone(), theirs, what }).await?;
        Ok(true)
    }

    /// The information for a HEAD of a missing blob. Fetches no bytes.
    pub(super) async fn mirror_blob_stat(
        &self,
        caller: &Caller,
        repository: &Repository,
        digest: &Digest,
    ) -> Result<Option<BlobInfo>, Error> {
        let Some((upstream, theirs)) = self.mirror_upstream(caller, repository) else { return Ok(None) };
        self.authorize(caller, Action::Pull, Target::Repository(repository)).await?;
        if self.store.blob_find(repository, digest).await?.is_some() {
            return Ok(None);
        }
        let head = upstream
            .registry
            .blob_head(&theirs, digest)
            .await
            .map_err(|error| upstream.note_failure(error))?;
        let found = head.ok_or_else(|| Error::BlobUnknown { digest: digest.clone() })?;
        Ok(Some(BlobInfo { digest: found.digest, size_bytes: found.size_bytes }))
    }

    /// The upstream's tags. `None` if there is no upstream, or it does not respond and the repository has
    /// stored content.
    pub(super) async fn mirror_tags(
        &self,
        caller: &Caller,
        repository: &Repository,
        limit: u32,
        last: Option<&str>,
    ) -> Result<Option<Page<Tag>>, Error> {
        let Some((upstream, theirs)) = self.mirror_upstream(caller, repository) else { return Ok(None) };
        let held = self.store.repository_exists(repository).await?;
        if held && upstream.is_backing_off() {
            return Ok(None);
        }
        let mut tags = match upstream.registry.tags(&theirs).await {
            Ok(tags) => tags,
            Err(error) if error.is_not_found() => {
                return Err(Error::NameUnknown { repository: repository.clone() });
            }
            Err(error) => {
                let error = upstream.note_failure(error);
                if !held {
                    return Err(error);
                }
                tracing::warn!(%repository, error = chain(&error), "upstream failed; listing only stored tags");
                return Ok(None);
            }
        };
        // Registries list tags in different orders; this one sorts them.
        tags.sort();
        tags.dedup();
        tags.retain(|tag| last.is_none_or(|last| tag.as_str() > last));
        Ok(Some(Page::cut(tags, limit)))
    }

    /// Fetches once for all concurrent callers. The fetch continues after they disconnect.
    async fn fetch(&self, wanted: FetchRequest) -> Result<(), Error> {
        let this = self.clone();
        let name = format!("{} {}", wanted.ours, wanted.key());
        self.fetches.join(name, async move { this.fetch_once(&wanted).await }).await
    }

    /// Fetches, unless another replica does.
    async fn fetch_once(&self, wanted: &FetchRequest) -> Result<(), Error> {
        let (repository, key) = (&wanted.ours, wanted.key());
        let holder = Uuid::new_v4().to_string();
        // 1. Take the lease among all replicas, unless another replica has finished the fetch meanwhile.
        loop {
            if self.fetch_is_done(wanted).await? {
                return Ok(());
            }
            if self.store.mirror_lease(repository, &key, &holder, LEASE).await? {
                break;
            }
            tokio::time::sleep(POLL).await;
        }
        // 2. Fetch, unless another fetch has just ended.
        let checked_at = self.store.database_now_ms().await?;
        let fetched = match self.fetch_is_done(wanted).await? {
            true => None,
            false => Some(self.fetch_with_lease(wanted, &key, &holder).await),
        };
        // 3. Record when the upstream resolved the tag.
        let has_resolved_tag =
            matches!((&wanted.what, &fetched), (FetchTarget::Manifest(Reference::Tag(_)), Some(Ok(()))));
        self.store.mirror_release(repository, &key, &holder, has_resolved_tag.then_some(checked_at)).await?;
        fetched.unwrap_or(Ok(()))
    }

    async fn fetch_is_done(&self, wanted: &FetchRequest) -> Result<bool, Error> {
        let FetchRequest { upstream, ours, what, .. } = wanted;
        match what {
            FetchTarget::Manifest(reference) => {
                Ok(self.store.manifest_read(ours, reference).await?.is_some()
                    && self.manifest_is_fresh(upstream, ours, reference).await?)
            }
            FetchTarget::Blob(digest) => Ok(self.store.blob_find(ours, digest).await?.is_some()),
        }
    }

    /// Fetches, and renews the lease meanwhile.
    async fn fetch_with_lease(&self, wanted: &FetchRequest, key: &str, holder: &str) -> Result<(), Error> {
        let repository = &wanted.ours;
        let fetch = async {
            match &wanted.what {
                FetchTarget::Manifest(reference) => self.manifest_fetch_upstream(wanted, reference).await,
                FetchTarget::Blob(digest) => self.blob_fetch_upstream(wanted, digest).await,
            }
        };
        let renew = async {
            loop {
                tokio::time::sleep(RENEW).await;
                if let Err(error) = self.store.mirror_lease(repository, key, holder, LEASE).await {
                    tracing::warn!(%repository, reference = key, error = chain(&error), "failed to renew the lease of a fetch");
                }
            }
        };
        tokio::select! {
            fetched = fetch => fetched,
            () = renew => Err(Error::Interrupted),
            () = self.stopping.cancelled() => Err(Error::Interrupted),
        }
    }

    /// Whether the stored manifest is current: a digest always is, a tag if it was compared recently.
    async fn manifest_is_fresh(
        &self,
        upstream: &Upstream,
        repository: &Repository,
        reference: &Reference,
    ) -> Result<bool, Error> {
        let Reference::Tag(tag) = reference else { return Ok(true) };
        self.store.mirror_is_fresh(repository, tag.as_str(), upstream.check_after).await
    }

    async fn manifest_fetch_upstream(
        &self,
        wanted: &FetchRequest,
        reference: &Reference,
    ) -> Result<(), Error> {
        let FetchRequest { upstream, ours, theirs, .. } = wanted;
        let held = self.store.manifest_read(ours, reference).await?;
        // 1. A HEAD resolves the tag without fetching its target.
        if let Some(held) = &held {
            let head =
                tokio::time::timeout(RESOLVE_TIMEOUT, upstream.registry.manifest_head(theirs, reference))
                    .await;
            let late =
                || Error::UpstreamUnavailable(Arc::new(std::io::Error::from(std::io::ErrorKind::TimedOut)));
            match head.map_err(|_| late())?.map_err(|error| upstream.note_failure(error))? {
                Some(info) if info.digest.as_ref() == Some(&held.digest) => return Ok(()),
                Some(_) => {}
                None => return self.manifest_delete_mirrored(ours, reference, true).await,
            }
        }
        // 2. Fetch the bytes, which are checked against their digest.
        let fetched = match upstream.registry.manifest_get(theirs, reference).await {
            Ok(fetched) => fetched,
            Err(error) if error.is_not_found() => {
                return self.manifest_delete_mirrored(ours, reference, held.is_some()).await;
            }
            Err(error) => return Err(upstream.note_failure(error)),
        };
        // 3. Store the manifest. Its blobs are fetched on request.
        let kind = Some(fetched.media_type.as_str()).filter(|kind| !kind.is_empty());
        let pushed = PushedManifest { content_type: kind, ..PushedManifest::new(reference, fetched.bytes) };
        match self.manifest_store(&Caller::INTERNAL, ours, pushed, Checks::NONE).await {
            Ok(put) => {
                tracing::info!(repository = %ours, %reference, digest = %put.digest, "manifest fetched");
                Ok(())
            }
            Err(Error::TagProtected { pattern, .. }) => {
                tracing::warn!(repository = %ours, %reference, pattern, "upstream moved a protected tag; serving the stored manifest");
                Ok(())
            }
            Err(error @ (Error::ManifestInvalid(_) | Error::ManifestTooLarge { .. })) => {
                Err(Error::UpstreamInvalid(Arc::new(error)))
            }
            Err(error) => Err(error),
        }
    }

    /// The upstream has no such manifest. A stored tag is deleted here too, unless it is protected; its target
    /// stays for the collection.
    async fn manifest_delete_mirrored(
        &self,
        repository: &Repository,
        reference: &Reference,
        held: bool,
    ) -> Result<(), Error> {
        if held && let Reference::Tag(_) = reference {
            match self.manifest_delete(&Caller::INTERNAL, repository, reference).await {
                Ok(()) | Err(Error::ManifestUnknown { .. } | Error::NameUnknown { .. }) => {}
                Err(Error::TagProtected { pattern, .. }) => {
                    tracing::warn!(%repository, %reference, pattern, "upstream deleted a protected tag; serving the stored manifest");
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        Err(Error::ManifestUnknown { reference: reference.clone() })
    }

    async fn blob_fetch_upstream(&self, wanted: &FetchRequest, digest: &Digest) -> Result<(), Error> {
        self.blob_fetch_upstream_bytes(wanted, digest).await?;
        for manifest in self.store.manifests_with_blob(&wanted.ours, digest).await? {
            let missing = self.store.blobs_missing(&wanted.ours, &manifest, MAX_OTHER_FILES + 1).await?;
            if missing.is_empty() {
                // A model can be indexed once the last of its blobs is stored.
                self.model_enqueue(&wanted.ours, &manifest).await?;
            } else if missing.len() <= MAX_OTHER_FILES
                && self.has_weights(wanted, &manifest, &missing).await?
            {
                self.fetch_in_background(wanted, missing);
            }
        }
        Ok(())
    }

    /// Whether a manifest is a model of which only small files are missing, such as its card, for which a worker does
    /// not ask.
    async fn has_weights(
        &self,
        wanted: &FetchRequest,
        manifest: &Digest,
        missing: &[Digest],
    ) -> Result<bool, Error> {
        let reference = Reference::Digest(manifest.clone());
        let Some(stored) = self.store.manifest_read(&wanted.ours, &reference).await? else {
            return Ok(false);
        };
        let manifest = Manifest::parse(Some(&stored.media_type), &stored.bytes)
            .map_err(|_| Error::Corrupt { what: "manifest", value: stored.digest.to_string() })?;
        let is_missing = |blob: &&Descriptor| missing.contains(&blob.digest);
        let mut blobs = manifest.config.iter().chain(&manifest.layers).filter(is_missing);
        if blobs.any(|blob| blob.size > MAX_OTHER_FILE_BYTES) {
            return Ok(false);
        }
        let artifact = Artifact::read(&manifest, None);
        let weights: Vec<&Digest> =
            artifact.weights().into_iter().map(|at| &artifact.files[at].layer.digest).collect();
        Ok(!weights.is_empty() && !weights.iter().any(|digest| missing.contains(digest)))
    }

    fn fetch_in_background(&self, wanted: &FetchRequest, blobs: Vec<Digest>) {
        let (this, wanted) = (self.clone(), wanted.clone());
        self.start(async move {
            for digest in blobs {
                let wanted = FetchRequest { what: FetchTarget::Blob(digest.clone()), ..wanted.clone() };
                let repository = wanted.ours.clone();
                if let Err(error) = this.fetch(wanted).await {
                    tracing::warn!(%repository, %digest, error = chain(&error), "failed to fetch a file of a mirrored model");
                    return;
                }
            }
        });
    }

    async fn blob_fetch_upstream_bytes(&self, wanted: &FetchRequest, digest: &Digest) -> Result<(), Error> {
        let FetchRequest { upstream, ours, theirs, .. } = wanted;
        // 1. The upstream must serve the blob in this repository. That a manifest names a digest proves
        //    nothing: anyone who may push there can name a blob of a private repository here.
        let head = upstream
            .registry
            .blob_head(theirs, digest)
            .await
            .map_err(|error| upstream.note_failure(error))?;
        let size_bytes = head.ok_or_else(|| Error::BlobUnknown { digest: digest.clone() })?.size_bytes;
        // A stored blob of that size then needs only a link.
        let is_held = self.store.blob_live(digest).await?.is_some_and(|(held, _)| held == size_bytes);
        if is_held && retry_on_deadlock!(self.blob_link_live(ours, digest).await)?.is_some() {
            return Ok(());
        }
        // 2. Otherwise fetch the bytes as an upload.
        let bytes = upstream.registry.blob_read(theirs, digest, size_bytes);
        let (body, _held) = body_while_held(bytes);
        let chunk = ChunkRange { range: None, length: Some(size_bytes) };
        match self.blob_put(&Caller::INTERNAL, ours, digest, chunk, body).await {
            Ok(_) => {
                tracing::info!(repository = %ours, %digest, size_bytes, "blob fetched");
                Ok(())
            }
            Err(Error::BodyInterrupted(reason)) => Err(match reason.downcast::<lode_client::Error>() {
                Ok(error) => upstream.note_failure(*error),
                Err(reason) => Error::UpstreamInvalid(Arc::from(reason)),
            }),
            Err(error @ (Error::DigestMismatch { .. } | Error::SizeMismatch { .. })) => {
                Err(Error::UpstreamInvalid(Arc::new(error)))
            }
            Err(error) => Err(error),
        }
    }
}

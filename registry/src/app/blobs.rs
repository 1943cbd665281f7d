//! Blobs: reading, mounting and deleting. A blob is visible only through its repository's link; knowing a
//! digest gives no access.

use std::fs::File;
use std::ops::Range;
use std::time::Duration;

use lode_model::digest::Digest;
use lode_model::reference::Repository;
use serde_json::Value;
use url::Url;

use super::{BlobInfo, BlobStream, Registry, retry_on_deadlock};
use crate::Error;
use crate::auth::{Action, Caller, Target};
use crate::store::StoredBlob;
use crate::time::now_ms;

/// How long a link to a blob is valid, here or in the storage: long enough to download it at this rate.
const MIN_LINK_TIME: Duration = Duration::from_secs(15 * 60);
const MAX_LINK_TIME: Duration = Duration::from_secs(24 * 3600);
const LINK_BYTES_PER_SECOND: u64 = 1 << 20;

/// A lease is extended by an additional eighth, so that not every HEAD writes.
const LEASE_SLACK: i64 = 8;

impl Registry {
    /// Finds a blob and renews its lease, because a client that finds it skips the push.
    pub async fn blob_stat(
        &self,
        caller: &Caller,
        repository: &Repository,
        digest: &Digest,
    ) -> Result<BlobInfo, Error> {
        if self.is_mirrored(caller, repository)
            && let Some(info) = Box::pin(self.mirror_blob_stat(caller, repository, digest)).await?
        {
            return Ok(info);
        }
        let blob = self.blob_visible(caller, repository, digest).await?;
        let (now, lease) = (now_ms(), self.lease_ms());
        if lease > 0 && !self.config.read_only && blob.leased_until < now.saturating_add(lease) {
            let until = now.saturating_add(lease).saturating_add(lease / LEASE_SLACK);
            match self.store.link_lease(repository, digest, until).await {
                Ok(true) => {}
                Ok(false) => return Err(Error::BlobUnknown { digest: digest.clone() }),
                // Reads must work on a full disk.
                Err(Error::StorageFull) => {
                    tracing::warn!(%repository, %digest, "failed to renew a lease: no space left")
                }
                Err(error) => return Err(error),
            }
        }
        Ok(BlobInfo { digest: digest.clone(), size_bytes: blob.size_bytes })
    }

    /// Finds a blob in the repository, or links one that another repository has which the caller may read.
    pub(super) async fn blob_stat_or_mount(
        &self,
        caller: &Caller,
        repository: &Repository,
        digest: &Digest,
    ) -> Result<Option<BlobInfo>, Error> {
        match self.blob_stat(caller, repository, digest).await {
            Err(Error::BlobUnknown { .. }) => self.blob_mount(caller, repository, digest, None).await,
            found => found.map(Some),
        }
    }

    /// Like `blob_stat`, without the lease, for reads.
    pub async fn blob_find(
        &self,
        caller: &Caller,
        repository: &Repository,
        digest: &Digest,
    ) -> Result<BlobInfo, Error> {
        let blob = self.blob_visible(caller, repository, digest).await?;
        Ok(BlobInfo { digest: digest.clone(), size_bytes: blob.size_bytes })
    }

    /// The blob's bytes, or a part of them (end excluded).
    pub async fn blob_open(
        &self,
        caller: &Caller,
        repository: &Repository,
        digest: &Digest,
        range: Option<Range<u64>>,
    ) -> Result<(BlobInfo, BlobStream), Error> {
        let blob = self.blob_visible(caller, repository, digest).await?;
        let size_bytes = blob.size_bytes;
        let bytes = self.blob_stream(repository, digest, &blob, range).await?;
        Ok((BlobInfo { digest: digest.clone(), size_bytes }, bytes))
    }

    /// Like `blob_open`, for a blob that was already found.
    pub(crate) async fn blob_stream(
        &self,
        repository: &Repository,
        digest: &Digest,
        blob: &StoredBlob,
        range: Option<Range<u64>>,
    ) -> Result<BlobStream, Error> {
        let size_bytes = blob.size_bytes;
        let range = match range {
            None => 0..size_bytes,
            Some(range) if range.start < size_bytes && range.start < range.end => {
                range.start..range.end.min(size_bytes)
            }
            Some(_) => return Err(Error::RangeUnsatisfiable { size_bytes }),
        };
        let bytes = match self.blobs.read(&blob.store_key, range.clone()).await {
            // Another replica may have collected it meanwhile, or stored it again.
            Err(error) if error.is_missing() => match self.store.blob_find(repository, digest).await? {
                None => return Err(Error::BlobUnknown { digest: digest.clone() }),
                Some(now) if now.store_key != blob.store_key => {
                    self.blobs.read(&now.store_key, range).await?
                }
                Some(_) => return Err(error),
            },
            bytes => bytes?,
        };
        Ok(bytes)
    }

    /// A signed URL of the blob's bytes in the storage, where redirects to the storage are configured. The storage
    /// knows nothing of revoked rights, so it is as short-lived as the download allows.
    pub(crate) async fn blob_signed_url(&self, blob: &StoredBlob) -> Result<Option<Url>, Error> {
        self.blobs.signed_url(&blob.store_key, link_time(blob.size_bytes)).await
    }

    /// The file of the blob's bytes, where the storage has files. `None` also for a file that was just
    /// deleted: `blob_stream` then returns the error.
    pub(crate) async fn blob_file(&self, blob: &StoredBlob) -> Result<Option<File>, Error> {
        match self.blobs.file(&blob.store_key, blob.size_bytes).await {
            Err(error) if error.is_missing() => Ok(None),
            file => file,
        }
    }

    /// Removes a blob from a repository. Other repositories keep it.
    pub async fn blob_delete(
        &self,
        caller: &Caller,
        repository: &Repository,
        digest: &Digest,
    ) -> Result<(), Error> {
        self.authorize(caller, Action::Delete, Target::Repository(repository)).await?;
        self.check_writable()?;
        retry_on_deadlock!(self.blob_unlink(caller, repository, digest).await)?;
        tracing::info!(%repository, %digest, "blob deleted");
        Ok(())
    }

    async fn blob_unlink(
        &self,
        caller: &Caller,
        repository: &Repository,
        digest: &Digest,
    ) -> Result<(), Error> {
        let unknown = || Error::BlobUnknown { digest: digest.clone() };
        let mut tx = self.store.begin().await?;
        let (size_bytes, _) = tx.blob_lock(digest).await?.ok_or_else(unknown)?;
        // A blob that a manifest of the repository references stays as long as the manifest.
        if tx.is_link_referenced(repository, digest).await? {
            return Err(Error::BlobReferenced { digest: digest.clone() });
        }
        if !tx.unlink(repository, digest).await? {
            return Err(unknown());
        }
        tx.removal_put_blob(repository, digest, size_bytes, &self.blob_deletion_cause(caller)).await?;
        self.audit(&mut tx, caller, "blob.delete", format!("{repository}@{digest}"), Value::Null).await?;
        tx.commit().await
    }

    /// Links a blob that the repository `from` has, or any that the caller may read. `None` if there is none.
    pub async fn blob_mount(
        &self,
        caller: &Caller,
        target: &Repository,
        digest: &Digest,
        from: Option<&Repository>,
    ) -> Result<Option<BlobInfo>, Error> {
        self.check_push(caller, target).await?;
        // 1. Find a source that the caller may read. The response does not reveal why there is none.
        let has_source = match from {
            Some(from) => {
                self.may(caller, Action::Pull, from).await?
                    && self.store.blob_find(from, digest).await?.is_some()
            }
            None => self.store.is_linked(digest, &self.source_filter(caller).await?).await?,
        };
        if !has_source {
            return Ok(None);
        }
        // 2. Link the blob. If a collection came first, the client uploads the blob.
        let linked = retry_on_deadlock!(self.blob_link_live(target, digest).await)?;
        Ok(linked.map(|size_bytes| {
            tracing::debug!(repository = %target, %digest, "blob mounted");
            BlobInfo { digest: digest.clone(), size_bytes }
        }))
    }

    /// Whether the caller could mount any blob of this size.
    pub async fn blob_size_known(&self, caller: &Caller, size_bytes: u64) -> Result<bool, Error> {
        self.authorize(caller, Action::List, Target::Catalog).await?;
        let filter = self.source_filter(caller).await?;
        self.store.has_linked_size(size_bytes, &filter).await
    }

    pub(super) async fn blob_link_live(
        &self,
        target: &Repository,
        digest: &Digest,
    ) -> Result<Option<u64>, Error> {
        let mut tx = self.store.begin().await?;
        let Some((size_bytes, _)) = tx.blob_lock(digest).await? else { return Ok(None) };
        self.link_within_quota(&mut tx, target, digest).await?;
        tx.commit().await?;
        Ok(Some(size_bytes))
    }

    /// The blob, if the caller may read it in this repository.
    pub(crate) async fn blob_visible(
        &self,
        caller: &Caller,
        repository: &Repository,
        digest: &Digest,
    ) -> Result<StoredBlob, Error> {
        self.authorize(caller, Action::Pull, Target::Repository(repository)).await?;
        let mut found = self.store.blob_find(repository, digest).await?;
        if found.is_none() && Box::pin(self.mirror_blob(caller, repository, digest)).await? {
            found = self.store.blob_find(repository, digest).await?;
        }
        found.ok_or_else(|| Error::BlobUnknown { digest: digest.clone() })
    }
}

/// How long a link to a blob of this size is valid.
pub(super) fn link_time(size_bytes: u64) -> Duration {
    let download = Duration::from_secs(size_bytes / LINK_BYTES_PER_SECOND);
    MIN_LINK_TIME.saturating_add(download).min(MAX_LINK_TIME)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_last_as_long_as_a_slow_download() {
        let minutes = |size_bytes: u64| link_time(size_bytes).as_secs() / 60;
        assert_eq!([0, 60 << 20, 6 << 30, 1 << 40, u64::MAX].map(minutes), [15, 16, 117, 1440, 1440]);
    }
}

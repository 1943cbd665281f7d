//! `fsck`: compares database and storage in both directions, and with `verify` recomputes every digest.
//! Pushes continue meanwhile: damage is reported only if the database still lists those bytes. Collections
//! wait.

use futures::{StreamExt, TryStreamExt, stream};
use lode_model::digest::Hasher;
use serde::Serialize;

use super::job_control::JobControl;
use super::{Registry, Removal};
use crate::Error;
use crate::blobs::BlobLocation;
use crate::blobs::key;
use crate::store::{Dangling, DanglingKind};
use crate::time::now_ms;

const PAGE: i64 = 1000;
/// How many blobs are looked up, or read, at a time.
const MAX_CONCURRENT_STATS: usize = 16;
const MAX_CONCURRENT_READS: usize = 2;
/// The most names of a finding.
const MAX_USERS: usize = 20;
/// In object storage the bytes of a manifest are written before any row. An object younger than this may
/// belong to a push in progress.
const MIN_ORPHAN_AGE_MS: i64 = 60 * 60 * 1000;

/// The totals of a check. The findings themselves went to its sink.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FsckSummary {
    /// Whether digests were recomputed.
    pub verified: bool,
    pub blobs: u64,
    pub size_bytes: u64,
    /// The number of damage findings. 0: the registry is sound.
    pub damage: u64,
    /// Files that the database does not know: left by a crash, harmless, not readable by any client.
    pub orphans: u64,
    /// Files of uploads that are in progress, or expired and not yet deleted.
    pub uploads: u64,
}

/// A finding of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Finding {
    Damage(DamageFinding),
    Orphan(String),
    Upload(String),
    Removal(Removal),
}

/// Damage, and what it affects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct DamageFinding {
    #[serde(flatten)]
    pub(crate) damage: Damage,
    /// `repository:tag` of the tags that lead to the content, and `repository` where it has no such tag.
    pub(crate) used_by: Vec<String>,
    /// Whether there are more.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) used_by_more: bool,
}

/// Receives findings one at a time, so that a check keeps none in memory.
pub(crate) trait FindingSink: Send {
    fn add(&mut self, finding: Finding) -> impl Future<Output = Result<(), Error>> + Send;
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Damage {
    /// The database lists a blob whose bytes are missing.
    Missing {
        digest: String,
        store_key: String,
    },
    WrongSize {
        digest: String,
        expected: u64,
        got: u64,
    },
    WrongDigest {
        digest: String,
        got: String,
    },
    Unreadable {
        digest: String,
        reason: String,
    },
    /// A reference to missing content.
    Dangling {
        what: &'static str,
        repository: String,
        from: String,
        digest: String,
    },
}

impl Registry {
    /// Compares database and storage after any running collection; later collections wait for it.
    pub(crate) async fn fsck_controlled(
        &self,
        verify: bool,
        control: &JobControl,
        sink: &mut impl FindingSink,
    ) -> Result<FsckSummary, Error> {
        control.report_progress("waiting for a running collection", 0, None);
        // A concurrent collection would look like damage.
        let _turn = self.gc_lock().await?;
        self.fsck_all(verify, control, sink).await
    }

    async fn fsck_all(
        &self,
        verify: bool,
        control: &JobControl,
        sink: &mut impl FindingSink,
    ) -> Result<FsckSummary, Error> {
        let mut summary = FsckSummary { verified: verify, ..FsckSummary::default() };
        // 1. Check that the storage has the blobs of the database.
        let (total, _) = self.store.blobs_total().await?;
        let mut after = String::new();
        loop {
            let blobs = self.store.blobs_live(&after, PAGE).await?;
            let Some(last) = blobs.last() else { break };
            after = last.digest.as_str().to_owned();
            let concurrency = if verify { MAX_CONCURRENT_READS } else { MAX_CONCURRENT_STATS };
            let checks = stream::iter(blobs).map(|blob| async move {
                let damage = self.check_blob(&blob, verify).await?;
                Ok::<_, Error>((blob.size_bytes, damage))
            });
            let mut checks = std::pin::pin!(checks.buffered(concurrency));
            while let Some((size_bytes, damage)) = checks.try_next().await? {
                summary.blobs += 1;
                summary.size_bytes += size_bytes;
                control.report_progress("checking blobs", summary.blobs, Some(total.max(summary.blobs)));
                if let Some(damage) = damage {
                    summary.damage += 1;
                    sink.add(Finding::Damage(self.with_users(damage).await?)).await?;
                }
            }
        }
        // 2. Check references within the database.
        for kind in DanglingKind::ALL {
            control.report_progress("checking references", summary.damage, None);
            let mut after: Option<Dangling> = None;
            loop {
                let found = self.store.dangling(kind, after.as_ref(), PAGE).await?;
                let Some(last) = found.last() else { break };
                after = Some(last.clone());
                for dangling in found {
                    summary.damage += 1;
                    sink.add(Finding::Damage(self.with_users(dangling.into()).await?)).await?;
                }
            }
        }
        // 3. Check that the database knows the files of the storage.
        let mut files = 0;
        let mut count = || {
            files += 1;
            control.report_progress("checking stored files", files, None);
        };
        let mut listed = self.blobs.list(key::BLOBS);
        while let Some(file) = listed.try_next().await? {
            count();
            let known = match key::digest_of(&file.key) {
                Some(digest) => {
                    // A commit stores the bytes before the row; wait for it, so that they are not reported as
                    // an orphan.
                    let _turn = self.digests.lock(digest).await;
                    self.store.has_key(&file.key).await?
                }
                None => false,
            };
            if !known {
                summary.orphans += 1;
                sink.add(Finding::Orphan(file.key)).await?;
            }
        }
        let mut listed = self.blobs.list(key::OBJECTS);
        while let Some(object) = listed.try_next().await? {
            count();
            // The upload is read first: once its row is deleted, the blob's row exists.
            let upload = match key::upload_of(&object.key) {
                Some(id) => self.store.upload_find_any(id).await?,
                None => None,
            };
            if self.store.has_key(&object.key).await? {
                continue;
            }
            let fresh = object.modified_ms > now_ms().saturating_sub(MIN_ORPHAN_AGE_MS);
            if upload.is_some() || fresh {
                summary.uploads += 1;
                sink.add(Finding::Upload(object.key)).await?;
            } else {
                summary.orphans += 1;
                sink.add(Finding::Orphan(object.key)).await?;
            }
        }
        let mut listed = self.blobs.list(key::UPLOADS);
        while let Some(file) = listed.try_next().await? {
            count();
            summary.uploads += 1;
            sink.add(Finding::Upload(file.key)).await?;
        }
        Ok(summary)
    }

    /// Looks up the repositories and tags that damage affects.
    async fn with_users(&self, damage: Damage) -> Result<DamageFinding, Error> {
        let limit = MAX_USERS as i64 + 1;
        let (digest, repositories) = match &damage {
            Damage::Missing { digest, .. }
            | Damage::WrongSize { digest, .. }
            | Damage::WrongDigest { digest, .. }
            | Damage::Unreadable { digest, .. } => {
                (digest, self.store.linking_repositories(digest, limit).await?)
            }
            Damage::Dangling { digest, repository, .. } => (digest, vec![repository.clone()]),
        };
        let tags = self.store.tags_using(digest, &repositories, limit).await?;
        let untagged = repositories.into_iter().filter(|name| !tags.iter().any(|(other, _)| other == name));
        let untagged: Vec<String> = untagged.collect();
        let mut used_by: Vec<String> =
            tags.iter().map(|(repository, tag)| format!("{repository}:{tag}")).collect();
        used_by.extend(untagged);
        let used_by_more = used_by.len() > MAX_USERS;
        used_by.truncate(MAX_USERS);
        Ok(DamageFinding { damage, used_by, used_by_more })
    }

    async fn check_blob(&self, blob: &BlobLocation, verify: bool) -> Result<Option<Damage>, Error> {
        let found = self.blob_damage(blob, verify).await?;
        // A push may have repaired it meanwhile.
        let is_listed = found.is_none()
            || self.store.blob_live(&blob.digest).await?.is_some_and(|(_, key)| key == blob.store_key);
        Ok(found.filter(|_| is_listed))
    }

    async fn blob_damage(&self, blob: &BlobLocation, verify: bool) -> Result<Option<Damage>, Error> {
        let digest = || blob.digest.as_str().to_owned();
        Ok(match self.blobs.size(&blob.store_key).await? {
            None => Some(Damage::Missing { digest: digest(), store_key: blob.store_key.clone() }),
            Some(got) if got != blob.size_bytes => {
                Some(Damage::WrongSize { digest: digest(), expected: blob.size_bytes, got })
            }
            Some(_) if verify => match self.rehash_blob(blob).await {
                Ok(got) if got == blob.digest => None,
                Ok(got) => Some(Damage::WrongDigest { digest: digest(), got: got.to_string() }),
                Err(error) => Some(Damage::Unreadable { digest: digest(), reason: error.to_string() }),
            },
            Some(_) => None,
        })
    }

    async fn rehash_blob(&self, blob: &BlobLocation) -> Result<lode_model::digest::Digest, Error> {
        let mut bytes = self.blobs.read(&blob.store_key, 0..blob.size_bytes).await?;
        let mut hasher = Hasher::new(blob.digest.algorithm());
        let broken = |e| Error::io(format!("reading {}", blob.store_key), e);
        while let Some(piece) = bytes.try_next().await.map_err(broken)? {
            hasher = tokio::task::spawn_blocking(move || {
                hasher.update(&piece);
                hasher
            })
            .await
            .map_err(|_| Error::Interrupted)?;
        }
        Ok(hasher.finish())
    }
}

impl From<Dangling> for Damage {
    fn from(dangling: Dangling) -> Damage {
        Damage::Dangling {
            what: match dangling.kind {
                DanglingKind::ManifestBlob => "blob of a manifest",
                DanglingKind::ManifestChild => "manifest of an index",
                DanglingKind::ManifestLink => "bytes of a manifest",
                DanglingKind::Link => "blob of a repository",
                DanglingKind::Tag => "manifest of a tag",
            },
            repository: dangling.repository,
            from: dangling.from,
            digest: dangling.digest,
        }
    }
}

/// A check whose findings are kept in memory for tests.
#[cfg(test)]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FsckReport {
    pub(crate) blobs: u64,
    pub(crate) damage: Vec<Damage>,
    pub(crate) orphans: Vec<String>,
    pub(crate) uploads: Vec<String>,
}

#[cfg(test)]
impl FsckReport {
    pub(crate) fn is_sound(&self) -> bool {
        self.damage.is_empty()
    }
}

#[cfg(test)]
impl FindingSink for FsckReport {
    async fn add(&mut self, finding: Finding) -> Result<(), Error> {
        match finding {
            Finding::Damage(found) => self.damage.push(found.damage),
            Finding::Orphan(key) => self.orphans.push(key),
            Finding::Upload(key) => self.uploads.push(key),
            Finding::Removal(_) => {}
        }
        Ok(())
    }
}

#[cfg(test)]
impl Registry {
    pub(crate) async fn fsck(&self, caller: &crate::auth::Caller, verify: bool) -> Result<FsckReport, Error> {
        use crate::auth::{Action, Target};
        self.authorize(caller, Action::Administer, Target::Server).await?;
        let mut report = FsckReport::default();
        report.blobs = self.fsck_controlled(verify, &JobControl::default(), &mut report).await?.blobs;
        Ok(report)
    }
}

//! `fsck`: index and storage compared both ways, and with `verify` every digest computed again.
//! Pushes go on meanwhile: what is found wrong with a blob is reported only if the index still lists those bytes. Collections wait.

use futures::{StreamExt, TryStreamExt, stream};
use lode_model::digest::Hasher;
use serde::Serialize;

use super::Registry;
use crate::Error;
use crate::auth::{Action, Caller, Target, allow};
use crate::blobs::key;
use crate::store::{DanglingKind, Doomed, now_ms};

const PAGE: i64 = 1000;
/// How many blobs are asked after, or read, at a time.
const ASKED_AT_ONCE: usize = 16;
const VERIFIED_AT_ONCE: usize = 2;
/// In object storage the bytes of a manifest come before any row; what is younger than this may be one on its way in.
const SETTLED_MS: i64 = 60 * 60 * 1000;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FsckReport {
    /// Whether digests were computed again.
    pub verified: bool,
    pub blobs: u64,
    pub size_bytes: u64,
    /// What is wrong. Empty: the registry is sound.
    pub damage: Vec<Damage>,
    /// Bytes that the index does not know: left by a crash, no harm, not read by anyone.
    pub orphans: Vec<String>,
    /// Bytes of uploads under way, or given up and not yet purged.
    pub uploads: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Damage {
    /// The index lists a blob whose bytes are gone.
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
    /// Something names content that is not there.
    Dangling {
        what: &'static str,
        repository: String,
        from: String,
        digest: String,
    },
}

impl FsckReport {
    pub fn is_sound(&self) -> bool {
        self.damage.is_empty()
    }
}

impl Registry {
    pub async fn fsck(&self, caller: &Caller, verify: bool) -> Result<FsckReport, Error> {
        allow(caller, Action::Administer, Target::Server)?;
        // A collection between two looks would read as damage. The turn ends with whoever asked: this may take hours.
        let _turn = self.gc_turn().await?;
        self.fsck_all(verify).await
    }

    async fn fsck_all(&self, verify: bool) -> Result<FsckReport, Error> {
        let mut report = FsckReport { verified: verify, ..FsckReport::default() };
        // 1. Index to storage.
        let mut after = String::new();
        loop {
            let blobs = self.store.blobs_live(&after, PAGE).await?;
            let Some(last) = blobs.last() else { break };
            after = last.digest.as_str().to_owned();
            report.blobs += blobs.len() as u64;
            report.size_bytes += blobs.iter().map(|blob| blob.size_bytes).sum::<u64>();
            let at_once = if verify { VERIFIED_AT_ONCE } else { ASKED_AT_ONCE };
            let checks = stream::iter(blobs).map(|blob| async move { self.check_blob(&blob, verify).await });
            let found: Vec<Option<Damage>> = checks.buffered(at_once).try_collect().await?;
            report.damage.extend(found.into_iter().flatten());
        }
        // 2. References within the index.
        for dangling in self.store.dangling().await? {
            report.damage.push(Damage::Dangling {
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
            });
        }
        // 3. Storage to index.
        let mut listed = self.blobs.list(key::BLOBS);
        while let Some(file) = listed.try_next().await? {
            let known = match key::digest_of(&file.key) {
                Some(digest) => {
                    // A commit puts the bytes there before the row; wait for it rather than call them an orphan.
                    let _turn = self.digests.lock(digest).await;
                    self.store.key_is_known(&file.key).await?
                }
                None => false,
            };
            if !known {
                report.orphans.push(file.key);
            }
        }
        let mut listed = self.blobs.list(key::OBJECTS);
        while let Some(object) = listed.try_next().await? {
            // The upload first: once its row is gone, the blob's is there.
            let upload = match key::upload_of(&object.key) {
                Some(id) => self.store.upload_find_anywhere(id).await?,
                None => None,
            };
            if self.store.key_is_known(&object.key).await? {
                continue;
            }
            let fresh = object.modified_ms > now_ms().saturating_sub(SETTLED_MS);
            match upload.is_some() || fresh {
                true => report.uploads.push(object.key),
                false => report.orphans.push(object.key),
            }
        }
        let mut listed = self.blobs.list(key::UPLOADS);
        while let Some(file) = listed.try_next().await? {
            report.uploads.push(file.key);
        }
        Ok(report)
    }

    async fn check_blob(&self, blob: &Doomed, verify: bool) -> Result<Option<Damage>, Error> {
        let found = self.blob_damage(blob, verify).await?;
        // A push may have repaired it meanwhile.
        let is_listed = found.is_none()
            || self.store.blob_live(&blob.digest).await?.is_some_and(|(_, key)| key == blob.store_key);
        Ok(found.filter(|_| is_listed))
    }

    async fn blob_damage(&self, blob: &Doomed, verify: bool) -> Result<Option<Damage>, Error> {
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

    async fn rehash_blob(&self, blob: &Doomed) -> Result<lode_model::digest::Digest, Error> {
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

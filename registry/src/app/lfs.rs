//! Uploads of large files by Hugging Face's clients (git's large file storage): what of the announced objects is
//! stored already, and links under which clients without credentials send the others. The bytes go through the same
//! uploads as those of every other client.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use lode_client::Secret;
use lode_model::digest::Digest;
use lode_model::reference::Repository;
use uuid::Uuid;

use super::commit::Files;
use super::commit_error::CommitError;
use super::{BlobInfo, Body, ChunkRange, ContentId, Registry};
use crate::auth::{Caller, RepositoryScope, Requested};
use crate::{BodyError, Error};

/// Larger objects are sent in parts of at least this size.
const MIN_PART_BYTES: u64 = 64 << 20;
/// How many parts an object has at most.
const MAX_PARTS: u64 = 1000;
/// How many parts the objects of a batch have together: each has a URL in the response. The parts of large batches are
/// larger.
const MAX_BATCH_PARTS: u64 = 10_000;
/// How many objects a batch has at most. Clients send 256.
pub(crate) const MAX_OBJECTS: usize = 1000;
/// The largest object.
pub(super) const MAX_OBJECT_BYTES: u64 = 1 << 40;
/// How long a client has for all the objects of one batch.
const LINK_TIME: Duration = Duration::from_secs(24 * 3600);

/// An object that a client wants to upload.
#[derive(Clone, Debug)]
pub(crate) struct LfsObject {
    pub(crate) oid: Digest,
    pub(crate) size: u64,
}

/// How an object is to be uploaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LfsPlan {
    /// Not at all.
    Stored,
    /// In one request.
    Whole,
    /// In parts, in their order. The last one may be shorter.
    Parts { upload: Uuid, part_bytes: u64, parts: u64 },
}

impl Registry {
    /// Plans the uploads of at most [`MAX_OBJECTS`] objects to a branch with these files. An object that cannot be
    /// uploaded has the reason instead of a plan.
    pub(crate) async fn lfs_plan(
        &self,
        caller: &Caller,
        repository: &Repository,
        files: &Files,
        objects: Vec<Result<LfsObject, String>>,
        with_parts: bool,
    ) -> Result<Vec<Result<(LfsObject, LfsPlan), String>>, CommitError> {
        // 1. Find the objects that are stored.
        let known: HashMap<&Digest, u64> = files
            .values()
            .filter_map(|file| match &file.content {
                ContentId::Sha256(digest) => Some((digest, file.size)),
                ContentId::Parts(_) => None,
            })
            .collect();
        let mut plans = Vec::with_capacity(objects.len());
        for object in objects {
            plans.push(match object {
                Ok(object) => {
                    let stored = match known.get(&object.oid) {
                        Some(size) => Some(*size),
                        None => {
                            let blob = self.blob_stat_or_mount(caller, repository, &object.oid).await?;
                            blob.map(|blob| blob.size_bytes)
                        }
                    };
                    plan_whole(&object, stored).map(|plan| (object, plan))
                }
                Err(reason) => Err(reason),
            });
        }
        // 2. Check that there is space for all others.
        let missing = plans.iter().flatten().filter(|(_, plan)| *plan == LfsPlan::Whole);
        let missing: BTreeSet<(&Digest, u64)> =
            missing.map(|(object, _)| (&object.oid, object.size)).collect();
        if missing.is_empty() {
            return Ok(plans);
        }
        let total = missing.iter().fold(0_u64, |total, (_, size)| total.saturating_add(*size));
        self.check_space(caller, repository, total).await?;
        // 3. Send large ones in parts.
        let is_large = |(object, plan): &(LfsObject, LfsPlan)| {
            with_parts && *plan == LfsPlan::Whole && object.size > MIN_PART_BYTES
        };
        let max_parts = max_parts(plans.iter().flatten().filter(|planned| is_large(planned)).count());
        for planned in plans.iter_mut().flatten() {
            if is_large(planned) {
                let upload = self.upload_create(caller, repository, None).await?.id;
                planned.1 = plan_parts(upload, planned.0.size, max_parts);
            }
        }
        Ok(plans)
    }

    /// What the URLs of an upload carry instead of credentials: the right of the caller to upload this object to this
    /// repository. The caller's rights are checked again at each use.
    pub(crate) async fn lfs_link(
        &self,
        caller: &Caller,
        repository: &Repository,
        oid: &Digest,
    ) -> Result<Secret, Error> {
        // Reading is for the status of the upload and for content that is stored already.
        let scope = RepositoryScope { repository: repository.clone(), pull: true, push: true, delete: false };
        let granted = Requested { repositories: vec![scope], ..Requested::default() };
        self.access_token_sign(caller, granted, Some(oid.clone()), LINK_TIME).await
    }

    /// Receives a whole object.
    pub(crate) async fn lfs_put(
        &self,
        caller: &Caller,
        repository: &Repository,
        object: &LfsObject,
        body: Body,
    ) -> Result<BlobInfo, Error> {
        let chunk = ChunkRange { range: None, length: Some(object.size) };
        self.blob_put(caller, repository, &object.oid, chunk, body).await
    }

    /// Receives the part of an upload that begins at `first`. What a client sends again, because it has lost a
    /// response, is skipped.
    pub(crate) async fn lfs_part(
        &self,
        caller: &Caller,
        repository: &Repository,
        upload: Uuid,
        (first, length): (u64, u64),
        body: Body,
    ) -> Result<(), Error> {
        let end = first.saturating_add(length);
        let offset = self.upload_status(caller, repository, upload).await?.offset;
        if offset < first {
            return Err(Error::UploadConflict { id: upload, offset });
        }
        let skipped = (offset - first).min(length);
        let body = skip(body, skipped);
        if offset >= end {
            // The client expects the body to be read.
            let mut body = body;
            while body.try_next().await.map_err(Error::BodyInterrupted)?.is_some() {}
            return Ok(());
        }
        let chunk = ChunkRange { range: Some((offset, end - 1)), length: Some(length - skipped) };
        match self.upload_append(caller, repository, upload, chunk, body).await {
            Ok(_) => Ok(()),
            // The connection of an earlier attempt was still open. The client tries again.
            Err(error @ Error::UploadConflict { .. }) => {
                Err(Error::Unavailable { what: "the upload is in use".to_owned(), source: error.into() })
            }
            Err(error) => Err(error),
        }
    }

    /// Ends an upload in parts.
    pub(crate) async fn lfs_finish(
        &self,
        caller: &Caller,
        repository: &Repository,
        upload: Uuid,
        object: &LfsObject,
    ) -> Result<(), Error> {
        let offset = match self.upload_status(caller, repository, upload).await {
            Ok(status) => status.offset,
            // The response to the end of this upload may have been lost.
            Err(Error::UploadUnknown { .. }) => return self.lfs_verify(caller, repository, object).await,
            Err(error) => return Err(error),
        };
        if offset != object.size {
            return Err(Error::SizeMismatch { expected: object.size, got: offset });
        }
        let chunk = ChunkRange { range: None, length: Some(0) };
        let nothing: Body = stream::empty().boxed();
        self.upload_finish(caller, repository, upload, chunk, nothing, &object.oid).await.map(drop)
    }

    /// Checks that an object was uploaded.
    pub(crate) async fn lfs_verify(
        &self,
        caller: &Caller,
        repository: &Repository,
        object: &LfsObject,
    ) -> Result<(), Error> {
        self.check_push(caller, repository).await?;
        let stored = self.blob_stat(caller, repository, &object.oid).await?;
        match stored.size_bytes == object.size {
            true => Ok(()),
            false => Err(Error::SizeMismatch { expected: object.size, got: stored.size_bytes }),
        }
    }
}

/// Plans to upload an object in one request, unless it is stored. `stored`: the size of the stored one.
fn plan_whole(object: &LfsObject, stored: Option<u64>) -> Result<LfsPlan, String> {
    let size = object.size;
    match stored {
        Some(stored) if stored == size => Ok(LfsPlan::Stored),
        Some(stored) => Err(format!("the object has {stored} bytes, not {size}")),
        None if size > MAX_OBJECT_BYTES => {
            Err(format!("the object has {size} bytes, expected at most {MAX_OBJECT_BYTES}"))
        }
        None => Ok(LfsPlan::Whole),
    }
}

/// How many parts each of the large objects of a batch may have.
fn max_parts(objects: usize) -> u64 {
    (MAX_BATCH_PARTS / objects.max(1) as u64).clamp(1, MAX_PARTS)
}

fn plan_parts(upload: Uuid, size: u64, max_parts: u64) -> LfsPlan {
    let part_bytes = size.div_ceil(max_parts).next_multiple_of(1 << 20).max(MIN_PART_BYTES);
    LfsPlan::Parts { upload, part_bytes, parts: size.div_ceil(part_bytes) }
}

/// A body without its first bytes.
fn skip(body: Body, mut left: u64) -> Body {
    let rest = body.map_ok(move |mut piece: Bytes| {
        let skipped = usize::try_from(left).unwrap_or(usize::MAX).min(piece.len());
        left -= skipped as u64;
        piece.split_off(skipped)
    });
    let is_kept = |piece: &Result<Bytes, BodyError>| piece.as_ref().map_or(true, |piece| !piece.is_empty());
    rest.filter(move |piece| std::future::ready(is_kept(piece))).boxed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_batch_are_limited() {
        for objects in [1, 2, 10, 163, 256, MAX_OBJECTS] {
            for size in [MIN_PART_BYTES + 1, 4_300_000_000, 1 << 36, MAX_OBJECT_BYTES - 1, MAX_OBJECT_BYTES] {
                let plan = plan_parts(Uuid::nil(), size, max_parts(objects));
                let LfsPlan::Parts { part_bytes, parts, .. } = plan else { panic!("{plan:?}") };
                assert!(
                    parts <= MAX_PARTS && parts * objects as u64 <= MAX_BATCH_PARTS,
                    "{objects} {plan:?}"
                );
                assert!((parts - 1) * part_bytes < size && size <= parts * part_bytes, "{plan:?}");
                assert!(part_bytes >= MIN_PART_BYTES, "{plan:?}");
            }
        }
    }
}

//! Uploads of large files by Hugging Face's clients (git's large file storage): what of the announced objects is
//! stored already, and links under which clients without credentials send the others. The bytes go through the same
//! uploads as those of every other client.

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
/// How many parts an object has at most: each has a URL in one response.
const MAX_PARTS: u64 = 1000;
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
    /// Plans the upload of an object to a branch with these files.
    pub(crate) async fn lfs_plan(
        &self,
        caller: &Caller,
        repository: &Repository,
        files: &Files,
        object: &LfsObject,
        with_parts: bool,
    ) -> Result<LfsPlan, CommitError> {
        let LfsObject { oid, size } = object;
        let is_known = |stored: u64| match stored == *size {
            true => Ok(LfsPlan::Stored),
            false => {
                let reason = format!("the object has {stored} bytes, not {size}");
                Err(CommitError::Object { reason })
            }
        };
        let id = ContentId::Sha256(oid.clone());
        if let Some(file) = files.values().find(|file| file.content == id) {
            return is_known(file.size);
        }
        if let Some(BlobInfo { size_bytes, .. }) = self.blob_stat_or_mount(caller, repository, oid).await? {
            return is_known(size_bytes);
        }
        if *size > MAX_OBJECT_BYTES {
            let reason = format!("the object has {size} bytes, expected at most {MAX_OBJECT_BYTES}");
            return Err(CommitError::Object { reason });
        }
        if !with_parts || *size <= MIN_PART_BYTES {
            return Ok(LfsPlan::Whole);
        }
        let part_bytes = size.div_ceil(MAX_PARTS).next_multiple_of(1 << 20).max(MIN_PART_BYTES);
        let upload = self.upload_create(caller, repository, None).await?.id;
        Ok(LfsPlan::Parts { upload, part_bytes, parts: size.div_ceil(part_bytes) })
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
        let granted = Requested { repositories: vec![scope], catalog: false };
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

//! Uploads of Hugging Face's clients by Xet. A client sends the chunks of files in xorbs, and then shards
//! that say of which chunks each file consists. A xorb is stored as a blob of the repository, under its
//! lease, and a file of a shard is assembled into an ordinary upload, whose sha256 is that of the shard. A
//! commit finds it like any other object, so that nothing else here knows Xet.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use lode_client::{BodyBudget, Charge, Secret};
use lode_model::reference::Repository;
use lode_model::xet::hash::XetHash;
use lode_model::xet::shard::{MAX_SHARD_BYTES, RECORD_BYTES, ShardError, ShardFile, ShardReader, Term};
use lode_model::xet::xorb::{Chunk, ChunkIndex, ChunkReader, MAX_XORB_BYTES, XorbError, XorbHasher};
use tokio::task::spawn_blocking;
use uuid::Uuid;

use super::commit_error::CommitError;
use super::lfs::MAX_OBJECT_BYTES;
use super::pipe::{PipeSender, pipe};
use super::{Body, ChunkRange, Registry};
use crate::Error;
use crate::auth::{Caller, RepositoryScope, Requested};
use crate::store::{XetUploader, XorbRow};
use crate::time::{millis, now_ms};

/// Clients ask again half a minute before a token expires.
const MIN_TOKEN_TIME: Duration = Duration::from_secs(60);
/// How much of a xorb is hashed or decompressed at once.
const BATCH_BYTES: usize = 1 << 20;
/// The most pieces in a batch, for bodies of tiny pieces.
const BATCH_PIECES: usize = 512;
/// How many xorbs' indexes are kept while a file is assembled.
const KEPT_XORBS: usize = 4;
/// How many bytes the files of a shard may have for each byte of the shard and its xorbs. Xorbs are compressed, and
/// files can name chunks many times.
const MAX_EXPANSION: u64 = 1000;
/// The files of a shard may have this many bytes, however they are made.
const MIN_SHARD_SPACE: u64 = 4 << 30;

/// Why an upload by Xet fails.
#[derive(Debug, thiserror::Error)]
pub(crate) enum XetError {
    #[error(transparent)]
    Registry(#[from] Error),
    #[error(transparent)]
    Body(#[from] lode_client::BodyError),
    #[error("xorb {hash} is invalid")]
    Xorb { hash: XetHash, source: XorbError },
    #[error("the xorb's hash is {got}, expected {expected}")]
    XorbHash { expected: XetHash, got: XetHash },
    #[error("the {what} has more than {limit} bytes")]
    TooLarge { what: &'static str, limit: u64 },
    #[error("the shard is invalid")]
    Shard(#[from] ShardError),
    /// Clients remember uploads; they forget them when they get another URL.
    #[error("file {file} consists of xorb {xorb}, which is not stored here; repeat the upload")]
    XorbUnknown { file: XetHash, xorb: XetHash },
    #[error("file {file} cannot be assembled")]
    Term { file: XetHash, source: XorbError },
    #[error(
        "file {file}: chunks {first} to {end} of xorb {xorb} have {got} bytes, and the shard declares {declared}"
    )]
    TermSize { file: XetHash, xorb: XetHash, first: u32, end: u32, declared: u32, got: u64 },
    #[error("file {file} has {size} bytes, expected at most {MAX_OBJECT_BYTES}")]
    FileSize { file: XetHash, size: u64 },
    #[error(
        "the files of the shard have {size} bytes, expected at most {limit} from {uploaded} uploaded bytes; upload files that repeat themselves so often as LFS objects (HF_HUB_DISABLE_XET=1)"
    )]
    Expansion { size: u64, uploaded: u64, limit: u64 },
    #[error("file {file} has {declared} bytes, and the stored content with its sha256 has {stored}")]
    StoredSize { file: XetHash, declared: u64, stored: u64 },
}

/// What a client needs to upload.
pub(crate) struct XetGrant {
    pub(crate) token: Secret,
    /// Seconds since 1970.
    pub(crate) expires: i64,
    /// A part of the URL. Clients keep a list of uploaded chunks for each URL, and do not send these again.
    /// It changes before the first of them may be gone.
    pub(crate) space: Uuid,
}

impl Registry {
    /// Lets a client upload files for a branch. It asks again while it uploads, which keeps its xorbs.
    pub(crate) async fn xet_grant(
        &self,
        caller: &Caller,
        repository: &Repository,
        branch: &str,
    ) -> Result<XetGrant, CommitError> {
        self.commit_check(caller, repository, branch).await?;
        let scope = RepositoryScope { repository: repository.clone(), pull: true, push: true, delete: false };
        let requested = Requested { repositories: vec![scope], ..Requested::default() };
        let (token, valid) = self.access_token_issue(caller, &requested).await?;
        let (uploader, now, lease) = (uploader(caller, repository), now_ms(), self.lease_ms());
        let space = self.store.xet_space(&uploader, Uuid::new_v4(), now.saturating_sub(lease)).await?;
        self.store.xorbs_lease(&uploader, now.saturating_add(lease)).await?;
        let valid = valid.min(self.config.upload_lease / 2).max(MIN_TOKEN_TIME);
        Ok(XetGrant { token, expires: now.saturating_add(millis(valid)) / 1000, space })
    }

    /// Stores a xorb. Returns false if it was stored already.
    pub(crate) async fn xorb_put(
        &self,
        caller: &Caller,
        repository: &Repository,
        hash: &XetHash,
        mut body: Body,
    ) -> Result<bool, XetError> {
        self.check_push(caller, repository).await?;
        let uploader = uploader(caller, repository);
        if let Some(row) = self.store.xorb_find(&uploader, hash).await?
            && self.blob_stat(caller, repository, &row.digest).await.is_ok()
        {
            // The client expects the body to be read.
            let mut read = 0;
            while let Some(piece) = body.try_next().await.map_err(Error::BodyInterrupted)? {
                read += piece.len() as u64;
                check_xorb_size(read)?;
            }
            return Ok(false);
        }
        let (sender, checked) = pipe();
        let check = check_xorb(hash, body, sender);
        let (index, stored) = tokio::join!(check, self.blob_put_stream(caller, repository, checked));
        // If the upload failed first, the check has ended without an error.
        let (Some(chunks), stored) = (index?, stored?) else { return Err(Error::Interrupted.into()) };
        let row = XorbRow { digest: stored.digest, chunks };
        match self.store.xorb_put(&uploader, hash, &row).await? {
            true => Ok(true),
            false => Err(Error::BlobUnknown { digest: row.digest }.into()),
        }
    }

    /// Stores the files of a shard. Returns false if all were stored already.
    pub(crate) async fn shard_put(
        &self,
        caller: &Caller,
        repository: &Repository,
        body: Body,
    ) -> Result<bool, XetError> {
        self.check_push(caller, repository).await?;
        let uploader = uploader(caller, repository);
        // A small shard can name chunks many times, so that its uploader waits for the shards before.
        let _turn = self.assembling.lock(uploader.clone()).await;
        let (files, _charge) = read_shard(body, self.body_budget()).await?;
        self.shard_check_expansion(caller, &uploader, &files).await?;
        let mut is_new = false;
        for file in files {
            is_new |= self.shard_file_put(caller, &uploader, &file).await?;
        }
        Ok(is_new)
    }

    /// Returns an error if the files of a shard that are not stored have too many bytes, compared with those that were
    /// uploaded for them.
    async fn shard_check_expansion(
        &self,
        caller: &Caller,
        uploader: &XetUploader,
        files: &[ShardFile],
    ) -> Result<(), XetError> {
        let total = files.iter().fold(0_u64, |total, file| total.saturating_add(file.size_bytes()));
        if total <= MIN_SHARD_SPACE {
            return Ok(());
        }
        let (mut size, mut records, mut xorbs) = (0_u64, 0, BTreeMap::new());
        for file in files {
            check_file_size(file)?;
            if self.blob_stat_or_mount(caller, &uploader.repository, &file.sha256).await?.is_none() {
                size = size.saturating_add(file.size_bytes());
                records += 1 + file.terms.len();
                xorbs.extend(file.terms.iter().map(|term| (term.xorb, file.hash)));
            }
        }
        let limit = |uploaded: u64| uploaded.saturating_mul(MAX_EXPANSION).max(MIN_SHARD_SPACE);
        let mut uploaded = (records * RECORD_BYTES) as u64;
        for (xorb, file) in xorbs {
            // The first few suffice, unless something is wrong.
            if size <= limit(uploaded) {
                return Ok(());
            }
            uploaded += self.xorb_find(uploader, file, xorb).await?.chunks.stored_bytes();
        }
        let limit = limit(uploaded);
        if size <= limit { Ok(()) } else { Err(XetError::Expansion { size, uploaded, limit }) }
    }

    /// The xorb of which a file consists.
    async fn xorb_find(
        &self,
        uploader: &XetUploader,
        file: XetHash,
        xorb: XetHash,
    ) -> Result<XorbRow, XetError> {
        match self.store.xorb_find(uploader, &xorb).await? {
            Some(row) => Ok(row),
            None => {
                self.store.xet_space_end(uploader).await?;
                Err(XetError::XorbUnknown { file, xorb })
            }
        }
    }

    /// Stores a file of a shard, unless it is stored already.
    async fn shard_file_put(
        &self,
        caller: &Caller,
        uploader: &XetUploader,
        file: &ShardFile,
    ) -> Result<bool, XetError> {
        let (size, repository) = (file.size_bytes(), &uploader.repository);
        check_file_size(file)?;
        if let Some(stored) = self.blob_stat_or_mount(caller, repository, &file.sha256).await? {
            return match stored.size_bytes == size {
                true => Ok(false),
                false => {
                    Err(XetError::StoredSize { file: file.hash, declared: size, stored: stored.size_bytes })
                }
            };
        }
        let (sender, content) = pipe();
        let assembling = self.shard_file_assemble(caller, uploader, file, sender);
        let chunk = ChunkRange { range: None, length: Some(size) };
        let storing = self.blob_put(caller, repository, &file.sha256, chunk, content);
        let (assembled, stored) = tokio::join!(assembling, storing);
        assembled?;
        stored?;
        Ok(true)
    }

    /// Sends the content of a file to its upload. It ends without an error if the upload has ended.
    async fn shard_file_assemble(
        &self,
        caller: &Caller,
        uploader: &XetUploader,
        file: &ShardFile,
        sender: PipeSender,
    ) -> Result<(), XetError> {
        let mut kept: Vec<(XetHash, XorbRow)> = Vec::with_capacity(KEPT_XORBS);
        for term in &file.terms {
            let at = match kept.iter().position(|(hash, _)| *hash == term.xorb) {
                Some(at) => at,
                None => {
                    let row = self.xorb_find(uploader, file.hash, term.xorb).await?;
                    kept.truncate(KEPT_XORBS - 1);
                    kept.insert(0, (term.xorb, row));
                    0
                }
            };
            let xorb = &kept[at].1;
            if !self.term_send(caller, uploader, (file.hash, *term), xorb, &sender).await? {
                return Ok(());
            }
        }
        sender.finish().await;
        Ok(())
    }

    /// Sends the content of some chunks of a xorb. Returns false if the upload has ended.
    async fn term_send(
        &self,
        caller: &Caller,
        uploader: &XetUploader,
        (file, term): (XetHash, Term),
        xorb: &XorbRow,
        sender: &PipeSender,
    ) -> Result<bool, XetError> {
        let failed = |source| XetError::Term { file, source };
        let Term { xorb: hash, unpacked_bytes: declared, first, end } = term;
        let range = xorb.chunks.range(first, end).map_err(failed)?;
        if range.unpacked_bytes != u64::from(declared) {
            let got = range.unpacked_bytes;
            return Err(XetError::TermSize { file, xorb: hash, first, end, declared, got });
        }
        let opened = self.blob_open(caller, &uploader.repository, &xorb.digest, Some(range.stored)).await;
        let unreadable = |source| Error::Storage { what: format!("reading xorb {hash}"), source };
        let mut stored = opened?.1.map_err(|error| XetError::from(unreadable(error)));
        let mut reader = ChunkReader::default();
        while let Some(pieces) = next_batch(&mut stored).await? {
            let unpacked = spawn_blocking(move || {
                let mut chunks = Vec::new();
                let mut each = |chunk: Chunk| {
                    chunks.push(Bytes::from(chunk.content));
                    Ok(())
                };
                pieces.iter().try_for_each(|piece| reader.push(piece, &mut each))?;
                Ok((reader, chunks))
            });
            let chunks;
            (reader, chunks) = unpacked.await.map_err(|_| Error::Interrupted)?.map_err(failed)?;
            for chunk in chunks {
                if !sender.send(chunk).await {
                    return Ok(false);
                }
            }
        }
        reader.finish().map_err(failed)?;
        Ok(true)
    }
}

fn uploader(caller: &Caller, repository: &Repository) -> XetUploader {
    XetUploader { repository: repository.clone(), account: caller.account().map(|account| account.id) }
}

/// Sends a xorb to its upload, and returns its index. `None` if the upload has ended.
async fn check_xorb(
    expected: &XetHash,
    body: Body,
    sender: PipeSender,
) -> Result<Option<ChunkIndex>, XetError> {
    let invalid = |source| XetError::Xorb { hash: *expected, source };
    let mut body = body.map_err(|error| XetError::from(Error::BodyInterrupted(error)));
    let (mut hasher, mut received) = (XorbHasher::default(), 0);
    while let Some(pieces) = next_batch(&mut body).await? {
        received += pieces.iter().map(|piece| piece.len() as u64).sum::<u64>();
        check_xorb_size(received)?;
        let checked = spawn_blocking(move || {
            pieces.iter().try_for_each(|piece| hasher.push(piece)).map(|()| (hasher, pieces))
        });
        let pieces;
        (hasher, pieces) = checked.await.map_err(|_| Error::Interrupted)?.map_err(invalid)?;
        for piece in pieces {
            if !sender.send(piece).await {
                return Ok(None);
            }
        }
    }
    let hashed = spawn_blocking(move || hasher.finish());
    let (got, index) = hashed.await.map_err(|_| Error::Interrupted)?.map_err(invalid)?;
    if got != *expected {
        return Err(XetError::XorbHash { expected: *expected, got });
    }
    sender.finish().await;
    Ok(Some(index))
}

fn check_xorb_size(bytes: u64) -> Result<(), XetError> {
    match bytes <= MAX_XORB_BYTES {
        true => Ok(()),
        false => Err(XetError::TooLarge { what: "xorb", limit: MAX_XORB_BYTES }),
    }
}

fn check_file_size(file: &ShardFile) -> Result<(), XetError> {
    let size = file.size_bytes();
    match size <= MAX_OBJECT_BYTES {
        true => Ok(()),
        false => Err(XetError::FileSize { file: file.hash, size }),
    }
}

/// Reads the files of a shard. The charge must be dropped with them.
async fn read_shard(mut body: Body, budget: &BodyBudget) -> Result<(Vec<ShardFile>, Charge), XetError> {
    let (mut reader, mut charge, mut received) = (ShardReader::default(), budget.charge(), 0);
    while let Some(piece) = body.try_next().await.map_err(Error::BodyInterrupted)? {
        received += piece.len() as u64;
        if received > MAX_SHARD_BYTES {
            return Err(XetError::TooLarge { what: "shard", limit: MAX_SHARD_BYTES });
        }
        reader.push(&piece)?;
        // A record takes about twice its bytes: vectors grow by doubling.
        charge.set(reader.records() * RECORD_BYTES * 2)?;
    }
    Ok((reader.finish()?, charge))
}

/// The next pieces of a stream, of about [`BATCH_BYTES`] together.
async fn next_batch<S, E>(stream: &mut S) -> Result<Option<Vec<Bytes>>, E>
where
    S: futures::Stream<Item = Result<Bytes, E>> + Unpin,
{
    let (mut pieces, mut bytes) = (Vec::new(), 0);
    while bytes < BATCH_BYTES && pieces.len() < BATCH_PIECES {
        let Some(piece) = stream.next().await else { break };
        let piece = piece?;
        bytes += piece.len();
        pieces.push(piece);
    }
    Ok((!pieces.is_empty()).then_some(pieces))
}

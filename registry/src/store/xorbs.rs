//! Xorbs: blobs with chunks that their uploader may name in shards. Another account, or another repository,
//! does not find them.

use lode_model::digest::Digest;
use lode_model::reference::Repository;
use lode_model::xet::hash::XetHash;
use lode_model::xet::xorb::ChunkIndex;
use uuid::Uuid;

use super::{Store, parse_stored, query};
use crate::Error;
use crate::time::now_ms;

/// Who uploads by Xet, and to which repository.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct XetUploader {
    pub(crate) repository: Repository,
    /// `None` on a server without accounts.
    pub(crate) account: Option<Uuid>,
}

#[derive(Clone, Debug)]
pub(crate) struct XorbRow {
    pub(crate) digest: Digest,
    pub(crate) chunks: ChunkIndex,
}

impl XetUploader {
    fn account(&self) -> String {
        self.account.map(|id| id.to_string()).unwrap_or_default()
    }
}

impl Store {
    /// Records a blob of the repository as a xorb. Returns false if the repository has no such blob.
    pub(crate) async fn xorb_put(
        &self,
        uploader: &XetUploader,
        hash: &XetHash,
        xorb: &XorbRow,
    ) -> Result<bool, Error> {
        let rows = query!(self.write(), c => sqlx::query(
            "insert into xorbs (repository, account, hash, digest, chunks)
             select repository, $2, $3, digest, $5 from links where repository = $1 and digest = $4
             on conflict (repository, account, hash) do update set digest = excluded.digest, chunks = excluded.chunks")
            .bind(uploader.repository.as_str()).bind(uploader.account()).bind(hash.to_string())
            .bind(xorb.digest.as_str()).bind(xorb.chunks.to_bytes())
            .execute(c).await.map(|r| r.rows_affected()))?;
        Ok(rows > 0)
    }

    pub(crate) async fn xorb_find(
        &self,
        uploader: &XetUploader,
        hash: &XetHash,
    ) -> Result<Option<XorbRow>, Error> {
        let row: Option<(String, Vec<u8>)> = query!(self.read(), c => sqlx::query_as(
            "select digest, chunks from xorbs where repository = $1 and account = $2 and hash = $3")
            .bind(uploader.repository.as_str()).bind(uploader.account()).bind(hash.to_string())
            .fetch_optional(c).await)?;
        let Some((digest, chunks)) = row else { return Ok(None) };
        let digest = parse_stored("digest", &digest)?;
        match ChunkIndex::from_bytes(&chunks) {
            Some(chunks) => Ok(Some(XorbRow { digest, chunks })),
            None => Err(Error::Corrupt { what: "index of xorb", value: hash.to_string() }),
        }
    }

    /// Extends the leases of all xorbs of an uploader.
    pub(crate) async fn xorbs_lease(&self, uploader: &XetUploader, until: i64) -> Result<(), Error> {
        query!(self.write(), c => sqlx::query(
            "update links set leased_until = $3 where repository = $1 and leased_until < $3
                 and digest in (select digest from xorbs where repository = $1 and account = $2)")
            .bind(uploader.repository.as_str()).bind(uploader.account()).bind(until)
            .execute(c).await.map(drop))?;
        Ok(())
    }

    /// The id of the uploader's space: `fresh`, unless there is one that was created after `not_before`.
    pub(crate) async fn xet_space(
        &self,
        uploader: &XetUploader,
        fresh: Uuid,
        not_before: i64,
    ) -> Result<Uuid, Error> {
        let (id,): (String,) = query!(self.write(), c => sqlx::query_as(
            "insert into xet_spaces (repository, account, id, created_at) values ($1, $2, $3, $4)
             on conflict (repository, account) do update set
                 id = case when xet_spaces.created_at > $5 then xet_spaces.id else excluded.id end,
                 created_at = case when xet_spaces.created_at > $5 then xet_spaces.created_at else excluded.created_at end
             returning id")
            .bind(uploader.repository.as_str()).bind(uploader.account()).bind(fresh.to_string())
            .bind(now_ms()).bind(not_before)
            .fetch_one(c).await)?;
        parse_stored("Xet space", &id)
    }

    /// Ends the uploader's space, so that its client forgets what it has uploaded.
    pub(crate) async fn xet_space_end(&self, uploader: &XetUploader) -> Result<(), Error> {
        query!(self.write(), c => sqlx::query("delete from xet_spaces where repository = $1 and account = $2")
            .bind(uploader.repository.as_str()).bind(uploader.account())
            .execute(c).await.map(drop))?;
        Ok(())
    }
}

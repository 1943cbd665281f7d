//! Blobs and the links that make them visible in a repository.
//! Whoever makes a link locks the blob's row first, so that a collection in another transaction sees it or waits.

use lode_model::digest::Digest;
use lode_model::reference::Repository;

use super::{Store, Tx, bigint, now_ms, on, parsed, size};
use crate::Error;

/// A live blob as a repository sees it.
#[derive(Clone, Debug)]
pub(crate) struct StoredBlob {
    pub(crate) size_bytes: u64,
    pub(crate) store_key: String,
    pub(crate) leased_until: i64,
}

impl Store {
    /// The blob, if the repository links it.
    pub(crate) async fn blob_find(
        &self,
        repository: &Repository,
        digest: &Digest,
    ) -> Result<Option<StoredBlob>, Error> {
        let row: Option<(i64, String, i64)> = on!(self.read(), c => sqlx::query_as(
            "select b.size_bytes, b.store_key, l.leased_until from links l join blobs b on b.digest = l.digest
             where l.repository = $1 and l.digest = $2 and b.state = 'live'")
            .bind(repository.as_str()).bind(digest.as_str()).fetch_optional(c).await)?;
        row.map(|(size_bytes, store_key, leased_until)| {
            Ok(StoredBlob { size_bytes: size(size_bytes)?, store_key, leased_until })
        })
        .transpose()
    }

    /// The size and key of a live blob, whoever links it.
    pub(crate) async fn blob_live(&self, digest: &Digest) -> Result<Option<(u64, String)>, Error> {
        let row: Option<(i64, String)> = on!(self.read(), c => sqlx::query_as(
            "select size_bytes, store_key from blobs where digest = $1 and state = 'live'")
            .bind(digest.as_str()).fetch_optional(c).await)?;
        row.map(|(size_bytes, key)| Ok((size(size_bytes)?, key))).transpose()
    }

    /// Keeps a link for a while. False if it is gone.
    pub(crate) async fn link_lease(
        &self,
        repository: &Repository,
        digest: &Digest,
        until: i64,
    ) -> Result<bool, Error> {
        let rows = on!(self.write(), c => sqlx::query(
            "update links set leased_until = case when leased_until < $3 then $3 else leased_until end
             where repository = $1 and digest = $2")
            .bind(repository.as_str()).bind(digest.as_str()).bind(until)
            .execute(c).await.map(|r| r.rows_affected()))?;
        Ok(rows > 0)
    }

    /// Repositories that link a blob, at most `limit`.
    pub(crate) async fn link_repositories(
        &self,
        digest: &Digest,
        limit: u32,
    ) -> Result<Vec<Repository>, Error> {
        let rows: Vec<(String,)> = on!(self.read(), c => sqlx::query_as(
            "select repository from links where digest = $1 order by repository limit $2")
            .bind(digest.as_str()).bind(i64::from(limit)).fetch_all(c).await)?;
        rows.iter().map(|(name,)| parsed("repository", name)).collect()
    }
}

impl Tx {
    /// The size and key of a live blob, its row locked until the transaction ends.
    pub(crate) async fn blob_lock(&mut self, digest: &Digest) -> Result<Option<(u64, String)>, Error> {
        let row: Option<(i64, String)> = on!(self.conn(), c => sqlx::query_as(
            "update blobs set unlinked_at = unlinked_at where digest = $1 and state = 'live'
             returning size_bytes, store_key")
            .bind(digest.as_str()).fetch_optional(c).await)?;
        row.map(|(size_bytes, key)| Ok((size(size_bytes)?, key))).transpose()
    }

    /// Records bytes that are durable under `store_key`, taking back a deletion that had not finished.
    pub(crate) async fn blob_insert(
        &mut self,
        digest: &Digest,
        size_bytes: u64,
        store_key: &str,
    ) -> Result<(), Error> {
        let now = now_ms();
        on!(self.conn(), c => sqlx::query(
            "insert into blobs (digest, size_bytes, store_key, state, created_at, released_at, unlinked_at)
             values ($1, $2, $3, 'live', $4, $4, $4)
             on conflict (digest) do update
             set size_bytes = excluded.size_bytes, store_key = excluded.store_key, state = 'live'")
            .bind(digest.as_str()).bind(bigint(size_bytes)).bind(store_key).bind(now)
            .execute(c).await.map(drop))?;
        on!(self.conn(), c => sqlx::query("delete from tombstones where digest = $1")
            .bind(digest.as_str()).execute(c).await.map(drop))?;
        Ok(())
    }

    /// Links a blob whose row this transaction locked or inserted.
    pub(crate) async fn link(
        &mut self,
        repository: &Repository,
        digest: &Digest,
        lease: i64,
    ) -> Result<(), Error> {
        let now = now_ms();
        // Writing the row, even unchanged, keeps the collection from removing an empty repository under us.
        on!(self.conn(), c => sqlx::query(
            "insert into repositories (name, created_at) values ($1, $2)
             on conflict (name) do update set name = excluded.name")
            .bind(repository.as_str()).bind(now).execute(c).await.map(drop))?;
        on!(self.conn(), c => sqlx::query("update blobs set unlinked_at = null where digest = $1")
            .bind(digest.as_str()).execute(c).await.map(drop))?;
        on!(self.conn(), c => sqlx::query(
            "insert into links (repository, digest, leased_until, unreferenced_at)
             values ($1, $2, $3, case when exists
                 (select 1 from manifest_blobs where repository = $1 and digest = $2)
                 then null else cast($4 as bigint) end)
             on conflict (repository, digest) do update set
                 leased_until = case when links.leased_until < excluded.leased_until
                     then excluded.leased_until else links.leased_until end,
                 unreferenced_at = case when links.unreferenced_at is null then null else $4 end")
            .bind(repository.as_str()).bind(digest.as_str()).bind(now.saturating_add(lease)).bind(now)
            .execute(c).await.map(drop))?;
        Ok(())
    }

    /// Is this content linked, and either named by a manifest of the repository or a manifest itself?
    pub(crate) async fn link_is_referenced(
        &mut self,
        repository: &Repository,
        digest: &Digest,
    ) -> Result<bool, Error> {
        let (count,): (i64,) = on!(self.conn(), c => sqlx::query_as(
            "select count(*) from links where repository = $1 and digest = $2 and (
                 exists (select 1 from manifest_blobs where repository = $1 and digest = $2)
                 or exists (select 1 from manifests where repository = $1 and digest = $2))")
            .bind(repository.as_str()).bind(digest.as_str()).fetch_one(c).await)?;
        Ok(count > 0)
    }

    /// Takes a blob out of a repository. False if it was not there.
    pub(crate) async fn unlink(&mut self, repository: &Repository, digest: &Digest) -> Result<bool, Error> {
        let rows = on!(self.conn(), c => sqlx::query("delete from links where repository = $1 and digest = $2")
            .bind(repository.as_str()).bind(digest.as_str())
            .execute(c).await.map(|r| r.rows_affected()))?;
        if rows > 0 {
            self.blob_unlinked(digest, now_ms()).await?;
        }
        Ok(rows > 0)
    }

    /// Notes when a repository let go of a blob. If that was the last, the grace counts from the latest such time.
    pub(crate) async fn blob_unlinked(&mut self, digest: &Digest, at: i64) -> Result<(), Error> {
        on!(self.conn(), c => sqlx::query("update blobs set released_at = $2 where digest = $1 and released_at < $2")
            .bind(digest.as_str()).bind(at).execute(c).await.map(drop))?;
        on!(self.conn(), c => sqlx::query(
            "update blobs set unlinked_at = released_at
             where digest = $1 and not exists (select 1 from links where digest = $1)")
            .bind(digest.as_str()).execute(c).await.map(drop))?;
        Ok(())
    }
}

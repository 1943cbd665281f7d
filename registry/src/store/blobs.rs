//! Blobs, and the links that make them visible in a repository. A transaction that creates a link locks the
//! blob's row first, so that a collection in another transaction sees the link or waits.

use lode_model::digest::Digest;
use lode_model::reference::Repository;
use sqlx::AssertSqlSafe;

use super::{ListFilter, Store, Tx, bigint, digest_list, query, size};
use crate::Error;
use crate::blobs::BlobLocation;
use crate::time::now_ms;

/// A live blob as a repository sees it.
#[derive(Clone, Debug)]
pub(crate) struct StoredBlob {
    pub(crate) size_bytes: u64,
    pub(crate) store_key: String,
    pub(crate) leased_until: i64,
}

#[derive(sqlx_macros::FromRow)]
struct StoredBlobColumns {
    size_bytes: i64,
    store_key: String,
    leased_until: i64,
}

impl TryFrom<StoredBlobColumns> for StoredBlob {
    type Error = Error;

    fn try_from(row: StoredBlobColumns) -> Result<StoredBlob, Error> {
        Ok(StoredBlob {
            size_bytes: size(row.size_bytes)?,
            store_key: row.store_key,
            leased_until: row.leased_until,
        })
    }
}

struct LockedBlob {
    size_bytes: u64,
    store_key: String,
    live: bool,
}

#[derive(sqlx_macros::FromRow)]
struct LockedBlobColumns {
    size_bytes: i64,
    store_key: String,
    state: String,
}

impl TryFrom<LockedBlobColumns> for LockedBlob {
    type Error = Error;

    fn try_from(row: LockedBlobColumns) -> Result<LockedBlob, Error> {
        Ok(LockedBlob {
            size_bytes: size(row.size_bytes)?,
            store_key: row.store_key,
            live: row.state == "live",
        })
    }
}

impl Store {
    /// The blob, if the repository links it.
    pub(crate) async fn blob_find(
        &self,
        repository: &Repository,
        digest: &Digest,
    ) -> Result<Option<StoredBlob>, Error> {
        let row: Option<StoredBlobColumns> = query!(self.read(), c => sqlx::query_as(
            "select b.size_bytes, b.store_key, l.leased_until from links l join blobs b on b.digest = l.digest
             where l.repository = $1 and l.digest = $2 and b.state = 'live'")
            .bind(repository.as_str()).bind(digest.as_str()).fetch_optional(c).await)?;
        row.map(StoredBlob::try_from).transpose()
    }

    /// The size and key of a live blob, in any repository.
    pub(crate) async fn blob_live(&self, digest: &Digest) -> Result<Option<(u64, String)>, Error> {
        let row: Option<(i64, String)> = query!(self.read(), c => sqlx::query_as(
            "select size_bytes, store_key from blobs where digest = $1 and state = 'live'")
            .bind(digest.as_str()).fetch_optional(c).await)?;
        row.map(|(size_bytes, key)| Ok((size(size_bytes)?, key))).transpose()
    }

    /// Whether a blob, or a tombstone whose bytes still have to be deleted, has this key.
    pub(crate) async fn has_key(&self, store_key: &str) -> Result<bool, Error> {
        let (exists,): (bool,) = query!(self.read(), c => sqlx::query_as(
            "select exists (select 1 from blobs where store_key = $1)
                 or exists (select 1 from tombstones where store_key = $1)")
            .bind(store_key).fetch_one(c).await)?;
        Ok(exists)
    }

    /// Extends the lease of a link. Returns false if the link does not exist.
    pub(crate) async fn link_lease(
        &self,
        repository: &Repository,
        digest: &Digest,
        until: i64,
    ) -> Result<bool, Error> {
        let rows = query!(self.write(), c => sqlx::query(
            "update links set leased_until = case when leased_until < $3 then $3 else leased_until end
             where repository = $1 and digest = $2")
            .bind(repository.as_str()).bind(digest.as_str()).bind(until)
            .execute(c).await.map(|r| r.rows_affected()))?;
        Ok(rows > 0)
    }

    /// Whether a repository that the filter shows links a blob.
    pub(crate) async fn is_linked(&self, digest: &Digest, filter: &ListFilter) -> Result<bool, Error> {
        let text = AssertSqlSafe(format!(
            "select exists (select 1 from links where digest = $1 and {})",
            self.is_listed("repository", 2)
        ));
        let (all, visibility, subjects, targets) = filter.parameters();
        let (found,): (bool,) = query!(self.read(), c => sqlx::query_as(text)
            .bind(digest.as_str()).bind(all).bind(visibility).bind(subjects).bind(targets)
            .fetch_one(c).await)?;
        Ok(found)
    }

    /// Whether a repository that the filter shows links a blob of this size.
    pub(crate) async fn has_linked_size(&self, size_bytes: u64, filter: &ListFilter) -> Result<bool, Error> {
        let text = AssertSqlSafe(format!(
            "select exists (select 1 from blobs b join links l on l.digest = b.digest
                 where b.size_bytes = $1 and b.state = 'live' and {})",
            self.is_listed("l.repository", 2)
        ));
        let (all, visibility, subjects, targets) = filter.parameters();
        let (found,): (bool,) = query!(self.read(), c => sqlx::query_as(text)
            .bind(bigint(size_bytes)).bind(all).bind(visibility).bind(subjects).bind(targets)
            .fetch_one(c).await)?;
        Ok(found)
    }
}

impl Tx {
    /// The size and key of a live blob, its row locked until the transaction ends.
    pub(crate) async fn blob_lock(&mut self, digest: &Digest) -> Result<Option<(u64, String)>, Error> {
        let row = self.blob_lock_any(digest).await?;
        Ok(row.filter(|row| row.live).map(|row| (row.size_bytes, row.store_key)))
    }

    async fn blob_lock_any(&mut self, digest: &Digest) -> Result<Option<LockedBlob>, Error> {
        // On SQLite the transaction is the only writer.
        let query = match self.locks_rows() {
            false => "select size_bytes, store_key, state from blobs where digest = $1",
            true => "select size_bytes, store_key, state from blobs where digest = $1 for no key update",
        };
        let row: Option<LockedBlobColumns> = query!(self.conn(), c => sqlx::query_as(query)
            .bind(digest.as_str()).fetch_optional(c).await)?;
        row.map(LockedBlob::try_from).transpose()
    }

    /// Prevents the collection, and no other transaction, from changing these blobs until the transaction
    /// ends.
    pub(crate) async fn blobs_lock_shared(&mut self, digests: &[&Digest]) -> Result<(), Error> {
        if self.locks_rows() {
            // In digest order, so that two transactions with the same blobs cannot deadlock.
            query!(self.conn(), c => sqlx::query(
                "select digest from blobs where digest in (select value from json_each($1)) order by digest for share")
                .bind(digest_list(digests.iter().copied())).execute(c).await.map(drop))?;
        }
        Ok(())
    }

    /// Records durable bytes under `store_key`. They replace bytes that are being deleted or that are
    /// `damaged` (their key). Returns false if the blob is live under another key and keeps it: the new bytes
    /// are redundant, and the row is locked.
    pub(crate) async fn blob_insert(
        &mut self,
        digest: &Digest,
        size_bytes: u64,
        store_key: &str,
        damaged: Option<&str>,
    ) -> Result<bool, Error> {
        let now = now_ms();
        loop {
            let fresh = query!(self.conn(), c => sqlx::query(
                "insert into blobs (digest, size_bytes, store_key, state, created_at, released_at, unlinked_at)
                 values ($1, $2, $3, 'live', $4, $4, $4)
                 on conflict (digest) do nothing")
                .bind(digest.as_str()).bind(bigint(size_bytes)).bind(store_key).bind(now)
                .execute(c).await.map(|r| r.rows_affected()))?;
            if fresh > 0 {
                break;
            }
            // The collection may delete the row between the two statements.
            let Some(old) = self.blob_lock_any(digest).await? else { continue };
            if old.live && old.store_key != store_key {
                if damaged != Some(&old.store_key[..]) {
                    return Ok(false);
                }
                let old = BlobLocation {
                    digest: digest.clone(),
                    size_bytes: old.size_bytes,
                    store_key: old.store_key,
                };
                self.tombstones_put(&[old], "damaged").await?;
            }
            query!(self.conn(), c => sqlx::query(
                "update blobs set size_bytes = $2, store_key = $3, state = 'live' where digest = $1")
                .bind(digest.as_str()).bind(bigint(size_bytes)).bind(store_key)
                .execute(c).await.map(drop))?;
            break;
        }
        // If the key is derived from the digest, this cancels the deletion of the old bytes; the deletion of
        // any other key continues.
        query!(self.conn(), c => sqlx::query("delete from tombstones where store_key = $1")
            .bind(store_key).execute(c).await.map(drop))?;
        Ok(true)
    }

    /// Links a blob whose row this transaction locked or inserted.
    pub(crate) async fn link(
        &mut self,
        repository: &Repository,
        digest: &Digest,
        lease: i64,
    ) -> Result<(), Error> {
        let now = now_ms();
        self.repository_lock_shared(repository).await?;
        query!(self.conn(), c => sqlx::query(
            "update blobs set unlinked_at = null where digest = $1 and unlinked_at is not null")
            .bind(digest.as_str()).execute(c).await.map(drop))?;
        // A new link counts as unreferenced until a manifest that names it is pushed, or the collection finds
        // one. Whether there is one cannot be decided here, because manifests of the repository may change at
        // the same time.
        query!(self.conn(), c => sqlx::query(
            "insert into links (repository, digest, leased_until, unreferenced_at) values ($1, $2, $3, $4)
             on conflict (repository, digest) do update set
                 leased_until = case when links.leased_until < excluded.leased_until
                     then excluded.leased_until else links.leased_until end,
                 unreferenced_at = case when links.unreferenced_at is null then null else $4 end")
            .bind(repository.as_str()).bind(digest.as_str()).bind(now.saturating_add(lease)).bind(now)
            .execute(c).await.map(drop))?;
        Ok(())
    }

    /// Whether this content is linked, and is either named by a manifest of the repository or a manifest
    /// itself.
    pub(crate) async fn is_link_referenced(
        &mut self,
        repository: &Repository,
        digest: &Digest,
    ) -> Result<bool, Error> {
        let (exists,): (bool,) = query!(self.conn(), c => sqlx::query_as(
            "select exists (select 1 from links where repository = $1 and digest = $2)
                 and (exists (select 1 from manifest_blobs where repository = $1 and digest = $2)
                     or exists (select 1 from manifests where repository = $1 and digest = $2))")
            .bind(repository.as_str()).bind(digest.as_str()).fetch_one(c).await)?;
        Ok(exists)
    }

    /// Unlinks a blob from a repository. Returns false if there was no link.
    pub(crate) async fn unlink(&mut self, repository: &Repository, digest: &Digest) -> Result<bool, Error> {
        let rows = query!(self.conn(), c => sqlx::query("delete from links where repository = $1 and digest = $2")
            .bind(repository.as_str()).bind(digest.as_str())
            .execute(c).await.map(|r| r.rows_affected()))?;
        if rows > 0 {
            self.blob_record_unlink(digest, now_ms()).await?;
            self.quotas_recount([repository.as_str()]).await?;
        }
        Ok(rows > 0)
    }

    /// Records when a repository unlinked a blob. After the last unlink, the grace period counts from the
    /// latest such time.
    pub(crate) async fn blob_record_unlink(&mut self, digest: &Digest, at: i64) -> Result<(), Error> {
        query!(self.conn(), c => sqlx::query("update blobs set released_at = $2 where digest = $1 and released_at < $2")
            .bind(digest.as_str()).bind(at).execute(c).await.map(drop))?;
        query!(self.conn(), c => sqlx::query(
            "update blobs set unlinked_at = released_at
             where digest = $1 and not exists (select 1 from links where digest = $1)")
            .bind(digest.as_str()).execute(c).await.map(drop))?;
        Ok(())
    }
}

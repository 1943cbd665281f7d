//! What the collection asks of the index: candidates past their grace, rechecked as they go.
//! Every condition is checked again by the statement that removes, on rows that a racing push locks too.

use lode_model::digest::Digest;
use lode_model::reference::Repository;

use super::{Store, Tx, now_ms, on, parsed, size};
use crate::Error;

/// A blob on its way out.
#[derive(Clone, Debug)]
pub(crate) struct Doomed {
    pub(crate) digest: Digest,
    pub(crate) size_bytes: u64,
    pub(crate) store_key: String,
}

/// Where a walk over (repository, digest) stands.
pub(crate) type Place = (String, String);

impl Store {
    /// Blobs that no repository links since before `cutoff`, and those whose deletion a crash cut short.
    pub(crate) async fn blobs_unlinked(
        &self,
        cutoff: i64,
        after: &str,
        limit: i64,
    ) -> Result<Vec<Doomed>, Error> {
        let rows: Vec<(String, i64, String)> = on!(self.read(), c => sqlx::query_as(
            "select digest, size_bytes, store_key from blobs
             where unlinked_at is not null and (unlinked_at <= $1 or state = 'deleting') and digest > $2
             order by digest limit $3")
            .bind(cutoff).bind(after).bind(limit).fetch_all(c).await)?;
        rows.into_iter().map(doomed).collect()
    }

    /// Repositories that hold nothing: few, for each goes with the collection that finds it.
    pub(crate) async fn repositories_empty(&self) -> Result<Vec<Repository>, Error> {
        let rows: Vec<(String,)> = on!(self.read(), c => sqlx::query_as(
            "select name from repositories
             where not exists (select 1 from links where repository = repositories.name)")
            .fetch_all(c).await)?;
        rows.iter().map(|(name,)| parsed("repository", name)).collect()
    }
}

fn doomed((digest, size_bytes, store_key): (String, i64, String)) -> Result<Doomed, Error> {
    Ok(Doomed { digest: parsed("digest", &digest)?, size_bytes: size(size_bytes)?, store_key })
}

impl Tx {
    /// Manifests that nothing names since before `cutoff`: their repository, digest, and since when.
    pub(crate) async fn manifests_unreferenced(
        &mut self,
        cutoff: i64,
        after: &Place,
        limit: i64,
    ) -> Result<Vec<(Repository, Digest, i64)>, Error> {
        let rows: Vec<(String, String, i64)> = on!(self.conn(), c => sqlx::query_as(
            "select repository, digest, unreferenced_at from manifests
             where unreferenced_at <= $1 and (repository, digest) > ($2, $3)
             order by repository, digest limit $4")
            .bind(cutoff).bind(&after.0[..]).bind(&after.1[..]).bind(limit).fetch_all(c).await)?;
        rows.into_iter()
            .map(|(repository, digest, at)| {
                Ok((parsed("repository", &repository)?, parsed("digest", &digest)?, at))
            })
            .collect()
    }

    /// Locks a manifest that is still past its grace. False if a push came first.
    pub(crate) async fn manifest_lock(
        &mut self,
        repository: &Repository,
        digest: &Digest,
        cutoff: i64,
    ) -> Result<bool, Error> {
        let rows = on!(self.conn(), c => sqlx::query(
            "update manifests set unreferenced_at = unreferenced_at
             where repository = $1 and digest = $2 and unreferenced_at <= $3")
            .bind(repository.as_str()).bind(digest.as_str()).bind(cutoff)
            .execute(c).await.map(|r| r.rows_affected()))?;
        Ok(rows > 0)
    }

    /// Does a tag, an index or (for one with a subject that is here) its subject still want this manifest?
    pub(crate) async fn manifest_is_wanted(
        &mut self,
        repository: &Repository,
        digest: &Digest,
    ) -> Result<bool, Error> {
        let (count,): (i64,) = on!(self.conn(), c => sqlx::query_as(
            "select (select count(*) from tags where repository = $1 and digest = $2)
                  + (select count(*) from manifest_blobs where repository = $1 and digest = $2 and kind = 'child')
                  + (select count(*) from referrers r
                     join manifests m on m.repository = r.repository and m.digest = r.subject
                     where r.repository = $1 and r.digest = $2)")
            .bind(repository.as_str()).bind(digest.as_str()).fetch_one(c).await)?;
        Ok(count > 0)
    }

    /// Is the link of this content leased?
    pub(crate) async fn link_is_leased(
        &mut self,
        repository: &Repository,
        digest: &Digest,
    ) -> Result<bool, Error> {
        let (count,): (i64,) = on!(self.conn(), c => sqlx::query_as(
            "select count(*) from links where repository = $1 and digest = $2 and leased_until > $3")
            .bind(repository.as_str()).bind(digest.as_str()).bind(now_ms()).fetch_one(c).await)?;
        Ok(count > 0)
    }

    /// Takes a manifest off the list of candidates.
    pub(crate) async fn manifest_keep(
        &mut self,
        repository: &Repository,
        digest: &Digest,
    ) -> Result<(), Error> {
        on!(self.conn(), c => sqlx::query(
            "update manifests set unreferenced_at = null where repository = $1 and digest = $2")
            .bind(repository.as_str()).bind(digest.as_str()).execute(c).await.map(drop))?;
        Ok(())
    }

    /// Links that no manifest of their repository names since before `cutoff` and that no lease keeps.
    pub(crate) async fn links_unreferenced(
        &mut self,
        cutoff: i64,
        after: &Place,
        limit: i64,
    ) -> Result<Vec<(Repository, Digest, i64)>, Error> {
        let rows: Vec<(String, String, i64)> = on!(self.conn(), c => sqlx::query_as(
            "select repository, digest, unreferenced_at from links
             where unreferenced_at <= $1 and leased_until <= $2 and (repository, digest) > ($3, $4)
             order by repository, digest limit $5")
            .bind(cutoff).bind(now_ms()).bind(&after.0[..]).bind(&after.1[..]).bind(limit).fetch_all(c).await)?;
        rows.into_iter()
            .map(|(repository, digest, at)| {
                Ok((parsed("repository", &repository)?, parsed("digest", &digest)?, at))
            })
            .collect()
    }

    /// Removes a link that is still past its grace and lease. False if a push came first.
    pub(crate) async fn link_collect(
        &mut self,
        repository: &Repository,
        digest: &Digest,
        cutoff: i64,
    ) -> Result<bool, Error> {
        let rows = on!(self.conn(), c => sqlx::query(
            "delete from links
             where repository = $1 and digest = $2 and unreferenced_at <= $3 and leased_until <= $4
               and not exists (select 1 from manifest_blobs where repository = $1 and digest = $2)
               and not exists (select 1 from manifests where repository = $1 and digest = $2)")
            .bind(repository.as_str()).bind(digest.as_str()).bind(cutoff).bind(now_ms())
            .execute(c).await.map(|r| r.rows_affected()))?;
        Ok(rows > 0)
    }

    /// How many blobs, and bytes, no repository links since before `cutoff`.
    pub(crate) async fn blobs_unlinked_total(&mut self, cutoff: i64) -> Result<(u64, u64), Error> {
        let (count, bytes): (i64, i64) = on!(self.conn(), c => sqlx::query_as(
            "select count(*), cast(coalesce(sum(size_bytes), 0) as bigint) from blobs
             where unlinked_at is not null and (unlinked_at <= $1 or state = 'deleting')")
            .bind(cutoff).fetch_one(c).await)?;
        Ok((size(count)?, size(bytes)?))
    }

    /// Turns a blob into a tombstone, if nothing links it. False if a push came first.
    pub(crate) async fn blob_condemn(
        &mut self,
        blob: &Doomed,
        cutoff: i64,
        reason: &str,
    ) -> Result<bool, Error> {
        // 1. Lock the row; a link made meanwhile has cleared `unlinked_at`, one made later waits for us.
        let rows = on!(self.conn(), c => sqlx::query(
            "update blobs set state = 'deleting'
             where digest = $1 and unlinked_at is not null and (unlinked_at <= $2 or state = 'deleting')")
            .bind(blob.digest.as_str()).bind(cutoff).execute(c).await.map(|r| r.rows_affected()))?;
        if rows == 0 {
            return Ok(false);
        }
        // 2. With the row locked, look again: what marked it unlinked may have seen an older state of the links.
        let (links,): (i64,) = on!(self.conn(), c => sqlx::query_as("select count(*) from links where digest = $1")
            .bind(blob.digest.as_str()).fetch_one(c).await)?;
        if links > 0 {
            on!(self.conn(), c => sqlx::query("update blobs set state = 'live', unlinked_at = null where digest = $1")
                .bind(blob.digest.as_str()).execute(c).await.map(drop))?;
            return Ok(false);
        }
        // 3. From here on the bytes may go at any time.
        on!(self.conn(), c => sqlx::query(
            "insert into tombstones (digest, size_bytes, store_key, reason, created_at)
             select digest, size_bytes, store_key, $2, cast($3 as bigint) from blobs where digest = $1
             on conflict (digest) do nothing")
            .bind(blob.digest.as_str()).bind(reason).bind(now_ms()).execute(c).await.map(drop))?;
        Ok(true)
    }

    /// Forgets a blob whose bytes are gone.
    pub(crate) async fn blob_bury(&mut self, digest: &Digest) -> Result<(), Error> {
        on!(self.conn(), c => sqlx::query("delete from blobs where digest = $1 and state = 'deleting'")
            .bind(digest.as_str()).execute(c).await.map(drop))?;
        on!(self.conn(), c => sqlx::query("delete from tombstones where digest = $1")
            .bind(digest.as_str()).execute(c).await.map(drop))?;
        Ok(())
    }

    /// Forgets a repository that holds nothing.
    pub(crate) async fn repository_collect(&mut self, repository: &Repository) -> Result<(), Error> {
        // Locked first, as whoever links does: the next statement then sees every link, or its maker waits for us.
        on!(self.conn(), c => sqlx::query("update repositories set name = name where name = $1")
            .bind(repository.as_str()).execute(c).await.map(drop))?;
        on!(self.conn(), c => sqlx::query(
            "delete from repositories where name = $1 and not exists (select 1 from links where repository = $1)")
            .bind(repository.as_str()).execute(c).await.map(drop))?;
        Ok(())
    }
}

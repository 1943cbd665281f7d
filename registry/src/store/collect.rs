//! What the collection asks of the index: candidates past their grace, rechecked as they go.
//! Every condition is checked again by the statement that removes, on rows that a racing push locks too.

use lode_model::digest::Digest;
use lode_model::reference::Repository;

use super::removals::Why;
use super::{Store, Tx, bigint, now_ms, on, parsed, size};
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
    /// Blobs that no repository links since before `cutoff`, and that no undo needs.
    pub(crate) async fn blobs_unlinked(
        &self,
        cutoff: i64,
        after: &str,
        limit: i64,
    ) -> Result<Vec<Doomed>, Error> {
        let rows: Vec<(String, i64, String)> = on!(self.read(), c => sqlx::query_as(
            "select digest, size_bytes, store_key from blobs
             where state = 'live' and unlinked_at <= $1 and digest > $2
               and not exists (select 1 from removal_blobs k where k.digest = blobs.digest and k.undo_until > $4)
             order by digest limit $3")
            .bind(cutoff).bind(after).bind(limit).bind(now_ms()).fetch_all(c).await)?;
        rows.into_iter().map(doomed).collect()
    }

    /// Manifests that nothing names since before `cutoff`: their repository, digest, and since when.
    pub(crate) async fn manifests_unreferenced(
        &self,
        cutoff: i64,
        after: &Place,
        limit: i64,
    ) -> Result<Vec<(Repository, Digest, i64)>, Error> {
        let rows: Vec<(String, String, i64)> = on!(self.read(), c => sqlx::query_as(
            "select repository, digest, unreferenced_at from manifests
             where unreferenced_at <= $1 and (repository, digest) > ($2, $3)
             order by repository, digest limit $4")
            .bind(cutoff).bind(&after.0[..]).bind(&after.1[..]).bind(limit).fetch_all(c).await)?;
        rows.into_iter().map(placed).collect()
    }

    /// Links that no manifest of their repository names since before `cutoff` and that no lease keeps.
    pub(crate) async fn links_unreferenced(
        &self,
        cutoff: i64,
        after: &Place,
        limit: i64,
    ) -> Result<Vec<(Repository, Digest, i64)>, Error> {
        let rows: Vec<(String, String, i64)> = on!(self.read(), c => sqlx::query_as(
            "select repository, digest, unreferenced_at from links
             where unreferenced_at <= $1 and leased_until <= $2 and (repository, digest) > ($3, $4)
             order by repository, digest limit $5")
            .bind(cutoff).bind(now_ms()).bind(&after.0[..]).bind(&after.1[..]).bind(limit).fetch_all(c).await)?;
        rows.into_iter().map(placed).collect()
    }

    /// Bytes that are to be deleted, in the order of their keys.
    pub(crate) async fn tombstones(&self, after: &str, limit: i64) -> Result<Vec<Doomed>, Error> {
        let rows: Vec<(String, i64, String)> = on!(self.read(), c => sqlx::query_as(
            "select digest, size_bytes, store_key from tombstones where store_key > $1 order by store_key limit $2")
            .bind(after).bind(limit).fetch_all(c).await)?;
        rows.into_iter().map(doomed).collect()
    }

    /// Which of these are still to be deleted.
    pub(crate) async fn tombstones_still(&self, some: &[Doomed]) -> Result<Vec<Doomed>, Error> {
        let keys: Vec<&str> = some.iter().map(|doomed| &doomed.store_key[..]).collect();
        let rows: Vec<(String, i64, String)> = on!(self.read(), c => sqlx::query_as(
            "select digest, size_bytes, store_key from tombstones
             where store_key in (select value from json_each($1)) order by store_key")
            .bind(serde_json::Value::from(keys).to_string()).fetch_all(c).await)?;
        rows.into_iter().map(doomed).collect()
    }

    /// Repositories that hold nothing: few, for each goes with the collection that finds it.
    pub(crate) async fn repositories_empty(&self) -> Result<Vec<Repository>, Error> {
        let rows: Vec<(String,)> = on!(patiently self.read(), c => sqlx::query_as(
            "select name from repositories
             where not exists (select 1 from links where repository = repositories.name)")
            .fetch_all(c).await)?;
        rows.iter().map(|(name,)| parsed("repository", name)).collect()
    }
}

pub(super) fn doomed((digest, size_bytes, store_key): (String, i64, String)) -> Result<Doomed, Error> {
    Ok(Doomed { digest: parsed("digest", &digest)?, size_bytes: size(size_bytes)?, store_key })
}

fn placed((repository, digest, at): (String, String, i64)) -> Result<(Repository, Digest, i64), Error> {
    Ok((parsed("repository", &repository)?, parsed("digest", &digest)?, at))
}

impl Tx {
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

    /// Does a tag or an index name this manifest?
    pub(crate) async fn manifest_is_named(
        &mut self,
        repository: &Repository,
        digest: &Digest,
    ) -> Result<bool, Error> {
        let (count,): (i64,) = on!(self.conn(), c => sqlx::query_as(
            "select (select count(*) from tags where repository = $1 and digest = $2)
                  + (select count(*) from manifest_blobs where repository = $1 and digest = $2 and kind = 'child')")
            .bind(repository.as_str()).bind(digest.as_str()).fetch_one(c).await)?;
        Ok(count > 0)
    }

    /// Is its subject here? It goes when that does.
    pub(crate) async fn manifest_has_subject(
        &mut self,
        repository: &Repository,
        digest: &Digest,
    ) -> Result<bool, Error> {
        let (count,): (i64,) = on!(self.conn(), c => sqlx::query_as(
            "select count(*) from referrers r join manifests m on m.repository = r.repository and m.digest = r.subject
             where r.repository = $1 and r.digest = $2")
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

    /// Turns those of these blobs into tombstones that nothing links. Not the ones that a push has in hand, or came first with.
    pub(crate) async fn blobs_condemn(
        &mut self,
        blobs: &[Doomed],
        cutoff: i64,
        why: &Why,
    ) -> Result<Vec<Doomed>, Error> {
        // 1. Lock the rows. A link made before has cleared `unlinked_at`, one made later waits for us.
        let locked = self.blobs_take(blobs.iter().map(|blob| &blob.digest)).await?;
        // 2. With the rows locked, look again: what marked them unlinked may have seen an older state of the links.
        on!(self.conn(), c => sqlx::query(
            "update blobs set unlinked_at = null where digest in (select value from json_each($1))
               and exists (select 1 from links l where l.digest = blobs.digest)")
            .bind(&locked[..]).execute(c).await.map(drop))?;
        let condemned: Vec<(String, i64, String)> = on!(self.conn(), c => sqlx::query_as(
            "update blobs set state = 'deleting' where digest in (select value from json_each($1))
               and state = 'live' and unlinked_at <= $2
               and not exists (select 1 from links l where l.digest = blobs.digest)
               and not exists (select 1 from removal_blobs k where k.digest = blobs.digest and k.undo_until > $3)
             returning digest, size_bytes, store_key")
            .bind(&locked[..]).bind(cutoff).bind(now_ms()).fetch_all(c).await)?;
        // 3. From here on the bytes may go at any time.
        let condemned: Vec<Doomed> = condemned.into_iter().map(doomed).collect::<Result<_, _>>()?;
        for blob in &condemned {
            self.tombstone_put(blob, why.reason.word()).await?;
            self.blob_removed(None, &blob.digest, blob.size_bytes, why).await?;
        }
        Ok(condemned)
    }

    pub(super) async fn tombstone_put(&mut self, blob: &Doomed, reason: &str) -> Result<(), Error> {
        on!(self.conn(), c => sqlx::query(
            "insert into tombstones (store_key, digest, size_bytes, reason, created_at) values ($1, $2, $3, $4, $5)
             on conflict (store_key) do nothing")
            .bind(&blob.store_key[..]).bind(blob.digest.as_str()).bind(bigint(blob.size_bytes))
            .bind(reason).bind(now_ms()).execute(c).await.map(drop))?;
        Ok(())
    }

    /// Forgets bytes that are gone, and their blob unless it has come again under another key.
    pub(crate) async fn tombstone_bury(&mut self, blob: &Doomed) -> Result<(), Error> {
        on!(self.conn(), c => sqlx::query(
            "delete from blobs where digest = $1 and store_key = $2 and state = 'deleting'")
            .bind(blob.digest.as_str()).bind(&blob.store_key[..]).execute(c).await.map(drop))?;
        on!(self.conn(), c => sqlx::query("delete from tombstones where store_key = $1")
            .bind(&blob.store_key[..]).execute(c).await.map(drop))?;
        Ok(())
    }

    /// Forgets a repository that holds nothing.
    pub(crate) async fn repository_collect(&mut self, repository: &Repository) -> Result<(), Error> {
        // Locked first, as whoever links does: the next statement then sees every link, or its maker waits for us.
        self.repository_lock(repository).await?;
        on!(self.conn(), c => sqlx::query(
            "delete from repositories where name = $1 and not exists (select 1 from links where repository = $1)")
            .bind(repository.as_str()).execute(c).await.map(drop))?;
        Ok(())
    }
}

//! The collection's queries: candidates past their grace period, and their removal. Each statement reads or
//! changes one batch, ordered by time and then by an id, which an index serves. The statement that removes
//! checks every condition again, on rows that a concurrent push locks too.

use std::collections::BTreeMap;

use lode_model::digest::Digest;
use lode_model::reference::Repository;
use sqlx::AssertSqlSafe;

use super::removals::{RemovalCause, RemovalRow};
use super::{Store, Tx, digest_list, parse_stored, placeholders, query, size};
use crate::Error;
use crate::blobs::BlobLocation;
use crate::time::now_ms;

#[derive(sqlx_macros::FromRow)]
pub(super) struct BlobLocationColumns {
    digest: String,
    size_bytes: i64,
    store_key: String,
}

impl TryFrom<BlobLocationColumns> for BlobLocation {
    type Error = Error;

    fn try_from(row: BlobLocationColumns) -> Result<BlobLocation, Error> {
        Ok(BlobLocation {
            digest: parse_stored("digest", &row.digest)?,
            size_bytes: size(row.size_bytes)?,
            store_key: row.store_key,
        })
    }
}

/// Content of a repository that nothing references.
#[derive(Clone, Debug)]
pub(crate) struct UnreferencedContent {
    pub(crate) repository: Repository,
    pub(crate) digest: Digest,
    /// The time since which nothing references it.
    pub(crate) unreferenced_at: i64,
}

#[derive(sqlx_macros::FromRow)]
struct UnreferencedColumns {
    repository: String,
    digest: String,
    unreferenced_at: i64,
}

impl UnreferencedColumns {
    fn decode(self) -> Result<UnreferencedContent, Error> {
        Ok(UnreferencedContent {
            repository: parse_stored("repository", &self.repository)?,
            digest: parse_stored("digest", &self.digest)?,
            unreferenced_at: self.unreferenced_at,
        })
    }

    /// The position after this row.
    fn cursor(&self) -> TimeCursor {
        TimeCursor(self.unreferenced_at, self.repository.clone(), self.digest.clone())
    }
}

#[derive(sqlx_macros::FromRow)]
struct UnlinkedBlobColumns {
    #[sqlx(flatten)]
    blob: BlobLocationColumns,
    unlinked_at: i64,
    /// Live, and not needed for an undo.
    is_removable: bool,
}

#[derive(sqlx_macros::FromRow)]
struct UnreferencedLinkColumns {
    #[sqlx(flatten)]
    link: UnreferencedColumns,
    leased_until: i64,
}

#[derive(sqlx_macros::FromRow)]
struct RecheckedColumns {
    #[sqlx(flatten)]
    manifest: UnreferencedColumns,
    /// A tag or an index names it.
    is_named: bool,
    /// It has a subject in the repository, or a lease.
    is_kept: bool,
}

/// The position of a walk in time order: a time, and the columns that order rows of the same time.
#[derive(Clone, Debug)]
pub(crate) struct TimeCursor(i64, String, String);

impl Default for TimeCursor {
    fn default() -> TimeCursor {
        TimeCursor(i64::MIN, String::new(), String::new())
    }
}

/// The candidates of one page, and the position of the next page (`None` on the last).
pub(crate) struct Page<T> {
    pub(crate) found: Vec<T>,
    pub(crate) next: Option<TimeCursor>,
}

impl Store {
    /// Blobs that no repository has linked since before `cutoff`, and that no undo needs.
    pub(crate) async fn blobs_unlinked(
        &self,
        cutoff: i64,
        after: &TimeCursor,
        limit: i64,
    ) -> Result<Page<BlobLocation>, Error> {
        // Blobs that an undo needs are read and skipped here, so that one statement never reads more than a
        // page.
        let rows: Vec<UnlinkedBlobColumns> = query!(self.read(), c => sqlx::query_as(
            "select digest, size_bytes, store_key, unlinked_at, state = 'live' and not exists
                 (select 1 from removal_blobs k where k.digest = blobs.digest and k.undo_until > $5) as is_removable
             from blobs where unlinked_at <= $1 and (unlinked_at, digest) > ($2, $3)
             order by unlinked_at, digest limit $4")
            .bind(cutoff).bind(after.0).bind(&after.1[..]).bind(limit).bind(now_ms()).fetch_all(c).await)?;
        let next = rows.last().map(|row| TimeCursor(row.unlinked_at, row.blob.digest.clone(), String::new()));
        let found = rows.into_iter().filter(|row| row.is_removable);
        Ok(Page { found: found.map(|row| BlobLocation::try_from(row.blob)).collect::<Result<_, _>>()?, next })
    }

    /// Manifests that no tag or index has named since before `cutoff`.
    pub(crate) async fn manifests_unreferenced(
        &self,
        cutoff: i64,
        after: &TimeCursor,
        limit: i64,
    ) -> Result<Page<UnreferencedContent>, Error> {
        let rows: Vec<UnreferencedColumns> = query!(self.read(), c => sqlx::query_as(
            "select repository, digest, unreferenced_at from manifests
             where unreferenced_at <= $1 and (unreferenced_at, repository, digest) > ($2, $3, $4)
             order by unreferenced_at, repository, digest limit $5")
            .bind(cutoff).bind(after.0).bind(&after.1[..]).bind(&after.2[..]).bind(limit).fetch_all(c).await)?;
        let next = rows.last().map(UnreferencedColumns::cursor);
        let found = rows.into_iter().map(UnreferencedColumns::decode).collect::<Result<_, _>>()?;
        Ok(Page { found, next })
    }

    /// Links that no manifest of their repository has named since before `cutoff` and that have no lease.
    pub(crate) async fn links_unreferenced(
        &self,
        cutoff: i64,
        after: &TimeCursor,
        limit: i64,
    ) -> Result<Page<UnreferencedContent>, Error> {
        let rows: Vec<UnreferencedLinkColumns> = query!(self.read(), c => sqlx::query_as(
            "select repository, digest, unreferenced_at, leased_until from links
             where unreferenced_at <= $1 and (unreferenced_at, repository, digest) > ($2, $3, $4)
             order by unreferenced_at, repository, digest limit $5")
            .bind(cutoff).bind(after.0).bind(&after.1[..]).bind(&after.2[..]).bind(limit).fetch_all(c).await)?;
        let next = rows.last().map(|row| row.link.cursor());
        let now = now_ms();
        let free = rows.into_iter().filter(|row| row.leased_until <= now);
        Ok(Page { found: free.map(|row| row.link.decode()).collect::<Result<_, _>>()?, next })
    }

    /// Tombstones (bytes to be deleted) in key order.
    pub(crate) async fn tombstones(&self, after: &str, limit: i64) -> Result<Vec<BlobLocation>, Error> {
        let rows: Vec<BlobLocationColumns> = query!(self.read(), c => sqlx::query_as(
            "select digest, size_bytes, store_key from tombstones where store_key > $1 order by store_key limit $2")
            .bind(after).bind(limit).fetch_all(c).await)?;
        rows.into_iter().map(BlobLocation::try_from).collect()
    }

    /// Those of these tombstones that still exist.
    pub(crate) async fn tombstones_existing(
        &self,
        some: &[BlobLocation],
    ) -> Result<Vec<BlobLocation>, Error> {
        let keys: Vec<&str> = some.iter().map(|doomed| &doomed.store_key[..]).collect();
        let rows: Vec<BlobLocationColumns> = query!(self.read(), c => sqlx::query_as(
            "select digest, size_bytes, store_key from tombstones
             where store_key in (select value from json_each($1)) order by store_key")
            .bind(serde_json::Value::from(keys).to_string()).fetch_all(c).await)?;
        rows.into_iter().map(BlobLocation::try_from).collect()
    }

    /// The next repositories after `after` in name order, and whether each is empty.
    pub(crate) async fn repositories_with_emptiness(
        &self,
        after: &str,
        limit: i64,
    ) -> Result<Vec<(Repository, bool)>, Error> {
        let text = format!(
            "select name, not exists (select 1 from links where repository = {})
             from repositories where name > $1 order by name limit $2",
            self.in_default("repositories.name")
        );
        let rows: Vec<(String, bool)> = query!(self.read(), c => sqlx::query_as(AssertSqlSafe(text))
            .bind(after).bind(limit).fetch_all(c).await)?;
        rows.into_iter().map(|(name, is_empty)| Ok((parse_stored("repository", &name)?, is_empty))).collect()
    }
}

impl Tx {
    /// Those of these manifests that are still unnamed since before `cutoff`, have no subject in the
    /// repository and no lease. Manifests that a tag or an index names now stop being candidates. The
    /// repositories are locked.
    pub(crate) async fn manifests_recheck(
        &mut self,
        candidates: &[UnreferencedContent],
        cutoff: i64,
    ) -> Result<Vec<UnreferencedContent>, Error> {
        if candidates.is_empty() {
            return Ok(Vec::new());
        }
        let text = format!(
            "select m.repository, m.digest, m.unreferenced_at,
                 exists (select 1 from tags t where t.repository = m.repository and t.digest = m.digest)
                 or exists (select 1 from manifest_blobs n
                     where n.repository = m.repository and n.digest = m.digest and n.kind = 'child') as is_named,
                 exists (select 1 from referrers r
                     join manifests s on s.repository = r.repository and s.digest = r.subject
                     where r.repository = m.repository and r.digest = m.digest)
                 or exists (select 1 from links l
                     where l.repository = m.repository and l.digest = m.digest and l.leased_until > $2) as is_kept
             from manifests m where m.unreferenced_at <= $1 and (m.repository, m.digest) in (values {})",
            placeholders(candidates.len(), "(?, ?)", 3)
        );
        let rows: Vec<RecheckedColumns> = query!(self.conn(), c => {
            let mut query = sqlx::query_as(AssertSqlSafe(text)).bind(cutoff).bind(now_ms());
            for UnreferencedContent { repository, digest, .. } in candidates {
                query = query.bind(repository.as_str()).bind(digest.as_str());
            }
            query.fetch_all(c).await
        })?;
        let (mut named, mut free) = (Vec::new(), Vec::new());
        for row in rows {
            let candidate = row.manifest.decode()?;
            match (row.is_named, row.is_kept) {
                (true, _) => named.push(candidate),
                (false, false) => free.push(candidate),
                (false, true) => {}
            }
        }
        if !named.is_empty() {
            let text = format!(
                "update manifests set unreferenced_at = null where (repository, digest) in (values {})",
                placeholders(named.len(), "(?, ?)", 1)
            );
            query!(self.conn(), c => {
                let mut query = sqlx::query(AssertSqlSafe(text));
                for UnreferencedContent { repository, digest, .. } in &named {
                    query = query.bind(repository.as_str()).bind(digest.as_str());
                }
                query.execute(c).await.map(drop)
            })?;
        }
        Ok(free)
    }

    /// Removes those of these links that are still past their grace period and lease, and returns how many.
    /// Links that a manifest names now stop being candidates. The rows of the blobs, and then the
    /// repositories, are locked.
    pub(crate) async fn links_collect(
        &mut self,
        candidates: &[UnreferencedContent],
        cutoff: i64,
    ) -> Result<u64, Error> {
        if candidates.is_empty() {
            return Ok(0);
        }
        const NAMED: &str = "(exists (select 1 from manifest_blobs n
                 where n.repository = links.repository and n.digest = links.digest)
             or exists (select 1 from manifests m
                 where m.repository = links.repository and m.digest = links.digest))";
        // 1. Unmark links that a manifest of the repository names.
        self.execute_of(candidates, |pairs| {
            format!(
                "update links set unreferenced_at = null where (repository, digest) in (values {pairs}) and {NAMED}"
            )
        })
        .await?;
        // 2. Delete the others.
        let text = format!(
            "delete from links where unreferenced_at <= $1 and leased_until <= $2
                 and (repository, digest) in (values {}) and not {NAMED}
             returning repository, digest, unreferenced_at",
            placeholders(candidates.len(), "(?, ?)", 3)
        );
        let gone: Vec<UnreferencedColumns> = query!(self.conn(), c => {
            let mut query = sqlx::query_as(AssertSqlSafe(text)).bind(cutoff).bind(now_ms());
            for UnreferencedContent { repository, digest, .. } in candidates {
                query = query.bind(repository.as_str()).bind(digest.as_str());
            }
            query.fetch_all(c).await
        })?;
        self.quotas_recount(gone.iter().map(|link| &link.repository[..])).await?;
        // 3. The repository released its blob when its last manifest did, so that the blob does not wait for
        //    a second grace period.
        let mut released: BTreeMap<Digest, i64> = BTreeMap::new();
        let count = gone.len() as u64;
        for link in gone {
            let UnreferencedContent { digest, unreferenced_at: at, .. } = link.decode()?;
            let since = released.entry(digest).or_insert(at);
            *since = at.max(*since);
        }
        self.blobs_record_unlink(&released).await?;
        Ok(count)
    }

    /// Records when a repository last unlinked each of these blobs. After the last unlink, the grace period
    /// counts from the latest such time.
    async fn blobs_record_unlink(&mut self, released: &BTreeMap<Digest, i64>) -> Result<(), Error> {
        if released.is_empty() {
            return Ok(());
        }
        let text = format!(
            "with released (digest, at) as (values {})
             update blobs set released_at = released.at from released
             where blobs.digest = released.digest and blobs.released_at < released.at",
            placeholders(released.len(), "(?, cast(? as bigint))", 1)
        );
        query!(self.conn(), c => {
            let mut query = sqlx::query(AssertSqlSafe(text));
            for (digest, at) in released {
                query = query.bind(digest.as_str()).bind(*at);
            }
            query.execute(c).await.map(drop)
        })?;
        query!(self.conn(), c => sqlx::query(
            "update blobs set unlinked_at = released_at where digest in (select value from json_each($1))
                 and not exists (select 1 from links l where l.digest = blobs.digest)")
            .bind(digest_list(released.keys())).execute(c).await.map(drop))?;
        Ok(())
    }

    /// Turns unlinked blobs among these into tombstones, except those that a push has locked or linked
    /// meanwhile.
    pub(crate) async fn blobs_tombstone(
        &mut self,
        blobs: &[BlobLocation],
        cutoff: i64,
        why: &RemovalCause,
    ) -> Result<Vec<BlobLocation>, Error> {
        // 1. Lock the rows. A link made earlier has cleared `unlinked_at`; one made later waits for this
        //    transaction.
        let locked = self.blobs_lock_free(blobs.iter().map(|blob| &blob.digest)).await?;
        // 2. With the rows locked, check again: the statement that set `unlinked_at` may have seen an older
        //    state of the links.
        query!(self.conn(), c => sqlx::query(
            "update blobs set unlinked_at = null where digest in (select value from json_each($1))
               and exists (select 1 from links l where l.digest = blobs.digest)")
            .bind(&locked[..]).execute(c).await.map(drop))?;
        let condemned: Vec<BlobLocationColumns> = query!(self.conn(), c => sqlx::query_as(
            "update blobs set state = 'deleting' where digest in (select value from json_each($1))
               and state = 'live' and unlinked_at <= $2
               and not exists (select 1 from links l where l.digest = blobs.digest)
               and not exists (select 1 from removal_blobs k where k.digest = blobs.digest and k.undo_until > $3)
             returning digest, size_bytes, store_key")
            .bind(&locked[..]).bind(cutoff).bind(now_ms()).fetch_all(c).await)?;
        // 3. From here on the bytes may be deleted at any time.
        let condemned: Vec<BlobLocation> =
            condemned.into_iter().map(BlobLocation::try_from).collect::<Result<_, _>>()?;
        self.tombstones_put(&condemned, why.reason.as_str()).await?;
        let records: Vec<RemovalRow> = condemned
            .iter()
            .map(|blob| RemovalRow::of_blob(None, &blob.digest, blob.size_bytes, why))
            .collect();
        self.removals_put(&records).await?;
        Ok(condemned)
    }

    /// Adds tombstones for blobs, whose rows are locked and still have the location of the bytes.
    pub(super) async fn tombstones_put(&mut self, blobs: &[BlobLocation], reason: &str) -> Result<(), Error> {
        query!(self.conn(), c => sqlx::query(
            "insert into tombstones (store_key, digest, size_bytes, reason, created_at)
             select store_key, digest, size_bytes, $2, cast($3 as bigint) from blobs
             where digest in (select value from json_each($1))
             on conflict (store_key) do nothing")
            .bind(digest_list(blobs.iter().map(|blob| &blob.digest))).bind(reason).bind(now_ms())
            .execute(c).await.map(drop))?;
        Ok(())
    }

    /// Deletes the tombstones of deleted bytes, and their blobs except those that were pushed again under
    /// another key.
    pub(crate) async fn tombstones_delete(&mut self, blobs: &[BlobLocation]) -> Result<(), Error> {
        if blobs.is_empty() {
            return Ok(());
        }
        let text = format!(
            "delete from blobs where state = 'deleting' and (digest, store_key) in (values {})",
            placeholders(blobs.len(), "(?, ?)", 1)
        );
        query!(self.conn(), c => {
            let mut query = sqlx::query(AssertSqlSafe(text));
            for blob in blobs {
                query = query.bind(blob.digest.as_str()).bind(&blob.store_key[..]);
            }
            query.execute(c).await.map(drop)
        })?;
        let keys: Vec<&str> = blobs.iter().map(|blob| &blob.store_key[..]).collect();
        query!(self.conn(), c => sqlx::query("delete from tombstones where store_key in (select value from json_each($1))")
            .bind(serde_json::Value::from(keys).to_string()).execute(c).await.map(drop))?;
        Ok(())
    }

    /// Deletes the empty ones of these repositories, except those in which a link is being created.
    pub(crate) async fn repositories_collect(&mut self, repositories: &[Repository]) -> Result<(), Error> {
        let names: Vec<&str> = repositories.iter().map(Repository::as_str).collect();
        let mut list = serde_json::Value::from(names).to_string();
        if self.locks_rows() {
            // In a separate statement, so that the next one sees every link that was created before the lock.
            let locked: Vec<(String,)> = query!(self.conn(), c => sqlx::query_as(
                "select name from repositories where name in (select value from json_each($1))
                 order by name for update skip locked")
                .bind(list).fetch_all(c).await)?;
            list = serde_json::Value::from_iter(locked.into_iter().map(|(name,)| name)).to_string();
        }
        let text = format!(
            "delete from repositories where name in (select value from json_each($1))
                 and not exists (select 1 from links where repository = {})",
            self.0.in_default("repositories.name")
        );
        query!(self.conn(), c => sqlx::query(AssertSqlSafe(text))
            .bind(list).execute(c).await.map(drop))?;
        Ok(())
    }
}

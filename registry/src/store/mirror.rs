//! Leases for fetches from an upstream, so that one replica fetches each reference, and the time at which a
//! tag was last compared with the upstream, both by the database's clock. A lease only avoids duplicate work: two
//! holders after a clock jump would store the same content twice, which is harmless.

use std::time::Duration;

use lode_model::digest::Digest;
use lode_model::reference::Repository;

use sqlx::AssertSqlSafe;

use super::{Store, bigint, parse_stored, query};
use crate::Error;
use crate::time::millis;

/// How many old checks one statement deletes.
const OLD_ROWS: u64 = if cfg!(test) { 2 } else { 1000 };

impl Store {
    /// Whether a tag was compared with the upstream less than `within` ago.
    pub(crate) async fn mirror_is_fresh(
        &self,
        repository: &Repository,
        tag: &str,
        within: Duration,
    ) -> Result<bool, Error> {
        let text = AssertSqlSafe(format!(
            "select exists (select 1 from mirror_checks
                 where repository = $1 and reference = $2 and checked_at > {} - cast($3 as bigint))",
            self.clock()
        ));
        let (is_fresh,): (bool,) = query!(self.read(), c => sqlx::query_as(text)
            .bind(repository.as_str()).bind(tag).bind(millis(within)).fetch_one(c).await)?;
        Ok(is_fresh)
    }

    /// Takes or extends the lease on fetching a tag or digest, for the duration `lease` from now. Returns false
    /// while another holder has it.
    pub(crate) async fn mirror_lease(
        &self,
        repository: &Repository,
        reference: &str,
        holder: &str,
        lease: Duration,
    ) -> Result<bool, Error> {
        let now = self.clock();
        let text = AssertSqlSafe(format!(
            "insert into mirror_checks (repository, reference, checked_at, holder, held_until)
             values ($1, $2, 0, $3, {now} + cast($4 as bigint))
             on conflict (repository, reference) do update
             set holder = excluded.holder, held_until = excluded.held_until
             where mirror_checks.held_until <= {now} or mirror_checks.holder = excluded.holder"
        ));
        let rows = query!(self.write(), c => sqlx::query(text)
            .bind(repository.as_str()).bind(reference).bind(holder).bind(millis(lease))
            .execute(c).await.map(|r| r.rows_affected()))?;
        Ok(rows > 0)
    }

    /// Ends a fetch. `checked_at` is when the fetch of the tag began, by the database's clock. Without it the row
    /// is deleted, or keeps its earlier time.
    pub(crate) async fn mirror_release(
        &self,
        repository: &Repository,
        reference: &str,
        holder: &str,
        checked_at: Option<i64>,
    ) -> Result<(), Error> {
        query!(self.write(), c => sqlx::query(
            "update mirror_checks set holder = null, held_until = 0, checked_at = coalesce(cast($4 as bigint), checked_at)
             where repository = $1 and reference = $2 and holder = $3")
            .bind(repository.as_str()).bind(reference).bind(holder).bind(checked_at)
            .execute(c).await.map(drop))?;
        query!(self.write(), c => sqlx::query(
            "delete from mirror_checks where repository = $1 and reference = $2 and checked_at = 0 and held_until = 0")
            .bind(repository.as_str()).bind(reference).execute(c).await.map(drop))?;
        Ok(())
    }

    /// Deletes the times of comparisons that are longer than `age` ago, in batches. Returns how many.
    pub(crate) async fn mirror_checks_expire(&self, age: Duration) -> Result<u64, Error> {
        let now = self.database_now_ms().await?;
        let mut deleted = 0;
        loop {
            let rows = query!(self.write(), c => sqlx::query(
                "delete from mirror_checks where held_until <= $2 and (repository, reference) in
                     (select repository, reference from mirror_checks where checked_at < $1 and held_until <= $2
                      order by checked_at limit $3)")
                .bind(now.saturating_sub(millis(age))).bind(now).bind(bigint(OLD_ROWS))
                .execute(c).await.map(|r| r.rows_affected()))?;
            deleted += rows;
            if rows < OLD_ROWS {
                return Ok(deleted);
            }
        }
    }

    /// The manifests of a repository that name a blob.
    pub(crate) async fn manifests_with_blob(
        &self,
        repository: &Repository,
        blob: &Digest,
    ) -> Result<Vec<Digest>, Error> {
        let rows: Vec<(String,)> = query!(self.read(), c => sqlx::query_as(
            "select manifest from manifest_blobs where repository = $1 and digest = $2 and kind = 'blob'")
            .bind(repository.as_str()).bind(blob.as_str()).fetch_all(c).await)?;
        rows.iter().map(|(digest,)| parse_stored("digest", digest)).collect()
    }

    /// The first blobs of a manifest that its repository does not have.
    pub(crate) async fn blobs_missing(
        &self,
        repository: &Repository,
        manifest: &Digest,
        limit: usize,
    ) -> Result<Vec<Digest>, Error> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let rows: Vec<(String,)> = query!(self.read(), c => sqlx::query_as(
            "select b.digest from manifest_blobs b
             where b.repository = $1 and b.manifest = $2 and b.kind = 'blob'
                 and not exists (select 1 from links l where l.repository = $1 and l.digest = b.digest)
             order by b.digest limit $3")
            .bind(repository.as_str()).bind(manifest.as_str()).bind(limit).fetch_all(c).await)?;
        rows.iter().map(|(digest,)| parse_stored("digest", digest)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    async fn check(store: &Store, tag: &str, checked_at: Option<i64>) {
        let repository: Repository = "team/a".parse().unwrap();
        assert!(store.mirror_lease(&repository, tag, "a", MINUTE).await.unwrap());
        store.mirror_release(&repository, tag, "a", checked_at).await.unwrap();
    }

    #[tokio::test]
    async fn old_checks_are_deleted_in_batches() {
        crate::store::each_store(async |store: Store| {
            let now = store.database_now_ms().await.unwrap();
            for (at, tag) in ["v1", "v2", "v3", "v4", "v5"].into_iter().enumerate() {
                check(&store, tag, Some(now - 100_000 * at as i64)).await;
            }
            // A fetch in progress keeps its row.
            let repository: Repository = "team/a".parse().unwrap();
            assert!(store.mirror_lease(&repository, "v5", "b", MINUTE).await.unwrap());
            assert_eq!(store.mirror_checks_expire(2 * MINUTE).await.unwrap(), 2);
            let is_fresh = async |tag| store.mirror_is_fresh(&repository, tag, 60 * MINUTE).await.unwrap();
            assert!(is_fresh("v1").await && is_fresh("v2").await && is_fresh("v5").await);
            assert!(!is_fresh("v3").await && !is_fresh("v4").await);
            store.mirror_release(&repository, "v5", "b", None).await.unwrap();
            assert_eq!(store.mirror_checks_expire(2 * MINUTE).await.unwrap(), 1);
        })
        .await;
    }

    #[tokio::test]
    async fn leases_end_by_the_clock_of_the_database() {
        let Some(url) = crate::store::postgres_ahead_for_test().await else { return };
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(Some(&url), folder.path()).await.unwrap();
        let repository: Repository = "team/a".parse().unwrap();
        let lease =
            async |holder, duration| store.mirror_lease(&repository, "v1", holder, duration).await.unwrap();
        assert!(lease("a", MINUTE).await);
        let (until,): (i64,) =
            query!(store.read(), c => sqlx::query_as("select held_until from mirror_checks")
            .fetch_one(c).await)
            .unwrap();
        let left = until - store.database_now_ms().await.unwrap();
        assert!((50_000..=60_000).contains(&left), "{left}");
        assert!(!lease("b", MINUTE).await);
        assert!(lease("a", Duration::ZERO).await);
        assert!(lease("b", MINUTE).await);
    }
}

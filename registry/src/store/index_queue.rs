//! The queue of manifests to index as models. A replica claims one by moving its due time ahead, by the
//! database's clock, so that another replica takes over after a crash.

use std::time::Duration;

use lode_model::digest::Digest;
use lode_model::reference::Repository;

use super::{Engine, Store, Tx, parse_stored, query};
use crate::time::{millis, now_ms};
use crate::{Error, metrics};

/// A manifest that a replica has claimed.
#[derive(Clone, Debug)]
pub(crate) struct IndexClaim {
    pub(crate) digest: Digest,
    /// A repository that has the manifest. `None`: it was deleted.
    pub(crate) repository: Option<Repository>,
    /// Attempts, including the claimed one. A later claim, or another push, changes the number.
    pub(crate) attempts: i64,
}

#[derive(sqlx_macros::FromRow)]
struct ClaimColumns {
    digest: String,
    /// The repository of the last push.
    repository: String,
    attempts: i64,
}

/// Queues a manifest unless it was indexed without a problem: the push may have brought what was missing.
const ENQUEUE: &str = "insert into index_queue (digest, repository, queued_at, next_at)
     select $1, $2, cast($3 as bigint), 0
     where not exists (select 1 from models where digest = $1 and problem is null)
     on conflict (digest) do update set repository = excluded.repository, queued_at = excluded.queued_at,
         next_at = excluded.next_at, attempts = 0, problem = null";

const CLAIM: &str = "update index_queue set next_at = $2, attempts = attempts + 1 where digest in
     (select digest from index_queue where next_at <= $1 order by next_at, queued_at limit 1)
     returning digest, repository, attempts";
const CLAIM_UNLOCKED: &str = "update index_queue set next_at = $2, attempts = attempts + 1 where digest in
     (select digest from index_queue where next_at <= $1 order by next_at, queued_at limit 1 for update skip locked)
     returning digest, repository, attempts";

impl Store {
    /// Queues a manifest that is already stored.
    pub(crate) async fn index_enqueue(&self, repository: &Repository, digest: &Digest) -> Result<(), Error> {
        query!(self.write(), c => sqlx::query(ENQUEUE)
            .bind(digest.as_str()).bind(repository.as_str()).bind(now_ms()).execute(c).await.map(drop))?;
        Ok(())
    }

    /// Claims the next due manifest for the duration `lease`.
    pub(crate) async fn index_claim(&self, lease: Duration) -> Result<Option<IndexClaim>, Error> {
        let now = self.database_now_ms().await?;
        let until = now.saturating_add(millis(lease));
        let row: Option<ClaimColumns> = metrics::database("index_claim", async {
            match (self.write(), self.read()) {
                (Engine::Sqlite(write), Engine::Sqlite(read)) => {
                    // A write blocks other writers, and mostly nothing is due.
                    let due: Option<(i64,)> =
                        sqlx::query_as("select 1 from index_queue where next_at <= $1 limit 1")
                            .bind(now)
                            .fetch_optional(read)
                            .await?;
                    match due {
                        Some(_) => sqlx::query_as(CLAIM).bind(now).bind(until).fetch_optional(write).await,
                        None => Ok(None),
                    }
                }
                (Engine::Postgres(c), _) => {
                    let claim = sqlx::query_as(CLAIM_UNLOCKED).bind(now).bind(until).fetch_optional(c);
                    super::postgres::with_timeout(claim).await
                }
                _ => Ok(None),
            }
        })
        .await?;
        let Some(row) = row else { return Ok(None) };
        // The repository that received the last push may have deleted it; any other one serves as well.
        let holder: Option<(String,)> = query!(self.read(), c => sqlx::query_as(
            "select repository from manifests where digest = $1 order by repository <> $2, repository limit 1")
            .bind(&row.digest).bind(&row.repository).fetch_optional(c).await)?;
        Ok(Some(IndexClaim {
            digest: parse_stored("digest", &row.digest)?,
            repository: holder.map(|(name,)| parse_stored("repository", &name)).transpose()?,
            attempts: row.attempts,
        }))
    }

    /// Extends a claim to `lease` from now.
    pub(crate) async fn index_renew(&self, claim: &IndexClaim, lease: Duration) -> Result<(), Error> {
        self.index_postpone(claim, Some(lease), None).await
    }

    /// Ends a claim whose attempt failed. The next attempt is due after `delay`; `None` means no further
    /// attempt.
    pub(crate) async fn index_retry(
        &self,
        claim: &IndexClaim,
        delay: Option<Duration>,
        problem: &str,
    ) -> Result<(), Error> {
        self.index_postpone(claim, delay, Some(problem)).await
    }

    async fn index_postpone(
        &self,
        claim: &IndexClaim,
        delay: Option<Duration>,
        problem: Option<&str>,
    ) -> Result<(), Error> {
        let now = self.database_now_ms().await?;
        let next_at = delay.map(|delay| now.saturating_add(millis(delay)));
        query!(self.write(), c => sqlx::query(
            "update index_queue set next_at = $3, problem = coalesce($4, problem) where digest = $1 and attempts = $2")
            .bind(claim.digest.as_str()).bind(claim.attempts).bind(next_at).bind(problem)
            .execute(c).await.map(drop))?;
        Ok(())
    }

    /// Removes a manifest from the queue, unless it was pushed again meanwhile.
    pub(crate) async fn index_finish(&self, claim: &IndexClaim) -> Result<(), Error> {
        query!(self.write(), c => sqlx::query("delete from index_queue where digest = $1 and attempts = $2")
            .bind(claim.digest.as_str()).bind(claim.attempts).execute(c).await.map(drop))?;
        Ok(())
    }

    /// Makes all pending attempts due now. Only on SQLite, where no other process can have claimed them.
    pub(crate) async fn index_recover(&self) -> Result<(), Error> {
        let Engine::Sqlite(write) = self.write() else { return Ok(()) };
        metrics::database("index_recover", async {
            sqlx::query("update index_queue set next_at = 0 where next_at > 0").execute(write).await.map(drop)
        })
        .await?;
        Ok(())
    }
}

impl Tx {
    /// Queues a manifest in the transaction that stores it.
    pub(super) async fn index_enqueue(
        &mut self,
        repository: &Repository,
        digest: &Digest,
    ) -> Result<(), Error> {
        query!(self.conn(), c => sqlx::query(ENQUEUE)
            .bind(digest.as_str()).bind(repository.as_str()).bind(now_ms()).execute(c).await.map(drop))?;
        Ok(())
    }
}

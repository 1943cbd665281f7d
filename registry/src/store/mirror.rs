//! Leases for fetches from an upstream, so that one replica fetches each reference, and the time at which a
//! tag was last compared with the upstream. A lease only avoids duplicate work: two holders after a clock
//! jump would store the same content twice, which is harmless.

use lode_model::digest::Digest;
use lode_model::reference::Repository;

use super::{Store, parse_stored, query};
use crate::Error;
use crate::time::now_ms;

impl Store {
    /// When a tag was last compared with the upstream.
    pub(crate) async fn mirror_checked_at(&self, repository: &Repository, tag: &str) -> Result<i64, Error> {
        let row: Option<(i64,)> = query!(self.read(), c => sqlx::query_as(
            "select checked_at from mirror_checks where repository = $1 and reference = $2")
            .bind(repository.as_str()).bind(tag).fetch_optional(c).await)?;
        Ok(row.map_or(0, |(at,)| at))
    }

    /// Takes or extends the lease on fetching a tag or digest until `until`. Returns false while another
    /// holder has it.
    pub(crate) async fn mirror_lease(
        &self,
        repository: &Repository,
        reference: &str,
        holder: &str,
        until: i64,
    ) -> Result<bool, Error> {
        let rows = query!(self.write(), c => sqlx::query(
            "insert into mirror_checks (repository, reference, checked_at, holder, held_until)
             values ($1, $2, 0, $3, $4)
             on conflict (repository, reference) do update
             set holder = excluded.holder, held_until = excluded.held_until
             where mirror_checks.held_until <= $5 or mirror_checks.holder = excluded.holder")
            .bind(repository.as_str()).bind(reference).bind(holder).bind(until).bind(now_ms())
            .execute(c).await.map(|r| r.rows_affected()))?;
        Ok(rows > 0)
    }

    /// Ends a fetch. `checked_at` is the time at which the upstream returned the tag's target. Without it the
    /// row is deleted, or keeps its earlier time.
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

    /// Manifests of a repository that name a blob and whose blobs are all linked.
    pub(crate) async fn manifests_completed_by(
        &self,
        repository: &Repository,
        blob: &Digest,
    ) -> Result<Vec<Digest>, Error> {
        let rows: Vec<(String,)> = query!(self.read(), c => sqlx::query_as(
            "select n.manifest from manifest_blobs n
             where n.repository = $1 and n.digest = $2 and n.kind = 'blob' and not exists
                 (select 1 from manifest_blobs o where o.repository = $1 and o.manifest = n.manifest and o.kind = 'blob'
                     and not exists (select 1 from links l where l.repository = $1 and l.digest = o.digest))")
            .bind(repository.as_str()).bind(blob.as_str()).fetch_all(c).await)?;
        rows.iter().map(|(digest,)| parse_stored("digest", digest)).collect()
    }
}

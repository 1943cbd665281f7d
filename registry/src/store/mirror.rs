//! Who fetches what from an upstream, so that of all replicas one does, and when a tag was last compared with it.
//! A lease is only about work: two holders by a clock that jumped would store the same content twice, which is harmless.

use lode_model::digest::Digest;
use lode_model::reference::Repository;

use super::{Store, now_ms, on, parsed};
use crate::Error;

impl Store {
    /// When the upstream was last asked about a tag.
    pub(crate) async fn mirror_checked_at(&self, repository: &Repository, tag: &str) -> Result<i64, Error> {
        let row: Option<(i64,)> = on!(self.read(), c => sqlx::query_as(
            "select checked_at from mirror_checks where repository = $1 and reference = $2")
            .bind(repository.as_str()).bind(tag).fetch_optional(c).await)?;
        Ok(row.map_or(0, |(at,)| at))
    }

    /// Takes, or keeps, the fetch of a tag or digest until `until`. False while someone else has it.
    pub(crate) async fn mirror_lease(
        &self,
        repository: &Repository,
        reference: &str,
        holder: &str,
        until: i64,
    ) -> Result<bool, Error> {
        let rows = on!(self.write(), c => sqlx::query(
            "insert into mirror_checks (repository, reference, checked_at, holder, held_until)
             values ($1, $2, 0, $3, $4)
             on conflict (repository, reference) do update
             set holder = excluded.holder, held_until = excluded.held_until
             where mirror_checks.held_until <= $5 or mirror_checks.holder = excluded.holder")
            .bind(repository.as_str()).bind(reference).bind(holder).bind(until).bind(now_ms())
            .execute(c).await.map(|r| r.rows_affected()))?;
        Ok(rows > 0)
    }

    /// Ends a fetch. `checked_at` says when the upstream told where a tag points; without one the row goes, or stays as it was.
    pub(crate) async fn mirror_release(
        &self,
        repository: &Repository,
        reference: &str,
        holder: &str,
        checked_at: Option<i64>,
    ) -> Result<(), Error> {
        on!(self.write(), c => sqlx::query(
            "update mirror_checks set holder = null, held_until = 0, checked_at = coalesce(cast($4 as bigint), checked_at)
             where repository = $1 and reference = $2 and holder = $3")
            .bind(repository.as_str()).bind(reference).bind(holder).bind(checked_at)
            .execute(c).await.map(drop))?;
        on!(self.write(), c => sqlx::query(
            "delete from mirror_checks where repository = $1 and reference = $2 and checked_at = 0 and held_until = 0")
            .bind(repository.as_str()).bind(reference).execute(c).await.map(drop))?;
        Ok(())
    }

    /// Manifests of a repository that name a blob and miss no other: complete with it.
    pub(crate) async fn manifests_complete(
        &self,
        repository: &Repository,
        blob: &Digest,
    ) -> Result<Vec<Digest>, Error> {
        let rows: Vec<(String,)> = on!(self.read(), c => sqlx::query_as(
            "select n.manifest from manifest_blobs n
             where n.repository = $1 and n.digest = $2 and n.kind = 'blob' and not exists
                 (select 1 from manifest_blobs o where o.repository = $1 and o.manifest = n.manifest and o.kind = 'blob'
                     and not exists (select 1 from links l where l.repository = $1 and l.digest = o.digest))")
            .bind(repository.as_str()).bind(blob.as_str()).fetch_all(c).await)?;
        rows.iter().map(|(digest,)| parsed("digest", digest)).collect()
    }
}

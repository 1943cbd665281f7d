//! The bytes that manifests share, and the models that name others as their origins.

use lode_model::digest::Digest;
use lode_model::reference::{Repository, Tag};
use sqlx::AssertSqlSafe;

use super::{Engine, ListFilter, Store, parse_stored, query, size};
use crate::Error;

/// The size of a manifest's content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SharedBytes {
    pub(crate) size_bytes: u64,
    /// The part that other manifests name, too.
    pub(crate) shared_bytes: u64,
}

/// A tag whose model names another one as its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DerivedModel {
    pub(crate) repository: Repository,
    pub(crate) tag: Tag,
    pub(crate) quantization: Option<String>,
    pub(crate) parameters: Option<u64>,
}

impl Store {
    /// The size of a manifest's content, and of the part that other manifests of these repositories name.
    pub(crate) async fn shared_bytes(
        &self,
        repository: &Repository,
        digest: &Digest,
        filter: &ListFilter,
    ) -> Result<SharedBytes, Error> {
        let text = AssertSqlSafe(format!(
            "select cast(coalesce(sum(b.size_bytes), 0) as bigint),
                    cast(coalesce(sum(case when exists
                        (select 1 from links l
                         join manifest_blobs theirs on theirs.repository = l.repository and theirs.digest = l.digest
                         where l.digest = ours.digest and theirs.manifest <> $2 and {})
                        then b.size_bytes else 0 end), 0) as bigint)
             from manifest_blobs ours join blobs b on b.digest = ours.digest
             where ours.repository = $1 and ours.manifest = $2 and ours.kind = 'blob'",
            self.is_listed("theirs.repository", 3)
        ));
        let (all, visibility, subjects, targets) = filter.parameters();
        let (total, shared): (i64, i64) = query!(self.read(), c => sqlx::query_as(text)
            .bind(repository.as_str()).bind(digest.as_str())
            .bind(all).bind(visibility).bind(subjects).bind(targets).fetch_one(c).await)?;
        Ok(SharedBytes { size_bytes: size(total)?, shared_bytes: size(shared)? })
    }

    /// Tags of these repositories whose models name `repository` as their origin, in name order.
    pub(crate) async fn derived_models(
        &self,
        repository: &Repository,
        filter: &ListFilter,
        limit: u32,
    ) -> Result<Vec<DerivedModel>, Error> {
        let contains = match self.read() {
            Engine::Sqlite(_) => "instr",
            Engine::Postgres(_) => "strpos",
        };
        let text = AssertSqlSafe(format!(
            "select t.repository, t.name, m.quantization, m.parameters
             from models m join manifests x on x.digest = m.digest
             join tags t on t.repository = x.repository and t.digest = x.digest
             where m.bases is not null and ({contains}(m.bases, cast($1 as text)) > 0 or {contains}(m.bases, cast($2 as text)) > 0)
                   and t.repository <> $3 and {}
             order by t.repository, t.name limit cast($4 as bigint)",
            self.is_listed("t.repository", 5)
        ));
        let (all, visibility, subjects, targets) = filter.parameters();
        let rows: Vec<(String, String, Option<String>, Option<i64>)> = query!(self.read(), c => sqlx::query_as(text)
            .bind(format!("\n{repository}\n")).bind(format!("\n{repository}:"))
            .bind(repository.as_str()).bind(i64::from(limit))
            .bind(all).bind(visibility).bind(subjects).bind(targets).fetch_all(c).await)?;
        rows.into_iter()
            .map(|(repository, tag, quantization, parameters)| {
                Ok(DerivedModel {
                    repository: parse_stored("repository", &repository)?,
                    tag: parse_stored("tag", &tag)?,
                    quantization,
                    parameters: parameters.map(size).transpose()?,
                })
            })
            .collect()
    }
}

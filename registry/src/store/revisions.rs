//! Queries for Hugging Face's clients: manifests by the beginning of their digest, tags with their manifests, and
//! repositories with a model.

use lode_model::digest::Digest;
use lode_model::reference::{Repository, Tag};
use serde_json::Value;
use sqlx::AssertSqlSafe;

use super::models::ModelColumns;
use super::{ListFilter, ModelRow, Store, Tx, bigint, on, parse_stored};
use crate::Error;

/// A repository with a model, and the manifest that stands for it.
#[derive(Clone, Debug)]
pub(crate) struct ModelFactsRow {
    pub(crate) repository: Repository,
    pub(crate) digest: Digest,
    pub(crate) created_at: i64,
    pub(crate) modified_at: i64,
    pub(crate) model: ModelRow,
}

/// The order of a listing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ModelSort {
    #[default]
    Name,
    /// The last change first.
    Modified,
    Created,
}

/// Which repositories a listing has. The conditions apply together.
#[derive(Clone, Debug, Default)]
pub(crate) struct ModelQuery {
    /// Each is a part of the name, in lower case.
    pub(crate) search: Vec<String>,
    /// The first part of the name.
    pub(crate) author: Option<String>,
    /// Each is the format, the architecture or the quantisation, in lower case.
    pub(crate) tags: Vec<String>,
    pub(crate) min_parameters: Option<u64>,
    pub(crate) max_parameters: Option<u64>,
    pub(crate) sort: ModelSort,
    /// The time by which the list is sorted, and the name, of the last entry of the previous page.
    pub(crate) after: Option<(i64, String)>,
    pub(crate) limit: Option<u32>,
}

#[derive(sqlx_macros::FromRow)]
struct ModelFactsColumns {
    name: String,
    digest: String,
    created_at: i64,
    modified_at: i64,
    #[sqlx(flatten)]
    model: ModelColumns,
}

impl Store {
    /// The manifest whose digest begins with these digits, unless several do.
    pub(crate) async fn manifest_of_commit(
        &self,
        repository: &Repository,
        commit: &str,
    ) -> Result<Option<Digest>, Error> {
        // `g` follows every hexadecimal digit.
        let rows: Vec<(String,)> = on!(self.read(), c => sqlx::query_as(
            "select digest from manifests where repository = $1
             and ((digest > 'sha256:' || cast($2 as text) and digest < 'sha256:' || cast($2 as text) || 'g')
                  or (digest > 'sha512:' || cast($2 as text) and digest < 'sha512:' || cast($2 as text) || 'g'))
             limit 2")
            .bind(repository.as_str()).bind(commit).fetch_all(c).await)?;
        match rows.as_slice() {
            [(digest,)] => parse_stored("digest", digest).map(Some),
            _ => Ok(None),
        }
    }

    /// Whether a repository has any manifest.
    pub(crate) async fn repository_has_manifests(&self, repository: &Repository) -> Result<bool, Error> {
        let (exists,): (bool,) = on!(self.read(), c => sqlx::query_as(
            "select exists (select 1 from manifests where repository = $1)")
            .bind(repository.as_str()).fetch_one(c).await)?;
        Ok(exists)
    }

    /// Tags with their manifests, in name order.
    pub(crate) async fn tag_targets(
        &self,
        repository: &Repository,
        limit: i64,
    ) -> Result<Vec<(Tag, Digest)>, Error> {
        let rows: Vec<(String, String)> = on!(self.read(), c => sqlx::query_as(
            "select name, digest from tags where repository = $1 order by name limit $2")
            .bind(repository.as_str()).bind(limit).fetch_all(c).await)?;
        rows.iter()
            .map(|(tag, digest)| Ok((parse_stored("tag", tag)?, parse_stored("digest", digest)?)))
            .collect()
    }

    pub(crate) async fn repository_created_at(&self, repository: &Repository) -> Result<Option<i64>, Error> {
        let row: Option<(i64,)> = on!(self.read(), c => sqlx::query_as(
            "select created_at from repositories where name = $1")
            .bind(repository.as_str()).fetch_optional(c).await)?;
        Ok(row.map(|(created_at,)| created_at))
    }

    /// Repositories with an indexed model. Of several tags, `main` stands for the repository, then `latest`, then the
    /// one that was moved last.
    pub(crate) async fn repositories_with_models(
        &self,
        filter: &ListFilter,
        query: &ModelQuery,
        limit: i64,
    ) -> Result<Vec<ModelFactsRow>, Error> {
        let (key, order) = match query.sort {
            ModelSort::Name => ("cast(0 as bigint)", "l.name"),
            ModelSort::Modified => ("l.modified_at", "l.modified_at desc, l.name"),
            ModelSort::Created => ("l.created_at", "l.created_at desc, l.name"),
        };
        let text = AssertSqlSafe(format!(
            "select l.name, l.digest, l.created_at, l.modified_at, m.format, m.architecture, m.parameters,
                    m.quantization, m.size_bytes, m.tensor_count, m.problem
             from (select r.name, r.created_at,
                          (select max(t.updated_at) from tags t where t.repository = r.name) as modified_at,
                          (select t.digest from tags t join models tm on tm.digest = t.digest
                           where t.repository = r.name and tm.format <> ''
                           order by case t.name when 'main' then 0 when 'latest' then 1 else 2 end,
                                    t.updated_at desc, t.name limit 1) as digest
                   from repositories r
                   where (cast($1 as text) = '' or substr(r.name, 1, length(cast($1 as text)) + 1) = cast($1 as text) || '/')
                     and not exists (select 1 from json_each($2) wanted
                                     where wanted.value <> '' and replace(r.name, wanted.value, '') = r.name)
                     and {}) l
             join models m on m.digest = l.digest
             where not exists (select 1 from json_each($3) wanted
                               where wanted.value not in (lower(m.format), lower(coalesce(m.architecture, '')),
                                                          lower(coalesce(m.quantization, ''))))
               and (cast($4 as bigint) = 0 or m.parameters >= cast($4 as bigint))
               and (cast($5 as bigint) < 0 or m.parameters <= cast($5 as bigint))
               and (cast($6 as text) = '' or {key} < cast($7 as bigint)
                    or ({key} = cast($7 as bigint) and l.name > cast($6 as text)))
             order by {order} limit cast($8 as bigint)",
            self.is_listed("r.name", 9)
        ));
        let list = |texts: &[String]| Value::from(texts.to_vec()).to_string();
        let (all, visibility, subjects, targets) = filter.parameters();
        let (after_key, after_name) = query.after.clone().unwrap_or_default();
        let rows: Vec<ModelFactsColumns> = on!(self.read(), c => sqlx::query_as(text)
            .bind(query.author.as_deref().unwrap_or_default())
            .bind(list(&query.search)).bind(list(&query.tags))
            .bind(query.min_parameters.map_or(0, bigint)).bind(query.max_parameters.map_or(-1, bigint))
            .bind(&after_name).bind(after_key).bind(limit)
            .bind(all).bind(visibility).bind(&subjects).bind(&targets).fetch_all(c).await)?;
        rows.into_iter()
            .map(|row| {
                Ok(ModelFactsRow {
                    repository: parse_stored("repository", &row.name)?,
                    digest: parse_stored("digest", &row.digest)?,
                    created_at: row.created_at,
                    modified_at: row.modified_at,
                    model: row.model.decode()?.unwrap_or_default(),
                })
            })
            .collect()
    }
}

impl Tx {
    /// All tags of a repository.
    pub(crate) async fn tags_all(&mut self, repository: &Repository) -> Result<Vec<Tag>, Error> {
        let rows: Vec<(String,)> = on!(self.conn(), c => sqlx::query_as(
            "select name from tags where repository = $1 order by name")
            .bind(repository.as_str()).fetch_all(c).await)?;
        rows.into_iter().map(|(name,)| parse_stored("tag", &name)).collect()
    }

    /// Manifests of a repository, at most `limit`.
    pub(crate) async fn manifest_digests(
        &mut self,
        repository: &Repository,
        limit: i64,
    ) -> Result<Vec<Digest>, Error> {
        let rows: Vec<(String,)> = on!(self.conn(), c => sqlx::query_as(
            "select digest from manifests where repository = $1 order by digest limit $2")
            .bind(repository.as_str()).bind(limit).fetch_all(c).await)?;
        rows.into_iter().map(|(digest,)| parse_stored("digest", &digest)).collect()
    }
}

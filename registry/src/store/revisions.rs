//! Queries for Hugging Face's clients: manifests by the beginning of their digest, and tags with their
//! manifests.

use std::collections::HashMap;

use lode_model::digest::Digest;
use lode_model::reference::{Repository, Tag};
use serde_json::Value;

use super::models::ModelColumns;
use super::{ModelRow, Store, Tx, parse_stored, query};
use crate::Error;

#[derive(sqlx_macros::FromRow)]
struct TaggedModel {
    repository: String,
    digest: String,
    #[sqlx(flatten)]
    model: ModelColumns,
    facts: Option<String>,
}

impl Store {
    /// The manifest whose digest begins with these digits, unless several do.
    pub(crate) async fn manifest_of_commit(
        &self,
        repository: &Repository,
        commit: &str,
    ) -> Result<Option<Digest>, Error> {
        // `g` follows every hexadecimal digit.
        let rows: Vec<(String,)> = query!(self.read(), c => sqlx::query_as(
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
        let (exists,): (bool,) = query!(self.read(), c => sqlx::query_as(
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
        let rows: Vec<(String, String)> = query!(self.read(), c => sqlx::query_as(
            "select name, digest from tags where repository = $1 order by name limit $2")
            .bind(repository.as_str()).bind(limit).fetch_all(c).await)?;
        rows.iter()
            .map(|(tag, digest)| Ok((parse_stored("tag", tag)?, parse_stored("digest", digest)?)))
            .collect()
    }

    pub(crate) async fn repository_created_at(&self, repository: &Repository) -> Result<Option<i64>, Error> {
        let row: Option<(i64,)> = query!(self.read(), c => sqlx::query_as(
            "select created_at from repositories where name = $1")
            .bind(repository.as_str()).fetch_optional(c).await)?;
        Ok(row.map(|(created_at,)| created_at))
    }

    /// Of these repositories, the models to which a tag points, with their facts as JSON.
    pub(crate) async fn tagged_models(
        &self,
        repositories: &[&str],
        tag: &str,
    ) -> Result<HashMap<Repository, (Digest, ModelRow, Option<String>)>, Error> {
        let rows: Vec<TaggedModel> = query!(self.read(), c => sqlx::query_as(
            "select t.repository, t.digest, m.format, m.architecture, m.parameters, m.quantization, m.size_bytes,
                    m.tensor_count, m.problem, m.facts
             from tags t join models m on m.digest = t.digest
             where t.repository in (select value from json_each($1)) and t.name = $2 and m.format <> ''")
            .bind(Value::from(repositories.to_vec()).to_string()).bind(tag).fetch_all(c).await)?;
        let decode = |row: TaggedModel| match row.model.decode()? {
            Some(model) => {
                let digest = parse_stored("digest", &row.digest)?;
                Ok(Some((parse_stored("repository", &row.repository)?, (digest, model, row.facts))))
            }
            None => Ok(None),
        };
        rows.into_iter().filter_map(|row| decode(row).transpose()).collect()
    }
}

impl Tx {
    /// All tags of a repository.
    pub(crate) async fn tags_all(&mut self, repository: &Repository) -> Result<Vec<Tag>, Error> {
        let rows: Vec<(String,)> = query!(self.conn(), c => sqlx::query_as(
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
        let rows: Vec<(String,)> = query!(self.conn(), c => sqlx::query_as(
            "select digest from manifests where repository = $1 order by digest limit $2")
            .bind(repository.as_str()).bind(limit).fetch_all(c).await)?;
        rows.into_iter().map(|(digest,)| parse_stored("digest", &digest)).collect()
    }
}

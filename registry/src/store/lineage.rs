//! The bytes that manifests share, and the models that name others as their origins.

use std::collections::{BTreeSet, HashMap};

use lode_model::digest::Digest;
use lode_model::reference::{DEFAULT_TAG, Repository, Tag};
use sqlx::AssertSqlSafe;

use super::{Engine, ListFilter, Store, Tx, digest_list, parse_stored, query, size};
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
    pub(crate) digest: Digest,
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
        let others = self.other_holders();
        let text = AssertSqlSafe(format!(
            "select cast(coalesce(sum(b.size_bytes), 0) as bigint),
                    cast(coalesce(sum(case when exists (select 1 {others}) then b.size_bytes else 0 end), 0) as bigint)
             from manifest_blobs ours join blobs b on b.digest = ours.digest
             where ours.repository = $1 and ours.manifest = $2 and ours.kind = 'blob'"
        ));
        let (all, visibility, subjects, targets) = filter.parameters();
        let (total, shared): (i64, i64) = query!(self.read(), c => sqlx::query_as(text)
            .bind(repository.as_str()).bind(digest.as_str())
            .bind(all).bind(visibility).bind(subjects).bind(targets).fetch_one(c).await)?;
        Ok(SharedBytes { size_bytes: size(total)?, shared_bytes: size(shared)? })
    }

    /// The blobs of a manifest that other manifests of these repositories name, each with the repository of one of them.
    pub(crate) async fn shared_blobs(
        &self,
        repository: &Repository,
        digest: &Digest,
        filter: &ListFilter,
    ) -> Result<HashMap<Digest, Repository>, Error> {
        let others = self.other_holders();
        let text = AssertSqlSafe(format!(
            "select s.digest, s.other
             from (select ours.digest, (select theirs.repository {others} limit 1) as other from manifest_blobs ours
                   where ours.repository = $1 and ours.manifest = $2 and ours.kind = 'blob') s
             where s.other is not null"
        ));
        let (all, visibility, subjects, targets) = filter.parameters();
        let rows: Vec<(String, String)> = query!(self.read(), c => sqlx::query_as(text)
            .bind(repository.as_str()).bind(digest.as_str())
            .bind(all).bind(visibility).bind(subjects).bind(targets).fetch_all(c).await)?;
        rows.into_iter()
            .map(|(digest, other)| {
                Ok((parse_stored("digest", &digest)?, parse_stored("repository", &other)?))
            })
            .collect()
    }

    /// Those manifests other than `$2` that name the blob `ours.digest`, in the repositories of a list filter from `$3` on.
    fn other_holders(&self) -> String {
        let listed = self.is_listed("theirs.repository", 3);
        format!(
            "from links l join manifest_blobs theirs on theirs.repository = l.repository and theirs.digest = l.digest
             where l.digest = ours.digest and theirs.manifest <> $2 and {listed}"
        )
    }

    /// Lists the origins of models that an earlier version has written, at most `limit`. Returns how many.
    pub(crate) async fn bases_list(&self, limit: i64) -> Result<usize, Error> {
        let rows: Vec<(String, String)> = query!(self.read(), c => sqlx::query_as(
            "select digest, bases from models where bases is not null and bases_listed = 0 order by digest limit $1")
            .bind(limit).fetch_all(c).await)?;
        let mut digests = Vec::with_capacity(rows.len());
        for (digest, _) in &rows {
            digests.push(parse_stored::<Digest>("digest", digest)?);
        }
        if digests.is_empty() {
            return Ok(0);
        }
        let mut tx = self.begin().await?;
        // Those that are not deleted or written again meanwhile.
        let marked: Vec<(String,)> = query!(tx.conn(), c => sqlx::query_as(
            "update models set bases_listed = 1
             where digest in (select value from json_each($1)) and bases_listed = 0 returning digest")
            .bind(digest_list(&digests)).fetch_all(c).await)?;
        for (digest, (text, bases)) in digests.iter().zip(&rows) {
            if marked.iter().any(|(marked,)| marked == text) {
                tx.bases_insert(digest, bases).await?;
            }
        }
        tx.commit().await?;
        Ok(rows.len())
    }

    /// Tags of these repositories whose models name `repository` as their origin, in name order. Those of `repository`
    /// itself, if they name a tag of the manifest `digest`, and are other manifests.
    pub(crate) async fn derived_models(
        &self,
        (repository, digest): (&Repository, &Digest),
        filter: &ListFilter,
        limit: u32,
    ) -> Result<Vec<DerivedModel>, Error> {
        let contains = match self.read() {
            Engine::Sqlite(_) => "instr",
            Engine::Postgres(_) => "strpos",
        };
        let text = AssertSqlSafe(format!(
            "select t.repository, t.name as tag, t.digest, m.quantization, m.parameters
             from (select digest from model_bases where base = $3
                   union
                   select digest from models where bases is not null and bases_listed = 0
                       and ({contains}(bases, cast($1 as text)) > 0 or {contains}(bases, cast($2 as text)) > 0)) o
             join models m on m.digest = o.digest join manifests x on x.digest = m.digest
             join tags t on t.repository = x.repository and t.digest = x.digest
             where (t.repository <> $3 or t.digest <> $5 and exists
                    (select 1 from tags own where own.repository = $3 and own.digest = $5
                     and ({contains}(m.bases, cast($2 as text) || lower(own.name) || '\n') > 0
                          or own.name = '{DEFAULT_TAG}' and {contains}(m.bases, cast($1 as text)) > 0)))
                 and {}
             order by t.repository, t.name limit cast($4 as bigint)",
            self.is_listed("t.repository", 6)
        ));
        let (all, visibility, subjects, targets) = filter.parameters();
        let rows: Vec<DerivedColumns> = query!(self.read(), c => sqlx::query_as(text)
            .bind(format!("\n{repository}\n")).bind(format!("\n{repository}:"))
            .bind(repository.as_str()).bind(i64::from(limit)).bind(digest.as_str())
            .bind(all).bind(visibility).bind(subjects).bind(targets).fetch_all(c).await)?;
        rows.into_iter().map(DerivedModel::try_from).collect()
    }
}

#[derive(sqlx_macros::FromRow)]
struct DerivedColumns {
    repository: String,
    tag: String,
    digest: String,
    quantization: Option<String>,
    parameters: Option<i64>,
}

impl TryFrom<DerivedColumns> for DerivedModel {
    type Error = Error;

    fn try_from(row: DerivedColumns) -> Result<DerivedModel, Error> {
        Ok(DerivedModel {
            repository: parse_stored("repository", &row.repository)?,
            tag: parse_stored("tag", &row.tag)?,
            digest: parse_stored("digest", &row.digest)?,
            quantization: row.quantization,
            parameters: row.parameters.map(size).transpose()?,
        })
    }
}

impl Tx {
    /// Lists the origins of a model, each a line of `bases`, without their tags.
    pub(super) async fn bases_insert(&mut self, digest: &Digest, bases: &str) -> Result<(), Error> {
        let names: BTreeSet<&str> = bases.lines().map(without_tag).filter(|name| !name.is_empty()).collect();
        if names.is_empty() {
            return Ok(());
        }
        query!(self.conn(), c => sqlx::query(
            "insert into model_bases (base, digest) select value, $2 from json_each($1) where true
             on conflict (base, digest) do nothing")
            .bind(serde_json::Value::from_iter(names).to_string()).bind(digest.as_str())
            .execute(c).await.map(drop))?;
        Ok(())
    }
}

/// The name of a model without its tag. The colon of a port is not that of a tag.
pub(super) fn without_tag(name: &str) -> &str {
    let path = name.rfind('/').map_or(0, |at| at + 1);
    name[path..].find(':').map_or(name, |at| &name[..path + at])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::ModelRow;
    use crate::store::models::tests::{facts, push};

    #[tokio::test]
    async fn derived_models_are_found_by_the_names_of_their_origins() {
        crate::store::each_store(async |store: Store| {
            let base: Repository = "team/base".parse().unwrap();
            for (name, bases) in [
                ("team/base", None),
                ("team/one", Some("\nother/x\nteam/base\n")),
                ("team/two", Some("\nteam/base:v1\nteam/base:v2\n")),
                ("team/three", Some("\nteam/base-2\nbig-team/base\n")),
                // Other tags of the same repository.
                ("team/base:q4", Some("\nteam/base:v1\n")),
                ("team/base:q8", Some("\nteam/base:v10\nteam/base\n")),
            ] {
                let digest = Digest::sha256(name.as_bytes());
                let (repository, tag) = name.split_once(':').unwrap_or((name, "v1"));
                let repository: Repository = repository.parse().unwrap();
                push(&store, &repository, &digest).await;
                let model = ModelRow { format: "gguf".to_owned(), ..ModelRow::default() };
                store.model_put(&digest, &model, &facts(bases), &[]).await.unwrap();
                let mut tx = store.begin().await.unwrap();
                tx.tag_put(&repository, &tag.parse().unwrap(), &digest, "server", None).await.unwrap();
                tx.commit().await.unwrap();
            }
            let derived_of = async |name: &str| {
                let of = (&base, &Digest::sha256(name.as_bytes()));
                let found = store.derived_models(of, &ListFilter::All, 10).await.unwrap();
                found.iter().map(|model| format!("{}:{}", model.repository, model.tag)).collect::<Vec<_>>()
            };
            let derived = async || derived_of("team/base").await;
            let expect = ["team/base:q4", "team/one:v1", "team/two:v1"].map(str::to_owned).to_vec();
            let listed = async || {
                let (count,): (i64,) =
                    query!(store.read(), c => sqlx::query_as("select count(*) from model_bases")
                    .fetch_one(c).await)
                    .unwrap();
                count
            };
            assert_eq!((derived().await, listed().await), (expect.clone(), 7));
            // No manifest derives from itself, and none from a tag that it does not name.
            assert_eq!(derived_of("team/base:q4").await, expect[1..]);
            // What an earlier version leaves.
            for text in ["delete from model_bases where true", "update models set bases_listed = 0"] {
                query!(store.write(), c => sqlx::query(text).execute(c).await.map(drop)).unwrap();
            }
            assert_eq!(derived().await, expect);
            assert_eq!(store.bases_list(2).await.unwrap(), 2);
            assert_eq!(derived().await, expect);
            assert_eq!(store.bases_list(2).await.unwrap(), 2);
            assert_eq!(store.bases_list(2).await.unwrap(), 1);
            assert_eq!(store.bases_list(2).await.unwrap(), 0);
            assert_eq!((derived().await, listed().await), (expect.clone(), 7));
        })
        .await;
    }
}

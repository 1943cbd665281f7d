//! Manifests as models. Rows are derived from the content, so they are keyed by the manifest's digest and
//! shared by all repositories. The index job writes them, or the first request that needs them.

use lode_model::digest::Digest;
use lode_model::reference::{Reference, Repository, Tag};
use serde::Serialize;
use sqlx::AssertSqlSafe;
use utoipa::ToSchema;

use super::{ListFilter, Store, Tx, bigint, digest_list, parse_stored, query, size};
use crate::Error;
use crate::time::now_ms;

/// How many tensors one statement inserts; four parameters each stay far below the engines' limits.
const INSERT_ROWS: usize = 200;
/// The most tensors that a statement deletes with their models. A model with more is deleted by itself.
pub(super) const DELETE_TENSORS: i64 = if cfg!(test) { 4 } else { 20_000 };
/// The most repositories whose search rows change in the transaction that indexes a manifest. The others follow.
const SEARCH_BATCH: i64 = 32;

/// An indexed manifest. `format` is empty if it is not a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ModelRow {
    pub(crate) format: String,
    pub(crate) architecture: Option<String>,
    pub(crate) parameters: Option<u64>,
    pub(crate) quantization: Option<String>,
    /// The total size of the content that the manifest names, without the manifest itself.
    pub(crate) size_bytes: u64,
    pub(crate) tensor_count: u64,
    pub(crate) problem: Option<String>,
}

/// What a manifest says about itself: all of it as JSON, and the parts that queries use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FactsRow {
    pub(crate) json: String,
    pub(crate) license: Option<String>,
    pub(crate) task: Option<String>,
    pub(crate) context_length: Option<u64>,
    pub(crate) words: String,
    /// The words of the model card, split for the search.
    pub(crate) card_words: String,
    pub(crate) bases: Option<String>,
    /// In lower case, each once.
    pub(crate) tags: Vec<String>,
}

/// The columns of a model, all null where a left join found no row.
#[derive(sqlx_macros::FromRow)]
pub(super) struct ModelColumns {
    format: Option<String>,
    architecture: Option<String>,
    parameters: Option<i64>,
    quantization: Option<String>,
    size_bytes: Option<i64>,
    tensor_count: Option<i64>,
    problem: Option<String>,
}

#[derive(sqlx_macros::FromRow)]
struct KeyedModel {
    digest: String,
    #[sqlx(flatten)]
    model: ModelColumns,
}

impl ModelColumns {
    pub(super) fn decode(self) -> Result<Option<ModelRow>, Error> {
        let (Some(format), Some(size_bytes), Some(tensor_count)) =
            (self.format, self.size_bytes, self.tensor_count)
        else {
            return Ok(None);
        };
        Ok(Some(ModelRow {
            format,
            architecture: self.architecture,
            parameters: self.parameters.map(size).transpose()?,
            quantization: self.quantization,
            size_bytes: size(size_bytes)?,
            tensor_count: size(tensor_count)?,
            problem: self.problem,
        }))
    }
}

/// One tensor of a model: the columns that queries use, and the rest as JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TensorRow {
    pub(crate) name: String,
    pub(crate) blob: Digest,
    pub(crate) detail: String,
}

/// A tag whose model shares blobs with another model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Relative {
    pub repository: Repository,
    pub tag: Tag,
    pub digest: Digest,
    /// The total size of the blobs that both have.
    pub bytes_shared: u64,
}

#[derive(sqlx_macros::FromRow)]
struct RelativeColumns {
    repository: String,
    name: String,
    digest: String,
    shared: i64,
}

impl TryFrom<RelativeColumns> for Relative {
    type Error = Error;

    fn try_from(row: RelativeColumns) -> Result<Relative, Error> {
        Ok(Relative {
            repository: parse_stored("repository", &row.repository)?,
            tag: parse_stored("tag", &row.name)?,
            digest: parse_stored("digest", &row.digest)?,
            bytes_shared: size(row.shared)?,
        })
    }
}

/// A tag, and the index state of its manifest.
#[derive(Clone, Debug)]
pub(crate) struct TaggedRow {
    pub(crate) repository: Repository,
    pub(crate) tag: Tag,
    pub(crate) digest: Digest,
    pub(crate) updated_at: i64,
    pub(crate) state: IndexState,
}

/// The state of the model index for a manifest.
#[derive(Clone, Debug)]
pub(crate) enum IndexState {
    Indexed(ModelRow),
    /// In the queue. `problem`: why the last attempt failed.
    Queued {
        queued_at: i64,
        attempts: i64,
        problem: Option<String>,
    },
    /// Stored by an older version of this server, which did not queue it.
    NotQueued,
}

#[derive(sqlx_macros::FromRow)]
struct TaggedColumns {
    repository: String,
    name: String,
    digest: String,
    updated_at: i64,
    #[sqlx(flatten)]
    model: ModelColumns,
    queued_at: Option<i64>,
    attempts: Option<i64>,
    queue_problem: Option<String>,
}

impl TryFrom<TaggedColumns> for TaggedRow {
    type Error = Error;

    fn try_from(row: TaggedColumns) -> Result<TaggedRow, Error> {
        let state = match (row.model.decode()?, row.queued_at) {
            (Some(model), _) => IndexState::Indexed(model),
            (None, Some(queued_at)) => IndexState::Queued {
                queued_at,
                attempts: row.attempts.unwrap_or_default(),
                problem: row.queue_problem,
            },
            (None, None) => IndexState::NotQueued,
        };
        Ok(TaggedRow {
            repository: parse_stored("repository", &row.repository)?,
            tag: parse_stored("tag", &row.name)?,
            digest: parse_stored("digest", &row.digest)?,
            updated_at: row.updated_at,
            state,
        })
    }
}

/// The blobs that make two models relatives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedBlobs {
    /// The size of the smallest ones.
    pub(crate) least: u64,
    /// Only those that hold tensors.
    pub(crate) only_tensors: bool,
}

impl Store {
    pub(crate) async fn model_find(&self, digest: &Digest) -> Result<Option<ModelRow>, Error> {
        let row: Option<ModelColumns> = query!(self.read(), c => sqlx::query_as(
            "select format, architecture, parameters, quantization, size_bytes, tensor_count, problem
             from models where digest = $1")
            .bind(digest.as_str()).fetch_optional(c).await)?;
        row.map(ModelColumns::decode).transpose().map(Option::flatten)
    }

    /// The index entries of manifests, where they exist.
    pub(crate) async fn models_find(&self, digests: &[Digest]) -> Result<Vec<(Digest, ModelRow)>, Error> {
        let rows: Vec<KeyedModel> = query!(self.read(), c => sqlx::query_as(
            "select digest, format, architecture, parameters, quantization, size_bytes, tensor_count, problem
             from models where digest in (select value from json_each($1))")
            .bind(digest_list(digests)).fetch_all(c).await)?;
        let decode = |row: KeyedModel| match row.model.decode()? {
            Some(model) => Ok(Some((parse_stored("digest", &row.digest)?, model))),
            None => Ok(None),
        };
        rows.into_iter().filter_map(|row| decode(row).transpose()).collect()
    }

    /// Whether a manifest was indexed with all that this version records.
    pub(crate) async fn facts_are_current(&self, digest: &Digest) -> Result<bool, Error> {
        let (current,): (bool,) = query!(self.read(), c => sqlx::query_as(
            "select exists (select 1 from models where digest = $1 and facts is not null and tags is not null)")
            .bind(digest.as_str()).fetch_one(c).await)?;
        Ok(current)
    }

    /// What a manifest says about itself, as JSON. `None`: it is not indexed, or by a version that did not record this.
    pub(crate) async fn facts_find(&self, digest: &Digest) -> Result<Option<String>, Error> {
        let row: Option<(Option<String>,)> = query!(self.read(), c => sqlx::query_as(
            "select facts from models where digest = $1")
            .bind(digest.as_str()).fetch_optional(c).await)?;
        Ok(row.and_then(|(facts,)| facts))
    }

    /// Queues manifests again that were indexed without their tags: at most `limit`, of digests after `after`. Returns
    /// the last one, or `None` at the end.
    pub(crate) async fn facts_enqueue(&self, after: &str, limit: i64) -> Result<Option<String>, Error> {
        let rows: Vec<(String,)> = query!(self.read(), c => sqlx::query_as(
            "select digest from models where tags is null and digest > $1 order by digest limit $2")
            .bind(after).bind(limit).fetch_all(c).await)?;
        let digests = serde_json::Value::from_iter(rows.iter().map(|(digest,)| digest.as_str())).to_string();
        query!(self.write(), c => sqlx::query(
            "insert into index_queue (digest, repository, queued_at, next_at)
             select digest, min(repository), cast($2 as bigint), 0 from manifests
             where digest in (select value from json_each($1)) group by digest
             on conflict (digest) do nothing")
            .bind(digests).bind(now_ms()).execute(c).await.map(drop))?;
        Ok(rows.into_iter().next_back().map(|(digest,)| digest))
    }

    /// Replaces the index entry of a manifest. Does nothing if the manifest is deleted or another request is
    /// recording the same.
    pub(crate) async fn model_put(
        &self,
        digest: &Digest,
        model: &ModelRow,
        facts: &FactsRow,
        tensors: &[TensorRow],
    ) -> Result<(), Error> {
        let tagging = self.repositories_tagging(digest, SEARCH_BATCH).await?;
        let mut tx = self.begin().await?;
        tx.repositories_lock(&tagging).await?;
        query!(tx.conn(), c => sqlx::query("delete from models where digest = $1")
            .bind(digest.as_str()).execute(c).await.map(drop))?;
        let inserted = query!(tx.conn(), c => sqlx::query(
            "insert into models (digest, format, architecture, parameters, quantization, size_bytes, tensor_count, problem, indexed_at,
                 facts, license, task, context_length, words, bases, card_words, tags, bases_listed)
             select distinct digest, $2, $3, cast($4 as bigint), $5, cast($6 as bigint), cast($7 as bigint), $8, cast($9 as bigint),
                 $10, $11, $12, cast($13 as bigint), $14, $15, $16, $17, 1
             from manifests where digest = $1
             on conflict (digest) do nothing")
            .bind(digest.as_str()).bind(&model.format).bind(&model.architecture).bind(model.parameters.map(bigint))
            .bind(&model.quantization).bind(bigint(model.size_bytes)).bind(bigint(model.tensor_count))
            .bind(&model.problem).bind(now_ms())
            .bind(&facts.json).bind(&facts.license).bind(&facts.task).bind(facts.context_length.map(bigint))
            .bind(&facts.words).bind(&facts.bases).bind(&facts.card_words).bind(facts.tags.join("\n"))
            .execute(c).await.map(|r| r.rows_affected()))?;
        if inserted == 0 {
            return tx.rollback().await;
        }
        tx.bases_insert(digest, facts.bases.as_deref().unwrap_or_default()).await?;
        if model.problem.is_none() {
            query!(tx.conn(), c => sqlx::query("delete from index_queue where digest = $1")
                .bind(digest.as_str()).execute(c).await.map(drop))?;
        }
        for (nth, rows) in tensors.chunks(INSERT_ROWS).enumerate() {
            let values: Vec<String> = (0..rows.len())
                .map(|row| {
                    let first = 2 + row * 4;
                    format!("($1, ${first}, ${}, ${}, ${})", first + 1, first + 2, first + 3)
                })
                .collect();
            let text = format!(
                "insert into tensors (digest, position, name, blob, detail) values {}",
                values.join(", ")
            );
            query!(tx.conn(), c => {
                // The text contains only placeholders.
                let mut query = sqlx::query(AssertSqlSafe(text)).bind(digest.as_str());
                for (row, tensor) in rows.iter().enumerate() {
                    let position = (nth * INSERT_ROWS + row) as i64;
                    query = query.bind(position).bind(&tensor.name).bind(tensor.blob.as_str()).bind(&tensor.detail);
                }
                query.execute(c).await.map(drop)
            })?;
        }
        for repository in &tagging {
            tx.search_refresh(repository).await?;
        }
        tx.commit().await?;
        if tagging.len() as i64 == SEARCH_BATCH {
            self.search_refresh_tagging(digest).await?;
        }
        Ok(())
    }

    /// The next models after the digest `after`, at most `limit`: those without a manifest, each with the number of
    /// its tensors, and the last digest that was read; `None` at the end.
    pub(crate) async fn models_unnamed(
        &self,
        after: &str,
        limit: i64,
    ) -> Result<(Vec<(Digest, u64)>, Option<String>), Error> {
        let rows: Vec<(String, i64, bool)> = query!(self.read(), c => sqlx::query_as(
            "select digest, tensor_count, not exists (select 1 from manifests m where m.digest = models.digest)
             from models where digest > $1 order by digest limit $2")
            .bind(after).bind(limit).fetch_all(c).await)?;
        let last = rows.last().map(|(digest, ..)| digest.clone());
        let unnamed = rows.into_iter().filter(|(.., is_unnamed)| *is_unnamed);
        let unnamed: Result<_, Error> = unnamed
            .map(|(digest, tensors, _)| Ok((parse_stored("digest", &digest)?, size(tensors)?)))
            .collect();
        Ok((unnamed?, last))
    }

    /// Deletes those of these models that still have no manifest, with their tensors: each statement few tensors, or
    /// one model. Returns how many models.
    pub(crate) async fn models_delete(&self, models: &[(Digest, u64)]) -> Result<u64, Error> {
        let (mut deleted, mut rest) = (0, models);
        while !rest.is_empty() {
            let mut tensors = 0;
            let fits = rest.iter().take_while(|(_, count)| {
                tensors += count;
                tensors <= DELETE_TENSORS as u64
            });
            let (some, others) = rest.split_at(fits.count().max(1));
            let mut tx = self.begin().await?;
            deleted += tx.models_delete_unnamed(some.iter().map(|(digest, _)| digest), i64::MAX).await?;
            tx.commit().await?;
            rest = others;
        }
        Ok(deleted)
    }

    /// Tensors of a model, as JSON, in the manifest's order: at most `limit`, from the position `from` on.
    pub(crate) async fn tensor_list(
        &self,
        digest: &Digest,
        from: u64,
        limit: u32,
    ) -> Result<Vec<String>, Error> {
        let rows: Vec<(String,)> = query!(self.read(), c => sqlx::query_as(
            "select detail from tensors where digest = $1 and position >= $2 order by position limit $3")
            .bind(digest.as_str()).bind(bigint(from)).bind(i64::from(limit)).fetch_all(c).await)?;
        Ok(rows.into_iter().map(|(detail,)| detail).collect())
    }

    /// Tags whose manifests name some of the blobs of at least `least` bytes that this one names, most bytes
    /// first.
    pub(crate) async fn relatives(
        &self,
        repository: &Repository,
        digest: &Digest,
        filter: &ListFilter,
        shared: SharedBlobs,
        limit: u32,
    ) -> Result<Vec<Relative>, Error> {
        let SharedBlobs { least, only_tensors } = shared;
        let is_tensor = match only_tensors {
            true => "and b.digest in (select blob from tensors where digest = $2)",
            false => "",
        };
        let text = AssertSqlSafe(format!(
            "select t.repository, t.name, t.digest, cast(sum(b.size_bytes) as bigint) as shared
             from manifest_blobs ours
             join blobs b on b.digest = ours.digest and b.size_bytes >= cast($3 as bigint) {is_tensor}
             join links l on l.digest = ours.digest
             join manifest_blobs theirs on theirs.repository = l.repository and theirs.digest = ours.digest
             join tags t on t.repository = theirs.repository and t.digest = theirs.manifest
             where ours.repository = $1 and ours.manifest = $2 and t.digest <> $2 and {}
             group by t.repository, t.name, t.digest
             order by shared desc, t.repository, t.name limit cast($4 as bigint)",
            self.is_listed("t.repository", 5)
        ));
        let (all, visibility, subjects, targets) = filter.parameters();
        let rows: Vec<RelativeColumns> = query!(self.read(), c => sqlx::query_as(text)
            .bind(repository.as_str()).bind(digest.as_str()).bind(bigint(least)).bind(i64::from(limit))
            .bind(all).bind(visibility).bind(subjects).bind(targets)
            .fetch_all(c).await)?;
        rows.into_iter().map(Relative::try_from).collect()
    }

    /// Tags whose manifest is a model, or is not indexed yet, in name order after `after`.
    pub(crate) async fn tagged_list(
        &self,
        filter: &ListFilter,
        after: Option<(&Repository, &Tag)>,
        limit: u32,
    ) -> Result<Vec<TaggedRow>, Error> {
        let (repository, tag) =
            after.map_or(("", ""), |(repository, tag)| (repository.as_str(), tag.as_str()));
        let text = AssertSqlSafe(self.tagged_list_text());
        let (all, visibility, subjects, targets) = filter.parameters();
        let rows: Vec<TaggedColumns> = query!(self.read(), c => sqlx::query_as(text)
            .bind(repository).bind(tag).bind(i64::from(limit))
            .bind(all).bind(visibility).bind(subjects).bind(targets).fetch_all(c).await)?;
        rows.into_iter().map(TaggedRow::try_from).collect()
    }

    pub(super) fn tagged_list_text(&self) -> String {
        format!(
            "select t.repository, t.name, t.digest, t.updated_at,
                    m.format, m.architecture, m.parameters, m.quantization, m.size_bytes, m.tensor_count, m.problem,
                    q.queued_at, q.attempts, q.problem as queue_problem
             from tags t left join models m on m.digest = t.digest left join index_queue q on q.digest = t.digest
             where (m.format is null or m.format <> '') and (t.repository, t.name) > ($1, $2) and {}
             order by t.repository, t.name limit cast($3 as bigint)",
            self.is_listed("t.repository", 4)
        )
    }

    /// When a manifest was first pushed, or a tag was last moved, and who has moved it; 0 if it does not exist.
    pub(crate) async fn manifest_change(
        &self,
        repository: &Repository,
        reference: &Reference,
    ) -> Result<(i64, Option<String>), Error> {
        let text = match reference {
            Reference::Digest(_) => {
                "select created_at, cast(null as text) from manifests where repository = $1 and digest = $2"
            }
            Reference::Tag(_) => "select updated_at, actor from tags where repository = $1 and name = $2",
        };
        let row: Option<(i64, Option<String>)> = query!(self.read(), c => sqlx::query_as(text)
            .bind(repository.as_str()).bind(reference.to_string()).fetch_optional(c).await)?;
        Ok(row.unwrap_or_default())
    }
}

impl Tx {
    /// Deletes those of these models that have no manifest: the smallest first, with at most `max_tensors` in all.
    pub(super) async fn models_delete_unnamed(
        &mut self,
        digests: impl IntoIterator<Item = &Digest>,
        max_tensors: i64,
    ) -> Result<u64, Error> {
        let digests = digest_list(digests);
        query!(self.conn(), c => sqlx::query(
            "delete from models where digest in
                 (select digest from
                      (select digest, sum(tensor_count) over (order by tensor_count, digest) as tensors from models
                       where digest in (select value from json_each($1))
                         and not exists (select 1 from manifests m where m.digest = models.digest)) unnamed
                  where tensors <= $2)")
            .bind(digests).bind(max_tensors).execute(c).await.map(|r| r.rows_affected()))
        .map_err(Error::from)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::store::{NewManifest, RemovalCause, RemovalReason, UnreferencedContent};

    /// Stores a manifest.
    pub(in crate::store) async fn push(store: &Store, repository: &Repository, digest: &Digest) {
        let mut tx = store.begin().await.unwrap();
        tx.blob_insert(digest, 2, digest.as_str(), None).await.unwrap();
        tx.link(repository, digest, 0).await.unwrap();
        tx.repository_lock_or_create(repository).await.unwrap();
        let new = NewManifest { digest, media_type: "type", artifact_type: None, bytes: b"{}" };
        tx.manifest_insert(repository, new).await.unwrap();
        tx.commit().await.unwrap();
    }

    pub(in crate::store) fn facts(bases: Option<&str>) -> FactsRow {
        FactsRow {
            json: "{}".to_owned(),
            license: None,
            task: None,
            context_length: None,
            words: String::new(),
            card_words: String::new(),
            bases: bases.map(str::to_owned),
            tags: Vec::new(),
        }
    }

    async fn remove(store: &Store, repository: &Repository, digests: &[Digest]) {
        let content = |digest: &Digest| UnreferencedContent {
            repository: repository.clone(),
            digest: digest.clone(),
            unreferenced_at: 1,
        };
        let reason = RemovalReason::Deleted;
        let why = RemovalCause { reason, actor: "server".to_owned(), at: 1, undo_until: 1 };
        let mut tx = store.begin().await.unwrap();
        tx.repository_lock(repository).await.unwrap();
        let removed =
            tx.manifests_delete(&digests.iter().map(content).collect::<Vec<_>>(), &why).await.unwrap();
        assert_eq!(removed.len(), digests.len());
        tx.commit().await.unwrap();
    }

    #[tokio::test]
    async fn tensors_are_deleted_in_bounded_statements() {
        crate::store::each_store(async |store: Store| {
            let repository: Repository = "team/a".parse().unwrap();
            let digests: Vec<Digest> = (0..4_u8).map(|n| Digest::sha256(&[n])).collect();
            for (digest, count) in digests.iter().zip([1_usize, 3, 9, 5]) {
                push(&store, &repository, digest).await;
                let tensor = |n| TensorRow { name: format!("t{n}"), blob: digest.clone(), detail: "{}".to_owned() };
                let tensors: Vec<TensorRow> = (0..count).map(tensor).collect();
                let model = ModelRow {
                    format: "gguf".to_owned(),
                    tensor_count: count as u64,
                    ..ModelRow::default()
                };
                store.model_put(digest, &model, &facts(None), &tensors).await.unwrap();
            }
            let left = async || {
                let (tensors,): (i64,) =
                    query!(store.read(), c => sqlx::query_as("select count(*) from tensors").fetch_one(c).await)
                        .unwrap();
                let known = digests.iter().map(|digest| store.model_find(digest));
                let known = futures::future::try_join_all(known).await.unwrap();
                (tensors, known.iter().map(Option::is_some).collect::<Vec<_>>())
            };
            // The removal itself deletes few tensors.
            remove(&store, &repository, &digests).await;
            assert_eq!(left().await, (14, vec![false, false, true, true]));
            // A manifest that returns has its model, with all tensors.
            push(&store, &repository, &digests[3]).await;
            let (mut unnamed, mut after) = (Vec::new(), String::new());
            while let (found, Some(last)) = store.models_unnamed(&after, 1).await.unwrap() {
                unnamed.extend(found);
                after = last;
            }
            assert_eq!(unnamed, [(digests[2].clone(), 9)]);
            unnamed.push((digests[3].clone(), 5));
            assert_eq!(store.models_delete(&unnamed).await.unwrap(), 1);
            assert_eq!(left().await, (5, vec![false, false, false, true]));
        })
        .await;
    }
}

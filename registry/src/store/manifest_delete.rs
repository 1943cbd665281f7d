//! Deletion of manifests with their tags, model rows and search rows. Everything changes in one transaction, and the
//! grace period of content that only they named begins.

use std::collections::{BTreeMap, BTreeSet};

use lode_model::digest::Digest;
use lode_model::media_type;
use lode_model::reference::{Repository, Tag};
use sqlx::AssertSqlSafe;

use super::collect::UnreferencedContent;
use super::models::DELETE_TENSORS;
use super::removals::{RemovalCause, RemovalRow};
use super::tag_moves::NewTagMove;
use super::{Tx, digest_list, parse_stored, placeholders, query};
use crate::Error;

/// How many rows one statement lists.
const ROWS: usize = 1000;

/// A manifest that was removed, and the tags that were deleted with it, in order.
#[derive(Debug)]
pub(crate) struct RemovedManifest {
    pub(crate) repository: Repository,
    pub(crate) digest: Digest,
    pub(crate) tags: Vec<Tag>,
}

/// A repository and a digest, as the database has them.
type Key = (String, String);

/// A manifest that is being deleted.
#[derive(sqlx_macros::FromRow)]
struct DeletedManifest {
    repository: String,
    digest: String,
    media_type: String,
    artifact_type: Option<String>,
    size_bytes: i64,
}

/// A tag that was deleted with its manifest.
#[derive(sqlx_macros::FromRow)]
struct DeletedTag {
    repository: String,
    name: String,
    digest: String,
}

/// A reference of a manifest that is being deleted.
#[derive(sqlx_macros::FromRow)]
struct DeletedReference {
    repository: String,
    manifest: String,
    digest: String,
    kind: String,
}

/// Begins the grace period of manifests that no index lists and no tag names.
const RELEASE_CHILDREN: &str = "update manifests set unreferenced_at = released.at from released
     where manifests.repository = released.repository and manifests.digest = released.digest
       and manifests.unreferenced_at is null
       and not exists (select 1 from manifest_blobs n
           where n.repository = manifests.repository and n.digest = manifests.digest and n.kind = 'child')
       and not exists (select 1 from tags t
           where t.repository = manifests.repository and t.digest = manifests.digest)";

/// Begins the grace period of links that no manifest needs.
const RELEASE_LINKS: &str = "update links set unreferenced_at = released.at from released
     where links.repository = released.repository and links.digest = released.digest
       and (links.unreferenced_at is null or links.unreferenced_at < released.at)
       and not exists (select 1 from manifest_blobs n
           where n.repository = links.repository and n.digest = links.digest)
       and not exists (select 1 from manifests m
           where m.repository = links.repository and m.digest = links.digest)";

impl Tx {
    /// Removes manifests with their tags and records the reason. For content that only they named, the grace
    /// period starts at the time given with each. Returns the manifests that existed. The repositories are
    /// locked.
    pub(crate) async fn manifests_delete(
        &mut self,
        manifests: &[UnreferencedContent],
        why: &RemovalCause,
    ) -> Result<Vec<RemovedManifest>, Error> {
        let mut removed = Vec::new();
        for batch in manifests.chunks(ROWS) {
            removed.extend(self.manifests_delete_batch(batch, why).await?);
        }
        Ok(removed)
    }

    async fn manifests_delete_batch(
        &mut self,
        manifests: &[UnreferencedContent],
        why: &RemovalCause,
    ) -> Result<Vec<RemovedManifest>, Error> {
        let rows = self
            .fetch_of(manifests, |pairs| {
                format!(
                    "select repository, digest, media_type, artifact_type, cast(length(bytes) as bigint) as size_bytes
                     from manifests where (repository, digest) in (values {pairs})"
                )
            })
            .await?;
        let rows: BTreeMap<Key, DeletedManifest> = rows
            .into_iter()
            .map(|row: DeletedManifest| ((row.repository.clone(), row.digest.clone()), row))
            .collect();
        let manifests: Vec<UnreferencedContent> =
            manifests.iter().filter(|manifest| rows.contains_key(&key(manifest))).cloned().collect();
        if manifests.is_empty() {
            return Ok(Vec::new());
        }
        // Before the cascade deletes them.
        let references = self
            .fetch_of(&manifests, |pairs| {
                format!(
                    "select repository, manifest, digest, kind from manifest_blobs
                     where (repository, manifest) in (values {pairs})"
                )
            })
            .await?;
        let tags: Vec<DeletedTag> = self
            .fetch_of(&manifests, |pairs| {
                format!(
                    "delete from tags where (repository, digest) in (values {pairs})
                     returning repository, name, digest"
                )
            })
            .await?;
        self.record_removals(&manifests, &rows, &tags, why).await?;
        // Their references and referrer rows are deleted by cascade.
        self.execute_of(&manifests, |pairs| {
            format!("delete from manifests where (repository, digest) in (values {pairs})")
        })
        .await?;
        // An index that lists one of them stays valid without it.
        self.execute_of(&manifests, |pairs| {
            format!(
                "update manifest_blobs set required = 0
                 where kind = 'child' and (repository, digest) in (values {pairs})"
            )
        })
        .await?;
        self.begin_grace_periods(&manifests, references, why.at).await?;
        self.delete_model_rows(&manifests).await?;
        self.refresh_search_rows(rows.values(), &tags).await?;

        let mut names: BTreeMap<Key, Vec<Tag>> = BTreeMap::new();
        for DeletedTag { repository, name, digest } in tags {
            names.entry((repository, digest)).or_default().push(parse_stored("tag", &name)?);
        }
        let removed = manifests.into_iter().map(|manifest| {
            let mut tags = names.remove(&key(&manifest)).unwrap_or_default();
            tags.sort_unstable();
            RemovedManifest { repository: manifest.repository, digest: manifest.digest, tags }
        });
        Ok(removed.collect())
    }

    /// Records that manifests and their tags are removed, and keeps their bytes for an undo.
    async fn record_removals(
        &mut self,
        manifests: &[UnreferencedContent],
        rows: &BTreeMap<Key, DeletedManifest>,
        tags: &[DeletedTag],
        why: &RemovalCause,
    ) -> Result<(), Error> {
        let mut records = Vec::with_capacity(tags.len() + manifests.len());
        let mut moves: BTreeMap<&str, Vec<NewTagMove<'_>>> = BTreeMap::new();
        for DeletedTag { repository, name, digest } in tags {
            let (parsed, of) = (parse_stored("repository", repository)?, parse_stored("digest", digest)?);
            records.push(RemovalRow::of_tag(&parsed, name, &of, why));
            let moved = NewTagMove { tag: name, from: Some(digest), to: None, message: None };
            moves.entry(repository).or_default().push(moved);
        }
        for manifest in manifests {
            let row = &rows[&key(manifest)];
            records.push(RemovalRow {
                repository: Some(row.repository.clone()),
                media_type: Some(row.media_type.clone()),
                size_bytes: Some(row.size_bytes),
                ..RemovalRow::new("manifest", &manifest.digest, why)
            });
        }
        for (repository, moves) in moves {
            self.tag_moves_put(repository, &moves, &why.actor, why.at).await?;
        }
        self.removals_put(&records).await?;
        if why.undo_until > why.at {
            self.removal_blobs_put(&records[tags.len()..], why.undo_until).await?;
        }
        Ok(())
    }

    /// Begins the grace period of content that nothing names any more: at the latest time at which one of the manifests
    /// that named it became unreferenced.
    async fn begin_grace_periods(
        &mut self,
        manifests: &[UnreferencedContent],
        references: Vec<DeletedReference>,
        now: i64,
    ) -> Result<(), Error> {
        let since: BTreeMap<Key, i64> =
            manifests.iter().map(|manifest| (key(manifest), manifest.unreferenced_at)).collect();
        let (mut children, mut links) = (BTreeMap::new(), since.clone());
        for DeletedReference { repository, manifest, digest, kind } in references {
            let at = since.get(&(repository.clone(), manifest)).copied().unwrap_or(now);
            let latest = |times: &mut BTreeMap<Key, i64>| {
                let time = times.entry((repository.clone(), digest.clone())).or_insert(at);
                *time = at.max(*time);
            };
            latest(&mut links);
            if kind == "child" {
                latest(&mut children);
            }
        }
        for (times, update) in [(children, RELEASE_CHILDREN), (links, RELEASE_LINKS)] {
            let times: Vec<(Key, i64)> = times.into_iter().collect();
            for times in times.chunks(ROWS) {
                let text = format!(
                    "with released (repository, digest, at) as (values {}) {update}",
                    placeholders(times.len(), "(?, ?, cast(? as bigint))", 1)
                );
                query!(self.conn(), c => {
                    let mut query = sqlx::query(AssertSqlSafe(text));
                    for ((repository, digest), at) in times {
                        query = query.bind(&repository[..]).bind(&digest[..]).bind(*at);
                    }
                    query.execute(c).await.map(drop)
                })?;
            }
        }
        Ok(())
    }

    /// Deletes the model rows of manifests that no repository has. The collection deletes those that have too many
    /// tensors for one statement.
    async fn delete_model_rows(&mut self, manifests: &[UnreferencedContent]) -> Result<(), Error> {
        let digests = || manifests.iter().map(|manifest| &manifest.digest);
        self.models_delete_unnamed(digests(), DELETE_TENSORS).await?;
        query!(self.conn(), c => sqlx::query(
            "delete from index_queue where digest in (select value from json_each($1))
               and not exists (select 1 from manifests m where m.digest = index_queue.digest)")
            .bind(digest_list(digests()))
            .execute(c).await.map(drop))?;
        Ok(())
    }

    /// Rewrites the search rows of the repositories that lost tags or cards.
    async fn refresh_search_rows(
        &mut self,
        manifests: impl Iterator<Item = &DeletedManifest>,
        tags: &[DeletedTag],
    ) -> Result<(), Error> {
        let cards = manifests.filter(|row| row.artifact_type.as_deref() == Some(media_type::LODE_CARD));
        let untagged = tags.iter().map(|tag| tag.repository.as_str());
        let changed: BTreeSet<&str> = untagged.chain(cards.map(|row| row.repository.as_str())).collect();
        for repository in changed {
            self.search_refresh(&parse_stored("repository", repository)?).await?;
        }
        Ok(())
    }

    /// Fetches the rows of a statement on manifests. `text` writes the statement with a list of their repositories and
    /// digests, which are bound to it.
    async fn fetch_of<T>(
        &mut self,
        manifests: &[UnreferencedContent],
        text: impl FnOnce(String) -> String,
    ) -> Result<Vec<T>, Error>
    where
        T: Send + Unpin,
        T: for<'r> sqlx::FromRow<'r, sqlx::sqlite::SqliteRow>
            + for<'r> sqlx::FromRow<'r, sqlx::postgres::PgRow>,
    {
        let text = text(placeholders(manifests.len(), "(?, ?)", 1));
        Ok(query!(self.conn(), c => {
            let mut query = sqlx::query_as(AssertSqlSafe(text));
            for UnreferencedContent { repository, digest, .. } in manifests {
                query = query.bind(repository.as_str()).bind(digest.as_str());
            }
            query.fetch_all(c).await
        })?)
    }

    /// Executes a statement on content, like [`Self::fetch_of`].
    pub(super) async fn execute_of(
        &mut self,
        content: &[UnreferencedContent],
        text: impl FnOnce(String) -> String,
    ) -> Result<(), Error> {
        let text = text(placeholders(content.len(), "(?, ?)", 1));
        query!(self.conn(), c => {
            let mut query = sqlx::query(AssertSqlSafe(text));
            for UnreferencedContent { repository, digest, .. } in content {
                query = query.bind(repository.as_str()).bind(digest.as_str());
            }
            query.execute(c).await.map(drop)
        })?;
        Ok(())
    }
}

fn key(manifest: &UnreferencedContent) -> Key {
    (manifest.repository.as_str().to_owned(), manifest.digest.as_str().to_owned())
}

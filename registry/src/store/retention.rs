//! The queries of retention rules: the tags of a repository by age, and manifests without a tag.

use std::collections::HashSet;

use lode_model::digest::Digest;
use lode_model::reference::{Repository, Tag};
use sqlx::AssertSqlSafe;

use super::removals::{RemovalCause, RemovalRow};
use super::tag_moves::NewTagMove;
use super::{Store, Tx, digest_list, long_query, parse_stored, placeholders, query};
use crate::Error;
use crate::time::now_ms;

/// How many tags one statement deletes; three parameters each stay below the engines' limits.
const DELETE_ROWS: usize = 500;

/// A tag with the columns that retention rules use.
#[derive(Clone, Debug)]
pub(crate) struct AgedTag {
    pub(crate) name: Tag,
    pub(crate) digest: Digest,
    pub(crate) updated_at: i64,
}

#[derive(sqlx_macros::FromRow)]
struct AgedTagColumns {
    name: String,
    digest: String,
    updated_at: i64,
}

impl TryFrom<AgedTagColumns> for AgedTag {
    type Error = Error;

    fn try_from(row: AgedTagColumns) -> Result<AgedTag, Error> {
        Ok(AgedTag {
            name: parse_stored("tag", &row.name)?,
            digest: parse_stored("digest", &row.digest)?,
            updated_at: row.updated_at,
        })
    }
}

/// Selects each manifest `m` that has no tag, no index that lists it, no subject in the repository and no
/// lease.
macro_rules! untagged {
    ($select:literal, $and:literal) => {
        concat!(
            $select,
            " from manifests m where m.repository = $1 and coalesce(m.untagged_at, m.created_at) <= $2
                and not exists (select 1 from tags t where t.repository = m.repository and t.digest = m.digest)
                and not exists (select 1 from manifest_blobs n
                    where n.repository = m.repository and n.digest = m.digest and n.kind = 'child')
                and not exists (select 1 from referrers r
                    join manifests s on s.repository = r.repository and s.digest = r.subject
                    where r.repository = m.repository and r.digest = m.digest)
                and not exists (select 1 from links l
                    where l.repository = m.repository and l.digest = m.digest and l.leased_until > $3)",
            $and
        )
    };
}

impl Store {
    /// The tags of a repository, newest first.
    pub(crate) async fn tags_by_age(&self, repository: &Repository) -> Result<Vec<AgedTag>, Error> {
        let rows: Vec<AgedTagColumns> = long_query!(self.read(), c => sqlx::query_as(
            "select name, digest, updated_at from tags where repository = $1 order by updated_at desc, name desc")
            .bind(repository.as_str()).fetch_all(c).await)?;
        rows.into_iter().map(AgedTag::try_from).collect()
    }

    /// Whether a repository has more tags or more manifests than `limit`.
    pub(crate) async fn repository_exceeds(
        &self,
        repository: &Repository,
        limit: i64,
    ) -> Result<bool, Error> {
        let (tags, manifests): (i64, i64) = query!(self.read(), c => sqlx::query_as(
            "select (select count(*) from (select 1 from tags where repository = $1 limit $2) t),
                (select count(*) from (select 1 from manifests where repository = $1 limit $2) m)")
            .bind(repository.as_str()).bind(limit + 1).fetch_one(c).await)?;
        Ok(tags.max(manifests) > limit)
    }

    /// Manifests that no tag, index or subject has kept since before `cutoff`, in digest order after `after`.
    pub(crate) async fn manifests_untagged(
        &self,
        repository: &Repository,
        cutoff: i64,
        after: &str,
        limit: i64,
    ) -> Result<Vec<Digest>, Error> {
        let rows: Vec<(String,)> = long_query!(self.read(), c => sqlx::query_as(
            untagged!("select m.digest", " and m.digest > $4 order by m.digest limit $5"))
            .bind(repository.as_str()).bind(cutoff).bind(now_ms()).bind(after).bind(limit).fetch_all(c).await)?;
        rows.iter().map(|(digest,)| parse_stored("digest", digest)).collect()
    }
}

impl Tx {
    /// Those of these manifests that are still untagged. The repository is locked.
    pub(crate) async fn manifests_recheck_untagged(
        &mut self,
        repository: &Repository,
        digests: &[Digest],
        cutoff: i64,
    ) -> Result<Vec<Digest>, Error> {
        let rows: Vec<(String,)> = query!(self.conn(), c => sqlx::query_as(
            untagged!("select m.digest", " and m.digest in (select value from json_each($4))"))
            .bind(repository.as_str()).bind(cutoff).bind(now_ms()).bind(digest_list(digests)).fetch_all(c).await)?;
        rows.iter().map(|(digest,)| parse_stored("digest", digest)).collect()
    }

    /// Removes those of these tags that were not moved since they were read, and records the reason. Returns
    /// the removed ones in the given order. The repository is locked.
    pub(crate) async fn tags_delete_unchanged<'a>(
        &mut self,
        repository: &Repository,
        tags: &'a [AgedTag],
        why: &RemovalCause,
    ) -> Result<Vec<&'a AgedTag>, Error> {
        let mut removed = Vec::with_capacity(tags.len());
        for batch in tags.chunks(DELETE_ROWS) {
            removed.extend(self.tags_delete_batch(repository, batch, why).await?);
        }
        Ok(removed)
    }

    async fn tags_delete_batch<'a>(
        &mut self,
        repository: &Repository,
        tags: &'a [AgedTag],
        why: &RemovalCause,
    ) -> Result<Vec<&'a AgedTag>, Error> {
        let text = format!(
            "delete from tags where repository = $1 and (name, digest, updated_at) in (values {}) returning name",
            placeholders(tags.len(), "(?, ?, cast(? as bigint))", 2)
        );
        let names: Vec<(String,)> = query!(self.conn(), c => {
            let mut query = sqlx::query_as(AssertSqlSafe(text)).bind(repository.as_str());
            for tag in tags {
                query = query.bind(tag.name.as_str()).bind(tag.digest.as_str()).bind(tag.updated_at);
            }
            query.fetch_all(c).await
        })?;
        let names: HashSet<&str> = names.iter().map(|(name,)| &name[..]).collect();
        // A record's id orders it among the others, so the records have the order of the tags.
        let removed: Vec<&AgedTag> = tags.iter().filter(|tag| names.contains(tag.name.as_str())).collect();
        let records: Vec<RemovalRow> = removed
            .iter()
            .map(|tag| RemovalRow::of_tag(repository, tag.name.as_str(), &tag.digest, why))
            .collect();
        self.removals_put(&records).await?;
        let moves: Vec<NewTagMove<'_>> = removed
            .iter()
            .map(|tag| NewTagMove {
                tag: tag.name.as_str(),
                from: Some(tag.digest.as_str()),
                to: None,
                message: None,
            })
            .collect();
        self.tag_moves_put(repository.as_str(), &moves, &why.actor, why.at).await?;
        self.manifests_mark_untagged(repository, removed.iter().map(|tag| &tag.digest), why.at).await?;
        self.search_refresh(repository).await?;
        Ok(removed)
    }
}

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;
    use crate::store::collect::TimeCursor;
    use crate::store::manifests::NewManifest;
    use crate::store::removals::RemovalReason;

    const TAGS: usize = 2 * DELETE_ROWS + 1;

    /// A manifest of a repository, without references.
    async fn manifest(tx: &mut Tx, repository: &Repository, content: &[u8]) -> Digest {
        let digest = Digest::sha256(content);
        tx.blob_insert(&digest, content.len() as u64, digest.as_str(), None).await.unwrap();
        tx.link(repository, &digest, 0).await.unwrap();
        let new = NewManifest { digest: &digest, media_type: "type", artifact_type: None, bytes: content };
        tx.manifest_insert(repository, new).await.unwrap();
        digest
    }

    /// Manifests of the repository whose grace period has started.
    async fn untagged(store: &Store) -> Vec<Digest> {
        let page = store.manifests_unreferenced(i64::MAX, &TimeCursor::default(), 10).await.unwrap();
        page.found.into_iter().map(|content| content.digest).collect()
    }

    #[tokio::test]
    async fn tags_are_removed_in_batches() {
        let folder = tempfile::tempdir().unwrap();
        let sqlite = format!("sqlite:{}", folder.path().join("x.db").display()).parse().unwrap();
        for url in [Some(sqlite), crate::store::postgres_for_test().await].into_iter().flatten() {
            let store = Store::open(Some(&url), folder.path()).await.unwrap();
            let repository: Repository = "team/app".parse().unwrap();
            let mut tx = store.begin().await.unwrap();
            let old = manifest(&mut tx, &repository, b"old").await;
            let new = manifest(&mut tx, &repository, b"new").await;
            tx.repository_lock(&repository).await.unwrap();
            for nth in 0..TAGS {
                tx.tag_put(&repository, &format!("t{nth}").parse().unwrap(), &old, "server", None)
                    .await
                    .unwrap();
            }
            tx.commit().await.unwrap();
            let tags = store.tags_by_age(&repository).await.unwrap();
            for (limit, exceeds) in [(TAGS as i64 - 1, true), (TAGS as i64, false)] {
                assert_eq!(store.repository_exceeds(&repository, limit).await.unwrap(), exceeds);
            }
            // One tag is moved after it was read.
            let mut tx = store.begin().await.unwrap();
            tx.tag_put(&repository, &tags[7].name, &new, "server", None).await.unwrap();
            tx.commit().await.unwrap();
            let reason = RemovalReason::KeepLast { rule: 1 };
            let actor = "server".to_owned();
            let why = RemovalCause { reason, actor, at: now_ms(), undo_until: i64::MAX };
            let records =
                async || store.removal_list(Some(&repository), None, 2 * TAGS as i64).await.unwrap();

            // 1. Without a commit, neither a tag nor a record changes.
            let mut tx = store.begin().await.unwrap();
            tx.tags_delete_unchanged(&repository, &tags, &why).await.unwrap();
            tx.rollback().await.unwrap();
            assert_eq!(store.tags_by_age(&repository).await.unwrap().len(), TAGS);
            assert!(records().await.is_empty() && untagged(&store).await.is_empty());

            // 2. The number of statements depends on the number of batches, not of tags.
            let recorder = PrometheusBuilder::new().build_recorder();
            let statements = recorder.handle();
            let mut tx = store.begin().await.unwrap();
            tx.repository_lock(&repository).await.unwrap();
            let removed = {
                let _recording = ::metrics::set_default_local_recorder(&recorder);
                tx.tags_delete_unchanged(&repository, &tags, &why).await.unwrap()
            };
            tx.commit().await.unwrap();
            let statements = statements.render();
            for operation in ["tags_delete_batch", "removals_put", "manifests_mark_untagged"] {
                let count = format!("lode_database_seconds_count{{operation=\"{operation}\"}} 3");
                assert!(statements.contains(&count), "{operation}: {statements}");
            }

            // 3. All but the moved tag are removed and recorded, and their manifest is untagged.
            let names = |tags: &mut dyn Iterator<Item = &AgedTag>| -> Vec<String> {
                tags.map(|tag| tag.name.as_str().to_owned()).collect()
            };
            let expected = names(&mut tags.iter().filter(|tag| tag.name != tags[7].name));
            assert_eq!(names(&mut removed.into_iter()), expected);
            let mut recorded: Vec<String> = records().await.into_iter().filter_map(|row| row.tag).collect();
            recorded.reverse();
            assert_eq!(recorded, expected);
            let left = store.tags_by_age(&repository).await.unwrap();
            assert_eq!(names(&mut left.iter()), [tags[7].name.as_str()]);
            assert_eq!(untagged(&store).await, [old]);
        }
    }
}

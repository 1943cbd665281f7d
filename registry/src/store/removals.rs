//! Records of removals: what was removed, when and why, and the blobs needed to restore it. Written in the
//! transaction that removes.

use lode_model::digest::Digest;
use lode_model::reference::{Repository, Tag};
use sqlx::AssertSqlSafe;
use uuid::Uuid;

use super::{Store, Tx, bigint, parse_stored, placeholders, query};
use crate::Error;
use crate::time::now_ms;

/// How many old records one statement deletes, few enough not to delay pushes.
pub(super) const EXPIRE_BATCH: i64 = 1000;
/// How many records one statement inserts: twelve parameters each stay below the engines' limits.
const INSERT_ROWS: usize = 500;

/// Why something is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RemovalReason {
    /// A client deleted it.
    Deleted,
    /// It was not referenced for the whole grace period.
    Unreferenced,
    /// A retention rule, counted from 1: it was not among the newest tags, which are kept.
    KeepLast { rule: u32 },
    /// A retention rule, counted from 1: it was untagged for too long.
    Untagged { rule: u32 },
}

impl RemovalReason {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            RemovalReason::Deleted => "deleted",
            RemovalReason::Unreferenced => "unreferenced",
            RemovalReason::KeepLast { .. } => "keep_last",
            RemovalReason::Untagged { .. } => "untagged",
        }
    }

    pub(crate) fn rule(self) -> Option<u32> {
        match self {
            RemovalReason::Deleted | RemovalReason::Unreferenced => None,
            RemovalReason::KeepLast { rule } | RemovalReason::Untagged { rule } => Some(rule),
        }
    }
}

/// Why, when and by whom something is removed, and until when it can be restored.
#[derive(Clone, Debug)]
pub(crate) struct RemovalCause {
    pub(crate) reason: RemovalReason,
    /// See [`crate::auth::Caller::actor`].
    pub(crate) actor: String,
    pub(crate) at: i64,
    pub(crate) undo_until: i64,
}

#[derive(Clone, Debug, sqlx_macros::FromRow)]
pub(crate) struct RemovalRow {
    pub(crate) id: String,
    pub(crate) kind: String,
    pub(crate) repository: Option<String>,
    pub(crate) tag: Option<String>,
    pub(crate) digest: String,
    pub(crate) media_type: Option<String>,
    pub(crate) size_bytes: Option<i64>,
    pub(crate) reason: String,
    pub(crate) rule: Option<i64>,
    pub(crate) removed_at: i64,
    pub(crate) undo_until: i64,
    pub(crate) restored_at: Option<i64>,
    pub(crate) actor: Option<String>,
}

/// A record that may be deleted once it can no longer be undone.
#[derive(sqlx_macros::FromRow)]
struct AgedRemoval {
    id: String,
    removed_at: i64,
    undo_until: i64,
}

const COLUMNS: &str = "id, kind, repository, tag, digest, media_type, size_bytes, reason, rule, removed_at, undo_until, restored_at, actor";

impl RemovalRow {
    pub(super) fn new(kind: &str, digest: &Digest, why: &RemovalCause) -> RemovalRow {
        RemovalRow {
            id: Uuid::now_v7().to_string(),
            kind: kind.to_owned(),
            repository: None,
            tag: None,
            digest: digest.as_str().to_owned(),
            media_type: None,
            size_bytes: None,
            reason: why.reason.as_str().to_owned(),
            rule: why.reason.rule().map(i64::from),
            removed_at: why.at,
            undo_until: why.undo_until,
            restored_at: None,
            actor: Some(why.actor.clone()),
        }
    }
}

impl RemovalRow {
    pub(super) fn of_tag(
        repository: &Repository,
        tag: &str,
        digest: &Digest,
        why: &RemovalCause,
    ) -> RemovalRow {
        RemovalRow {
            repository: Some(repository.as_str().to_owned()),
            tag: Some(tag.to_owned()),
            ..RemovalRow::new("tag", digest, why)
        }
    }

    /// A blob that is removed from one repository, or from the registry.
    pub(super) fn of_blob(
        repository: Option<&Repository>,
        digest: &Digest,
        size_bytes: u64,
        why: &RemovalCause,
    ) -> RemovalRow {
        RemovalRow {
            repository: repository.map(|repository| repository.as_str().to_owned()),
            size_bytes: Some(bigint(size_bytes)),
            ..RemovalRow::new("blob", digest, why)
        }
    }
}

impl Tx {
    pub(super) async fn removals_put(&mut self, rows: &[RemovalRow]) -> Result<(), Error> {
        for rows in rows.chunks(INSERT_ROWS) {
            let text = format!(
                "insert into removals (id, kind, repository, tag, digest, media_type, size_bytes, reason, rule, removed_at, undo_until, actor)
                 values {}",
                placeholders(rows.len(), "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", 1)
            );
            query!(self.conn(), c => {
                let mut query = sqlx::query(AssertSqlSafe(text));
                for row in rows {
                    query = query.bind(&row.id[..]).bind(&row.kind[..]).bind(row.repository.as_deref())
                        .bind(row.tag.as_deref()).bind(&row.digest[..]).bind(row.media_type.as_deref())
                        .bind(row.size_bytes).bind(&row.reason[..]).bind(row.rule).bind(row.removed_at)
                        .bind(row.undo_until).bind(row.actor.as_deref());
                }
                query.execute(c).await.map(drop)
            })?;
        }
        Ok(())
    }

    pub(super) async fn removal_put_tag(
        &mut self,
        repository: &Repository,
        tag: &str,
        digest: &Digest,
        why: &RemovalCause,
    ) -> Result<(), Error> {
        self.removals_put(&[RemovalRow::of_tag(repository, tag, digest, why)]).await
    }

    /// Keeps the blobs needed to restore these removed manifests, whose rows still exist.
    pub(super) async fn removal_blobs_put(
        &mut self,
        manifests: &[RemovalRow],
        undo_until: i64,
    ) -> Result<(), Error> {
        let text = format!(
            "with removed (repository, manifest, removal) as (values {})
             insert into removal_blobs (digest, removal, undo_until)
             select l.digest, removed.removal, cast($1 as bigint) from removed
             join links l on l.repository = removed.repository and l.digest = removed.manifest
             union
             select l.digest, removed.removal, cast($1 as bigint) from removed
             join manifest_blobs n
                 on n.repository = removed.repository and n.manifest = removed.manifest and n.kind = 'blob'
             join links l on l.repository = n.repository and l.digest = n.digest
             where true
             on conflict (digest, removal) do nothing",
            placeholders(manifests.len(), "(?, ?, ?)", 2)
        );
        query!(self.conn(), c => {
            let mut query = sqlx::query(AssertSqlSafe(text)).bind(undo_until);
            for row in manifests {
                query = query.bind(row.repository.as_deref()).bind(&row.digest[..]).bind(&row.id[..]);
            }
            query.execute(c).await.map(drop)
        })?;
        Ok(())
    }

    /// Records the removal of a blob from a repository.
    pub(crate) async fn removal_put_blob(
        &mut self,
        repository: &Repository,
        digest: &Digest,
        size_bytes: u64,
        why: &RemovalCause,
    ) -> Result<(), Error> {
        self.removals_put(&[RemovalRow::of_blob(Some(repository), digest, size_bytes, why)]).await
    }

    /// Marks removals as restored: they no longer keep blobs, and cannot be restored again.
    pub(crate) async fn removals_mark_restored(&mut self, ids: &[String]) -> Result<(), Error> {
        let list = serde_json::Value::from(ids.to_vec()).to_string();
        query!(self.conn(), c => sqlx::query(
            "update removals set restored_at = $2 where id in (select value from json_each($1))")
            .bind(&list[..]).bind(now_ms()).execute(c).await.map(drop))?;
        query!(self.conn(), c => sqlx::query(
            "delete from removal_blobs where removal in (select value from json_each($1))")
            .bind(&list[..]).execute(c).await.map(drop))?;
        Ok(())
    }
}

impl Store {
    /// Removals, newest first, before the record `before`.
    pub(crate) async fn removal_list(
        &self,
        repository: Option<&Repository>,
        before: Option<&str>,
        limit: i64,
    ) -> Result<Vec<RemovalRow>, Error> {
        // Two texts, so that each can use an index. Every id is a UUID, which sorts before `g`.
        let wanted = if repository.is_some() { "repository = $1" } else { "$1 = ''" };
        let query =
            format!("select {COLUMNS} from removals where {wanted} and id < $2 order by id desc limit $3");
        let repository = repository.map_or("", Repository::as_str);
        Ok(query!(self.read(), c => sqlx::query_as(AssertSqlSafe(query))
            .bind(repository).bind(before.unwrap_or("g")).bind(limit).fetch_all(c).await)?)
    }

    /// The last removal of that manifest, if it can still be restored.
    pub(crate) async fn removal_of_manifest(
        &self,
        repository: &Repository,
        digest: &Digest,
    ) -> Result<Option<RemovalRow>, Error> {
        let query = format!(
            "select {COLUMNS} from removals where repository = $1 and digest = $2 and kind = 'manifest'
               and undo_until > $3 and restored_at is null order by id desc limit 1"
        );
        Ok(query!(self.read(), c => sqlx::query_as(AssertSqlSafe(query))
            .bind(repository.as_str()).bind(digest.as_str()).bind(now_ms()).fetch_optional(c).await)?)
    }

    /// The last removal of that tag, if it can still be restored.
    pub(crate) async fn removal_of_tag(
        &self,
        repository: &Repository,
        tag: &Tag,
    ) -> Result<Option<RemovalRow>, Error> {
        let query = format!(
            "select {COLUMNS} from removals where repository = $1 and tag = $2 and kind = 'tag'
               and undo_until > $3 and restored_at is null order by id desc limit 1"
        );
        Ok(query!(self.read(), c => sqlx::query_as(AssertSqlSafe(query))
            .bind(repository.as_str()).bind(tag.as_str()).bind(now_ms()).fetch_optional(c).await)?)
    }

    /// Removals of tags that named that manifest and are not in use now, newest first.
    pub(crate) async fn removals_of_manifest_tags(
        &self,
        repository: &Repository,
        digest: &Digest,
    ) -> Result<Vec<RemovalRow>, Error> {
        let query = format!(
            "select {COLUMNS} from removals where repository = $1 and digest = $2 and kind = 'tag'
               and undo_until > $3 and restored_at is null
               and not exists (select 1 from tags t where t.repository = removals.repository and t.name = removals.tag)
             order by id desc"
        );
        Ok(query!(self.read(), c => sqlx::query_as(AssertSqlSafe(query))
            .bind(repository.as_str()).bind(digest.as_str()).bind(now_ms()).fetch_all(c).await)?)
    }

    /// The blobs of a removed manifest, including itself.
    pub(crate) async fn removal_blobs(&self, id: &str) -> Result<Vec<Digest>, Error> {
        let rows: Vec<(String,)> = query!(self.read(), c => sqlx::query_as(
            "select digest from removal_blobs where removal = $1 order by digest").bind(id).fetch_all(c).await)?;
        rows.iter().map(|(digest,)| parse_stored("digest", digest)).collect()
    }

    /// Deletes records from before `cutoff` that can no longer be undone, and releases blobs that were kept
    /// for an undo: oldest first, in batches that each commit. `deleted` is called with the number of rows of
    /// each batch.
    pub(crate) async fn removals_expire(
        &self,
        cutoff: i64,
        mut deleted: impl FnMut(u64),
    ) -> Result<(), Error> {
        let now = now_ms();
        loop {
            let rows = query!(self.write(), c => sqlx::query(
                "delete from removal_blobs where (digest, removal) in
                     (select digest, removal from removal_blobs where undo_until <= $1
                      order by undo_until, digest, removal limit $2)")
                .bind(now).bind(EXPIRE_BATCH).execute(c).await.map(|r| r.rows_affected()))?;
            deleted(rows);
            if rows < EXPIRE_BATCH as u64 {
                break;
            }
        }
        let mut after = (i64::MIN, String::new());
        loop {
            // Records that can still be undone are read once and skipped.
            let rows: Vec<AgedRemoval> = query!(self.read(), c => sqlx::query_as(
                "select id, removed_at, undo_until from removals
                 where removed_at < $1 and (removed_at, id) > ($2, $3) order by removed_at, id limit $4")
                .bind(cutoff).bind(after.0).bind(&after.1[..]).bind(EXPIRE_BATCH).fetch_all(c).await)?;
            let Some(last) = rows.last() else { return Ok(()) };
            after = (last.removed_at, last.id.clone());
            let over: Vec<&str> =
                rows.iter().filter(|row| row.undo_until <= now).map(|row| &row.id[..]).collect();
            let gone = query!(self.write(), c => sqlx::query(
                "delete from removals where id in (select value from json_each($1))")
                .bind(serde_json::Value::from(over).to_string())
                .execute(c).await.map(|r| r.rows_affected()))?;
            deleted(gone);
        }
    }
}

//! What was removed, when and why, and what it takes to bring it back. Written in the transaction that removes.

use lode_model::digest::Digest;
use lode_model::reference::{Repository, Tag};
use uuid::Uuid;

use super::{Store, Tx, bigint, now_ms, on, parsed};
use crate::Error;

/// How many old records go in one statement.
const EXPIRE_BATCH: i64 = 1000;

/// Why something goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// Somebody asked for it.
    Deleted,
    /// Nothing referred to it for the whole grace.
    Unreferenced,
    /// A retention rule, counted from 1: it was not among the last tags, which are kept.
    KeepLast { rule: u32 },
    /// A retention rule: no tag named it for too long.
    Untagged { rule: u32 },
}

impl Reason {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Reason::Deleted => "deleted",
            Reason::Unreferenced => "unreferenced",
            Reason::KeepLast { .. } => "keep_last",
            Reason::Untagged { .. } => "untagged",
        }
    }

    pub(crate) fn rule(self) -> Option<u32> {
        match self {
            Reason::Deleted | Reason::Unreferenced => None,
            Reason::KeepLast { rule } | Reason::Untagged { rule } => Some(rule),
        }
    }
}

/// Why and when something goes, and until when it can come back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Why {
    pub(crate) reason: Reason,
    pub(crate) at: i64,
    pub(crate) undo_until: i64,
}

#[derive(Clone, Debug, sqlx::FromRow)]
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
}

const COLUMNS: &str = "id, kind, repository, tag, digest, media_type, size_bytes, reason, rule, removed_at, undo_until, restored_at";

impl RemovalRow {
    pub(super) fn new(kind: &str, digest: &Digest, why: &Why) -> RemovalRow {
        RemovalRow {
            id: Uuid::now_v7().to_string(),
            kind: kind.to_owned(),
            repository: None,
            tag: None,
            digest: digest.as_str().to_owned(),
            media_type: None,
            size_bytes: None,
            reason: why.reason.word().to_owned(),
            rule: why.reason.rule().map(i64::from),
            removed_at: why.at,
            undo_until: why.undo_until,
            restored_at: None,
        }
    }
}

impl Tx {
    pub(super) async fn removal_put(&mut self, row: &RemovalRow) -> Result<(), Error> {
        on!(self.conn(), c => sqlx::query(
            "insert into removals (id, kind, repository, tag, digest, media_type, size_bytes, reason, rule, removed_at, undo_until)
             values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)")
            .bind(&row.id[..]).bind(&row.kind[..]).bind(row.repository.as_deref()).bind(row.tag.as_deref())
            .bind(&row.digest[..]).bind(row.media_type.as_deref()).bind(row.size_bytes).bind(&row.reason[..])
            .bind(row.rule).bind(row.removed_at).bind(row.undo_until).execute(c).await.map(drop))?;
        Ok(())
    }

    pub(super) async fn tag_removed(
        &mut self,
        repository: &Repository,
        tag: &str,
        digest: &Digest,
        why: &Why,
    ) -> Result<(), Error> {
        self.removal_put(&RemovalRow {
            repository: Some(repository.as_str().to_owned()),
            tag: Some(tag.to_owned()),
            ..RemovalRow::new("tag", digest, why)
        })
        .await
    }

    /// Records a manifest that is about to go, and keeps the bytes that it needs for as long as it may come back.
    pub(super) async fn manifest_removed(
        &mut self,
        repository: &Repository,
        digest: &Digest,
        why: &Why,
    ) -> Result<(), Error> {
        let (media_type, size_bytes): (String, i64) = on!(self.conn(), c => sqlx::query_as(
            "select media_type, cast(length(bytes) as bigint) from manifests where repository = $1 and digest = $2")
            .bind(repository.as_str()).bind(digest.as_str()).fetch_one(c).await)?;
        let row = RemovalRow {
            repository: Some(repository.as_str().to_owned()),
            media_type: Some(media_type),
            size_bytes: Some(size_bytes),
            ..RemovalRow::new("manifest", digest, why)
        };
        self.removal_put(&row).await?;
        if why.undo_until > why.at {
            on!(self.conn(), c => sqlx::query(
                "insert into removal_blobs (digest, removal, undo_until)
                 select l.digest, $3, cast($4 as bigint) from links l
                 where l.repository = $1 and (l.digest = $2 or l.digest in
                     (select n.digest from manifest_blobs n where n.repository = $1 and n.manifest = $2 and n.kind = 'blob'))
                 on conflict (digest, removal) do nothing")
                .bind(repository.as_str()).bind(digest.as_str()).bind(&row.id[..]).bind(row.undo_until)
                .execute(c).await.map(drop))?;
        }
        Ok(())
    }

    /// Records a blob that goes: from one repository, or altogether.
    pub(crate) async fn blob_removed(
        &mut self,
        repository: Option<&Repository>,
        digest: &Digest,
        size_bytes: u64,
        why: &Why,
    ) -> Result<(), Error> {
        self.removal_put(&RemovalRow {
            repository: repository.map(|repository| repository.as_str().to_owned()),
            size_bytes: Some(bigint(size_bytes)),
            ..RemovalRow::new("blob", digest, why)
        })
        .await
    }

    /// Notes what came back: it no longer keeps bytes, and cannot come back twice.
    pub(crate) async fn removals_restored(&mut self, ids: &[String]) -> Result<(), Error> {
        let list = serde_json::Value::from(ids.to_vec()).to_string();
        on!(self.conn(), c => sqlx::query(
            "update removals set restored_at = $2 where id in (select value from json_each($1))")
            .bind(&list[..]).bind(now_ms()).execute(c).await.map(drop))?;
        on!(self.conn(), c => sqlx::query(
            "delete from removal_blobs where removal in (select value from json_each($1))")
            .bind(&list[..]).execute(c).await.map(drop))?;
        Ok(())
    }
}

impl Store {
    /// What was removed, newest first, before the record `before`.
    pub(crate) async fn removal_list(
        &self,
        repository: Option<&Repository>,
        before: Option<&str>,
        limit: i64,
    ) -> Result<Vec<RemovalRow>, Error> {
        let query = format!(
            "select {COLUMNS} from removals where (repository = $1 or $1 is null) and (id < $2 or $2 is null)
             order by id desc limit $3"
        );
        Ok(on!(self.read(), c => sqlx::query_as(sqlx::AssertSqlSafe(query))
            .bind(repository.map(Repository::as_str)).bind(before).bind(limit).fetch_all(c).await)?)
    }

    /// The last removal of that manifest, if it may still come back.
    pub(crate) async fn removal_of_manifest(
        &self,
        repository: &Repository,
        digest: &Digest,
    ) -> Result<Option<RemovalRow>, Error> {
        let query = format!(
            "select {COLUMNS} from removals where repository = $1 and digest = $2 and kind = 'manifest'
               and undo_until > $3 and restored_at is null order by id desc limit 1"
        );
        Ok(on!(self.read(), c => sqlx::query_as(sqlx::AssertSqlSafe(query))
            .bind(repository.as_str()).bind(digest.as_str()).bind(now_ms()).fetch_optional(c).await)?)
    }

    /// The last removal of that tag, if it may still come back.
    pub(crate) async fn removal_of_tag(
        &self,
        repository: &Repository,
        tag: &Tag,
    ) -> Result<Option<RemovalRow>, Error> {
        let query = format!(
            "select {COLUMNS} from removals where repository = $1 and tag = $2 and kind = 'tag'
               and undo_until > $3 and restored_at is null order by id desc limit 1"
        );
        Ok(on!(self.read(), c => sqlx::query_as(sqlx::AssertSqlSafe(query))
            .bind(repository.as_str()).bind(tag.as_str()).bind(now_ms()).fetch_optional(c).await)?)
    }

    /// Removals of tags that named that manifest and are not in use now, newest first.
    pub(crate) async fn removals_of_its_tags(
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
        Ok(on!(self.read(), c => sqlx::query_as(sqlx::AssertSqlSafe(query))
            .bind(repository.as_str()).bind(digest.as_str()).bind(now_ms()).fetch_all(c).await)?)
    }

    /// The blobs that a removed manifest was made of, itself among them.
    pub(crate) async fn removal_blobs(&self, id: &str) -> Result<Vec<Digest>, Error> {
        let rows: Vec<(String,)> = on!(self.read(), c => sqlx::query_as(
            "select digest from removal_blobs where removal = $1 order by digest").bind(id).fetch_all(c).await)?;
        rows.iter().map(|(digest,)| parsed("digest", digest)).collect()
    }

    /// Forgets records from before `cutoff` whose undo is over, and lets go of the blobs that were kept for an undo.
    pub(crate) async fn removals_expire(&self, cutoff: i64) -> Result<(), Error> {
        let now = now_ms();
        on!(self.write(), c => sqlx::query("delete from removal_blobs where undo_until <= $1")
            .bind(now).execute(c).await.map(drop))?;
        loop {
            let rows = on!(self.write(), c => sqlx::query(
                "delete from removals where id in
                     (select id from removals where removed_at < $1 and undo_until <= $2 limit $3)")
                .bind(cutoff).bind(now).bind(EXPIRE_BATCH).execute(c).await.map(|r| r.rows_affected()))?;
            if rows < EXPIRE_BATCH as u64 {
                return Ok(());
            }
        }
    }
}

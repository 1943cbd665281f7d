//! Uploads in progress, one row each. Only the writer that holds the newest generation advances a row, and
//! the offset never exceeds the durable bytes.

use lode_model::digest::{Algorithm, Hasher};
use lode_model::reference::Repository;
use uuid::Uuid;

use super::{Store, Tx, bigint, parse_stored, query, size};
use crate::Error;
use crate::blobs::{StoredUpload, UploadProgress};
use crate::time::now_ms;

#[derive(Clone, Debug)]
pub(crate) struct UploadRow {
    pub(crate) id: Uuid,
    pub(crate) repository: Repository,
    pub(crate) store_key: String,
    pub(crate) offset: u64,
    pub(crate) generation: i64,
    pub(crate) hash_state: Vec<u8>,
    pub(crate) progress: UploadProgress,
    /// The number of attempts to commit it, including this one.
    pub(crate) attempts: i64,
    /// Its bytes are being deleted: no client may continue it.
    pub(crate) is_ending: bool,
}

#[derive(sqlx_macros::FromRow)]
struct UploadColumns {
    id: String,
    repository: String,
    store_key: String,
    next_byte: i64,
    generation: i64,
    hash_state: Vec<u8>,
    multipart_id: Option<String>,
    parts: Option<String>,
    attempts: i64,
    ending_at: Option<i64>,
}

macro_rules! columns {
    () => {
        "id, repository, store_key, next_byte, generation, hash_state, multipart_id, parts, attempts, ending_at"
    };
}

impl TryFrom<UploadColumns> for UploadRow {
    type Error = Error;

    fn try_from(row: UploadColumns) -> Result<UploadRow, Error> {
        Ok(UploadRow {
            id: parse_stored("upload", &row.id)?,
            repository: parse_stored("repository", &row.repository)?,
            store_key: row.store_key,
            offset: size(row.next_byte)?,
            generation: row.generation,
            hash_state: row.hash_state,
            progress: UploadProgress { multipart_id: row.multipart_id, parts: row.parts },
            attempts: row.attempts,
            is_ending: row.ending_at.is_some(),
        })
    }
}

/// A new upload.
pub(crate) struct NewUpload<'a> {
    pub(crate) id: Uuid,
    pub(crate) repository: &'a Repository,
    pub(crate) store_key: &'a str,
    pub(crate) algorithm: Algorithm,
    /// The account that opened it.
    pub(crate) account: Option<Uuid>,
    /// The request that opens it also commits it.
    pub(crate) commits_at_once: bool,
}

/// The state of an upload's durable bytes.
pub(crate) struct UploadCheckpoint<'a> {
    pub(crate) offset: u64,
    pub(crate) hash_state: &'a [u8],
    pub(crate) progress: &'a UploadProgress,
}

impl UploadRow {
    /// The part of the row that the storage needs.
    pub(crate) fn stored(&self) -> StoredUpload {
        StoredUpload {
            id: self.id,
            store_key: self.store_key.clone(),
            offset: self.offset,
            progress: self.progress.clone(),
        }
    }
}

impl Store {
    pub(crate) async fn upload_insert(&self, upload: NewUpload<'_>) -> Result<UploadRow, Error> {
        let (state, now) = (Hasher::new(upload.algorithm).save(), now_ms());
        let attempts = i64::from(upload.commits_at_once);
        query!(self.write(), c => sqlx::query(
            "insert into uploads (id, repository, store_key, next_byte, generation, algorithm, hash_state, attempts, created_at, updated_at, account)
             values ($1, $2, $3, 0, 0, $4, $5, $6, $7, $7, $8)")
            .bind(upload.id.to_string()).bind(upload.repository.as_str()).bind(upload.store_key)
            .bind(upload.algorithm.as_str()).bind(&state[..]).bind(attempts).bind(now)
            .bind(upload.account.map(|id| id.to_string()))
            .execute(c).await.map(drop))?;
        Ok(UploadRow {
            id: upload.id,
            repository: upload.repository.clone(),
            store_key: upload.store_key.to_owned(),
            offset: 0,
            generation: 0,
            hash_state: state,
            progress: UploadProgress::default(),
            attempts,
            is_ending: false,
        })
    }

    /// The upload, unless it is being deleted.
    pub(crate) async fn upload_find(
        &self,
        repository: &Repository,
        id: Uuid,
    ) -> Result<Option<UploadRow>, Error> {
        let row = self.upload_find_any(id).await?;
        Ok(row.filter(|row| row.repository == *repository && !row.is_ending))
    }

    /// The account that opened an upload.
    pub(crate) async fn upload_account(&self, id: Uuid) -> Result<Option<Uuid>, Error> {
        let row: Option<(Option<String>,)> = query!(self.read(), c => sqlx::query_as(
            "select account from uploads where id = $1")
            .bind(id.to_string()).fetch_optional(c).await)?;
        row.and_then(|(account,)| account).map(|text| parse_stored("account", &text)).transpose()
    }

    /// The upload, in any repository, even while it is being deleted.
    pub(crate) async fn upload_find_any(&self, id: Uuid) -> Result<Option<UploadRow>, Error> {
        let found: Option<UploadColumns> = query!(self.read(), c => sqlx::query_as(concat!(
            "select ", columns!(), " from uploads where id = $1"))
            .bind(id.to_string()).fetch_optional(c).await)?;
        found.map(UploadRow::try_from).transpose()
    }

    /// Becomes the upload's newest writer, so that every older one fails at its next save. It waits for a
    /// commit in progress, so the returned upload is certainly not committed. `None` if another writer, a
    /// commit or a cancellation came first.
    pub(crate) async fn upload_take_over(
        &self,
        id: Uuid,
        generation: i64,
        to_commit: bool,
    ) -> Result<Option<UploadRow>, Error> {
        let taken: Option<UploadColumns> = query!(self.write(), c => sqlx::query_as(concat!(
            "update uploads set generation = generation + 1, attempts = attempts + $3
             where id = $1 and generation = $2 and ending_at is null
             returning ", columns!()))
            .bind(id.to_string()).bind(generation).bind(i64::from(to_commit)).fetch_optional(c).await)?;
        taken.map(UploadRow::try_from).transpose()
    }

    /// Like `upload_take_over`, but final: every later writer, on any replica, finds that the upload is gone. A
    /// writer that could still take it over could create a blob from bytes that are about to be deleted.
    pub(crate) async fn upload_take_to_remove(
        &self,
        id: Uuid,
        generation: i64,
    ) -> Result<Option<UploadRow>, Error> {
        let taken: Option<UploadColumns> = query!(self.write(), c => sqlx::query_as(concat!(
            "update uploads set generation = generation + 1, ending_at = $3
             where id = $1 and generation = $2
             returning ", columns!()))
            .bind(id.to_string()).bind(generation).bind(now_ms()).fetch_optional(c).await)?;
        taken.map(UploadRow::try_from).transpose()
    }

    /// Advances the offset over durable bytes. Returns false if another writer or a cancellation came first.
    pub(crate) async fn upload_save(
        &self,
        id: Uuid,
        generation: i64,
        checkpoint: UploadCheckpoint<'_>,
    ) -> Result<bool, Error> {
        let UploadCheckpoint { offset, hash_state, progress } = checkpoint;
        let rows = query!(self.write(), c => sqlx::query(
            "update uploads set next_byte = $3, hash_state = $4, generation = generation + 1, updated_at = $5,
                    multipart_id = $6, parts = $7
             where id = $1 and generation = $2")
            .bind(id.to_string()).bind(generation).bind(bigint(offset)).bind(hash_state).bind(now_ms())
            .bind(progress.multipart_id.as_deref()).bind(progress.parts.as_deref())
            .execute(c).await.map(|r| r.rows_affected()))?;
        Ok(rows > 0)
    }

    /// Records where bytes will be written, before the first of them, so that they can be found after any
    /// failure.
    pub(crate) async fn upload_record_location(
        &self,
        id: Uuid,
        generation: i64,
        progress: &UploadProgress,
    ) -> Result<bool, Error> {
        let rows = query!(self.write(), c => sqlx::query(
            "update uploads set generation = generation + 1, multipart_id = $3, parts = $4
             where id = $1 and generation = $2")
            .bind(id.to_string()).bind(generation)
            .bind(progress.multipart_id.as_deref()).bind(progress.parts.as_deref())
            .execute(c).await.map(|r| r.rows_affected()))?;
        Ok(rows > 0)
    }

    pub(crate) async fn upload_delete(&self, repository: &Repository, id: Uuid) -> Result<bool, Error> {
        let rows = query!(self.write(), c => sqlx::query("delete from uploads where id = $1 and repository = $2")
            .bind(id.to_string()).bind(repository.as_str())
            .execute(c).await.map(|r| r.rows_affected()))?;
        Ok(rows > 0)
    }

    /// Uploads idle since before `cutoff`, oldest first.
    pub(crate) async fn uploads_idle(&self, cutoff: i64, limit: u32) -> Result<Vec<UploadRow>, Error> {
        let rows: Vec<UploadColumns> = query!(self.read(), c => sqlx::query_as(concat!(
            "select ", columns!(), " from uploads where updated_at < $1 order by updated_at limit $2"))
            .bind(cutoff).bind(i64::from(limit)).fetch_all(c).await)?;
        rows.into_iter().map(UploadRow::try_from).collect()
    }

    /// Whether an upload stores its bytes under this key.
    pub(crate) async fn upload_has_key(&self, store_key: &str) -> Result<bool, Error> {
        let (exists,): (bool,) = query!(self.read(), c => sqlx::query_as(
            "select exists (select 1 from uploads where store_key = $1)")
            .bind(store_key).fetch_one(c).await)?;
        Ok(exists)
    }
}

impl Tx {
    /// Deletes an upload as part of its commit. Returns false if another writer or a cancellation came first.
    pub(crate) async fn upload_delete_committed(&mut self, id: Uuid, generation: i64) -> Result<bool, Error> {
        let rows = query!(self.conn(), c => sqlx::query("delete from uploads where id = $1 and generation = $2")
            .bind(id.to_string()).bind(generation).execute(c).await.map(|r| r.rows_affected()))?;
        Ok(rows > 0)
    }
}

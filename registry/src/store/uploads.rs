//! Uploads under way: one row each, moved forward only by the writer that holds its newest generation.
//! A row's offset never runs ahead of the bytes that are durable.

use lode_model::digest::{Algorithm, Hasher};
use lode_model::reference::Repository;
use uuid::Uuid;

use super::{Store, Tx, bigint, now_ms, on, parsed, size};
use crate::Error;

#[derive(Clone, Debug)]
pub(crate) struct UploadRow {
    pub(crate) store_key: String,
    pub(crate) offset: u64,
    pub(crate) generation: i64,
    pub(crate) hash_state: Vec<u8>,
}

impl Store {
    pub(crate) async fn upload_insert(
        &self,
        repository: &Repository,
        id: Uuid,
        store_key: &str,
        algorithm: Algorithm,
    ) -> Result<(), Error> {
        let (state, now) = (Hasher::new(algorithm).save(), now_ms());
        on!(self.write(), c => sqlx::query(
            "insert into uploads (id, repository, store_key, next_byte, generation, algorithm, hash_state, created_at, updated_at)
             values ($1, $2, $3, 0, 0, $4, $5, $6, $6)")
            .bind(id.to_string()).bind(repository.as_str()).bind(store_key)
            .bind(algorithm.as_str()).bind(&state[..]).bind(now)
            .execute(c).await.map(drop))?;
        Ok(())
    }

    pub(crate) async fn upload_find(
        &self,
        repository: &Repository,
        id: Uuid,
    ) -> Result<Option<UploadRow>, Error> {
        let row: Option<(String, i64, i64, Vec<u8>)> = on!(self.read(), c => sqlx::query_as(
            "select store_key, next_byte, generation, hash_state from uploads where id = $1 and repository = $2")
            .bind(id.to_string()).bind(repository.as_str()).fetch_optional(c).await)?;
        row.map(|(store_key, offset, generation, hash_state)| {
            Ok(UploadRow { store_key, offset: size(offset)?, generation, hash_state })
        })
        .transpose()
    }

    /// Moves the offset forward over bytes that are durable. False if another writer, or a cancel, came first.
    pub(crate) async fn upload_save(
        &self,
        id: Uuid,
        generation: i64,
        offset: u64,
        hash_state: &[u8],
    ) -> Result<bool, Error> {
        let rows = on!(self.write(), c => sqlx::query(
            "update uploads set next_byte = $3, hash_state = $4, generation = generation + 1, updated_at = $5
             where id = $1 and generation = $2")
            .bind(id.to_string()).bind(generation).bind(bigint(offset)).bind(hash_state).bind(now_ms())
            .execute(c).await.map(|r| r.rows_affected()))?;
        Ok(rows > 0)
    }

    pub(crate) async fn upload_delete(&self, repository: &Repository, id: Uuid) -> Result<bool, Error> {
        let rows = on!(self.write(), c => sqlx::query("delete from uploads where id = $1 and repository = $2")
            .bind(id.to_string()).bind(repository.as_str())
            .execute(c).await.map(|r| r.rows_affected()))?;
        Ok(rows > 0)
    }

    /// Forgets uploads that rested since before `cutoff`, and says where their bytes lie.
    pub(crate) async fn upload_expire(&self, cutoff: i64, limit: u32) -> Result<Vec<(Uuid, String)>, Error> {
        let rows: Vec<(String, String)> = on!(self.write(), c => sqlx::query_as(
            "delete from uploads where id in (select id from uploads where updated_at < $1 order by updated_at limit $2)
             returning id, store_key")
            .bind(cutoff).bind(i64::from(limit)).fetch_all(c).await)?;
        rows.into_iter().map(|(id, key)| Ok((parsed("upload", &id)?, key))).collect()
    }

    /// Is there an upload whose bytes lie there?
    pub(crate) async fn upload_has_key(&self, store_key: &str) -> Result<bool, Error> {
        let (count,): (i64,) = on!(self.read(), c => sqlx::query_as(
            "select count(*) from uploads where store_key = $1").bind(store_key).fetch_one(c).await)?;
        Ok(count > 0)
    }
}

impl Tx {
    /// Ends an upload as part of its commit. False if another writer, or a cancel, came first.
    pub(crate) async fn upload_finish(&mut self, id: Uuid, generation: i64) -> Result<bool, Error> {
        let rows = on!(self.conn(), c => sqlx::query("delete from uploads where id = $1 and generation = $2")
            .bind(id.to_string()).bind(generation).execute(c).await.map(|r| r.rows_affected()))?;
        Ok(rows > 0)
    }
}

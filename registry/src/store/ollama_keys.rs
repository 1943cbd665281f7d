//! The ed25519 keys of accounts, with which ollama signs its requests.

use uuid::Uuid;

use super::{Store, Tx, parse_stored, query};
use crate::Error;

/// A key of an account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OllamaKeyRow {
    pub(crate) id: Uuid,
    pub(crate) account: Uuid,
    /// 32 bytes in hexadecimal.
    pub(crate) public_key: String,
    pub(crate) name: String,
    pub(crate) created_at: i64,
    pub(crate) used_at: Option<i64>,
}

#[derive(sqlx_macros::FromRow)]
struct OllamaKeyColumns {
    id: String,
    account: String,
    public_key: String,
    name: String,
    created_at: i64,
    used_at: Option<i64>,
}

impl TryFrom<OllamaKeyColumns> for OllamaKeyRow {
    type Error = Error;

    fn try_from(row: OllamaKeyColumns) -> Result<OllamaKeyRow, Error> {
        Ok(OllamaKeyRow {
            id: parse_stored("key", &row.id)?,
            account: parse_stored("account", &row.account)?,
            public_key: row.public_key,
            name: row.name,
            created_at: row.created_at,
            used_at: row.used_at,
        })
    }
}

impl Store {
    pub(crate) async fn ollama_key_find(&self, public_key: &str) -> Result<Option<OllamaKeyRow>, Error> {
        let row: Option<OllamaKeyColumns> = query!(self.read(), c => sqlx::query_as(
            "select id, account, public_key, name, created_at, used_at from ollama_keys where public_key = $1")
            .bind(public_key).fetch_optional(c).await)?;
        row.map(OllamaKeyRow::try_from).transpose()
    }

    pub(crate) async fn ollama_key_find_by_id(&self, id: Uuid) -> Result<Option<OllamaKeyRow>, Error> {
        let row: Option<OllamaKeyColumns> = query!(self.read(), c => sqlx::query_as(
            "select id, account, public_key, name, created_at, used_at from ollama_keys where id = $1")
            .bind(id.to_string()).fetch_optional(c).await)?;
        row.map(OllamaKeyRow::try_from).transpose()
    }

    /// The keys of an account, newest first, at most `limit` of those that are older than `before`.
    pub(crate) async fn ollama_key_list(
        &self,
        account: Uuid,
        before: Option<Uuid>,
        limit: i64,
    ) -> Result<Vec<OllamaKeyRow>, Error> {
        // Every id is a UUID, which sorts before `g`.
        let before = before.map_or_else(|| "g".to_owned(), |id| id.to_string());
        let rows: Vec<OllamaKeyColumns> = query!(self.read(), c => sqlx::query_as(
            "select id, account, public_key, name, created_at, used_at from ollama_keys
             where account = $1 and id < $2 order by id desc limit $3")
            .bind(account.to_string()).bind(before).bind(limit).fetch_all(c).await)?;
        rows.into_iter().map(OllamaKeyRow::try_from).collect()
    }

    /// Records the use of a key.
    pub(crate) async fn ollama_key_used(&self, id: Uuid, at: i64) -> Result<(), Error> {
        query!(self.write(), c => sqlx::query("update ollama_keys set used_at = $2 where id = $1")
            .bind(id.to_string()).bind(at).execute(c).await.map(drop))?;
        Ok(())
    }
}

impl Tx {
    /// Adds a key. Returns false if an account has it already.
    pub(crate) async fn ollama_key_insert(&mut self, key: &OllamaKeyRow) -> Result<bool, Error> {
        let rows = query!(self.conn(), c => sqlx::query(
            "insert into ollama_keys (id, account, public_key, name, created_at) values ($1, $2, $3, $4, $5)
             on conflict (public_key) do nothing")
            .bind(key.id.to_string()).bind(key.account.to_string()).bind(&key.public_key).bind(&key.name)
            .bind(key.created_at).execute(c).await.map(|r| r.rows_affected()))?;
        Ok(rows > 0)
    }

    /// Deletes a key of an account. Returns false if it has none with this id.
    pub(crate) async fn ollama_key_delete(&mut self, account: Uuid, id: Uuid) -> Result<bool, Error> {
        let rows = query!(self.conn(), c => sqlx::query("delete from ollama_keys where account = $1 and id = $2")
            .bind(account.to_string()).bind(id.to_string()).execute(c).await.map(|r| r.rows_affected()))?;
        Ok(rows > 0)
    }
}

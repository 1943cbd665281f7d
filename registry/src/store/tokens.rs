//! Tokens of accounts. Only their digests are stored.

use lode_model::digest::Digest;
use uuid::Uuid;

use super::{Store, Tx, parse_stored, query};
use crate::Error;
use crate::time::now_ms;

/// A token of an account. Only its digest is stored.
#[derive(Clone, Debug)]
pub(crate) struct TokenRow {
    pub(crate) id: Uuid,
    pub(crate) account: Uuid,
    pub(crate) name: String,
    pub(crate) last_four: String,
    /// JSON.
    pub(crate) scope: String,
    pub(crate) created_at: i64,
    pub(crate) expires_at: Option<i64>,
    pub(crate) used_at: Option<i64>,
    pub(crate) revoked_at: Option<i64>,
    /// The publisher that has created it.
    pub(crate) publisher: Option<Uuid>,
}

#[derive(sqlx_macros::FromRow)]
struct TokenColumns {
    id: String,
    account: String,
    name: String,
    last_four: String,
    scope: String,
    created_at: i64,
    expires_at: Option<i64>,
    used_at: Option<i64>,
    revoked_at: Option<i64>,
    publisher: Option<String>,
}

impl TryFrom<TokenColumns> for TokenRow {
    type Error = Error;

    fn try_from(row: TokenColumns) -> Result<TokenRow, Error> {
        Ok(TokenRow {
            id: parse_stored("token", &row.id)?,
            account: parse_stored("account", &row.account)?,
            name: row.name,
            last_four: row.last_four,
            scope: row.scope,
            created_at: row.created_at,
            expires_at: row.expires_at,
            used_at: row.used_at,
            revoked_at: row.revoked_at,
            publisher: row.publisher.map(|id| parse_stored("publisher", &id)).transpose()?,
        })
    }
}

impl Store {
    /// The token with this digest, whether or not it is still valid.
    pub(crate) async fn token_find(&self, secret: &Digest) -> Result<Option<TokenRow>, Error> {
        let row: Option<TokenColumns> = query!(self.read(), c => sqlx::query_as(
            "select id, account, name, last_four, scope, created_at, expires_at, used_at, revoked_at, publisher
             from access_tokens where secret = $1")
            .bind(secret.as_str()).fetch_optional(c).await)?;
        row.map(TokenRow::try_from).transpose()
    }

    pub(crate) async fn token_find_by_id(&self, id: Uuid) -> Result<Option<TokenRow>, Error> {
        let row: Option<TokenColumns> = query!(self.read(), c => sqlx::query_as(
            "select id, account, name, last_four, scope, created_at, expires_at, used_at, revoked_at, publisher
             from access_tokens where id = $1")
            .bind(id.to_string()).fetch_optional(c).await)?;
        row.map(TokenRow::try_from).transpose()
    }

    /// The tokens of an account, newest first, at most `limit` of those that are older than `before`.
    pub(crate) async fn token_list(
        &self,
        account: Uuid,
        before: Option<Uuid>,
        limit: i64,
    ) -> Result<Vec<TokenRow>, Error> {
        let rows: Vec<TokenColumns> = query!(self.read(), c => sqlx::query_as(
            "select id, account, name, last_four, scope, created_at, expires_at, used_at, revoked_at, publisher
             from access_tokens where account = $1 and (cast($2 as text) is null or id < $2)
             order by id desc limit $3")
            .bind(account.to_string()).bind(before.map(|id| id.to_string())).bind(limit)
            .fetch_all(c).await)?;
        rows.into_iter().map(TokenRow::try_from).collect()
    }

    /// Records the use of a token.
    pub(crate) async fn token_used(&self, id: Uuid, at: i64) -> Result<(), Error> {
        query!(self.write(), c => sqlx::query("update access_tokens set used_at = $2 where id = $1")
            .bind(id.to_string()).bind(at).execute(c).await.map(drop))?;
        Ok(())
    }
}

impl Tx {
    pub(crate) async fn token_insert(&mut self, token: &TokenRow, secret: &Digest) -> Result<(), Error> {
        query!(self.conn(), c => sqlx::query(
            "insert into access_tokens (id, account, name, secret, last_four, scope, created_at, expires_at, publisher)
             values ($1, $2, $3, $4, $5, $6, $7, $8, $9)")
            .bind(token.id.to_string()).bind(token.account.to_string()).bind(&token.name).bind(secret.as_str())
            .bind(&token.last_four).bind(&token.scope).bind(token.created_at).bind(token.expires_at)
            .bind(token.publisher.map(|id| id.to_string()))
            .execute(c).await.map(drop))?;
        Ok(())
    }

    /// Revokes a token of an account. Returns false if there is none that is valid.
    pub(crate) async fn token_revoke(&mut self, account: Uuid, id: Uuid) -> Result<bool, Error> {
        let rows = query!(self.conn(), c => sqlx::query(
            "update access_tokens set revoked_at = $3 where account = $1 and id = $2 and revoked_at is null")
            .bind(account.to_string()).bind(id.to_string()).bind(now_ms())
            .execute(c).await.map(|r| r.rows_affected()))?;
        Ok(rows > 0)
    }
}

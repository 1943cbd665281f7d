//! Trusted publishers: CI jobs that sign in as a robot with a token of their CI service.

use std::collections::BTreeMap;

use uuid::Uuid;

use super::{Store, Tx, parse_stored, query};
use crate::Error;

/// A publisher of a robot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PublisherRow {
    pub(crate) id: Uuid,
    /// The robot.
    pub(crate) account: Uuid,
    pub(crate) kind: String,
    pub(crate) issuer: String,
    /// What the claims of its tokens have to be.
    pub(crate) conditions: BTreeMap<String, String>,
    /// Claims that have to stay what they were at the first use.
    pub(crate) pins: BTreeMap<String, String>,
    pub(crate) created_at: i64,
    pub(crate) used_at: Option<i64>,
    /// JSON: some claims of the last use.
    pub(crate) claims: Option<String>,
}

#[derive(sqlx_macros::FromRow)]
struct PublisherColumns {
    id: String,
    account: String,
    kind: String,
    issuer: String,
    conditions: String,
    pins: String,
    created_at: i64,
    used_at: Option<i64>,
    claims: Option<String>,
}

impl TryFrom<PublisherColumns> for PublisherRow {
    type Error = Error;

    fn try_from(row: PublisherColumns) -> Result<PublisherRow, Error> {
        Ok(PublisherRow {
            id: parse_stored("publisher", &row.id)?,
            account: parse_stored("account", &row.account)?,
            kind: row.kind,
            issuer: row.issuer,
            conditions: parse_texts("conditions of a publisher", row.conditions)?,
            pins: parse_texts("pins of a publisher", row.pins)?,
            created_at: row.created_at,
            used_at: row.used_at,
            claims: row.claims,
        })
    }
}

fn parse_texts(what: &'static str, value: String) -> Result<BTreeMap<String, String>, Error> {
    serde_json::from_str(&value).map_err(|_| Error::Corrupt { what, value })
}

fn write_texts(texts: &BTreeMap<String, String>) -> String {
    serde_json::to_string(texts).expect("texts serialise to JSON")
}

impl Store {
    /// The publishers of a robot, oldest first, at most `limit` of those that are newer than `after`.
    pub(crate) async fn publisher_list(
        &self,
        account: Uuid,
        after: Option<Uuid>,
        limit: i64,
    ) -> Result<Vec<PublisherRow>, Error> {
        let rows: Vec<PublisherColumns> = query!(self.read(), c => sqlx::query_as(
            "select id, account, kind, issuer, conditions, pins, created_at, used_at, claims from publishers
             where account = $1 and id > $2 order by id limit $3")
            .bind(account.to_string()).bind(after.map(|id| id.to_string()).unwrap_or_default()).bind(limit)
            .fetch_all(c).await)?;
        rows.into_iter().map(PublisherRow::try_from).collect()
    }

    /// Whether an issuer has a publisher.
    pub(crate) async fn issuer_has_publisher(&self, issuer: &str) -> Result<bool, Error> {
        let found: Option<(i64,)> = query!(self.read(), c => sqlx::query_as(
            "select cast(1 as bigint) from publishers where issuer = $1 limit 1")
            .bind(issuer).fetch_optional(c).await)?;
        Ok(found.is_some())
    }

    /// The publishers of an issuer, oldest first.
    pub(crate) async fn publishers_of_issuer(&self, issuer: &str) -> Result<Vec<PublisherRow>, Error> {
        let rows: Vec<PublisherColumns> = query!(self.read(), c => sqlx::query_as(
            "select id, account, kind, issuer, conditions, pins, created_at, used_at, claims from publishers
             where issuer = $1 order by id")
            .bind(issuer).fetch_all(c).await)?;
        rows.into_iter().map(PublisherRow::try_from).collect()
    }

    /// Deletes the tokens of publishers that have expired before this time.
    pub(crate) async fn published_tokens_expire(&self, before: i64) -> Result<(), Error> {
        query!(self.write(), c => sqlx::query(
            "delete from access_tokens where publisher is not null and expires_at < $1")
            .bind(before).execute(c).await.map(drop))?;
        Ok(())
    }
}

impl Tx {
    pub(crate) async fn publisher_insert(&mut self, row: &PublisherRow) -> Result<(), Error> {
        query!(self.conn(), c => sqlx::query(
            "insert into publishers (id, account, kind, issuer, conditions, pins, created_at)
             values ($1, $2, $3, $4, $5, $6, $7)")
            .bind(row.id.to_string()).bind(row.account.to_string()).bind(&row.kind).bind(&row.issuer)
            .bind(write_texts(&row.conditions)).bind(write_texts(&row.pins)).bind(row.created_at)
            .execute(c).await.map(drop))?;
        Ok(())
    }

    /// Records a use. Returns false if the publisher was deleted, or another use has set its pins meanwhile.
    pub(crate) async fn publisher_used(
        &mut self,
        row: &PublisherRow,
        pins: &BTreeMap<String, String>,
        claims: &str,
        at: i64,
    ) -> Result<bool, Error> {
        let rows = query!(self.conn(), c => sqlx::query(
            "update publishers set pins = $3, claims = $4, used_at = $5 where id = $1 and pins = $2")
            .bind(row.id.to_string()).bind(write_texts(&row.pins)).bind(write_texts(pins)).bind(claims).bind(at)
            .execute(c).await.map(|r| r.rows_affected()))?;
        Ok(rows > 0)
    }

    /// Deletes a publisher of a robot, and revokes its tokens. Returns false if there is none.
    pub(crate) async fn publisher_delete(&mut self, account: Uuid, id: Uuid, at: i64) -> Result<bool, Error> {
        let rows = query!(self.conn(), c => sqlx::query("delete from publishers where account = $1 and id = $2")
            .bind(account.to_string()).bind(id.to_string()).execute(c).await.map(|r| r.rows_affected()))?;
        query!(self.conn(), c => sqlx::query(
            "update access_tokens set revoked_at = $2 where publisher = $1 and revoked_at is null")
            .bind(id.to_string()).bind(at).execute(c).await.map(drop))?;
        Ok(rows > 0)
    }
}

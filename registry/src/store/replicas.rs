//! The servers that share this database, as they last reported. Only the database's clock decides how long ago that was,
//! because the clocks of replicas differ.

use std::time::Duration;

use sqlx::AssertSqlSafe;

use super::{Store, query};
use crate::Error;
use crate::time::millis;

/// The most replicas that are listed.
const MAX_LISTED: i64 = 1000;

#[derive(Clone, Debug, sqlx_macros::FromRow)]
pub(crate) struct ReplicaRow {
    /// Of the process.
    pub(crate) id: String,
    pub(crate) address: String,
    pub(crate) version: String,
    pub(crate) state: String,
    pub(crate) started_at: i64,
    pub(crate) seen_at: i64,
    /// Milliseconds since the last report.
    pub(crate) age_ms: i64,
}

impl Store {
    /// Records that a replica runs. Deletes those that were not seen for `forgotten`, and earlier processes with the same
    /// address that were not seen for `absent`.
    pub(crate) async fn replica_report(
        &self,
        id: &str,
        address: &str,
        version: &str,
        state: &str,
        (absent, forgotten): (Duration, Duration),
    ) -> Result<(), Error> {
        let now = self.clock();
        let report = AssertSqlSafe(format!(
            "insert into replicas (id, address, version, state, started_at, seen_at)
             values ($1, $2, $3, $4, {now}, {now})
             on conflict (id) do update set state = excluded.state, seen_at = excluded.seen_at"
        ));
        let forget = AssertSqlSafe(format!(
            "delete from replicas where seen_at < {now} - cast($1 as bigint)
             or address = $2 and id <> $3 and seen_at < {now} - cast($4 as bigint)"
        ));
        let mut tx = self.begin().await?;
        query!(tx.conn(), c => sqlx::query(report).bind(id).bind(address).bind(version).bind(state)
            .execute(c).await.map(drop))?;
        query!(tx.conn(), c => sqlx::query(forget).bind(millis(forgotten)).bind(address).bind(id)
            .bind(millis(absent)).execute(c).await.map(drop))?;
        tx.commit().await
    }

    pub(crate) async fn replica_remove(&self, id: &str) -> Result<(), Error> {
        let mut tx = self.begin().await?;
        query!(tx.conn(), c => sqlx::query("delete from replicas where id = $1").bind(id)
            .execute(c).await.map(drop))?;
        tx.commit().await
    }

    /// All replicas, by address, and those with one address by age.
    pub(crate) async fn replicas(&self) -> Result<Vec<ReplicaRow>, Error> {
        let text = AssertSqlSafe(format!(
            "select id, address, version, state, started_at, seen_at, {} - seen_at as age_ms from replicas
             order by address, started_at, id limit {MAX_LISTED}",
            self.clock()
        ));
        Ok(query!(self.read(), c => sqlx::query_as(text).fetch_all(c).await)?)
    }
}

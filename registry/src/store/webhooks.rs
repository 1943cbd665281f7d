//! Pending webhook deliveries, one row for each event and target. A replica that attempts a delivery first
//! moves its due time ahead, so that several replicas share the work.

use sqlx::AssertSqlSafe;

use super::{Engine, Store, Tx, placeholders, query};
use crate::{Error, metrics};

/// How many deliveries one statement inserts; seven parameters each stay below the engines' limits.
const INSERT_ROWS: usize = 500;

/// An event that was claimed for delivery.
#[derive(Clone, Debug, sqlx_macros::FromRow)]
pub(crate) struct Delivery {
    pub(crate) id: String,
    pub(crate) event: String,
    pub(crate) kind: String,
    pub(crate) payload: String,
    pub(crate) created_at: i64,
    /// Attempts, including the claimed one.
    pub(crate) attempts: i64,
}

/// An event to store for one target. Both ids sort by time.
pub(crate) struct NewDelivery<'a> {
    pub(crate) id: String,
    pub(crate) event: String,
    pub(crate) kind: &'static str,
    pub(crate) target: &'a str,
    pub(crate) payload: String,
    pub(crate) created_at: i64,
}

/// The state of a delivery to one target, as operators see it.
#[derive(Clone, Debug, sqlx_macros::FromRow)]
pub(crate) struct DeliveryRow {
    pub(crate) id: String,
    pub(crate) event: String,
    pub(crate) kind: String,
    pub(crate) target: String,
    pub(crate) created_at: i64,
    pub(crate) attempts: i64,
    pub(crate) problem: Option<String>,
    pub(crate) given_up_at: Option<i64>,
}

const TAKE: &str = "update webhook_deliveries set next_at = $3, attempts = attempts + 1 where id in
     (select id from webhook_deliveries where target = $1 and next_at <= $2 and given_up_at is null order by next_at, id limit $4)
     returning id, event, kind, payload, created_at, attempts";
const TAKE_UNLOCKED: &str = "update webhook_deliveries set next_at = $3, attempts = attempts + 1 where id in
     (select id from webhook_deliveries where target = $1 and next_at <= $2 and given_up_at is null order by next_at, id limit $4
      for update skip locked)
     returning id, event, kind, payload, created_at, attempts";

impl Store {
    /// Claims the next deliveries to a target until `until`.
    pub(crate) async fn deliveries_claim(
        &self,
        target: &str,
        now: i64,
        until: i64,
        limit: i64,
    ) -> Result<Vec<Delivery>, Error> {
        let claimed = metrics::database("deliveries_take", async {
            match self.write() {
                Engine::Sqlite(c) => {
                    let due: Option<(i64,)> = match self.read() {
                        // A write blocks other writers, and mostly nothing is due.
                        Engine::Sqlite(read) => sqlx::query_as(
                            "select 1 from webhook_deliveries where target = $1 and next_at <= $2 and given_up_at is null limit 1")
                            .bind(target).bind(now).fetch_optional(read).await?,
                        Engine::Postgres(_) => None,
                    };
                    if due.is_none() {
                        return Ok(Vec::new());
                    }
                    sqlx::query_as(TAKE).bind(target).bind(now).bind(until).bind(limit).fetch_all(c).await
                }
                Engine::Postgres(c) => {
                    let take = sqlx::query_as(TAKE_UNLOCKED).bind(target).bind(now).bind(until).bind(limit);
                    super::postgres::with_timeout(take.fetch_all(c)).await
                }
            }
        });
        Ok(claimed.await?)
    }

    pub(crate) async fn delivery_done(&self, delivery: &Delivery) -> Result<(), Error> {
        query!(self.write(), c => sqlx::query("delete from webhook_deliveries where id = $1")
            .bind(&delivery.id).execute(c).await.map(drop))?;
        Ok(())
    }

    /// Postpones a delivery, unless another replica has claimed it meanwhile.
    pub(crate) async fn delivery_retry(
        &self,
        delivery: &Delivery,
        problem: &str,
        next_at: i64,
    ) -> Result<(), Error> {
        query!(self.write(), c => sqlx::query(
            "update webhook_deliveries set next_at = $3, problem = $4 where id = $1 and attempts = $2")
            .bind(&delivery.id).bind(delivery.attempts).bind(next_at).bind(problem)
            .execute(c).await.map(drop))?;
        Ok(())
    }

    pub(crate) async fn delivery_abandon(
        &self,
        delivery: &Delivery,
        problem: &str,
        now: i64,
    ) -> Result<(), Error> {
        query!(self.write(), c => sqlx::query(
            "update webhook_deliveries set given_up_at = $3, problem = $4 where id = $1 and attempts = $2")
            .bind(&delivery.id).bind(delivery.attempts).bind(now).bind(problem)
            .execute(c).await.map(drop))?;
        Ok(())
    }

    /// Abandons deliveries that were created before `created_before`.
    pub(crate) async fn deliveries_abandon(&self, created_before: i64, now: i64) -> Result<(), Error> {
        query!(self.write(), c => sqlx::query(
            "update webhook_deliveries set given_up_at = $2 where given_up_at is null and created_at < $1")
            .bind(created_before).bind(now).execute(c).await.map(drop))?;
        Ok(())
    }

    pub(crate) async fn deliveries_delete_abandoned(&self, given_up_before: i64) -> Result<(), Error> {
        query!(self.write(), c => sqlx::query("delete from webhook_deliveries where given_up_at < $1")
            .bind(given_up_before).execute(c).await.map(drop))?;
        Ok(())
    }

    /// Pending and abandoned deliveries, newest first, after `after`.
    pub(crate) async fn delivery_list(
        &self,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<DeliveryRow>, Error> {
        Ok(query!(self.read(), c => sqlx::query_as(
            "select id, event, kind, target, created_at, attempts, problem, given_up_at
             from webhook_deliveries where id < $1 order by id desc limit $2")
            // Ids are hexadecimal: all of them sort before this letter.
            .bind(after.unwrap_or("g")).bind(i64::from(limit)).fetch_all(c).await)?)
    }
}

impl Tx {
    /// Stores events, due at once.
    pub(crate) async fn deliveries_insert(&mut self, deliveries: &[NewDelivery<'_>]) -> Result<(), Error> {
        for rows in deliveries.chunks(INSERT_ROWS) {
            let text = format!(
                "insert into webhook_deliveries (id, event, kind, target, payload, created_at, next_at, attempts)
                 values {}",
                placeholders(rows.len(), "(?, ?, ?, ?, ?, ?, ?, 0)", 1)
            );
            query!(self.conn(), c => {
                let mut query = sqlx::query(AssertSqlSafe(text));
                for row in rows {
                    query = query.bind(&row.id[..]).bind(&row.event[..]).bind(row.kind).bind(row.target)
                        .bind(&row.payload[..]).bind(row.created_at).bind(row.created_at);
                }
                query.execute(c).await.map(drop)
            })?;
        }
        Ok(())
    }

    /// Makes an abandoned or pending delivery due now. Returns false if there is none.
    pub(crate) async fn delivery_redeliver(&mut self, id: &str, now: i64) -> Result<bool, Error> {
        let rows = query!(self.conn(), c => sqlx::query(
            "update webhook_deliveries set given_up_at = null, next_at = $2, created_at = $2 where id = $1")
            .bind(id).bind(now).execute(c).await.map(|r| r.rows_affected()))?;
        Ok(rows > 0)
    }
}

//! Pending webhook deliveries, one row for each event and target. A replica that attempts a delivery first
//! moves its due time ahead, so that several replicas share the work. Due times are by the database's clock.

use std::time::Duration;

use sqlx::AssertSqlSafe;

use super::{Engine, Store, Tx, bigint, placeholders, query};
use crate::time::millis;
use crate::{Error, metrics};

/// How many deliveries one statement inserts; six parameters each stay below the engines' limits.
const INSERT_ROWS: usize = 500;
/// How many old deliveries one statement abandons or deletes.
const OLD_ROWS: u64 = if cfg!(test) { 2 } else { 1000 };

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
    /// Claims the next deliveries to a target for the duration `lease`.
    pub(crate) async fn deliveries_claim(
        &self,
        target: &str,
        lease: Duration,
        limit: i64,
    ) -> Result<Vec<Delivery>, Error> {
        let now = self.database_now_ms().await?;
        let until = now.saturating_add(millis(lease));
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

    /// Postpones a delivery by `pause`, unless another replica has claimed it meanwhile.
    pub(crate) async fn delivery_retry(
        &self,
        delivery: &Delivery,
        problem: &str,
        pause: Duration,
    ) -> Result<(), Error> {
        let text = AssertSqlSafe(format!(
            "update webhook_deliveries set next_at = {} + cast($3 as bigint), problem = $4
             where id = $1 and attempts = $2",
            self.clock()
        ));
        query!(self.write(), c => sqlx::query(text)
            .bind(&delivery.id).bind(delivery.attempts).bind(millis(pause)).bind(problem)
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

    /// Abandons deliveries that were created before `created_before`, in batches. Returns how many.
    pub(crate) async fn deliveries_abandon(&self, created_before: i64, now: i64) -> Result<u64, Error> {
        let mut abandoned = 0;
        loop {
            let rows = query!(self.write(), c => sqlx::query(
                "update webhook_deliveries set given_up_at = $2 where id in
                     (select id from webhook_deliveries where given_up_at is null and created_at < $1
                      order by created_at, id limit $3)")
                .bind(created_before).bind(now).bind(bigint(OLD_ROWS))
                .execute(c).await.map(|r| r.rows_affected()))?;
            abandoned += rows;
            if rows < OLD_ROWS {
                return Ok(abandoned);
            }
        }
    }

    /// Deletes deliveries that were abandoned before `given_up_before`, in batches. Returns how many.
    pub(crate) async fn deliveries_delete_abandoned(&self, given_up_before: i64) -> Result<u64, Error> {
        let mut deleted = 0;
        loop {
            let rows = query!(self.write(), c => sqlx::query(
                "delete from webhook_deliveries where id in
                     (select id from webhook_deliveries where given_up_at < $1 order by given_up_at limit $2)")
                .bind(given_up_before).bind(bigint(OLD_ROWS)).execute(c).await.map(|r| r.rows_affected()))?;
            deleted += rows;
            if rows < OLD_ROWS {
                return Ok(deleted);
            }
        }
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
                placeholders(rows.len(), &format!("(?, ?, ?, ?, ?, ?, {}, 0)", self.0.clock()), 1)
            );
            query!(self.conn(), c => {
                let mut query = sqlx::query(AssertSqlSafe(text));
                for row in rows {
                    query = query.bind(&row.id[..]).bind(&row.event[..]).bind(row.kind).bind(row.target)
                        .bind(&row.payload[..]).bind(row.created_at);
                }
                query.execute(c).await.map(drop)
            })?;
        }
        Ok(())
    }

    /// Makes an abandoned or pending delivery due now. Returns false if there is none.
    pub(crate) async fn delivery_redeliver(&mut self, id: &str, now: i64) -> Result<bool, Error> {
        let text = AssertSqlSafe(format!(
            "update webhook_deliveries set given_up_at = null, next_at = {}, created_at = $2 where id = $1",
            self.0.clock()
        ));
        let rows = query!(self.conn(), c => sqlx::query(text)
            .bind(id).bind(now).execute(c).await.map(|r| r.rows_affected()))?;
        Ok(rows > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::now_ms;

    async fn insert(store: &Store, created_at: &[i64]) {
        let mut tx = store.begin().await.unwrap();
        let deliveries: Vec<NewDelivery<'_>> = created_at
            .iter()
            .map(|at| NewDelivery {
                id: format!("{at:016x}"),
                event: "event".to_owned(),
                kind: "push",
                target: "http://x/",
                payload: "{}".to_owned(),
                created_at: *at,
            })
            .collect();
        tx.deliveries_insert(&deliveries).await.unwrap();
        tx.commit().await.unwrap();
    }

    #[tokio::test]
    async fn old_deliveries_are_abandoned_and_deleted_in_batches() {
        crate::store::each_store(async |store: Store| {
            insert(&store, &[1, 2, 3, 4, 5, 6, 7]).await;
            assert_eq!(store.deliveries_abandon(6, 100).await.unwrap(), 5);
            assert_eq!(store.deliveries_abandon(6, 101).await.unwrap(), 0);
            let listed = async || {
                let rows = store.delivery_list(None, 10).await.unwrap();
                rows.into_iter().map(|row| (row.created_at, row.given_up_at)).collect::<Vec<_>>()
            };
            let pending = [(7, None), (6, None)];
            assert_eq!(listed().await[..2], pending);
            assert_eq!(listed().await[2], (5, Some(100)));
            assert_eq!(store.deliveries_delete_abandoned(100).await.unwrap(), 0);
            assert_eq!(store.deliveries_delete_abandoned(101).await.unwrap(), 5);
            assert_eq!(listed().await, pending);
        })
        .await;
    }

    #[tokio::test]
    async fn the_clock_of_the_database_decides_what_is_due() {
        let Some(url) = crate::store::postgres_ahead_for_test().await else { return };
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(Some(&url), folder.path()).await.unwrap();
        let minute = Duration::from_secs(60);
        let next_at = async || {
            let (at,): (i64,) = query!(store.read(), c => sqlx::query_as(
                "select next_at from webhook_deliveries").fetch_one(c).await)
            .unwrap();
            at - store.database_now_ms().await.unwrap()
        };
        insert(&store, &[now_ms()]).await;
        assert!((-10_000..=0).contains(&next_at().await), "{}", next_at().await);
        let claimed = store.deliveries_claim("http://x/", minute, 10).await.unwrap();
        assert_eq!(claimed.len(), 1);
        assert!((50_000..=60_000).contains(&next_at().await), "{}", next_at().await);
        assert!(store.deliveries_claim("http://x/", minute, 10).await.unwrap().is_empty());
        store.delivery_retry(&claimed[0], "refused", 2 * minute).await.unwrap();
        assert!((110_000..=120_000).contains(&next_at().await), "{}", next_at().await);
        let mut tx = store.begin().await.unwrap();
        assert!(tx.delivery_redeliver(&claimed[0].id, now_ms()).await.unwrap());
        tx.commit().await.unwrap();
        assert_eq!(store.deliveries_claim("http://x/", minute, 10).await.unwrap().len(), 1);
    }
}

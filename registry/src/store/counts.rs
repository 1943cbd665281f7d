//! Gauges for `/metrics`: open uploads, pending deliveries and the state of the connection pools.

use sqlx::pool::Pool;

use super::acquire::{POSTGRES_POOL, READ_POOL, WRITE_POOL};
use super::{Engine, Store, query};
use crate::Error;
use crate::metrics::PoolState;

/// Larger counts are reported as this one, so that no scrape reads a long table.
const MAX_COUNT: i64 = 100_000;

#[derive(sqlx_macros::FromRow)]
pub(crate) struct Counts {
    pub(crate) uploads: i64,
    /// Pending webhook deliveries.
    pub(crate) webhooks: i64,
    /// Manifests to be indexed as models, those included whose next attempt is due later.
    pub(crate) index_queue: i64,
}

impl Store {
    pub(crate) async fn counts(&self) -> Result<Counts, Error> {
        Ok(query!(self.read(), c => sqlx::query_as(
            "select (select count(*) from (select 1 from uploads limit $1) as u) as uploads,
                 (select count(*) from (select 1 from webhook_deliveries where given_up_at is null limit $1) as w)
                     as webhooks,
                 (select count(*) from (select 1 from index_queue where next_at is not null limit $1) as i)
                     as index_queue")
            .bind(MAX_COUNT).fetch_one(c).await)?)
    }

    pub(crate) fn connections(&self) -> Vec<PoolState> {
        match &self.0 {
            Engine::Sqlite(pools) => {
                vec![pool_state(READ_POOL, &pools.read), pool_state(WRITE_POOL, &pools.write)]
            }
            Engine::Postgres(pool) => vec![pool_state(POSTGRES_POOL, pool)],
        }
    }
}

fn pool_state<D: sqlx::Database>(name: &'static str, pool: &Pool<D>) -> PoolState {
    let idle = u32::try_from(pool.num_idle()).unwrap_or(u32::MAX);
    PoolState { name, size: pool.size(), idle, max: pool.options().get_max_connections() }
}

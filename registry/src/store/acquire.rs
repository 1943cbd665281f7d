//! Waits for a connection of a pool, and measures the wait. The `on!` macro calls it for each query.

use std::future::Future;
use std::sync::LazyLock;

use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnection, PgPool};
use sqlx::sqlite::{SqliteConnection, SqlitePool};
use sqlx::{Postgres, Sqlite};

use crate::metrics::PoolWait;

/// Names of the pools in metrics.
pub(super) const READ_POOL: &str = "read";
pub(super) const WRITE_POOL: &str = "write";
pub(super) const POSTGRES_POOL: &str = "all";

static READ: LazyLock<PoolWait> = LazyLock::new(|| PoolWait::new(READ_POOL));
static WRITE: LazyLock<PoolWait> = LazyLock::new(|| PoolWait::new(WRITE_POOL));
static ALL: LazyLock<PoolWait> = LazyLock::new(|| PoolWait::new(POSTGRES_POOL));

/// A pool, or the connection of a transaction.
pub(crate) trait Acquire {
    type Connection;

    /// A connection for one query.
    fn acquire_measured(self) -> impl Future<Output = Result<Self::Connection, sqlx::Error>> + Send;
}

impl Acquire for &SqlitePool {
    type Connection = PoolConnection<Sqlite>;

    async fn acquire_measured(self) -> Result<PoolConnection<Sqlite>, sqlx::Error> {
        sqlite_wait(self).measure(self.acquire()).await
    }
}

impl Acquire for &PgPool {
    type Connection = PoolConnection<Postgres>;

    async fn acquire_measured(self) -> Result<PoolConnection<Postgres>, sqlx::Error> {
        postgres_wait().measure(self.acquire()).await
    }
}

impl<'c> Acquire for &'c mut SqliteConnection {
    type Connection = &'c mut SqliteConnection;

    async fn acquire_measured(self) -> Result<&'c mut SqliteConnection, sqlx::Error> {
        Ok(self)
    }
}

impl<'c> Acquire for &'c mut PgConnection {
    type Connection = &'c mut PgConnection;

    async fn acquire_measured(self) -> Result<&'c mut PgConnection, sqlx::Error> {
        Ok(self)
    }
}

/// The metrics of a pool: the one that writes has one connection.
pub(super) fn sqlite_wait(pool: &SqlitePool) -> &'static PoolWait {
    if pool.options().get_max_connections() == 1 { &WRITE } else { &READ }
}

pub(super) fn postgres_wait() -> &'static PoolWait {
    &ALL
}

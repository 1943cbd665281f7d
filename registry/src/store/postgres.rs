//! The Postgres connection pool: its size, its time limits, and how startup waits for the database. A
//! connection that stopped responding is never handed out again.

use std::io;
use std::str::FromStr;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use sqlx::migrate::{MigrateError, Migrator};
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Postgres, Transaction};
use url::Url;

use crate::error::{DatabaseError, is_session_refused};
use crate::time::now_ms;
use crate::{Error, OpenError};

/// How long a request waits for a connection before it fails with a retryable error.
const ACQUIRE_LIMIT: Duration = Duration::from_secs(5);
/// How long one statement or commit may take. A longer wait means that the database does not respond.
pub(crate) const STATEMENT_LIMIT: Duration = Duration::from_secs(if cfg!(test) { 8 } else { 20 });
/// How much longer than `STATEMENT_LIMIT` Postgres itself waits for a lock and runs a statement. Only
/// statements that this process abandoned, or can no longer abandon, reach these limits.
const SERVER_LOCK_MARGIN: Duration = Duration::from_secs(5);
const SERVER_STATEMENT_MARGIN: Duration = Duration::from_secs(10);
/// How long Postgres keeps an idle transaction and its locks.
const IDLE_LIMIT: Duration = Duration::from_secs(60);
/// How long a statement on a whole table may take.
const LONG_LIMIT: Duration = Duration::from_secs(3600);
/// How long a migration waits for a table lock before it gives way to the statements that queue behind it.
const MIGRATION_LOCK_LIMIT: Duration = Duration::from_secs(3);
const MIGRATION_TRIES: u32 = 20;
/// A connection that was used this recently is assumed to be alive.
const ASSUMED_ALIVE: Duration = Duration::from_secs(1);
/// After a connection has failed, no idle connection is assumed to be alive for this long: the same cause may
/// have cut others.
const SUSPECT_MS: i64 = 10_000;
/// When a connection last failed, in milliseconds since 1970.
static FAILED_AT: AtomicI64 = AtomicI64::new(0);
const PING_LIMIT: Duration = Duration::from_secs(2);
/// The smallest pool. A collection holds one connection for its lock and works with another.
const MIN_CONNECTIONS: u32 = 4;
/// Makes Postgres notice within a minute that this machine is gone, and release its locks.
const KEEPALIVE: &str =
    "set tcp_keepalives_idle = 30; set tcp_keepalives_interval = 10; set tcp_keepalives_count = 3";
/// Statements read few rows, but their estimated costs are high enough that Postgres would compile many of them, which
/// takes longer than running them.
const NO_COMPILATION: &str = "set jit = off";
/// For statements without a limit: migrations and index builds.
const NO_LIMITS: &str =
    "set statement_timeout = 0; set lock_timeout = 0; set idle_in_transaction_session_timeout = 0";
/// How often startup retries the connection or the migration lock.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// Connection settings of a Postgres database.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PostgresOptions {
    /// The most connections of this process.
    pub(crate) connections: u32,
    /// How long startup waits for the database.
    pub(crate) wait: Duration,
}

impl Default for PostgresOptions {
    fn default() -> Self {
        PostgresOptions { connections: 16, wait: Duration::from_secs(30) }
    }
}

pub(super) async fn connect(url: &Url, reach: PostgresOptions) -> Result<PgPool, OpenError> {
    if reach.connections < MIN_CONNECTIONS {
        let reason = format!("expected at least {MIN_CONNECTIONS} connections, got {}", reach.connections);
        return Err(OpenError::Config { setting: "database_connections", reason });
    }
    let options = PgConnectOptions::from_str(url.as_str())
        .map_err(|error| OpenError::Config { setting: "database", reason: error.to_string() })?
        .application_name("lode");
    wait_for_database(url, &options, reach.wait).await?;
    Ok(PgPoolOptions::new()
        .max_connections(reach.connections)
        .acquire_timeout(ACQUIRE_LIMIT)
        .after_connect(|connection, _| {
            Box::pin(async move {
                let settings = format!("{KEEPALIVE}; {NO_COMPILATION}; {}", limits());
                sqlx::raw_sql(AssertSqlSafe(settings)).execute(connection).await.map(drop)
            })
        })
        // `before_acquire` is cheaper: most connections were in use a moment ago.
        .test_before_acquire(false)
        .before_acquire(|connection, usage| {
            Box::pin(async move {
                match usage.idle_for > ASSUMED_ALIVE || is_suspect() {
                    true => ping(connection).await,
                    false => Ok(true),
                }
            })
        })
        // An abandoned statement may still run; without a response the connection is closed. Session locks
        // are released.
        .after_release(|connection, _| Box::pin(unlock(connection)))
        .connect_lazy_with(options))
}

fn is_suspect() -> bool {
    now_ms().saturating_sub(FAILED_AT.load(Ordering::Relaxed)) < SUSPECT_MS
}

async fn ping(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    match tokio::time::timeout(PING_LIMIT, connection.ping()).await {
        Ok(result) => result.map(|()| true),
        Err(_) => Err(timed_out()),
    }
}

async fn unlock(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    let unlocked = sqlx::raw_sql("select pg_advisory_unlock_all()").execute(connection);
    match tokio::time::timeout(PING_LIMIT, unlocked).await {
        Ok(result) => result.map(|_| true),
        Err(_) => Err(timed_out()),
    }
}

/// Postgres's own limits, above those of this process: they free the locks of a replica that crashed or was
/// cut off.
fn limits() -> String {
    let statement = STATEMENT_LIMIT + SERVER_STATEMENT_MARGIN;
    let lock = STATEMENT_LIMIT + SERVER_LOCK_MARGIN;
    format!(
        "set statement_timeout = {}; set lock_timeout = {}; set idle_in_transaction_session_timeout = {}",
        statement.as_millis(),
        lock.as_millis(),
        IDLE_LIMIT.as_millis()
    )
}

/// A transaction for statements on whole tables.
pub(crate) async fn begin_long(pool: &PgPool) -> Result<Transaction<'static, Postgres>, sqlx::Error> {
    let mut tx = with_timeout(pool.begin()).await?;
    let text = format!("set local statement_timeout = {}", LONG_LIMIT.as_millis());
    with_timeout(sqlx::raw_sql(AssertSqlSafe(text)).execute(&mut *tx)).await?;
    Ok(tx)
}

/// Migrates the schema. Of several replicas that start at once, one does it and the others wait.
pub(super) async fn migrate(pool: &PgPool, mut migrator: Migrator) -> Result<(), MigrateError> {
    // sqlx would wait for its lock within a statement, and a concurrent index build would wait for that
    // statement's snapshot.
    migrator.set_locking(false);
    let mut connection = connect_unlimited(pool).await?;
    loop {
        let (ours,): (bool,) =
            sqlx::query_as("select pg_try_advisory_lock(hashtext('migrations'), hashtext(current_schema()))")
                .fetch_one(&mut connection)
                .await?;
        if ours {
            break;
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
    let limit = format!("set lock_timeout = {}", MIGRATION_LOCK_LIMIT.as_millis());
    sqlx::raw_sql(AssertSqlSafe(limit)).execute(&mut connection).await?;
    let mut tries = 1;
    loop {
        match migrator.run_direct(None, &mut connection, false).await {
            Err(MigrateError::ExecuteMigration(error, version))
                if is_lock_timeout(&error) && tries < MIGRATION_TRIES =>
            {
                tracing::warn!(
                    version,
                    "migration timed out waiting for transactions of other replicas; will retry"
                );
                tries += 1;
            }
            outcome => {
                // Closing the connection releases the lock.
                let _ = connection.close().await;
                return outcome;
            }
        }
    }
}

fn is_lock_timeout(error: &sqlx::Error) -> bool {
    error.as_database_error().and_then(|error| error.code()).is_some_and(|code| code == "55P03")
}

/// A connection of its own for statements without a limit.
pub(super) async fn connect_unlimited(pool: &PgPool) -> Result<PgConnection, sqlx::Error> {
    let mut connection = pool.acquire().await?.detach();
    sqlx::raw_sql(NO_LIMITS).execute(&mut connection).await?;
    Ok(connection)
}

/// Builds an index while other replicas write to its table, on a connection of [`connect_unlimited`]. An empty table is
/// indexed directly, because a concurrent build costs several waits.
pub(super) async fn build_index(
    connection: &mut PgConnection,
    name: &str,
    table: &str,
    on: &str,
) -> Result<(), sqlx::Error> {
    let text = format!("select exists (select 1 from {table})");
    let (has_rows,): (bool,) = sqlx::query_as(AssertSqlSafe(text)).fetch_one(&mut *connection).await?;
    let how = if has_rows { "concurrently" } else { "" };
    if has_rows {
        tracing::info!(index = name, table, "building an index of the database");
    }
    // An interrupted build leaves an invalid index.
    let statements =
        [format!("drop index {how} if exists {name}"), format!("create index {how} {name} on {table} {on}")];
    for text in statements {
        sqlx::raw_sql(AssertSqlSafe(text)).execute(&mut *connection).await?;
    }
    Ok(())
}

/// Returns once the database accepts a connection. A database that rejects the connection is not waited for.
async fn wait_for_database(url: &Url, options: &PgConnectOptions, limit: Duration) -> Result<(), Error> {
    let started = Instant::now();
    let mut has_warned = false;
    loop {
        let error = match tokio::time::timeout(ACQUIRE_LIMIT, options.connect()).await {
            Ok(Ok(connection)) => {
                // It ran no statement, so an error on closing does not matter.
                let _ = connection.close().await;
                return Ok(());
            }
            Ok(Err(error)) if is_session_refused(&error) => {
                return Err(Error::Database(DatabaseError(error)));
            }
            Ok(Err(error)) => Error::from(error),
            Err(_) => Error::from(timed_out()),
        };
        if !matches!(error, Error::Unavailable { .. }) || started.elapsed() >= limit {
            return Err(error);
        }
        if !has_warned {
            let host = url.host_str().unwrap_or("its socket");
            let error = crate::error::chain(&error);
            tracing::warn!(host, error, "waiting up to {} s for the database", limit.as_secs());
            has_warned = true;
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}

/// Runs a statement with a timeout: an unresponsive database must not hold the request or its connection.
pub(crate) async fn with_timeout<T>(
    statement: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, sqlx::Error> {
    within(STATEMENT_LIMIT, statement).await
}

/// The same for a statement in a transaction of [`begin_long`], which the server ends at its limit.
pub(crate) async fn with_long_timeout<T>(
    statement: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, sqlx::Error> {
    within(LONG_LIMIT + STATEMENT_LIMIT, statement).await
}

async fn within<T>(
    limit: Duration,
    statement: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, sqlx::Error> {
    let outcome = match tokio::time::timeout(limit, statement).await {
        Ok(outcome) => outcome,
        Err(_) => Err(timed_out()),
    };
    if matches!(outcome, Err(sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::Protocol(_))) {
        FAILED_AT.store(now_ms(), Ordering::Relaxed);
    }
    outcome
}

fn timed_out() -> sqlx::Error {
    sqlx::Error::Io(io::Error::new(io::ErrorKind::TimedOut, "no response in time"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_server_ends_what_this_process_abandoned() {
        let Some(url) = crate::store::postgres_for_test().await else { return };
        let pool = connect(&url, PostgresOptions::default()).await.unwrap();
        let ours = STATEMENT_LIMIT.as_millis() as i64;
        for name in ["statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"] {
            let (limit,): (i64,) =
                sqlx::query_as("select cast(setting as bigint) from pg_settings where name = $1")
                    .bind(name)
                    .fetch_one(&pool)
                    .await
                    .unwrap();
            assert!(limit > ours && limit < 10 * ours, "{name} {limit}");
        }
        // A read of a whole table has a separate limit, which applies to it alone.
        let mut tx = begin_long(&pool).await.unwrap();
        let limit = "select cast(setting as bigint) from pg_settings where name = 'statement_timeout'";
        let (patient,): (i64,) = sqlx::query_as(limit).fetch_one(&mut *tx).await.unwrap();
        assert_eq!(patient, LONG_LIMIT.as_millis() as i64);
        tx.commit().await.unwrap();
    }
}

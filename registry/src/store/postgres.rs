//! The pool of connections to Postgres: how many, how long anything may take, and how a start waits for a database that is
//! not up yet. A connection that fell silent is never handed out again.

use std::io;
use std::str::FromStr;
use std::time::{Duration, Instant};

use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool, PgPoolOptions};
use sqlx::{ConnectOptions, Connection};
use url::Url;

use crate::Error;

/// How long a request waits for a connection before it is told to come back later.
const ACQUIRE_LIMIT: Duration = Duration::from_secs(5);
/// How long one statement or commit may take. What takes longer waits for a database that does not answer.
const STATEMENT_LIMIT: Duration = Duration::from_secs(if cfg!(test) { 8 } else { 20 });
/// A connection that was used this recently is taken to be alive.
const FRESH: Duration = Duration::from_secs(1);
const PING_LIMIT: Duration = Duration::from_secs(2);
/// A collection holds one connection for its turn and works with another.
const FEWEST: u32 = 4;
/// Makes the server notice within a minute that this machine is gone: what it held is free then.
const KEEPALIVE: &str =
    "set tcp_keepalives_idle = 30; set tcp_keepalives_interval = 10; set tcp_keepalives_count = 3";
/// How often a start looks whether the database is there by now.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// How the index is reached.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reach {
    /// Connections of this process at a time.
    pub(crate) connections: u32,
    /// How long a start waits for the database.
    pub(crate) wait: Duration,
}

impl Default for Reach {
    fn default() -> Self {
        Reach { connections: 16, wait: Duration::from_secs(30) }
    }
}

pub(super) async fn connect(url: &Url, reach: Reach) -> Result<PgPool, Error> {
    let options = PgConnectOptions::from_str(url.as_str())
        .map_err(|error| Error::Config { setting: "database", reason: error.to_string() })?
        .application_name("lode");
    wait_for(url, &options, reach.wait).await?;
    Ok(PgPoolOptions::new()
        .max_connections(reach.connections.max(FEWEST))
        .acquire_timeout(ACQUIRE_LIMIT)
        .after_connect(|connection, _| {
            Box::pin(async move { sqlx::raw_sql(KEEPALIVE).execute(connection).await.map(drop) })
        })
        // What `before_acquire` does is cheaper: most connections were in use a moment ago.
        .test_before_acquire(false)
        .before_acquire(|connection, usage| {
            Box::pin(async move {
                match usage.idle_for > FRESH {
                    true => ping(connection).await,
                    false => Ok(true),
                }
            })
        })
        // A statement that was given up may be under way still; without an answer the connection is closed.
        .after_release(|connection, _| Box::pin(ping(connection)))
        .connect_lazy_with(options))
}

async fn ping(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    match tokio::time::timeout(PING_LIMIT, connection.ping()).await {
        Ok(answer) => answer.map(|()| true),
        Err(_) => Err(timed_out()),
    }
}

/// Returns once the database takes a connection; a database that is there and refuses it is not waited for.
async fn wait_for(url: &Url, options: &PgConnectOptions, limit: Duration) -> Result<(), Error> {
    let started = Instant::now();
    let mut told = false;
    loop {
        let error = match tokio::time::timeout(ACQUIRE_LIMIT, options.connect()).await {
            Ok(Ok(connection)) => {
                // Nothing was asked of it: how it ends does not matter.
                let _ = connection.close().await;
                return Ok(());
            }
            Ok(Err(error)) => Error::from(error),
            Err(_) => Error::from(timed_out()),
        };
        if !matches!(error, Error::Unavailable { .. }) || started.elapsed() >= limit {
            return Err(error);
        }
        if !told {
            let host = url.host_str().unwrap_or("its socket");
            let error = crate::error::chain(&error);
            tracing::warn!(host, error, "waiting for the database for {} s", limit.as_secs());
            told = true;
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

/// Runs a statement, but not for ever: a database that fell silent must not keep the request, nor its connection.
pub(super) async fn in_time<T>(
    statement: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, sqlx::Error> {
    match tokio::time::timeout(STATEMENT_LIMIT, statement).await {
        Ok(answer) => answer,
        Err(_) => Err(timed_out()),
    }
}

fn timed_out() -> sqlx::Error {
    sqlx::Error::Io(io::Error::new(io::ErrorKind::TimedOut, "no answer in time"))
}

//! The database: opening it, reads, and transactions. The `query!` macro runs one query text on either engine.

use std::fs::OpenOptions;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use lode_model::digest::Digest;
use sqlx::migrate::MigrateError;
use sqlx::postgres::{PgConnection, PgPool};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePool, SqlitePoolOptions,
    SqliteSynchronous,
};
use sqlx::{AssertSqlSafe, Postgres, Sqlite, Transaction};
use url::Url;

use super::acquire::{POSTGRES_WAIT, SQLITE_WAIT};
use super::postgres::{self, PostgresOptions};
use super::read_cache::{CacheLookup, CachedValue, ReadCache};
use crate::error::{DatabaseError, is_disk_full};
use crate::{Error, OpenError, metrics};

pub(super) const BUSY_TIMEOUT: Duration = Duration::from_secs(10);
const READERS: u32 = 8;

/// A value for either database engine.
pub(crate) enum Engine<S, P> {
    Sqlite(S),
    Postgres(P),
}

impl<S, P> Engine<S, P> {
    /// A name whose collation is that of bytes, such as `repositories.name`, for a comparison with a column without a
    /// collation of its own, such as `links.repository`.
    pub(super) fn in_default(&self, name: &str) -> String {
        match self {
            Engine::Sqlite(_) => name.to_owned(),
            Engine::Postgres(_) => format!("({name} collate \"default\")"),
        }
    }

    /// The database's clock as an SQL expression: milliseconds since 1970.
    pub(super) fn clock(&self) -> &'static str {
        match self {
            Engine::Sqlite(_) => "cast(unixepoch('subsec') * 1000 as bigint)",
            Engine::Postgres(_) => "cast(extract(epoch from clock_timestamp()) * 1000 as bigint)",
        }
    }
}

/// Records metrics of a query under the name of the calling function.
macro_rules! measured {
    ($run:expr) => {{
        fn here() {}
        let operation = $crate::metrics::function_name(::std::any::type_name_of_val(&here));
        $crate::metrics::database(operation, async { $run }).await
    }};
}
pub(crate) use measured;

/// Runs one query text on the engine behind `$target`.
macro_rules! query {
    ($target:expr, $c:ident => $run:expr) => {
        $crate::store::measured!(match $target {
            $crate::store::Engine::Sqlite($c) => $run,
            $crate::store::Engine::Postgres($c) =>
                $crate::store::postgres::with_timeout(async { $run }).await,
        })
    };
}
pub(crate) use query;

/// Like `query!`, for reads of a whole table, which need a longer time limit.
macro_rules! long_query {
    ($target:expr, $c:ident => $run:expr) => {
        $crate::store::measured!(match $target {
            $crate::store::Engine::Sqlite($c) => $run,
            $crate::store::Engine::Postgres(pool) => {
                let mut transaction = $crate::store::postgres::begin_long(pool).await?;
                let $c = &mut *transaction;
                let outcome = $crate::store::postgres::with_long_timeout(async { $run }).await?;
                $crate::store::postgres::with_timeout(transaction.commit()).await?;
                Ok(outcome)
            }
        })
    };
}
pub(crate) use long_query;

/// Like `query!`, for a statement on a whole table in a transaction of [`Store::begin_long`].
macro_rules! long_statement {
    ($target:expr, $c:ident => $run:expr) => {
        $crate::store::measured!(match $target {
            $crate::store::Engine::Sqlite($c) => $run,
            $crate::store::Engine::Postgres($c) =>
                $crate::store::postgres::with_long_timeout(async { $run }).await,
        })
    };
}
pub(crate) use long_statement;

/// The database. A read sees every commit that was acknowledged before it.
pub(crate) struct Store(pub(super) Engine<SqlitePools, PgPool>);

pub(super) struct SqlitePools {
    /// One connection: SQLite has one writer at a time. Waiting for this pool is fair; waiting for SQLite's
    /// lock is not.
    pub(super) write: SqlitePool,
    pub(super) read: SqlitePool,
    /// Set only where no other process writes to the file.
    pub(super) recent: Option<Arc<ReadCache>>,
}

/// Creates a missing database file with mode 0600, which SQLite also gives to its journals, and warns about a
/// file that other users can read. Other problems with the path are reported when it is opened.
pub(super) fn create_private_file(path: &Path) {
    let new = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let Err(error) = new else { return };
    if error.kind() != std::io::ErrorKind::AlreadyExists {
        return;
    }
    let Ok(metadata) = std::fs::metadata(path) else { return };
    if metadata.mode() & 0o077 != 0 {
        let mode = format!("{:o}", metadata.mode() & 0o7777);
        tracing::warn!(path = %path.display(), mode, "database is open to other users; restrict it with chmod 600");
    }
}

/// A transaction. Dropping it without `commit` rolls it back.
pub(crate) struct Tx(pub(super) Engine<Transaction<'static, Sqlite>, Transaction<'static, Postgres>>);

impl Store {
    #[cfg(test)]
    pub(crate) async fn open(url: Option<&Url>, data: &Path) -> Result<Store, OpenError> {
        Store::open_with(url, data, PostgresOptions::default()).await
    }

    /// Opens the database named by `url` (default: `lode.db` in `data`) and migrates its schema.
    pub(crate) async fn open_with(
        url: Option<&Url>,
        data: &Path,
        reach: PostgresOptions,
    ) -> Result<Store, OpenError> {
        let store = match url {
            None => Store::open_sqlite(&data.join("lode.db"), Some(Arc::default())).await?,
            Some(url) => match url.scheme() {
                // `sqlite:PATH`, or `sqlite://PATH`, in which the first part of a relative path is parsed as
                // a host.
                "sqlite" => {
                    let path = format!("{}{}", url.host_str().unwrap_or_default(), url.path());
                    let path = percent_encoding::percent_decode_str(&path).decode_utf8_lossy().into_owned();
                    Store::open_sqlite(Path::new(&path), None).await?
                }
                "postgres" | "postgresql" => Store(Engine::Postgres(postgres::connect(url, reach).await?)),
                other => {
                    return Err(OpenError::Config {
                        setting: "database",
                        reason: format!("expected sqlite: or postgres:, got {other}:"),
                    });
                }
            },
        };
        match &store.0 {
            Engine::Sqlite(pools) => sqlx_macros::migrate!("../migrations/sqlite").run(&pools.write).await,
            Engine::Postgres(pool) => {
                postgres::migrate(pool, sqlx_macros::migrate!("../migrations/postgres")).await
            }
        }
        .map_err(|error| match error {
            MigrateError::VersionMissing(version) => OpenError::SchemaNewer { version },
            MigrateError::ExecuteMigration(error, _) if is_disk_full(&error) => Error::StorageFull.into(),
            MigrateError::ExecuteMigration(error, version) => {
                OpenError::Migration { version, source: DatabaseError(error) }
            }
            MigrateError::Execute(error) => error.into(),
            error => OpenError::Migrate(error),
        })?;
        store.build_indexes().await?;
        Ok(store)
    }

    pub(super) async fn open_sqlite(path: &Path, recent: Option<Arc<ReadCache>>) -> Result<Store, Error> {
        create_private_file(path);
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            // FULL: an acknowledged commit survives a power failure, not only the loss of the process.
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(true)
            .busy_timeout(BUSY_TIMEOUT)
            .pragma("journal_size_limit", "67108864");
        let watcher = recent.clone();
        let write = SqlitePoolOptions::new()
            .max_connections(1)
            .after_connect(move |connection, _| {
                let watcher = watcher.clone();
                Box::pin(async move {
                    match watcher {
                        Some(recent) => recent.watch(connection).await,
                        None => Ok(()),
                    }
                })
            })
            .connect_with(options)
            .await?;
        let readers = SqliteConnectOptions::new()
            .filename(path)
            .read_only(true)
            .foreign_keys(true)
            .busy_timeout(BUSY_TIMEOUT);
        let read = SqlitePoolOptions::new().max_connections(READERS).connect_with(readers).await?;
        Ok(Store(Engine::Sqlite(SqlitePools { write, read, recent })))
    }

    /// The pool for queries that only read.
    pub(crate) fn read(&self) -> Engine<&SqlitePool, &PgPool> {
        match &self.0 {
            Engine::Sqlite(pools) => Engine::Sqlite(&pools.read),
            Engine::Postgres(pool) => Engine::Postgres(pool),
        }
    }

    /// The pool for a single statement that writes; several statements use `begin`.
    pub(crate) fn write(&self) -> Engine<&SqlitePool, &PgPool> {
        match &self.0 {
            Engine::Sqlite(pools) => Engine::Sqlite(&pools.write),
            Engine::Postgres(pool) => Engine::Postgres(pool),
        }
    }

    /// Returns the cached value if nothing has changed since it was read, and otherwise runs the query.
    pub(super) async fn read_cached<T>(
        &self,
        key: String,
        query: impl Future<Output = Result<Option<T>, Error>>,
        to: fn(T) -> CachedValue,
        from: fn(CachedValue) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let Engine::Sqlite(SqlitePools { recent: Some(recent), write, .. }) = &self.0 else {
            return query.await;
        };
        let queried_at = match recent.look(write, &key) {
            CacheLookup::Known(known) => return Ok(from(known)),
            CacheLookup::Unknown(at) => at,
        };
        let Some(found) = query.await? else { return Ok(None) };
        let known = to(found);
        recent.keep(queried_at, key, &known);
        Ok(from(known))
    }

    pub(crate) async fn begin(&self) -> Result<Tx, Error> {
        let begun = async {
            Ok::<_, sqlx::Error>(match &self.0 {
                Engine::Sqlite(pools) => {
                    Engine::Sqlite(SQLITE_WAIT.measure(begin_sqlite(&pools.write)).await?)
                }
                Engine::Postgres(pool) => {
                    Engine::Postgres(POSTGRES_WAIT.measure(postgres::with_timeout(pool.begin())).await?)
                }
            })
        };
        Ok(Tx(metrics::database("begin", begun).await?))
    }

    /// A transaction whose statements may change whole tables.
    pub(crate) async fn begin_long(&self) -> Result<Tx, Error> {
        match &self.0 {
            Engine::Sqlite(_) => self.begin().await,
            Engine::Postgres(pool) => {
                let begun = Box::pin(postgres::begin_long(pool));
                Ok(Tx(Engine::Postgres(metrics::database("begin", begun).await?)))
            }
        }
    }

    /// Checks that the database responds.
    pub(crate) async fn ping(&self) -> Result<(), Error> {
        query!(self.read(), c => sqlx::query("select 1 from repositories limit 1").execute(c).await.map(drop))?;
        Ok(())
    }

    /// The database's clock as an SQL expression: milliseconds since 1970.
    pub(super) fn clock(&self) -> &'static str {
        self.0.clock()
    }

    /// Milliseconds since 1970 by the database's clock. All replicas share it, so they agree when a lease expires.
    pub(crate) async fn database_now_ms(&self) -> Result<i64, Error> {
        let text = AssertSqlSafe(format!("select {}", self.clock()));
        let (now,): (i64,) = query!(self.read(), c => sqlx::query_as(text).fetch_one(c).await)?;
        Ok(now)
    }

    /// A name for a comparison with a column whose collation is that of bytes, such as `search.repository`.
    /// Postgres uses no index for a comparison of columns with different collations.
    pub(super) fn in_bytes(&self, name: &str) -> String {
        match self.0 {
            Engine::Sqlite(_) => name.to_owned(),
            Engine::Postgres(_) => format!("({name} collate \"C\")"),
        }
    }

    /// The same for a comparison with a column without a collation of its own, such as `tags.repository`.
    pub(super) fn in_default(&self, name: &str) -> String {
        self.0.in_default(name)
    }

    pub(crate) async fn close(&self) {
        match &self.0 {
            Engine::Sqlite(pools) => {
                pools.read.close().await;
                pools.write.close().await;
            }
            Engine::Postgres(pool) => pool.close().await,
        }
    }
}

async fn begin_sqlite(write: &SqlitePool) -> sqlx::Result<Transaction<'static, Sqlite>> {
    const BEGIN: &str = "begin immediate";
    match write.begin_with(BEGIN).await {
        // On a full disk SQLite may end a transaction without being asked to. sqlx still believes that the
        // connection is in a transaction and would never begin another.
        Err(sqlx::Error::InvalidSavePointStatement) => {
            tracing::warn!("reopening the database's write connection after SQLite ended its transaction");
            write.acquire().await?.close().await?;
            write.begin_with(BEGIN).await
        }
        begun => begun,
    }
}

impl Tx {
    pub(crate) fn conn(&mut self) -> Engine<&mut SqliteConnection, &mut PgConnection> {
        match &mut self.0 {
            Engine::Sqlite(tx) => Engine::Sqlite(tx),
            Engine::Postgres(tx) => Engine::Postgres(tx),
        }
    }

    pub(crate) async fn commit(self) -> Result<(), Error> {
        let committed = async {
            match self.0 {
                Engine::Sqlite(tx) => tx.commit().await,
                Engine::Postgres(tx) => postgres::with_timeout(tx.commit()).await,
            }
        };
        Ok(metrics::database("commit", committed).await?)
    }

    /// Discards the changes and ends the transaction, before something slow follows.
    pub(crate) async fn rollback(self) -> Result<(), Error> {
        match self.0 {
            Engine::Sqlite(tx) => tx.rollback().await?,
            Engine::Postgres(tx) => postgres::with_timeout(tx.rollback()).await?,
        }
        Ok(())
    }
}

/// Parses a stored value, which was valid when it was written.
pub(crate) fn parse_stored<T: FromStr>(what: &'static str, text: &str) -> Result<T, Error> {
    text.parse().map_err(|_| Error::Corrupt { what, value: text.to_owned() })
}

pub(super) fn size(value: i64) -> Result<u64, Error> {
    u64::try_from(value).map_err(|_| Error::Corrupt { what: "size", value: value.to_string() })
}

pub(super) fn bigint(value: u64) -> i64 {
    // No stored size reaches 2^63 bytes.
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Digests as the list parameter that `json_each` reads.
pub(super) fn digest_list<'a>(digests: impl IntoIterator<Item = &'a Digest>) -> String {
    let texts: Vec<&str> = digests.into_iter().map(Digest::as_str).collect();
    serde_json::Value::from(texts).to_string()
}

/// Repeats `row` for a list of values: each `?` becomes the next parameter, starting at `first`.
pub(super) fn placeholders(rows: usize, row: &str, first: usize) -> String {
    let (mut text, mut next) = (String::new(), first);
    for nth in 0..rows {
        text.push_str(if nth == 0 { "" } else { ", " });
        for part in row.split_inclusive('?') {
            match part.strip_suffix('?') {
                Some(before) => {
                    text.push_str(&format!("{before}${next}"));
                    next += 1;
                }
                None => text.push_str(part),
            }
        }
    }
    text
}

/// A new schema on the Postgres server of LODE_TEST_POSTGRES. A missing server is reported as a skip.
#[cfg(test)]
pub(crate) async fn postgres_for_test() -> Option<Url> {
    use crate::report;

    let Ok(server) = std::env::var("LODE_TEST_POSTGRES") else {
        report::skip(&report::current_test(), "not run on PostgreSQL, because LODE_TEST_POSTGRES is not set");
        return None;
    };
    let mut url: Url = server.parse().expect("LODE_TEST_POSTGRES is a URL");
    let schema = format!("test_{}", uuid::Uuid::new_v4().simple());
    let pool = PgPool::connect(url.as_str()).await.expect("the server of LODE_TEST_POSTGRES responds");
    let create = AssertSqlSafe(format!("create schema {schema}"));
    sqlx::query(create).execute(&pool).await.expect("the user may create schemas");
    pool.close().await;
    url.query_pairs_mut().append_pair("options", &format!("-c search_path={schema}"));
    Some(url)
}

/// Runs a test on an empty database of each engine.
#[cfg(test)]
pub(super) async fn each_store(test: impl AsyncFn(Store)) {
    let folder = tempfile::tempdir().unwrap();
    let sqlite: Url = format!("sqlite:{}", folder.path().join("x.db").display()).parse().unwrap();
    for url in [Some(sqlite), postgres_for_test().await].into_iter().flatten() {
        test(Store::open(Some(&url), folder.path()).await.unwrap()).await;
    }
}

/// Like `postgres_for_test`, with a database whose clock is an hour ahead of this process's.
#[cfg(test)]
pub(crate) async fn postgres_ahead_for_test() -> Option<Url> {
    let mut url = postgres_for_test().await?;
    let options = url.query_pairs().find(|(name, _)| name == "options").unwrap().1.into_owned();
    url.set_query(None);
    url.query_pairs_mut().append_pair("options", &format!("{options},pg_catalog"));
    let pool = PgPool::connect(url.as_str()).await.unwrap();
    sqlx::raw_sql(
        "create function clock_timestamp() returns timestamptz language sql volatile as
         $$ select pg_catalog.clock_timestamp() + interval '1 hour' $$",
    )
    .execute(&pool)
    .await
    .unwrap();
    pool.close().await;
    Some(url)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// The statements of a migrations folder, without the differences between the two SQL dialects.
    fn tree(engine: &str) -> BTreeMap<String, Vec<String>> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../migrations").join(engine);
        let read = |entry: std::io::Result<std::fs::DirEntry>| {
            let entry = entry.unwrap();
            let text = std::fs::read_to_string(entry.path()).unwrap();
            let text = text.replace("bytea", "blob").replace(" collate \"C\"", "");
            let lines = text.lines().map(|line| line.split("--").next().unwrap_or_default().trim());
            let statements = lines.collect::<Vec<_>>().join(" ");
            let statements =
                statements.split(';').map(|s| s.split_whitespace().collect::<Vec<_>>().join(" "));
            // What a text search needs differs, and where its rows are removed to be rebuilt.
            let is_own = |s: &str| {
                ["create function", "$$", "create sequence", "delete from search"]
                    .iter()
                    .any(|start| s.starts_with(start))
                    || s.contains(" search_words")
            };
            let portable = |s: &String| !s.is_empty() && !is_own(s);
            (entry.file_name().into_string().unwrap(), statements.filter(portable).collect())
        };
        std::fs::read_dir(folder).unwrap().map(read).collect()
    }

    #[test]
    fn both_trees_agree() {
        assert_eq!(tree("sqlite"), tree("postgres"));
    }

    #[test]
    fn a_list_parameter_is_json() {
        let digest = Digest::sha256(b"");
        assert_eq!(digest_list([&digest]), format!("[\"{digest}\"]"));
        assert_eq!(digest_list([]), "[]");
    }

    #[test]
    fn parameters_are_numbered() {
        assert_eq!(
            placeholders(2, "(?, cast(? as bigint))", 3),
            "($3, cast($4 as bigint)), ($5, cast($6 as bigint))"
        );
        assert_eq!(placeholders(0, "(?)", 1), "");
    }

    #[tokio::test]
    async fn a_newer_schema_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(None, folder.path()).await.unwrap();
        query!(store.write(), c => sqlx::query(
            "insert into _sqlx_migrations (version, description, success, checksum, execution_time)
             select max(version) + 1, 'later', success, checksum, 0 from _sqlx_migrations")
            .execute(c).await.map(drop))
        .unwrap();
        store.close().await;
        let refused = Store::open(None, folder.path()).await.map(drop).unwrap_err();
        assert!(matches!(refused, OpenError::SchemaNewer { .. }), "{refused}");
    }

    #[tokio::test]
    async fn databases_by_url() {
        let folder = tempfile::tempdir().unwrap();
        let open = async |url: &str| Store::open(Some(&url.parse().unwrap()), folder.path()).await;
        let path = folder.path().join("a b.db");
        let store = open(&format!("sqlite:{}", path.display()).replace(' ', "%20")).await.unwrap();
        store.ping().await.unwrap();
        assert!(path.exists());
        assert!(matches!(open("mysql://x/y").await, Err(OpenError::Config { setting: "database", .. })));
        // Opening again changes nothing.
        store.close().await;
        open(&format!("sqlite:{}", path.display()).replace(' ', "%20")).await.unwrap();
    }
}

//! Copies a SQLite database while a server writes to it.

use std::io;
use std::path::{Path, PathBuf};

use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions, Connection};

use super::database::{BUSY_TIMEOUT, create_private_file, size};
use super::{Store, query};
use crate::{Config, Error, OpenError};

/// The path of an existing SQLite database file.
pub(crate) fn database_file(config: &Config) -> Result<PathBuf, OpenError> {
    let file: PathBuf = match &config.database {
        None => config.data.join("lode.db"),
        Some(url) if url.scheme() == "sqlite" => {
            let path = format!("{}{}", url.host_str().unwrap_or_default(), url.path());
            percent_encoding::percent_decode_str(&path).decode_utf8_lossy().into_owned().into()
        }
        Some(url) => {
            let reason = format!(
                "expected a SQLite database as the source, got `{}`; tools of PostgreSQL, such as pg_dump, copy its databases",
                url.scheme()
            );
            return Err(OpenError::Config { setting: "database", reason });
        }
    };
    match file.is_file() {
        true => Ok(file),
        false => {
            let missing = io::Error::new(io::ErrorKind::NotFound, "there is no such file");
            Err(Error::io(format!("opening {}", file.display()), missing).into())
        }
    }
}

/// Writes a consistent snapshot of the database `from` into the file `to`, which must not exist. Only this
/// user can read the new file.
pub(crate) async fn snapshot(from: &Path, to: &Path) -> Result<(), Error> {
    let options = SqliteConnectOptions::new().filename(from).busy_timeout(BUSY_TIMEOUT);
    let mut connection: SqliteConnection = options.connect().await?;
    create_private_file(to);
    let to = to.to_string_lossy().into_owned();
    // One read transaction: writers continue, and the copy does not contain their changes.
    sqlx::query("vacuum into $1").bind(to).execute(&mut connection).await?;
    connection.close().await?;
    Ok(())
}

impl Store {
    /// Opens a database without migrating it: its schema may belong to a running server.
    pub(crate) async fn open_unmigrated(file: &Path) -> Result<Store, Error> {
        Store::open_sqlite(file, None).await
    }

    /// Deletes the uploads, workers and job secrets of the running server: the bytes of its uploads are not
    /// part of the copy.
    pub(crate) async fn sessions_delete(&self) -> Result<(), Error> {
        for text in ["delete from uploads", "delete from workers", "update jobs set secret = null"] {
            query!(self.write(), c => sqlx::query(text).execute(c).await.map(drop))?;
        }
        Ok(())
    }

    /// The number of live blobs and their total size.
    pub(crate) async fn blobs_total(&self) -> Result<(u64, u64), Error> {
        let (count, bytes): (i64, i64) = query!(self.read(), c => sqlx::query_as(
            "select count(*), cast(coalesce(sum(size_bytes), 0) as bigint) from blobs where state = 'live'")
            .fetch_one(c).await)?;
        Ok((size(count)?, size(bytes)?))
    }
}

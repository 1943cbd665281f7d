//! A copy of a SQLite index, taken while a server writes to it.

use std::io;
use std::path::{Path, PathBuf};

use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions, Connection};

use super::{BUSY_TIMEOUT, Store, on, restrict};
use crate::{Config, Error};

/// The file of a SQLite index that is there.
pub(crate) fn index_file(config: &Config) -> Result<PathBuf, Error> {
    let file: PathBuf = match &config.database {
        None => config.data.join("lode.db"),
        Some(url) if url.scheme() == "sqlite" => {
            let path = format!("{}{}", url.host_str().unwrap_or_default(), url.path());
            percent_encoding::percent_decode_str(&path).decode_utf8_lossy().into_owned().into()
        }
        Some(_) => {
            let reason = "only an index in a SQLite file can be taken like this".to_owned();
            return Err(Error::Config { setting: "database", reason });
        }
    };
    match file.is_file() {
        true => Ok(file),
        false => Err(Error::io(format!("opening {}", file.display()), io::ErrorKind::NotFound.into())),
    }
}

/// Writes the index in the file `from` as it is at one moment into the file `to`, which must not exist and which only this user can read.
pub(crate) async fn snapshot(from: &Path, to: &Path) -> Result<(), Error> {
    let options = SqliteConnectOptions::new().filename(from).busy_timeout(BUSY_TIMEOUT);
    let mut connection: SqliteConnection = options.connect().await?;
    restrict(to);
    let to = to.to_string_lossy().into_owned();
    // One read transaction: writers go on, and are not seen.
    sqlx::query("vacuum into $1").bind(to).execute(&mut connection).await?;
    connection.close().await?;
    Ok(())
}

impl Store {
    /// Opens an index as it is: its schema may be a running server's business.
    pub(crate) async fn peek(file: &Path) -> Result<Store, Error> {
        Store::open_sqlite(file, None).await
    }

    /// Drops what belongs to a running server and not to its content: its uploads have no bytes elsewhere.
    pub(crate) async fn sessions_forget(&self) -> Result<(), Error> {
        for text in ["delete from uploads", "delete from workers"] {
            on!(self.write(), c => sqlx::query(text).execute(c).await.map(drop))?;
        }
        Ok(())
    }

    /// How many live blobs there are, and their bytes.
    pub(crate) async fn blobs_total(&self) -> Result<(u64, u64), Error> {
        let (count, bytes): (i64, i64) = on!(self.read(), c => sqlx::query_as(
            "select count(*), cast(coalesce(sum(size_bytes), 0) as bigint) from blobs where state = 'live'")
            .fetch_one(c).await)?;
        Ok((super::size(count)?, super::size(bytes)?))
    }
}

//! Copies whole tables from one database into another, for a move to another engine. Columns are read from
//! the source's schema, so a new column needs no change here.

use sqlx::{AssertSqlSafe, Row};

use super::{Engine, Store, Tx, long_statement, query, size};
use crate::time::now_ms;
use crate::{Error, OpenError};

/// The tables to copy, each after those that it references. Blobs are copied with their bytes.
pub(crate) const MOVED: &[&str] = &[
    "repositories",
    "repository_cards",
    "links",
    "xorbs",
    "xet_spaces",
    "manifests",
    "manifest_blobs",
    "tags",
    "tag_moves",
    "pull_counts",
    "referrers",
    "models",
    "tensors",
    "model_bases",
    "index_queue",
    "server_keys",
    "mirror_checks",
    "removals",
    "removal_blobs",
    "webhook_deliveries",
    "accounts",
    "groups",
    "group_members",
    "grants",
    "visibilities",
    "access_tokens",
    "ollama_keys",
    "identities",
    "publishers",
    "tag_rules",
    "quotas",
    "audit",
];
/// Tables that belong to the old server alone, or are filled during the move.
#[cfg(test)]
const NOT_MOVED: &[&str] = &[
    "blobs",
    "search",
    "search_tags",
    "search_words",
    "search_words_config",
    "search_words_data",
    "search_words_docsize",
    "search_words_idx",
    "tombstones",
    "uploads",
    "workers",
    "replicas",
    "jobs",
    "job_findings",
    "access_state",
    "sessions",
    "device_logins",
    "used_values",
    "sign_in_failures",
    "_sqlx_migrations",
];

/// Rows read and written at a time. A manifest has 4 MiB at most.
const PAGE: usize = 100;

/// Rows of `server_keys`: the registry that is being moved here, and the time at which the move ended.
const MOVED_FROM: &str = "moved-from";
const MOVED_AT: &str = "moved-at";

#[derive(Clone, Debug)]
enum Cell {
    Text(Option<String>),
    Number(Option<i64>),
    Bytes(Option<Vec<u8>>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Text,
    Number,
    Bytes,
}

struct Column {
    name: String,
    kind: Kind,
    /// Part of the primary key.
    key: bool,
}

/// A row of SQLite's `pragma_table_info`.
#[derive(sqlx_macros::FromRow)]
struct TableInfo {
    name: String,
    r#type: String,
    /// The position in the primary key, from 1; 0 for other columns.
    pk: i64,
}

impl TryFrom<TableInfo> for Column {
    type Error = Error;

    fn try_from(row: TableInfo) -> Result<Column, Error> {
        let kind = match row.r#type.to_ascii_lowercase().as_str() {
            "text" => Kind::Text,
            "bigint" => Kind::Number,
            "blob" => Kind::Bytes,
            _ => return Err(Error::Corrupt { what: "column type", value: row.r#type }),
        };
        Ok(Column { name: row.name, kind, key: row.pk > 0 })
    }
}

/// The state of a move into this database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MoveState {
    /// The database is empty, or an earlier move of this registry into it was interrupted.
    Open,
    Done,
    /// The database has other content.
    NotEmpty,
}

impl Store {
    /// Claims this database for the move of one registry, and stores its `identity`.
    pub(crate) async fn move_claim(&self, identity: &[u8]) -> Result<MoveState, Error> {
        if let Some(from) = self.key_find(MOVED_FROM).await? {
            return Ok(match self.key_find(MOVED_AT).await? {
                _ if from != identity => MoveState::NotEmpty,
                Some(_) => MoveState::Done,
                None => MoveState::Open,
            });
        }
        if !self.is_empty().await? {
            return Ok(MoveState::NotEmpty);
        }
        let holder = self.server_key(MOVED_FROM, identity).await?;
        Ok(if holder == identity { MoveState::Open } else { MoveState::NotEmpty })
    }

    async fn key_find(&self, name: &str) -> Result<Option<Vec<u8>>, Error> {
        let row: Option<(Vec<u8>,)> = query!(self.read(), c => sqlx::query_as(
            "select value from server_keys where name = $1").bind(name).fetch_optional(c).await)?;
        Ok(row.map(|(value,)| value))
    }

    async fn is_empty(&self) -> Result<bool, Error> {
        let (is_empty,): (bool,) = query!(self.read(), c => sqlx::query_as(
            "select not exists (select 1 from repositories) and not exists (select 1 from blobs)")
            .fetch_one(c).await)?;
        Ok(is_empty)
    }

    async fn columns(&self, table: &str) -> Result<Vec<Column>, OpenError> {
        let Engine::Sqlite(read) = self.read() else {
            let reason = "only a SQLite database can be moved".to_owned();
            return Err(OpenError::Config { setting: "database", reason });
        };
        let rows: Vec<TableInfo> =
            sqlx::query_as("select name, type, pk from pragma_table_info($1) order by cid")
                .bind(table)
                .fetch_all(read)
                .await?;
        Ok(rows.into_iter().map(Column::try_from).collect::<Result<_, Error>>()?)
    }

    /// The next rows of a table after those whose key is `after`.
    async fn rows(&self, table: &str, columns: &[Column], after: &[Cell]) -> Result<Vec<Vec<Cell>>, Error> {
        let Engine::Sqlite(read) = self.read() else { return Ok(Vec::new()) };
        let names = names(columns.iter());
        let keys = self::names(columns.iter().filter(|column| column.key));
        let places: Vec<String> = (1..=after.len()).map(|n| format!("${n}")).collect();
        let later = if after.is_empty() {
            String::new()
        } else {
            format!("where ({keys}) > ({})", places.join(", "))
        };
        let text = format!("select {names} from {table} {later} order by {keys} limit {PAGE}");
        let mut query = sqlx::query(AssertSqlSafe(text));
        for cell in after {
            query = match cell.clone() {
                Cell::Text(value) => query.bind(value),
                Cell::Number(value) => query.bind(value),
                Cell::Bytes(value) => query.bind(value),
            };
        }
        let read_row = |row: &sqlx::sqlite::SqliteRow| {
            let cell = |(at, column): (usize, &Column)| {
                Ok(match column.kind {
                    Kind::Text => Cell::Text(row.try_get(at)?),
                    Kind::Number => Cell::Number(row.try_get(at)?),
                    Kind::Bytes => Cell::Bytes(row.try_get(at)?),
                })
            };
            columns.iter().enumerate().map(cell).collect::<Result<Vec<Cell>, sqlx::Error>>()
        };
        let rows = query.fetch_all(read).await?;
        Ok(rows.iter().map(read_row).collect::<Result<_, _>>()?)
    }
}

fn names<'a>(columns: impl Iterator<Item = &'a Column>) -> String {
    columns.map(|column| column.name.as_str()).collect::<Vec<_>>().join(", ")
}

impl Tx {
    /// Replaces the tables of this database with those of `source`, and returns the number of rows of each. In a
    /// transaction of [`Store::begin_long`], like all of these: tables may be large.
    pub(crate) async fn tables_replace(
        &mut self,
        source: &Store,
    ) -> Result<Vec<(&'static str, u64)>, OpenError> {
        for table in MOVED.iter().rev() {
            let text = match *table {
                // Keeps the marks of this move.
                "server_keys" => {
                    format!("delete from server_keys where name not in ('{MOVED_FROM}', '{MOVED_AT}')")
                }
                table => format!("delete from {table}"),
            };
            long_statement!(self.conn(), c => sqlx::query(AssertSqlSafe(text)).execute(c).await.map(drop))?;
        }
        let mut counts = Vec::new();
        for table in MOVED {
            counts.push((*table, self.table_fill(source, table).await?));
        }
        // Unlinked blobs start their grace period again.
        long_statement!(self.conn(), c => sqlx::query(
            "update blobs set unlinked_at = $1 where not exists (select 1 from links l where l.digest = blobs.digest)")
            .bind(now_ms()).execute(c).await.map(drop))?;
        Ok(counts)
    }

    async fn table_fill(&mut self, source: &Store, table: &str) -> Result<u64, OpenError> {
        let columns = source.columns(table).await?;
        let (mut after, mut count) = (Vec::new(), 0);
        loop {
            let mut rows = source.rows(table, &columns, &after).await?;
            let Some(last) = rows.last() else { return Ok(count) };
            after = last
                .iter()
                .zip(&columns)
                .filter(|(_, column)| column.key)
                .map(|(cell, _)| cell.clone())
                .collect();
            if table == "server_keys" {
                // Skip the marks of the earlier move that created the source.
                rows.retain(|row| !matches!(&row[0], Cell::Text(Some(name)) if name == MOVED_FROM || name == MOVED_AT));
            }
            if rows.is_empty() {
                continue;
            }
            count += rows.len() as u64;
            self.rows_insert(table, &columns, rows).await?;
        }
    }

    async fn rows_insert(
        &mut self,
        table: &str,
        columns: &[Column],
        rows: Vec<Vec<Cell>>,
    ) -> Result<(), Error> {
        let width = columns.len();
        let row = |n: usize| {
            let places: Vec<String> = (1..=width).map(|at| format!("${}", n * width + at)).collect();
            format!("({})", places.join(", "))
        };
        let values: Vec<String> = (0..rows.len()).map(row).collect();
        let text = format!("insert into {table} ({}) values {}", names(columns.iter()), values.join(", "));
        long_statement!(self.conn(), c => {
            // The text contains only names of our own schema and placeholders.
            let mut query = sqlx::query(AssertSqlSafe(text));
            for cell in rows.into_iter().flatten() {
                query = match cell {
                    Cell::Text(value) => query.bind(value),
                    Cell::Number(value) => query.bind(value),
                    Cell::Bytes(value) => query.bind(value),
                };
            }
            query.execute(c).await.map(drop)
        })?;
        Ok(())
    }

    /// The number of rows of a table, without the marks of a move.
    pub(crate) async fn table_count(&mut self, table: &str) -> Result<u64, Error> {
        let text = match table {
            "server_keys" => {
                format!("select count(*) from server_keys where name not in ('{MOVED_FROM}', '{MOVED_AT}')")
            }
            table => format!("select count(*) from {table}"),
        };
        let (count,): (i64,) =
            long_statement!(self.conn(), c => sqlx::query_as(AssertSqlSafe(text)).fetch_one(c).await)?;
        size(count)
    }

    /// Records that the move into this database is done.
    pub(crate) async fn move_done(&mut self) -> Result<(), Error> {
        let now = now_ms();
        long_statement!(self.conn(), c => sqlx::query("insert into server_keys (name, value, created_at) values ($1, $2, $3)")
            .bind(MOVED_AT).bind(now.to_string().into_bytes()).bind(now).execute(c).await.map(drop))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[tokio::test]
    async fn every_table_is_moved_or_excluded() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(None, folder.path()).await.unwrap();
        let Engine::Sqlite(read) = store.read() else { panic!("SQLite") };
        let rows: Vec<(String,)> = sqlx::query_as(
            "select name from sqlite_master where type = 'table' and name not like 'sqlite_%'",
        )
        .fetch_all(read)
        .await
        .unwrap();
        let tables: BTreeSet<String> = rows.into_iter().map(|(name,)| name).collect();
        let listed: BTreeSet<String> = MOVED.iter().chain(NOT_MOVED).map(|name| (*name).to_owned()).collect();
        assert_eq!(tables, listed, "every table is listed in MOVED or LEFT");
    }
}

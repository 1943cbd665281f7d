//! The size of the content, read in pages by the order of a primary key, and what waits for a collection.

use sqlx::{AssertSqlSafe, Row};

use super::{Store, query};
use crate::Error;
use crate::metrics::WaitingRemovals;

/// How many rows one page has.
const PAGE_ROWS: i64 = if cfg!(test) { 2 } else { 5000 };
/// How many waiting objects of a kind are counted.
const MAX_WAITING: i64 = 100_000;

/// A table whose sizes are added up.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SizedTable {
    Blobs,
    /// Manifests themselves.
    Manifests,
    /// What manifests refer to.
    References,
}

/// The sum of one page.
#[derive(Debug)]
pub(crate) struct SizedPage {
    pub(crate) rows: u64,
    pub(crate) size_bytes: u64,
    /// The key of the last row, if more follow.
    pub(crate) last: Option<Vec<String>>,
}

impl SizedTable {
    fn name(self) -> &'static str {
        match self {
            SizedTable::Blobs => "blobs",
            SizedTable::Manifests => "manifests",
            SizedTable::References => "manifest_blobs",
        }
    }

    fn key(self) -> &'static [&'static str] {
        match self {
            SizedTable::Blobs => &["digest"],
            SizedTable::Manifests => &["repository", "digest"],
            SizedTable::References => &["repository", "manifest", "digest", "kind"],
        }
    }

    /// The bytes of a row `t`.
    fn size(self) -> &'static str {
        match self {
            SizedTable::Blobs => "t.size_bytes",
            SizedTable::Manifests => "(select size_bytes from blobs where digest = t.digest)",
            // A child is a manifest, with rows of its own.
            SizedTable::References => {
                "case when t.kind = 'blob' then (select size_bytes from blobs where digest = t.digest) end"
            }
        }
    }
}

impl Store {
    /// Adds up the rows after the key `after`; an empty one begins at the first row.
    pub(crate) async fn sized_page(&self, table: SizedTable, after: &[String]) -> Result<SizedPage, Error> {
        let key = table.key();
        let columns = |prefix: &str| {
            let columns: Vec<String> = key.iter().map(|column| format!("{prefix}{column}")).collect();
            columns.join(", ")
        };
        let parameters = |first: usize| {
            let all: Vec<String> = (first..first + key.len()).map(|number| format!("${number}")).collect();
            all.join(", ")
        };
        let begin = match after.is_empty() {
            true => "1 = 1".to_owned(),
            false => format!("({}) > ({})", columns("t."), parameters(1)),
        };
        let name = table.name();
        // 1. The key of the last row of the page.
        let text = format!(
            "select {} from {name} t where {begin} order by {} limit 1 offset {}",
            columns("t."),
            columns("t."),
            PAGE_ROWS - 1
        );
        let last: Option<Vec<String>> = query!(self.read(), c => {
            let mut query = sqlx::query(AssertSqlSafe(text));
            for part in after {
                query = query.bind(part);
            }
            let row = query.fetch_optional(c).await?;
            row.map(|row| (0..key.len()).map(|at| row.try_get(at)).collect::<Result<Vec<String>, _>>()).transpose()
        })?;
        // 2. The sum of the rows until there.
        let end = match &last {
            Some(_) => format!("({}) <= ({})", columns("t."), parameters(1 + after.len())),
            None => "1 = 1".to_owned(),
        };
        let text = format!(
            "select count(*), cast(coalesce(sum({}), 0) as bigint) from {name} t where {begin} and {end}",
            table.size()
        );
        let (rows, size_bytes): (i64, i64) = query!(self.read(), c => {
            let mut query = sqlx::query_as(AssertSqlSafe(text));
            for part in after.iter().chain(last.iter().flatten()) {
                query = query.bind(part);
            }
            query.fetch_one(c).await
        })?;
        Ok(SizedPage { rows: unsigned(rows), size_bytes: unsigned(size_bytes), last })
    }

    /// What waits for a collection. Indexes have only these rows.
    pub(crate) async fn waiting_removals(&self) -> Result<WaitingRemovals, Error> {
        let (manifests, links, blobs, blob_bytes, deletions, deletion_bytes): (i64, i64, i64, i64, i64, i64) =
            query!(self.read(), c => sqlx::query_as(
                "select
                     (select count(*) from (select 1 from manifests where unreferenced_at is not null limit $1) as m),
                     (select count(*) from (select 1 from links where unreferenced_at is not null limit $1) as l),
                     (select count(*) from (select 1 from blobs where unlinked_at is not null limit $1) as b),
                     (select cast(coalesce(sum(size_bytes), 0) as bigint)
                      from (select size_bytes from blobs where unlinked_at is not null limit $1) as b),
                     (select count(*) from (select 1 from tombstones limit $1) as t),
                     (select cast(coalesce(sum(size_bytes), 0) as bigint)
                      from (select size_bytes from tombstones limit $1) as t)")
                .bind(MAX_WAITING).fetch_one(c).await)?;
        Ok(WaitingRemovals {
            manifests: unsigned(manifests),
            links: unsigned(links),
            blobs: unsigned(blobs),
            deletions: unsigned(deletions),
            size_bytes: unsigned(blob_bytes) + unsigned(deletion_bytes),
        })
    }
}

fn unsigned(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

//! Quotas of namespaces, and how much their blobs use.

use sqlx::AssertSqlSafe;

use super::{Engine, Store, Tx, bigint, on, size};
use crate::Error;

/// The quota of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QuotaRow {
    pub(crate) namespace: String,
    pub(crate) limit_bytes: u64,
}

/// How much the blobs of a namespace use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NamespaceUsage {
    /// Each blob counts once. This is compared with the quota.
    pub(crate) used_bytes: u64,
    /// Each blob counts once in each of its repositories.
    pub(crate) logical_bytes: u64,
    /// The blobs that no other namespace has.
    pub(crate) own_bytes: u64,
}

#[derive(sqlx_macros::FromRow)]
struct UsageColumns {
    used: i64,
    logical: i64,
    own: i64,
}

/// The repositories of the namespace in `$1`. In byte order `0` follows `/`.
const REPOSITORIES: &str =
    "select name from repositories where name = $1 or (name > $1 || '/' and name < $1 || '0')";

impl Store {
    pub(crate) async fn quota_find(&self, namespace: &str) -> Result<Option<u64>, Error> {
        let row: Option<(i64,)> = on!(self.read(), c => sqlx::query_as(
            "select limit_bytes from quotas where namespace = $1")
            .bind(namespace).fetch_optional(c).await)?;
        row.map(|(limit,)| size(limit)).transpose()
    }

    pub(crate) async fn quota_list(&self) -> Result<Vec<QuotaRow>, Error> {
        let rows: Vec<(String, i64)> = on!(self.read(), c => sqlx::query_as(
            "select namespace, limit_bytes from quotas order by namespace").fetch_all(c).await)?;
        rows.into_iter()
            .map(|(namespace, limit)| Ok(QuotaRow { namespace, limit_bytes: size(limit)? }))
            .collect()
    }

    /// How many bytes the distinct blobs of a namespace have.
    pub(crate) async fn namespace_used(&self, namespace: &str) -> Result<u64, Error> {
        let (used,): (i64,) = on!(self.read(), c => sqlx::query_as(AssertSqlSafe(used_query()))
            .bind(namespace).fetch_one(c).await)?;
        size(used)
    }

    pub(crate) async fn namespace_usage(&self, namespace: &str) -> Result<NamespaceUsage, Error> {
        let text = format!(
            "with own as (select l.repository, l.digest, b.size_bytes from links l
                          join blobs b on b.digest = l.digest
                          where l.repository in ({REPOSITORIES})),
                  each_once as (select distinct digest, size_bytes from own)
             select cast(coalesce((select sum(size_bytes) from each_once), 0) as bigint) as used,
                    cast(coalesce((select sum(size_bytes) from own), 0) as bigint) as logical,
                    cast(coalesce((select sum(size_bytes) from each_once e where not exists (
                        select 1 from links o where o.digest = e.digest and o.repository not in ({REPOSITORIES}))
                    ), 0) as bigint) as own"
        );
        let row: UsageColumns = on!(patiently self.read(), c => sqlx::query_as(AssertSqlSafe(text))
            .bind(namespace).fetch_one(c).await)?;
        Ok(NamespaceUsage {
            used_bytes: size(row.used)?,
            logical_bytes: size(row.logical)?,
            own_bytes: size(row.own)?,
        })
    }
}

fn used_query() -> String {
    format!(
        "select cast(coalesce(sum(size_bytes), 0) as bigint) from blobs
         where digest in (select digest from links where repository in ({REPOSITORIES}))"
    )
}

impl Tx {
    /// The quota of a namespace, locked until the end of the transaction, and the bytes that its blobs have,
    /// those of this transaction included. `None` without a quota.
    pub(crate) async fn quota_lock(&mut self, namespace: &str) -> Result<Option<(u64, u64)>, Error> {
        let lock = if matches!(self.0, Engine::Postgres(_)) { "for update" } else { "" };
        let row: Option<(i64,)> = on!(self.conn(), c => sqlx::query_as(AssertSqlSafe(format!(
            "select limit_bytes from quotas where namespace = $1 {lock}")))
            .bind(namespace).fetch_optional(c).await)?;
        let Some((limit,)) = row else { return Ok(None) };
        let (used,): (i64,) = on!(self.conn(), c => sqlx::query_as(AssertSqlSafe(used_query()))
            .bind(namespace).fetch_one(c).await)?;
        Ok(Some((size(limit)?, size(used)?)))
    }

    /// Sets or removes a quota.
    pub(crate) async fn quota_put(&mut self, namespace: &str, limit_bytes: Option<u64>) -> Result<(), Error> {
        match limit_bytes {
            Some(limit) => on!(self.conn(), c => sqlx::query(
                "insert into quotas (namespace, limit_bytes) values ($1, $2)
                 on conflict (namespace) do update set limit_bytes = excluded.limit_bytes")
                .bind(namespace).bind(bigint(limit)).execute(c).await.map(drop))?,
            None => on!(self.conn(), c => sqlx::query("delete from quotas where namespace = $1")
                .bind(namespace).execute(c).await.map(drop))?,
        }
        Ok(())
    }
}

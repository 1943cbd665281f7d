//! Quotas of namespaces, and how much their blobs use.

use std::collections::BTreeMap;

use lode_model::digest::Digest;
use sqlx::AssertSqlSafe;

use super::{Engine, Store, Tx, bigint, long_query, query, size};
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
    namespace: String,
    used: i64,
    logical: i64,
    own: i64,
}

/// The bytes of the distinct blobs in the repositories of the namespace in `$1`. In byte order `0` follows
/// `/`.
fn used_bytes<S, P>(engine: &Engine<S, P>) -> String {
    format!(
        "select cast(coalesce(sum(size_bytes), 0) as bigint) from blobs
         where digest in (select digest from links where repository in
             (select {} from repositories where name = $1 or (name > $1 || '/' and name < $1 || '0')))",
        engine.in_default("name")
    )
}

/// Whether `repository` is in the namespace in `$1`. For columns that are not in byte order.
const IS_INSIDE: &str = "(repository = $1 or substr(repository, 1, length($1) + 1) = $1 || '/')";

impl Store {
    pub(crate) async fn quota_find(&self, namespace: &str) -> Result<Option<u64>, Error> {
        let row: Option<(i64,)> = query!(self.read(), c => sqlx::query_as(
            "select limit_bytes from quotas where namespace = $1")
            .bind(namespace).fetch_optional(c).await)?;
        row.map(|(limit,)| size(limit)).transpose()
    }

    /// The quotas of namespaces whose names begin with `prefix`, by name, after `after`, at most `limit`.
    pub(crate) async fn quota_list(
        &self,
        prefix: &str,
        after: &str,
        limit: i64,
    ) -> Result<Vec<QuotaRow>, Error> {
        // The column is not in byte order.
        let rows: Vec<(String, i64)> = query!(self.read(), c => sqlx::query_as(
            "select namespace, limit_bytes from quotas
             where substr(namespace, 1, length($1)) = $1 and namespace > $2 order by namespace limit $3")
            .bind(prefix).bind(after).bind(limit).fetch_all(c).await)?;
        rows.into_iter()
            .map(|(namespace, limit)| Ok(QuotaRow { namespace, limit_bytes: size(limit)? }))
            .collect()
    }

    /// The quota of a namespace, and the bytes in the repositories below `counted`: those of their distinct
    /// blobs, and those that their open uploads have received. `None` without a quota; then nothing is added
    /// up.
    pub(crate) async fn quota_use(
        &self,
        namespace: &str,
        counted: &str,
    ) -> Result<Option<(u64, u64)>, Error> {
        let text = format!(
            "select limit_bytes, ({}) + cast(coalesce(
                 (select sum(next_byte) from uploads where {IS_INSIDE}), 0) as bigint)
             from quotas where namespace = $2",
            used_bytes(&self.0)
        );
        let row: Option<(i64, i64)> = query!(self.read(), c => sqlx::query_as(AssertSqlSafe(text))
            .bind(counted).bind(namespace).fetch_optional(c).await)?;
        row.map(|(limit, used)| Ok((size(limit)?, size(used)?))).transpose()
    }

    /// How much the blobs of these namespaces use. One without blobs is absent.
    pub(crate) async fn namespace_usages(
        &self,
        namespaces: &[&str],
    ) -> Result<BTreeMap<String, NamespaceUsage>, Error> {
        let text = format!(
            "with wanted as (select value as namespace from json_each($1)),
                  held as (select w.namespace, l.digest, b.size_bytes, count(*) as times
                      from wanted w
                      join repositories r on r.name = w.namespace
                          or (r.name > w.namespace || '/' and r.name < w.namespace || '0')
                      join links l on l.repository = {}
                      join blobs b on b.digest = l.digest
                      group by w.namespace, l.digest, b.size_bytes)
             select namespace, cast(sum(size_bytes) as bigint) as used,
                    cast(sum(size_bytes * times) as bigint) as logical,
                    cast(sum(case when times = (select count(*) from links l where l.digest = held.digest)
                        then size_bytes else 0 end) as bigint) as own
             from held group by namespace",
            self.in_default("r.name")
        );
        let rows: Vec<UsageColumns> = long_query!(self.read(), c => sqlx::query_as(AssertSqlSafe(text))
            .bind(serde_json::Value::from(namespaces).to_string()).fetch_all(c).await)?;
        rows.into_iter()
            .map(|row| {
                let usage = NamespaceUsage {
                    used_bytes: size(row.used)?,
                    logical_bytes: size(row.logical)?,
                    own_bytes: size(row.own)?,
                };
                Ok((row.namespace, usage))
            })
            .collect()
    }
}

impl Tx {
    /// Whether a link of this blob adds to the use of a namespace that has a quota. The blob's row is locked,
    /// so no other transaction links or unlinks it.
    pub(crate) async fn link_uses_quota(&mut self, namespace: &str, digest: &Digest) -> Result<bool, Error> {
        let (is_added,): (bool,) = query!(self.conn(), c => sqlx::query_as(AssertSqlSafe(format!(
            "select exists (select 1 from quotas where namespace = $1)
                 and not exists (select 1 from links where digest = $2 and {IS_INSIDE})")))
            .bind(namespace).bind(digest.as_str()).fetch_one(c).await)?;
        Ok(is_added)
    }

    /// The quota of a namespace, locked until the end of the transaction, and the bytes that its blobs have,
    /// those of this transaction included. `None` without a quota.
    pub(crate) async fn quota_lock(&mut self, namespace: &str) -> Result<Option<(u64, u64)>, Error> {
        let lock = if matches!(self.0, Engine::Postgres(_)) { "for update" } else { "" };
        let row: Option<(i64,)> = query!(self.conn(), c => sqlx::query_as(AssertSqlSafe(format!(
            "select limit_bytes from quotas where namespace = $1 {lock}")))
            .bind(namespace).fetch_optional(c).await)?;
        let Some((limit,)) = row else { return Ok(None) };
        let text = used_bytes(&self.0);
        let (used,): (i64,) = query!(self.conn(), c => sqlx::query_as(AssertSqlSafe(text))
            .bind(namespace).fetch_one(c).await)?;
        Ok(Some((size(limit)?, size(used)?)))
    }

    /// Sets or removes a quota.
    pub(crate) async fn quota_put(&mut self, namespace: &str, limit_bytes: Option<u64>) -> Result<(), Error> {
        match limit_bytes {
            Some(limit) => query!(self.conn(), c => sqlx::query(
                "insert into quotas (namespace, limit_bytes) values ($1, $2)
                 on conflict (namespace) do update set limit_bytes = excluded.limit_bytes")
                .bind(namespace).bind(bigint(limit)).execute(c).await.map(drop))?,
            None => query!(self.conn(), c => sqlx::query("delete from quotas where namespace = $1")
                .bind(namespace).execute(c).await.map(drop))?,
        }
        Ok(())
    }
}

//! Quotas of namespaces, and how much their blobs use. The sum of a namespace with a quota is kept: links that add a
//! blob to it add the blob's size, and links that are removed discard the sum. It is also added up again after a while,
//! because replicas of an earlier version, and those that do not know of a new quota yet, add no sizes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lode_model::digest::Digest;
use sqlx::AssertSqlSafe;

use super::{Engine, Store, Tx, bigint, long_query, query, size};
use crate::Error;
use crate::time::millis;

/// How long a sum is kept.
const SUM_AGE: Duration = Duration::from_secs(3600);

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

/// Whether the kept sum of a quota is recent.
fn is_recent<S, P>(engine: &Engine<S, P>) -> String {
    format!("(used_bytes is not null and counted_at > {} - {})", engine.clock(), millis(SUM_AGE))
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
            "select limit_bytes, case when $1 = $2 and {} then used_bytes else ({}) end
                 + cast(coalesce((select sum(next_byte) from uploads where {IS_INSIDE}), 0) as bigint)
             from quotas where namespace = $2",
            is_recent(&self.0),
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

    /// Adds a blob that this transaction has linked to the sum of its namespace. Returns the quota, locked until the
    /// end of the transaction, and the sum. `None` without a quota.
    pub(crate) async fn quota_add(
        &mut self,
        namespace: &str,
        digest: &Digest,
    ) -> Result<Option<(u64, u64)>, Error> {
        let lock = if self.locks_rows() { "for update of q" } else { "" };
        let text = AssertSqlSafe(format!(
            "select q.limit_bytes, case when {} then q.used_bytes
                 + (select b.size_bytes from blobs b where b.digest = $2) end
             from quotas q where q.namespace = $1 {lock}",
            is_recent(&self.0)
        ));
        let row: Option<(i64, Option<i64>)> = query!(self.conn(), c => sqlx::query_as(text)
            .bind(namespace).bind(digest.as_str()).fetch_optional(c).await)?;
        let Some((limit, kept)) = row else { return Ok(None) };
        let used = match kept {
            Some(used) => used,
            None => self.used_bytes(namespace).await?,
        };
        let text = AssertSqlSafe(format!(
            "update quotas set used_bytes = $2, counted_at = case when cast($3 as bigint) = 1 then counted_at else {} end
             where namespace = $1",
            self.0.clock()
        ));
        query!(self.conn(), c => sqlx::query(text)
            .bind(namespace).bind(used).bind(i64::from(kept.is_some())).execute(c).await.map(drop))?;
        Ok(Some((size(limit)?, size(used)?)))
    }

    async fn used_bytes(&mut self, namespace: &str) -> Result<i64, Error> {
        let text = AssertSqlSafe(used_bytes(&self.0));
        let (used,): (i64,) =
            query!(self.conn(), c => sqlx::query_as(text).bind(namespace).fetch_one(c).await)?;
        Ok(used)
    }

    /// The quota of a namespace, locked until the end of the transaction, and how much its blobs use. `None` without a
    /// quota.
    pub(crate) async fn quota_read(&mut self, namespace: &str) -> Result<Option<(u64, u64)>, Error> {
        let text = match self.locks_rows() {
            false => "select limit_bytes from quotas where namespace = $1",
            true => "select limit_bytes from quotas where namespace = $1 for update",
        };
        let row: Option<(i64,)> = query!(self.conn(), c => sqlx::query_as(text)
            .bind(namespace).fetch_optional(c).await)?;
        let Some((limit,)) = row else { return Ok(None) };
        Ok(Some((size(limit)?, size(self.used_bytes(namespace).await?)?)))
    }

    /// Discards the sums of the namespaces of repositories that lost a blob.
    pub(crate) async fn quotas_recount(
        &mut self,
        repositories: impl IntoIterator<Item = &str>,
    ) -> Result<(), Error> {
        let namespaces: BTreeSet<&str> =
            repositories.into_iter().filter_map(|name| name.split('/').next()).collect();
        query!(self.conn(), c => sqlx::query(
            "update quotas set used_bytes = null
             where namespace in (select value from json_each($1)) and used_bytes is not null")
            .bind(serde_json::Value::from_iter(namespaces).to_string()).execute(c).await.map(drop))?;
        Ok(())
    }

    /// Sets or removes a quota.
    pub(crate) async fn quota_put(&mut self, namespace: &str, limit_bytes: Option<u64>) -> Result<(), Error> {
        match limit_bytes {
            Some(limit) => query!(self.conn(), c => sqlx::query(
                "insert into quotas (namespace, limit_bytes) values ($1, $2)
                 on conflict (namespace) do update set limit_bytes = excluded.limit_bytes, used_bytes = null")
                .bind(namespace).bind(bigint(limit)).execute(c).await.map(drop))?,
            None => query!(self.conn(), c => sqlx::query("delete from quotas where namespace = $1")
                .bind(namespace).execute(c).await.map(drop))?,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use lode_model::reference::Repository;

    use super::*;

    #[tokio::test]
    async fn the_sum_of_a_namespace_is_kept_until_a_blob_is_removed() {
        crate::store::each_store(async |store: Store| {
            let repository: Repository = "team/a".parse().unwrap();
            let link = async |bytes: &[u8]| {
                let digest = Digest::sha256(bytes);
                let mut tx = store.begin().await.unwrap();
                tx.blob_insert(&digest, bytes.len() as u64, digest.as_str(), None).await.unwrap();
                let is_added = tx.link_uses_quota("team", &digest).await.unwrap();
                tx.link(&repository, &digest, 0).await.unwrap();
                let used = match is_added {
                    true => tx.quota_add("team", &digest).await.unwrap().map(|(_, used)| used),
                    false => None,
                };
                tx.commit().await.unwrap();
                used
            };
            let kept = async || {
                let (used,): (Option<i64>,) =
                    query!(store.read(), c => sqlx::query_as("select used_bytes from quotas")
                    .fetch_one(c).await)
                    .unwrap();
                used
            };
            let change = async |text: &'static str| {
                query!(store.write(), c => sqlx::query(text).execute(c).await.map(drop)).unwrap();
            };
            let used = async || store.quota_use("team", "team").await.unwrap().unwrap().1;
            assert_eq!(link(b"before").await, None);
            let mut tx = store.begin().await.unwrap();
            tx.quota_put("team", Some(1000)).await.unwrap();
            tx.commit().await.unwrap();
            assert_eq!((kept().await, used().await), (None, 6));
            assert_eq!((link(b"12345").await, kept().await, used().await), (Some(11), Some(11), 11));
            // The kept sum is used, and a blob that the namespace has costs nothing.
            change("update quotas set used_bytes = 20").await;
            assert_eq!((link(b"123").await, kept().await, used().await), (Some(23), Some(23), 23));
            assert_eq!((link(b"123").await, used().await), (None, 23));
            // One that is too old is not.
            change("update quotas set counted_at = counted_at - 3600000").await;
            assert_eq!((used().await, link(b"1").await, kept().await), (14, Some(15), Some(15)));
            // After a removal it is added up again.
            let mut tx = store.begin().await.unwrap();
            assert!(tx.unlink(&repository, &Digest::sha256(b"12345")).await.unwrap());
            tx.commit().await.unwrap();
            assert_eq!((kept().await, used().await), (None, 10));
            assert_eq!((link(b"22").await, kept().await), (Some(12), Some(12)));
        })
        .await;
    }
}

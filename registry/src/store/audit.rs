//! The audit log: who did what, from where, with which credential. Rows are only added, and deleted when they
//! are old.

use std::fmt::Write as _;

use sqlx::AssertSqlSafe;
use uuid::Uuid;

use super::removals::EXPIRE_BATCH;
use super::{Store, Tx, query};
use crate::Error;

const COLUMNS: &str = "id, at, actor, account, via, action, target, outcome, address, agent, request, detail";

#[derive(Clone, Debug, sqlx_macros::FromRow)]
pub(crate) struct AuditRow {
    pub(crate) id: String,
    pub(crate) at: i64,
    pub(crate) actor: String,
    pub(crate) account: Option<String>,
    pub(crate) via: Option<String>,
    pub(crate) action: String,
    pub(crate) target: String,
    pub(crate) outcome: String,
    pub(crate) address: Option<String>,
    pub(crate) agent: Option<String>,
    pub(crate) request: Option<String>,
    /// JSON.
    pub(crate) detail: Option<String>,
}

/// Which records are listed; `None` lists all.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AuditQuery<'a> {
    pub(crate) actor: Option<&'a str>,
    pub(crate) action: Option<&'a str>,
    pub(crate) target: Option<&'a str>,
    pub(crate) outcome: Option<&'a str>,
    /// Not before this time, in milliseconds since 1970.
    pub(crate) since: Option<i64>,
    /// Before the record with this id.
    pub(crate) before: Option<&'a str>,
}

impl Tx {
    pub(crate) async fn audit_insert(&mut self, row: &AuditRow) -> Result<(), Error> {
        let text = format!(
            "insert into audit ({COLUMNS}) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)"
        );
        query!(self.conn(), c => sqlx::query(AssertSqlSafe(text))
            .bind(&row.id[..]).bind(row.at).bind(&row.actor[..]).bind(row.account.as_deref())
            .bind(row.via.as_deref()).bind(&row.action[..]).bind(&row.target[..]).bind(&row.outcome[..])
            .bind(row.address.as_deref()).bind(row.agent.as_deref()).bind(row.request.as_deref())
            .bind(row.detail.as_deref()).execute(c).await.map(drop))?;
        Ok(())
    }
}

impl Store {
    /// Records, newest first, at most `limit`.
    pub(crate) async fn audit_list(&self, query: AuditQuery<'_>, limit: i64) -> Result<Vec<AuditRow>, Error> {
        let AuditQuery { actor, action, target, outcome, since, before } = query;
        let filters = [("actor", actor), ("action", action), ("target", target), ("outcome", outcome)];
        let given = filters.into_iter().filter_map(|(column, value)| Some((column, value?)));
        let given: Vec<(&str, &str)> = given.collect();
        let text = list_text(given.iter().map(|(column, _)| *column));
        Ok(query!(self.read(), c => {
            // Every id is a UUID, which sorts before `g`.
            let mut query = sqlx::query_as(AssertSqlSafe(text)).bind(before.unwrap_or("g"))
                .bind(first_id(since.unwrap_or_default())).bind(limit);
            for (_, value) in &given {
                query = query.bind(*value);
            }
            query.fetch_all(c).await
        })?)
    }

    /// Deletes records from before `cutoff`, in batches.
    pub(crate) async fn audit_expire(&self, cutoff: i64) -> Result<(), Error> {
        loop {
            let rows = query!(self.write(), c => sqlx::query(
                "delete from audit where id in (select id from audit where at < $1 order by at limit $2)")
                .bind(cutoff).bind(EXPIRE_BATCH).execute(c).await.map(|r| r.rows_affected()))?;
            if rows < EXPIRE_BATCH as u64 {
                return Ok(());
            }
        }
    }
}

/// A query with these filters only, so that it can use their indexes. Its parameters: the id before which,
/// the id from which, the limit, and the values of the filters.
fn list_text<'a>(filters: impl Iterator<Item = &'a str>) -> String {
    let mut text = format!("select {COLUMNS} from audit where id < $1 and id >= $2");
    for (at, column) in filters.enumerate() {
        write!(text, " and {column} = ${}", at + 4).expect("a String takes all text");
    }
    text + " order by id desc limit $3"
}

/// The lowest id of a record from this time: the first 48 bits of an id are its milliseconds.
fn first_id(since: i64) -> String {
    const LAST: i64 = (1 << 48) - 1;
    Uuid::from_u128(u128::from(since.clamp(0, LAST).cast_unsigned()) << 80).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, open};

    async fn start() -> (crate::Registry, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let config = Config { data: folder.path().to_owned(), ..Config::default() };
        (open(config).await.unwrap(), folder)
    }

    #[tokio::test]
    async fn filters_and_times_choose_records() {
        let (registry, _folder) = start().await;
        let store = registry.store();
        let mut tx = store.begin().await.unwrap();
        for (at, actor, target, outcome) in [
            (1_000, "a", "x", "ok"),
            (2_000, "b", "x", "ok"),
            (2_000, "a", "y", "refused"),
            (3_000, "a", "x", "ok"),
        ] {
            let row = AuditRow {
                id: Uuid::new_v7(uuid::Timestamp::from_unix(uuid::NoContext, at / 1000, 0)).to_string(),
                at: at.cast_signed(),
                actor: actor.to_owned(),
                account: None,
                via: None,
                action: "test".to_owned(),
                target: target.to_owned(),
                outcome: outcome.to_owned(),
                address: None,
                agent: None,
                request: None,
                detail: None,
            };
            tx.audit_insert(&row).await.unwrap();
        }
        tx.commit().await.unwrap();
        let query = AuditQuery::default();
        for (query, expected) in [
            (query, vec![3_000, 2_000, 2_000, 1_000]),
            (AuditQuery { actor: Some("a"), ..query }, vec![3_000, 2_000, 1_000]),
            (AuditQuery { target: Some("x"), actor: Some("a"), ..query }, vec![3_000, 1_000]),
            (AuditQuery { outcome: Some("refused"), action: Some("test"), ..query }, vec![2_000]),
            (AuditQuery { action: Some("other"), ..query }, vec![]),
            (AuditQuery { since: Some(2_000), ..query }, vec![3_000, 2_000, 2_000]),
            (AuditQuery { since: Some(2_001), ..query }, vec![3_000]),
            (AuditQuery { since: Some(i64::MAX), ..query }, vec![]),
            (AuditQuery { since: Some(-1), target: Some("y"), ..query }, vec![2_000]),
        ] {
            let found = store.audit_list(query, 10).await.unwrap();
            assert_eq!(found.iter().map(|row| row.at).collect::<Vec<_>>(), expected, "{query:?}");
        }
    }

    #[tokio::test]
    async fn filters_use_their_indexes() {
        let (registry, _folder) = start().await;
        for (filters, index) in [
            (vec![], "sqlite_autoindex_audit_1"),
            (vec!["actor"], "audit_by_actor"),
            (vec!["target"], "audit_by_target"),
            (vec!["actor", "action", "outcome"], "audit_by_actor"),
        ] {
            let text = format!("explain query plan {}", list_text(filters.iter().copied()));
            let steps: Vec<(i64, i64, i64, String)> = query!(registry.store().read(), c =>
                sqlx::query_as(AssertSqlSafe(text)).fetch_all(c).await)
            .unwrap();
            let [(.., step)] = &steps[..] else { panic!("{filters:?}: {steps:?}") };
            assert!(step.starts_with("SEARCH") && step.contains(index), "{filters:?}: {step}");
        }
    }
}

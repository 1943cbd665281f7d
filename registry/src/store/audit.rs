//! The audit log: who did what, from where, with which credential. Rows are only added, and deleted when they
//! are old.

use sqlx::AssertSqlSafe;

use super::removals::EXPIRE_BATCH;
use super::{Store, Tx, on};
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
        on!(self.conn(), c => sqlx::query(AssertSqlSafe(text))
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
        // Every id is a UUID, which sorts before `g`.
        let text = format!(
            "select {COLUMNS} from audit
             where id < $1 and (cast($2 as text) is null or actor = $2) and (cast($3 as text) is null or action = $3)
               and (cast($4 as text) is null or target = $4) and (cast($5 as text) is null or outcome = $5)
               and at >= $6
             order by id desc limit $7"
        );
        Ok(on!(self.read(), c => sqlx::query_as(AssertSqlSafe(text))
            .bind(query.before.unwrap_or("g")).bind(query.actor).bind(query.action).bind(query.target)
            .bind(query.outcome).bind(query.since.unwrap_or(i64::MIN)).bind(limit).fetch_all(c).await)?)
    }

    /// Deletes records from before `cutoff`, in batches.
    pub(crate) async fn audit_expire(&self, cutoff: i64) -> Result<(), Error> {
        loop {
            let rows = on!(self.write(), c => sqlx::query(
                "delete from audit where id in (select id from audit where at < $1 order by at limit $2)")
                .bind(cutoff).bind(EXPIRE_BATCH).execute(c).await.map(|r| r.rows_affected()))?;
            if rows < EXPIRE_BATCH as u64 {
                return Ok(());
            }
        }
    }
}

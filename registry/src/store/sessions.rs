//! Sessions of browsers.

use lode_model::digest::Digest;
use uuid::Uuid;

use super::{Store, Tx, parse_stored, query};
use crate::Error;

/// A session. Its cookie is stored as a digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SessionRow {
    pub(crate) id: Uuid,
    pub(crate) account: Uuid,
    pub(crate) address: String,
    pub(crate) agent: String,
    /// The provider at which the person has signed in.
    pub(crate) provider: Option<String>,
    pub(crate) created_at: i64,
    pub(crate) used_at: i64,
    /// When the person has last proved who it is; 0 if that is not known.
    pub(crate) fresh_at: i64,
}

#[derive(sqlx_macros::FromRow)]
struct SessionColumns {
    id: String,
    account: String,
    address: String,
    agent: String,
    provider: Option<String>,
    created_at: i64,
    used_at: i64,
    fresh_at: i64,
}

impl TryFrom<SessionColumns> for SessionRow {
    type Error = Error;

    fn try_from(row: SessionColumns) -> Result<SessionRow, Error> {
        Ok(SessionRow {
            id: parse_stored("session", &row.id)?,
            account: parse_stored("account", &row.account)?,
            address: row.address,
            agent: row.agent,
            provider: row.provider,
            created_at: row.created_at,
            used_at: row.used_at,
            fresh_at: row.fresh_at,
        })
    }
}

impl Store {
    /// The session of a cookie, whether or not it is still valid.
    pub(crate) async fn session_find(&self, secret: &Digest) -> Result<Option<SessionRow>, Error> {
        let row: Option<SessionColumns> = query!(self.read(), c => sqlx::query_as(
            "select id, account, address, agent, provider, created_at, used_at, fresh_at from sessions
             where secret = $1")
            .bind(secret.as_str()).fetch_optional(c).await)?;
        row.map(SessionRow::try_from).transpose()
    }

    /// The sessions of an account, newest first.
    pub(crate) async fn session_list(&self, account: Uuid) -> Result<Vec<SessionRow>, Error> {
        let rows: Vec<SessionColumns> = query!(self.read(), c => sqlx::query_as(
            "select id, account, address, agent, provider, created_at, used_at, fresh_at from sessions
             where account = $1 order by id desc")
            .bind(account.to_string()).fetch_all(c).await)?;
        rows.into_iter().map(SessionRow::try_from).collect()
    }

    /// When the person of a session has last proved who it is. `None` for a session that has ended.
    pub(crate) async fn session_fresh_at(&self, id: Uuid) -> Result<Option<i64>, Error> {
        let row: Option<(i64,)> = query!(self.read(), c => sqlx::query_as(
            "select fresh_at from sessions where id = $1")
            .bind(id.to_string()).fetch_optional(c).await)?;
        Ok(row.map(|(at,)| at))
    }

    /// Records the use of a session.
    pub(crate) async fn session_used(&self, id: Uuid, at: i64) -> Result<(), Error> {
        query!(self.write(), c => sqlx::query("update sessions set used_at = $2 where id = $1")
            .bind(id.to_string()).bind(at).execute(c).await.map(drop))?;
        Ok(())
    }

    /// Deletes sessions that were not used since `used_before`, or began before `created_before`.
    pub(crate) async fn sessions_expire(&self, used_before: i64, created_before: i64) -> Result<(), Error> {
        query!(self.write(), c => sqlx::query("delete from sessions where used_at < $1 or created_at < $2")
            .bind(used_before).bind(created_before).execute(c).await.map(drop))?;
        Ok(())
    }
}

impl Tx {
    /// Adds a session. Returns false if the account has changed since `epoch` was read: its password may be
    /// another one by now.
    pub(crate) async fn session_insert(
        &mut self,
        row: &SessionRow,
        secret: &Digest,
        epoch: i64,
    ) -> Result<bool, Error> {
        // A change of the account that has not ended yet would not see this session. SQLite has one writer.
        if self.locks_rows() {
            query!(self.conn(), c => sqlx::query("select 1 from accounts where id = $1 for share")
                .bind(row.account.to_string()).execute(c).await.map(drop))?;
        }
        let rows = query!(self.conn(), c => sqlx::query(
            "insert into sessions (id, account, secret, address, agent, created_at, used_at, provider, fresh_at)
             select $1, $2, $3, $4, $5, $6, $7, $8, $10
             where exists (select 1 from accounts where id = $2 and epoch = $9 and disabled_at is null)")
            .bind(row.id.to_string()).bind(row.account.to_string()).bind(secret.as_str())
            .bind(&row.address).bind(&row.agent).bind(row.created_at).bind(row.used_at).bind(&row.provider)
            .bind(epoch).bind(row.fresh_at).execute(c).await.map(|r| r.rows_affected()))?;
        Ok(rows > 0)
    }

    /// Deletes one session of an account, or all of them.
    pub(crate) async fn sessions_delete(&mut self, account: Uuid, id: Option<Uuid>) -> Result<(), Error> {
        query!(self.conn(), c => sqlx::query(
            "delete from sessions where account = $1 and (cast($2 as text) is null or id = $2)")
            .bind(account.to_string()).bind(id.map(|id| id.to_string())).execute(c).await.map(drop))?;
        Ok(())
    }
}

//! Failed sign-ins, which slow down further attempts, and values that are accepted once.

use super::{Store, Tx, query};
use crate::Error;

impl Store {
    /// When the next attempt of any of these subjects is allowed; 0 if they may try now.
    pub(crate) async fn failures_next_at(&self, subjects: &[String]) -> Result<i64, Error> {
        let list = serde_json::Value::from(subjects.to_vec()).to_string();
        let (next_at,): (i64,) = query!(self.read(), c => sqlx::query_as(
            "select coalesce(max(next_at), 0) from sign_in_failures
             where subject in (select value from json_each($1))")
            .bind(list).fetch_one(c).await)?;
        Ok(next_at)
    }

    /// Forgets the failures of a subject.
    pub(crate) async fn failures_delete(&self, subject: &str) -> Result<(), Error> {
        query!(self.write(), c => sqlx::query("delete from sign_in_failures where subject = $1")
            .bind(subject).execute(c).await.map(drop))?;
        Ok(())
    }

    /// Deletes failures from before `failed_before`, and used values that have expired at `now`.
    pub(crate) async fn sign_ins_expire(&self, failed_before: i64, now: i64) -> Result<(), Error> {
        query!(self.write(), c => sqlx::query("delete from sign_in_failures where failed_at < $1")
            .bind(failed_before).execute(c).await.map(drop))?;
        query!(self.write(), c => sqlx::query("delete from used_values where expires_at < $1")
            .bind(now).execute(c).await.map(drop))?;
        Ok(())
    }

    /// Accepts a value that may be used once. Returns false if it was used before.
    pub(crate) async fn value_use(&self, value: &str, expires_at: i64) -> Result<bool, Error> {
        let rows = query!(self.write(), c => sqlx::query(
            "insert into used_values (value, expires_at) values ($1, $2) on conflict (value) do nothing")
            .bind(value).bind(expires_at).execute(c).await.map(|r| r.rows_affected()))?;
        Ok(rows > 0)
    }
}

impl Tx {
    /// Counts a failure of a subject; returns how many it has now. Those from before `failed_before` are
    /// forgotten.
    pub(crate) async fn failure_count(
        &mut self,
        subject: &str,
        now: i64,
        failed_before: i64,
    ) -> Result<i64, Error> {
        let (failures,): (i64,) = query!(self.conn(), c => sqlx::query_as(
            "insert into sign_in_failures (subject, failures, next_at, failed_at) values ($1, 1, $2, $2)
             on conflict (subject) do update set
                 failures = case when sign_in_failures.failed_at < $3 then 1 else sign_in_failures.failures + 1 end,
                 failed_at = excluded.failed_at
             returning failures")
            .bind(subject).bind(now).bind(failed_before).fetch_one(c).await)?;
        Ok(failures)
    }

    /// Sets when the next attempt of a subject is allowed.
    pub(crate) async fn failure_delay(&mut self, subject: &str, next_at: i64) -> Result<(), Error> {
        query!(self.conn(), c => sqlx::query("update sign_in_failures set next_at = $2 where subject = $1")
            .bind(subject).bind(next_at).execute(c).await.map(drop))?;
        Ok(())
    }
}

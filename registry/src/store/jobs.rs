//! Jobs and their findings. A replica runs a job while it holds the job's lease, which ends by the database's
//! clock. Every statement of a run names the attempt, so that a run that lost its job changes nothing.

use std::time::Duration;

use sqlx::AssertSqlSafe;

use super::{Engine, Store, Tx, query};
use crate::time::{millis, now_ms};
use crate::{Error, metrics};

/// How many findings one statement inserts.
const INSERT_ROWS: usize = 200;
/// How many rows one statement deletes.
const DELETE_ROWS: i64 = 5_000;

#[derive(Clone, Debug, sqlx_macros::FromRow)]
pub(crate) struct JobRow {
    pub(crate) id: String,
    pub(crate) kind: String,
    pub(crate) parameters: String,
    pub(crate) state: String,
    pub(crate) created_at: i64,
    pub(crate) started_at: Option<i64>,
    pub(crate) finished_at: Option<i64>,
    pub(crate) attempts: i64,
    /// How many of the attempts ended with their process.
    pub(crate) lost_runs: i64,
    pub(crate) cancelled: i64,
    pub(crate) progress: Option<String>,
    pub(crate) result: Option<String>,
    pub(crate) problem: Option<String>,
    /// The account that started it.
    pub(crate) account: Option<String>,
}

pub(crate) struct NewJob<'a> {
    pub(crate) id: &'a str,
    pub(crate) kind: &'a str,
    pub(crate) parameters: &'a str,
    pub(crate) writes: bool,
    pub(crate) account: Option<&'a str>,
    /// Credentials for another server, sealed by the vault. They are removed when the job ends.
    pub(crate) secret: Option<&'a str>,
}

/// How many jobs may be unfinished when a job is added.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JobLimits {
    pub(crate) all: i64,
    /// Jobs of one kind of one account.
    pub(crate) of_account: i64,
}

/// Whether a job was added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobInsert {
    Added,
    /// [`JobLimits::all`] is reached.
    ServerFull,
    /// [`JobLimits::of_account`] is reached.
    AccountFull,
}

/// The jobs that a replica may claim.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claimable {
    /// Jobs that change the content of the registry.
    pub(crate) writing: bool,
    /// Jobs of these kinds are left to other replicas.
    pub(crate) except: [Option<&'static str>; 2],
}

/// A run of a job: the process that runs it, and the number of the attempt.
#[derive(Clone, Debug)]
pub(crate) struct JobRun {
    pub(crate) id: String,
    pub(crate) holder: String,
    pub(crate) attempt: i64,
}

/// How a job ended.
pub(crate) struct JobEnd<'a> {
    /// `succeeded`, `failed` or `cancelled`.
    pub(crate) state: &'static str,
    pub(crate) progress: Option<&'a str>,
    pub(crate) result: Option<&'a str>,
    pub(crate) problem: Option<&'a str>,
}

macro_rules! columns {
    () => {
        "id, kind, parameters, state, created_at, started_at, finished_at, attempts, lost_runs, cancelled, progress, result, problem, account"
    };
}

macro_rules! claim {
    ($lock:literal) => {
        concat!(
            "update jobs set state = 'running', holder = $1, lease_until = $3, attempts = attempts + 1,
                    lost_runs = lost_runs + case when state = 'running' then 1 else 0 end,
                    started_at = coalesce(started_at, $5)
             where id in (select id from jobs
                 where finished_at is null and (state = 'queued' or lease_until <= $2) and writes <= $4
                     and kind <> $6 and kind <> $7
                 order by id limit 1",
            $lock,
            ") returning ",
            columns!()
        )
    };
}

impl Store {
    pub(crate) async fn job_find(&self, id: &str) -> Result<Option<JobRow>, Error> {
        Ok(
            query!(self.read(), c => sqlx::query_as(concat!("select ", columns!(), " from jobs where id = $1"))
            .bind(id).fetch_optional(c).await)?,
        )
    }

    /// Jobs after `after`, newest first.
    pub(crate) async fn job_list(&self, after: Option<&str>, limit: u32) -> Result<Vec<JobRow>, Error> {
        // Ids are hexadecimal: all of them sort before this letter.
        Ok(query!(self.read(), c => sqlx::query_as(concat!(
            "select ", columns!(), " from jobs where id < $1 order by id desc limit $2"))
            .bind(after.unwrap_or("g")).bind(i64::from(limit)).fetch_all(c).await)?)
    }

    /// Claims the oldest of these jobs that is queued or whose lease has ended.
    pub(crate) async fn job_claim(
        &self,
        holder: &str,
        claimable: Claimable,
        lease: Duration,
    ) -> Result<Option<JobRow>, Error> {
        let now = self.database_now_ms().await?;
        let until = now.saturating_add(millis(lease));
        let writes = i64::from(claimable.writing);
        let [except, also_except] = claimable.except.map(Option::unwrap_or_default);
        let claimed = metrics::database("job_claim", async {
            match (self.write(), self.read()) {
                (Engine::Sqlite(write), Engine::Sqlite(read)) => {
                    // A write blocks other writers, and mostly there is no job.
                    let waiting: Option<(i64,)> = sqlx::query_as(
                        "select 1 from jobs
                         where finished_at is null and (state = 'queued' or lease_until <= $1) and writes <= $2
                             and kind <> $3 and kind <> $4 limit 1",
                    )
                    .bind(now)
                    .bind(writes)
                    .bind(except)
                    .bind(also_except)
                    .fetch_optional(read)
                    .await?;
                    if waiting.is_none() {
                        return Ok(None);
                    }
                    let claim = sqlx::query_as(claim!("")).bind(holder).bind(now).bind(until);
                    let claim = claim.bind(writes).bind(now_ms()).bind(except).bind(also_except);
                    claim.fetch_optional(write).await
                }
                (Engine::Postgres(c), _) => {
                    let claim = sqlx::query_as(claim!(" for update skip locked"));
                    let claim = claim.bind(holder).bind(now).bind(until);
                    let claim = claim.bind(writes).bind(now_ms()).bind(except).bind(also_except);
                    super::postgres::with_timeout(claim.fetch_optional(c)).await
                }
                _ => Ok(None),
            }
        });
        Ok(claimed.await?)
    }

    /// The sealed credentials of a job, for its run.
    pub(crate) async fn job_credentials(&self, run: &JobRun) -> Result<Option<String>, Error> {
        let row: Option<(Option<String>,)> = query!(self.read(), c => sqlx::query_as(
            "select secret from jobs where id = $1 and holder = $2 and attempts = $3 and finished_at is null")
            .bind(&run.id).bind(&run.holder).bind(run.attempt).fetch_optional(c).await)?;
        Ok(row.and_then(|(secret,)| secret))
    }

    /// Renews the lease and stores the progress. Returns whether a caller requested cancellation, or `None`
    /// if the run no longer holds the job.
    pub(crate) async fn job_renew(
        &self,
        run: &JobRun,
        lease: Duration,
        progress: Option<&str>,
    ) -> Result<Option<bool>, Error> {
        let until = self.database_now_ms().await?.saturating_add(millis(lease));
        let row: Option<(i64,)> = query!(self.write(), c => sqlx::query_as(
            "update jobs set lease_until = $4, progress = coalesce($5, progress)
             where id = $1 and holder = $2 and attempts = $3 and finished_at is null returning cancelled")
            .bind(&run.id).bind(&run.holder).bind(run.attempt).bind(until).bind(progress)
            .fetch_optional(c).await)?;
        Ok(row.map(|(cancelled,)| cancelled != 0))
    }

    /// Ends a job. If its result is recorded already, it has succeeded, whatever `end` says. Returns false if the run no
    /// longer holds the job.
    pub(crate) async fn job_finish(&self, run: &JobRun, end: &JobEnd<'_>) -> Result<bool, Error> {
        let rows = query!(self.write(), c => sqlx::query(
            "update jobs set state = case when result is null then $4 else 'succeeded' end, finished_at = $5,
                    progress = coalesce($6, progress), result = coalesce(result, $7),
                    problem = case when result is null then $8 end,
                    holder = null, lease_until = null, secret = null
             where id = $1 and holder = $2 and attempts = $3 and finished_at is null")
            .bind(&run.id).bind(&run.holder).bind(run.attempt).bind(end.state).bind(now_ms())
            .bind(end.progress).bind(end.result).bind(end.problem)
            .execute(c).await.map(|r| r.rows_affected()))?;
        Ok(rows > 0)
    }

    /// Returns a job to the queue, for another replica to claim at once.
    pub(crate) async fn job_release(&self, run: &JobRun) -> Result<(), Error> {
        query!(self.write(), c => sqlx::query(
            "update jobs set state = 'queued', holder = null, lease_until = null
             where id = $1 and holder = $2 and attempts = $3 and finished_at is null")
            .bind(&run.id).bind(&run.holder).bind(run.attempt).execute(c).await.map(drop))?;
        Ok(())
    }

    /// Adds findings of one kind, the first one at `position`.
    pub(crate) async fn findings_insert(
        &self,
        run: &JobRun,
        kind: &str,
        position: i64,
        details: &[String],
    ) -> Result<(), Error> {
        for (nth, rows) in details.chunks(INSERT_ROWS).enumerate() {
            let values: Vec<String> = (0..rows.len())
                .map(|row| format!("($1, $2, $3, ${}, ${})", 4 + row * 2, 5 + row * 2))
                .collect();
            let text = format!(
                "insert into job_findings (job, attempt, kind, position, detail) values {}",
                values.join(", ")
            );
            query!(self.write(), c => {
                // The text contains only placeholders.
                let mut query = sqlx::query(AssertSqlSafe(text)).bind(&run.id).bind(run.attempt).bind(kind);
                for (row, detail) in rows.iter().enumerate() {
                    query = query.bind(position + (nth * INSERT_ROWS + row) as i64).bind(detail);
                }
                query.execute(c).await.map(drop)
            })?;
        }
        Ok(())
    }

    /// The findings of one kind of a job's last attempt, after the position `after`.
    pub(crate) async fn findings_list(
        &self,
        job: &JobRow,
        kind: &str,
        after: i64,
        limit: u32,
    ) -> Result<Vec<(i64, String)>, Error> {
        Ok(query!(self.read(), c => sqlx::query_as(
            "select position, detail from job_findings
             where job = $1 and attempt = $2 and kind = $3 and position > $4 order by position limit $5")
            .bind(&job.id).bind(job.attempts).bind(kind).bind(after).bind(i64::from(limit))
            .fetch_all(c).await)?)
    }

    /// Queues the jobs of a process that ended. Only on SQLite, where there is no other process.
    pub(crate) async fn jobs_recover(&self) -> Result<(), Error> {
        let Engine::Sqlite(write) = self.write() else { return Ok(()) };
        metrics::database("jobs_recover", async {
            sqlx::query(
                "update jobs set state = 'queued', holder = null, lease_until = null, lost_runs = lost_runs + 1
                 where state = 'running'",
            )
            .execute(write)
            .await
            .map(drop)
        })
        .await?;
        Ok(())
    }

    /// Deletes jobs that finished before `cutoff`, and all but the `kept` newest, with their findings.
    pub(crate) async fn jobs_expire(&self, cutoff: i64, kept: i64) -> Result<(), Error> {
        let old: Vec<(String,)> = query!(self.read(), c => sqlx::query_as(
            "select id from jobs where finished_at is not null and (finished_at < $1 or id in
                 (select id from jobs where finished_at is not null order by id desc limit 1000 offset $2))
             limit 1000")
            .bind(cutoff).bind(kept).fetch_all(c).await)?;
        for (id,) in old {
            loop {
                let rows = query!(self.write(), c => sqlx::query(
                    "delete from job_findings where (job, attempt, kind, position) in
                         (select job, attempt, kind, position from job_findings where job = $1 limit $2)")
                    .bind(&id).bind(DELETE_ROWS).execute(c).await.map(|r| r.rows_affected()))?;
                if rows == 0 {
                    break;
                }
            }
            query!(self.write(), c => sqlx::query("delete from jobs where id = $1").bind(&id)
                .execute(c).await.map(drop))?;
        }
        Ok(())
    }
}

impl Tx {
    /// Adds a job, unless as many are unfinished as `limits` allow.
    pub(crate) async fn job_insert(
        &mut self,
        job: &NewJob<'_>,
        limits: JobLimits,
    ) -> Result<JobInsert, Error> {
        let rows = query!(self.conn(), c => sqlx::query(
            "insert into jobs (id, kind, parameters, writes, state, created_at, account, secret)
             select $1, $2, $3, cast($4 as bigint), 'queued', cast($5 as bigint), $8, $9
             where (select count(*) from jobs where finished_at is null) < cast($6 as bigint)
               and (select count(*) from jobs where finished_at is null and kind = $2
                    and coalesce(account, '') = coalesce($8, '')) < cast($7 as bigint)")
            .bind(job.id).bind(job.kind).bind(job.parameters).bind(i64::from(job.writes)).bind(now_ms())
            .bind(limits.all).bind(limits.of_account).bind(job.account).bind(job.secret)
            .execute(c).await.map(|r| r.rows_affected()))?;
        if rows > 0 {
            return Ok(JobInsert::Added);
        }
        let (unfinished,): (i64,) = query!(self.conn(), c => sqlx::query_as(
            "select count(*) from jobs where finished_at is null").fetch_one(c).await)?;
        Ok(if unfinished >= limits.all { JobInsert::ServerFull } else { JobInsert::AccountFull })
    }

    /// Records the result of a job in the transaction that makes it true. Returns false if the run no longer holds the
    /// job, or the job has ended or has a result.
    pub(crate) async fn job_record_result(&mut self, run: &JobRun, result: &str) -> Result<bool, Error> {
        let rows = query!(self.conn(), c => sqlx::query(
            "update jobs set result = $4
             where id = $1 and holder = $2 and attempts = $3 and finished_at is null and result is null")
            .bind(&run.id).bind(&run.holder).bind(run.attempt).bind(result)
            .execute(c).await.map(|r| r.rows_affected()))?;
        Ok(rows > 0)
    }

    /// Requests the cancellation of a job. A queued job ends at once. Returns false if no unfinished job has
    /// this id.
    pub(crate) async fn job_cancel(&mut self, id: &str) -> Result<bool, Error> {
        let rows = query!(self.conn(), c => sqlx::query(
            "update jobs set cancelled = 1, finished_at = case when state = 'queued' then cast($2 as bigint) end,
                    state = case when state = 'queued' then 'cancelled' else state end,
                    secret = case when state = 'queued' then null else secret end
             where id = $1 and finished_at is null")
            .bind(id).bind(now_ms()).execute(c).await.map(|r| r.rows_affected()))?;
        Ok(rows > 0)
    }
}

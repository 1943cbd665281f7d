//! Long work that callers start, follow and cancel: collections, checks, and the creation and import of models.
//! `jobs::runner` runs it.

use std::time::Duration;

use lode_client::Secret;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::time::Instant;
use utoipa::ToSchema;
use uuid::Uuid;

use super::job_kind::JobKind;
use super::{Page, Registry};
use crate::Error;
use crate::auth::{Action, Caller, Target};
use crate::store::{JobInsert, JobLimits, JobRow, JobRun, NewJob};
use crate::time::rfc3339;

/// The most jobs that may be queued or running.
const MAX_UNFINISHED: i64 = 100;
/// How many there may be before a job that creates or imports a model is refused. The rest is reserved for the jobs of
/// administrators: collections and checks.
const MAX_UNFINISHED_FOR_MODELS: i64 = 80;
/// The most models that one account may be creating, and as many imports, so that the jobs of others can start,
/// too.
const MAX_UNFINISHED_MODELS: i64 = 20;
/// The most bytes of a job's parameters.
const MAX_PARAMETERS_BYTES: usize = 64 << 10;
/// How often the row of another replica's job is read again while a caller waits for the job.
const RECHECK: Duration = Duration::from_millis(500);

/// A kind of finding; findings are rows that are read page by page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FindingKind {
    /// Of a check: damage.
    Damage,
    /// Of a check: files without a row.
    Orphan,
    /// Of a check: files of uploads that are in progress, or expired and not yet deleted.
    Upload,
    /// Of a dry run: a removal and its reason.
    Removal,
}

impl FindingKind {
    pub(crate) const ALL: [FindingKind; 4] =
        [FindingKind::Damage, FindingKind::Orphan, FindingKind::Upload, FindingKind::Removal];

    pub(crate) fn name(self) -> &'static str {
        match self {
            FindingKind::Damage => "damage",
            FindingKind::Orphan => "orphan",
            FindingKind::Upload => "upload",
            FindingKind::Removal => "removal",
        }
    }
}

/// A job as callers see it.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Job {
    pub id: String,
    /// `gc`, `fsck`, `create` or `import`.
    pub kind: String,
    #[schema(value_type = Object)]
    pub parameters: Box<RawValue>,
    /// `queued`, `running`, `succeeded`, `failed` or `cancelled`.
    pub state: String,
    #[schema(format = DateTime)]
    pub created_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub started_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub finished_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub progress: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub result: Option<Box<RawValue>>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

impl Registry {
    /// Adds a job, which this replica or another one runs.
    pub async fn job_start(&self, caller: &Caller, kind: JobKind) -> Result<Job, Error> {
        self.authorize(caller, Action::Administer, Target::Server).await?;
        self.job_add(caller, kind, None).await
    }

    /// Adds a job that the caller may start. `secret` is for its runs alone and is deleted when it ends.
    pub(super) async fn job_add(
        &self,
        caller: &Caller,
        kind: JobKind,
        secret: Option<&Secret>,
    ) -> Result<Job, Error> {
        if kind.writes() {
            self.check_writable()?;
        }
        let id = Uuid::now_v7().to_string();
        let parameters =
            serde_json::to_string(&kind).expect("a struct of texts, numbers and booleans serialises to JSON");
        if parameters.len() > MAX_PARAMETERS_BYTES {
            return Err(Error::JobTooLarge { bytes: parameters.len(), limit_bytes: MAX_PARAMETERS_BYTES });
        }
        let account = caller.account().map(|account| account.id.to_string());
        let secret = secret.map(|secret| self.vault.seal_text(&secret_name(&id), secret)).transpose()?;
        let job = NewJob {
            id: &id,
            kind: kind.name(),
            parameters: &parameters,
            writes: kind.writes(),
            account: account.as_deref(),
            secret: secret.as_ref().map(Secret::expose),
        };
        let limits = match kind {
            JobKind::Create(_) | JobKind::Import(_) => {
                JobLimits { all: MAX_UNFINISHED_FOR_MODELS, of_account: MAX_UNFINISHED_MODELS }
            }
            JobKind::Gc { .. } | JobKind::Fsck { .. } => {
                JobLimits { all: MAX_UNFINISHED, of_account: MAX_UNFINISHED }
            }
        };
        let mut tx = self.store.begin().await?;
        match tx.job_insert(&job, limits).await? {
            JobInsert::Added => {}
            JobInsert::ServerFull => return Err(Error::TooManyJobs { limit: limits.all }),
            JobInsert::AccountFull => {
                return Err(Error::TooManyJobsOfAccount { kind: kind.name(), limit: limits.of_account });
            }
        }
        self.audit(&mut tx, caller, kind.start_action(), format!("job:{id}"), json!(kind)).await?;
        tx.commit().await?;
        self.jobs.added.notify_one();
        tracing::info!(job = id, kind = kind.name(), "job added");
        self.job_find(&id).await?.ok_or(Error::Corrupt { what: "job", value: id })
    }

    /// Returns a job. With `wait`, waits until it has finished or the time is over. `None` if there is no
    /// such job.
    pub async fn job_show(&self, caller: &Caller, id: Uuid, wait: Duration) -> Result<Option<Job>, Error> {
        let (id, deadline) = (id.to_string(), Instant::now() + wait);
        self.authorize_job(caller, Action::Inspect, &id).await?;
        loop {
            let changed = self.jobs.changed.notified();
            let mut changed = std::pin::pin!(changed);
            changed.as_mut().enable();
            let found = self.job_find(&id).await?;
            let is_running = found.as_ref().is_some_and(|job| job.finished_at.is_none());
            if !is_running || Instant::now() >= deadline {
                return Ok(found);
            }
            // Another replica may run it, which does not notify this one.
            let recheck = deadline.min(Instant::now() + RECHECK);
            let _late = tokio::time::timeout_at(recheck, changed).await;
        }
    }

    /// Jobs, newest first: at most `n`, after the job `after`.
    pub async fn job_list(&self, caller: &Caller, after: Option<Uuid>, n: u32) -> Result<Page<Job>, Error> {
        self.authorize(caller, Action::Inspect, Target::Server).await?;
        let after = after.map(|id| id.to_string());
        let mut rows = self.store.job_list(after.as_deref(), n.saturating_add(1)).await?;
        let more = rows.len() > n as usize;
        rows.truncate(n as usize);
        Ok(Page { items: rows.into_iter().map(Job::try_from).collect::<Result<_, _>>()?, more })
    }

    /// Requests the cancellation of a job. A collection ends between two of its steps, and finished steps are
    /// kept. `None` if there is no such job.
    pub async fn job_cancel(&self, caller: &Caller, id: Uuid) -> Result<Option<Job>, Error> {
        let id = id.to_string();
        self.authorize_job(caller, Action::Administer, &id).await?;
        let mut tx = self.store.begin().await?;
        if tx.job_cancel(&id).await? {
            self.audit(&mut tx, caller, "job.cancel", format!("job:{id}"), Value::Null).await?;
        }
        tx.commit().await?;
        match self.jobs.find(&id) {
            Some(control) => control.cancel(),
            None => self.jobs.changed.notify_waiters(),
        }
        self.job_find(&id).await
    }

    /// The findings of one kind after the position `after`, each with its position. `None` if there is no
    /// such job.
    pub async fn job_findings(
        &self,
        caller: &Caller,
        id: Uuid,
        kind: FindingKind,
        after: Option<u64>,
        n: u32,
    ) -> Result<Option<Page<(u64, Value)>>, Error> {
        self.authorize(caller, Action::Inspect, Target::Server).await?;
        let Some(job) = self.store.job_find(&id.to_string()).await? else { return Ok(None) };
        let after = after.map_or(-1, |after| i64::try_from(after).unwrap_or(i64::MAX));
        let mut rows = self.store.findings_list(&job, kind.name(), after, n.saturating_add(1)).await?;
        let more = rows.len() > n as usize;
        rows.truncate(n as usize);
        let read = |(position, detail): (i64, String)| {
            let detail = serde_json::from_str(&detail);
            Ok((position.unsigned_abs(), detail.map_err(|_| corrupt("finding", job.id.clone()))?))
        };
        Ok(Some(Page { items: rows.into_iter().map(read).collect::<Result<_, Error>>()?, more }))
    }

    /// Returns an error if the caller may not do this to the job. An unknown job is like one of another account.
    async fn authorize_job(&self, caller: &Caller, action: Action, id: &str) -> Result<(), Error> {
        let row = self.store.job_find(id).await?;
        let owner = row.and_then(|row| row.account).and_then(|account| account.parse().ok());
        self.authorize(caller, action, Target::Job { owner }).await
    }

    /// The secret of a job, for its run.
    pub(crate) async fn job_secret(&self, run: &JobRun) -> Result<Option<Secret>, Error> {
        let Some(sealed) = self.store.job_credentials(run).await? else { return Ok(None) };
        Ok(Some(self.vault.open_text(&secret_name(&run.id), &Secret::new(sealed))?))
    }

    async fn job_find(&self, id: &str) -> Result<Option<Job>, Error> {
        let mut job = self.store.job_find(id).await?.map(Job::try_from).transpose()?;
        // If this process runs the job, its progress in memory is newer than its row.
        if let Some(job) = job.as_mut().filter(|job| job.finished_at.is_none())
            && let Some(control) = self.jobs.find(id)
        {
            job.progress = serde_json::value::to_raw_value(&control.progress()).ok();
        }
        Ok(job)
    }
}

/// The name of a job's secret in the vault.
fn secret_name(id: &str) -> String {
    format!("job:{id}")
}

fn corrupt(what: &'static str, value: String) -> Error {
    Error::Corrupt { what, value }
}

impl TryFrom<JobRow> for Job {
    type Error = Error;

    fn try_from(row: JobRow) -> Result<Job, Error> {
        let raw = |text: String| RawValue::from_string(text).map_err(|_| corrupt("job", row.id.clone()));
        Ok(Job {
            parameters: raw(row.parameters)?,
            progress: row.progress.map(raw).transpose()?,
            // One that is recorded before the end is shown at the end.
            result: row.result.filter(|_| row.finished_at.is_some()).map(raw).transpose()?,
            id: row.id.clone(),
            kind: row.kind,
            state: row.state,
            created_at: rfc3339(row.created_at),
            started_at: row.started_at.map(rfc3339),
            finished_at: row.finished_at.map(rfc3339),
            problem: row.problem,
        })
    }
}

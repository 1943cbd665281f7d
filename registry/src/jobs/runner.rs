//! Runs jobs, a few at a time, each under a lease that is renewed while it runs. Another replica restarts the
//! jobs of a replica that died, a few times at most.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::app::{Finding, FindingKind, FindingSink, JobControl, JobError, JobKind};
use crate::error::chain;
use crate::store::{Claimable, JobEnd, JobRow, JobRun};
use crate::time::{millis, now_ms};
use crate::{Error, Registry};

/// How many jobs one process runs at a time. Most of them wait for the collection's lock.
const MAX_CONCURRENT_JOBS: usize = 4;
/// How many of them may fetch a model from another server: a slow server must not delay collections.
const MAX_CONCURRENT_IMPORTS: usize = 2;
const LEASE: Duration = Duration::from_secs(30);
/// How often a running job's lease is renewed, its progress stored, and its row checked for a cancellation.
const LEASE_RENEW_INTERVAL: Duration = Duration::from_secs(1);
/// How often the database is polled for jobs of other replicas.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// How many servers may die while they run a job before the job fails. A server that shuts down does not count: it
/// returns the job to the queue.
const MAX_LOST_RUNS: i64 = 3;
/// How long a stopping server waits for a job to reach a point where it can end.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// How long finished jobs are kept, and how many of them.
const KEPT_FOR: Duration = Duration::from_secs(7 * 24 * 60 * 60);
const KEPT_JOBS: i64 = 1000;

pub(super) fn start(registry: &Registry) {
    let registry = registry.clone();
    // It ends on its own when the registry stops: a job must not be dropped in the middle of a step.
    registry.clone().start_draining(run(registry));
}

async fn run(registry: Registry) {
    let mut running = JoinSet::new();
    // Creating a model uses all cores, so that one at a time is as fast as several.
    let creating = Arc::new(Semaphore::new(1));
    let importing = Arc::new(Semaphore::new(MAX_CONCURRENT_IMPORTS));
    while !registry.stopping().is_cancelled() {
        if running.len() < MAX_CONCURRENT_JOBS {
            let create = creating.clone().try_acquire_owned().ok();
            let import = importing.clone().try_acquire_owned().ok();
            let claimable = Claimable {
                writing: registry.check_writable().is_ok(),
                except: [
                    create.is_none().then_some(JobKind::CREATE),
                    import.is_none().then_some(JobKind::IMPORT),
                ],
            };
            match registry.store().job_claim(&registry.jobs.holder, claimable, LEASE).await {
                Ok(Some(row)) => {
                    let permit = match &row.kind[..] {
                        JobKind::CREATE => create,
                        JobKind::IMPORT => import,
                        _ => None,
                    };
                    let work = run_one(registry.clone(), row);
                    running.spawn(async move {
                        work.await;
                        drop(permit);
                    });
                    continue;
                }
                Ok(None) => {}
                Err(error) => tracing::warn!(error = chain(&error), "failed to claim a job; will retry"),
            }
        }
        tokio::select! {
            () = registry.stopping().cancelled() => {}
            () = registry.jobs.added.notified() => {}
            Some(_) = running.join_next() => {}
            () = tokio::time::sleep(POLL_INTERVAL) => {}
        }
    }
    while running.join_next().await.is_some() {}
}

async fn run_one(registry: Registry, row: JobRow) {
    let (store, jobs) = (registry.store(), &registry.jobs);
    let run = JobRun { id: row.id.clone(), holder: jobs.holder.clone(), attempt: row.attempts };
    let control = jobs.begin(&run.id);
    let outcome = run_claimed(&registry, &row, &run, &control).await;
    jobs.end(&run.id);
    if let Err(error) = outcome {
        tracing::warn!(
            job = run.id,
            error = chain(&error),
            "failed to record how a job ended; it will run again"
        );
    }
    if let Err(error) = store.jobs_expire(now_ms().saturating_sub(millis(KEPT_FOR)), KEPT_JOBS).await {
        tracing::warn!(error = chain(&error), "failed to delete old jobs; will retry");
    }
}

async fn run_claimed(
    registry: &Registry,
    row: &JobRow,
    run: &JobRun,
    control: &JobControl,
) -> Result<(), Error> {
    let store = registry.store();
    if let Some(result) = &row.result {
        // The previous run stored its manifest and then stopped. A second manifest could undo a later push.
        return finish(registry, run, control, Ok(result.clone())).await;
    }
    if row.cancelled != 0 {
        return finish(registry, run, control, Err(Error::Cancelled.into())).await;
    }
    if row.lost_runs >= MAX_LOST_RUNS {
        let problem = format!("{MAX_LOST_RUNS} servers stopped while running this job");
        let end = JobEnd { state: "failed", progress: None, result: None, problem: Some(&problem) };
        return store.job_finish(run, &end).await.map(drop);
    }
    let Ok(kind) = serde_json::from_str::<JobKind>(&row.parameters) else {
        let error = Error::Corrupt { what: "job", value: row.parameters.clone() };
        return finish(registry, run, control, Err(error.into())).await;
    };
    tracing::info!(job = run.id, kind = row.kind, attempt = run.attempt, "job started");
    let work = work(registry.clone(), kind.clone(), row.account.clone(), run.clone(), control.clone());
    let mut work = tokio::spawn(work);
    let outcome = loop {
        tokio::select! {
            outcome = &mut work => break outcome.unwrap_or(Err(Error::Interrupted.into())),
            () = registry.stopping().cancelled() => {
                control.cancel();
                return match tokio::time::timeout(STOP_TIMEOUT, work).await {
                    // It ended in that moment.
                    Ok(Ok(outcome)) if !outcome.as_ref().is_err_and(JobError::is_cancelled) => {
                        finish(registry, run, control, outcome).await
                    }
                    Ok(_) => store.job_release(run).await,
                    // Another replica takes it over once its lease has ended.
                    Err(_) => Ok(()),
                };
            }
            () = tokio::time::sleep(LEASE_RENEW_INTERVAL) => {
                let progress = to_json(&control.progress());
                match store.job_renew(run, LEASE, Some(&progress)).await {
                    Ok(Some(false)) => {}
                    Ok(Some(true)) => control.cancel(),
                    Ok(None) => {
                        tracing::warn!(job = run.id, "another replica took over this job; cancelling it here");
                        control.cancel();
                        let _ended = work.await;
                        return Ok(());
                    }
                    Err(error) => {
                        tracing::warn!(job = run.id, error = chain(&error), "failed to renew a job's lease");
                    }
                }
                if let Err(error @ (Error::CredentialRevoked | Error::RoleRevoked { .. })) =
                    registry.job_recheck(&kind, row.account.as_deref()).await
                {
                    control.cancel();
                    break match work.await {
                        // It ended in that moment.
                        Ok(Ok(result)) => Ok(result),
                        _ => Err(error.into()),
                    };
                }
            }
        }
    };
    finish(registry, run, control, outcome).await
}

/// Does the work of a job. Returns its result as JSON.
async fn work(
    registry: Registry,
    kind: JobKind,
    account: Option<String>,
    run: JobRun,
    control: JobControl,
) -> Result<String, JobError> {
    let mut findings =
        StoredFindings { registry: registry.clone(), run, waiting: Default::default(), stored: [0; 4] };
    let result = match kind {
        JobKind::Gc { dry_run } => {
            let mut report = registry.gc_controlled(dry_run, &control).await?;
            for removal in std::mem::take(&mut report.removals) {
                findings.add(Finding::Removal(removal)).await?;
            }
            to_json(&report)
        }
        JobKind::Fsck { verify } => {
            tokio::select! {
                report = registry.fsck_controlled(verify, &control, &mut findings) => to_json(&report?),
                // It only reads, so it can be dropped at any point.
                () = control.cancelled() => return Err(Error::Cancelled.into()),
            }
        }
        JobKind::Create(job) => {
            tokio::select! {
                created = registry.model_create_run(&job, account.as_deref(), &findings.run, &control) => created?,
                // Its manifest is written last, so it can be dropped at any point.
                () = control.cancelled() => return Err(Error::Cancelled.into()),
            }
        }
        JobKind::Import(job) => {
            let secret = registry.job_secret(&findings.run).await?;
            tokio::select! {
                imported = registry.import_run(&job, account.as_deref(), secret, &findings.run, &control) => imported?,
                // Its manifests are written last, too.
                () = control.cancelled() => return Err(Error::Cancelled.into()),
            }
        }
    };
    findings.flush().await?;
    Ok(result)
}

async fn finish(
    registry: &Registry,
    run: &JobRun,
    control: &JobControl,
    outcome: Result<String, JobError>,
) -> Result<(), Error> {
    let (state, problem) = match &outcome {
        Ok(_) => ("succeeded", None),
        Err(error) if error.is_cancelled() => ("cancelled", None),
        Err(error) => {
            tracing::error!(job = run.id, error = chain(error), "job failed");
            ("failed", Some(error.public_message()))
        }
    };
    // A run that ends before its work begins keeps the progress of the previous run.
    let progress = control.progress();
    let progress = (!progress.phase.is_empty()).then(|| to_json(&progress));
    let end = JobEnd {
        state,
        progress: progress.as_deref(),
        result: outcome.as_ref().ok().map(String::as_str),
        problem: problem.as_deref(),
    };
    registry.store().job_finish(run, &end).await?;
    tracing::info!(job = run.id, state, "job finished");
    Ok(())
}

fn to_json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("a struct of strings and numbers serialises to JSON")
}

/// Stores findings as they arrive, one batch at a time.
struct StoredFindings {
    registry: Registry,
    run: JobRun,
    waiting: [Vec<String>; 4],
    stored: [u64; 4],
}

impl StoredFindings {
    /// The most findings of one kind that are buffered in memory.
    const BATCH: usize = 200;
    /// The most findings of one kind that are stored in the database.
    const MAX_STORED: u64 = 100_000;

    async fn write(&mut self, at: usize) -> Result<(), Error> {
        let details = std::mem::take(&mut self.waiting[at]);
        let position = i64::try_from(self.stored[at]).unwrap_or(i64::MAX);
        let kind = FindingKind::ALL[at].name();
        self.registry.store().findings_insert(&self.run, kind, position, &details).await?;
        self.stored[at] += details.len() as u64;
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), Error> {
        for at in 0..self.waiting.len() {
            self.write(at).await?;
        }
        Ok(())
    }
}

impl FindingSink for StoredFindings {
    async fn add(&mut self, finding: Finding) -> Result<(), Error> {
        let (kind, detail) = match &finding {
            Finding::Damage(damage) => (FindingKind::Damage, to_json(damage)),
            Finding::Orphan(key) => (FindingKind::Orphan, to_json(key)),
            Finding::Upload(key) => (FindingKind::Upload, to_json(key)),
            Finding::Removal(removal) => (FindingKind::Removal, to_json(removal)),
        };
        let at = FindingKind::ALL.iter().position(|other| *other == kind).unwrap_or_default();
        if self.stored[at] + self.waiting[at].len() as u64 >= Self::MAX_STORED {
            return Ok(());
        }
        self.waiting[at].push(detail);
        if self.waiting[at].len() >= Self::BATCH { self.write(at).await } else { Ok(()) }
    }
}

//! Starts a job on the server and follows it to its end: shows its progress, returns its result and findings.
//! Ctrl-C cancels the job; a lost connection does not.

use std::time::Duration;

use lode_client::Registry;
use reqwest::Method;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{
    error::{FAILED, Failure, Outcome},
    ui,
};

/// Long-poll time in seconds, with and without a progress display.
const WATCH_S: u64 = 1;
const WAIT_S: u64 = 30;
/// Time limit for a cancelled job to end; then the command exits.
const CANCEL_LIMIT: Duration = Duration::from_secs(10);
/// The route that copies models from other servers.
pub(crate) const IMPORT: &str = "lode/v1/import";
/// What to do after such a copy was cancelled. The server's report of a failure says whether to start again.
const KEPT: &str = "what was fetched completely is kept: repeat the command to continue";
/// The exit code that shells report after Ctrl-C.
pub(crate) const INTERRUPTED: u8 = 130;

/// A job on the server.
#[derive(Deserialize)]
pub(crate) struct Job {
    id: String,
    state: String,
    progress: Option<Progress>,
    result: Option<Value>,
    problem: Option<String>,
}

#[derive(Deserialize)]
struct Progress {
    phase: String,
    done: u64,
    total: Option<u64>,
    unit: Option<String>,
}

/// A successful job.
pub(crate) struct Finished {
    id: String,
    pub(crate) result: Value,
}

/// Starts the job at `path` and follows it. `what` names it in messages.
pub(crate) async fn run(registry: &Registry, path: &str, body: &Value, what: &str) -> Outcome<Finished> {
    finish(registry, start(registry, path, body).await?, what).await
}

/// Starts the job at `path`.
pub(crate) async fn start(registry: &Registry, path: &str, body: &Value) -> Result<Job, lode_client::Error> {
    registry.json_post(path, body).await
}

/// The failure of a request to start a job that another server has refused: what that server has said.
pub(crate) fn not_started(error: lode_client::Error, what: &str) -> Failure {
    match &error {
        lode_client::Error::Refused { status, entries, .. } if status.is_client_error() => match &entries[..]
        {
            [entry] if !entry.message.is_empty() => Failure::new(format!("{what} failed: {}", entry.message)),
            _ => error.into(),
        },
        _ => error.into(),
    }
}

/// Follows a started copy from another server to its end.
pub(crate) async fn finish_import(registry: &Registry, started: Job, what: &str) -> Outcome<Finished> {
    let done = finish(registry, started, what).await;
    done.map_err(|failure| match failure.exit_code() {
        INTERRUPTED => failure.hint(KEPT),
        _ => failure,
    })
}

/// Follows a started job to its end.
pub(crate) async fn finish(registry: &Registry, started: Job, what: &str) -> Outcome<Finished> {
    let id = started.id.clone();
    tokio::select! {
        job = follow(registry, started, what) => finished(job?, what),
        _ = tokio::signal::ctrl_c() => {
            Err(cancel(registry, &id, what).await.code(INTERRUPTED))
        }
    }
}

async fn follow(registry: &Registry, mut job: Job, what: &str) -> Outcome<Job> {
    let meter = ui::Meter::wait(what);
    let wait = if ui::stderr_is_terminal() { WATCH_S } else { WAIT_S };
    while matches!(&job.state[..], "queued" | "running") {
        job = registry.json_get(&format!("lode/v1/jobs/{}?wait={wait}", job.id)).await?;
        if let Some(Progress { phase, done, total, unit }) = &job.progress {
            let shown = |number: u64| match unit.as_deref() {
                Some("bytes") => ui::format_size(number),
                _ => number.to_string(),
            };
            meter.set_message(match total {
                Some(total) => format!("{what}: {phase} ({} of {})", shown(*done), shown(*total)),
                None => format!("{what}: {phase} ({})", shown(*done)),
            });
        }
    }
    meter.end();
    Ok(job)
}

fn finished(job: Job, what: &str) -> Outcome<Finished> {
    match (&job.state[..], job.result) {
        ("succeeded", Some(result)) => Ok(Finished { id: job.id, result }),
        ("cancelled", _) => Err(Failure::new(format!("{what} was cancelled (job {})", job.id)).code(FAILED)),
        _ => {
            Err(Failure::new(format!("{what} failed: {} (job {})", job.problem.unwrap_or_default(), job.id)))
        }
    }
}

async fn cancel(registry: &Registry, id: &str, what: &str) -> Failure {
    let path = format!("lode/v1/jobs/{id}");
    let cancelled = tokio::time::timeout(CANCEL_LIMIT, async {
        registry.json_stream(Method::DELETE, &path, &json!({})).await?;
        registry.json_get::<Job>(&format!("{path}?wait={}", CANCEL_LIMIT.as_secs())).await
    });
    match cancelled.await {
        Ok(Ok(job)) if job.state == "cancelled" => Failure::new(format!("{what} was cancelled")),
        Ok(Ok(job)) => Failure::new(format!("interrupted: job {id} is {} on the server", job.state)),
        _ => Failure::new(format!("interrupted: job {id} may still run on the server")),
    }
}

impl Finished {
    /// The result as a type.
    pub(crate) fn read<T: DeserializeOwned>(self) -> Outcome<T> {
        serde_json::from_value(self.result)
            .map_err(|error| Failure::with_source("cannot parse the result of the job", &error))
    }

    /// The job's findings of one kind, as many as the server stored.
    pub(crate) async fn findings(&self, registry: &Registry, kind: &str) -> Outcome<Vec<Value>> {
        #[derive(Deserialize)]
        struct Page {
            findings: Vec<Value>,
        }
        let mut all = Vec::new();
        let mut pages = registry.json_pages(format!("lode/v1/jobs/{}/findings?kind={kind}", self.id));
        while let Some(page) = pages.next::<Page>().await? {
            all.extend(page.findings);
        }
        Ok(all)
    }
}

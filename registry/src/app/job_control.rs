//! What the work of a job, its runner and its callers share: progress, cancellation and notifications.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::Error;

/// The progress of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Progress {
    pub(crate) phase: &'static str,
    pub(crate) done: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) total: Option<u64>,
    /// `bytes`, if these are counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) unit: Option<&'static str>,
}

/// The state that a job's work and its runner share: cancellation and progress.
#[derive(Clone, Default)]
pub(crate) struct JobControl {
    cancelled: CancellationToken,
    progress: Arc<Mutex<Progress>>,
}

impl JobControl {
    pub(crate) fn cancel(&self) {
        self.cancelled.cancel();
    }

    pub(crate) async fn cancelled(&self) {
        self.cancelled.cancelled().await;
    }

    pub(crate) fn progress(&self) -> Progress {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn report_progress(&self, phase: &'static str, done: u64, total: Option<u64>) {
        self.replace_progress(Progress { phase, done, total, unit: None });
    }

    /// Like `report_progress`, in bytes.
    pub(crate) fn report_bytes(&self, phase: &'static str, done: u64, total: u64) {
        self.replace_progress(Progress { phase, done, total: Some(total), unit: Some("bytes") });
    }

    fn replace_progress(&self, progress: Progress) {
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner) = progress;
    }

    /// Records progress at a point where the work may end, and returns an error if the job was cancelled.
    pub(crate) fn checkpoint(&self, phase: &'static str, done: u64) -> Result<(), Error> {
        self.report_progress(phase, done, None);
        if self.cancelled.is_cancelled() { Err(Error::Cancelled) } else { Ok(()) }
    }
}

/// Adds up the bytes of concurrent transfers as the progress of a job.
#[derive(Clone)]
pub(super) struct FetchProgress {
    control: JobControl,
    done: Arc<AtomicU64>,
    total: u64,
}

impl FetchProgress {
    pub(super) fn new(control: &JobControl, total: u64) -> FetchProgress {
        control.report_bytes("fetching", 0, total);
        FetchProgress { control: control.clone(), done: Arc::default(), total }
    }

    pub(super) fn add(&self, bytes: u64) {
        let done = self.done.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        self.control.report_bytes("fetching", done.min(self.total), self.total);
    }
}

/// The jobs of this process.
pub(crate) struct Jobs {
    /// The id of this process as a holder of leases.
    pub(crate) holder: String,
    /// Notified when a job was added.
    pub(crate) added: Notify,
    /// Notified when a job of this process has changed.
    pub(crate) changed: Notify,
    running: Mutex<HashMap<String, JobControl>>,
}

impl Default for Jobs {
    fn default() -> Self {
        Jobs {
            holder: Uuid::new_v4().to_string(),
            added: Notify::new(),
            changed: Notify::new(),
            running: Mutex::default(),
        }
    }
}

impl Jobs {
    pub(crate) fn begin(&self, id: &str) -> JobControl {
        let control = JobControl::default();
        self.running.lock().unwrap_or_else(PoisonError::into_inner).insert(id.to_owned(), control.clone());
        control
    }

    pub(crate) fn end(&self, id: &str) {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
        self.changed.notify_waiters();
    }

    pub(crate) fn find(&self, id: &str) -> Option<JobControl> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }
}

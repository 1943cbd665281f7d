//! The models that this worker is reserved for: loads each of them before the first request, and again when
//! its name resolves to another manifest.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lode_client::Urgency;
use lode_model::digest::Digest;
use lode_model::reference::Name;
use serde::Deserialize;

use crate::scheduler::{KeepAlive, ModelRequirements, Scheduler};

/// How long after a failed load the next one starts.
const RETRY_AFTER: Duration = Duration::from_secs(30);

/// A model of this worker, as the registry resolves its name.
#[derive(Deserialize)]
pub(crate) struct ReservedModel {
    name: Name,
    /// `None` if there is no such manifest.
    digest: Option<Digest>,
}

/// Cheap to clone.
#[derive(Clone)]
pub(crate) struct ReservedModels {
    scheduler: Scheduler,
    names: Arc<Mutex<HashMap<Name, Progress>>>,
}

#[derive(Default)]
struct Progress {
    /// The manifest that is loaded, until it is replaced.
    loaded: Option<Digest>,
    /// The manifest whose load was tried last.
    tried: Option<Digest>,
    /// When a failed load is tried again.
    retry_at: Option<Instant>,
    /// Whether its absence was logged.
    is_missing: bool,
}

impl ReservedModels {
    pub(crate) fn new(scheduler: Scheduler) -> ReservedModels {
        ReservedModels { scheduler, names: Arc::default() }
    }

    fn names(&self) -> MutexGuard<'_, HashMap<Name, Progress>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets what is loaded: the worker unloads its models.
    pub(crate) fn clear(&self) {
        self.names().clear();
    }

    /// Starts to load the models that changed. A model that the scheduler has unloaded since, for the memory
    /// of another one, is loaded by its next request.
    pub(crate) fn update(&self, models: Vec<ReservedModel>) {
        for ReservedModel { name, digest } in models {
            let mut names = self.names();
            let progress = names.entry(name.clone()).or_default();
            let Some(digest) = digest else {
                if !std::mem::replace(&mut progress.is_missing, true) {
                    tracing::warn!(model = %name, "the registry does not have this model yet; it is loaded when it does");
                }
                continue;
            };
            progress.is_missing = false;
            let is_due = match progress.retry_at {
                Some(at) => at <= Instant::now(),
                None => progress.tried.as_ref() != Some(&digest),
            };
            if is_due {
                (progress.tried, progress.retry_at) = (Some(digest.clone()), None);
                tokio::spawn(self.clone().load(name, digest));
            }
        }
    }

    async fn load(self, name: Name, digest: Digest) {
        let result = self.scheduler.preload(requirements(&name, &digest)).await;
        let mut names = self.names();
        // Cleared meanwhile.
        let Some(progress) = names.get_mut(&name) else { return };
        match result {
            Ok(duration) => {
                tracing::info!(model = %name, digest = %digest, seconds = duration.as_secs_f64(), "loaded");
                let replaced = progress.loaded.replace(digest);
                let is_in_use =
                    |digest: &Digest| names.values().any(|other| other.loaded.as_ref() == Some(digest));
                if let Some(replaced) = replaced.filter(|replaced| !is_in_use(replaced)) {
                    self.scheduler.unload(&replaced);
                }
            }
            Err(error) => {
                progress.retry_at = Some(Instant::now() + RETRY_AFTER);
                tracing::warn!(model = %name, digest = %digest, error = %error, "failed to load; will retry in {} s", RETRY_AFTER.as_secs());
            }
        }
    }
}

fn requirements(name: &Name, digest: &Digest) -> ModelRequirements {
    ModelRequirements {
        repository: name.repository.clone(),
        digest: digest.clone(),
        name: name.to_string(),
        client: "".into(),
        urgency: Urgency::default(),
        num_ctx: None,
        sequence_length: None,
        keep_alive: Some(KeepAlive::Forever),
    }
}

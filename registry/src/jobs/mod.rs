//! What must not delay a response: the collection, the purge of abandoned uploads, and reading pushed manifests as models;
//! each safe to run twice.
//! Started by `open`, stopped by `Registry::close`.

mod index_models;
mod purge_uploads;
mod runner;

use std::time::Duration;

use crate::Registry;

/// No job runs more often than this, whatever the settings say.
const SHORTEST_INTERVAL: Duration = Duration::from_secs(1);
/// How often abandoned uploads are looked for, at least.
const PURGE_INTERVAL: Duration = Duration::from_secs(15 * 60);

/// Runs the jobs that callers start. On a server that only reads, those that only read.
pub(crate) fn start_runner(registry: &Registry) {
    runner::start(registry);
}

pub(crate) fn start(registry: &Registry) {
    let gc = registry.clone();
    registry.start(async move {
        let interval = gc.config().gc_interval.max(SHORTEST_INTERVAL);
        loop {
            tokio::time::sleep(interval).await;
            if let Err(error) = gc.gc_scheduled().await {
                tracing::error!(error = &error as &dyn std::error::Error, "the collection failed");
            }
        }
    });
    index_models::start(registry);
    let purge = registry.clone();
    registry.start(async move {
        let interval = (purge.config().upload_expiry / 2).clamp(SHORTEST_INTERVAL, PURGE_INTERVAL);
        loop {
            if let Err(error) = purge_uploads::run(&purge).await {
                tracing::error!(error = &error as &dyn std::error::Error, "the purge of uploads failed");
            }
            tokio::time::sleep(interval).await;
        }
    });
}

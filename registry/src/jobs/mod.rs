//! Background work that must not delay a response: garbage collection, expiry of uploads, indexing of
//! pushed manifests, the rows of the search and delivery of webhook events. Each is safe to run twice. Started by
//! `open`, stopped by `Registry::close`.

mod deliver_webhooks;
mod expire_uploads;
mod index_models;
pub(crate) mod refresh_search;
mod runner;
mod webhook_signature;

use std::time::Duration;

use crate::{OpenError, Registry, error::chain, metrics};

/// The shortest interval between two runs of a job, even if a setting is shorter.
const SHORTEST_INTERVAL: Duration = Duration::from_secs(1);
/// The longest interval between two checks for abandoned uploads.
const PURGE_INTERVAL: Duration = Duration::from_secs(15 * 60);

/// The longest time from the start to the first garbage collection: a server that restarts often collects, too.
const FIRST_COLLECTION: Duration = Duration::from_secs(5 * 60);

/// Runs the jobs that callers start. A read-only server runs only read-only jobs.
pub(crate) fn start_runner(registry: &Registry) {
    runner::start(registry);
}

/// Starts the jobs of a server that may write.
pub(crate) fn start(registry: &Registry) -> Result<(), OpenError> {
    metrics::set_collection_interval(registry.config().gc_interval.max(SHORTEST_INTERVAL));
    let gc = registry.clone();
    registry.start(async move {
        let interval = gc.config().gc_interval.max(SHORTEST_INTERVAL);
        let mut pause = interval.min(FIRST_COLLECTION);
        loop {
            tokio::time::sleep(pause).await;
            pause = interval;
            if let Err(error) = gc.gc_scheduled().await {
                tracing::error!(error = chain(&error), "garbage collection failed");
            }
        }
    });
    index_models::start(registry);
    refresh_search::start(registry);
    let purge = registry.clone();
    registry.start(async move {
        let interval = (purge.config().upload_expiry / 2).clamp(SHORTEST_INTERVAL, PURGE_INTERVAL);
        loop {
            if let Err(error) = expire_uploads::run(&purge).await {
                tracing::error!(error = chain(&error), "failed to delete expired uploads");
            }
            tokio::time::sleep(interval).await;
        }
    });
    deliver_webhooks::start(registry)
}

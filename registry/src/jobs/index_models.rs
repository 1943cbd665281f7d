//! Indexes queued manifests as models, a few at a time. Each is claimed under a lease, so that any replica
//! continues after another one stopped. A failed attempt is retried with growing delays, and abandoned after
//! the last one.

use std::time::Duration;

use crate::error::chain;
use crate::{Error, Registry};

/// A claim is renewed well before it ends.
const LEASE: Duration = Duration::from_secs(60);
const RENEW_INTERVAL: Duration = Duration::from_secs(20);
/// How often the queue is polled when no push of this process announces an entry.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
const OUTDATED_BATCH: i64 = 500;
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60 * 60);
/// After this many attempts (half a day), a manifest is indexed only after its next push or when a request
/// needs it.
const MAX_ATTEMPTS: i64 = 22;

pub(super) fn start(registry: &Registry) {
    let outdated = registry.clone();
    registry.start(async move {
        if let Err(error) = queue_outdated(&outdated).await {
            tracing::warn!(
                error = chain(&error),
                "failed to queue models of an earlier version; the next start retries"
            );
        }
    });
    for _ in 0..registry.index_limits.at_once {
        let registry = registry.clone();
        registry.clone().start(async move { run(&registry).await });
    }
}

/// Queues what an earlier version indexed without facts, a few at a time.
async fn queue_outdated(registry: &Registry) -> Result<(), Error> {
    let mut after = String::new();
    while let Some(last) = registry.store().facts_enqueue(&after, OUTDATED_BATCH).await? {
        registry.indexing.queued.notify_one();
        after = last;
    }
    Ok(())
}

async fn run(registry: &Registry) {
    loop {
        match index_next(registry).await {
            Ok(true) => continue,
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(error = chain(&error), "failed to process the model index queue; will retry")
            }
        }
        tokio::select! {
            () = registry.indexing.queued.notified() => {}
            () = tokio::time::sleep(POLL_INTERVAL) => {}
        }
    }
}

/// Indexes the next manifest that is due. Returns false if there is none.
async fn index_next(registry: &Registry) -> Result<bool, Error> {
    let store = registry.store();
    let Some(claim) = store.index_claim(LEASE).await? else { return Ok(false) };
    let mut reading = std::pin::pin!(registry.model_index_claimed(&claim));
    let outcome = loop {
        tokio::select! {
            outcome = &mut reading => break outcome,
            () = tokio::time::sleep(RENEW_INTERVAL) => {
                if let Err(error) = store.index_renew(&claim, LEASE).await {
                    tracing::warn!(digest = %claim.digest, error = chain(&error), "failed to renew an indexing lease");
                }
            }
        }
    };
    let settled = match outcome {
        // A manifest that was deleted meanwhile needs no further attempt.
        Ok(()) | Err(Error::ManifestUnknown { .. } | Error::NameUnknown { .. }) => {
            store.index_finish(&claim).await
        }
        Err(error) => {
            let delay = pause_after(claim.attempts);
            let pause_s = delay.map(|delay| delay.as_secs());
            tracing::debug!(digest = %claim.digest, attempts = claim.attempts, pause_s, "indexing attempt failed");
            // Callers that list models see this text, so it must not reveal internals of the server.
            let shown = match error {
                Error::Unavailable { .. } => "the storage or the database did not respond",
                _ => "its content could not be read; the server's log has the reason",
            };
            store.index_retry(&claim, delay, shown).await
        }
    };
    registry.indexing.attempted.notify_waiters();
    settled.map(|()| true)
}

/// The pause after this many attempts; `None` after the last.
fn pause_after(attempts: i64) -> Option<Duration> {
    if attempts >= MAX_ATTEMPTS {
        return None;
    }
    let doublings = u32::try_from(attempts - 1).unwrap_or(0).min(16);
    Some(FIRST_PAUSE.saturating_mul(1 << doublings).min(LONGEST_PAUSE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_end() {
        let pauses =
            [1, 2, 12, 13, 21, 22, 23].map(|attempts| pause_after(attempts).map(|pause| pause.as_secs()));
        assert_eq!(pauses, [Some(1), Some(2), Some(2048), Some(3600), Some(3600), None, None]);
    }
}

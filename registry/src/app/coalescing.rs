//! Coalesces concurrent requests for the same work: later callers share the outcome of the work in progress.
//! The work continues when its callers disconnect.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use tracing::Instrument;

use crate::Error;
use crate::error::chain;

type Outcome = Result<(), Arc<Error>>;
type SharedWork = Shared<BoxFuture<'static, Outcome>>;

#[derive(Clone, Default)]
pub(crate) struct Coalescer(Arc<Mutex<HashMap<String, SharedWork>>>);

/// Removes the flight from the list when it is dropped.
struct WorkGuard {
    flights: Coalescer,
    key: String,
}

impl Drop for WorkGuard {
    fn drop(&mut self) {
        self.flights.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}

impl Coalescer {
    /// Joins the work of that name, or starts `work`.
    pub(crate) async fn join(
        &self,
        key: String,
        work: impl Future<Output = Result<(), Error>> + Send + 'static,
    ) -> Result<(), Error> {
        let flight = {
            let mut flights = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            match flights.get(&key) {
                Some(flight) => flight.clone(),
                None => {
                    // The lock is held until the flight is on the list, so it cannot end earlier.
                    let landing = WorkGuard { flights: self.clone(), key: key.clone() };
                    let work = async move {
                        let landing = landing;
                        work.await.map_err(|error| {
                            // Callers receive less detail.
                            tracing::debug!(
                                work = landing.key,
                                error = chain(&error),
                                "coalesced work failed"
                            );
                            Arc::new(error)
                        })
                    };
                    let task = tokio::spawn(work.in_current_span().boxed());
                    let flight =
                        async move { task.await.unwrap_or_else(|_| Err(Arc::new(Error::Interrupted))) };
                    flights.entry(key).or_insert(flight.boxed().shared()).clone()
                }
            }
        };
        flight.await.map_err(|error| error.duplicate())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Semaphore;

    use super::*;

    #[tokio::test]
    async fn concurrent_callers_share_one_run() {
        let (flights, runs, go) =
            (Coalescer::default(), Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
        let start_call = || {
            let (flights, runs, go) = (flights.clone(), runs.clone(), go.clone());
            tokio::spawn(async move {
                let work = async move {
                    runs.fetch_add(1, Ordering::SeqCst);
                    let _permit = go.acquire().await;
                    Err(Error::StorageFull)
                };
                flights.join("x".into(), work).await
            })
        };
        let mut calls: Vec<_> = (0..10).map(|_| start_call()).collect();
        while runs.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        // The caller that started the work disconnects, which does not affect the others.
        calls.remove(0).abort();
        go.add_permits(1);
        for call in calls {
            assert!(matches!(call.await.unwrap(), Err(Error::StorageFull)));
        }
        assert_eq!(runs.load(Ordering::SeqCst), 1);
        // The next call starts new work.
        assert!(start_call().await.unwrap().is_err());
        assert_eq!(runs.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn a_transient_error_stays_transient() {
        let work =
            async { Err(Error::Unavailable { what: "the database".into(), source: "refused".into() }) };
        let result = Coalescer::default().join("x".into(), work).await;
        assert!(matches!(result, Err(Error::Unavailable { .. })), "{result:?}");
    }
}

//! The state of model indexing in this process: reads in progress, permits and notifications.

use std::sync::Arc;

use tokio::sync::{Notify, Semaphore};

use super::coalescing::Coalescer;

/// How many manifests are read at a time for requests, in addition to those of the queue.
const MAX_CONCURRENT_REQUESTS: usize = 2;

pub(crate) struct Indexing {
    /// Reads in progress, one per manifest; requests for the same manifest share it.
    pub(super) flights: Coalescer,
    /// Permits of requests.
    pub(super) requests: Arc<Semaphore>,
    /// Notified when a manifest was queued.
    pub(crate) queued: Notify,
    /// Notified when a queued manifest was read, or an attempt failed.
    pub(crate) attempted: Notify,
}

impl Default for Indexing {
    fn default() -> Self {
        Indexing {
            flights: Coalescer::default(),
            requests: Arc::new(Semaphore::new(MAX_CONCURRENT_REQUESTS)),
            queued: Notify::new(),
            attempted: Notify::new(),
        }
    }
}

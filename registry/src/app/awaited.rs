//! What the server waits for before it calls itself ready: the local worker, the demo model.
//! Whoever starts them holds a `Waiting` until they are there.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use super::Registry;

#[derive(Clone, Default)]
pub(crate) struct Awaited(Arc<Mutex<BTreeSet<String>>>);

/// As long as this exists, `/readyz` names what it waits for.
#[must_use = "dropping it says that what it waits for is there"]
pub struct Waiting {
    awaited: Awaited,
    what: String,
}

impl Registry {
    /// Not ready until the answer is dropped. `what` is what is missing, in words for an operator.
    pub fn wait_for(&self, what: impl Into<String>) -> Waiting {
        let (awaited, what) = (self.awaited.clone(), what.into());
        awaited.0.lock().unwrap_or_else(PoisonError::into_inner).insert(what.clone());
        Waiting { awaited, what }
    }
}

impl Awaited {
    pub(crate) fn list(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.awaited.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.what);
    }
}

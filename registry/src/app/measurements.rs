//! What this process measured last. `measure` measures it, and every change sets the gauges.

use std::sync::{Mutex, PoisonError};

use crate::metrics::{self, Measured};

/// The last measurements of this process.
#[derive(Default)]
pub(super) struct Measurements(Mutex<Measured>);

impl Measurements {
    pub(super) fn last(&self) -> Measured {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes the measurements and the gauges of them.
    pub(super) fn update(&self, change: impl FnOnce(&mut Measured)) {
        let mut measured = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut measured);
        metrics::set_measured(&measured);
    }
}

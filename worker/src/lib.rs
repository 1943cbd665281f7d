//! Lode: worker.

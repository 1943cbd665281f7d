//! Progress of transfers. The command line draws a progress bar from it, the worker counts with it.

/// Receives the number of transferred bytes. Called often and from many tasks at the same time, so an
/// implementation must be cheap and must not block.
pub trait Progress: Send + Sync {
    /// `bytes` more were transferred, or were found to exist already.
    fn transferred(&self, bytes: u64);
    /// `bytes` of the counted bytes are transferred again, because the connection was interrupted.
    fn retracted(&self, bytes: u64);
}

/// Ignores progress.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoProgress;

impl Progress for NoProgress {
    fn transferred(&self, _bytes: u64) {}
    fn retracted(&self, _bytes: u64) {}
}

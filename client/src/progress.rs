//! How a transfer tells its caller that bytes moved. The command line draws a bar from it and the worker counts with it.

/// Told about bytes as they arrive or leave. Called from many tasks at once and often, so an implementation must be cheap and must not block.
pub trait Progress: Send + Sync {
    /// `bytes` more have been received or sent, or were found already there.
    fn moved(&self, bytes: u64);
    /// `bytes` that had been counted did not count after all: a connection was cut and they are sent or fetched again.
    fn undone(&self, bytes: u64);
}

/// For callers that do not watch.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoProgress;

impl Progress for NoProgress {
    fn moved(&self, _bytes: u64) {}
    fn undone(&self, _bytes: u64) {}
}

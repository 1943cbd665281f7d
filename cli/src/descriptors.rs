//! File descriptor limits: a server may use as many as the system allows, not only the default of the shell.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Raises the soft limit to the hard limit. If that fails, the server runs with its current limit.
pub(crate) fn raise_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return;
    }
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "failed to raise the limit of open files");
    }
}

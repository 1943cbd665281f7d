//! File descriptors: a server may use as many as the system allows, not only as many as the shell hands out.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Raises the soft limit to the hard limit. Where that fails the server runs with the limit that it has.
pub(crate) fn raise_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return;
    }
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
}

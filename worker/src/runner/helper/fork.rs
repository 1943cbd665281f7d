//! Forks the helper. This is the only place that calls fork(2).
#![allow(unsafe_code)] // fork(2) is unsafe in a process with several threads, and has no safe wrapper.

use std::io;

/// Which of the two processes this is.
pub(super) enum ForkSide {
    Parent,
    Child,
}

/// Forks this process. The process must have a single thread.
pub(super) fn fork() -> io::Result<ForkSide> {
    // SAFETY: the helper never starts a thread, so no lock is held by one that is missing in the child.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(ForkSide::Child),
        _ => Ok(ForkSide::Parent),
    }
}

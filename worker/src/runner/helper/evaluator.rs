//! A forked copy of the text helper, as its runner sees it.

use std::io;
use std::os::fd::OwnedFd;

use rustix::process::{Signal, pidfd_send_signal};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

use super::frame;
use super::protocol::{AllowedNext, Reply};
use crate::text::grammar::AllowedIds;

/// Kills a process when dropped.
pub(super) struct KillOnDrop(pub(super) OwnedFd);

impl KillOnDrop {
    pub(super) fn kill(&self) {
        // Fails only if the process has already ended.
        let _ = pidfd_send_signal(&self.0, Signal::KILL);
    }
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A forked copy of the helper that evaluates one call at a time.
pub(super) struct Evaluator {
    stream: UnixStream,
    _killed: KillOnDrop,
}

impl Evaluator {
    pub(super) fn new(stream: UnixStream, pidfd: OwnedFd) -> Evaluator {
        Evaluator { stream, _killed: KillOnDrop(pidfd) }
    }

    pub(super) async fn call<T: DeserializeOwned>(
        &mut self,
        call: &impl Serialize,
        body: &[u8],
    ) -> io::Result<(Reply<T>, Vec<u8>)> {
        frame::send(&mut self.stream, call, body).await?;
        frame::receive(&mut self.stream).await
    }
}

/// The ids that a grammar allows next, from the reply and its bytes.
pub(super) fn allowed(next: AllowedNext, mask: &[u8]) -> AllowedIds {
    AllowedIds { mask: frame::from_bytes(mask), is_complete: next.is_complete }
}

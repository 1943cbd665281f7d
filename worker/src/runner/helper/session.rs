//! The grammar of one response. It runs in a separate evaluator, which computes the next mask while the batch
//! continues, and ends with the response.

use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::mpsc;
use tokio::time::timeout;

use super::super::limits::TextLimits;
use super::super::protocol::RunnerError;
use super::evaluator::{Evaluator, allowed};
use super::protocol::{AllowedNext, Call};
use crate::text::grammar::AllowedIds;

/// The grammar of one response. Dropping it kills its evaluator.
pub(crate) struct Session {
    ids: mpsc::UnboundedSender<u32>,
    next: Arc<Mutex<Option<Result<AllowedIds, RunnerError>>>>,
}

/// The state of the next mask.
pub(crate) enum Poll {
    Pending,
    Ready(Result<AllowedIds, RunnerError>),
}

impl Session {
    /// `wake` is called whenever a result can be polled.
    pub(super) fn start(
        mut evaluator: Evaluator,
        limits: TextLimits,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> Session {
        let (ids, mut taken) = mpsc::unbounded_channel();
        let next = Arc::<Mutex<Option<Result<AllowedIds, RunnerError>>>>::default();
        let news = next.clone();
        tokio::spawn(async move {
            let what = "evaluating the grammar of the format";
            // The task and the evaluator end with the session.
            while let Some(id) = taken.recv().await {
                let call = Call::Take { id };
                let reply = timeout(limits.timeout, evaluator.call::<AllowedNext>(&call, &[]));
                let reply = tokio::select! {
                    reply = reply => reply,
                    // The response has ended meanwhile.
                    _ = taken.recv() => return,
                };
                let result = match reply {
                    Err(_) => Err(limits.timeout_error(what)),
                    Ok(Err(_)) => Err(limits.memory_error(what)),
                    Ok(Ok((reply, mask))) => reply.result.map(|next| allowed(next, &mask)),
                };
                *lock(&news) = Some(result);
                wake();
            }
        });
        Session { ids, next }
    }

    /// Sends the next id of the response to the grammar.
    pub(crate) fn take(&mut self, id: u32) {
        // The task ends after the session, so this does not fail.
        let _ = self.ids.send(id);
    }

    /// Returns the ids that the grammar allows after the last id; once for each id.
    pub(crate) fn poll(&mut self) -> Poll {
        lock(&self.next).take().map_or(Poll::Pending, Poll::Ready)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

//! Responses that are not read. A response stream is cancelled when its reader does not poll it for a while,
//! whatever protocol carries it.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::Stream;
use tokio::time::Instant;

/// A stream that is dropped when its reader does not poll for the next item in time; if the reader polls
/// later, it gets [`ReadTimeout`] as the last item. A connection stops polling when the client has stopped
/// reading and the buffers in between are full.
pub(crate) struct CancelUnread<S> {
    turns: Arc<Mutex<ReadState<S>>>,
    watchdog: Option<tokio::task::AbortHandle>,
}

/// Whose turn it is: the reader's to poll, or the stream's to produce.
struct ReadState<S> {
    stream: Option<S>,
    /// Since when the reader has not polled; `None` while the reader waits for the stream.
    unread_since: Option<Instant>,
    is_cancelled: bool,
}

/// The response was cancelled because the client did not read it.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the response was not read in time")]
pub(crate) struct ReadTimeout;

impl<S: Stream + Unpin + Send + 'static> CancelUnread<S> {
    /// With a limit of zero the stream is never cancelled.
    pub(crate) fn new(stream: S, limit: Duration) -> CancelUnread<S> {
        let turns =
            ReadState { stream: Some(stream), unread_since: Some(Instant::now()), is_cancelled: false };
        let turns = Arc::new(Mutex::new(turns));
        let watchdog = (!limit.is_zero()).then(|| tokio::spawn(watch(turns.clone(), limit)).abort_handle());
        CancelUnread { turns, watchdog }
    }
}

fn lock<S>(turns: &Mutex<ReadState<S>>) -> MutexGuard<'_, ReadState<S>> {
    turns.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn watch<S>(turns: Arc<Mutex<ReadState<S>>>, limit: Duration) {
    loop {
        let now = Instant::now();
        let deadline = lock(&turns).unread_since.unwrap_or(now) + limit;
        if deadline <= now {
            break;
        }
        tokio::time::sleep_until(deadline).await;
    }
    let mut turns = lock(&turns);
    turns.is_cancelled = turns.stream.take().is_some();
}

impl<S: Stream + Unpin> Stream for CancelUnread<S> {
    type Item = Result<S::Item, ReadTimeout>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut turns = lock(&self.turns);
        turns.unread_since = None;
        let Some(stream) = &mut turns.stream else {
            let was_cancelled = std::mem::take(&mut turns.is_cancelled);
            return Poll::Ready(was_cancelled.then_some(Err(ReadTimeout)));
        };
        let item = ready!(Pin::new(stream).poll_next(context));
        match &item {
            Some(_) => turns.unread_since = Some(Instant::now()),
            None => turns.stream = None,
        }
        Poll::Ready(item.map(Ok))
    }
}

impl<S> Drop for CancelUnread<S> {
    fn drop(&mut self) {
        if let Some(watchdog) = &self.watchdog {
            watchdog.abort();
        }
        // The task may be about to lock it; the stream ends now in any case.
        lock(&self.turns).stream = None;
    }
}

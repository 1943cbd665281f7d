//! Clients that do not read. A connection is closed when its client accepts no bytes for a while. A response
//! stream can be cancelled earlier, whatever protocol carries it. Time without data to send does not count.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::body::BODY_STALL_TIMEOUT;
use super::connections::Connection;

pub(crate) struct StallGuard<S> {
    stream: S,
    connection: Arc<Connection>,
    /// Runs only while bytes wait to be accepted.
    blocked: Pin<Box<Sleep>>,
    waiting: bool,
}

impl<S> StallGuard<S> {
    pub(crate) fn new(stream: S, connection: Arc<Connection>) -> StallGuard<S> {
        StallGuard {
            stream,
            connection,
            blocked: Box::pin(tokio::time::sleep(BODY_STALL_TIMEOUT)),
            waiting: false,
        }
    }

    /// Returns the result of a write, or an error once it has been `Pending` for too long.
    fn check_stall<T>(
        &mut self,
        context: &mut Context<'_>,
        result: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if result.is_ready() {
            if std::mem::take(&mut self.waiting) {
                self.connection.set_writing(false);
            }
            return result;
        }
        if !std::mem::replace(&mut self.waiting, true) {
            self.connection.set_writing(true);
            self.blocked.as_mut().reset(Instant::now() + BODY_STALL_TIMEOUT);
        }
        ready!(self.blocked.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for StallGuard<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for StallGuard<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.check_stall(context, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(context, buffers);
        self.check_stall(context, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_flush(context);
        self.check_stall(context, result)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_shutdown(context);
        self.check_stall(context, result)
    }
}

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

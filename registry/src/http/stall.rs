//! Connections whose clients do not read. A connection is closed when its client accepts no bytes for a
//! while. Time without data to send does not count.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

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

//! Request bodies: a body that stalls is abandoned, and the rest of a body is read after an early response.
//! Nothing here limits a body's total time or size; its reader does.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use bytes::Bytes;
use http::header;
use http_body_util::BodyExt;
use hyper::body::{Frame, SizeHint};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep, sleep, timeout};

use crate::metrics;

/// A body without a byte for this long is abandoned.
pub(crate) const BODY_STALL_TIMEOUT: Duration = Duration::from_secs(60);

/// How long the rest of a body is read after a response that did not need it. Closing at once would reset the
/// connection, and the reset may arrive before the response.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
#[error("no data received for {} s", BODY_STALL_TIMEOUT.as_secs())]
pub(crate) struct BodyStalled;

/// Guards the body of a request while `handler` runs.
pub(crate) async fn guard<T>(request: Request, handler: impl AsyncFnOnce(Request) -> T) -> T {
    if request.body().is_end_stream() {
        return handler(request).await;
    }
    // A client that sent `Expect` waits for permission, so do not ask it for bytes that would be discarded.
    let sends_at_once = !request.headers().contains_key(header::EXPECT);
    let (running, ended) = oneshot::channel();
    let request = request.map(|body| Body::new(GuardedBody::new(body, sends_at_once, ended)));
    let response = handler(request).await;
    drop(running);
    response
}

/// Reads the rest of a body after the handler has ended.
async fn drain(mut body: Body, handler_ended: oneshot::Receiver<Infallible>) {
    let _ = handler_ended.await;
    let rest = async { while let Some(Ok(_)) = body.frame().await {} };
    let _ = timeout(DRAIN_TIMEOUT, rest).await;
}

/// A body whose rest is read if it is dropped before its end. A task that outlives its handler may have it.
struct GuardedBody {
    body: Body,
    /// Runs only while the reader waits for bytes: time that the reader spends elsewhere is not the client's.
    idle: Pin<Box<Sleep>>,
    waiting: bool,
    received: &'static ::metrics::Counter,
    over: bool,
    /// Whether the client sends the body, or has sent a part of it.
    is_sent: bool,
    /// Closed when the handler of the request has ended.
    handler_ended: Option<oneshot::Receiver<Infallible>>,
}

impl GuardedBody {
    fn new(body: Body, is_sent: bool, handler_ended: oneshot::Receiver<Infallible>) -> GuardedBody {
        let over = body.is_end_stream();
        let (idle, received) = (Box::pin(sleep(BODY_STALL_TIMEOUT)), metrics::bytes_received());
        let handler_ended = Some(handler_ended);
        GuardedBody { body, idle, waiting: false, received, over, is_sent, handler_ended }
    }
}

impl HttpBody for GuardedBody {
    type Data = Bytes;
    type Error = axum::BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::BoxError>>> {
        // Polling for the first time permits the client to send it.
        self.is_sent = true;
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            self.waiting = false;
            self.over = !matches!(frame, Some(Ok(_)));
            if let Some(Ok(frame)) = &frame {
                self.received.increment(frame.data_ref().map_or(0, |data| data.len() as u64));
            }
            return Poll::Ready(frame.map(|result| result.map_err(Into::into)));
        }
        if !std::mem::replace(&mut self.waiting, true) {
            self.idle.as_mut().reset(Instant::now() + BODY_STALL_TIMEOUT);
        }
        std::task::ready!(self.idle.as_mut().poll(context));
        self.over = true;
        Poll::Ready(Some(Err(BodyStalled.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for GuardedBody {
    fn drop(&mut self) {
        if self.over || self.body.is_end_stream() || !self.is_sent {
            return;
        }
        if let (Some(ended), Ok(runtime)) = (self.handler_ended.take(), Handle::try_current()) {
            runtime.spawn(drain(std::mem::take(&mut self.body), ended));
        }
    }
}

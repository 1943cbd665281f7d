//! Request bodies: a body that stalls is abandoned, and the rest of a body is read after an early response.
//! Nothing here limits a body's total time or size; its reader does.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use bytes::Bytes;
use http::header;
use http_body_util::BodyExt;
use hyper::body::{Frame, SizeHint};
use tokio::time::{Instant, Sleep};

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
    let unread = Arc::new(Mutex::new(None));
    // A client that sent `Expect` waits for permission, so do not ask it for bytes that would be discarded.
    let expects_continue = request.headers().contains_key(header::EXPECT);
    let request = request.map(|body| Body::new(GuardedBody::new(body, unread.clone())));
    let response = handler(request).await;
    let unread = unread.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(body) = unread.filter(|_| !expects_continue) {
        tokio::spawn(tokio::time::timeout(DRAIN_TIMEOUT, drain(body)));
    }
    response
}

async fn drain(mut body: Body) {
    while let Some(Ok(_)) = body.frame().await {}
}

struct GuardedBody {
    body: Body,
    /// Runs only while the reader waits for bytes: time that the reader spends elsewhere is not the client's.
    idle: Pin<Box<Sleep>>,
    waiting: bool,
    received: &'static ::metrics::Counter,
    over: bool,
    /// Receives the body if it is dropped before its end.
    unread: Arc<Mutex<Option<Body>>>,
}

impl GuardedBody {
    fn new(body: Body, unread: Arc<Mutex<Option<Body>>>) -> GuardedBody {
        let over = body.is_end_stream();
        let (idle, received) = (Box::pin(tokio::time::sleep(BODY_STALL_TIMEOUT)), metrics::bytes_received());
        GuardedBody { body, idle, waiting: false, received, over, unread }
    }
}

impl HttpBody for GuardedBody {
    type Data = Bytes;
    type Error = axum::BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::BoxError>>> {
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
        if !self.over && !self.body.is_end_stream() {
            *self.unread.lock().unwrap_or_else(PoisonError::into_inner) =
                Some(std::mem::take(&mut self.body));
        }
    }
}

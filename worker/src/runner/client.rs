//! The worker's side of the socket: one connection per request, closed when the response is dropped. Dropping
//! the stream of a generation cancels it.

use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use futures::Stream;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Incoming};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

use super::protocol::{
    EmbedRequest, EmbedResponse, ErrorKind, Event, GenerateRequest, LoadRequest, LoadResponse,
    RenderResponse, RerankRequest, RerankResponse, RunnerError, ScoreRequest, ScoreResponse, Status,
};

/// Size limit of a response that is not a stream.
const MAX_RESPONSE_BYTES: usize = 256 << 20;
/// Responses above this size are parsed off the async threads.
const LARGE_BYTES: usize = 256 << 10;
/// Size limit of one line of a stream; the last line has the ids of a whole context.
const MAX_LINE_BYTES: usize = 64 << 20;

/// Why a call to a runner failed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The runner returned an error.
    #[error(transparent)]
    Runner(#[from] RunnerError),
    /// The runner cannot be reached, or the connection broke: it has crashed or is being stopped.
    #[error("the connection to the model's runner broke")]
    ConnectionLost(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl CallError {
    /// Whether the runner has ended, before or during the call.
    pub fn is_gone(&self) -> bool {
        matches!(
            self,
            CallError::ConnectionLost(_) | CallError::Runner(RunnerError { kind: ErrorKind::Stopped, .. })
        )
    }
}

fn disconnected_error(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> CallError {
    CallError::ConnectionLost(error.into())
}

/// A client of the runner with this socket.
#[derive(Debug, Clone)]
pub struct Client {
    socket: PathBuf,
}

impl Client {
    pub fn new(socket: PathBuf) -> Client {
        Client { socket }
    }

    pub async fn status(&self) -> Result<Status, CallError> {
        self.call(Method::GET, "/status", &()).await
    }

    pub async fn load(&self, request: &LoadRequest) -> Result<LoadResponse, CallError> {
        self.call(Method::POST, "/load", request).await
    }

    pub async fn score(&self, request: &ScoreRequest) -> Result<ScoreResponse, CallError> {
        self.call(Method::POST, "/score", request).await
    }

    pub async fn embed(&self, request: &EmbedRequest) -> Result<EmbedResponse, CallError> {
        self.call(Method::POST, "/embed", request).await
    }

    pub async fn rerank(&self, request: &RerankRequest) -> Result<RerankResponse, CallError> {
        self.call(Method::POST, "/rerank", request).await
    }

    /// The prompt text of a generation.
    pub async fn render(
        &self,
        request: &GenerateRequest<impl Serialize, impl Serialize>,
    ) -> Result<RenderResponse, CallError> {
        self.call(Method::POST, "/render", request).await
    }

    /// Starts a generation. The stream always ends with [`Event::Done`] or [`Event::Error`].
    pub async fn generate(
        &self,
        request: &GenerateRequest<impl Serialize, impl Serialize>,
    ) -> Result<EventStream, CallError> {
        let (body, connection) = self.send(Method::POST, "/generate", request).await?;
        Ok(EventStream { body, buffer: BytesMut::new(), scanned: 0, ended: false, _connection: connection })
    }

    async fn call<T: DeserializeOwned + Send + 'static>(
        &self,
        method: Method,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, CallError> {
        let (incoming, _connection) = self.send(method, path, body).await?;
        let bytes = Limited::new(incoming, MAX_RESPONSE_BYTES)
            .collect()
            .await
            .map_err(disconnected_error)?
            .to_bytes();
        let is_large = bytes.len() > LARGE_BYTES;
        let parse = move || serde_json::from_slice(&bytes).map_err(disconnected_error);
        match is_large {
            true => tokio::task::spawn_blocking(parse).await.map_err(disconnected_error)?,
            false => parse(),
        }
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: &impl Serialize,
    ) -> Result<(Incoming, Connection), CallError> {
        let body = serde_json::to_vec(body).map_err(disconnected_error)?;
        let stream = UnixStream::connect(&self.socket)
            .await
            .map_err(|error| RunnerError::stopped(format!("cannot reach the model's runner: {error}")))?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(disconnected_error)?;
        let connection = Connection(tokio::spawn(async move {
            // An error here also fails the request or the body.
            let _ = connection.await;
        }));
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "runner")
            .body(Full::new(Bytes::from(body)))
            .map_err(disconnected_error)?;
        // It closed the connection before it responded, so it was already stopping.
        let response = sender.send_request(request).await.map_err(|error| {
            RunnerError::stopped(format!("the model's runner closed the connection: {error}"))
        })?;
        let status = response.status();
        let incoming = response.into_body();
        if status == StatusCode::OK {
            return Ok((incoming, connection));
        }
        let bytes = Limited::new(incoming, MAX_RESPONSE_BYTES)
            .collect()
            .await
            .map_err(disconnected_error)?
            .to_bytes();
        let error = serde_json::from_slice::<RunnerError>(&bytes).unwrap_or_else(|_| {
            RunnerError::failed(format!("the runner returned {status}: {}", String::from_utf8_lossy(&bytes)))
        });
        Err(error.into())
    }
}

/// Closes the connection when dropped.
#[derive(Debug)]
struct Connection(tokio::task::JoinHandle<()>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A generation's events. Dropping it cancels the generation.
#[derive(Debug)]
pub struct EventStream {
    body: Incoming,
    buffer: BytesMut,
    /// Number of bytes of the buffer already searched for a line end.
    scanned: usize,
    ended: bool,
    _connection: Connection,
}

impl EventStream {
    fn line(&mut self) -> Option<Event> {
        let at =
            self.buffer[self.scanned..].iter().position(|&byte| byte == b'\n').map(|at| self.scanned + at);
        let Some(at) = at else {
            self.scanned = self.buffer.len();
            return None;
        };
        let line = self.buffer.split_to(at + 1);
        self.scanned = 0;
        Some(serde_json::from_slice(&line).unwrap_or_else(|error| invalid(error.to_string())))
    }
}

/// The runner sent something else than events.
fn invalid(detail: String) -> Event {
    tracing::warn!(detail, "stream of a runner is invalid");
    Event::Error(RunnerError::failed("the model's runner sent an invalid response"))
}

/// The runner ended before the last event.
fn broken(detail: String) -> Event {
    tracing::debug!(detail, "stream of a runner broke");
    Event::Error(RunnerError::stopped("the model's runner exited during the response"))
}

impl Stream for EventStream {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Event>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let event = loop {
            if let Some(event) = self.line() {
                break event;
            }
            if self.buffer.len() > MAX_LINE_BYTES {
                break invalid("line too long".into());
            }
            match Pin::new(&mut self.body).poll_frame(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Ok(frame))) => {
                    if let Some(data) = frame.data_ref() {
                        self.buffer.extend_from_slice(data);
                    }
                }
                Poll::Ready(Some(Err(error))) => break broken(error.to_string()),
                Poll::Ready(None) => break broken("stream ended without a final event".into()),
            }
        };
        self.ended = matches!(event, Event::Done(_) | Event::Error(_));
        Poll::Ready(Some(event))
    }
}

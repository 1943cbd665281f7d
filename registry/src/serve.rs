//! The accept loop: accepts connections, passes requests to the router, and lets requests in flight finish on
//! shutdown. The caller opens the registry and provides the listeners.
//!
//! A server stops in two steps, so that a proxy in front of it loses no request. First the shutdown begins
//! (`Registry::begin_shutdown`): the server is no longer ready and asks clients for new connections, but serves
//! everything. Then the listener closes, and the connections end after their requests in flight.

use std::convert::Infallible;
use std::fs::File;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::response::IntoResponse;
use futures::FutureExt;
use futures::future::Either;
use http::{HeaderValue, Request, Response, Version, header};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulConnection;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::http::Failure;
use crate::http::arrival::RequestArrival;
use crate::http::connections::{Connection, ConnectionSlot, Connections, ResponseBody};
use crate::http::file_sender::{SendfileQueue, SendfileStream};
use crate::http::observe::request_id;
use crate::http::stall::StallGuard;
use crate::layers::Layers;
use crate::surface::{Surface, format_failure};
use crate::tls::Tls;
use crate::{OpenError, Registry, router};

/// How long a connection may take to send the head of a request, and be idle between requests.
const HEAD_TIMEOUT: Duration = Duration::from_secs(75);

/// Pause after the process has run out of file descriptors, and the interval of its log message.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
const WARN_EVERY: Duration = Duration::from_secs(10);

/// Established connections that are still accepted when the listener closes; the kernel keeps no more.
const MAX_WAITING: usize = 4096;

/// How long a refused connection beyond the limit may stay open.
const REFUSED_TIMEOUT: Duration = Duration::from_secs(5);

/// Response to a connection that the server cannot serve.
const REFUSAL: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 5\r\ncontent-length: 0\r\n\r\n";

/// Requests that one HTTP/2 connection may have in flight.
const MAX_STREAMS: u32 = 128;

/// How long a TLS handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(20);

/// How long a connection may take to send its first request when the server stops.
const FIRST_REQUEST_TIME: Duration = Duration::from_secs(1);

/// Serves a registry, on one or more listeners.
#[derive(Clone)]
pub struct Server {
    registry: Registry,
    service: Layers,
    http: auto::Builder<TokioExecutor>,
    connections: Connections,
}

/// Serves the registry on one listener until `shutdown` completes, then closes the registry.
pub async fn serve(
    registry: Registry,
    listener: TcpListener,
    tls: Option<Tls>,
    shutdown: impl Future<Output = ()>,
) -> Result<(), OpenError> {
    Server::new(registry.clone())?.serve(listener, tls, shutdown).await;
    registry.close().await;
    Ok(())
}

impl Server {
    pub fn new(registry: Registry) -> Result<Server, OpenError> {
        let service = router::service(registry.clone())?;
        let mut http = auto::Builder::new(TokioExecutor::new());
        http.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
        http.http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(HEAD_TIMEOUT)
            .max_concurrent_streams(MAX_STREAMS);
        let connections = Connections::new(registry.config().max_connections);
        Ok(Server { registry, service, http, connections })
    }

    /// Serves clients until `shutdown` completes, then waits up to `shutdown_grace` for requests in flight. Every
    /// connection that was established before the end is served.
    pub async fn serve(&self, listener: TcpListener, tls: Option<Tls>, shutdown: impl Future<Output = ()>) {
        if let Some(tls) = &tls {
            self.registry.start(tls.clone().watch());
        }
        self.accept_all(listener, tls, false, shutdown).await;
    }

    /// As [`Server::serve`], for this process's own worker: plain HTTP on loopback, where no host name has to match
    /// the certificate.
    pub async fn serve_internal(&self, listener: TcpListener, shutdown: impl Future<Output = ()>) {
        self.accept_all(listener, None, true, shutdown).await;
    }

    async fn accept_all(
        &self,
        listener: TcpListener,
        tls: Option<Tls>,
        is_internal: bool,
        shutdown: impl Future<Output = ()>,
    ) {
        let (stopping, tasks) = (CancellationToken::new(), TaskTracker::new());
        let start = |(stream, peer): (TcpStream, SocketAddr)| {
            // Send small responses without delay; a failure only costs latency.
            let _ = stream.set_nodelay(true);
            let Some(slot) = self.connections.admit(u64::try_from(stream.as_raw_fd()).unwrap_or_default())
            else {
                // The accept loop must not wait for a client.
                let _ = stream.try_write(REFUSAL);
                return;
            };
            let serving =
                self.clone().serve_connection(stream, peer, slot, tls.clone(), is_internal, stopping.clone());
            tasks.spawn(serving);
        };
        let mut acceptor = Acceptor::new(self.connections.clone());
        let mut shutdown = pin!(shutdown);
        loop {
            tokio::select! {
                accepted = acceptor.accept(&listener) => start(accepted),
                () = &mut shutdown => break,
            }
            self.connections.wait_for_closing().await;
        }
        accept_waiting(listener).into_iter().for_each(start);

        stopping.cancel();
        tasks.close();
        if !is_internal {
            tracing::info!(connections = tasks.len(), "server stopping");
        }
        if tokio::time::timeout(self.registry.config().shutdown_grace, tasks.wait()).await.is_err() {
            tracing::warn!("shutdown grace period ended with requests in flight");
        }
    }

    /// Serves a connection until it ends. When the server stops, the connection ends after the requests in flight.
    async fn serve_connection(
        self,
        stream: TcpStream,
        peer: SocketAddr,
        slot: ConnectionSlot,
        tls: Option<Tls>,
        internal: bool,
        stopping: CancellationToken,
    ) {
        let connection = slot.connection.clone();
        let arrival = RequestArrival { https: tls.is_some(), internal };
        // Encrypted data has to pass through this process, so sendfile is not possible.
        let outlet = tls.is_none().then(SendfileQueue::default);
        let (of_requests, files) = (connection.clone(), outlet.clone());
        let (service, registry) = (self.service, self.registry.clone());
        let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(ConnectInfo(peer));
            request.extensions_mut().insert(arrival);
            if let Some(outlet) = &files {
                request.extensions_mut().insert(outlet.clone());
            }
            let closes = registry.is_shutting_down() && !internal;
            handle_request(&service, &of_requests, request, closes).map(Ok::<_, Infallible>)
        });
        let closing = wait_for_shutdown(&self.registry, &connection, internal, &stopping);
        let serving = async {
            match tls {
                None => {
                    let stream = SendfileStream::new(stream, outlet.unwrap_or_default());
                    let stream = StallGuard::new(stream, connection.clone());
                    let serving = self.http.serve_connection(TokioIo::new(stream), service);
                    finish_gracefully(pin!(serving), closing).await
                }
                Some(tls) => {
                    let stream = StallGuard::new(stream, connection.clone());
                    let handshake = tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.acceptor().accept(stream));
                    let stream = handshake.await.map_err(|_| "TLS handshake timed out")??;
                    let serving = self.http.serve_connection(TokioIo::new(stream), service);
                    finish_gracefully(pin!(serving), closing).await
                }
            }
        };
        let ended = tokio::select! {
            biased;
            ended = serving => ended,
            () = wait_until_closed(&connection) => Err("closed while idle: connection limit reached".into()),
            () = wait_until_overdue(&connection, &stopping) => Err("closed: no request before the timeout".into()),
        };
        drop(slot);
        if let Err(error) = ended {
            tracing::debug!(%peer, error, "connection ended");
        }
    }
}

/// Returns when a connection should end after the requests in flight. HTTP/2 has a message for it that loses no
/// request, so such a connection is replaced as soon as the shutdown begins. One of HTTP/1 is closed after its next
/// response, and when the listener has closed.
async fn wait_for_shutdown(
    registry: &Registry,
    connection: &Connection,
    is_internal: bool,
    stopping: &CancellationToken,
) {
    let http2 = async {
        if is_internal {
            std::future::pending::<()>().await;
        }
        registry.shutdown_begun().await;
        connection.http2_request().await;
    };
    tokio::select! {
        () = http2 => {}
        () = stopping.cancelled() => {
            // Closing it now would lose a first request that is in transit.
            if !connection.has_received_request() {
                tokio::time::sleep(FIRST_REQUEST_TIME).await;
            }
        }
    }
}

/// Serves a connection, and ends it after its requests in flight once `closing` completes.
async fn finish_gracefully<C: GracefulConnection>(
    mut connection: Pin<&mut C>,
    closing: impl Future<Output = ()>,
) -> Result<(), C::Error> {
    tokio::select! {
        ended = connection.as_mut() => return ended,
        () = closing => {}
    }
    connection.as_mut().graceful_shutdown();
    connection.await
}

/// The connections that the kernel has established for this listener, which is closed. Without this they would be
/// reset.
fn accept_waiting(listener: TcpListener) -> Vec<(TcpStream, SocketAddr)> {
    let Ok(listener) = listener.into_std() else { return Vec::new() };
    let waiting = std::iter::from_fn(|| listener.accept().ok()).take(MAX_WAITING);
    waiting
        .filter_map(|(stream, peer)| {
            stream.set_nonblocking(true).ok()?;
            Some((TcpStream::from_std(stream).ok()?, peer))
        })
        .collect()
}

/// Handles a request, and counts it as in flight until its response body has been sent. `closes` asks the client for
/// another connection.
fn handle_request(
    service: &Layers,
    connection: &Arc<Connection>,
    request: Request<Incoming>,
    closes: bool,
) -> impl Future<Output = Response<ResponseBody>> + use<> {
    let in_flight = connection.begin_request();
    let is_http1 = request.version() <= Version::HTTP_11;
    if !is_http1 {
        connection.note_http2_request();
    }
    let is_admitted = !connection.is_refused && !in_flight.is_beyond_limit;
    let response_future = match is_admitted || is_vital(request.uri().path()) {
        true => Either::Left(service.respond(request.map(Body::new))),
        false => Either::Right(std::future::ready(refuse(&request))),
    };
    response_future.map(move |mut response| {
        if closes && is_http1 {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response.map(|body| ResponseBody::new(body, in_flight))
    })
}

/// Probes and worker heartbeats are served whatever the load.
fn is_vital(path: &str) -> bool {
    ["/healthz", "/readyz", "/metrics", "/lode/v1/workers"].contains(&path)
        || path.starts_with("/lode/v1/workers/")
}

fn refuse(request: &Request<Incoming>) -> Response<Body> {
    let id = request_id(request.headers());
    let surface = Surface::of(request);
    let mut response =
        format_failure(surface, id.to_str().unwrap_or_default(), Failure::Overloaded.into_response());
    if request.version() <= Version::HTTP_11 {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Returns when a connection was chosen for closing and no request has arrived on it.
async fn wait_until_closed(connection: &Connection) {
    loop {
        connection.closed().await;
        // A request may have arrived that is not read yet. After a yield, the runtime has polled its sockets
        // and the connection reads first.
        tokio::task::yield_now().await;
        if connection.is_closing() {
            return;
        }
    }
}

/// Returns when a connection exceeds its time to send a first request, or to read its refusal.
async fn wait_until_overdue(connection: &Connection, stopping: &CancellationToken) {
    if connection.is_refused {
        return tokio::time::sleep(REFUSED_TIMEOUT).await;
    }
    tokio::select! {
        () = tokio::time::sleep(HEAD_TIMEOUT) => {}
        () = async { stopping.cancelled().await; tokio::time::sleep(FIRST_REQUEST_TIME).await } => {}
    }
    if connection.has_received_request() {
        std::future::pending().await
    }
}

/// Accepts connections, even when the process has run out of file descriptors: one is reserved for that.
struct Acceptor {
    connections: Connections,
    spare: Option<File>,
    warned: Option<Instant>,
}

impl Acceptor {
    fn new(connections: Connections) -> Acceptor {
        Acceptor { connections, spare: File::open("/dev/null").ok(), warned: None }
    }

    /// Returns the next connection.
    async fn accept(&mut self, listener: &TcpListener) -> (TcpStream, SocketAddr) {
        loop {
            match listener.accept().await {
                Ok(accepted) => return accepted,
                Err(error) if is_single_connection_error(&error) => {}
                Err(error) => self.free_descriptors(listener, &error).await,
            }
        }
    }

    /// Closes idle connections. If there are none, refuses the waiting client with a Retry-After.
    async fn free_descriptors(&mut self, listener: &TcpListener, error: &io::Error) {
        let closed = self.connections.close_idle(true);
        if self.warned.is_none_or(|warned| warned.elapsed() > WARN_EVERY) {
            self.warned = Some(Instant::now());
            tracing::warn!(%error, closed, "failed to accept a connection");
        }
        if closed == 0 && self.spare.take().is_some() {
            if let Some(Ok((stream, _))) = listener.accept().now_or_never() {
                let _ = stream.try_write(REFUSAL);
            }
            self.spare = File::open("/dev/null").ok();
        }
        self.spare = self.spare.take().or_else(|| File::open("/dev/null").ok());
        // Closing connections takes a moment to free their descriptors.
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }
}

fn is_single_connection_error(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

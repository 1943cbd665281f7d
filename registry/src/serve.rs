//! The accept loop: accepts connections, passes requests to the router, and lets requests in flight finish on
//! shutdown. The caller opens the registry and provides the listeners.

use std::convert::Infallible;
use std::fs::File;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::pin::pin;
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
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpStream};

use crate::http::Failure;
use crate::http::arrival::RequestArrival;
use crate::http::connections::{Connection, Connections, ResponseBody};
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

/// How long a refused connection beyond the limit may stay open.
const REFUSED_TIMEOUT: Duration = Duration::from_secs(5);

/// Response to a connection that the server cannot serve.
const REFUSAL: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 5\r\ncontent-length: 0\r\n\r\n";

/// Requests that one HTTP/2 connection may have in flight.
const MAX_STREAMS: u32 = 128;

/// How long a TLS handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(20);

/// The sockets of a server.
pub struct Listeners {
    /// For clients.
    pub public: TcpListener,
    /// TLS for the public listener, if configured.
    pub tls: Option<Tls>,
    /// Plain HTTP on loopback for this process's own worker, which has no host name that matches the
    /// certificate.
    pub internal: Option<TcpListener>,
}

impl From<TcpListener> for Listeners {
    fn from(public: TcpListener) -> Listeners {
        Listeners { public, tls: None, internal: None }
    }
}

/// Serves the registry on `listeners` until `shutdown` completes, then waits up to `shutdown_grace` for
/// requests in flight.
pub async fn serve(
    registry: Registry,
    listeners: impl Into<Listeners>,
    shutdown: impl Future<Output = ()>,
) -> Result<(), OpenError> {
    let Listeners { public, tls, internal } = listeners.into();
    if let Some(tls) = &tls {
        registry.start(tls.clone().watch());
    }
    let service = router::service(registry.clone())?;
    let mut http = auto::Builder::new(TokioExecutor::new());
    http.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    http.http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(HEAD_TIMEOUT)
        .max_concurrent_streams(MAX_STREAMS);
    let watchers = GracefulShutdown::new();
    let connections = Connections::new(registry.config().max_connections);
    let mut acceptor = Acceptor::new(connections.clone());

    let mut shutdown = pin!(shutdown);
    loop {
        let ((stream, peer), internal) = tokio::select! {
            accepted = acceptor.accept(&public, internal.as_ref()) => accepted,
            () = &mut shutdown => break,
        };
        let Some(place) = connections.admit(u64::try_from(stream.as_raw_fd()).unwrap_or_default()) else {
            // The accept loop must not wait for a client.
            let _ = stream.try_write(REFUSAL);
            continue;
        };
        connections.wait_for_closing().await;
        let tls = tls.clone().filter(|_| !internal);
        let arrival = RequestArrival { https: tls.is_some(), internal };
        // Encrypted data has to pass through this process, so sendfile is not possible.
        let outlet = tls.is_none().then(SendfileQueue::default);
        let (service, files, connection) = (service.clone(), outlet.clone(), place.connection.clone());
        let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(ConnectInfo(peer));
            request.extensions_mut().insert(arrival);
            if let Some(outlet) = &files {
                request.extensions_mut().insert(outlet.clone());
            }
            handle_request(&service, &connection, request).map(Ok::<_, Infallible>)
        });
        let (http, watcher) = (http.clone(), watchers.watcher());
        tokio::spawn(async move {
            let connection = place.connection.clone();
            let serving = async {
                match tls {
                    None => {
                        let stream = SendfileStream::new(stream, outlet.unwrap_or_default());
                        let stream = TokioIo::new(StallGuard::new(stream, connection.clone()));
                        watcher.watch(http.serve_connection(stream, service).into_owned()).await
                    }
                    Some(tls) => {
                        let handshake = tls.acceptor().accept(StallGuard::new(stream, connection.clone()));
                        let stream = match tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await {
                            Ok(Ok(stream)) => TokioIo::new(stream),
                            Ok(Err(error)) => return Err(error.into()),
                            Err(_) => return Err("TLS handshake timed out".into()),
                        };
                        watcher.watch(http.serve_connection(stream, service).into_owned()).await
                    }
                }
            };
            let ended = tokio::select! {
                biased;
                ended = serving => ended,
                () = wait_until_closed(&connection) => Err("closed while idle: connection limit reached".into()),
                () = wait_until_overdue(&connection) => Err("closed: no request before the timeout".into()),
            };
            drop(place);
            if let Err(error) = ended {
                tracing::debug!(%peer, error, "connection ended");
            }
        });
    }

    drop((public, internal));
    tracing::info!(connections = watchers.count(), "server stopping");
    if tokio::time::timeout(registry.config().shutdown_grace, watchers.shutdown()).await.is_err() {
        tracing::warn!("shutdown grace period ended with requests in flight");
    }
    registry.close().await;
    Ok(())
}

/// Handles a request, and counts it as in flight until its response body has been sent.
fn handle_request(
    service: &Layers,
    connection: &Arc<Connection>,
    request: Request<Incoming>,
) -> impl Future<Output = Response<ResponseBody>> + use<> {
    let in_flight = connection.begin_request();
    let is_admitted = !connection.is_refused && !in_flight.is_beyond_limit;
    let response_future = match is_admitted || is_vital(request.uri().path()) {
        true => Either::Left(service.respond(request.map(Body::new))),
        false => Either::Right(std::future::ready(refuse(&request))),
    };
    response_future.map(|response| response.map(|body| ResponseBody::new(body, in_flight)))
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
async fn wait_until_overdue(connection: &Connection) {
    if connection.is_refused {
        return tokio::time::sleep(REFUSED_TIMEOUT).await;
    }
    tokio::time::sleep(HEAD_TIMEOUT).await;
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

    /// Returns the next connection, and whether it is for the internal listener.
    async fn accept(
        &mut self,
        public: &TcpListener,
        internal: Option<&TcpListener>,
    ) -> ((TcpStream, SocketAddr), bool) {
        loop {
            let (accepted, is_internal) = tokio::select! {
                accepted = public.accept() => (accepted, false),
                accepted = accept_optional(internal) => (accepted, true),
            };
            match accepted {
                Ok((stream, peer)) => {
                    // Send small responses without delay; a failure only costs latency.
                    let _ = stream.set_nodelay(true);
                    return ((stream, peer), is_internal);
                }
                Err(error) if is_single_connection_error(&error) => {}
                Err(error) => self.free_descriptors(public, &error).await,
            }
        }
    }

    /// Closes idle connections. If there are none, refuses the waiting client with a Retry-After.
    async fn free_descriptors(&mut self, public: &TcpListener, error: &io::Error) {
        let closed = self.connections.close_idle(true);
        if self.warned.is_none_or(|warned| warned.elapsed() > WARN_EVERY) {
            self.warned = Some(Instant::now());
            tracing::warn!(%error, closed, "failed to accept a connection");
        }
        if closed == 0 && self.spare.take().is_some() {
            if let Some(Ok((stream, _))) = public.accept().now_or_never() {
                let _ = stream.try_write(REFUSAL);
            }
            self.spare = File::open("/dev/null").ok();
        }
        self.spare = self.spare.take().or_else(|| File::open("/dev/null").ok());
        // Closing connections takes a moment to free their descriptors.
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }
}

async fn accept_optional(listener: Option<&TcpListener>) -> io::Result<(TcpStream, SocketAddr)> {
    match listener {
        Some(listener) => listener.accept().await,
        None => std::future::pending().await,
    }
}

fn is_single_connection_error(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

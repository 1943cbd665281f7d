//! The accept loop: connections in, requests to the router, and an end that lets requests in flight finish.
//! Whoever opened the registry calls it, with a listener of its own.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use axum::body::Body;
use axum::extract::ConnectInfo;
use futures::FutureExt;
use http::Request;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpStream};

use crate::http::outlet::{Outlet, Plain};
use crate::http::stall::Patient;
use crate::tls::Tls;
use crate::{Error, Registry, router};

/// How long a connection may take to send the head of a request, and rest between two.
const HEAD_TIMEOUT: Duration = Duration::from_secs(75);

/// How long to wait when the process has run out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// How long a client may take over its TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(20);

/// Where a server is reached.
pub struct Listeners {
    /// For clients.
    pub public: TcpListener,
    /// Spoken on the public one, where it is set.
    pub tls: Option<Tls>,
    /// Plain HTTP on loopback for what belongs to this process: its worker knows no name that the certificate has.
    pub internal: Option<TcpListener>,
}

impl From<TcpListener> for Listeners {
    fn from(public: TcpListener) -> Listeners {
        Listeners { public, tls: None, internal: None }
    }
}

/// How a request came in, beside it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(crate) https: bool,
    /// On the internal listener, which web pages must not reach either.
    pub(crate) internal: bool,
}

/// Serves the registry on `listeners` until `shutdown` is done, then waits for requests in flight, at most `shutdown_grace`.
pub async fn serve(
    registry: Registry,
    listeners: impl Into<Listeners>,
    shutdown: impl Future<Output = ()>,
) -> Result<(), Error> {
    let Listeners { public, tls, internal } = listeners.into();
    if let Some(tls) = &tls {
        registry.start(tls.clone().watch());
    }
    let service = router::service(registry.clone());
    let mut http = auto::Builder::new(TokioExecutor::new());
    http.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    http.http2().timer(TokioTimer::new()).keep_alive_interval(HEAD_TIMEOUT);
    let connections = GracefulShutdown::new();

    let mut shutdown = pin!(shutdown);
    loop {
        let ((stream, peer), internal) = tokio::select! {
            accepted = accept(&public) => (accepted, false),
            accepted = accept_some(internal.as_ref()) => (accepted, true),
            () = &mut shutdown => break,
        };
        let tls = tls.clone().filter(|_| !internal);
        let arrival = Arrival { https: tls.is_some(), internal };
        // What is encrypted has to pass through this process.
        let outlet = tls.is_none().then(Outlet::default);
        let (service, files) = (service.clone(), outlet.clone());
        let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(ConnectInfo(peer));
            request.extensions_mut().insert(arrival);
            if let Some(outlet) = &files {
                request.extensions_mut().insert(outlet.clone());
            }
            service.answer(request.map(Body::new)).map(Ok::<_, Infallible>)
        });
        let (http, watcher) = (http.clone(), connections.watcher());
        tokio::spawn(async move {
            let ended = match tls {
                None => {
                    let stream = Plain::new(stream, outlet.unwrap_or_default());
                    let stream = TokioIo::new(Patient::new(stream));
                    watcher.watch(http.serve_connection(stream, service).into_owned()).await
                }
                Some(tls) => {
                    let handshake = tls.acceptor().accept(Patient::new(stream));
                    let stream = match tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await {
                        Ok(Ok(stream)) => TokioIo::new(stream),
                        Ok(Err(error)) => return tracing::debug!(%peer, %error, "no TLS connection"),
                        Err(_) => return tracing::debug!(%peer, "no TLS connection in time"),
                    };
                    watcher.watch(http.serve_connection(stream, service).into_owned()).await
                }
            };
            if let Err(error) = ended {
                tracing::debug!(%peer, error, "connection ended");
            }
        });
    }

    drop((public, internal));
    tracing::info!(connections = connections.count(), "stopping");
    if tokio::time::timeout(registry.config().shutdown_grace, connections.shutdown()).await.is_err() {
        tracing::warn!("requests in flight did not finish in time");
    }
    registry.close().await;
    Ok(())
}

async fn accept_some(listener: Option<&TcpListener>) -> (TcpStream, SocketAddr) {
    match listener {
        Some(listener) => accept(listener).await,
        None => std::future::pending().await,
    }
}

async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                // Small answers are sent as they are; a failure only costs latency.
                let _ = stream.set_nodelay(true);
                return (stream, peer);
            }
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept connections");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

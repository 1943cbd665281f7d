//! The accept loop: connections in, requests to the router, and an end that lets requests in flight finish.
//! Whoever opened the registry calls it, with a listener of its own.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use axum::body::Body;
use axum::extract::ConnectInfo;
use http::Request;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpStream};
use tower::ServiceExt;

use crate::http::stall::Patient;
use crate::{Error, Registry, router};

/// How long a connection may take to send the head of a request, and rest between two.
const HEAD_TIMEOUT: Duration = Duration::from_secs(75);

/// How long to wait when the process has run out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Serves the registry on `listener` until `shutdown` is done, then waits for requests in flight, at most `shutdown_grace`.
pub async fn serve(
    registry: Registry,
    listener: TcpListener,
    shutdown: impl Future<Output = ()>,
) -> Result<(), Error> {
    let routes = router(registry.clone());
    let mut http = auto::Builder::new(TokioExecutor::new());
    http.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    http.http2().timer(TokioTimer::new()).keep_alive_interval(HEAD_TIMEOUT);
    let connections = GracefulShutdown::new();

    let mut shutdown = pin!(shutdown);
    loop {
        let (stream, peer) = tokio::select! {
            accepted = accept(&listener) => accepted,
            () = &mut shutdown => break,
        };
        let routes = routes.clone();
        let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(ConnectInfo(peer));
            routes.clone().oneshot(request.map(Body::new))
        });
        let connection = http.serve_connection(TokioIo::new(Patient::new(stream)), service).into_owned();
        let connection = connections.watch(connection);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%peer, error, "connection ended");
            }
        });
    }

    drop(listener);
    let in_flight = connections.count();
    tracing::info!(in_flight, "stopping");
    if tokio::time::timeout(registry.config().shutdown_grace, connections.shutdown()).await.is_err() {
        tracing::warn!("requests in flight did not finish in time");
    }
    registry.close().await;
    Ok(())
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

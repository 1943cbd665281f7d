//! The accept loop of the worker's API. A peer that has not sent the worker's secret yet makes room for others
//! when the connections run out.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// Connections open at a time. A gateway has one for each request in flight.
pub(crate) const MAX_CONNECTIONS: usize = 1024;

/// How long a peer may take to send its first request with the secret.
const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a connection may take to send the head of a request, and be idle between requests. The gateway
/// closes its idle connections earlier, so it never sends a request on one that is being closed.
const HEAD_TIMEOUT: Duration = Duration::from_secs(120);

/// Pause after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The peer of a connection, in the extensions of its requests.
#[derive(Clone)]
pub(super) struct Peer {
    id: u64,
    unknown: UnknownPeers,
}

impl Peer {
    /// Records that the peer has sent the secret.
    pub(super) fn trust(&self) {
        self.unknown.lock().remove(&self.id);
    }

    /// Returns if the peer is still unknown after its time.
    async fn wait_until_overdue(&self) {
        tokio::time::sleep(FIRST_REQUEST_TIMEOUT).await;
        if !self.unknown.lock().contains_key(&self.id) {
            std::future::pending().await
        }
    }
}

/// The connections without a request that had the secret, in the order of their arrival.
#[derive(Clone, Default)]
struct UnknownPeers(Arc<Mutex<BTreeMap<u64, Arc<Notify>>>>);

impl UnknownPeers {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Notify>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the oldest of them. False if there is none.
    fn close_oldest(&self) -> bool {
        let oldest = self.lock().pop_first();
        oldest.map(|(_, close)| close.notify_one()).is_some()
    }
}

/// Serves `app` on at most `limit` connections until `stop` completes, then waits for the requests in flight.
pub(crate) async fn serve(listener: TcpListener, app: Router, limit: usize, stop: impl Future<Output = ()>) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    let app = TowerToHyperService::new(app);
    let (connections, unknown) = (GracefulShutdown::new(), UnknownPeers::default());
    let places = Arc::new(Semaphore::new(limit));
    let mut stop = pin!(stop);
    for id in 0.. {
        let accepted = tokio::select! {
            accepted = accept(&listener, &places, &unknown) => accepted,
            () = &mut stop => break,
        };
        let Some((stream, place)) = accepted else { continue };
        // Send small records of a response without delay; a failure only costs latency.
        let _ = stream.set_nodelay(true);
        let close = Arc::new(Notify::new());
        unknown.lock().insert(id, close.clone());
        let peer = Peer { id, unknown: unknown.clone() };
        let (of_requests, app) = (peer.clone(), app.clone());
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(of_requests.clone());
            app.call(request.map(Body::new))
        });
        let serving = connections.watch(http.serve_connection(TokioIo::new(stream), service));
        tokio::spawn(async move {
            tokio::select! {
                ended = serving => {
                    if let Err(error) = ended {
                        tracing::debug!(%error, "connection ended");
                    }
                }
                () = close.notified() => {}
                () = peer.wait_until_overdue() => {}
            }
            peer.unknown.lock().remove(&peer.id);
            drop(place);
        });
    }
    drop(listener);
    connections.shutdown().await;
}

/// The next connection with its place; none if there is no place for it.
async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
    unknown: &UnknownPeers,
) -> Option<(tokio::net::TcpStream, OwnedSemaphorePermit)> {
    let (stream, _) = match listener.accept().await {
        Ok(accepted) => accepted,
        Err(error) => {
            if !is_single_connection_error(&error) {
                unknown.close_oldest();
                tracing::warn!(%error, "failed to accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
            return None;
        }
    };
    if places.available_permits() == 0 && !unknown.close_oldest() {
        tracing::warn!("refused a connection: too many are open");
        return None;
    }
    Some((stream, places.clone().acquire_owned().await.expect("the semaphore is never closed")))
}

fn is_single_connection_error(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use axum::Extension;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;

    /// A server with two places. `/known` trusts its peer.
    async fn start() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let app = Router::new()
            .route("/", get(async || "ok"))
            .route("/known", get(async |peer: Extension<Peer>| peer.trust()));
        tokio::spawn(serve(listener, app, 2, std::future::pending()));
        address
    }

    /// Sends a request and reads the start of the response; nothing if the connection was closed.
    async fn status_line(stream: &mut TcpStream, path: &str) -> String {
        let head = format!("GET {path} HTTP/1.1\r\nhost: worker\r\n\r\n");
        let mut response = [0; 512];
        let read = match stream.write_all(head.as_bytes()).await {
            Ok(()) => stream.read(&mut response).await.unwrap_or(0),
            Err(_) => 0,
        };
        String::from_utf8_lossy(&response[..read]).lines().next().unwrap_or_default().to_owned()
    }

    const OK: &str = "HTTP/1.1 200 OK";

    #[tokio::test]
    async fn unknown_peers_make_room() {
        let address = start().await;
        let mut known = TcpStream::connect(address).await.unwrap();
        assert_eq!(status_line(&mut known, "/known").await, OK);
        let mut unknown = Vec::new();
        for _ in 0..3 {
            unknown.push(TcpStream::connect(address).await.unwrap());
            assert_eq!(status_line(unknown.last_mut().unwrap(), "/").await, OK);
        }
        // 1. Each took the place of the one before.
        assert_eq!(status_line(&mut unknown[0], "/").await, "");
        assert_eq!(status_line(&mut unknown[1], "/").await, "");
        assert_eq!(status_line(&mut unknown[2], "/known").await, OK);
        // 2. There is none left to make room, and the known peers keep their connections.
        let mut refused = TcpStream::connect(address).await.unwrap();
        assert_eq!(status_line(&mut refused, "/").await, "");
        assert_eq!(status_line(&mut known, "/").await, OK);
        assert_eq!(status_line(&mut unknown[2], "/").await, OK);
        // 3. A place is free again after its connection has ended.
        drop(known);
        for _ in 0..1000 {
            let mut next = TcpStream::connect(address).await.unwrap();
            if status_line(&mut next, "/").await == OK {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("no place became free");
    }
}

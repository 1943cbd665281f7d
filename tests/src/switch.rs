//! A round-robin HTTP proxy: consecutive requests of a client reach different replicas.
//! It streams bodies through and skips a replica that accepts no connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http_body_util::{Either as EitherBody, Empty};
use hyper::body::Incoming;
use hyper::header::{CONNECTION, EXPECT, HeaderName};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

use crate::background::BackgroundListener;

type Body = EitherBody<Incoming, Empty<Bytes>>;

/// A running proxy. Dropping it ends the proxy.
pub struct RoundRobinProxy {
    /// Its listening address.
    pub address: SocketAddr,
    replicas: Arc<Replicas>,
    _thread: BackgroundListener,
}

struct Replicas {
    addresses: Vec<SocketAddr>,
    requests: AtomicUsize,
    served: Vec<AtomicUsize>,
}

impl RoundRobinProxy {
    /// Starts a proxy in front of these replicas.
    #[must_use]
    pub fn start(addresses: Vec<SocketAddr>) -> Self {
        let served = addresses.iter().map(|_| AtomicUsize::new(0)).collect();
        let replicas = Arc::new(Replicas { addresses, requests: AtomicUsize::new(0), served });
        let (address, thread) = BackgroundListener::listen({
            let replicas = replicas.clone();
            move |listener| accept(listener, replicas)
        });
        Self { address, replicas, _thread: thread }
    }

    /// `http://127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The number of requests sent to each replica.
    #[must_use]
    pub fn served(&self) -> Vec<usize> {
        self.replicas.served.iter().map(|count| count.load(Ordering::Relaxed)).collect()
    }
}

async fn accept(listener: TcpListener, replicas: Arc<Replicas>) {
    while let Ok((stream, _)) = listener.accept().await {
        let _ = stream.set_nodelay(true);
        let replicas = replicas.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| forward(request, replicas.clone()));
            // An error means that the client or the replica disconnected. hyper has closed the other side, so
            // there is nothing left to do.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

async fn forward(
    mut request: Request<Incoming>,
    replicas: Arc<Replicas>,
) -> Result<Response<Body>, hyper::Error> {
    let Some(stream) = replicas.connect().await else { return Ok(bad_gateway()) };
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    strip(request.headers_mut());
    match sender.send_request(request).await {
        Ok(mut response) => {
            strip(response.headers_mut());
            Ok(response.map(EitherBody::Left))
        }
        Err(_) => Ok(bad_gateway()),
    }
}

/// Removes the hop-by-hop header fields. The proxy itself sends the `100 Continue` that a client expects.
fn strip(headers: &mut hyper::HeaderMap) {
    for name in [CONNECTION, EXPECT, HeaderName::from_static("keep-alive")] {
        headers.remove(name);
    }
}

fn bad_gateway() -> Response<Body> {
    let mut response = Response::new(EitherBody::Right(Empty::new()));
    *response.status_mut() = StatusCode::BAD_GATEWAY;
    response
}

impl Replicas {
    /// A connection to the next replica that accepts one.
    async fn connect(&self) -> Option<TcpStream> {
        let first = self.requests.fetch_add(1, Ordering::Relaxed);
        for i in 0..self.addresses.len() {
            let replica = (first + i) % self.addresses.len();
            if let Ok(stream) = TcpStream::connect(self.addresses[replica]).await {
                let _ = stream.set_nodelay(true);
                self.served[replica].fetch_add(1, Ordering::Relaxed);
                return Some(stream);
            }
        }
        None
    }
}

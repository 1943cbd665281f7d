//! A TCP proxy between a server and its database or object storage that injects faults on demand.
//! A fault applies to every connection, including those that are already open.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::background::BackgroundListener;

/// A fault that the proxy injects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Forwards everything.
    None,
    /// Closes the port and resets open connections.
    Refused,
    /// Delays each chunk this long, in both directions.
    Slow(Duration),
    /// Limits each direction to this many bytes per second.
    Throttled(u64),
    /// Accepts connections but forwards nothing.
    Silent,
    /// Resets a connection after it has carried this many bytes towards the service.
    CutAfter(u64),
    /// Forwards a request that contains these bytes, discards its response and resets the connection, this
    /// many times.
    ResponseLost(&'static str, usize),
}

/// A running proxy. Dropping it ends the proxy.
pub struct FaultProxy {
    /// Its listening address.
    pub address: SocketAddr,
    fault: watch::Sender<Fault>,
    hits: Arc<AtomicUsize>,
    _thread: BackgroundListener,
}

impl FaultProxy {
    /// Starts a proxy in front of a service. It forwards everything until a fault is set.
    #[must_use]
    pub fn in_front_of(service: SocketAddr) -> Self {
        let (fault, faults) = watch::channel(Fault::None);
        let hits = Arc::new(AtomicUsize::new(0));
        let (address, thread) = BackgroundListener::listen({
            let hits = hits.clone();
            move |listener| accept(listener, service, faults, hits)
        });
        Self { address, fault, hits, _thread: thread }
    }

    /// Injects this fault from now on.
    pub fn set(&self, fault: Fault) {
        self.hits.store(0, Ordering::Relaxed);
        self.fault.send_replace(fault);
    }

    /// Forwards everything again.
    pub fn heal(&self) {
        self.fault.send_replace(Fault::None);
    }

    /// How many connections or chunks the current fault has affected.
    #[must_use]
    pub fn hits(&self) -> usize {
        self.hits.load(Ordering::Relaxed)
    }
}

async fn accept(
    mut listener: TcpListener,
    service: SocketAddr,
    mut faults: watch::Receiver<Fault>,
    hits: Arc<AtomicUsize>,
) {
    let address = listener.local_addr().expect("a listener has an address");
    loop {
        if *faults.borrow_and_update() == Fault::Refused {
            // Close the port, as if the service had stopped.
            drop(listener);
            hits.fetch_add(1, Ordering::Relaxed);
            while *faults.borrow_and_update() == Fault::Refused {
                if faults.changed().await.is_err() {
                    return;
                }
            }
            listener = TcpListener::bind(address).await.expect("the port is still free");
        }
        let client = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((client, _)) => client,
                Err(_) => continue,
            },
            changed = faults.changed() => match changed {
                Ok(()) => continue,
                Err(_) => return,
            },
        };
        tokio::spawn(carry(client, service, faults.clone(), hits.clone()));
    }
}

/// Forwards one connection until one side closes it or a fault ends it.
async fn carry(
    client: TcpStream,
    service: SocketAddr,
    faults: watch::Receiver<Fault>,
    hits: Arc<AtomicUsize>,
) {
    let Ok(server) = TcpStream::connect(service).await else { return };
    for stream in [&client, &server] {
        let _ = stream.set_nodelay(true);
    }
    let (client_read, client_write) = client.into_split();
    let (server_read, server_write) = server.into_split();
    let (lose, losing) = watch::channel(false);
    let pump = || Forwarder { faults: faults.clone(), hits: hits.clone(), carried: 0, recent: Vec::new() };
    // A fault in one direction ends both. After a regular end of one direction the other continues.
    let _ = futures::try_join!(
        pump().run(client_read, server_write, Direction::Up(lose)),
        pump().run(server_read, client_write, Direction::Down(losing)),
    );
}

/// A fault ended the connection.
struct ConnectionBroken;

enum Direction {
    /// Towards the service. Signals that the response must be discarded.
    Up(watch::Sender<bool>),
    Down(watch::Receiver<bool>),
}

struct Forwarder {
    faults: watch::Receiver<Fault>,
    hits: Arc<AtomicUsize>,
    carried: u64,
    /// The end of the previous chunk, because a pattern may span two chunks.
    recent: Vec<u8>,
}

impl Forwarder {
    async fn run(
        mut self,
        mut from: OwnedReadHalf,
        mut to: OwnedWriteHalf,
        direction: Direction,
    ) -> Result<(), ConnectionBroken> {
        let mut buffer = vec![0; 65536];
        let mut faults = self.faults.clone();
        loop {
            let read = tokio::select! {
                read = from.read(&mut buffer) => read.unwrap_or(0),
                _ = faults.wait_for(|fault| *fault == Fault::Refused) => {
                    self.count_hit();
                    return Err(reset(&from, &to));
                }
            };
            if read == 0 {
                let _ = to.shutdown().await;
                return Ok(());
            }
            if !self.forward_chunk(&buffer[..read], &mut to, &direction).await {
                return Err(reset(&from, &to));
            }
        }
    }

    /// Forwards a chunk according to the fault. Returns false if the connection must end.
    async fn forward_chunk(&mut self, piece: &[u8], to: &mut OwnedWriteHalf, direction: &Direction) -> bool {
        let fault = self.faults.borrow_and_update().clone();
        match (fault, direction) {
            (Fault::Refused, _) => return false,
            (Fault::Slow(delay), _) => {
                self.count_hit();
                tokio::time::sleep(delay).await;
            }
            (Fault::Throttled(rate), _) => {
                self.count_hit();
                tokio::time::sleep(Duration::from_micros(piece.len() as u64 * 1_000_000 / rate)).await;
            }
            (Fault::Silent, _) => {
                self.count_hit();
                while *self.faults.borrow_and_update() == Fault::Silent {
                    if self.faults.changed().await.is_err() {
                        return false;
                    }
                }
            }
            (Fault::CutAfter(limit), Direction::Up(_)) => {
                let room = usize::try_from(limit.saturating_sub(self.carried)).unwrap_or(usize::MAX);
                self.carried += piece.len() as u64;
                if room < piece.len() {
                    self.count_hit();
                    let _ = to.write_all(&piece[..room]).await;
                    return false;
                }
            }
            (Fault::ResponseLost(pattern, times), Direction::Up(lose)) => {
                let pattern = pattern.as_bytes();
                self.recent.extend_from_slice(piece);
                let is_match = self.recent.windows(pattern.len()).any(|window| window == pattern);
                if is_match && self.hits.load(Ordering::Relaxed) < times {
                    self.recent.clear();
                    lose.send_replace(true);
                }
                let keep = self.recent.len().min(pattern.len());
                self.recent.drain(..self.recent.len() - keep);
            }
            (_, Direction::Down(losing)) if *losing.borrow() => {
                self.count_hit();
                return false;
            }
            _ => {}
        }
        to.write_all(piece).await.is_ok()
    }

    fn count_hit(&self) {
        self.hits.fetch_add(1, Ordering::Relaxed);
    }
}

/// Makes both connections end with a reset, as after a crash of the peer.
fn reset(from: &OwnedReadHalf, to: &OwnedWriteHalf) -> ConnectionBroken {
    let streams: [&TcpStream; 2] = [from.as_ref(), to.as_ref()];
    for stream in streams {
        let _ = stream.set_zero_linger();
    }
    ConnectionBroken
}

//! A TCP proxy that misbehaves on demand, to stand between a server and its database or its object storage.
//! What it does applies to every connection, also to those that were open before it was told.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::background::Background;

/// What the proxy does to the connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Passes everything on.
    Nothing,
    /// Nobody listens, and what was connected is reset.
    Refused,
    /// Each piece waits this long, both ways.
    Slow(Duration),
    /// No more than this many bytes a second, each way.
    Throttled(u64),
    /// Connections are accepted, and nothing is passed on.
    Silent,
    /// A connection is reset after it has carried this many bytes towards the service.
    CutAfter(u64),
    /// A request that contains these bytes is passed on; its answer is thrown away and the connection reset, that many times.
    AnswerLost(&'static str, usize),
}

/// A running proxy; it ends when this goes.
pub struct FaultProxy {
    /// Where it listens.
    pub address: SocketAddr,
    fault: watch::Sender<Fault>,
    hits: Arc<AtomicUsize>,
    _thread: Background,
}

impl FaultProxy {
    /// Starts a proxy before a service, which passes everything on until told otherwise.
    #[must_use]
    pub fn before(service: SocketAddr) -> Self {
        let (fault, told) = watch::channel(Fault::Nothing);
        let hits = Arc::new(AtomicUsize::new(0));
        let (address, thread) = Background::listen({
            let hits = hits.clone();
            move |listener| accept(listener, service, told, hits)
        });
        Self { address, fault, hits, _thread: thread }
    }

    /// From now on does this.
    pub fn set(&self, fault: Fault) {
        self.hits.store(0, Ordering::Relaxed);
        self.fault.send_replace(fault);
    }

    /// Passes everything on again.
    pub fn heal(&self) {
        self.fault.send_replace(Fault::Nothing);
    }

    /// How many connections or pieces the present fault has met.
    #[must_use]
    pub fn hits(&self) -> usize {
        self.hits.load(Ordering::Relaxed)
    }
}

async fn accept(
    mut listener: TcpListener,
    service: SocketAddr,
    mut told: watch::Receiver<Fault>,
    hits: Arc<AtomicUsize>,
) {
    let address = listener.local_addr().expect("a listener has an address");
    loop {
        if *told.borrow_and_update() == Fault::Refused {
            // As if the service had gone: its port is closed until it is back.
            drop(listener);
            hits.fetch_add(1, Ordering::Relaxed);
            while *told.borrow_and_update() == Fault::Refused {
                if told.changed().await.is_err() {
                    return;
                }
            }
            listener = TcpListener::bind(address).await.expect("the port is still ours");
        }
        let client = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((client, _)) => client,
                Err(_) => continue,
            },
            changed = told.changed() => match changed {
                Ok(()) => continue,
                Err(_) => return,
            },
        };
        tokio::spawn(carry(client, service, told.clone(), hits.clone()));
    }
}

/// Carries one connection until an end closes it or a fault ends it.
async fn carry(client: TcpStream, service: SocketAddr, told: watch::Receiver<Fault>, hits: Arc<AtomicUsize>) {
    let Ok(server) = TcpStream::connect(service).await else { return };
    for stream in [&client, &server] {
        let _ = stream.set_nodelay(true);
    }
    let (client_read, client_write) = client.into_split();
    let (server_read, server_write) = server.into_split();
    let (lose, losing) = watch::channel(false);
    let pump = || Pump { told: told.clone(), hits: hits.clone(), carried: 0, recent: Vec::new() };
    // A fault in one direction ends both; an orderly end of one lets the other come to its own.
    let _ = futures::try_join!(
        pump().run(client_read, server_write, Direction::Up(lose)),
        pump().run(server_read, client_write, Direction::Down(losing)),
    );
}

/// A fault has ended the connection.
struct Broken;

enum Direction {
    /// Towards the service; says when the answer is to be lost.
    Up(watch::Sender<bool>),
    Down(watch::Receiver<bool>),
}

struct Pump {
    told: watch::Receiver<Fault>,
    hits: Arc<AtomicUsize>,
    carried: u64,
    /// The end of what was carried before: a pattern may lie across two pieces.
    recent: Vec<u8>,
}

impl Pump {
    async fn run(
        mut self,
        mut from: OwnedReadHalf,
        mut to: OwnedWriteHalf,
        direction: Direction,
    ) -> Result<(), Broken> {
        let mut buffer = vec![0; 65536];
        let mut told = self.told.clone();
        loop {
            let read = tokio::select! {
                read = from.read(&mut buffer) => read.unwrap_or(0),
                _ = told.wait_for(|fault| *fault == Fault::Refused) => {
                    self.hit();
                    return Err(reset(&from, &to));
                }
            };
            if read == 0 {
                let _ = to.shutdown().await;
                return Ok(());
            }
            if !self.pass(&buffer[..read], &mut to, &direction).await {
                return Err(reset(&from, &to));
            }
        }
    }

    /// Passes a piece on, as the fault will have it. False: this connection is over.
    async fn pass(&mut self, piece: &[u8], to: &mut OwnedWriteHalf, direction: &Direction) -> bool {
        let fault = self.told.borrow_and_update().clone();
        match (fault, direction) {
            (Fault::Refused, _) => return false,
            (Fault::Slow(delay), _) => {
                self.hit();
                tokio::time::sleep(delay).await;
            }
            (Fault::Throttled(rate), _) => {
                self.hit();
                tokio::time::sleep(Duration::from_micros(piece.len() as u64 * 1_000_000 / rate)).await;
            }
            (Fault::Silent, _) => {
                self.hit();
                while *self.told.borrow_and_update() == Fault::Silent {
                    if self.told.changed().await.is_err() {
                        return false;
                    }
                }
            }
            (Fault::CutAfter(limit), Direction::Up(_)) => {
                let room = usize::try_from(limit.saturating_sub(self.carried)).unwrap_or(usize::MAX);
                self.carried += piece.len() as u64;
                if room < piece.len() {
                    self.hit();
                    let _ = to.write_all(&piece[..room]).await;
                    return false;
                }
            }
            (Fault::AnswerLost(pattern, times), Direction::Up(lose)) => {
                let pattern = pattern.as_bytes();
                self.recent.extend_from_slice(piece);
                let asked = self.recent.windows(pattern.len()).any(|window| window == pattern);
                if asked && self.hits.load(Ordering::Relaxed) < times {
                    self.recent.clear();
                    lose.send_replace(true);
                }
                let keep = self.recent.len().min(pattern.len());
                self.recent.drain(..self.recent.len() - keep);
            }
            (_, Direction::Down(losing)) if *losing.borrow() => {
                self.hit();
                return false;
            }
            _ => {}
        }
        to.write_all(piece).await.is_ok()
    }

    fn hit(&self) {
        self.hits.fetch_add(1, Ordering::Relaxed);
    }
}

/// Ends both connections as a machine that has gone would: at once, with a reset.
fn reset(from: &OwnedReadHalf, to: &OwnedWriteHalf) -> Broken {
    let streams: [&TcpStream; 2] = [from.as_ref(), to.as_ref()];
    for stream in streams {
        let _ = stream.set_zero_linger();
    }
    Broken
}

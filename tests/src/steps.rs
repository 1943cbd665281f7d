//! Counts the steps of a server at its database and object storage, and injects a fault at a chosen step. A
//! step is one SQL statement or one storage request. The proxies parse just enough of both protocols to find
//! their boundaries.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::background::BackgroundListener;

/// The fault at the chosen step, after the service has executed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepFault {
    /// Forwards nothing on any connection until [`Steps::release`].
    Freeze,
    /// Discards the response and resets its connection. Other connections continue.
    LoseResponse,
}

/// The protocol of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// The PostgreSQL protocol, version 3, without TLS.
    Postgres,
    /// HTTP/1.1 with Content-Length, as storage clients send it.
    Http,
}

/// Which steps are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepFilter {
    /// Steps that may change something.
    Changes,
    /// All steps, including reads.
    All,
}

/// The steps of a server at the services behind the proxies.
#[derive(Clone)]
pub struct Steps {
    shared: Arc<Shared>,
}

struct Shared {
    which: StepFilter,
    plan: Mutex<Plan>,
    frozen: watch::Sender<bool>,
}

#[derive(Default)]
struct Plan {
    /// The fault, and the number of steps before it.
    armed: Option<(usize, StepFault)>,
    counted_steps: Vec<String>,
    triggered_at: Option<String>,
}

/// A proxy in front of one service. Dropping it ends the proxy.
pub struct StepProxy {
    /// Its listening address.
    pub address: SocketAddr,
    _thread: BackgroundListener,
}

impl Steps {
    /// Counts these steps. No fault is armed.
    #[must_use]
    pub fn new(which: StepFilter) -> Self {
        let frozen = watch::Sender::new(false);
        Self { shared: Arc::new(Shared { which, plan: Mutex::default(), frozen }) }
    }

    /// Starts a proxy in front of a service.
    #[must_use]
    pub fn proxy_for(&self, service: SocketAddr, protocol: Protocol) -> StepProxy {
        let shared = self.shared.clone();
        let (address, thread) =
            BackgroundListener::listen(move |listener| accept(listener, service, shared, protocol));
        StepProxy { address, _thread: thread }
    }

    /// Injects the fault once, after `before` more steps.
    pub fn arm(&self, before: usize, act: StepFault) {
        *self.shared.plan() = Plan { armed: Some((before, act)), ..Plan::default() };
    }

    /// Disarms the fault. Returns the step at which it occurred, if it did.
    pub fn disarm(&self) -> Option<String> {
        let mut plan = self.shared.plan();
        plan.armed = None;
        plan.triggered_at.take()
    }

    /// Waits until the proxies are frozen, and returns the step that froze them.
    pub async fn wait_frozen(&self) -> String {
        until(&mut self.shared.frozen.subscribe(), true).await;
        self.shared.plan().triggered_at.clone().unwrap_or_default()
    }

    /// Forwards new connections again. The frozen connections are reset.
    pub fn release(&self) {
        self.shared.frozen.send_replace(false);
    }
}

impl Shared {
    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a step. Returns the fault to inject at it, if any.
    fn step(&self, step: String) -> Option<StepFault> {
        if !counts(self.which, &step) {
            return None;
        }
        let mut plan = self.plan();
        let number = plan.counted_steps.len();
        plan.counted_steps.push(step.clone());
        let (_, act) = plan.armed.filter(|(before, _)| *before == number)?;
        plan.armed = None;
        plan.triggered_at = Some(step);
        Some(act)
    }
}

fn counts(which: StepFilter, step: &str) -> bool {
    // The pool sends `set` on each new connection; it is not part of a request.
    if step.is_empty() || step.starts_with("set ") {
        return false;
    }
    let is_read = |words: &[&str]| words.iter().any(|word| step.starts_with(word));
    which == StepFilter::All || !is_read(&["select", "begin", "rollback", "GET ", "HEAD "])
}

async fn accept(listener: TcpListener, service: SocketAddr, shared: Arc<Shared>, protocol: Protocol) {
    loop {
        let Ok((client, _)) = listener.accept().await else { continue };
        let shared = shared.clone();
        tokio::spawn(async move {
            let Ok(server) = TcpStream::connect(service).await else { return };
            carry(client, server, &shared, protocol.into()).await;
        });
    }
}

/// Waits until the proxies are frozen, or no longer frozen.
async fn until(frozen: &mut watch::Receiver<bool>, still: bool) {
    // An error means that the sender is gone and nothing waits for the proxy any more.
    let _ = frozen.wait_for(|now| *now == still).await;
}

/// Forwards one connection until one side closes it or a fault ends it.
async fn carry(mut client: TcpStream, mut server: TcpStream, shared: &Shared, mut wire: StepParser) {
    for stream in [&client, &server] {
        let _ = stream.set_nodelay(true);
    }
    let mut frozen = shared.frozen.subscribe();
    let (mut up, mut down) = (vec![0; 65536], vec![0; 65536]);
    let mut due = None;
    loop {
        tokio::select! {
            biased;
            () = until(&mut frozen, true) => break,
            read = server.read(&mut down) => match (read, due) {
                (Ok(0) | Err(_), _) => return,
                (Ok(_), Some(StepFault::Freeze)) => {
                    shared.frozen.send_replace(true);
                    break;
                }
                (Ok(_), Some(StepFault::LoseResponse)) => return reset(&client, &server),
                (Ok(read), None) => if client.write_all(&down[..read]).await.is_err() {
                    return;
                }
            },
            read = client.read(&mut up) => {
                let Ok(read @ 1..) = read else { return };
                for step in wire.steps(&up[..read]) {
                    due = due.or(shared.step(step));
                }
                if server.write_all(&up[..read]).await.is_err() {
                    return;
                }
            }
        }
    }
    until(&mut frozen, false).await;
    reset(&client, &server);
}

/// Makes both connections end with a reset, as after a crash of the peer.
fn reset(client: &TcpStream, server: &TcpStream) {
    for stream in [client, server] {
        let _ = stream.set_zero_linger();
    }
}

/// Splits the bytes that are sent to a service into steps.
enum StepParser {
    Postgres(Postgres),
    Http(Http),
}

impl From<Protocol> for StepParser {
    fn from(protocol: Protocol) -> Self {
        match protocol {
            Protocol::Postgres => StepParser::Postgres(Postgres::default()),
            Protocol::Http => StepParser::Http(Http::default()),
        }
    }
}

/// The steps in the bytes that a client sends on one connection, in any chunking.
pub fn parse_steps<'a>(protocol: Protocol, pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<String> {
    let mut wire = StepParser::from(protocol);
    pieces.into_iter().flat_map(|piece| wire.steps(piece)).collect()
}

impl StepParser {
    fn steps(&mut self, piece: &[u8]) -> Vec<String> {
        match self {
            StepParser::Postgres(postgres) => postgres.steps(piece),
            StepParser::Http(http) => http.steps(piece),
        }
    }
}

/// The frontend's side of the protocol.
#[derive(Default)]
struct Postgres {
    started: bool,
    /// The beginning of an incomplete message.
    partial: Vec<u8>,
    /// Prepared statements by name: a statement's text is sent once for each connection.
    statements: HashMap<Vec<u8>, String>,
    bound: String,
}

impl Postgres {
    fn steps(&mut self, piece: &[u8]) -> Vec<String> {
        self.partial.extend_from_slice(piece);
        let mut steps = Vec::new();
        let mut at = 0;
        // The startup message and those before it have no type byte.
        while let Some((kind, body, end)) = message(&self.partial[at..], !self.started) {
            match kind {
                None => {
                    // The server refuses TLS and GSSAPI requests; the startup message follows.
                    let code = body.first_chunk().map_or(0, |code| u32::from_be_bytes(*code));
                    self.started = ![80_877_103, 80_877_104].contains(&code);
                }
                Some(b'P') => {
                    let (name, rest) = split_at_zero(body);
                    self.statements.insert(name.to_vec(), text(split_at_zero(rest).0));
                }
                Some(b'B') => {
                    let (statement, _) = split_at_zero(split_at_zero(body).1);
                    self.bound = self.statements.get(statement).cloned().unwrap_or_default();
                }
                Some(b'E') => steps.push(self.bound.clone()),
                Some(b'Q') => steps.push(text(split_at_zero(body).0)),
                Some(_) => {}
            }
            at += end;
        }
        self.partial.drain(..at);
        steps
    }
}

/// The first message, if it is complete: its type, its body and its end.
fn message(bytes: &[u8], untyped: bool) -> Option<(Option<u8>, &[u8], usize)> {
    let head = usize::from(!untyped);
    let len = u32::from_be_bytes(*bytes.get(head..)?.first_chunk()?) as usize;
    let body = bytes.get(head + 4..head + len)?;
    Some(((!untyped).then(|| bytes[0]), body, head + len))
}

/// The bytes before the next zero byte, and those after it.
fn split_at_zero(bytes: &[u8]) -> (&[u8], &[u8]) {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    (&bytes[..end], bytes.get(end + 1..).unwrap_or_default())
}

/// The first 80 characters of a statement, in lower case on one line.
fn text(statement: &[u8]) -> String {
    let words = String::from_utf8_lossy(statement).to_lowercase();
    words.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(80).collect()
}

#[derive(Default)]
struct Http {
    head: Vec<u8>,
    /// The remaining bytes of the current body.
    body: usize,
}

impl Http {
    fn steps(&mut self, mut piece: &[u8]) -> Vec<String> {
        let mut steps = Vec::new();
        while !piece.is_empty() {
            if self.body > 0 {
                let (skipped, rest) = piece.split_at(self.body.min(piece.len()));
                (self.body, piece) = (self.body - skipped.len(), rest);
                continue;
            }
            // A head is short, so it is read byte by byte.
            self.head.push(piece[0]);
            piece = &piece[1..];
            if self.head.ends_with(b"\r\n\r\n") {
                let head = String::from_utf8_lossy(&self.head).into_owned();
                let mut lines = head.lines();
                let request = lines.next().unwrap_or_default();
                steps.push(request.rsplit_once(' ').map_or(request, |(request, _)| request).to_owned());
                let length = lines.filter_map(|line| line.split_once(':'));
                let mut length = length.filter(|(name, _)| name.eq_ignore_ascii_case("content-length"));
                self.body = length.next().and_then(|(_, length)| length.trim().parse().ok()).unwrap_or(0);
                self.head.clear();
            }
        }
        steps
    }
}

//! What a server does at its database and its object storage, one step after the other, and what befalls it at the step that a test
//! chooses: proxies before both services understand just enough of their protocols to tell a statement or a request from the next.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::background::Background;

/// What happens at the chosen step, once the service has carried it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Nothing passes any more, on no connection, until [`Steps::release`].
    Freeze,
    /// The answer is thrown away and its connection reset; all others go on.
    LoseAnswer,
}

/// What a service speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// PostgreSQL's, version 3, in the clear.
    Postgres,
    /// HTTP/1.1 with bodies of declared length, as storage clients send them.
    Http,
}

/// Which steps count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// Those that may change something.
    Changes,
    /// Reads as well.
    All,
}

/// The steps that a server takes at the services behind its proxies.
#[derive(Clone)]
pub struct Steps {
    shared: Arc<Shared>,
}

struct Shared {
    which: Which,
    plan: Mutex<Plan>,
    frozen: watch::Sender<bool>,
}

#[derive(Default)]
struct Plan {
    /// What happens, and after how many other steps.
    armed: Option<(usize, Act)>,
    taken: Vec<String>,
    met: Option<String>,
}

/// A proxy before one service; it ends when this goes.
pub struct StepProxy {
    /// Where it listens.
    pub address: SocketAddr,
    _thread: Background,
}

impl Steps {
    /// Counts these; nothing happens at any of them until told.
    #[must_use]
    pub fn new(which: Which) -> Self {
        let frozen = watch::Sender::new(false);
        Self { shared: Arc::new(Shared { which, plan: Mutex::default(), frozen }) }
    }

    /// Stands before a service.
    #[must_use]
    pub fn before(&self, service: SocketAddr, protocol: Protocol) -> StepProxy {
        let shared = self.shared.clone();
        let (address, thread) =
            Background::listen(move |listener| accept(listener, service, shared, protocol));
        StepProxy { address, _thread: thread }
    }

    /// After `before` more steps, this happens, once.
    pub fn arm(&self, before: usize, act: Act) {
        *self.shared.plan() = Plan { armed: Some((before, act)), ..Plan::default() };
    }

    /// Nothing will happen. Returns the step at which something did, if any.
    pub fn disarm(&self) -> Option<String> {
        let mut plan = self.shared.plan();
        plan.armed = None;
        plan.met.take()
    }

    /// Waits until everything stands still, and names the step at which it does.
    pub async fn frozen(&self) -> String {
        until(&mut self.shared.frozen.subscribe(), true).await;
        self.shared.plan().met.clone().unwrap_or_default()
    }

    /// Lets everything pass again; the connections that stood still are reset.
    pub fn release(&self) {
        self.shared.frozen.send_replace(false);
    }
}

impl Shared {
    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A step is taken. What is to happen at it, if anything.
    fn step(&self, step: String) -> Option<Act> {
        if !counts(self.which, &step) {
            return None;
        }
        let mut plan = self.plan();
        let number = plan.taken.len();
        plan.taken.push(step.clone());
        let (_, act) = plan.armed.filter(|(before, _)| *before == number)?;
        plan.armed = None;
        plan.met = Some(step);
        Some(act)
    }
}

fn counts(which: Which, step: &str) -> bool {
    // What the pool says to each new connection is no part of a request.
    if step.is_empty() || step.starts_with("set ") {
        return false;
    }
    let is_read = |words: &[&str]| words.iter().any(|word| step.starts_with(word));
    which == Which::All || !is_read(&["select", "begin", "rollback", "GET ", "HEAD "])
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

/// Waits until everything stands still, or no longer does.
async fn until(frozen: &mut watch::Receiver<bool>, still: bool) {
    // Without a sender there is nobody left who waits.
    let _ = frozen.wait_for(|now| *now == still).await;
}

/// Carries one connection until an end closes it or its turn has come.
async fn carry(mut client: TcpStream, mut server: TcpStream, shared: &Shared, mut wire: Wire) {
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
                (Ok(_), Some(Act::Freeze)) => {
                    shared.frozen.send_replace(true);
                    break;
                }
                (Ok(_), Some(Act::LoseAnswer)) => return reset(&client, &server),
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

/// Ends both connections as a machine that has gone would: at once, with a reset.
fn reset(client: &TcpStream, server: &TcpStream) {
    for stream in [client, server] {
        let _ = stream.set_zero_linger();
    }
}

/// What goes towards a service, cut into steps.
enum Wire {
    Postgres(Postgres),
    Http(Http),
}

impl From<Protocol> for Wire {
    fn from(protocol: Protocol) -> Self {
        match protocol {
            Protocol::Postgres => Wire::Postgres(Postgres::default()),
            Protocol::Http => Wire::Http(Http::default()),
        }
    }
}

/// The steps in what a client sends on one connection, however it is cut into pieces.
pub fn steps_in<'a>(protocol: Protocol, pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<String> {
    let mut wire = Wire::from(protocol);
    pieces.into_iter().flat_map(|piece| wire.steps(piece)).collect()
}

impl Wire {
    fn steps(&mut self, piece: &[u8]) -> Vec<String> {
        match self {
            Wire::Postgres(postgres) => postgres.steps(piece),
            Wire::Http(http) => http.steps(piece),
        }
    }
}

/// The frontend's half.
#[derive(Default)]
struct Postgres {
    started: bool,
    /// What came of the next message.
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
        // Messages before and with the startup have no type.
        while let Some((kind, body, end)) = message(&self.partial[at..], !self.started) {
            match kind {
                None => {
                    // Asking for TLS (or GSSAPI) is answered with no, and the startup follows.
                    let code = body.first_chunk().map_or(0, |code| u32::from_be_bytes(*code));
                    self.started = ![80_877_103, 80_877_104].contains(&code);
                }
                Some(b'P') => {
                    let (name, rest) = word(body);
                    self.statements.insert(name.to_vec(), text(word(rest).0));
                }
                Some(b'B') => {
                    let (statement, _) = word(word(body).1);
                    self.bound = self.statements.get(statement).cloned().unwrap_or_default();
                }
                Some(b'E') => steps.push(self.bound.clone()),
                Some(b'Q') => steps.push(text(word(body).0)),
                Some(_) => {}
            }
            at += end;
        }
        self.partial.drain(..at);
        steps
    }
}

/// The first message, if it is whole: its type, its body and where it ends.
fn message(bytes: &[u8], untyped: bool) -> Option<(Option<u8>, &[u8], usize)> {
    let head = usize::from(!untyped);
    let len = u32::from_be_bytes(*bytes.get(head..)?.first_chunk()?) as usize;
    let body = bytes.get(head + 4..head + len)?;
    Some(((!untyped).then(|| bytes[0]), body, head + len))
}

/// Up to the next zero, and what follows it.
fn word(bytes: &[u8]) -> (&[u8], &[u8]) {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    (&bytes[..end], bytes.get(end + 1..).unwrap_or_default())
}

/// A statement on one line, as short as it can be told from others.
fn text(statement: &[u8]) -> String {
    let words = String::from_utf8_lossy(statement).to_lowercase();
    words.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(80).collect()
}

#[derive(Default)]
struct Http {
    head: Vec<u8>,
    /// How much of a body is still to come.
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
            // A head is short: one byte after the other will do.
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

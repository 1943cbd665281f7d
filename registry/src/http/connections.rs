//! Open connections: their limit, which of them are idle, and which are closed to admit a new one.
//! The accept loop admits connections here. Each connection's state is a few atomics that requests update.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::{Body, HttpBody};
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use rustix::process::{Resource, getrlimit};
use tokio::sync::Notify;

/// Connections beyond the limit that still get a response: probes and workers their own, others a 503.
const MAX_REFUSED: usize = 32;

/// Share of the open connections, if idle, to close together at the limit. Finding them takes time.
const CLOSE_SHARE: usize = 64;

/// The least number of idle connections to close when descriptors run short. A new connection keeps its high
/// descriptor and the next ones get the low ones of the closed, so closing one for one would use up the
/// reserve.
const MIN_CLOSED_FOR_DESCRIPTORS: usize = 8;

/// How long the accept loop waits for closed connections to free their descriptors.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Descriptors reserved for files, workers and the database: a quarter of all, within these bounds.
const MIN_SPARE_DESCRIPTORS: u64 = 32;
const MAX_SPARE_DESCRIPTORS: u64 = 1024;

/// Added to the request count of a connection that is being closed.
const CLOSED: usize = usize::MAX / 2;

/// All connections of a server.
#[derive(Clone)]
pub(crate) struct Connections(Arc<Shared>);

struct Shared {
    limit: usize,
    open: Mutex<HashMap<u64, Arc<Connection>>>,
    next_id: AtomicU64,
    refused: AtomicUsize,
    /// Connections that were chosen for closing and still have their descriptor.
    closing: AtomicUsize,
    /// Wakes the accept loop when there are fewer of them.
    has_closed: Notify,
    /// Requests in flight.
    requests: AtomicUsize,
    started: Instant,
}

/// One connection.
pub(crate) struct Connection {
    id: u64,
    shared: Arc<Shared>,
    /// Requests in flight; more than [`CLOSED`] while it is being closed.
    requests: AtomicUsize,
    /// When it last became idle, in milliseconds since the start.
    idle_since: AtomicU64,
    /// Whether written bytes wait for the peer to read them.
    is_writing: AtomicBool,
    has_received_request: AtomicBool,
    /// A request of HTTP/2 has arrived.
    http2: Notify,
    closed: Notify,
    /// Whether it was accepted beyond the limit.
    pub(crate) is_refused: bool,
}

/// A connection's slot among the open ones; released when dropped.
pub(crate) struct ConnectionSlot {
    id: u64,
    pub(crate) connection: Arc<Connection>,
}

impl Connections {
    pub(crate) fn new(limit: usize) -> Connections {
        Connections(Arc::new(Shared {
            limit: limit.max(1),
            open: Mutex::default(),
            next_id: AtomicU64::new(0),
            refused: AtomicUsize::new(0),
            closing: AtomicUsize::new(0),
            has_closed: Notify::new(),
            requests: AtomicUsize::new(0),
            started: Instant::now(),
        }))
    }

    /// Returns a slot for a connection whose socket has this descriptor. At the limit, idle connections are
    /// closed to free one. If none is idle, the new connection gets a slot to be refused in; None if those
    /// are used up too.
    pub(crate) fn admit(&self, descriptor: u64) -> Option<ConnectionSlot> {
        let shared = &self.0;
        let lacks_descriptors = descriptor >= descriptor_limit();
        let is_full = lacks_descriptors || shared.open().len() >= shared.limit;
        let is_refused = is_full && self.close_idle(lacks_descriptors) == 0;
        if is_refused && shared.refused.fetch_add(1, Ordering::SeqCst) >= MAX_REFUSED {
            shared.refused.fetch_sub(1, Ordering::SeqCst);
            return None;
        }
        let id = shared.next_id.fetch_add(1, Ordering::Relaxed);
        let connection = Arc::new(Connection {
            id,
            shared: shared.clone(),
            requests: AtomicUsize::new(0),
            idle_since: AtomicU64::new(shared.now()),
            is_writing: AtomicBool::new(false),
            has_received_request: AtomicBool::new(false),
            http2: Notify::new(),
            closed: Notify::new(),
            is_refused,
        });
        if !is_refused {
            shared.open().insert(id, connection.clone());
        }
        Some(ConnectionSlot { id, connection })
    }

    /// Returns when the descriptors of closed connections are free again. Without this wait, a burst of new
    /// connections would use up the reserve while the tasks of closed ones have yet to run.
    pub(crate) async fn wait_for_closing(&self) {
        let all_closed = async {
            while self.0.closing.load(Ordering::SeqCst) > 0 {
                self.0.has_closed.notified().await;
            }
        };
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, all_closed).await;
    }

    /// Closes idle connections: first those that never sent a whole request head, then those that have been
    /// idle for the longest time. Closes a share of all, and more to free descriptors. Returns how many.
    pub(crate) fn close_idle(&self, to_free_descriptors: bool) -> usize {
        let mut open = self.0.open();
        let mut idle: Vec<(bool, u64, u64)> = open
            .iter()
            .filter(|(_, connection)| connection.is_idle())
            .map(|(id, connection)| {
                (connection.has_received_request(), connection.idle_since.load(Ordering::Relaxed), *id)
            })
            .collect();
        let min = if to_free_descriptors { MIN_CLOSED_FOR_DESCRIPTORS } else { 1 };
        let count = (open.len() / CLOSE_SHARE).max(min);
        if idle.len() > count {
            idle.select_nth_unstable(count - 1);
            idle.truncate(count);
        }
        let mut closed = 0;
        for (_, _, id) in idle {
            // A request may have begun on it in the meantime.
            if open.get(&id).is_some_and(|connection| connection.close()) {
                open.remove(&id);
                closed += 1;
            }
        }
        closed
    }
}

impl Shared {
    fn open(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Arc<Connection>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end_closing(&self) {
        self.closing.fetch_sub(1, Ordering::SeqCst);
        self.has_closed.notify_one();
    }

    fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// Descriptors that connections may use. Read each time, because the limit of a running process can change.
fn descriptor_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    limit.saturating_sub((limit / 4).clamp(MIN_SPARE_DESCRIPTORS, MAX_SPARE_DESCRIPTORS))
}

impl Connection {
    /// Counts a request until the guard is dropped. A connection that was just chosen for closing stays open.
    pub(crate) fn begin_request(self: &Arc<Connection>) -> InFlight {
        self.has_received_request.store(true, Ordering::Relaxed);
        let before = self.requests.fetch_add(1, Ordering::SeqCst);
        if before >= CLOSED {
            self.requests.fetch_sub(CLOSED, Ordering::SeqCst);
            self.shared.open().insert(self.id, self.clone());
            self.shared.end_closing();
        }
        let all = self.shared.requests.fetch_add(1, Ordering::Relaxed);
        InFlight { connection: self.clone(), is_beyond_limit: all >= self.shared.limit }
    }

    /// Records whether written bytes wait for the peer to read them.
    pub(crate) fn set_writing(&self, is_writing: bool) {
        self.is_writing.store(is_writing, Ordering::Relaxed);
        if !is_writing {
            self.idle_since.store(self.shared.now(), Ordering::Relaxed);
        }
    }

    /// Whether it has ever received a whole request head.
    pub(crate) fn has_received_request(&self) -> bool {
        self.has_received_request.load(Ordering::Relaxed)
    }

    pub(crate) fn note_http2_request(&self) {
        self.http2.notify_one();
    }

    /// Returns once a request of HTTP/2 has arrived.
    pub(crate) async fn http2_request(&self) {
        self.http2.notified().await;
    }

    /// Returns when it was chosen for closing and no request has begun on it since.
    pub(crate) async fn closed(&self) {
        loop {
            self.closed.notified().await;
            if self.is_closing() {
                return;
            }
        }
    }

    /// Whether it was chosen for closing and no request has begun on it since.
    pub(crate) fn is_closing(&self) -> bool {
        self.requests.load(Ordering::SeqCst) >= CLOSED
    }

    fn is_idle(&self) -> bool {
        self.requests.load(Ordering::SeqCst) == 0 && !self.is_writing.load(Ordering::Relaxed)
    }

    /// Closes it unless a request is in flight.
    fn close(&self) -> bool {
        let closed = self.requests.compare_exchange(0, CLOSED, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if closed {
            self.shared.closing.fetch_add(1, Ordering::SeqCst);
            self.closed.notify_one();
        }
        closed
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let shared = &self.connection.shared;
        if self.connection.is_refused {
            shared.refused.fetch_sub(1, Ordering::SeqCst);
        } else {
            shared.open().remove(&self.id);
        }
        if self.connection.requests.load(Ordering::SeqCst) >= CLOSED {
            shared.end_closing();
        }
    }
}

/// A request in flight, until the end of its response.
pub(crate) struct InFlight {
    connection: Arc<Connection>,
    /// Whether more requests are in flight than connections may be open: HTTP/2 has many on one connection.
    pub(crate) is_beyond_limit: bool,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let connection = &self.connection;
        connection.shared.requests.fetch_sub(1, Ordering::Relaxed);
        connection.idle_since.store(connection.shared.now(), Ordering::Relaxed);
        connection.requests.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A response body that keeps its request in flight.
pub(crate) struct ResponseBody {
    body: Body,
    _in_flight: InFlight,
}

impl ResponseBody {
    pub(crate) fn new(body: Body, in_flight: InFlight) -> ResponseBody {
        ResponseBody { body, _in_flight: in_flight }
    }
}

impl HttpBody for ResponseBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn is_closed(place: &ConnectionSlot) -> bool {
        place.connection.closed().now_or_never().is_some()
    }

    #[test]
    fn the_longest_idle_connection_makes_room() {
        let connections = Connections::new(3);
        let places: Vec<ConnectionSlot> = (0..3).map(|_| connections.admit(0).unwrap()).collect();
        for (age, place) in [5, 1, 3].into_iter().zip(&places) {
            place.connection.idle_since.store(age, Ordering::Relaxed);
        }
        let busy = places[1].connection.begin_request();
        let new = connections.admit(0).unwrap();
        assert!(!new.connection.is_refused);
        assert_eq!(places.iter().map(is_closed).collect::<Vec<_>>(), [false, false, true]);
        drop(busy);
        assert_eq!(connections.0.open().len(), 3);
        drop((places, new));
        assert_eq!(connections.0.open().len(), 0);
        assert_eq!(connections.0.requests.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn a_request_keeps_open_the_connection_that_was_to_be_closed() {
        let connections = Connections::new(1);
        let place = connections.admit(0).unwrap();
        let _new = connections.admit(0).unwrap();
        assert_eq!(connections.0.open().len(), 1);
        let request = place.connection.begin_request();
        assert!(!is_closed(&place) && !place.connection.close());
        assert_eq!(connections.0.open().len(), 2);
        drop(request);
        assert!(place.connection.close() && is_closed(&place), "after the request it can be closed again");
    }

    #[test]
    fn silent_connections_are_closed_first() {
        let connections = Connections::new(2);
        let places: Vec<ConnectionSlot> = (0..2).map(|_| connections.admit(0).unwrap()).collect();
        drop(places[0].connection.begin_request());
        places[0].connection.idle_since.store(0, Ordering::Relaxed);
        places[1].connection.idle_since.store(5, Ordering::Relaxed);
        let _new = connections.admit(0).unwrap();
        assert_eq!(places.iter().map(is_closed).collect::<Vec<_>>(), [false, true]);
    }

    #[tokio::test]
    async fn the_accept_loop_waits_for_descriptors_of_closed_connections() {
        let connections = Connections::new(1);
        let place = connections.admit(0).unwrap();
        let _new = connections.admit(0).unwrap();
        assert!(connections.wait_for_closing().now_or_never().is_none(), "it still has its descriptor");
        drop(place);
        assert!(connections.wait_for_closing().now_or_never().is_some());
    }

    #[test]
    fn a_lack_of_descriptors_closes_few_connections() {
        let connections = Connections::new(4096);
        let open: Vec<_> = (0..20).map(|_| connections.admit(0).unwrap()).collect();
        let _new = connections.admit(u64::MAX).unwrap();
        assert_eq!(open.iter().filter(|slot| is_closed(slot)).count(), MIN_CLOSED_FOR_DESCRIPTORS);
    }

    #[test]
    fn busy_connections_stay() {
        let connections = Connections::new(2);
        let places: Vec<ConnectionSlot> = (0..2).map(|_| connections.admit(0).unwrap()).collect();
        let _busy = places[0].connection.begin_request();
        places[1].connection.set_writing(true);
        let refused: Vec<ConnectionSlot> = (0..MAX_REFUSED).map(|_| connections.admit(0).unwrap()).collect();
        assert!(refused.iter().all(|place| place.connection.is_refused));
        assert!(connections.admit(0).is_none());
        drop(refused);
        places[1].connection.set_writing(false);
        assert!(!connections.admit(0).unwrap().connection.is_refused);
    }

    #[test]
    fn descriptors_are_left_for_other_work() {
        let connections = Connections::new(1000);
        assert!(!connections.admit(0).unwrap().connection.is_refused);
        assert!(connections.admit(u64::MAX).unwrap().connection.is_refused);
    }
}

//! The places of a loaded model: how many requests it serves at once, and in which order the others wait.
//! Waiting clients take turns, so one client with many requests delays another by at most one request per
//! place.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::oneshot;

/// Grants permits to the clients in turn, and to the requests of one client in order of arrival.
pub(super) struct Places {
    state: Mutex<State>,
}

struct State {
    free: usize,
    /// Whether a request may wait for a place. A model that is being drained serves only the requests that
    /// have a place.
    is_open: bool,
    is_closed: bool,
    /// The next client in turn is at the front.
    clients: VecDeque<Client>,
}

struct Client {
    name: Arc<str>,
    waiting: VecDeque<Waiter>,
}

struct Waiter {
    arrival: u64,
    permit: oneshot::Sender<Permit>,
}

/// A place in use; dropping it gives it to the next request.
pub(super) struct Permit(Option<Arc<Places>>);

impl Places {
    pub(super) fn new(count: usize) -> Arc<Places> {
        let state = State { free: count.max(1), is_open: true, is_closed: false, clients: VecDeque::new() };
        Arc::new(Places { state: Mutex::new(state) })
    }

    /// Waits for a place. `None` when the model is being drained or has been unloaded.
    pub(super) async fn take(self: &Arc<Places>, client: &Arc<str>, arrival: u64) -> Option<Permit> {
        let receiver = {
            let mut state = self.state();
            if state.is_closed {
                return None;
            }
            if state.free > 0 {
                state.free -= 1;
                return Some(Permit(Some(self.clone())));
            }
            if !state.is_open {
                return None;
            }
            let (permit, receiver) = oneshot::channel();
            state.enqueue(client, Waiter { arrival, permit });
            receiver
        };
        receiver.await.ok()
    }

    /// Lets requests wait for a place, or rejects the waiting ones.
    pub(super) fn set_open(&self, is_open: bool) {
        let mut state = self.state();
        state.is_open = is_open;
        if !is_open {
            state.clients.clear();
        }
    }

    /// Grants no more places.
    pub(super) fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        state.clients.clear();
    }

    fn give_back(self: &Arc<Places>) {
        loop {
            let waiter = {
                let mut state = self.state();
                match state.next() {
                    Some(waiter) => waiter,
                    None => {
                        state.free += 1;
                        return;
                    }
                }
            };
            match waiter.permit.send(Permit(Some(self.clone()))) {
                Ok(()) => return,
                // That request was cancelled. Its permit must not come back here a second time.
                Err(mut unused) => unused.0 = None,
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl State {
    fn enqueue(&mut self, client: &Arc<str>, waiter: Waiter) {
        match self.clients.iter_mut().find(|known| known.name == *client) {
            Some(known) => {
                // A request that a draining model rejected keeps its rank.
                let at = known.waiting.partition_point(|other| other.arrival <= waiter.arrival);
                known.waiting.insert(at, waiter);
            }
            None => self.clients.push_back(Client { name: client.clone(), waiting: [waiter].into() }),
        }
    }

    fn next(&mut self) -> Option<Waiter> {
        while let Some(mut client) = self.clients.pop_front() {
            if let Some(waiter) = client.waiting.pop_front() {
                if !client.waiting.is_empty() {
                    self.clients.push_back(client);
                }
                return Some(waiter);
            }
        }
        None
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(places) = self.0.take() {
            places.give_back();
        }
    }
}

//! The places of a loaded model: how many requests it serves at once, and in which order the others wait.
//! The most urgent requests come first. Among equally urgent ones, waiting clients take turns, so one client with many
//! requests delays another by at most one request per place.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use lode_client::Urgency;
use tokio::sync::oneshot;

/// Grants permits to the most urgent requests first, among those to the clients in turn, and to the requests of one
/// client in order of arrival.
pub(super) struct Places {
    state: Mutex<State>,
}

struct State {
    free: usize,
    /// Whether a request may wait for a place. A model that is being drained serves only the requests that
    /// have a place.
    is_open: bool,
    is_closed: bool,
    /// For each urgency the clients with such requests; the next one in turn is at the front.
    clients: BTreeMap<Urgency, VecDeque<Client>>,
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
        let state = State { free: count.max(1), is_open: true, is_closed: false, clients: BTreeMap::new() };
        Arc::new(Places { state: Mutex::new(state) })
    }

    /// Waits for a place. `None` when the model is being drained or has been unloaded.
    pub(super) async fn take(
        self: &Arc<Places>,
        client: &Arc<str>,
        urgency: Urgency,
        arrival: u64,
    ) -> Option<Permit> {
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
            state.enqueue(client, urgency, Waiter { arrival, permit });
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
    fn enqueue(&mut self, client: &Arc<str>, urgency: Urgency, waiter: Waiter) {
        let clients = self.clients.entry(urgency).or_default();
        // Requests that were cancelled must not add up while all places are in use.
        clients.retain_mut(|client| {
            client.waiting.retain(|waiter| !waiter.permit.is_closed());
            !client.waiting.is_empty()
        });
        match clients.iter_mut().find(|known| known.name == *client) {
            Some(known) => {
                // A request that a draining model rejected keeps its rank.
                let at = known.waiting.partition_point(|other| other.arrival <= waiter.arrival);
                known.waiting.insert(at, waiter);
            }
            None => clients.push_back(Client { name: client.clone(), waiting: [waiter].into() }),
        }
    }

    fn next(&mut self) -> Option<Waiter> {
        while let Some(mut most_urgent) = self.clients.first_entry() {
            let clients = most_urgent.get_mut();
            if let Some(mut client) = clients.pop_front() {
                let waiter = client.waiting.pop_front();
                if !client.waiting.is_empty() {
                    clients.push_back(client);
                }
                if waiter.is_some() {
                    return waiter;
                }
            } else {
                most_urgent.remove();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn cancelled_requests_do_not_add_up() {
        let places = Places::new(1);
        let _permit = places.take(&"a".into(), Urgency::default(), 0).await;
        for arrival in 1..100 {
            let client = Arc::from(format!("client {}", arrival % 3));
            let waiting = places.take(&client, Urgency::default(), arrival);
            assert!(tokio::time::timeout(std::time::Duration::ZERO, waiting).await.is_err());
        }
        let state = places.state();
        let waiting = state.clients.values().flatten().map(|client| client.waiting.len());
        assert_eq!(waiting.sum::<usize>(), 1, "only the last one is still listed");
    }
}

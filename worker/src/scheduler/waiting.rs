//! The requests that wait for a model or for a place in it. The queue has a limit. When it is full, a request
//! displaces the newest of the least urgent ones. If it is not more urgent itself, a client with few waiting requests
//! displaces the newest request of the client with the most, so that no client can keep others out.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lode_client::Urgency;
use tokio::sync::oneshot;

/// The waiting requests of all clients.
pub(super) struct WaitingRequests {
    limit: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    count: usize,
    next_id: u64,
    /// The requests of each client, the newest last. A client without requests has no entry.
    clients: HashMap<Arc<str>, Vec<Entry>>,
}

struct Entry {
    id: u64,
    urgency: Urgency,
    displaced: oneshot::Sender<()>,
}

/// A waiting request; dropping it leaves the queue.
pub(super) struct Waiting {
    requests: Arc<WaitingRequests>,
    client: Arc<str>,
    id: u64,
    displaced: oneshot::Receiver<()>,
}

impl WaitingRequests {
    pub(super) fn new(limit: usize) -> Arc<WaitingRequests> {
        Arc::new(WaitingRequests { limit: limit.max(1), state: Mutex::default() })
    }

    /// Adds a request. `None` if the queue is full, no request is less urgent, and no client has at least two requests
    /// more.
    pub(super) fn enter(self: &Arc<WaitingRequests>, client: &Arc<str>, urgency: Urgency) -> Option<Waiting> {
        let mut state = self.state();
        if state.count >= self.limit {
            let displaced = match state.least_urgent(urgency) {
                Some(less_urgent) => less_urgent,
                None => state.newest_of_most(client)?,
            };
            state.displace(displaced);
        }
        let id = state.next_id;
        state.next_id += 1;
        state.count += 1;
        let (sender, displaced) = oneshot::channel();
        state.clients.entry(client.clone()).or_default().push(Entry { id, urgency, displaced: sender });
        Some(Waiting { requests: self.clone(), client: client.clone(), id, displaced })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The newest of the least urgent requests, if they are less urgent than `urgency`.
    fn least_urgent(&self, urgency: Urgency) -> Option<(Arc<str>, u64)> {
        let all = self
            .clients
            .iter()
            .flat_map(|(client, entries)| entries.iter().map(move |entry| (client, entry)));
        let (client, entry) = all.max_by_key(|(_, entry)| (entry.urgency, entry.id))?;
        (entry.urgency > urgency).then(|| (client.clone(), entry.id))
    }

    /// The newest request of the client with the most, if `client` then still has fewer.
    fn newest_of_most(&self, client: &Arc<str>) -> Option<(Arc<str>, u64)> {
        let own = self.clients.get(client).map_or(0, Vec::len);
        let (client, entries) = self.clients.iter().max_by_key(|(_, entries)| entries.len())?;
        let newest = entries.last().filter(|_| entries.len() > own + 1)?;
        Some((client.clone(), newest.id))
    }

    fn displace(&mut self, (client, id): (Arc<str>, u64)) {
        if let Some(entry) = self.remove(&client, id) {
            // The request may have ended at this moment.
            let _ = entry.displaced.send(());
        }
    }

    /// Removes a request, if it is still there.
    fn remove(&mut self, client: &Arc<str>, id: u64) -> Option<Entry> {
        let entries = self.clients.get_mut(client)?;
        let at = entries.iter().position(|entry| entry.id == id)?;
        let entry = entries.remove(at);
        if entries.is_empty() {
            self.clients.remove(client);
        }
        self.count -= 1;
        Some(entry)
    }
}

impl Waiting {
    /// Resolves if another client's request displaces this one.
    pub(super) async fn displaced(&mut self) {
        if (&mut self.displaced).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.requests.state().remove(&self.client, self.id);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn a_client_with_few_requests_displaces_one_of_the_client_with_the_most() {
        let requests = WaitingRequests::new(4);
        let enter = |client: &str| requests.enter(&client.into(), Urgency::default());
        let mut many: Vec<Waiting> = (0..4).map(|_| enter("many").unwrap()).collect();
        assert!(enter("many").is_none(), "its own queue is full");
        let _one = enter("one").unwrap();
        let is_displaced = |waiting: &mut Waiting| waiting.displaced().now_or_never().is_some();
        assert_eq!(many.iter_mut().map(is_displaced).collect::<Vec<_>>(), [false, false, false, true]);
        // The shares are equal.
        let _two = enter("one").unwrap();
        assert!(enter("one").is_none() && enter("many").is_none());
        // Another client needs a client with two more than its own.
        let _other = enter("other").unwrap();
        assert_eq!(requests.state().count, 4);
        drop(many);
        let _again = enter("one").unwrap();
    }

    #[test]
    fn clients_without_requests_are_forgotten() {
        let requests = WaitingRequests::new(2);
        let first = requests.enter(&"a".into(), Urgency::LEAST).unwrap();
        drop((first, requests.enter(&"b".into(), Urgency::default())));
        let state = requests.state();
        assert_eq!((state.count, state.clients.len()), (0, 0));
    }
}

//! One at a time for a key within this process: writers of an upload, commits and deletions of a digest.
//! Across processes the index's generations and row locks decide; the folder store has one process only.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedMutexGuard, watch};

pub(crate) struct Locks<K: Hash + Eq + Clone>(Arc<Mutex<HashMap<K, Arc<Slot>>>>);

struct Slot {
    turn: Arc<tokio::sync::Mutex<()>>,
    /// Counts those who came for this key.
    arrivals: watch::Sender<u64>,
}

/// The turn of one holder; dropping it lets the next one in.
pub(crate) struct Held<K: Hash + Eq + Clone> {
    _turn: OwnedMutexGuard<()>,
    arrivals: watch::Receiver<u64>,
    ticket: u64,
    _entry: Entry<K>,
}

/// Keeps the map's entry for as long as someone holds or waits.
struct Entry<K: Hash + Eq + Clone> {
    locks: Arc<Mutex<HashMap<K, Arc<Slot>>>>,
    key: K,
    slot: Arc<Slot>,
}

impl<K: Hash + Eq + Clone> Default for Locks<K> {
    fn default() -> Self {
        Locks(Arc::default())
    }
}

impl<K: Hash + Eq + Clone> Locks<K> {
    /// Waits for the key. Whoever holds it learns through `superseded` that someone came.
    pub(crate) async fn lock(&self, key: K) -> Held<K> {
        let entry = {
            let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let slot = slots
                .entry(key.clone())
                .or_insert_with(|| Arc::new(Slot { turn: Arc::default(), arrivals: watch::Sender::new(0) }));
            Entry { locks: self.0.clone(), key, slot: slot.clone() }
        };
        let mut ticket = 0;
        entry.slot.arrivals.send_modify(|arrivals| {
            *arrivals += 1;
            ticket = *arrivals;
        });
        let arrivals = entry.slot.arrivals.subscribe();
        let turn = entry.slot.turn.clone().lock_owned().await;
        Held { _turn: turn, arrivals, ticket, _entry: entry }
    }
}

impl<K: Hash + Eq + Clone> Held<K> {
    /// Resolves when someone else wants the key.
    pub(crate) async fn superseded(&mut self) {
        let ticket = self.ticket;
        if self.arrivals.wait_for(|arrivals| *arrivals > ticket).await.is_err() {
            // The sender lives in our own entry, so it cannot be gone; and without it nobody can come.
            std::future::pending::<()>().await;
        }
    }
}

impl<K: Hash + Eq + Clone> Drop for Entry<K> {
    fn drop(&mut self) {
        let mut slots = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        // Two: the map's and ours.
        if Arc::strong_count(&self.slot) == 2 {
            slots.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn one_at_a_time_and_the_holder_learns() {
        let locks = Locks::default();
        let mut first = locks.lock("a").await;
        let other = locks.lock("b").await;
        assert!(first.superseded().now_or_never().is_none());

        let mut waiting = Box::pin(locks.lock("a"));
        assert!(futures::poll!(&mut waiting).is_pending());
        first.superseded().await;
        drop(first);
        let mut second = waiting.await;
        assert!(second.superseded().now_or_never().is_none());

        // One that gives up waiting leaves nothing behind.
        let mut given_up = Box::pin(locks.lock("a"));
        assert!(futures::poll!(&mut given_up).is_pending());
        drop((given_up, second, other));
        assert!(locks.0.lock().expect("lock").is_empty());
    }
}

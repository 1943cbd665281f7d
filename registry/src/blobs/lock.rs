//! Exclusive locks by key within this process: for writers of an upload, and for commits and deletions of a
//! digest. Across processes the database's generations and row locks apply; a folder store has only one
//! process.

use std::any::Any;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedMutexGuard, watch};

type Slots<K> = Arc<Mutex<HashMap<K, Slot>>>;

pub(crate) struct Locks<K: Hash + Eq + Clone>(Slots<K>);

struct Slot {
    turn: Arc<tokio::sync::Mutex<()>>,
    /// Counts the callers that requested this key.
    contenders: watch::Sender<u64>,
    /// How many of them hold it or wait.
    holders_and_waiters: usize,
}

/// An acquired lock. The next caller gets it when this and every [`KeyGuard`] of it are dropped.
pub(crate) struct KeyLock<K: Hash + Eq + Clone> {
    lock: Arc<KeyLockInner<K>>,
    arrivals: watch::Receiver<u64>,
    ticket: u64,
}

struct KeyLockInner<K: Hash + Eq + Clone> {
    _turn: OwnedMutexGuard<()>,
    _entry: Entry<K>,
}

/// Keeps a key locked while file work runs under its lock. That work cannot be cancelled. Without its own
/// guard it would continue after the future that started it, and with it the lock, was dropped.
#[derive(Clone)]
pub(crate) struct KeyGuard(#[allow(dead_code, reason = "held, not read")] Arc<dyn Any + Send + Sync>);

/// Keeps the map's slot while any caller holds the lock or waits.
struct Entry<K: Hash + Eq + Clone> {
    slots: Slots<K>,
    key: K,
}

impl<K: Hash + Eq + Clone> Default for Locks<K> {
    fn default() -> Self {
        Locks(Arc::default())
    }
}

impl<K: Hash + Eq + Clone> Locks<K> {
    /// Waits for the key. The current holder is notified through `superseded`.
    pub(crate) async fn lock(&self, key: K) -> KeyLock<K> {
        let (turn, arrivals, ticket) = {
            let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let slot = slots.entry(key.clone()).or_insert_with(|| Slot {
                turn: Arc::default(),
                contenders: watch::Sender::new(0),
                holders_and_waiters: 0,
            });
            slot.holders_and_waiters += 1;
            slot.contenders.send_modify(|arrivals| *arrivals += 1);
            let arrivals = slot.contenders.subscribe();
            let ticket = *arrivals.borrow();
            (slot.turn.clone(), arrivals, ticket)
        };
        let entry = Entry { slots: self.0.clone(), key };
        let lock = Arc::new(KeyLockInner { _turn: turn.lock_owned().await, _entry: entry });
        KeyLock { lock, arrivals, ticket }
    }
}

impl<K: Hash + Eq + Clone> KeyLock<K> {
    /// Resolves when another caller wants the key.
    pub(crate) async fn wait_for_contender(&mut self) {
        let ticket = self.ticket;
        if self.arrivals.wait_for(|arrivals| *arrivals > ticket).await.is_err() {
            // The sender exists as long as our own entry. Without it no other caller can arrive.
            std::future::pending::<()>().await;
        }
    }
}

impl<K: Hash + Eq + Clone + Send + Sync + 'static> KeyLock<K> {
    pub(crate) fn guard(&self) -> KeyGuard {
        KeyGuard(self.lock.clone())
    }
}

impl<K: Hash + Eq + Clone> Drop for Entry<K> {
    fn drop(&mut self) {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(slot) = slots.get_mut(&self.key) else { return };
        slot.holders_and_waiters -= 1;
        if slot.holders_and_waiters == 0 {
            slots.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn one_holder_at_a_time_is_notified_of_contenders() {
        let locks = Locks::default();
        let mut first = locks.lock("a").await;
        let other = locks.lock("b").await;
        assert!(first.wait_for_contender().now_or_never().is_none());

        let mut waiting = Box::pin(locks.lock("a"));
        assert!(futures::poll!(&mut waiting).is_pending());
        first.wait_for_contender().await;
        drop(first);
        let mut second = waiting.await;
        assert!(second.wait_for_contender().now_or_never().is_none());

        // A cancelled waiter leaves no slot behind.
        let mut given_up = Box::pin(locks.lock("a"));
        assert!(futures::poll!(&mut given_up).is_pending());
        drop((given_up, second, other));
        assert!(locks.0.lock().expect("lock").is_empty());
    }

    #[tokio::test]
    async fn a_guard_keeps_the_key_locked_after_its_holder_is_gone() {
        let locks = Locks::default();
        let held = locks.lock("a").await;
        let guard = held.guard();
        drop(held);
        let mut waiting = Box::pin(locks.lock("a"));
        assert!(futures::poll!(&mut waiting).is_pending());
        drop(guard);
        drop(waiting.await);
        assert!(locks.0.lock().expect("lock").is_empty());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn short_locks_leave_no_slots() {
        let locks = Arc::new(Locks::default());
        let turns = (0..8).map(|_| {
            let locks = locks.clone();
            tokio::spawn(async move {
                for key in 0..500 {
                    drop(locks.lock(key).await);
                }
            })
        });
        futures::future::try_join_all(turns).await.expect("no panic");
        assert!(locks.0.lock().expect("lock").is_empty());
    }
}

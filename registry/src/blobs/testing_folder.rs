//! Blocks file operations of the folder store on demand, for tests of concurrent operations.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Awaited,
    Reached,
    Released,
}

struct Hold {
    path: PathBuf,
    state: Mutex<State>,
    changed: Condvar,
}

/// A hold on one operation; dropping it releases the operation.
pub(crate) struct HeldFileWork(Arc<Hold>);

static HOLDS: Mutex<Vec<Arc<Hold>>> = Mutex::new(Vec::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Holds the next operation that adds or removes `path`, before it does anything. Several holds of one path
/// are used in order.
pub(crate) fn hold(path: &Path) -> HeldFileWork {
    let hold =
        Arc::new(Hold { path: path.to_owned(), state: Mutex::new(State::Awaited), changed: Condvar::new() });
    lock(&HOLDS).push(hold.clone());
    HeldFileWork(hold)
}

/// Called by each operation for each path.
pub(super) fn pass(path: &Path) {
    let hold = {
        let mut holds = lock(&HOLDS);
        let Some(at) = holds.iter().position(|hold| hold.path == path) else { return };
        holds.remove(at)
    };
    let mut state = lock(&hold.state);
    if *state == State::Awaited {
        *state = State::Reached;
    }
    let _released = hold.changed.wait_while(state, |state| *state != State::Released);
}

impl HeldFileWork {
    /// Returns once the operation waits.
    pub(crate) async fn reached(&self) {
        while *lock(&self.0.state) != State::Reached {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    pub(crate) fn release(self) {}
}

impl Drop for HeldFileWork {
    fn drop(&mut self) {
        *lock(&self.0.state) = State::Released;
        self.0.changed.notify_all();
        lock(&HOLDS).retain(|hold| !Arc::ptr_eq(hold, &self.0));
    }
}

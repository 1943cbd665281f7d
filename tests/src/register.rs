//! What a tag that everybody moves may answer: every write is kept with its beginning and its end, and a read must be explained
//! by a write that no other one has surely replaced. Times are ticks of one counter, so that nothing is at the same time.

use std::sync::atomic::{AtomicU64, Ordering};

static CLOCK: AtomicU64 = AtomicU64::new(1);

/// The next moment.
#[must_use]
pub fn tick() -> u64 {
    CLOCK.fetch_add(1, Ordering::SeqCst)
}

/// How many writes are remembered: far more than can be under way at once.
const MEMORY: usize = 4096;

/// One value that many write.
#[derive(Default)]
pub struct Register {
    writes: Vec<Write>,
    forgotten: bool,
}

struct Write {
    value: Option<String>,
    begun: u64,
    ended: Option<u64>,
    /// It empties the register only if this is what it holds: the deletion of a manifest, which takes its tags along.
    only_if: Option<String>,
}

impl Register {
    /// A write of this value begins.
    pub fn put_begins(&mut self, value: &str) -> u64 {
        self.begins(Write { value: Some(value.to_owned()), begun: tick(), ended: None, only_if: None })
    }

    /// What empties the register, if it holds this value, begins.
    pub fn removal_begins(&mut self, of: &str) -> u64 {
        self.begins(Write { value: None, begun: tick(), ended: None, only_if: Some(of.to_owned()) })
    }

    fn begins(&mut self, write: Write) -> u64 {
        if self.writes.len() == MEMORY {
            self.writes.drain(..MEMORY / 2);
            self.forgotten = true;
        }
        let begun = write.begun;
        self.writes.push(write);
        begun
    }

    /// The write that began then has been acknowledged.
    pub fn ends(&mut self, begun: u64) {
        if let Some(write) = self.writes.iter_mut().find(|write| write.begun == begun) {
            write.ended = Some(tick());
        }
    }

    /// May a read from `begun` to `ended` have found this?
    #[must_use]
    pub fn may_hold(&self, value: Option<&str>, begun: u64, ended: u64) -> bool {
        let Some(value) = value else { return self.may_be_empty(begun, ended) };
        self.writes
            .iter()
            .filter(|write| write.value.as_deref() == Some(value) && write.begun < ended)
            .any(|write| !self.replaced(write, begun))
    }

    fn may_be_empty(&self, begun: u64, ended: u64) -> bool {
        let puts = || self.writes.iter().filter(|write| write.value.is_some());
        // 1. Before the first write that has surely ended.
        if !self.forgotten && !puts().any(|put| put.ended.is_some_and(|end| end < begun)) {
            return true;
        }
        // 2. After a removal of a value that it may have held, with no put surely after that.
        self.writes.iter().filter(|write| write.value.is_none() && write.begun < ended).any(|removal| {
            let after = |put: &Write| put.begun > removal.ended.unwrap_or(u64::MAX);
            !puts().any(|put| after(put) && put.ended.is_some_and(|end| end < begun))
                && puts().any(|put| put.value == removal.only_if && put.begun < ended)
        })
    }

    /// Has something taken the place of this write before `moment`, whatever the order of what overlaps?
    fn replaced(&self, write: &Write, moment: u64) -> bool {
        let Some(ended) = write.ended else { return false };
        self.writes.iter().any(|other| {
            other.begun > ended
                && other.ended.is_some_and(|end| end < moment)
                && (other.value.is_some() || other.only_if == write.value)
        })
    }
}

//! The values that a tag with concurrent writers may have. Every write is recorded with its begin and end. A
//! read is valid if it returns a write that no later write has certainly replaced. Times are ticks of one
//! counter, so all times differ.

use std::sync::atomic::{AtomicU64, Ordering};

static CLOCK: AtomicU64 = AtomicU64::new(1);

/// The next point in time.
#[must_use]
pub fn tick() -> u64 {
    CLOCK.fetch_add(1, Ordering::SeqCst)
}

/// How many writes are recorded: far more than can be in progress at once.
const MAX_WRITES: usize = 4096;

/// One value with concurrent writers.
#[derive(Default)]
pub struct Register {
    writes: Vec<Write>,
    has_dropped_writes: bool,
}

struct Write {
    value: Option<String>,
    begun: u64,
    ended: Option<u64>,
    /// The write empties the register only if it holds this value: deleting a manifest also deletes its tags.
    only_if: Option<String>,
}

impl Register {
    /// Records that a write of this value begins.
    pub fn begin_put(&mut self, value: &str) -> u64 {
        self.record_write(Write { value: Some(value.to_owned()), begun: tick(), ended: None, only_if: None })
    }

    /// Records that a removal begins, which empties the register if it holds this value.
    pub fn removal_begins(&mut self, of: &str) -> u64 {
        self.record_write(Write { value: None, begun: tick(), ended: None, only_if: Some(of.to_owned()) })
    }

    fn record_write(&mut self, write: Write) -> u64 {
        if self.writes.len() == MAX_WRITES {
            self.writes.drain(..MAX_WRITES / 2);
            self.has_dropped_writes = true;
        }
        let begun = write.begun;
        self.writes.push(write);
        begun
    }

    /// Records that the write which began at `begun` was acknowledged.
    pub fn end_write(&mut self, begun: u64) {
        if let Some(write) = self.writes.iter_mut().find(|write| write.begun == begun) {
            write.ended = Some(tick());
        }
    }

    /// Whether a read from `begun` to `ended` may return this value.
    #[must_use]
    pub fn may_hold(&self, value: Option<&str>, begun: u64, ended: u64) -> bool {
        let Some(value) = value else { return self.may_be_empty(begun, ended) };
        self.writes
            .iter()
            .filter(|write| write.value.as_deref() == Some(value) && write.begun < ended)
            .any(|write| !self.is_replaced(write, begun))
    }

    fn may_be_empty(&self, begun: u64, ended: u64) -> bool {
        let puts = || self.writes.iter().filter(|write| write.value.is_some());
        // 1. No write has certainly ended before the read.
        if !self.has_dropped_writes && !puts().any(|put| put.ended.is_some_and(|end| end < begun)) {
            return true;
        }
        // 2. A removal of a value that the register may have held, and no put certainly between removal and
        //    read.
        self.writes.iter().filter(|write| write.value.is_none() && write.begun < ended).any(|removal| {
            let after = |put: &Write| put.begun > removal.ended.unwrap_or(u64::MAX);
            !puts().any(|put| after(put) && put.ended.is_some_and(|end| end < begun))
                && puts().any(|put| put.value == removal.only_if && put.begun < ended)
        })
    }

    /// Whether another write has replaced this one before `moment` in every possible order of overlapping
    /// writes.
    fn is_replaced(&self, write: &Write, moment: u64) -> bool {
        let Some(ended) = write.ended else { return false };
        self.writes.iter().any(|other| {
            other.begun > ended
                && other.ended.is_some_and(|end| end < moment)
                && (other.value.is_some() || other.only_if == write.value)
        })
    }
}

//! A thread pool that runs one job at a time. Each thread has a range of the chunks and works on them in order, so
//! that it reads memory in order. One that is done takes chunks from the ends of the others' ranges, so that a delayed
//! thread costs one chunk. Waiting threads spin for a short time, then sleep. The CPU kernels own one pool.
#![allow(unsafe_code)] // Lends a borrowed closure to threads that outlive the call.

use std::cell::UnsafeCell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{JoinHandle, Thread};

use super::error::DeviceError;

/// The working space of one thread.
#[derive(Default)]
pub(super) struct Scratch {
    /// Decoded rows.
    pub(super) rows: Vec<f32>,
    /// General space for the job.
    pub(super) numbers: Vec<f32>,
    pub(super) more: Vec<f32>,
    pub(super) sums: Vec<f32>,
}

type Work<'a> = dyn Fn(usize, &mut Scratch) + Sync + 'a;

/// Number of spins before a thread sleeps: some tens of microseconds, the time between two jobs of a step.
const SPINS: u32 = 600;
/// Set in `state` while threads may join the job. The bits below count the joined threads; the bits above are
/// the job number.
const OPEN: u64 = 1 << 31;
const JOINED: u64 = OPEN - 1;

struct Job {
    work: *const Work<'static>,
    caller: Thread,
}

/// A range of chunks: the first in the low half, the end in the high half. It has a cache line of its own, and of the
/// pair that the processor may read together.
#[derive(Default)]
#[repr(align(128))]
struct Remaining(AtomicU64);

impl Remaining {
    fn set(&self, chunks: Range<usize>) {
        let bound = |chunk: usize| u64::from(u32::try_from(chunk).expect("fewer than 2^32 chunks"));
        self.0.store(bound(chunks.end) << 32 | bound(chunks.start), Ordering::Relaxed);
    }

    fn take_first(&self) -> Option<usize> {
        self.take(|range| range + 1).map(|range| range as u32 as usize)
    }

    fn take_last(&self) -> Option<usize> {
        self.take(|range| range - (1 << 32)).map(|range| (range >> 32) as usize - 1)
    }

    /// Changes the range unless it is empty; returns the range before.
    fn take(&self, change: impl Fn(u64) -> u64) -> Option<u64> {
        let change = |range: u64| ((range as u32) < (range >> 32) as u32).then(|| change(range));
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change).ok()
    }
}

struct State {
    state: AtomicU64,
    /// The chunks of each thread that have not begun.
    remaining: Vec<Remaining>,
    /// Written only while the job is closed and no thread has joined.
    job: UnsafeCell<Option<Job>>,
    panicked: AtomicBool,
    stop: AtomicBool,
    asleep: Vec<AtomicBool>,
}

// SAFETY: the single caller writes `job` before it opens the job. Threads read it after they joined the open
// job, and the caller waits for them before it writes again. The work itself is Sync.
unsafe impl Sync for State {}
// SAFETY: as above.
unsafe impl Send for State {}

pub(super) struct Pool {
    state: Arc<State>,
    threads: Vec<JoinHandle<()>>,
    scratch: Scratch,
}

impl Pool {
    /// Creates a pool of `threads` threads, including the caller.
    pub(super) fn new(threads: usize) -> Result<Self, DeviceError> {
        let others = threads.saturating_sub(1);
        let state = Arc::new(State {
            state: AtomicU64::new(0),
            remaining: (0..threads.max(1)).map(|_| Remaining::default()).collect(),
            job: UnsafeCell::new(None),
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            asleep: (0..others).map(|_| AtomicBool::new(false)).collect(),
        });
        let mut pool = Self { state, threads: Vec::new(), scratch: Scratch::default() };
        for index in 0..others {
            let state = Arc::clone(&pool.state);
            let thread = std::thread::Builder::new()
                .name(format!("compute-{}", index + 1))
                .spawn(move || state.run_thread(index))
                .map_err(|e| DeviceError::Threads { reason: e.to_string() })?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    pub(super) fn threads(&self) -> usize {
        self.threads.len() + 1
    }

    /// Calls `work` for each chunk in `0..chunks`, on all threads, and returns when all are done.
    ///
    /// # Panics
    /// If `work` panics.
    pub(super) fn run(&mut self, chunks: usize, work: &Work<'_>) {
        if chunks <= 1 || self.threads.is_empty() {
            (0..chunks).for_each(|chunk| work(chunk, &mut self.scratch));
            return;
        }
        // SAFETY: only the lifetime changes. `CloseOnDrop` below delays the return, also after a panic, until no
        // thread uses the closure.
        let work: &Work<'static> = unsafe { std::mem::transmute::<&Work<'_>, &Work<'static>>(work) };
        let state = &*self.state;
        // SAFETY: the previous job is closed and no thread is in it, so no thread reads this.
        unsafe { *state.job.get() = Some(Job { work, caller: std::thread::current() }) };
        let threads = state.remaining.len();
        for (thread, remaining) in state.remaining.iter().enumerate() {
            remaining.set(chunks * thread / threads..chunks * (thread + 1) / threads);
        }
        let number = (state.state.load(Ordering::Relaxed) >> 32).wrapping_add(1) << 32;
        state.state.store(number | OPEN, Ordering::SeqCst);
        let closing = CloseOnDrop(state);
        for (asleep, thread) in state.asleep.iter().zip(&self.threads) {
            if asleep.load(Ordering::SeqCst) {
                thread.thread().unpark();
            }
        }
        state.run_chunks(work, 0, &mut self.scratch);
        drop(closing);
        if state.panicked.swap(false, Ordering::Relaxed) {
            resume_unwind(Box::new("a compute thread panicked"));
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            // The threads catch panics of their work, so there is no error to handle.
            let _ = thread.join();
        }
    }
}

/// Closes the job on drop and waits for the threads that joined it.
struct CloseOnDrop<'a>(&'a State);

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        let mut now = self.0.state.fetch_and(!OPEN, Ordering::AcqRel);
        let mut spins = 0;
        while now & JOINED != 0 {
            if spins < SPINS {
                spins += 1;
                std::hint::spin_loop();
            } else {
                // The last thread unparks this one. An earlier unpark makes this return at once.
                std::thread::park();
            }
            now = self.0.state.load(Ordering::Acquire);
        }
    }
}

impl State {
    /// Calls `work` for the chunks of a thread in order, and then for the last chunks of the others.
    fn run_chunks(&self, work: &Work<'_>, thread: usize, scratch: &mut Scratch) {
        while let Some(chunk) = self.remaining[thread].take_first() {
            work(chunk, scratch);
        }
        for other in (1..self.remaining.len()).map(|n| (thread + n) % self.remaining.len()) {
            while let Some(chunk) = self.remaining[other].take_last() {
                work(chunk, scratch);
            }
        }
    }

    /// The main loop of thread `index`.
    fn run_thread(&self, index: usize) {
        let mut scratch = Scratch::default();
        let mut last = 0;
        let mut spins = 0;
        while !self.stop.load(Ordering::Relaxed) {
            let now = self.state.load(Ordering::SeqCst);
            if now & OPEN != 0 && now >> 32 != last {
                if self.state.compare_exchange(now, now + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                    last = now >> 32;
                    spins = 0;
                    self.work_on_job(index + 1, &mut scratch);
                }
            } else if spins < SPINS {
                spins += 1;
                std::hint::spin_loop();
            } else {
                self.sleep(index, last);
                spins = 0;
            }
        }
    }

    /// Works on the job that this thread has just joined.
    fn work_on_job(&self, thread: usize, scratch: &mut Scratch) {
        // SAFETY: this thread joined while the job was open, so the caller stays in `run`: the job is set and
        // its borrows are alive.
        let (work, caller) = unsafe {
            let job = (*self.job.get()).as_ref().expect("the job is set before it is opened");
            (&*job.work, job.caller.clone())
        };
        if catch_unwind(AssertUnwindSafe(|| self.run_chunks(work, thread, scratch))).is_err() {
            self.panicked.store(true, Ordering::Relaxed);
        }
        let before = self.state.fetch_sub(1, Ordering::AcqRel);
        if before & (OPEN | JOINED) == 1 {
            caller.unpark();
        }
    }

    fn sleep(&self, index: usize, last: u64) {
        self.asleep[index].store(true, Ordering::SeqCst);
        // A caller that opens a job after this load sees the flag.
        let now = self.state.load(Ordering::SeqCst);
        let idle = now & OPEN == 0 || now >> 32 == last;
        if idle && !self.stop.load(Ordering::SeqCst) {
            std::thread::park();
        }
        self.asleep[index].store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn every_chunk_runs_once() {
        for threads in [1, 2, 3, 8] {
            let mut pool = Pool::new(threads).unwrap();
            for round in 0..300 {
                let chunks = round % 23;
                let counts: Vec<AtomicUsize> = (0..chunks).map(|_| AtomicUsize::new(0)).collect();
                pool.run(chunks, &|chunk, _| {
                    counts[chunk].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1), "{threads} {round}");
            }
        }
    }

    #[test]
    fn a_sleeping_pool_wakes() {
        let mut pool = Pool::new(3).unwrap();
        while !pool.state.asleep.iter().all(|a| a.load(Ordering::SeqCst)) {
            std::thread::yield_now();
        }
        let sum = AtomicUsize::new(0);
        pool.run(100, &|chunk, _| {
            sum.fetch_add(chunk, Ordering::Relaxed);
        });
        assert_eq!(sum.into_inner(), 4950);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let mut pool = Pool::new(4).unwrap();
        for _ in 0..20 {
            let result = catch_unwind(AssertUnwindSafe(|| pool.run(64, &|chunk, _| assert_ne!(chunk, 40))));
            assert!(result.is_err());
            pool.run(8, &|_, _| ());
        }
    }
}

//! The batch loop on a GPU's kernels, which an emulator executes: requests that share steps and prefixes, that lose
//! their sequence or their client, or that continue past the end of their context give the results of the CPU.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::batch_tests::{Bench, read};
use super::embedding::Pooling;
use super::generate::Job;
use super::jobs::{EmbedJob, Wanted};
use super::testing::{Gated, StepLog};
use crate::engine::native::cuda_tests::{emulated, llama_files, options};
use crate::engine::{KvType, LoadOptions, native};

const CONTEXT: usize = 64;
const PARALLEL: usize = 3;

/// The longest time that a test waits for a step.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);

struct Device {
    bench: Bench,
    permits: Sender<()>,
    begun: Arc<AtomicUsize>,
    log: StepLog,
}

/// The loop on the CPU and on the emulated GPU; empty if this machine cannot compile the kernels.
fn devices(num_parallel: usize) -> Vec<Device> {
    devices_with(options(KvType::F32), num_parallel)
}

fn devices_with(options: LoadOptions, num_parallel: usize) -> Vec<Device> {
    let Some(emulated) = emulated(&llama_files(), &options) else { return Vec::new() };
    let cpu = native::load(&llama_files(), options).unwrap();
    let start = |engine| {
        let (permits, receiver) = channel();
        let (begun, log) = (Arc::new(AtomicUsize::new(0)), StepLog::default());
        let gated = Gated { engine, permits: receiver, begun: begun.clone(), log: log.clone() };
        let bench = Bench::start(Box::new(gated), log.clone(), num_parallel, 16);
        Device { bench, permits, begun, log }
    };
    [cpu, emulated].into_iter().map(start).collect()
}

impl Device {
    /// Permits `n` steps and waits for their end.
    async fn run(&self, n: usize) {
        let end = self.log.lock().unwrap().len() + n;
        (0..n).for_each(|_| self.permits.send(()).unwrap());
        wait_until(|| self.log.lock().unwrap().len() >= end).await;
    }

    /// Waits until the next step has begun, which waits for its permit then.
    async fn next_step(&self) {
        wait_until(|| self.begun.load(Ordering::SeqCst) > self.log.lock().unwrap().len()).await;
    }

    /// Permits all steps. Returns the loop.
    fn open(self) -> Bench {
        self.bench
    }
}

async fn wait_until(is_done: impl Fn() -> bool) {
    let deadline = Instant::now() + STEP_TIMEOUT;
    while !is_done() {
        assert!(Instant::now() < deadline, "the step did not happen");
        tokio::task::yield_now().await;
    }
}

fn prompt(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|at| 10 + (seed * 37 + at * 101) % 500).collect()
}

fn short(job: &mut Job) {
    (job.limit, job.num_predict, job.eos) = (CONTEXT, 4, Arc::new(BTreeSet::new()));
}

/// The results of both devices are equal, and were computed in the same steps.
fn assert_same<T: PartialEq + std::fmt::Debug>(found: &[T]) {
    if let [cpu, emulated] = found {
        assert_eq!(emulated, cpu);
    }
}

#[tokio::test]
async fn requests_that_share_steps_and_prefixes() {
    let mut found = Vec::new();
    for device in devices(PARALLEL) {
        let system = prompt(1, 20);
        let chat = |seed: u32, len: usize| [system.clone(), prompt(seed, len)].concat();
        let log = device.log.clone();
        let first = device.bench.job(&chat(2, 6), short);
        // The prompt of the first request, and two of its ids.
        device.run(4).await;
        let others = [chat(3, 9), prompt(4, 40), chat(5, 2)].map(|ids| device.bench.job(&ids, short));
        let bench = device.open();
        let mut results = vec![read(first).await.2.unwrap()];
        for other in others {
            results.push(read(other).await.2.unwrap());
        }
        // The conversation continues.
        let next = [results[0].context.as_slice(), &[7, 8]].concat();
        results.push(read(bench.job(&next, short)).await.2.unwrap());
        let cached: Vec<usize> = results.iter().map(|done| done.cached_tokens).collect();
        assert!(cached[1] >= 16 && cached[4] >= 16, "prefixes are computed once: {cached:?}");
        assert!(log.lock().unwrap().iter().any(|step| step.len() > 1), "steps are shared");
        found.push(results.into_iter().map(|done| done.context).collect::<Vec<_>>());
    }
    assert_same(&found);
}

/// A text that loses its sequence to another request is computed again.
#[tokio::test]
async fn a_suspended_text_is_computed_again() {
    let mut found = Vec::new();
    for device in devices(2) {
        let log = device.log.clone();
        let request = device.bench.batch.new_request();
        let texts = [prompt(6, 60), prompt(7, 40)].map(|ids| {
            let (sender, vector) = oneshot::channel();
            let wanted = Wanted::Embedding { pooling: Pooling::Mean, prompt: 0 };
            device.bench.batch.embed(EmbedJob { request, ids, wanted, sender }).unwrap();
            vector
        });
        // Both texts have a sequence now.
        device.run(2).await;
        let generation = device.bench.job(&prompt(8, 5), short);
        let bench = device.open();
        let context = read(generation).await.2.unwrap().context;
        let mut vectors = Vec::new();
        for text in texts {
            vectors.push(text.await.unwrap().unwrap());
        }
        let computed: usize = log.lock().unwrap().iter().flatten().sum();
        // The last id of the generation is not computed.
        assert!(computed > 60 + 40 + 5 + 3, "a text was suspended: {computed} tokens");
        drop(bench);
        found.push((context, vectors));
    }
    let [(cpu_ids, cpu_vectors), (ids, vectors)] = &found[..] else { return };
    assert_eq!(ids, cpu_ids);
    for (found, expect) in vectors.iter().flatten().zip(cpu_vectors.iter().flatten()) {
        assert!((found - expect).abs() <= 1e-4, "{found} {expect}");
    }
}

/// Generations that outgrow the cache are suspended and computed again, with the ids of a cache that has space for all.
#[tokio::test]
async fn sequences_that_outgrow_the_cache() {
    let context = 128;
    let with =
        |cache_tokens| LoadOptions { cache_tokens, context_length: Some(context), ..options(KvType::F32) };
    let mut found = Vec::new();
    let large = devices_with(with(None), 2).into_iter().take(1);
    for device in large.chain(devices_with(with(Some(192)), 2)) {
        let log = device.log.clone();
        let jobs = [11, 12].map(|seed| {
            device.bench.job(&prompt(seed, 10), |job| {
                short(job);
                (job.limit, job.num_predict) = (context, 100);
            })
        });
        let _bench = device.open();
        let mut contexts = Vec::new();
        for job in jobs {
            contexts.push(read(job).await.2.unwrap().context);
        }
        let computed: usize = log.lock().unwrap().iter().flatten().sum();
        assert_eq!(computed > 2 * 109, !found.is_empty(), "{computed} tokens");
        found.push(contexts);
    }
    if let [all, cpu, emulated] = &found[..] {
        assert_eq!([cpu, emulated], [all; 2]);
    }
}

#[tokio::test]
async fn a_context_that_is_full_is_shifted_and_computed_again() {
    let mut found = Vec::new();
    for device in devices(1) {
        let job = device.bench.job(&prompt(9, 20), |job| {
            short(job);
            (job.limit, job.num_predict) = (24, 12);
        });
        let log = device.log.clone();
        let bench = device.open();
        let done = read(job).await.2.unwrap();
        drop(bench);
        let computed: usize = log.lock().unwrap().iter().flatten().sum();
        assert!(computed > done.context.len(), "{computed} tokens");
        found.push(done.context);
    }
    assert_same(&found);
}

/// A step without clients is cancelled on the device; the sequence then continues from its state before that step.
#[tokio::test]
async fn a_cancelled_request_leaves_a_valid_prefix() {
    let mut found = Vec::new();
    for device in devices(1) {
        let ids = prompt(10, 40);
        let cancelled = device.bench.job(&ids, short);
        // One step of 16 tokens, and the begin of the second one: a request that is cancelled between steps has none.
        device.run(1).await;
        device.next_step().await;
        drop(cancelled);
        device.run(1).await;
        assert_eq!(*device.log.lock().unwrap(), [vec![16], vec![]], "the second step is cancelled");
        let bench = device.open();
        let done = read(bench.job(&ids, short)).await.2.unwrap();
        assert_eq!(done.cached_tokens, 16);
        found.push(done.context);
    }
    assert_same(&found);
}

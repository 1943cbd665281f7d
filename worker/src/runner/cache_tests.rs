//! The batch loop with a cache that has less space than its sequences need together: jobs are suspended and computed
//! again, with the same results.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use tokio::sync::oneshot;

use super::batch_tests::{Bench, prompt, read};
use super::embedding::Pooling;
use super::generate::Job;
use super::jobs::{EmbedJob, ScoreJob, Wanted};
use super::testing::{FakeEngine, Gated, POISON, StepLog, hidden, row};
use crate::text::sampler::{LogSoftmax, argmax};

const CONTEXT: usize = 512;
/// Less than a test may take.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A loop whose cache has space for `cache_tokens` tokens. It computes once the sender is dropped, so that jobs can be queued
/// before.
fn bench(num_parallel: usize, cache_tokens: usize) -> (Bench, Sender<()>) {
    let mut engine = FakeEngine::new(CONTEXT, num_parallel);
    engine.cache_tokens = cache_tokens;
    let log = engine.log.clone();
    let (start, permits) = channel();
    let engine = Gated { engine: Box::new(engine), permits, begun: Arc::default(), log: StepLog::default() };
    (Bench::start(Box::new(engine), log, num_parallel, 64), start)
}

/// Generates a number of tokens, whatever they are.
fn endless(num_predict: usize) -> impl Fn(&mut Job) {
    move |job| (job.num_predict, job.eos) = (num_predict, Arc::default())
}

/// The ids of a prompt and of its response.
fn expected(prompt: &[u32], num_predict: usize) -> Vec<u32> {
    let mut ids = prompt.to_vec();
    while ids.len() < prompt.len() + num_predict {
        ids.push(argmax(&row(&ids)).unwrap());
    }
    ids
}

/// Number of tokens that the engine has computed.
fn computed(bench: &Bench) -> usize {
    bench.log.lock().unwrap().iter().flatten().sum()
}

#[tokio::test]
async fn generations_that_outgrow_the_cache_are_suspended() {
    let (bench, start) = bench(4, 600);
    let prompts: Vec<Vec<u32>> = (0..9).map(|seed| prompt(seed, 60 + 20 * seed as usize)).collect();
    let jobs: Vec<_> = prompts.iter().map(|ids| bench.job(ids, endless(200))).collect();
    drop(start);
    let mut least = 0;
    for (ids, job) in prompts.iter().zip(jobs) {
        let done = tokio::time::timeout(TIMEOUT, read(job)).await.unwrap().2.unwrap();
        assert_eq!(done.context, expected(ids, 200));
        assert_eq!((done.prompt_tokens, done.eval_tokens), (ids.len(), 200));
        // The last id is not computed.
        least += done.context.len() - 1;
    }
    assert!(computed(&bench) > least, "a generation was suspended");
    assert!(bench.log.lock().unwrap().iter().any(|step| step.len() > 2), "several share the cache");
}

/// The job that began first always continues.
#[tokio::test]
async fn the_first_job_is_not_suspended() {
    let (bench, start) = bench(2, CONTEXT);
    let first = bench.job(&prompt(1, 100), endless(400));
    let second = bench.job(&prompt(2, 100), endless(300));
    drop(start);
    let first = tokio::time::timeout(TIMEOUT, read(first)).await.unwrap().2.unwrap();
    assert_eq!(first.context, expected(&prompt(1, 100), 400));
    let second = tokio::time::timeout(TIMEOUT, read(second)).await.unwrap().2.unwrap();
    assert_eq!(second.context, expected(&prompt(2, 100), 300));
    let least = 499 + 399;
    assert!((least + 1..least + 300).contains(&computed(&bench)), "the second was suspended once");
}

#[tokio::test]
async fn idle_sequences_make_room() {
    let (bench, start) = bench(4, CONTEXT);
    drop(start);
    for seed in 0..3 {
        read(bench.job(&prompt(seed, 100), endless(20))).await.2.unwrap();
    }
    let before = computed(&bench);
    read(bench.job(&prompt(9, 300), endless(20))).await.2.unwrap();
    assert_eq!(computed(&bench) - before, 300 + 19);
    // The one used last is still cached, and the first one is not.
    for (seed, is_cached) in [(2, true), (0, false)] {
        let done = read(bench.job(&prompt(seed, 100), endless(1))).await.2.unwrap();
        assert_eq!(done.cached_tokens > 0, is_cached, "{seed}: {}", done.cached_tokens);
    }
}

/// A new job waits if the generations would soon need its space.
#[tokio::test]
async fn a_job_waits_for_room() {
    let (bench, start) = bench(4, CONTEXT);
    let long = bench.job(&prompt(1, 300), endless(100));
    let waiting = bench.job(&prompt(2, 150), endless(1));
    drop(start);
    let ids = read(long).await.2.unwrap().context;
    assert_eq!(ids, expected(&prompt(1, 300), 100));
    read(waiting).await.2.unwrap();
    assert_eq!(computed(&bench), 399 + 150, "nothing was computed twice");
}

#[tokio::test]
async fn a_suspended_job_shifts_its_context() {
    let (bench, start) = bench(3, CONTEXT);
    drop(start);
    let prompts = [1, 2, 3].map(|seed| prompt(seed, 100));
    let shifting = |job: &mut Job| {
        endless(240)(job);
        (job.limit, job.num_keep) = (300, 5);
    };
    let mut alone = Vec::new();
    for ids in &prompts {
        alone.push(read(bench.job(ids, shifting)).await.2.unwrap().context);
    }
    let before = computed(&bench);
    let jobs = prompts.each_ref().map(|ids| bench.job(ids, shifting));
    for (job, alone) in jobs.into_iter().zip(alone) {
        assert_eq!(tokio::time::timeout(TIMEOUT, read(job)).await.unwrap().2.unwrap().context, alone);
    }
    // A shift computes half of the context again in both cases.
    assert!(computed(&bench) - before > before, "a generation was suspended");
}

#[tokio::test]
async fn prompts_and_windows_are_scored_once() {
    let (bench, start) = bench(3, CONTEXT);
    let company = bench.job(&prompt(7, 100), endless(400));
    let ids = prompt(8, 300);
    let mut scored = bench.job(&ids, |job| {
        endless(2)(job);
        (job.scores_prompt, job.top_logprobs) = (true, Some(0));
    });
    let windows = vec![prompt(3, 120), prompt(4, 250)];
    let (sender, scores) = oneshot::channel();
    bench.batch.score(ScoreJob { windows: windows.clone(), top: 0, sender }).unwrap();
    drop(start);
    let logprobs = |ids: &[u32]| -> Vec<f32> {
        (1..ids.len()).map(|at| LogSoftmax::new(&row(&ids[..at])).of(ids[at])).collect()
    };
    let (company, found) = tokio::join!(read(company), async {
        let mut found = Vec::new();
        while let Some(event) = scored.recv().await {
            if let super::protocol::Event::Token { logprobs, .. } = event {
                found.extend(logprobs.iter().map(|token| token.logprob));
            }
        }
        found
    });
    assert_eq!(company.2.unwrap().context, expected(&prompt(7, 100), 400));
    assert_eq!(found[0], None);
    let all: Vec<f32> = found[1..].iter().map(|logprob| logprob.unwrap()).collect();
    assert_eq!(all, logprobs(&expected(&ids, 2)));
    let scores = tokio::time::timeout(TIMEOUT, scores).await.unwrap().unwrap().unwrap();
    for (window, scores) in windows.iter().zip(&scores) {
        assert_eq!(scores.logprobs, logprobs(window));
    }
}

#[tokio::test]
async fn texts_are_embedded_again() {
    let (bench, start) = bench(3, CONTEXT);
    let company = bench.job(&prompt(7, 60), endless(440));
    let texts = [prompt(1, 350), prompt(2, 300), prompt(3, 90)];
    let vectors = texts.each_ref().map(|ids| {
        let (sender, vector) = oneshot::channel();
        let wanted = Wanted::Embedding { pooling: Pooling::Last, prompt: 0 };
        let request = bench.batch.new_request();
        bench.batch.embed(EmbedJob { request, ids: ids.clone(), wanted, sender }).unwrap();
        vector
    });
    drop(start);
    let company = tokio::spawn(read(company));
    for (ids, vector) in texts.iter().zip(vectors) {
        let vector = tokio::time::timeout(TIMEOUT, vector).await.unwrap().unwrap().unwrap();
        assert_eq!(vector, hidden(ids));
    }
    assert_eq!(company.await.unwrap().2.unwrap().context, expected(&prompt(7, 60), 440));
}

/// A generation that waits for its reader does not keep space that others need.
#[tokio::test]
async fn a_slow_reader_does_not_block_the_cache() {
    let (bench, start) = bench(2, CONTEXT);
    let slow = bench.job(&prompt(1, 100), endless(400));
    drop(start);
    for seed in 2..5 {
        let other = read(bench.job(&prompt(seed, 300), endless(100)));
        let done = tokio::time::timeout(TIMEOUT, other).await.unwrap().2.unwrap();
        assert_eq!(done.context, expected(&prompt(seed, 300), 100));
    }
    let done = tokio::time::timeout(TIMEOUT, read(slow)).await.unwrap().2.unwrap();
    assert_eq!(done.context, expected(&prompt(1, 100), 400));
}

#[tokio::test]
async fn a_suspended_job_without_a_client_is_dropped() {
    let (bench, start) = bench(2, CONTEXT);
    let first = bench.job(&prompt(1, 200), endless(300));
    let mut second = bench.job(&prompt(2, 200), endless(300));
    drop(start);
    // The second has begun, and is suspended when both have grown by 56 tokens.
    second.recv().await.unwrap();
    assert!(read(first).await.2.is_ok());
    drop(second);
    let third = tokio::time::timeout(TIMEOUT, read(bench.job(&prompt(3, 200), endless(10)))).await.unwrap();
    assert_eq!(third.2.unwrap().context, expected(&prompt(3, 200), 10));
}

/// An error of a job that is computed again is only its own.
#[tokio::test]
async fn a_failing_job_leaves_its_space() {
    let (bench, start) = bench(3, CONTEXT);
    let good = bench.job(&prompt(1, 200), endless(250));
    let poisoned = bench.job(&[prompt(2, 150), vec![POISON]].concat(), |_| {});
    drop(start);
    assert!(read(poisoned).await.2.is_err());
    assert_eq!(read(good).await.2.unwrap().context, expected(&prompt(1, 200), 250));
    assert!(read(bench.job(&prompt(3, 400), endless(100))).await.2.is_ok());
}

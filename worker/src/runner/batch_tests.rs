//! The batch loop with a deterministic engine: results must not depend on other requests that join, leave,
//! wait or fail.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::batch::{Batch, shared_tokens};
use super::embedding::Pooling;
use super::generate::{EVENT_QUEUE, Job};
use super::jobs::{EmbedJob, ScoreJob, Wanted};
use super::protocol::{Done, DoneReason, ErrorKind, Event, RunnerError};
use super::testing::{
    BREAK, ENDLESS, EOS, FakeEngine, NAN, PANIC, POISON, StepLog, demo_tokenizer, greedy_output, hidden, row,
};
use crate::engine::Engine;
use crate::text::sampler::{LogSoftmax, argmax};
use crate::text::{Reader, Sampler, SamplerOptions, StopMatcher, Tokenizer};

pub(super) struct Bench {
    pub(super) batch: Batch,
    pub(super) log: StepLog,
    exited: oneshot::Receiver<()>,
    tokenizer: Arc<Tokenizer>,
}

const CONTEXT: usize = 512;

fn bench(num_parallel: usize, batch_tokens: usize) -> Bench {
    let engine = FakeEngine::new(CONTEXT, num_parallel);
    let log = engine.log.clone();
    Bench::start(Box::new(engine), log, num_parallel, batch_tokens)
}

impl Bench {
    /// Starts a loop. `log` is the engine's.
    pub(super) fn start(
        engine: Box<dyn Engine>,
        log: StepLog,
        num_parallel: usize,
        batch_tokens: usize,
    ) -> Self {
        let (exit, exited) = oneshot::channel();
        let batch = Batch::start(engine, num_parallel, batch_tokens, move || {
            let _ = exit.send(());
        })
        .unwrap();
        Bench { batch, log, exited, tokenizer: demo_tokenizer() }
    }

    pub(super) fn job(&self, prompt: &[u32], set: impl FnOnce(&mut Job)) -> mpsc::Receiver<Event> {
        let (events, receiver) = mpsc::channel(EVENT_QUEUE);
        let greedy = SamplerOptions { temperature: 0.0, ..SamplerOptions::default() };
        let mut job = Job {
            prompt: prompt.to_vec(),
            limit: CONTEXT,
            num_predict: 24,
            num_keep: 4,
            shift: true,
            sampler: Sampler::new(greedy, CONTEXT),
            format: None,
            stop: StopMatcher::default(),
            reader: Reader::default(),
            eos: Arc::new(BTreeSet::from([EOS])),
            vocabulary: self.tokenizer.vocabulary().clone(),
            top_logprobs: None,
            scores_prompt: false,
            whole: false,
            events,
        };
        set(&mut job);
        self.batch.generate(job).unwrap();
        receiver
    }

    fn text(&self, ids: &[u32]) -> String {
        String::from_utf8_lossy(&self.tokenizer.decode(ids).unwrap()).into_owned()
    }
}

/// Reads a generation to its end.
pub(super) async fn read(mut events: mpsc::Receiver<Event>) -> (String, usize, Result<Done, RunnerError>) {
    let mut text = String::new();
    let mut tokens = 0;
    loop {
        match events.recv().await.expect("every generation ends with an event") {
            Event::Token { text: piece, .. } => {
                tokens += 1;
                text.push_str(&piece);
            }
            Event::Done(done) => {
                text.push_str(&done.text);
                return (text, tokens, Ok(done));
            }
            Event::Error(error) => return (text, tokens, Err(error)),
        }
    }
}

pub(super) fn prompt(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|at| 300 + (seed * 7919 + at * 104_729) % 3000).collect()
}

#[tokio::test]
async fn one_generation() {
    let bench = bench(2, 64);
    for seed in 0..8 {
        let ids = prompt(seed, 10);
        let expected = greedy_output(&ids, 24);
        let (text, tokens, done) = read(bench.job(&ids, |_| {})).await;
        let done = done.unwrap();
        assert_eq!(done.context, [ids.clone(), expected.clone()].concat());
        assert_eq!((done.prompt_tokens, done.eval_tokens, tokens), (10, expected.len(), expected.len()));
        assert_eq!(text, bench.text(&expected));
        assert_eq!(done.reason == DoneReason::Length, expected.len() == 24);

        // The same as a whole, also with a stop text.
        let (whole, tokens, done) = read(bench.job(&ids, |job| job.whole = true)).await;
        assert_eq!(
            (whole.as_str(), tokens, done.unwrap().context.len()),
            (text.as_str(), 0, 10 + expected.len())
        );
        let Some((at, last)) = text.char_indices().next_back() else { continue };
        let stop = |job: &mut Job| (job.whole, job.stop) = (true, StopMatcher::new(vec![last.to_string()]));
        let (stopped, tokens, _) = read(bench.job(&ids, stop)).await;
        assert_eq!((stopped.as_str(), tokens), (&text[..text.find(last).unwrap_or(at)], 0));
    }
}

#[tokio::test]
async fn results_do_not_depend_on_other_requests() {
    let bench = bench(3, 16);
    let shared = prompt(99, 40);
    let prompts: Vec<Vec<u32>> = (0..24)
        .map(|seed| match seed % 3 {
            0 => prompt(seed, 1 + seed as usize * 9),
            1 => [shared.clone(), prompt(seed, 5)].concat(),
            _ => shared[..20 + seed as usize % 20].to_vec(),
        })
        .collect();
    let receivers: Vec<_> = prompts.iter().map(|ids| bench.job(ids, |_| {})).collect();
    let mut cached = 0;
    for (ids, receiver) in prompts.iter().zip(receivers) {
        let (_, _, done) = read(receiver).await;
        let done = done.unwrap();
        assert_eq!(done.context[ids.len()..], greedy_output(ids, 24), "prompt of {}", ids.len());
        cached += done.cached_tokens;
    }
    assert!(cached > 0, "a shared prefix is computed once");
    assert!(bench.log.lock().unwrap().iter().all(|step| step.iter().sum::<usize>() <= 16 && step.len() <= 3));
}

#[tokio::test]
async fn a_conversation_reuses_its_cache() {
    let bench = bench(1, 512);
    let first = prompt(1, 200);
    let (_, _, done) = read(bench.job(&first, |_| {})).await;
    let context = done.unwrap().context;
    bench.log.lock().unwrap().clear();
    let second = [context.clone(), prompt(2, 3)].concat();
    let (_, _, done) = read(bench.job(&second, |job| job.num_predict = 1)).await;
    let done = done.unwrap();
    // The last id of a response was not appended, so it is computed now.
    assert_eq!(done.cached_tokens, context.len() - 1);
    assert_eq!(*bench.log.lock().unwrap(), [[4]]);
    assert_eq!(done.context[second.len()..], greedy_output(&second, 1));
}

#[tokio::test]
async fn cached_sequences_are_evicted_for_new_prompts() {
    let bench = bench(2, 512);
    let system = prompt(7, 100);
    let cached_tokens = async |ids: Vec<u32>| {
        let (_, _, done) = read(bench.job(&ids, |job| job.num_predict = 4)).await;
        let done = done.unwrap();
        assert_eq!(done.context[ids.len()..], greedy_output(&ids, 4));
        done.cached_tokens
    };
    let chat = |seed: u32, len: usize| [system.clone(), prompt(seed, len)].concat();
    assert_eq!(cached_tokens(chat(1, 200)).await, 0);
    // Another chat reuses the system prompt, and the first one stays cached.
    assert_eq!(cached_tokens(chat(2, 20)).await, 100);
    assert_eq!(cached_tokens(chat(1, 230)).await, 300);
    // Prompts that fill the context evict the least recently used sequences.
    let full = |seed: u32| prompt(seed, CONTEXT - 10);
    assert_eq!(cached_tokens(full(20)).await, 0);
    assert_eq!(cached_tokens(chat(1, 231)).await, 330);
    assert_eq!(cached_tokens(full(21)).await, 0);
    assert_eq!(cached_tokens(full(22)).await, 0);
    assert_eq!(cached_tokens(chat(1, 10)).await, 0);
}

#[tokio::test]
async fn a_long_prompt_does_not_hold_up_the_others() {
    let bench = bench(2, 8);
    let (long, short) = {
        // The engine waits for its log, so both requests are queued before the second step.
        let _held = bench.log.lock().unwrap();
        let short = |job: &mut Job| job.num_predict = 10;
        (bench.job(&prompt(1, 400), |_| {}), bench.job(&prompt(2, 4), short))
    };
    let (long, short) = tokio::join!(read(long), read(short));
    let steps = short.2.unwrap().eval_tokens;
    assert_eq!(long.2.unwrap().context[400..], greedy_output(&prompt(1, 400), 24));
    let log = bench.log.lock().unwrap();
    let shared = log.iter().position(|step| step.len() == 2).unwrap();
    assert!(shared <= 1 && log[shared..shared + steps].iter().all(|step| step.len() == 2), "{log:?}");
    assert!(log[shared + 1..shared + steps].iter().all(|step| *step == [1, 7]), "{log:?}");
}

/// Prompts of one length end in the order of their arrival, and not all at the end.
#[tokio::test]
async fn equal_prompts_are_computed_in_turn() {
    let bench = bench(4, 16);
    let readers: Vec<_> = {
        let _held = bench.log.lock().unwrap();
        (1..5).map(|seed| bench.job(&prompt(seed, 64), |job| job.num_predict = 1)).collect()
    };
    for (seed, reader) in (1..).zip(readers) {
        assert_eq!(read(reader).await.2.unwrap().context[64..], greedy_output(&prompt(seed, 64), 1));
    }
    let log = bench.log.lock().unwrap();
    assert_eq!(log.iter().flatten().sum::<usize>(), 4 * 64, "{log:?}");
    assert!(log.len() <= 17 && log.iter().all(|step| step.len() == 1), "{log:?}");
}

/// Shorter prompts that keep arriving take at most half of each step from the oldest one.
#[tokio::test]
async fn a_long_prompt_ends_among_short_ones() {
    let bench = bench(8, 16);
    let readers: Vec<_> = {
        let _held = bench.log.lock().unwrap();
        let job = |seed: u32| {
            let len = if seed == 0 { 400 } else { 40 };
            bench.job(&prompt(seed, len), |job| job.num_predict = 1)
        };
        (0..200).map(job).collect()
    };
    for reader in readers {
        read(reader).await.2.unwrap();
    }
    let log = bench.log.lock().unwrap();
    // The long prompt is alone in the first step, or in two.
    assert!(log[2..40].iter().all(|step| *step == [8, 8]), "{log:?}");
}

#[tokio::test]
async fn a_disconnected_reader_frees_its_sequence() {
    let bench = bench(1, 64);
    let endless = bench.job(&prompt(1, 4), |job| {
        job.num_predict = usize::MAX;
        job.eos = Arc::default();
    });
    let waiting = bench.job(&prompt(2, 4), |_| {});
    let never_read = bench.job(&prompt(3, 4), |_| {});
    drop(never_read);
    drop(endless);
    assert!(read(waiting).await.2.is_ok());
}

#[tokio::test]
async fn a_reader_that_is_slow_pauses_only_itself() {
    let bench = bench(2, 64);
    let mut slow = bench.job(&prompt(1, 4), |job| {
        job.num_predict = 1000;
        job.eos = Arc::default();
    });
    assert!(read(bench.job(&prompt(2, 4), |_| {})).await.2.is_ok());
    // Far more than the queue's capacity, so it was paused in between.
    let mut tokens = 0;
    while let Some(event) = slow.recv().await {
        tokens += 1;
        if let Event::Done(done) = event {
            assert_eq!(done.eval_tokens, 1000);
        }
    }
    assert_eq!(tokens, 1001);
}

#[tokio::test]
async fn the_end_of_the_context() {
    let bench = bench(1, 64);
    let ids = prompt(5, 30);
    let full = |job: &mut Job, shift: bool| {
        job.eos = Arc::default();
        (job.limit, job.shift, job.num_predict) = (40, shift, 100);
    };
    let (_, _, done) = read(bench.job(&ids, |job| full(job, false))).await;
    let done = done.unwrap();
    // The last id takes no space in the context.
    assert_eq!((done.reason, done.eval_tokens), (DoneReason::Length, 11));
    let (_, _, done) = read(bench.job(&ids, |job| full(job, true))).await;
    let done = done.unwrap();
    assert_eq!((done.reason, done.eval_tokens, done.context.len()), (DoneReason::Length, 100, 130));
    let (_, _, done) = read(bench.job(&ids[..1], |job| {
        full(job, true);
        job.limit = 1;
    }))
    .await;
    assert_eq!(done.unwrap().eval_tokens, 1);
}

#[tokio::test]
async fn stop_texts_and_log_probabilities() {
    let bench = bench(1, 64);
    let ids = prompt(3, 12);
    let expected = greedy_output(&ids, 24);
    assert!(expected.len() > 6);
    let whole = bench.text(&expected);
    // From the middle of the fourth token into the fifth.
    let fourth = bench.text(&expected[..3]).len();
    let stop: String =
        whole[fourth..].chars().skip(1).take(bench.text(&expected[3..5]).chars().count() - 1).collect();
    let at = whole.find(&stop).unwrap();
    let (text, _, done) = read(bench.job(&ids, |job| job.stop = StopMatcher::new(vec![stop.clone()]))).await;
    let done = done.unwrap();
    assert_eq!((text.as_str(), done.reason), (&whole[..at], DoneReason::Stop));
    assert!(done.context.len() <= ids.len() + 4, "the ids of the stop text are not part of the response");

    let mut events = bench.job(&ids, |job| (job.top_logprobs, job.num_predict) = (Some(3), 5));
    let mut so_far = ids.clone();
    for &id in &expected[..5] {
        let Some(Event::Token { logprobs, .. }) = events.recv().await else { panic!("a token") };
        let [logprob] = &logprobs[..] else { panic!("{logprobs:?}") };
        let row = row(&so_far);
        assert_eq!(logprob.logprob, Some(LogSoftmax::new(&row).of(id)));
        assert_eq!(logprob.bytes, bench.tokenizer.token_bytes(id));
        assert_eq!(logprob.top_logprobs.len(), 3);
        let likeliest = &logprob.top_logprobs[0];
        assert_eq!((&likeliest.token, Some(likeliest.logprob)), (&logprob.token, logprob.logprob));
        so_far.push(id);
    }
    let (_, _, done) = read(bench.job(&ids, |job| job.num_predict = 0)).await;
    assert_eq!(done.unwrap().context, ids);
}

/// In several pieces, next to other requests, and although a sequence has the prompt in its cache.
#[tokio::test]
async fn prompts_are_scored() {
    let bench = bench(2, 64);
    for len in [1, 2, 64, 65, 150] {
        let ids = prompt(3, len);
        read(bench.job(&ids, |job| job.num_predict = 1)).await.2.unwrap();
        let other = bench.job(&prompt(4, 90), |_| {});
        let mut events = bench.job(&ids, |job| {
            (job.top_logprobs, job.scores_prompt, job.num_predict) = (Some(2), true, 2);
        });
        let (mut scores, mut done) = (Vec::new(), None);
        while let Some(event) = events.recv().await {
            match event {
                Event::Token { logprobs, .. } => scores.extend(logprobs),
                Event::Done(end) => done = Some(end),
                Event::Error(error) => panic!("{error:?}"),
            }
        }
        let done = done.unwrap();
        assert_eq!((scores.len(), done.cached_tokens), (done.context.len(), 0));
        for (at, (score, &id)) in scores.iter().zip(&done.context).enumerate() {
            assert_eq!(score.bytes, bench.tokenizer.token_bytes(id), "{len}: {at}");
            let expected = (at > 0).then(|| LogSoftmax::new(&row(&done.context[..at])).of(id));
            assert_eq!(score.logprob, expected, "{len}: {at}");
            assert_eq!(score.top_logprobs.len(), if at == 0 { 0 } else { 2 });
        }
        assert_eq!(done.context[len..], greedy_output(&ids, 2)[..]);
        read(other).await.2.unwrap();
    }
}

#[tokio::test]
async fn errors_stay_with_their_sequence() {
    let bench = bench(3, 64);
    let good = bench.job(&prompt(1, 8), |_| {});
    let poisoned = bench.job(&[[400, POISON].as_slice(), &prompt(1, 3)].concat(), |_| {});
    let nan = bench.job(&[400, 401, NAN], |_| {});
    let error = read(poisoned).await.2.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Failed);
    assert!(read(nan).await.2.unwrap_err().message.contains("infinite or NaN"));
    assert_eq!(read(good).await.2.unwrap().context[8..], greedy_output(&prompt(1, 8), 24));
    // The sequences are free again.
    for seed in 0..4 {
        assert!(read(bench.job(&prompt(seed, 8), |_| {})).await.2.is_ok());
    }
}

#[tokio::test]
async fn a_device_error_fails_every_request() {
    let bench = bench(2, 64);
    let company = bench.job(&prompt(1, 8), |job| {
        job.num_predict = usize::MAX;
        job.eos = Arc::default();
    });
    let broken = bench.job(&[400, BREAK], |_| {});
    let (company, broken) = tokio::join!(read(company), read(broken));
    assert!(company.2.is_err() && broken.2.is_err());
    bench.exited.await.unwrap();
}

#[tokio::test]
async fn a_panic_closes_every_stream() {
    let bench = bench(2, 64);
    let mut panicking = bench.job(&[400, PANIC], |_| {});
    assert_eq!(panicking.recv().await, None);
    bench.exited.await.unwrap();
}

#[tokio::test]
async fn scores() {
    let bench = bench(2, 16);
    let company = bench.job(&prompt(9, 30), |_| {});
    let windows = vec![prompt(1, 60), vec![], vec![300], prompt(1, 2), prompt(2, 33)];
    let (sender, receiver) = oneshot::channel();
    bench.batch.score(ScoreJob { windows: windows.clone(), top: 2, sender }).unwrap();
    let scores = receiver.await.unwrap().unwrap();
    for (window, scores) in windows.iter().zip(&scores) {
        let expected: Vec<f32> =
            (1..window.len()).map(|at| LogSoftmax::new(&row(&window[..at])).of(window[at])).collect();
        assert_eq!(scores.logprobs, expected);
        let likeliest: Vec<u32> = (1..window.len()).map(|at| argmax(&row(&window[..at])).unwrap()).collect();
        assert_eq!(scores.top.iter().map(|top| top[0].0).collect::<Vec<_>>(), likeliest);
        assert!(scores.top.iter().all(|top| top.len() == 2 && top[0].1 >= top[1].1));
    }
    assert_eq!(scores.len(), windows.len());
    assert!(read(company).await.2.is_ok());
    let (sender, receiver) = oneshot::channel();
    bench.batch.score(ScoreJob { windows: vec![vec![300, POISON, 301]], top: 0, sender }).unwrap();
    assert!(receiver.await.unwrap().is_err());
}

#[tokio::test]
async fn embeds() {
    let bench = bench(2, 16);
    let company = bench.job(&prompt(1, 30), |_| {});
    let embed = |ids: &[u32], pooling| {
        let (sender, receiver) = oneshot::channel();
        let request = bench.batch.new_request();
        bench
            .batch
            .embed(EmbedJob {
                request,
                ids: ids.to_vec(),
                wanted: Wanted::Embedding { pooling, prompt: 0 },
                sender,
            })
            .unwrap();
        receiver
    };
    // Longer than a step, and with a common prefix: the cache of another text is not reused.
    let texts = [prompt(1, 60), prompt(1, 61), prompt(1, 1), prompt(2, 33)];
    let embeddings = texts.iter().flat_map(|ids| {
        [Pooling::First, Pooling::Last, Pooling::Mean].map(|pooling| (ids, pooling, embed(ids, pooling)))
    });
    for (ids, pooling, vector) in embeddings.collect::<Vec<_>>() {
        let found = vector.await.unwrap().unwrap();
        let rows: Vec<Vec<f32>> = (1..=ids.len()).map(|len| hidden(&ids[..len])).collect();
        let mean =
            |at: usize| (rows.iter().map(|row| f64::from(row[at])).sum::<f64>() / rows.len() as f64) as f32;
        let expect = match pooling {
            Pooling::First => rows[0].clone(),
            Pooling::Last => rows[rows.len() - 1].clone(),
            Pooling::Mean => (0..rows[0].len()).map(mean).collect(),
        };
        assert_eq!(found, expect, "{pooling:?} of {}", ids.len());
    }
    assert!(read(company).await.2.is_ok());
    assert!(embed(&[300, POISON], Pooling::Mean).await.unwrap().is_err());
    assert!(embed(&[300], Pooling::Mean).await.unwrap().is_ok());
}

#[tokio::test]
async fn a_request_with_many_texts_leaves_room_for_others() {
    let bench = bench(4, 16);
    let request = bench.batch.new_request();
    let embed = |seed: u32| {
        let (sender, receiver) = oneshot::channel();
        let ids = prompt(seed, 200);
        bench
            .batch
            .embed(EmbedJob {
                request,
                ids,
                wanted: Wanted::Embedding { pooling: Pooling::Mean, prompt: 0 },
                sender,
            })
            .unwrap();
        receiver
    };
    let (texts, short) = {
        // The engine waits for its log, so all texts are queued before the short request.
        let _held = bench.log.lock().unwrap();
        let texts: Vec<_> = (0..100).map(embed).collect();
        (texts, bench.job(&prompt(500, 3), |job| job.num_predict = 8))
    };
    let done = read(short).await.2.unwrap();
    assert_eq!(done.context[3..], greedy_output(&prompt(500, 3), 8));
    // Its prompt was computed at once, not after the queued texts, each of which takes dozens of steps.
    let step = bench.log.lock().unwrap().iter().position(|step| step.contains(&3));
    assert!(step.is_some_and(|step| step < 5), "{step:?}");
    for (seed, text) in (0..).zip(texts) {
        // A text that lost its sequence is embedded later.
        let ids = prompt(seed, 200);
        let first = hidden(&ids[..1]).len();
        assert_eq!(text.await.unwrap().unwrap().len(), first);
    }
}

#[tokio::test]
async fn scores_leave_room_for_others() {
    let bench = bench(2, 16);
    let (scores, short) = {
        let _held = bench.log.lock().unwrap();
        let (sender, scores) = oneshot::channel();
        let windows = (0..100).map(|seed| prompt(seed, 200)).collect();
        bench.batch.score(ScoreJob { windows, top: 0, sender }).unwrap();
        (scores, bench.job(&prompt(500, 3), |job| job.num_predict = 8))
    };
    read(short).await.2.unwrap();
    let step = bench.log.lock().unwrap().iter().position(|step| step.contains(&3));
    assert!(step.is_some_and(|step| step < 5), "{step:?}");
    assert_eq!(scores.await.unwrap().unwrap().len(), 100);
}

#[tokio::test]
async fn a_step_without_waiting_clients_is_cancelled() {
    let bench = bench(2, 64);
    // Each of these steps ends only when cancelled.
    let mut generation = bench.job(&[400, ENDLESS], |_| {});
    assert!(generation.try_recv().is_err());
    drop(generation);
    let (sender, scores) = oneshot::channel();
    bench.batch.score(ScoreJob { windows: vec![vec![300, ENDLESS, 301]], top: 0, sender }).unwrap();
    drop(scores);
    let (sender, vector) = oneshot::channel();
    let request = bench.batch.new_request();
    let job = EmbedJob {
        request,
        ids: vec![ENDLESS],
        wanted: Wanted::Embedding { pooling: Pooling::Mean, prompt: 0 },
        sender,
    };
    bench.batch.embed(job).unwrap();
    drop(vector);
    assert!(read(bench.job(&prompt(1, 8), |_| {})).await.2.is_ok());
}

#[test]
fn shared_steps_are_short() {
    let ms = Duration::from_millis;
    for (token_time, expect) in [(ms(0), 256), (ms(1), 200), (ms(5), 40), (ms(100), 16), (Duration::MAX, 16)]
    {
        assert_eq!(shared_tokens(token_time, 1, 256), expect, "{token_time:?}");
    }
    assert_eq!(shared_tokens(ms(100), 1, 8), 8);
    // Longer, the more prompts wait.
    for (waiting, expect) in [(0, 40), (2, 40), (3, 60), (10, 200), (1000, 200)] {
        assert_eq!(shared_tokens(ms(5), waiting, 256), expect, "{waiting}");
    }
}

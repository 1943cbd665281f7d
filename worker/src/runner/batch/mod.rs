//! The loop that owns the engine: sequences join and leave at every step, and prompts are computed in pieces.
//! Runs on a separate thread. Requests share fairly: one with many texts or windows leaves every other
//! request a sequence and a part of each step. If the sequences outgrow the cache, the job that began last is suspended
//! and its tokens are computed again later.

mod sequences;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use super::commands::{Command, QueuedJob};
use super::embed::PooledText;
use super::generate::{Generation, Job, NextAction};
use super::jobs::{EmbedJob, RequestId, ScoreJob, Scoring};
use super::protocol::{RunnerError, WindowScores};
use super::slot::{Slot, Work};
use crate::engine::{Engine, Logits, RowSelection, Slice, StepError};
use crate::text::sampler::LogSoftmax;

/// Maximum number of jobs that wait in a runner; the worker admits far fewer.
const QUEUE: usize = 1024;
/// Maximum number of logits of one scoring step: 16 MiB.
const SCORE_FLOATS: usize = 4 << 20;
/// Poll interval for a sequence whose reader does not keep up.
const STALLED_POLL: Duration = Duration::from_millis(5);
/// Target duration of a step that several requests share: with a slow model, prompts are computed in smaller
/// pieces.
const SHARED_STEP: Duration = Duration::from_millis(200);
/// The same for each request whose prompt waits, if they are more than two, and the maximum. Each step decodes all weights
/// once, so longer steps compute more prompts in the same time, while the generations that run pause for longer.
const STEP_PER_PROMPT: Duration = Duration::from_millis(100);
const MAX_SHARED_STEP: Duration = Duration::from_secs(1);
/// Minimum number of prompt tokens in a shared step.
const MIN_SHARED_TOKENS: usize = 16;

/// Sends work to the loop, which ends when the last handle is dropped.
#[derive(Clone)]
pub(crate) struct Batch {
    commands: SyncSender<QueuedJob>,
    last_request: Arc<AtomicU64>,
}

impl Batch {
    /// Starts the thread. `on_exit` runs on it when it ends, even after a panic.
    pub(crate) fn start(
        engine: Box<dyn Engine>,
        num_parallel: usize,
        batch_tokens: usize,
        on_exit: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<Batch> {
        let (commands, receiver) = sync_channel(QUEUE);
        std::thread::Builder::new().name("batch".into()).spawn(move || {
            let _guard = ExitGuard(Some(on_exit));
            BatchLoop {
                engine,
                commands: receiver,
                waiting: VecDeque::new(),
                slots: Vec::new(),
                full_at: usize::MAX,
                num_parallel: num_parallel.max(1),
                batch_tokens: batch_tokens.max(1),
                clock: 0,
                token_time: Duration::ZERO,
            }
            .run();
        })?;
        Ok(Batch { commands, last_request: Arc::default() })
    }

    /// An id for the jobs of a request that has several.
    pub(crate) fn new_request(&self) -> RequestId {
        RequestId(self.last_request.fetch_add(1, Ordering::Relaxed) + 1)
    }

    pub(crate) fn generate(&self, job: Job) -> Result<(), RunnerError> {
        self.send(self.new_request(), Command::Generate(Box::new(job)))
    }

    pub(crate) fn score(&self, job: ScoreJob) -> Result<(), RunnerError> {
        self.send(self.new_request(), Command::Score(Scoring::new(job)))
    }

    pub(crate) fn embed(&self, job: EmbedJob) -> Result<(), RunnerError> {
        self.send(job.request, Command::Embed(job))
    }

    /// Wakes the loop if it sleeps, so that it polls pending grammars.
    pub(crate) fn wake(&self) {
        let _ = self.commands.try_send(QueuedJob { request: RequestId::default(), command: Command::Wake });
    }

    fn send(&self, request: RequestId, command: Command) -> Result<(), RunnerError> {
        self.commands.try_send(QueuedJob { request, command }).map_err(|error| match error {
            TrySendError::Full(_) => RunnerError::failed("too many requests are waiting for this model"),
            TrySendError::Disconnected(_) => RunnerError::stopped("the model has stopped"),
        })
    }
}

struct ExitGuard<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Drop for ExitGuard<F> {
    fn drop(&mut self) {
        if let Some(run) = self.0.take() {
            run();
        }
    }
}

struct BatchLoop {
    engine: Box<dyn Engine>,
    commands: Receiver<QueuedJob>,
    waiting: VecDeque<QueuedJob>,
    slots: Vec<Slot>,
    /// Number of jobs that were in progress when the cache had no room for the next one. It is not tried again until they
    /// are fewer, because a fork of its prefix takes space that they need.
    full_at: usize,
    num_parallel: usize,
    batch_tokens: usize,
    clock: u64,
    /// Recent computation time per prompt token.
    token_time: Duration,
}

/// The part of a step that belongs to one slot.
struct Share {
    slot: usize,
    tokens: usize,
    want: RowSelection,
}

impl BatchLoop {
    fn run(mut self) {
        loop {
            if !self.receive() {
                return;
            }
            self.drop_cancelled();
            self.resume();
            self.admit();
            let shares = self.divide_step();
            if !shares.is_empty() && !self.step(&shares) {
                return;
            }
        }
    }

    /// Receives commands; waits only when there is nothing to compute. Returns false when all senders are
    /// dropped.
    fn receive(&mut self) -> bool {
        let busy = self.slots.iter().any(|slot| !slot.is_idle());
        let can_begin = !busy && self.waiting.iter().any(|waiting| waiting.command.is_ready());
        if !busy && self.waiting.is_empty() {
            match self.commands.recv() {
                Ok(waiting) => self.queue(waiting),
                Err(_) => return false,
            }
        } else if !can_begin && self.slots.iter().all(|slot| !slot.is_runnable()) {
            match self.commands.recv_timeout(STALLED_POLL) {
                Ok(waiting) => self.queue(waiting),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
        loop {
            match self.commands.try_recv() {
                Ok(waiting) => self.queue(waiting),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn queue(&mut self, waiting: QueuedJob) {
        if !matches!(waiting.command, Command::Wake) {
            self.waiting.push_back(waiting);
        }
    }

    /// Resumes generations whose grammar has sent the next mask.
    fn resume(&mut self) {
        for at in 0..self.slots.len() {
            let Work::Generate(generation) = &mut self.slots[at].work else { continue };
            if generation.is_waiting() {
                match generation.resume() {
                    NextAction::Wait => {}
                    NextAction::Feed(id) => self.push_generated_id(at, id),
                    NextAction::Finished => self.slots[at].end_work(),
                }
            }
        }
    }

    fn drop_cancelled(&mut self) {
        let waiting = self.waiting.len();
        self.waiting.retain(|waiting| !waiting.command.is_cancelled());
        if self.waiting.len() < waiting {
            self.full_at = usize::MAX;
        }
        for slot in &mut self.slots {
            if slot.is_cancelled() {
                slot.end_work();
            }
        }
    }

    /// Assigns free sequences to waiting jobs: first to the requests with the fewest sequences, then by age.
    fn admit(&mut self) {
        if self.count_in_progress() >= self.full_at && !self.slots.iter().any(Slot::is_stalled) {
            return;
        }
        self.full_at = usize::MAX;
        loop {
            let ready = (0..self.waiting.len()).filter(|&at| self.waiting[at].command.is_ready());
            let next = ready.min_by_key(|&at| self.count_sequences(self.waiting[at].request));
            let Some(at) = next else { return };
            let Some(QueuedJob { request, command }) = self.waiting.remove(at) else { return };
            match self.assign_sequence(command.reusable_ids()) {
                Ok(Some(slot)) if self.has_room(slot, &command) => self.begin(slot, request, command),
                Ok(Some(_)) => {
                    self.waiting.insert(at, QueuedJob { request, command });
                    self.full_at = self.count_in_progress();
                    return;
                }
                Ok(None) => {
                    self.waiting.insert(at, QueuedJob { request, command });
                    if !self.preempt_embedding(request) {
                        return;
                    }
                }
                Err(error) => command.fail(RunnerError::failed(error)),
            }
        }
    }

    fn count_in_progress(&self) -> usize {
        self.slots.iter().filter(|slot| !slot.is_idle()).count()
    }

    /// Number of sequences in use by a request.
    fn count_sequences(&self, request: RequestId) -> usize {
        self.slots.iter().filter(|slot| !slot.is_idle() && slot.request == request).count()
    }

    fn begin(&mut self, slot: usize, request: RequestId, command: Command) {
        self.clock += 1;
        self.slots[slot].request = request;
        match command {
            Command::Generate(job) => {
                if job.scores_prompt {
                    self.truncate(slot, 0);
                }
                let slot = &mut self.slots[slot];
                slot.last_used = self.clock;
                slot.pending = job.prompt[slot.cached.len()..].to_vec();
                slot.work = Work::Generate(Box::new(Generation::new(*job, slot.cached.len())));
            }
            Command::Resume(generation, ids) => {
                let slot = &mut self.slots[slot];
                slot.last_used = self.clock;
                slot.pending = ids[slot.cached.len()..].to_vec();
                slot.work = Work::Generate(generation);
            }
            Command::Score(scoring) => {
                self.slots[slot].last_used = self.clock;
                self.slots[slot].work = Work::Score(scoring);
                self.next_window(slot);
            }
            Command::Embed(job) => {
                self.truncate(slot, 0);
                let slot = &mut self.slots[slot];
                slot.last_used = self.clock;
                slot.pending.clone_from(&job.ids);
                slot.work = Work::Embed(PooledText::new(job));
            }
            Command::Wake => {}
        }
    }

    /// Advances a scoring slot to its next window with at least two ids, or sends the result.
    fn next_window(&mut self, at: usize) {
        self.truncate(at, 0);
        let slot = &mut self.slots[at];
        let Work::Score(scoring) = &mut slot.work else { return };
        while let Some(window) = scoring.job.windows.get(scoring.window) {
            scoring.done.push(WindowScores::default());
            if window.len() >= 2 {
                slot.pending = window[..window.len() - 1].to_vec();
                return;
            }
            scoring.window += 1;
        }
        if let Work::Score(scoring) = std::mem::replace(&mut slot.work, Work::Idle) {
            // Ignore that the reader has disconnected.
            let _ = scoring.job.sender.send(Ok(scoring.done));
        }
        slot.end_work();
    }

    /// Divides a step. Every running generation gets one token, and the prompts get the rest one after the other, the
    /// shortest first: side by side, all of them would end late. Half is for the one that has waited longest, so that
    /// it ends.
    fn divide_step(&self) -> Vec<Share> {
        let mut shares = Vec::new();
        let mut prompts = Vec::new();
        for (at, slot) in self.slots.iter().enumerate().filter(|(_, slot)| slot.is_runnable()) {
            match (&slot.work, slot.pending.len()) {
                (Work::Generate(generation), 1) if !generation.scores_prompt() => {
                    shares.push(Share { slot: at, tokens: 1, want: RowSelection::Last })
                }
                _ => prompts.push(at),
            }
        }
        let mut budget = self.step_tokens(&prompts).saturating_sub(shares.len()).max(1);
        let is_encoder = self.engine.info().encoder;
        prompts.sort_by_key(|&at| self.slots[at].last_used);
        let oldest = prompts.first().copied();
        let mut reserved = 0;
        // An encoder computes whole texts, in the order of their arrival.
        if !is_encoder {
            prompts.sort_by_key(|&at| self.slots[at].pending.len());
            reserved = budget.div_ceil(2);
        }
        let vocab_size = self.engine.info().vocab_size.max(1);
        for &at in &prompts {
            if Some(at) == oldest {
                reserved = 0;
            }
            let slot = &self.slots[at];
            let mut tokens = slot.pending.len().min(budget.saturating_sub(reserved));
            let is_scored = match &slot.work {
                Work::Score(_) => true,
                Work::Generate(generation) => generation.scores_prompt(),
                Work::Idle | Work::Embed(_) => false,
            };
            let want = match &slot.work {
                Work::Generate(generation) if is_scored && slot.cached.len() < generation.scored_rows() => {
                    tokens = tokens.min(generation.scored_rows() - slot.cached.len());
                    RowSelection::Nothing
                }
                _ if is_scored => {
                    tokens = tokens.min((SCORE_FLOATS / vocab_size).max(1));
                    RowSelection::All
                }
                Work::Embed(pool) => {
                    if is_encoder {
                        tokens = slot.pending.len();
                        if tokens > budget && !shares.is_empty() {
                            continue;
                        }
                    }
                    pool.job.wanted.rows()
                }
                _ if tokens == slot.pending.len() => RowSelection::Last,
                _ => RowSelection::Nothing,
            };
            if tokens == 0 {
                continue;
            }
            budget = budget.saturating_sub(tokens);
            shares.push(Share { slot: at, tokens, want });
        }
        shares
    }

    /// Number of tokens in a step. A step that several requests share is short, so that each makes progress. `prompts`: the
    /// slots that have more than a token to compute.
    fn step_tokens(&self, prompts: &[usize]) -> usize {
        let mut working = self.slots.iter().filter(|slot| slot.is_runnable()).map(|slot| slot.request);
        let is_shared = working.next().is_some_and(|first| working.any(|other| other != first));
        if !is_shared {
            return self.batch_tokens;
        }
        let mut waiting: Vec<RequestId> = prompts.iter().map(|&at| self.slots[at].request).collect();
        waiting.sort_unstable();
        waiting.dedup();
        shared_tokens(self.token_time, waiting.len(), self.batch_tokens)
    }

    /// Computes a step and distributes its rows. Returns false if the engine has failed.
    fn step(&mut self, shares: &[Share]) -> bool {
        let slices: Vec<Slice<'_>> = shares
            .iter()
            .map(|share| {
                let slot = &self.slots[share.slot];
                Slice { sequence: slot.sequence, tokens: &slot.pending[..share.tokens], want: share.want }
            })
            .collect();
        let started = Instant::now();
        let slots = &self.slots;
        // Cancel the step if no client waits for any part of it.
        let is_cancelled = || shares.iter().all(|share| slots[share.slot].is_cancelled());
        match self.engine.step_unless(&is_cancelled, &slices) {
            Ok(logits) => {
                let tokens = shares.iter().map(|share| share.tokens).sum::<usize>();
                if tokens >= MIN_SHARED_TOKENS {
                    self.token_time = started.elapsed() / u32::try_from(tokens).unwrap_or(u32::MAX);
                }
                for (row, share) in shares.iter().enumerate() {
                    self.distribute_rows(share, &logits, row);
                }
                true
            }
            Err(error) => self.step_failed(error),
        }
    }

    fn distribute_rows(&mut self, share: &Share, logits: &Logits, index: usize) {
        let slot = &mut self.slots[share.slot];
        let from = slot.cached.len();
        slot.cached.extend(slot.pending.drain(..share.tokens));
        match &mut slot.work {
            Work::Idle => {}
            Work::Generate(generation) => {
                if share.want == RowSelection::Nothing {
                    return;
                }
                if share.want == RowSelection::All
                    && let Ok(rows) = logits.rows(index)
                {
                    generation.score_prompt(rows);
                    if !slot.pending.is_empty() {
                        return;
                    }
                }
                let next = match logits.last(index) {
                    Ok(Some(row)) => generation.advance(row),
                    Ok(None) => generation.fail(RunnerError::failed("the engine returned no logits")),
                    Err(error) => {
                        slot.cached.truncate(from);
                        generation.fail(RunnerError::failed(error))
                    }
                };
                match next {
                    NextAction::Feed(id) => self.push_generated_id(share.slot, id),
                    NextAction::Wait => {}
                    NextAction::Finished => slot.end_work(),
                }
            }
            Work::Score(scoring) => {
                let window = &scoring.job.windows[scoring.window];
                match logits.rows(index) {
                    Ok(rows) => {
                        let targets = &window[from + 1..];
                        if let Some(done) = scoring.done.last_mut() {
                            for (row, &target) in rows.zip(targets) {
                                let row = LogSoftmax::new(row);
                                done.logprobs.push(row.of(target));
                                if scoring.job.top > 0 {
                                    done.top.push(row.top(scoring.job.top));
                                }
                            }
                        }
                        if slot.pending.is_empty() {
                            scoring.window += 1;
                            self.next_window(share.slot);
                        }
                    }
                    Err(error) => slot.fail(RunnerError::failed(error)),
                }
            }
            Work::Embed(pool) => match logits.rows(index) {
                Ok(rows) => {
                    pool.add(rows);
                    if slot.pending.is_empty() {
                        slot.finish();
                    }
                }
                Err(error) => slot.fail(RunnerError::failed(error)),
            },
        }
    }

    /// Queues a generated id. If the sequence is full, shifts the context first.
    fn push_generated_id(&mut self, at: usize, id: u32) {
        let slot = &mut self.slots[at];
        let Work::Generate(generation) = &mut slot.work else { return };
        let job = &generation.job;
        let limit = job.limit;
        // If the sequence has been resumed, its tokens may be pending.
        if slot.cached.len() + slot.pending.len() < limit {
            slot.pending.push(id);
            return;
        }
        if !job.shift || limit < 2 {
            generation.finish_at_context_limit();
            slot.end_work();
            return;
        }
        // Keep the front, drop the older half of the rest, and recompute the newer half at its new position.
        let keep = job.num_keep.min(limit - 2);
        let drop = ((limit - keep) / 2).max(1);
        let mut ids = [&slot.cached[..], &slot.pending].concat();
        ids.drain(keep..keep + drop);
        ids.push(id);
        self.truncate(at, keep);
        let slot = &mut self.slots[at];
        slot.pending = ids.split_off(slot.cached.len());
    }

    /// An error of one sequence ends that sequence; any other ends all of them and the loop.
    fn step_failed(&mut self, error: StepError) -> bool {
        let sequence = match &error {
            StepError::UnknownSequence(sequence)
            | StepError::DuplicateSequence(sequence)
            | StepError::EmptySlice(sequence)
            | StepError::NoLogits(sequence)
            | StepError::NoHidden(sequence)
            | StepError::NoClasses(sequence)
            | StepError::NotWhole(sequence)
            | StepError::TokenOutOfRange { sequence, .. }
            | StepError::TooLong { sequence, .. }
            | StepError::Graph { sequence, .. } => Some(*sequence),
            // The loop drops the work of disconnected clients.
            StepError::Cancelled => return true,
            StepError::CacheFull => {
                self.free_space();
                return true;
            }
            StepError::Device(_) => None,
        };
        if let Some(at) = self.slots.iter().position(|slot| Some(slot.sequence) == sequence) {
            self.slots[at].fail(RunnerError::failed(&error));
            self.close(at);
            return true;
        }
        tracing::error!(%error, "the engine failed");
        for slot in &mut self.slots {
            slot.fail(RunnerError::failed(&error));
        }
        for waiting in self.waiting.drain(..) {
            waiting.command.fail(RunnerError::failed(&error));
        }
        false
    }
}

/// Number of tokens in a step that several requests share, if one takes `token_time` and the prompts of `waiting` requests
/// are not computed yet.
pub(super) fn shared_tokens(token_time: Duration, waiting: usize, batch_tokens: usize) -> usize {
    let waiting = u32::try_from(waiting).unwrap_or(u32::MAX);
    let step = STEP_PER_PROMPT.saturating_mul(waiting).clamp(SHARED_STEP, MAX_SHARED_STEP);
    let tokens = step.as_nanos() / token_time.as_nanos().max(1);
    usize::try_from(tokens).unwrap_or(usize::MAX).max(MIN_SHARED_TOKENS).min(batch_tokens)
}

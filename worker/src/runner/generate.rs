//! One generation in progress: from logits to an id, to text, to the events for its reader. Independent of
//! the engine: the batch loop passes it rows and asks whether to continue.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::helper::{Poll, Session};
use super::protocol::{Done, DoneReason, Event, RunnerError, TokenLogprob, TokenProbability};
use crate::text::sampler::LogSoftmax;
use crate::text::{Constraint, Detokenizer, OutputParts, Reader, Sampler, StopMatcher, Vocabulary};

/// Maximum number of events queued for a slow reader before its sequence pauses.
pub(crate) const EVENT_QUEUE: usize = 256;

/// A generation request, independent of the sequence that computes it.
pub(crate) struct Job {
    /// At least one id, at most `limit`.
    pub(crate) prompt: Vec<u32>,
    /// Maximum length of the sequence in tokens.
    pub(crate) limit: usize,
    pub(crate) num_predict: usize,
    pub(crate) num_keep: usize,
    pub(crate) shift: bool,
    pub(crate) sampler: Sampler,
    /// The constraint of the response.
    pub(crate) format: Option<Format>,
    pub(crate) stop: StopMatcher,
    /// Extracts reasoning and tool calls from the text.
    pub(crate) reader: Reader,
    pub(crate) eos: Arc<BTreeSet<u32>>,
    pub(crate) vocabulary: Arc<Vocabulary>,
    /// How many alternatives to report, if log-probabilities are requested.
    pub(crate) top_logprobs: Option<usize>,
    /// Whether to report the log-probabilities of the prompt, too.
    pub(crate) scores_prompt: bool,
    /// Whether to send the text at the end, in one piece, instead of streaming it.
    pub(crate) whole: bool,
    pub(crate) events: mpsc::Sender<Event>,
}

/// The format of a response: the constraint, and the session with its grammar in the text helper.
pub(crate) struct Format {
    constraint: Constraint,
    session: Session,
    /// The id that was sent to the grammar, without a reply so far.
    taken: Option<u32>,
}

impl Format {
    pub(crate) fn new(constraint: Constraint, session: Session) -> Format {
        Format { constraint, session, taken: None }
    }

    fn sample(&mut self, sampler: &mut Sampler, logits: &[f32]) -> Result<u32, RunnerError> {
        let picked = self.constraint.sample(sampler, logits).map_err(RunnerError::failed)?;
        if picked.is_content {
            self.session.take(picked.id);
            self.taken = Some(picked.id);
        }
        Ok(picked.id)
    }
}

/// A job in progress.
pub(crate) struct Generation {
    pub(crate) job: Job,
    detokenizer: Detokenizer,
    generated: Vec<GeneratedId>,
    /// The output that is held back until the end.
    held_back: OutputParts,
    /// Length of the text so far in bytes, including held back text.
    text_len: usize,
    cached_tokens: usize,
    /// Number of ids of the prompt whose log-probabilities were sent.
    scored: usize,
    thinking_tokens: usize,
    started: Instant,
    prompt_done: Option<Instant>,
}

struct GeneratedId {
    id: u32,
    /// The offset of its text in the response, in bytes.
    at: usize,
}

/// The next action of the loop for a sequence.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NextAction {
    /// Append this id and compute the next row.
    Feed(u32),
    /// Call [`Generation::resume`] later: the next mask is pending.
    Wait,
    /// The last event was sent, or the reader has disconnected.
    Finished,
}

impl Generation {
    pub(crate) fn new(mut job: Job, cached_tokens: usize) -> Generation {
        for &id in &job.prompt {
            job.sampler.accept(id);
        }
        Generation {
            detokenizer: Detokenizer::new(job.vocabulary.clone(), job.reader.shown()),
            job,
            generated: Vec::new(),
            held_back: OutputParts::default(),
            text_len: 0,
            cached_tokens,
            scored: 0,
            thinking_tokens: 0,
            started: Instant::now(),
            prompt_done: None,
        }
    }

    /// Whether the reader has disconnected.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.job.events.is_closed()
    }

    /// Whether the reader does not keep up, so that more events would only fill the queue.
    pub(crate) fn is_stalled(&self) -> bool {
        self.job.events.capacity() < 4
    }

    /// Whether the rows after all ids of the prompt are needed.
    pub(crate) fn scores_prompt(&self) -> bool {
        self.job.scores_prompt && self.scored < self.job.prompt.len()
    }

    /// Number of first ids of the prompt whose rows were taken.
    pub(crate) fn scored_rows(&self) -> usize {
        self.scored.saturating_sub(1)
    }

    /// Takes the rows after the next ids of the prompt. Each gives the log-probability of the id after it.
    pub(crate) fn score_prompt<'a>(&mut self, rows: impl Iterator<Item = &'a [f32]>) {
        let rest = &self.job.prompt[self.scored..];
        // No row precedes the first id.
        let first = rest.first().filter(|_| self.scored == 0).map(|id| {
            let bytes = self.job.vocabulary.bytes(*id).to_vec();
            let token = String::from_utf8_lossy(&bytes).into_owned();
            TokenLogprob { token, bytes, logprob: None, top_logprobs: Vec::new() }
        });
        let rest = &rest[usize::from(first.is_some())..];
        let top = self.job.top_logprobs.unwrap_or(0);
        let scores = rows.zip(rest).map(|(row, id)| self.logprob(row, *id, top));
        let logprobs: Vec<TokenLogprob> = first.into_iter().chain(scores).collect();
        self.scored += logprobs.len();
        let text = String::new();
        // If the reader has disconnected, the loop drops the work.
        self.send(Event::Token { text, thinking: String::new(), calls: Vec::new(), logprobs });
    }

    /// Takes the row of logits after the last token.
    pub(crate) fn advance(&mut self, logits: &[f32]) -> NextAction {
        self.prompt_done.get_or_insert_with(Instant::now);
        if self.job.num_predict == 0 {
            return self.finish(DoneReason::Length);
        }
        let Job { sampler, format, .. } = &mut self.job;
        let sampled = match format {
            Some(format) => format.sample(sampler, logits),
            None => sampler.sample(logits).map_err(RunnerError::failed),
        };
        let id = match sampled {
            Ok(id) => id,
            Err(error) => return self.fail(error),
        };
        if self.job.eos.contains(&id) {
            return self.finish(DoneReason::Stop);
        }
        self.job.sampler.accept(id);
        self.generated.push(GeneratedId { id, at: self.text_len });
        let piece = self.detokenizer.push(id);
        self.text_len += piece.len();
        let released = self.job.stop.push(&piece);
        let output = self.job.reader.push(released.text);
        self.thinking_tokens += usize::from(!output.thinking.is_empty());
        let logprobs: Vec<_> =
            self.job.top_logprobs.iter().map(|top| self.logprob(logits, id, *top)).collect();
        if self.job.whole && logprobs.is_empty() {
            self.held_back.extend(output);
        } else {
            let OutputParts { text, thinking, calls } = output;
            if !self.send(Event::Token { text, thinking, calls, logprobs }) {
                return NextAction::Finished;
            }
        }
        if let Some(at) = released.stopped_at {
            self.generated.retain(|generated| generated.at < at);
            return self.finish_after_stop_text();
        }
        if self.is_waiting() { NextAction::Wait } else { self.next_action(id) }
    }

    fn next_action(&mut self, id: u32) -> NextAction {
        if self.job.format.as_ref().is_some_and(|format| format.constraint.is_complete()) {
            return self.finish(DoneReason::Stop);
        }
        if self.generated.len() >= self.job.num_predict {
            return self.finish(DoneReason::Length);
        }
        NextAction::Feed(id)
    }

    /// Whether it waits for the next mask of its grammar.
    pub(crate) fn is_waiting(&self) -> bool {
        self.job.format.as_ref().is_some_and(|format| format.taken.is_some())
    }

    /// Continues if the next mask has arrived.
    pub(crate) fn resume(&mut self) -> NextAction {
        let Some(format) = &mut self.job.format else { return NextAction::Wait };
        let (Some(id), Poll::Ready(result)) = (format.taken, format.session.poll()) else {
            return NextAction::Wait;
        };
        format.taken = None;
        match result {
            Ok(allowed) => {
                format.constraint.set_allowed(allowed);
                self.next_action(id)
            }
            Err(error) => self.fail(error),
        }
    }

    /// Ends the response because the context is full.
    pub(crate) fn finish_at_context_limit(&mut self) -> NextAction {
        self.finish(DoneReason::Length)
    }

    /// Ends the response with an error.
    pub(crate) fn fail(&mut self, error: RunnerError) -> NextAction {
        self.send(Event::Error(error));
        NextAction::Finished
    }

    fn finish(&mut self, reason: DoneReason) -> NextAction {
        let rest = self.detokenizer.finish();
        let released = self.job.stop.push(&rest);
        let mut text = released.text;
        if released.stopped_at.is_none() {
            text.push_str(&self.job.stop.finish());
        }
        self.done(text, reason)
    }

    fn finish_after_stop_text(&mut self) -> NextAction {
        self.done(String::new(), DoneReason::Stop)
    }

    fn done(&mut self, rest: String, reason: DoneReason) -> NextAction {
        let mut output = std::mem::take(&mut self.held_back);
        output.extend(self.job.reader.push(rest));
        output.extend(self.job.reader.finish());
        let OutputParts { text, thinking, calls } = output;
        let now = Instant::now();
        let prompt_done = self.prompt_done.unwrap_or(now);
        let mut context = std::mem::take(&mut self.job.prompt);
        let prompt_tokens = context.len();
        context.extend(self.generated.iter().map(|generated| generated.id));
        self.send(Event::Done(Done {
            text,
            thinking,
            calls,
            reason,
            stop_text: self.job.stop.matched().map(str::to_owned),
            prompt_tokens,
            cached_tokens: self.cached_tokens,
            prompt_ns: nanoseconds(prompt_done - self.started),
            eval_tokens: self.generated.len(),
            thinking_tokens: self.thinking_tokens,
            eval_ns: nanoseconds(now - prompt_done),
            context,
        }));
        NextAction::Finished
    }

    fn logprob(&self, logits: &[f32], id: u32, top: usize) -> TokenLogprob {
        let row = LogSoftmax::new(logits);
        let chance = |id: u32, logprob: f32| {
            let bytes = self.job.vocabulary.bytes(id).to_vec();
            TokenProbability { token: String::from_utf8_lossy(&bytes).into_owned(), logprob, bytes }
        };
        let TokenProbability { token, bytes, logprob } = chance(id, row.of(id));
        let top_logprobs = row.top(top).into_iter().map(|(id, logprob)| chance(id, logprob)).collect();
        TokenLogprob { token, bytes, logprob: Some(logprob), top_logprobs }
    }

    fn send(&self, event: Event) -> bool {
        // `is_stalled` reserves space for a response's last two events, so this fails only if the reader has
        // disconnected.
        self.job.events.try_send(event).is_ok()
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

//! An open sequence of the engine and its work; the batch loop has a few.

use super::commands::{Command, GROWTH, QueuedJob};
use super::embed::PooledText;
use super::generate::Generation;
use super::jobs::{RequestId, Scoring};
use super::protocol::RunnerError;
use crate::engine::SequenceId;

/// An open sequence. Idle ones stay open, so that their prefix can be reused for another prompt.
pub(super) struct Slot {
    pub(super) sequence: SequenceId,
    /// The ids that the engine holds for it.
    pub(super) cached: Vec<u32>,
    /// The ids to compute next.
    pub(super) pending: Vec<u32>,
    pub(super) last_used: u64,
    /// The request that uses it, or used it last.
    pub(super) request: RequestId,
    pub(super) work: Work,
}

pub(super) enum Work {
    Idle,
    Generate(Box<Generation>),
    Score(Scoring),
    Embed(PooledText),
}

impl Slot {
    pub(super) fn is_runnable(&self) -> bool {
        match &self.work {
            Work::Idle => false,
            Work::Generate(generation) => !generation.is_stalled() && !generation.is_waiting(),
            Work::Score(_) | Work::Embed(_) => true,
        }
    }

    /// Whether the reader of its generation does not keep up.
    pub(super) fn is_stalled(&self) -> bool {
        matches!(&self.work, Work::Generate(generation) if generation.is_stalled())
    }

    pub(super) fn is_idle(&self) -> bool {
        matches!(self.work, Work::Idle)
    }

    /// Whether the client of its work has disconnected.
    pub(super) fn is_cancelled(&self) -> bool {
        match &self.work {
            Work::Idle => false,
            Work::Generate(generation) => generation.is_cancelled(),
            Work::Score(scoring) => scoring.job.sender.is_closed(),
            Work::Embed(pool) => pool.job.sender.is_closed(),
        }
    }

    /// The length that the sequence will have soon: that of its job's text, and some more for a generation.
    pub(super) fn length_soon(&self) -> usize {
        let len = self.cached.len() + self.pending.len();
        match &self.work {
            Work::Idle | Work::Embed(_) => len,
            Work::Generate(generation) => (len + GROWTH).min(generation.job.limit),
            Work::Score(scoring) => scoring.longest_window(),
        }
    }

    /// Suspends its work, to be continued later; a text is embedded again from its beginning. The cached ids stay.
    pub(super) fn suspend(&mut self) -> Option<QueuedJob> {
        let pending = std::mem::take(&mut self.pending);
        let command = match std::mem::replace(&mut self.work, Work::Idle) {
            Work::Idle => return None,
            Work::Generate(generation) => Command::Resume(generation, [&self.cached[..], &pending].concat()),
            Work::Score(mut scoring) => {
                scoring.done.truncate(scoring.window);
                Command::Score(scoring)
            }
            Work::Embed(pool) => Command::Embed(pool.job),
        };
        Some(QueuedJob { request: self.request, command })
    }

    /// Ends its work; the cached ids stay.
    pub(super) fn end_work(&mut self) {
        self.work = Work::Idle;
        self.pending.clear();
    }

    /// Sends the embedding of its text.
    pub(super) fn finish(&mut self) {
        if let Work::Embed(pool) = std::mem::replace(&mut self.work, Work::Idle) {
            pool.finish();
        }
    }

    pub(super) fn fail(&mut self, error: RunnerError) {
        match std::mem::replace(&mut self.work, Work::Idle) {
            Work::Idle => {}
            Work::Generate(mut generation) => {
                generation.fail(error);
            }
            Work::Score(scoring) => {
                let _ = scoring.job.sender.send(Err(error));
            }
            Work::Embed(pool) => pool.fail(error),
        }
        self.pending.clear();
    }
}

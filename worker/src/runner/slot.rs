//! An open sequence of the engine and its work; the batch loop has a few.

use super::embed::PooledText;
use super::generate::Generation;
use super::jobs::{EmbedJob, RequestId, ScoreJob};
use super::protocol::{RunnerError, WindowScores};
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

pub(super) struct Scoring {
    pub(super) job: ScoreJob,
    pub(super) window: usize,
    pub(super) done: Vec<WindowScores>,
}

impl Slot {
    pub(super) fn is_runnable(&self) -> bool {
        match &self.work {
            Work::Idle => false,
            Work::Generate(generation) => !generation.is_stalled() && !generation.is_waiting(),
            Work::Score(_) | Work::Embed(_) => true,
        }
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

    /// Suspends the embedding of a text, to be repeated later. The cached ids stay.
    pub(super) fn suspend_embedding(&mut self) -> Option<EmbedJob> {
        match std::mem::replace(&mut self.work, Work::Idle) {
            Work::Embed(pool) => {
                self.pending.clear();
                Some(pool.job)
            }
            other => {
                self.work = other;
                None
            }
        }
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

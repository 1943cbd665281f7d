//! The commands to the batch loop, and jobs that it has suspended.

use super::embed::PooledText;
use super::generate::{Generation, Job};
use super::jobs::{EmbedJob, RequestId, Scoring};
use super::protocol::RunnerError;

/// Number of tokens by which all generations can still grow when another one begins: with less space, the new one would
/// soon be suspended.
pub(super) const GROWTH: usize = 64;

/// A job that waits for a sequence.
pub(super) struct QueuedJob {
    pub(super) request: RequestId,
    pub(super) command: Command,
}

pub(super) enum Command {
    Generate(Box<Job>),
    /// A suspended generation, and the ids of its sequence so far.
    Resume(Box<Generation>, Vec<u32>),
    Score(Scoring),
    Embed(EmbedJob),
    /// A grammar has sent its next mask.
    Wake,
}

impl Command {
    /// Whether its client has disconnected.
    pub(super) fn is_cancelled(&self) -> bool {
        match self {
            Command::Generate(job) => job.events.is_closed(),
            Command::Resume(generation, _) => generation.is_cancelled(),
            Command::Score(scoring) => scoring.job.sender.is_closed(),
            Command::Embed(job) => job.sender.is_closed(),
            // No client waits for it.
            Command::Wake => true,
        }
    }

    /// Whether its client would receive what it computes. Otherwise it stays suspended.
    pub(super) fn is_ready(&self) -> bool {
        !matches!(self, Command::Resume(generation, _) if generation.is_stalled())
    }

    /// The ids whose cached beginning can be used. There are none if the rows of all tokens are needed.
    pub(super) fn reusable_ids(&self) -> &[u32] {
        match self {
            Command::Generate(job) if !job.scores_prompt => &job.prompt,
            Command::Resume(generation, ids) if !generation.scores_prompt() => ids,
            _ => &[],
        }
    }

    /// The length that the job's sequence will have soon: that of its text, and some more for a generation.
    pub(super) fn length_soon(&self) -> usize {
        match self {
            Command::Generate(job) => (job.prompt.len() + GROWTH).min(job.limit),
            Command::Resume(generation, ids) => (ids.len() + GROWTH).min(generation.job.limit),
            Command::Score(scoring) => scoring.longest_window(),
            Command::Embed(job) => job.ids.len(),
            Command::Wake => 0,
        }
    }

    pub(super) fn fail(self, error: RunnerError) {
        match self {
            Command::Generate(job) => {
                Generation::new(*job, 0).fail(error);
            }
            Command::Resume(mut generation, _) => {
                generation.fail(error);
            }
            Command::Score(scoring) => {
                let _ = scoring.job.sender.send(Err(error));
            }
            Command::Embed(job) => PooledText::new(job).fail(error),
            Command::Wake => {}
        }
    }
}

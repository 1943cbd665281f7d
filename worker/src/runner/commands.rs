//! The commands to the batch loop.

use super::embed::PooledText;
use super::generate::{Generation, Job};
use super::jobs::{EmbedJob, RequestId, ScoreJob};
use super::protocol::RunnerError;

/// A job that waits for a sequence.
pub(super) struct QueuedJob {
    pub(super) request: RequestId,
    pub(super) command: Command,
}

pub(super) enum Command {
    Generate(Box<Job>),
    Score(ScoreJob),
    Embed(EmbedJob),
    /// A grammar has sent its next mask.
    Wake,
}

impl Command {
    /// Whether its client has disconnected.
    pub(super) fn is_cancelled(&self) -> bool {
        match self {
            Command::Generate(job) => job.events.is_closed(),
            Command::Score(job) => job.sender.is_closed(),
            Command::Embed(job) => job.sender.is_closed(),
            // No client waits for it.
            Command::Wake => true,
        }
    }

    pub(super) fn fail(self, error: RunnerError) {
        match self {
            Command::Generate(job) => {
                Generation::new(*job, 0).fail(error);
            }
            Command::Score(job) => {
                let _ = job.sender.send(Err(error));
            }
            Command::Embed(job) => PooledText::new(job).fail(error),
            Command::Wake => {}
        }
    }
}

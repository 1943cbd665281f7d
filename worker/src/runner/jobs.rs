//! The jobs of the batch loop that return rows: windows to score, and texts to embed or to classify. Generations
//! have their own file.

use tokio::sync::oneshot;

use super::embedding::Pooling;
use super::protocol::{RunnerError, WindowScores};
use crate::engine::RowSelection;

/// Identifies the request that a job belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RequestId(pub(super) u64);

/// Windows of ids to score.
pub(crate) struct ScoreJob {
    pub(crate) windows: Vec<Vec<u32>>,
    /// How many of the likeliest ids to return at each position.
    pub(crate) top: usize,
    pub(crate) sender: oneshot::Sender<Result<Vec<WindowScores>, RunnerError>>,
}

/// Windows that are being scored.
pub(super) struct Scoring {
    pub(super) job: ScoreJob,
    /// The window in progress.
    pub(super) window: usize,
    /// The scores of the windows so far, and of the one in progress.
    pub(super) done: Vec<WindowScores>,
}

impl Scoring {
    pub(super) fn new(job: ScoreJob) -> Scoring {
        Scoring { job, window: 0, done: Vec::new() }
    }

    pub(super) fn longest_window(&self) -> usize {
        self.job.windows.iter().map(Vec::len).max().unwrap_or(0)
    }
}

/// One text to embed, or one pair of texts to classify.
pub(crate) struct EmbedJob {
    /// The request that the text belongs to.
    pub(crate) request: RequestId,
    /// At least one.
    pub(crate) ids: Vec<u32>,
    pub(crate) wanted: Wanted,
    pub(crate) sender: oneshot::Sender<Result<Vec<f32>, RunnerError>>,
}

/// The vector that a job returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Pooled hidden states. The first `prompt` tokens are left out of a mean.
    Embedding { pooling: Pooling, prompt: usize },
    /// The logits of the classes of a pair, whose ids from `second` on have token type 1.
    Classes { second: usize },
}

impl Wanted {
    /// The rows of the engine that it is made of.
    pub(super) fn rows(self) -> RowSelection {
        match self {
            Wanted::Embedding { .. } => RowSelection::Hidden,
            Wanted::Classes { second } => RowSelection::Score { second },
        }
    }
}

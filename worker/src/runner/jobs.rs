//! The jobs of the batch loop that return rows: windows to score and texts to embed. Generations have their
//! own file.

use tokio::sync::oneshot;

use super::embedding::Pooling;
use super::protocol::{RunnerError, WindowScores};

/// Identifies the request that a job belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestId(pub(super) u64);

/// Windows of ids to score.
pub(crate) struct ScoreJob {
    pub(crate) windows: Vec<Vec<u32>>,
    /// How many of the likeliest ids to return at each position.
    pub(crate) top: usize,
    pub(crate) sender: oneshot::Sender<Result<Vec<WindowScores>, RunnerError>>,
}

/// One text to embed.
pub(crate) struct EmbedJob {
    /// The request that the text belongs to.
    pub(crate) request: RequestId,
    /// At least one.
    pub(crate) ids: Vec<u32>,
    pub(crate) pooling: Pooling,
    pub(crate) sender: oneshot::Sender<Result<Vec<f32>, RunnerError>>,
}

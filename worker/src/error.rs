//! What a worker can fail with, in terms of models and requests; http/error.rs turns it into statuses.
//! The text of every variant may be shown to callers.

use lode_model::reference::Repository;

use lode_client::BodyError;

use crate::runner::client::CallError;
use crate::runner::process::ProcessError;
use crate::runner::protocol::RunnerError;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request is at fault.
    #[error("{0}")]
    Invalid(String),
    #[error(transparent)]
    Body(#[from] BodyError),
    /// The gateway's secret is missing or wrong.
    #[error("unauthorized")]
    Unauthorized,
    #[error("model '{0}' not found")]
    ModelUnknown(String),
    /// What this worker cannot run, by name.
    #[error("{0}")]
    Unsupported(String),
    #[error("server busy, please try again.  maximum pending requests exceeded")]
    Busy,
    #[error("model requires more memory ({}) than is available ({})", gibibytes(*.needed), gibibytes(*.available))]
    Memory { needed: u64, available: u64 },
    #[error(
        "model requires more memory ({}) than is available ({}) on this machine without other models; use a shorter num_ctx or a smaller model",
        gibibytes(*.needed), gibibytes(*.total)
    )]
    TooLarge { needed: u64, total: u64 },
    #[error("the cache of {limit} bytes has no room for {needed} more: everything in it is in use")]
    CacheFull { limit: u64, needed: u64 },
    #[error("the model was not loaded after {} seconds", .0.as_secs())]
    LoadTimeout(std::time::Duration),
    #[error("the worker is shutting down")]
    Stopping,
    #[error("cannot pull the model: {}", .source.summary())]
    Pull { repository: Repository, source: Box<lode_client::Error> },
    #[error("cannot use the cache: {0}")]
    Cache(#[source] std::io::Error),
    #[error(transparent)]
    Runner(RunnerError),
    #[error("the model's runner went away")]
    RunnerGone,
    #[error(
        "the model's runner ended while it loaded the model; the worker's log says how, and a signal 9 there is often a lack of memory"
    )]
    LoadEnded,
    /// A load that several requests waited for has failed.
    #[error(transparent)]
    Load(std::sync::Arc<Error>),
    #[error(transparent)]
    Launch(#[from] ProcessError),
    #[error("cannot listen on {address}: {source}")]
    Listen { address: std::net::SocketAddr, source: std::io::Error },
    #[error("cannot reach the registry: {0}")]
    Client(#[from] lode_client::Error),
    #[error("cannot talk to the registry")]
    Http(#[from] reqwest::Error),
}

impl From<CallError> for Error {
    fn from(error: CallError) -> Error {
        match error {
            CallError::Runner(error) => Error::Runner(error),
            CallError::Gone(cause) => {
                tracing::warn!(%cause, "a runner went away");
                Error::RunnerGone
            }
        }
    }
}

fn gibibytes(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / (1u64 << 30) as f64)
}

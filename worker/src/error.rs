//! The worker's errors, in terms of models and requests; http/error.rs maps them to statuses. The text of
//! every variant may be returned to callers.

use lode_model::reference::Repository;

use lode_client::BodyError;

use crate::device::DeviceUnusable;
use crate::runner::client::CallError;
use crate::runner::process::ProcessError;
use crate::runner::protocol::RunnerError;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request is invalid.
    #[error("{0}")]
    Invalid(String),
    #[error(transparent)]
    Body(#[from] BodyError),
    /// The gateway's secret is missing or wrong.
    #[error("unauthorized")]
    Unauthorized,
    #[error("model '{0}' not found")]
    ModelUnknown(String),
    /// This worker cannot run the model; the text names it and the reason.
    #[error("{0}")]
    Unsupported(String),
    #[error(transparent)]
    Device(#[from] DeviceUnusable),
    #[error("server busy, please try again.  maximum pending requests exceeded")]
    Busy,
    #[error("model requires more memory ({}) than is available ({})", gibibytes(*.needed), gibibytes(*.available))]
    Memory { needed: u64, available: u64 },
    #[error(
        "model requires more memory ({}) than is available ({}) for models on this machine or its GPU; use a shorter num_ctx or a smaller model",
        gibibytes(*.needed), gibibytes(*.total)
    )]
    TooLarge { needed: u64, total: u64 },
    #[error("cannot store {needed} bytes in the cache of {limit} bytes: every cached blob is in use")]
    CacheFull { limit: u64, needed: u64 },
    #[error("the model did not load within {} seconds", .0.as_secs())]
    LoadTimeout(std::time::Duration),
    #[error("the worker is shutting down")]
    Stopping,
    #[error("cannot pull the model: {}", pull_problem(.source))]
    Pull { repository: Repository, source: Box<lode_client::Error> },
    #[error("cannot use the cache: {0}")]
    Cache(#[source] std::io::Error),
    #[error(transparent)]
    Runner(RunnerError),
    #[error("the model's runner exited unexpectedly")]
    RunnerGone,
    #[error(
        "the model's runner exited while loading the model; see the worker's log (signal 9 often means out of memory)"
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
    #[error("request to the registry failed")]
    Http(#[from] reqwest::Error),
}

impl From<CallError> for Error {
    fn from(error: CallError) -> Error {
        match error {
            CallError::Runner(error) => Error::Runner(error),
            CallError::ConnectionLost(cause) => {
                tracing::warn!(%cause, "connection to a runner lost");
                Error::RunnerGone
            }
        }
    }
}

/// Why a model cannot be pulled, for the user of the model: the registry's own words about a failure of itself or of its
/// upstream, which it writes for users, without the address that only this worker knows.
fn pull_problem(error: &lode_client::Error) -> String {
    match error {
        lode_client::Error::Refused { status, entries, .. } if status.is_server_error() => {
            let message = entries.first().map(|entry| entry.message.clone());
            message.filter(|message| !message.is_empty()).unwrap_or_else(|| error.summary())
        }
        _ => error.summary(),
    }
}

fn gibibytes(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / (1u64 << 30) as f64)
}

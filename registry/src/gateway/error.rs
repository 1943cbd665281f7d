//! Why a request could not be served by a worker.

use std::time::Duration;

use http::StatusCode;

/// Why a worker could not serve a request.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GatewayError {
    #[error("no worker is attached that can run '{model}'; start one with `lode worker --registry URL`")]
    NoWorker { model: String },
    #[error(
        "no worker runs '{model}': {} draining; `lode worker list` lists them, `lode worker resume ID` ends it",
        all(*.count)
    )]
    AllDraining { model: String, count: usize },
    #[error(
        "no worker runs '{model}': {} draining or reserved for other models; `lode worker list` lists them, `lode worker --models` reserves one",
        all(*.count)
    )]
    AllReserved { model: String, count: usize },
    #[error("no worker responded for '{model}' ({tried} tried); `GET /lode/v1/workers` lists them")]
    NoWorkerResponded { model: String, tried: usize },
    #[error(
        "client {client} has {limit} inference requests in progress, which is the limit (LODE_MAX_PER_CLIENT); try again when one has finished"
    )]
    ClientLimitReached { client: String, limit: usize },
    #[error("the response was cancelled: it was not read for {} s (LODE_STALL_TIMEOUT)", .limit.as_secs_f32())]
    NotRead { limit: Duration },
    #[error("the worker's response ended early")]
    ResponseInterrupted(#[source] reqwest::Error),
    #[error("the worker's response is invalid")]
    InvalidResponse(#[source] serde_json::Error),
    #[error("a record of the worker's response is larger than {limit_bytes} bytes")]
    LineTooLong { limit_bytes: usize },
}

impl GatewayError {
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            GatewayError::NoWorker { .. }
            | GatewayError::AllDraining { .. }
            | GatewayError::AllReserved { .. }
            | GatewayError::NoWorkerResponded { .. } => StatusCode::SERVICE_UNAVAILABLE,
            GatewayError::ClientLimitReached { .. } => StatusCode::TOO_MANY_REQUESTS,
            GatewayError::NotRead { .. } => StatusCode::REQUEST_TIMEOUT,
            GatewayError::ResponseInterrupted(_)
            | GatewayError::InvalidResponse(_)
            | GatewayError::LineTooLong { .. } => StatusCode::BAD_GATEWAY,
        }
    }
}

impl GatewayError {
    /// The code for programs, in the field `code` of problem details.
    pub(crate) fn code(&self) -> Option<&'static str> {
        match self {
            GatewayError::NoWorker { .. } | GatewayError::NoWorkerResponded { .. } => Some("NO_WORKER"),
            _ => None,
        }
    }
}

/// The subject and the verb of a sentence about all `count` workers.
fn all(count: usize) -> String {
    match count {
        1 => "the only worker is".to_owned(),
        count => format!("all {count} workers are"),
    }
}

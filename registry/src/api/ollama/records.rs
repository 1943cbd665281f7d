//! Progress of long requests: one record per line while the work runs, or only its last record, as the
//! request says. A failure before the first record becomes the response itself; a later one is the last line.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::{FutureExt, StreamExt, stream};
use http::header;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::mpsc::{self, Receiver, Sender};
use tracing::Instrument;

use crate::error::chain;
use crate::http::{Failure, Json};

const NDJSON: &str = "application/x-ndjson";
/// How many records may wait for a client that reads slowly; further progress records are dropped.
const MAX_WAITING_RECORDS: usize = 256;
/// Minimum interval between progress records.
const RECORD_INTERVAL: Duration = Duration::from_millis(60);

/// Receives the progress of the work.
#[derive(Clone)]
pub(crate) struct Records {
    sender: Sender<Result<Value, Failure>>,
    last_progress: Arc<Mutex<Option<Instant>>>,
}

impl Records {
    /// Reports the current step.
    pub(crate) fn status(&self, status: impl Into<String>) {
        self.send(json!({ "status": status.into() }));
    }

    /// Reports the progress of one blob, throttled except at its start and its end.
    pub(crate) fn progress(&self, status: &str, digest: &str, total: u64, completed: u64) {
        let is_edge = completed == 0 || completed >= total;
        let mut last_reported = self.last_progress.lock().unwrap_or_else(PoisonError::into_inner);
        if !is_edge && last_reported.is_some_and(|time| time.elapsed() < RECORD_INTERVAL) {
            return;
        }
        *last_reported = Some(Instant::now());
        drop(last_reported);
        let mut record = json!({ "status": status, "digest": digest, "total": total });
        if completed > 0 {
            record["completed"] = completed.into();
        }
        self.send(record);
    }

    fn send(&self, record: impl Serialize) {
        // A client that does not read misses records, but the work continues.
        let _ = self.sender.try_send(Ok(json!(record)));
    }
}

/// Runs `work` and responds with its records. The work ends when the client disconnects.
pub(crate) async fn respond<F>(is_stream: bool, work: impl FnOnce(Records) -> F) -> Result<Response, Failure>
where
    F: Future<Output = Result<(), Failure>> + Send + 'static,
{
    let (sender, mut receiver) = mpsc::channel(MAX_WAITING_RECORDS);
    let working = work(Records { sender: sender.clone(), last_progress: Arc::default() }).boxed();
    let job = async move {
        tokio::select! {
            // The last record must arrive, so wait for space; earlier ones may be dropped.
            done = working => {
                let last = done.map(|()| json!({ "status": "success" }));
                let _ = sender.send(last).await;
            }
            () = sender.closed() => {}
        }
    };
    tokio::spawn(job.in_current_span());
    if !is_stream {
        let mut last = json!({ "status": "success" });
        while let Some(record) = receiver.recv().await {
            last = record?;
        }
        return Ok(Json(last).into_response());
    }
    let first = match receiver.recv().await {
        Some(first) => first?,
        None => return Err(crate::Error::Interrupted.into()),
    };
    let lines = stream::once(async move { line(&first) }).chain(rest(receiver)).map(Ok::<_, Infallible>);
    Ok(([(header::CONTENT_TYPE, NDJSON)], Body::from_stream(lines)).into_response())
}

fn rest(receiver: Receiver<Result<Value, Failure>>) -> impl futures::Stream<Item = Bytes> {
    stream::unfold(receiver, |mut receiver| async move {
        let bytes = match receiver.recv().await? {
            Ok(record) => line(&record),
            Err(failure) => {
                if failure.status().is_server_error() {
                    tracing::warn!(error = chain(&failure), "work failed after its response began");
                }
                line(&json!({ "error": failure.message() }))
            }
        };
        Some((bytes, receiver))
    })
}

fn line(record: &Value) -> Bytes {
    format!("{record}\n").into()
}

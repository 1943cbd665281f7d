//! Splits a worker's byte stream into records, one JSON value per line, and sends events for them to a client.

use std::convert::Infallible;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use futures::stream::BoxStream;
use futures::{Stream, StreamExt, stream};
use http::header;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::error::chain;
use crate::gateway::{GatewayError, WorkerResponse};

/// The maximum length of a line.
const MAX_LINE_BYTES: usize = 8 * 1024 * 1024;

type Bytestream = BoxStream<'static, Result<Bytes, GatewayError>>;

/// A part of a worker's response to `/api/chat`, or all of it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ChatRecord {
    pub(super) message: ChatMessage,
    pub(super) logprobs: Option<Value>,
    pub(super) done: bool,
    pub(super) done_reason: Option<String>,
    pub(super) stop_text: Option<String>,
    pub(super) prompt_eval_count: u64,
    pub(super) prompt_cached_count: u64,
    pub(super) eval_count: u64,
    pub(super) thinking_count: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ChatMessage {
    pub(super) content: String,
    pub(super) thinking: String,
    pub(super) tool_calls: Vec<ChatCall>,
}

/// A tool call.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ChatCall {
    pub(super) id: String,
    pub(super) function: ChatFunction,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ChatFunction {
    pub(super) name: String,
    pub(super) arguments: Map<String, Value>,
}

/// A step of a response that is sent as events.
pub(super) enum Step {
    Record(Value),
    /// The response failed, with this message for the client; it has no more records.
    Failed(String),
    /// There are no more records.
    End,
}

/// Sends server-sent events: those that `events` returns for each step, after the text `begin`.
pub(super) fn send_events(
    response: WorkerResponse,
    begin: String,
    events: impl FnMut(Step) -> String + Send + 'static,
) -> Response {
    event_response(stream::iter([begin]).chain(steps(response).map(events)))
}

/// A response with server-sent events. Empty texts are skipped.
pub(super) fn event_response(events: impl Stream<Item = String> + Send + 'static) -> Response {
    let texts = events.filter(|text| std::future::ready(!text.is_empty()));
    let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")];
    (headers, Body::from_stream(texts.map(Ok::<_, Infallible>))).into_response()
}

/// The steps of a response; the last is its end.
pub(super) fn steps(response: WorkerResponse) -> BoxStream<'static, Step> {
    records(response.bytes).map(step).chain(stream::iter([Step::End])).boxed()
}

fn step(record: Result<Value, GatewayError>) -> Step {
    match record {
        Ok(record) => match record["error"].as_str() {
            Some(error) => Step::Failed(error.to_owned()),
            None => Step::Record(record),
        },
        Err(error) => {
            tracing::warn!(error = chain(&error), "response ended early");
            Step::Failed(match error {
                GatewayError::ResponseInterrupted(_) | GatewayError::NotRead { .. } => error.to_string(),
                _ => "the worker's response is invalid".to_owned(),
            })
        }
    }
}

/// One server-sent event with a name.
pub(super) fn named_event(name: &str, data: &impl serde::Serialize) -> String {
    let data = serde_json::to_string(data).expect("strings, numbers and JSON are JSON");
    format!("event: {name}\ndata: {data}\n\n")
}

/// The records, up to the first error.
fn records(bytes: Bytestream) -> impl Stream<Item = Result<Value, GatewayError>> + Send {
    stream::unfold(Some((bytes, BytesMut::new())), |state| async {
        let (mut bytes, mut buffer) = state?;
        match next_line(&mut bytes, &mut buffer).await {
            Ok(Some(line)) => match serde_json::from_slice(&line) {
                Ok(record) => Some((Ok(record), Some((bytes, buffer)))),
                Err(error) => Some((Err(GatewayError::InvalidResponse(error)), None)),
            },
            Ok(None) => None,
            Err(error) => Some((Err(error), None)),
        }
    })
}

async fn next_line(bytes: &mut Bytestream, buffer: &mut BytesMut) -> Result<Option<BytesMut>, GatewayError> {
    let mut searched = 0;
    loop {
        if let Some(end) = buffer[searched..].iter().position(|byte| *byte == b'\n') {
            let line = buffer.split_to(searched + end + 1);
            if line.trim_ascii().is_empty() {
                searched = 0;
                continue;
            }
            return Ok(Some(line));
        }
        searched = buffer.len();
        if searched > MAX_LINE_BYTES {
            return Err(GatewayError::LineTooLong { limit_bytes: MAX_LINE_BYTES });
        }
        match bytes.next().await {
            Some(more) => buffer.extend_from_slice(&more?),
            // Bytes without a final newline are a record too.
            None if buffer.trim_ascii().is_empty() => return Ok(None),
            None => return Ok(Some(buffer.split())),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::TryStreamExt;
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn records_are_split_at_any_chunk_size() {
        let text = "{\"n\":1}\n\n{\"n\":2}\n{\"n\":3}";
        for size in 1..text.len() {
            let pieces: Vec<_> =
                text.as_bytes().chunks(size).map(|piece| Ok(Bytes::from_static(piece))).collect();
            let found: Vec<Value> = records(stream::iter(pieces).boxed()).try_collect().await.unwrap();
            assert_eq!(found, [json!({"n": 1}), json!({"n": 2}), json!({"n": 3})], "{size}");
        }
    }

    #[tokio::test]
    async fn an_invalid_record_ends_the_stream() {
        let bytes = stream::iter([Ok(Bytes::from_static(b"{}\nnonsense\n{}\n"))]).boxed();
        let found: Vec<_> = records(bytes).collect().await;
        assert_eq!(found.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false]);
    }
}

//! Answers: one JSON object, or NDJSON records while a model generates.
//! An error before the first record sets the status; later it is a record of its own, as ollama does.

use std::convert::Infallible;
use std::time::{Duration, SystemTime};

use axum::body::{Body, Bytes};
use axum::response::{IntoResponse, Response};
use futures::{FutureExt, Stream, StreamExt};
use http::{StatusCode, header};
use serde::Serialize;
use serde_json::{Map, Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::time::Instant;

use crate::error::Error;
use crate::runner::EventStream;
use crate::runner::protocol::{Done, DoneReason, Event, GenerateRequest, TokenLogprob};
use crate::scheduler::Ticket;

/// Whether records are those of `/api/generate` or of `/api/chat`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    Generate,
    Chat,
}

/// Writes the records of one answer.
#[derive(Clone)]
pub(super) struct Records {
    pub(super) shape: Shape,
    pub(super) model: String,
    pub(super) started: Instant,
    pub(super) load: Duration,
}

pub(super) fn json(status: StatusCode, value: &impl Serialize) -> Response {
    let body = serde_json::to_vec(value).unwrap_or_default();
    (status, [(header::CONTENT_TYPE, "application/json; charset=utf-8")], body).into_response()
}

/// RFC 3339, UTC.
pub(super) fn timestamp(at: SystemTime) -> String {
    OffsetDateTime::from(at).format(&Rfc3339).unwrap_or_default()
}

/// Asks the runner and passes on what comes. The ticket is held to the end of the answer.
pub(super) async fn answer(
    ticket: Ticket,
    mut request: GenerateRequest,
    records: Records,
    stream: bool,
) -> Result<Response, Error> {
    request.whole = !stream;
    let mut events = ticket.model().client().generate(&request).await?;
    // The first event decides the status.
    let first = match events.next().await {
        Some(Event::Error(error)) => return Err(Error::Runner(error)),
        Some(event) => event,
        None => return Err(Error::RunnerGone),
    };
    if !stream {
        return whole(first, events, &records).await;
    }
    let rest = Rest { first: Some(first), events, records, _ticket: ticket };
    Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(rest.lines())).into_response())
}

/// The prompt in place of an answer.
pub(super) async fn rendered(
    ticket: Ticket,
    request: &GenerateRequest,
    records: &Records,
) -> Result<Response, Error> {
    let rendered = ticket.model().client().render(request).await?;
    let mut record = records.record(String::new(), Vec::new());
    record.insert("done".into(), json!(false));
    record.insert("_debug_info".into(), json!({"rendered_template": rendered.text}));
    Ok(json(StatusCode::OK, &record))
}

struct Rest {
    first: Option<Event>,
    events: EventStream,
    records: Records,
    _ticket: Ticket,
}

impl Rest {
    fn lines(self) -> impl Stream<Item = Result<Bytes, Infallible>> {
        futures::stream::unfold(self, |mut rest| async move {
            loop {
                let event = match rest.first.take() {
                    Some(event) => event,
                    None => rest.events.next().await?,
                };
                let mut lines = rest.records.lines(event);
                // What is here already leaves with it.
                while let Some(Some(event)) = rest.events.next().now_or_never() {
                    lines.extend(rest.records.lines(event));
                }
                if !lines.is_empty() {
                    return Some((Ok(Bytes::from(lines)), rest));
                }
            }
        })
    }
}

async fn whole(first: Event, mut events: EventStream, records: &Records) -> Result<Response, Error> {
    let mut text = String::new();
    let mut logprobs = Vec::new();
    let mut next = Some(first);
    while let Some(event) = next {
        match event {
            Event::Token { text: piece, logprob } => {
                text.push_str(&piece);
                logprobs.extend(logprob);
            }
            Event::Done(done) => {
                text.push_str(&done.text);
                return Ok(json(StatusCode::OK, &records.last(&done, text, logprobs)));
            }
            Event::Error(error) => return Err(Error::Runner(error)),
        }
        next = events.next().await;
    }
    Err(Error::RunnerGone)
}

impl Records {
    /// The answer to a request that only loads or unloads.
    pub(super) fn empty(&self, reason: &str) -> Response {
        let mut record = self.record(String::new(), Vec::new());
        record.insert("done".into(), json!(true));
        record.insert("done_reason".into(), json!(reason));
        json(StatusCode::OK, &record)
    }

    fn lines(&self, event: Event) -> Vec<u8> {
        let mut lines = Vec::new();
        let mut push = |record: &Map<String, Value>| {
            // A map of strings and numbers is always JSON.
            serde_json::to_writer(&mut lines, record).unwrap_or_default();
            lines.push(b'\n');
        };
        match event {
            Event::Token { text, logprob } if text.is_empty() && logprob.is_none() => {}
            Event::Token { text, logprob } => push(&self.piece(text, logprob.into_iter().collect())),
            Event::Done(mut done) => {
                let text = std::mem::take(&mut done.text);
                if !text.is_empty() {
                    push(&self.piece(text, Vec::new()));
                }
                push(&self.last(&done, String::new(), Vec::new()));
            }
            Event::Error(error) => push(&Map::from_iter([("error".to_owned(), json!(error.message))])),
        }
        lines
    }

    fn piece(&self, text: String, logprobs: Vec<TokenLogprob>) -> Map<String, Value> {
        let mut record = self.record(text, logprobs);
        record.insert("done".into(), json!(false));
        record
    }

    fn last(&self, done: &Done, text: String, logprobs: Vec<TokenLogprob>) -> Map<String, Value> {
        let mut record = self.record(text, logprobs);
        let reason = match done.reason {
            DoneReason::Stop => "stop",
            DoneReason::Length => "length",
        };
        record.insert("done".into(), json!(true));
        record.insert("done_reason".into(), json!(reason));
        if self.shape == Shape::Generate {
            record.insert("context".into(), json!(done.context));
        }
        // Clients take a missing duration for a failure, and leave out a zero.
        let at_least_one = |nanoseconds: u128| json!(u64::try_from(nanoseconds).unwrap_or(u64::MAX).max(1));
        record.insert("total_duration".into(), at_least_one(self.started.elapsed().as_nanos()));
        record.insert("load_duration".into(), at_least_one(self.load.as_nanos()));
        record.insert("prompt_eval_count".into(), json!(done.prompt_tokens));
        if done.cached_tokens > 0 {
            record.insert("prompt_cached_count".into(), json!(done.cached_tokens));
        }
        record.insert("prompt_eval_duration".into(), at_least_one(done.prompt_ns.into()));
        record.insert("eval_count".into(), json!(done.eval_tokens));
        record.insert("eval_duration".into(), at_least_one(done.eval_ns.into()));
        record
    }

    fn record(&self, text: String, logprobs: Vec<TokenLogprob>) -> Map<String, Value> {
        let mut record = Map::new();
        record.insert("model".into(), json!(self.model));
        record.insert("created_at".into(), json!(timestamp(SystemTime::now())));
        match self.shape {
            Shape::Generate => record.insert("response".into(), json!(text)),
            Shape::Chat => record.insert("message".into(), json!({"role": "assistant", "content": text})),
        };
        if !logprobs.is_empty() {
            record.insert("logprobs".into(), json!(logprobs));
        }
        record
    }
}

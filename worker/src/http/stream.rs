//! Responses: one JSON object, or NDJSON records while a model generates. An error before the first record
//! sets the status; a later one is sent as a record, as in ollama.

use std::convert::Infallible;
use std::mem::take;
use std::time::{Duration, SystemTime};

use axum::body::{Body, Bytes};
use axum::response::{IntoResponse, Response};
use futures::{FutureExt, Stream, StreamExt};
use http::{StatusCode, header};
use serde_json::{Map, Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::time::Instant;

use super::error::with_name;
use super::response::json_response;
use crate::error::Error;
use crate::runner::EventStream;
use crate::runner::protocol::{Done, DoneReason, Event, OutgoingRequest, TokenLogprob};
use crate::scheduler::Ticket;
use crate::text::{Call, OutputParts};

/// Whether records have the form of `/api/generate` or of `/api/chat`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    Generate,
    Chat,
}

/// Writes the records of one response.
#[derive(Clone)]
pub(super) struct Records {
    pub(super) shape: Shape,
    pub(super) model: String,
    pub(super) started: Instant,
    pub(super) load: Duration,
}

/// RFC 3339, UTC.
pub(super) fn timestamp(at: SystemTime) -> String {
    OffsetDateTime::from(at).format(&Rfc3339).unwrap_or_default()
}

/// Sends the request to the runner and forwards its events. The ticket is held until the end of the response.
pub(super) async fn run_generation(
    ticket: Ticket,
    mut request: OutgoingRequest,
    records: Records,
    stream: bool,
) -> Result<Response, Error> {
    request.whole = !stream;
    let mut events = ticket.model().client().generate(&request).await?;
    drop(request);
    // The first event determines the status.
    let first = match events.next().await {
        Some(Event::Error(error)) => return Err(Error::Runner(error)),
        Some(event) => event,
        None => return Err(Error::RunnerGone),
    };
    if !stream {
        return collect_response(first, events, &records, &ticket).await;
    }
    ticket.model().metrics().record_first_token(records.started.elapsed());
    let rest = RecordStream { first: Some(first), events, records, calls: 0, ticket };
    Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(rest.lines())).into_response())
}

/// Returns the rendered prompt instead of a response.
pub(super) async fn render_prompt(
    ticket: Ticket,
    request: &OutgoingRequest,
    records: &Records,
) -> Result<Response, Error> {
    let rendered = ticket.model().client().render(request).await?;
    let mut record = records.record(OutputParts::default(), 0, Vec::new());
    record.insert("done".into(), json!(false));
    record.insert("prompt_eval_count".into(), json!(rendered.prompt_tokens));
    record.insert("_debug_info".into(), json!({"rendered_template": rendered.text}));
    Ok(json_response(StatusCode::OK, &record))
}

struct RecordStream {
    first: Option<Event>,
    events: EventStream,
    records: Records,
    /// Number of tool calls so far.
    calls: usize,
    ticket: Ticket,
}

impl RecordStream {
    fn event_lines(&mut self, mut event: Event) -> Vec<u8> {
        match &mut event {
            Event::Error(error) => {
                error.message = with_name(&error.message, self.ticket.model().digest(), &self.records.model);
            }
            Event::Done(done) => count_tokens(&self.ticket, done),
            Event::Token { .. } => {}
        }
        self.records.lines(event, &mut self.calls)
    }

    fn lines(self) -> impl Stream<Item = Result<Bytes, Infallible>> {
        futures::stream::unfold(self, |mut rest| async move {
            loop {
                let event = match rest.first.take() {
                    Some(event) => event,
                    None => rest.events.next().await?,
                };
                let mut lines = rest.event_lines(event);
                // Events that have already arrived are sent in the same chunk.
                while let Some(Some(event)) = rest.events.next().now_or_never() {
                    lines.extend(rest.event_lines(event));
                }
                if !lines.is_empty() {
                    return Some((Ok(Bytes::from(lines)), rest));
                }
            }
        })
    }
}

async fn collect_response(
    first: Event,
    mut events: EventStream,
    records: &Records,
    ticket: &Ticket,
) -> Result<Response, Error> {
    let mut output = OutputParts::default();
    let mut logprobs = Vec::new();
    let mut next = Some(first);
    while let Some(event) = next {
        match event {
            Event::Token { text, thinking, calls, logprobs: more } => {
                output.extend(OutputParts { thinking, text, calls });
                logprobs.extend(more);
            }
            Event::Done(mut done) => {
                count_tokens(ticket, &done);
                output.extend(take_output(&mut done));
                return Ok(json_response(StatusCode::OK, &records.final_record(&done, output, logprobs)));
            }
            Event::Error(error) => return Err(Error::Runner(error)),
        }
        next = events.next().await;
    }
    Err(Error::RunnerGone)
}

fn count_tokens(ticket: &Ticket, done: &Done) {
    ticket.model().metrics().count_tokens(done.prompt_tokens, done.cached_tokens, done.eval_tokens);
}

/// The output that came with the last event.
fn take_output(done: &mut Done) -> OutputParts {
    let Done { text, thinking, calls, .. } = done;
    OutputParts { thinking: take(thinking), text: take(text), calls: take(calls) }
}

/// A tool call in the form that clients get, with a new id.
fn tool_call(index: usize, call: Call) -> Value {
    const LETTERS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    // Ids need to be unique only within a conversation.
    let mut number = getrandom::u64().unwrap_or(index as u64);
    let mut letters = || {
        let letter = LETTERS[(number % 36) as usize];
        number /= 36;
        char::from(letter)
    };
    let id: String = (0..8).map(|_| letters()).collect();
    json!({
        "id": format!("call_{id}"),
        "function": {"index": index, "name": call.name, "arguments": call.arguments},
    })
}

impl Records {
    /// The response to a request that only loads or unloads a model.
    pub(super) fn empty(&self, reason: &str) -> Response {
        let mut record = self.record(OutputParts::default(), 0, Vec::new());
        record.insert("done".into(), json!(true));
        record.insert("done_reason".into(), json!(reason));
        json_response(StatusCode::OK, &record)
    }

    /// The records of an event. `calls_before` counts the tool calls so far.
    fn lines(&self, event: Event, calls_before: &mut usize) -> Vec<u8> {
        let mut lines = Vec::new();
        let mut push = |record: &Map<String, Value>| {
            // A map of strings and numbers is always JSON.
            serde_json::to_writer(&mut lines, record).unwrap_or_default();
            lines.push(b'\n');
        };
        match event {
            Event::Token { text, thinking, calls, logprobs } => {
                let output = OutputParts { thinking, text, calls };
                if !output.is_empty() || !logprobs.is_empty() {
                    let first = *calls_before;
                    *calls_before += output.calls.len();
                    push(&self.partial_record(output, first, logprobs));
                }
            }
            Event::Done(mut done) => {
                let output = take_output(&mut done);
                if !output.is_empty() {
                    push(&self.partial_record(output, *calls_before, Vec::new()));
                }
                push(&self.final_record(&done, OutputParts::default(), Vec::new()));
            }
            Event::Error(error) => push(&Map::from_iter([("error".to_owned(), json!(error.message))])),
        }
        lines
    }

    fn partial_record(
        &self,
        output: OutputParts,
        calls_before: usize,
        logprobs: Vec<TokenLogprob>,
    ) -> Map<String, Value> {
        let mut record = self.record(output, calls_before, logprobs);
        record.insert("done".into(), json!(false));
        record
    }

    fn final_record(
        &self,
        done: &Done,
        output: OutputParts,
        logprobs: Vec<TokenLogprob>,
    ) -> Map<String, Value> {
        let mut record = self.record(output, 0, logprobs);
        let reason = match done.reason {
            DoneReason::Stop => "stop",
            DoneReason::Length => "length",
        };
        record.insert("done".into(), json!(true));
        record.insert("done_reason".into(), json!(reason));
        if let Some(stop) = &done.stop_text {
            record.insert("stop_text".into(), json!(stop));
        }
        if self.shape == Shape::Generate {
            record.insert("context".into(), json!(done.context));
        }
        // Clients treat a missing duration as a failure and do not show a zero.
        let at_least_one = |nanoseconds: u128| json!(u64::try_from(nanoseconds).unwrap_or(u64::MAX).max(1));
        record.insert("total_duration".into(), at_least_one(self.started.elapsed().as_nanos()));
        record.insert("load_duration".into(), at_least_one(self.load.as_nanos()));
        record.insert("prompt_eval_count".into(), json!(done.prompt_tokens));
        if done.cached_tokens > 0 {
            record.insert("prompt_cached_count".into(), json!(done.cached_tokens));
        }
        record.insert("prompt_eval_duration".into(), at_least_one(done.prompt_ns.into()));
        record.insert("eval_count".into(), json!(done.eval_tokens));
        if done.thinking_tokens > 0 {
            record.insert("thinking_count".into(), json!(done.thinking_tokens));
        }
        record.insert("eval_duration".into(), at_least_one(done.eval_ns.into()));
        record
    }

    fn record(
        &self,
        output: OutputParts,
        calls_before: usize,
        logprobs: Vec<TokenLogprob>,
    ) -> Map<String, Value> {
        let OutputParts { thinking, text, calls } = output;
        let mut parts = Map::new();
        if !thinking.is_empty() {
            parts.insert("thinking".into(), json!(thinking));
        }
        if !calls.is_empty() {
            let calls = calls.into_iter().zip(calls_before..).map(|(call, index)| tool_call(index, call));
            parts.insert("tool_calls".into(), calls.collect());
        }

        let mut record = Map::new();
        record.insert("model".into(), json!(self.model));
        record.insert("created_at".into(), json!(timestamp(SystemTime::now())));
        match self.shape {
            Shape::Generate => {
                record.insert("response".into(), json!(text));
                record.append(&mut parts);
            }
            Shape::Chat => {
                let mut message = Map::new();
                message.insert("role".into(), json!("assistant"));
                message.insert("content".into(), json!(text));
                message.append(&mut parts);
                record.insert("message".into(), message.into());
            }
        }
        if !logprobs.is_empty() {
            record.insert("logprobs".into(), json!(logprobs));
        }
        record
    }
}

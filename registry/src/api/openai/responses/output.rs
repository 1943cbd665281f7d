//! Converts a worker's records to a response: one object, or server-sent events.

use axum::response::Response;
use lode_client::Charge;
use serde_json::{Value, json};
use uuid::Uuid;

use super::object::{Progress, ResponseObject, Status, usage};
use super::request::Settings;
use crate::api::worker_records::{ChatCall, ChatMessage, ChatRecord, Step, named_event, send_events};
use crate::gateway::{GatewayError, WorkerResponse};
use crate::http::Failure;
use crate::time::now_ms;

/// One response and its progress.
pub(super) struct Reply {
    id: String,
    created: i64,
    settings: Settings,
    /// The items that are complete.
    output: Vec<Value>,
    /// The item that is being sent.
    open: Option<OpenItem>,
    calls: usize,
    /// Log-probabilities of tokens whose text has not been sent.
    logprobs: Vec<Value>,
    sequence_number: u64,
    is_over: bool,
    /// For the settings.
    _charge: Charge,
}

struct OpenItem {
    id: String,
    kind: ItemKind,
    text: String,
    logprobs: Vec<Value>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ItemKind {
    Reasoning,
    Message,
}

fn new_id(prefix: &str) -> String {
    format!("{prefix}_{}", Uuid::new_v4().simple())
}

impl OpenItem {
    fn new(kind: ItemKind) -> OpenItem {
        let prefix = if kind == ItemKind::Reasoning { "rs" } else { "msg" };
        OpenItem { id: new_id(prefix), kind, text: String::new(), logprobs: Vec::new() }
    }

    /// Its only part, with its text so far.
    fn part(&self) -> Value {
        match self.kind {
            ItemKind::Reasoning => json!({ "type": "reasoning_text", "text": self.text }),
            ItemKind::Message => json!({
                "type": "output_text", "text": self.text, "annotations": [], "logprobs": self.logprobs,
            }),
        }
    }

    fn item(&self, status: &str, content: Vec<Value>) -> Value {
        match self.kind {
            ItemKind::Reasoning => {
                json!({ "type": "reasoning", "id": self.id, "summary": [], "content": content, "status": status })
            }
            ItemKind::Message => {
                json!({ "type": "message", "id": self.id, "role": "assistant", "content": content, "status": status })
            }
        }
    }
}

fn call_item(id: &str, call: &ChatCall, status: &str, arguments: &str) -> Value {
    json!({
        "type": "function_call", "id": id, "call_id": call.id, "name": call.function.name,
        "arguments": arguments, "status": status,
    })
}

impl Reply {
    pub(super) fn new(settings: Settings, charge: Charge) -> Reply {
        Reply {
            id: new_id("resp"),
            created: now_ms() / 1000,
            settings,
            output: Vec::new(),
            open: None,
            calls: 0,
            logprobs: Vec::new(),
            sequence_number: 0,
            is_over: false,
            _charge: charge,
        }
    }

    /// The response to a request without streaming.
    pub(super) fn into_object(mut self, record: Value) -> Result<Value, Failure> {
        let record: ChatRecord = serde_json::from_value(record).map_err(GatewayError::InvalidResponse)?;
        let is_cut = record.done_reason.as_deref() == Some("length");
        let (status, usage) = (final_status(&record), usage(&record));
        // The events are not used, but their items are.
        self.add(record, &mut String::new());
        self.close(if is_cut { "incomplete" } else { "completed" }, &mut String::new());
        let object = self.object(Progress { status, output: &self.output, usage: Some(usage), error: None });
        Ok(serde_json::to_value(object).map_err(GatewayError::InvalidResponse)?)
    }

    pub(super) fn into_events(mut self, response: WorkerResponse) -> Response {
        let mut begin = String::new();
        for kind in ["response.created", "response.in_progress"] {
            self.lifecycle(kind, Status::InProgress, None, None, &mut begin);
        }
        send_events(response, begin, move |step| {
            if self.is_over {
                return String::new();
            }
            match step {
                Step::Record(record) => match serde_json::from_value(record) {
                    Ok(record) => self.record(record),
                    Err(_) => self.failed("the worker's response is invalid"),
                },
                Step::Failed(error) => self.failed(&error),
                Step::End => self.failed("the worker's response ended early"),
            }
        })
    }

    fn object<'a>(&'a self, progress: Progress<'a>) -> ResponseObject<'a> {
        ResponseObject::new((&self.id, self.created), &self.settings, progress)
    }

    /// An event with the whole response.
    fn lifecycle(
        &mut self,
        kind: &str,
        status: Status,
        usage: Option<Value>,
        error: Option<&str>,
        events: &mut String,
    ) {
        let object = self.object(Progress { status, output: &self.output, usage, error });
        let data = json!({ "type": kind, "sequence_number": self.sequence_number, "response": object });
        events.push_str(&named_event(kind, &data));
        self.sequence_number += 1;
    }

    /// An event about the current output item.
    fn event(&mut self, kind: &str, mut data: Value, events: &mut String) {
        data["type"] = json!(kind);
        data["sequence_number"] = json!(self.sequence_number);
        data["output_index"] = json!(self.output.len());
        events.push_str(&named_event(kind, &data));
        self.sequence_number += 1;
    }

    fn failed(&mut self, message: &str) -> String {
        self.is_over = true;
        let mut events = String::new();
        self.close("incomplete", &mut events);
        self.lifecycle("response.failed", Status::Failed, None, Some(message), &mut events);
        events
    }

    /// The events of one record.
    fn record(&mut self, record: ChatRecord) -> String {
        let mut events = String::new();
        let is_done = record.done;
        let (status, usage) = (final_status(&record), usage(&record));
        self.add(record, &mut events);
        if is_done {
            let (item_status, kind) = match status {
                Status::Incomplete => ("incomplete", "response.incomplete"),
                _ => ("completed", "response.completed"),
            };
            self.close(item_status, &mut events);
            self.lifecycle(kind, status, Some(usage), None, &mut events);
            self.is_over = true;
        }
        events
    }

    /// Adds a record's parts to the output.
    fn add(&mut self, record: ChatRecord, events: &mut String) {
        let ChatMessage { content, thinking, mut tool_calls } = record.message;
        if let Some(Value::Array(logprobs)) = record.logprobs {
            self.logprobs.extend(logprobs);
        }
        if !thinking.is_empty() {
            self.text(ItemKind::Reasoning, &thinking, events);
        }
        if !content.is_empty() {
            self.text(ItemKind::Message, &content, events);
        }
        if !self.settings.parallel_tool_calls {
            tool_calls.truncate(1_usize.saturating_sub(self.calls));
        }
        for call in tool_calls {
            self.close("completed", events);
            self.call(&call, events);
        }
    }

    /// Adds text to an item, which begins if it is not open.
    fn text(&mut self, kind: ItemKind, text: &str, events: &mut String) {
        if self.open.as_ref().is_none_or(|open| open.kind != kind) {
            self.close("completed", events);
            let item = OpenItem::new(kind);
            self.event(
                "response.output_item.added",
                json!({ "item": item.item("in_progress", Vec::new()) }),
                events,
            );
            let part = json!({ "item_id": item.id, "content_index": 0, "part": item.part() });
            self.event("response.content_part.added", part, events);
            self.open = Some(item);
        }
        let mut logprobs = std::mem::take(&mut self.logprobs);
        let Some(item) = &mut self.open else { return };
        item.text.push_str(text);
        let mut data = json!({ "item_id": item.id, "content_index": 0, "delta": text });
        let kind = match kind {
            ItemKind::Reasoning => "response.reasoning_text.delta",
            ItemKind::Message => {
                data["logprobs"] = json!(logprobs);
                item.logprobs.append(&mut logprobs);
                "response.output_text.delta"
            }
        };
        self.event(kind, data, events);
    }

    /// Ends the open item, if there is one.
    fn close(&mut self, status: &str, events: &mut String) {
        let Some(item) = self.open.take() else { return };
        let mut data = json!({ "item_id": item.id, "content_index": 0, "text": item.text });
        let kind = match item.kind {
            ItemKind::Reasoning => "response.reasoning_text.done",
            ItemKind::Message => {
                data["logprobs"] = json!(item.logprobs);
                "response.output_text.done"
            }
        };
        self.event(kind, data, events);
        let part = json!({ "item_id": item.id, "content_index": 0, "part": item.part() });
        self.event("response.content_part.done", part, events);
        self.item_done(item.item(status, vec![item.part()]), events);
    }

    fn call(&mut self, call: &ChatCall, events: &mut String) {
        self.calls += 1;
        let id = new_id("fc");
        let arguments = serde_json::to_string(&call.function.arguments).unwrap_or_default();
        let begun = call_item(&id, call, "in_progress", "");
        self.event("response.output_item.added", json!({ "item": begun }), events);
        let delta = json!({ "item_id": id, "delta": arguments });
        self.event("response.function_call_arguments.delta", delta, events);
        let done = json!({ "item_id": id, "name": call.function.name, "arguments": arguments });
        self.event("response.function_call_arguments.done", done, events);
        self.item_done(call_item(&id, call, "completed", &arguments), events);
    }

    fn item_done(&mut self, item: Value, events: &mut String) {
        self.event("response.output_item.done", json!({ "item": item }), events);
        self.output.push(item);
    }
}

fn final_status(record: &ChatRecord) -> Status {
    match record.done_reason.as_deref() {
        Some("length") => Status::Incomplete,
        _ => Status::Completed,
    }
}

//! Converts a worker's records to a message: one object, or server-sent events.

use axum::response::Response;
use serde_json::{Value, json};

use super::error::error_object;
use super::request::ReplyOptions;
use crate::api::worker_records::{ChatCall, ChatMessage, ChatRecord, Step, named_event, send_events};
use crate::gateway::{GatewayError, WorkerResponse};
use crate::http::Failure;

/// One response and its progress.
pub(super) struct MessageReply {
    id: String,
    options: ReplyOptions,
    /// The content block that is being sent.
    open: Option<BlockKind>,
    /// Number of blocks that have begun.
    blocks: usize,
    calls: usize,
    is_over: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum BlockKind {
    Thinking,
    Text,
}

impl MessageReply {
    pub(super) fn new(options: ReplyOptions) -> MessageReply {
        let id = format!("msg_{}", uuid::Uuid::new_v4().simple());
        MessageReply { id, options, open: None, blocks: 0, calls: 0, is_over: false }
    }

    /// The response to a request without streaming.
    pub(super) fn into_message(mut self, record: Value) -> Result<Value, Failure> {
        let mut record: ChatRecord = serde_json::from_value(record).map_err(GatewayError::InvalidResponse)?;
        let ChatMessage { content, thinking, tool_calls } = std::mem::take(&mut record.message);
        let mut blocks = Vec::new();
        if !thinking.is_empty() {
            blocks.push(json!({ "type": "thinking", "thinking": thinking, "signature": "" }));
        }
        if !content.is_empty() {
            blocks.push(json!({ "type": "text", "text": content }));
        }
        for call in self.accepted(tool_calls) {
            let ChatCall { id, function } = call;
            blocks.push(
                json!({ "type": "tool_use", "id": id, "name": function.name, "input": function.arguments }),
            );
        }
        let mut message = self.message(blocks);
        (message["stop_reason"], message["stop_sequence"]) = self.stop(&record);
        message["usage"] = usage(&record);
        Ok(message)
    }

    pub(super) fn into_events(mut self, response: WorkerResponse) -> Response {
        let begin = json!({ "type": "message_start", "message": self.message(Vec::new()) });
        let begin = named_event("message_start", &begin);
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

    fn message(&self, content: Vec<Value>) -> Value {
        json!({
            "id": self.id, "type": "message", "role": "assistant", "model": self.options.model,
            "content": content, "stop_reason": null, "stop_sequence": null,
            "usage": { "input_tokens": 0, "output_tokens": 0 },
        })
    }

    /// The tool calls that the response may have.
    fn accepted(&mut self, mut calls: Vec<ChatCall>) -> Vec<ChatCall> {
        if self.options.is_single_call {
            calls.truncate(1_usize.saturating_sub(self.calls));
        }
        self.calls += calls.len();
        calls
    }

    fn failed(&mut self, message: &str) -> String {
        self.is_over = true;
        named_event("error", &error_object("api_error", message))
    }

    /// The events of one record.
    fn record(&mut self, mut record: ChatRecord) -> String {
        let mut events = String::new();
        let ChatMessage { content, thinking, tool_calls } = std::mem::take(&mut record.message);
        if !thinking.is_empty() {
            self.open_block(BlockKind::Thinking, &mut events);
            self.delta(json!({ "type": "thinking_delta", "thinking": thinking }), &mut events);
        }
        if !content.is_empty() {
            self.open_block(BlockKind::Text, &mut events);
            self.delta(json!({ "type": "text_delta", "text": content }), &mut events);
        }
        for ChatCall { id, function } in self.accepted(tool_calls) {
            self.close_block(&mut events);
            self.start(
                json!({ "type": "tool_use", "id": id, "name": function.name, "input": {} }),
                &mut events,
            );
            let arguments = Value::Object(function.arguments).to_string();
            self.delta(json!({ "type": "input_json_delta", "partial_json": arguments }), &mut events);
            self.stop_block(&mut events);
        }
        if record.done {
            self.close_block(&mut events);
            let (reason, sequence) = self.stop(&record);
            let delta = json!({ "stop_reason": reason, "stop_sequence": sequence });
            let delta = json!({ "type": "message_delta", "delta": delta, "usage": usage(&record) });
            events.push_str(&named_event("message_delta", &delta));
            events.push_str(&named_event("message_stop", &json!({ "type": "message_stop" })));
            self.is_over = true;
        }
        events
    }

    fn open_block(&mut self, kind: BlockKind, events: &mut String) {
        if self.open == Some(kind) {
            return;
        }
        self.close_block(events);
        let block = match kind {
            BlockKind::Thinking => json!({ "type": "thinking", "thinking": "", "signature": "" }),
            BlockKind::Text => json!({ "type": "text", "text": "" }),
        };
        self.start(block, events);
        self.open = Some(kind);
    }

    fn close_block(&mut self, events: &mut String) {
        match self.open.take() {
            None => {}
            Some(BlockKind::Text) => self.stop_block(events),
            Some(BlockKind::Thinking) => {
                // Clients expect one; reasoning is not signed here.
                self.delta(json!({ "type": "signature_delta", "signature": "" }), events);
                self.stop_block(events);
            }
        }
    }

    fn start(&mut self, block: Value, events: &mut String) {
        let event = json!({ "type": "content_block_start", "index": self.blocks, "content_block": block });
        events.push_str(&named_event("content_block_start", &event));
        self.blocks += 1;
    }

    fn delta(&self, delta: Value, events: &mut String) {
        let event =
            json!({ "type": "content_block_delta", "index": self.blocks.saturating_sub(1), "delta": delta });
        events.push_str(&named_event("content_block_delta", &event));
    }

    fn stop_block(&self, events: &mut String) {
        let event = json!({ "type": "content_block_stop", "index": self.blocks.saturating_sub(1) });
        events.push_str(&named_event("content_block_stop", &event));
    }

    /// The stop reason, and the stop sequence of the request that ended the response.
    fn stop(&self, record: &ChatRecord) -> (Value, Value) {
        if record.done_reason.as_deref() == Some("length") {
            let is_full = record.eval_count < self.options.max_tokens;
            let reason = if is_full { "model_context_window_exceeded" } else { "max_tokens" };
            return (json!(reason), Value::Null);
        }
        let stop = record.stop_text.as_ref().filter(|stop| self.options.stop_sequences.contains(stop));
        match stop {
            Some(stop) => (json!("stop_sequence"), json!(stop)),
            None if self.calls > 0 => (json!("tool_use"), Value::Null),
            None => (json!("end_turn"), Value::Null),
        }
    }
}

/// As in Anthropic's API, tokens from the prompt cache do not count as input tokens.
fn usage(record: &ChatRecord) -> Value {
    json!({
        "input_tokens": record.prompt_eval_count.saturating_sub(record.prompt_cached_count),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": record.prompt_cached_count,
        "output_tokens": record.eval_count,
        "output_tokens_details": { "thinking_tokens": record.thinking_count },
    })
}

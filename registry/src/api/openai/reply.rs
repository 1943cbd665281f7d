//! Converts a worker's records to OpenAI's responses: one object, or server-sent events.

use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use crate::api::inference::read_json;
use crate::api::worker_records::{Step, send_events};
use crate::gateway::WorkerResponse;
use crate::http::{Failure, Json};
use crate::time::now_ms;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    Chat,
    Completion,
}

/// One response: the fields that all its parts repeat, and its progress.
pub(super) struct Reply {
    shape: Shape,
    id: String,
    created: i64,
    model: String,
    include_usage: bool,
    has_begun: bool,
    has_called: bool,
    /// Characters of the tokens whose log-probabilities have been sent.
    text_offset: usize,
}

impl Reply {
    pub(super) fn new(shape: Shape, model: String, include_usage: bool) -> Reply {
        let prefix = if shape == Shape::Chat { "chatcmpl" } else { "cmpl" };
        let id = format!("{prefix}-{}", uuid::Uuid::new_v4().simple());
        let created = now_ms() / 1000;
        Reply {
            shape,
            id,
            created,
            model,
            include_usage,
            has_begun: false,
            has_called: false,
            text_offset: 0,
        }
    }

    pub(super) async fn into_http_response(
        mut self,
        response: WorkerResponse,
        stream: bool,
    ) -> Result<Response, Failure> {
        if stream {
            return Ok(self.events(response));
        }
        let record: Value = read_json(response).await?;
        Ok(Json(self.single_response(&record)).into_response())
    }

    /// The response to a request without streaming.
    fn single_response(&mut self, record: &Value) -> Value {
        let mut choice = self.content(record, "message");
        choice.insert("finish_reason".to_owned(), self.finish_reason(record));
        let mut object = self.object([Value::Object(choice)].into(), "");
        object["usage"] = usage(record);
        object
    }

    fn events(mut self, response: WorkerResponse) -> Response {
        send_events(response, String::new(), move |step| match step {
            Step::Record(record) => self.chunks(&record).iter().map(event).collect(),
            Step::Failed(error) => event(&failed(&json!(error))),
            Step::End => "data: [DONE]\n\n".to_owned(),
        })
    }

    /// The chunks of one record: its text and, at the end, a finish reason and the requested usage.
    fn chunks(&mut self, record: &Value) -> Vec<Value> {
        let mut chunks = Vec::new();
        let is_done = record["done"] == json!(true);
        let mut choice = self.content(record, "delta");
        if !is_done || has_content(record) {
            choice.insert("finish_reason".to_owned(), Value::Null);
            chunks.push(self.object([Value::Object(choice)].into(), ".chunk"));
        }
        if is_done {
            let mut last = match self.shape {
                Shape::Chat => json!({ "index": 0, "delta": {} }),
                Shape::Completion => json!({ "index": 0, "text": "" }),
            };
            last["finish_reason"] = self.finish_reason(record);
            chunks.push(self.object([last].into(), ".chunk"));
            if self.include_usage {
                let mut counts = self.object(Vec::new(), ".chunk");
                counts["usage"] = usage(record);
                chunks.push(counts);
            }
        }
        chunks
    }

    /// The choice with a record's text, without its finish reason. `key` is the field of a chat's text.
    fn content(&mut self, record: &Value, key: &str) -> Map<String, Value> {
        let mut choice = Map::new();
        choice.insert("index".to_owned(), json!(0));
        if self.shape == Shape::Completion {
            choice.insert("text".to_owned(), record["response"].clone());
            if let Some(tokens) = record["logprobs"].as_array() {
                choice.insert("logprobs".to_owned(), self.completion_logprobs(tokens));
            }
            return choice;
        }
        let worker_message = &record["message"];
        let mut message = Map::new();
        // A stream has the role only once.
        if !std::mem::replace(&mut self.has_begun, true) {
            message.insert("role".to_owned(), json!("assistant"));
        }
        message.insert("content".to_owned(), worker_message["content"].clone());
        if worker_message["thinking"].as_str().is_some_and(|text| !text.is_empty()) {
            message.insert("reasoning".to_owned(), worker_message["thinking"].clone());
        }
        if let Some(calls) = worker_message["tool_calls"].as_array().filter(|calls| !calls.is_empty()) {
            self.has_called = true;
            message.insert("tool_calls".to_owned(), calls.iter().enumerate().map(tool_call).collect());
        }
        choice.insert(key.to_owned(), Value::Object(message));
        if record["logprobs"].is_array() {
            choice.insert("logprobs".to_owned(), json!({ "content": record["logprobs"] }));
        }
        choice
    }

    /// Log-probabilities in the format of completions: a list for each of their fields.
    fn completion_logprobs(&mut self, tokens: &[Value]) -> Value {
        let column = |key: &str| tokens.iter().map(|token| token[key].clone()).collect::<Value>();
        let likeliest = |token: &Value| {
            let mut map = Map::new();
            for other in token["top_logprobs"].as_array().into_iter().flatten() {
                let text = other["token"].as_str().unwrap_or_default().to_owned();
                // Of partial characters with the same text, keep the likelier one, which comes first.
                map.entry(text).or_insert_with(|| other["logprob"].clone());
            }
            Value::Object(map)
        };
        let mut offset = |token: &Value| {
            let bytes = token["bytes"].as_array().into_iter().flatten().filter_map(Value::as_u64);
            // Count the bytes that begin a character: all but UTF-8 continuation bytes.
            let begun = bytes.filter(|byte| byte & 0xC0 != 0x80).count();
            let at = self.text_offset;
            self.text_offset += begun;
            at
        };
        json!({
            "tokens": column("token"),
            "token_logprobs": column("logprob"),
            "top_logprobs": tokens.iter().map(likeliest).collect::<Value>(),
            "text_offset": tokens.iter().map(&mut offset).collect::<Vec<usize>>(),
        })
    }

    fn object(&self, choices: Vec<Value>, suffix: &str) -> Value {
        let object = match self.shape {
            Shape::Chat => format!("chat.completion{suffix}"),
            // Its stream has no object name of its own.
            Shape::Completion => "text_completion".to_owned(),
        };
        json!({
            "id": self.id, "object": object, "created": self.created, "model": self.model,
            "system_fingerprint": "fp_lode", "choices": choices,
        })
    }

    fn finish_reason(&self, record: &Value) -> Value {
        match record["done_reason"].as_str() {
            // A truncated response may lack tool calls.
            Some("length") => json!("length"),
            _ if self.has_called => json!("tool_calls"),
            _ => json!("stop"),
        }
    }
}

fn has_content(record: &Value) -> bool {
    let texts = [&record["response"], &record["message"]["content"], &record["message"]["thinking"]];
    texts.iter().any(|text| text.as_str().is_some_and(|text| !text.is_empty()))
        || record["message"]["tool_calls"].as_array().is_some_and(|calls| !calls.is_empty())
}

fn tool_call((index, call): (usize, &Value)) -> Value {
    let function = &call["function"];
    json!({
        "id": call["id"], "index": function["index"].as_u64().unwrap_or(index as u64), "type": "function",
        "function": { "name": function["name"], "arguments": function["arguments"].to_string() },
    })
}

fn usage(record: &Value) -> Value {
    let count = |name: &str| record[name].as_u64().unwrap_or(0);
    let (prompt, completion) = (count("prompt_eval_count"), count("eval_count"));
    let mut usage = json!({
        "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
    });
    let cached = count("prompt_cached_count");
    if cached > 0 {
        usage["prompt_tokens_details"] = json!({ "cached_tokens": cached });
    }
    usage
}

fn failed(text: &Value) -> Value {
    json!({ "error": { "message": text, "type": "api_error", "param": null, "code": null } })
}

fn event(value: &Value) -> String {
    format!("data: {value}\n\n")
}

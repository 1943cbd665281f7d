//! Converts a worker's records to OpenAI's responses: one object, or server-sent events.

use serde_json::{Map, Value, json};

use super::{BestOf, ResponseOptions};
use crate::time::now_ms;

/// The end of a stream.
const DONE: &str = "data: [DONE]\n\n";

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
    options: ResponseOptions,
    choices: Vec<Choice>,
    usage: Usage,
}

/// The progress of one choice.
#[derive(Clone, Default)]
struct Choice {
    has_begun: bool,
    calls: usize,
    /// Characters of the tokens whose log-probabilities have been sent.
    text_offset: usize,
}

/// Tokens of all choices. A prompt counts once, whatever the number of its choices.
#[derive(Clone, Copy, Default)]
struct Usage {
    prompt: u64,
    cached: u64,
    completion: u64,
}

impl Reply {
    /// `choices`: the number of all choices.
    pub(super) fn new(shape: Shape, options: ResponseOptions, choices: usize) -> Reply {
        let prefix = if shape == Shape::Chat { "chatcmpl" } else { "cmpl" };
        let id = format!("{prefix}-{}", uuid::Uuid::new_v4().simple());
        let created = now_ms() / 1000;
        let choices = vec![Choice::default(); choices];
        Reply { shape, id, created, options, choices, usage: Usage::default() }
    }

    /// The response to a request without streaming: a record for each candidate.
    pub(super) fn single_response(&mut self, mut records: Vec<Value>) -> Value {
        let candidates = self.options.best_of.map_or(self.options.choices_of_each, |best| best.candidates);
        for (index, record) in records.iter().enumerate() {
            self.usage.add(record, index.is_multiple_of(candidates));
        }
        if let Some(best_of) = self.options.best_of {
            records = best_of.select(records, self.options.choices_of_each);
        }
        let choices = records.iter().enumerate().map(|(index, record)| {
            let mut choice = self.content(index, record, "message");
            choice.insert("finish_reason".to_owned(), self.finish_reason(index, record));
            Value::Object(choice)
        });
        let choices = choices.collect();
        let mut object = self.object(choices, "");
        object["usage"] = self.usage.json();
        object
    }

    /// The events of one record of a choice: its text and, at the end, a finish reason.
    pub(super) fn events(&mut self, index: usize, record: &Value) -> String {
        self.chunks(index, record).iter().map(event).collect()
    }

    /// The events after the last record: the requested usage.
    pub(super) fn last_events(&self) -> String {
        let mut events = String::new();
        if self.options.include_usage {
            let mut counts = self.object(Vec::new(), ".chunk");
            counts["usage"] = self.usage.json();
            events.push_str(&event(&counts));
        }
        events + DONE
    }

    /// The events after a failure.
    pub(super) fn failed_events(&self, message: &str) -> String {
        event(&failed(message)) + DONE
    }

    fn chunks(&mut self, index: usize, record: &Value) -> Vec<Value> {
        let mut chunks = Vec::new();
        let is_done = record["done"] == json!(true);
        // A chat's first chunk has the role, also if there is no text.
        let has_role = self.shape == Shape::Completion || self.choices[index].has_begun;
        let mut choice = self.content(index, record, "delta");
        if !is_done || !has_role || has_content(record) {
            choice.insert("finish_reason".to_owned(), Value::Null);
            chunks.push(self.object([Value::Object(choice)].into(), ".chunk"));
        }
        if is_done {
            self.usage.add(record, index.is_multiple_of(self.options.choices_of_each));
            let mut last = match self.shape {
                Shape::Chat => json!({ "index": index, "delta": {} }),
                Shape::Completion => json!({ "index": index, "text": "" }),
            };
            last["finish_reason"] = self.finish_reason(index, record);
            chunks.push(self.object([last].into(), ".chunk"));
        }
        chunks
    }

    /// The choice with a record's text, without its finish reason. `key` is the field of a chat's text.
    fn content(&mut self, index: usize, record: &Value, key: &str) -> Map<String, Value> {
        let mut choice = Map::new();
        choice.insert("index".to_owned(), json!(index));
        if self.shape == Shape::Completion {
            choice.insert("text".to_owned(), record["response"].clone());
            if let Some(tokens) = record["logprobs"].as_array() {
                choice.insert("logprobs".to_owned(), self.choices[index].completion_logprobs(tokens));
            }
            return choice;
        }
        let worker_message = &record["message"];
        let mut message = Map::new();
        // A stream has the role only once.
        if !std::mem::replace(&mut self.choices[index].has_begun, true) {
            message.insert("role".to_owned(), json!("assistant"));
        }
        message.insert("content".to_owned(), worker_message["content"].clone());
        if worker_message["thinking"].as_str().is_some_and(|text| !text.is_empty()) {
            message.insert("reasoning".to_owned(), worker_message["thinking"].clone());
        }
        let calls = worker_message["tool_calls"].as_array().map(Vec::as_slice).unwrap_or_default();
        let calls = match self.options.is_single_call {
            true => &calls[..calls.len().min(1_usize.saturating_sub(self.choices[index].calls))],
            false => calls,
        };
        if !calls.is_empty() {
            self.choices[index].calls += calls.len();
            message.insert("tool_calls".to_owned(), calls.iter().enumerate().map(tool_call).collect());
        }
        choice.insert(key.to_owned(), Value::Object(message));
        if record["logprobs"].is_array() {
            choice.insert("logprobs".to_owned(), json!({ "content": record["logprobs"] }));
        }
        choice
    }

    fn object(&self, choices: Vec<Value>, suffix: &str) -> Value {
        let object = match self.shape {
            Shape::Chat => format!("chat.completion{suffix}"),
            // Its stream has no object name of its own.
            Shape::Completion => "text_completion".to_owned(),
        };
        json!({
            "id": self.id, "object": object, "created": self.created, "model": self.options.model,
            "system_fingerprint": "fp_lode", "choices": choices,
        })
    }

    fn finish_reason(&self, index: usize, record: &Value) -> Value {
        match record["done_reason"].as_str() {
            // A truncated response may lack tool calls.
            Some("length") => json!("length"),
            _ if self.choices[index].calls > 0 => json!("tool_calls"),
            _ => json!("stop"),
        }
    }
}

impl BestOf {
    /// Selects the `choices` candidates of each prompt whose tokens have the highest mean log-probability, the best
    /// first.
    fn select(self, records: Vec<Value>, choices: usize) -> Vec<Value> {
        let mut records = records.into_iter().peekable();
        let mut selected = Vec::new();
        while records.peek().is_some() {
            let candidates = records.by_ref().take(self.candidates);
            let mut ranked: Vec<_> = candidates.map(|record| (self.mean_logprob(&record), record)).collect();
            ranked.sort_by(|(a, _), (b, _)| b.total_cmp(a));
            selected.extend(ranked.into_iter().take(choices).map(|(_, record)| record));
        }
        if !self.with_logprobs {
            selected.iter_mut().filter_map(Value::as_object_mut).for_each(|record| {
                record.remove("logprobs");
            });
        }
        selected
    }

    /// The mean over the generated tokens. A candidate without tokens is the least likely.
    fn mean_logprob(self, record: &Value) -> f64 {
        let of_prompt = if self.echo { record["prompt_eval_count"].as_u64().unwrap_or(0) } else { 0 };
        let tokens = record["logprobs"].as_array().map(Vec::as_slice).unwrap_or_default();
        let generated = tokens.iter().skip(usize::try_from(of_prompt).unwrap_or(usize::MAX));
        let (mut sum, mut count) = (0.0, 0.0);
        for logprob in generated.filter_map(|token| token["logprob"].as_f64()) {
            sum += logprob;
            count += 1.0;
        }
        if count > 0.0 { sum / count } else { f64::NEG_INFINITY }
    }
}

impl Choice {
    /// Log-probabilities in the format of completions: a list for each of their fields.
    fn completion_logprobs(&mut self, tokens: &[Value]) -> Value {
        let column = |key: &str| tokens.iter().map(|token| token[key].clone()).collect::<Value>();
        let likeliest = |token: &Value| {
            // The first token of a repeated prompt follows nothing.
            if token["logprob"].is_null() {
                return Value::Null;
            }
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
}

impl Usage {
    /// Adds a choice's last record, with its prompt if `is_first` of the prompt.
    fn add(&mut self, record: &Value, is_first: bool) {
        let count = |name: &str| record[name].as_u64().unwrap_or(0);
        self.completion += count("eval_count");
        if is_first {
            self.prompt += count("prompt_eval_count");
            self.cached += count("prompt_cached_count");
        }
    }

    fn json(self) -> Value {
        let Usage { prompt, cached, completion } = self;
        let mut usage = json!({
            "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
        });
        if cached > 0 {
            usage["prompt_tokens_details"] = json!({ "cached_tokens": cached });
        }
        usage
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

fn failed(text: &str) -> Value {
    json!({ "error": { "message": text, "type": "api_error", "param": null, "code": null } })
}

fn event(value: &Value) -> String {
    format!("data: {value}\n\n")
}

//! Translates the input items of a request to messages for a worker.

use std::borrow::Cow;
use std::collections::HashMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::api::worker_chat::{
    WorkerCall, WorkerContent, WorkerFunction, WorkerMessage, image_data, to_raw_json,
};
use crate::http::Failure;
use crate::http::extract::parse_part;

/// The messages of a request.
#[derive(Default)]
pub(super) struct Input {
    pub(super) messages: Vec<Box<RawValue>>,
    /// The turn of the model that is being read: its reasoning, text and calls are separate items.
    turn: Turn,
    /// The names of the tools by the ids of earlier calls: an output has only the id.
    called: HashMap<String, String>,
    has_items: bool,
}

#[derive(Default)]
struct Turn {
    thinking: Vec<String>,
    texts: Vec<String>,
    calls: Vec<FunctionCall>,
}

/// The fields that tell the kinds of items apart.
#[derive(Deserialize)]
struct Head<'a> {
    #[serde(rename = "type", borrow)]
    kind: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct Message<'a> {
    role: Role,
    #[serde(borrow)]
    content: &'a RawValue,
}

#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum Role {
    User,
    Assistant,
    System,
    Developer,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Part {
    InputText { text: String },
    OutputText { text: String },
    InputImage { image_url: String },
    Refusal { refusal: String },
}

#[derive(Deserialize)]
struct FunctionCall {
    call_id: String,
    name: String,
    /// JSON.
    arguments: String,
}

#[derive(Deserialize)]
struct CallOutput<'a> {
    call_id: String,
    #[serde(borrow)]
    output: &'a RawValue,
}

#[derive(Deserialize)]
struct ReasoningItem {
    #[serde(default)]
    summary: Vec<ReasoningText>,
    content: Option<Vec<ReasoningText>>,
}

#[derive(Deserialize)]
struct ReasoningText {
    text: String,
}

/// The system message of a request's `instructions`.
pub(super) fn message_of_system(text: &str) -> Box<RawValue> {
    let content = WorkerContent::Joined(text.to_owned());
    to_raw_json(&WorkerMessage { role: "system", content, ..WorkerMessage::default() }, text.len() + 64)
}

impl Input {
    /// Reads a request's `input`: one text of the user, or a list of items.
    pub(super) fn read(&mut self, input: &RawValue) -> Result<(), Failure> {
        let field = || "input".to_owned();
        if input.get().starts_with('"') {
            self.has_items = true;
            self.push("user", vec![parse_part(input, field)?], &[]);
            return Ok(());
        }
        let items: Vec<&RawValue> = parse_part(input, field)?;
        for (at, item) in items.into_iter().enumerate() {
            self.has_items = true;
            self.item(at, item)?;
        }
        Ok(())
    }

    /// The messages, of which there is at least one.
    pub(super) fn finish(mut self) -> Result<Vec<Box<RawValue>>, Failure> {
        self.end_turn(usize::MAX)?;
        if !self.has_items {
            return Err(Failure::field("input", "is empty"));
        }
        Ok(self.messages)
    }

    fn item(&mut self, at: usize, json: &RawValue) -> Result<(), Failure> {
        let field = || format!("input[{at}]");
        let Head { kind } = parse_part(json, field)?;
        match kind.as_deref().unwrap_or("message") {
            "message" => self.message(at, &parse_part(json, field)?),
            "reasoning" => {
                if !self.turn.texts.is_empty() || !self.turn.calls.is_empty() {
                    self.end_turn(at)?;
                }
                let ReasoningItem { summary, content } = parse_part(json, field)?;
                let texts = content.unwrap_or(summary);
                self.turn.thinking.extend(texts.into_iter().map(|text| text.text));
                Ok(())
            }
            "function_call" => {
                let call: FunctionCall = parse_part(json, field)?;
                self.called.entry(call.call_id.clone()).or_insert_with(|| call.name.clone());
                self.turn.calls.push(call);
                Ok(())
            }
            "function_call_output" => {
                self.end_turn(at)?;
                let CallOutput { call_id, output } = parse_part(json, field)?;
                let (texts, images) = parts(output, || format!("input[{at}].output"))?;
                let images = images.iter().map(|url| image_data(url)).collect::<Result<_, _>>()?;
                let tool_name = self.called.get(&call_id).cloned().map(WorkerContent::Joined);
                let message = WorkerMessage {
                    role: "tool",
                    content: WorkerContent::Joined(texts.join("\n")),
                    images,
                    tool_call_id: Some(WorkerContent::Joined(call_id)),
                    tool_name,
                    ..WorkerMessage::default()
                };
                self.messages.push(to_raw_json(&message, 256));
                Ok(())
            }
            "item_reference" => Err(Failure::field(
                format!("input[{at}].type"),
                "is `item_reference`, but this server stores no responses; send the item itself",
            )),
            kind => Err(Failure::field(
                format!("input[{at}].type"),
                format!("is `{kind}`, which this server does not support"),
            )),
        }
    }

    fn message(&mut self, at: usize, message: &Message<'_>) -> Result<(), Failure> {
        let (texts, images) = parts(message.content, || format!("input[{at}].content"))?;
        let role = match message.role {
            Role::Assistant => {
                if !self.turn.calls.is_empty() {
                    self.end_turn(at)?;
                }
                self.turn.texts.extend(texts);
                return Ok(());
            }
            Role::User => "user",
            // OpenAI's newer name for the system role.
            Role::System | Role::Developer => "system",
        };
        self.end_turn(at)?;
        let images = images.iter().map(|url| image_data(url)).collect::<Result<Vec<_>, _>>()?;
        self.push(role, texts, &images);
        Ok(())
    }

    fn push(&mut self, role: &str, texts: Vec<String>, images: &[&str]) {
        let content = WorkerContent::Joined(texts.join("\n"));
        let message = WorkerMessage { role, content, images: images.to_vec(), ..WorkerMessage::default() };
        self.messages.push(to_raw_json(&message, 256));
    }

    /// Adds the message of the model's turn, if there is one. `at`: the item after it.
    fn end_turn(&mut self, at: usize) -> Result<(), Failure> {
        let Turn { thinking, texts, calls } = std::mem::take(&mut self.turn);
        if thinking.is_empty() && texts.is_empty() && calls.is_empty() {
            return Ok(());
        }
        let tool_calls = calls.iter().map(|call| {
            let invalid = |error: serde_json::Error| {
                let before = if at == usize::MAX { String::new() } else { format!(" before input[{at}]") };
                let id = &call.call_id;
                Failure::field("arguments", format!("of call `{id}`{before} is not JSON: {error}"))
            };
            let text = if call.arguments.is_empty() { "{}" } else { &call.arguments };
            let arguments = serde_json::from_str(text).map_err(invalid)?;
            Ok(WorkerCall { id: &call.call_id, function: WorkerFunction { name: &call.name, arguments } })
        });
        let tool_calls = tool_calls.collect::<Result<Vec<_>, Failure>>()?;
        let message = WorkerMessage {
            role: "assistant",
            content: WorkerContent::Joined(texts.join("\n")),
            tool_calls,
            thinking: (!thinking.is_empty()).then(|| WorkerContent::Joined(thinking.join("\n"))),
            ..WorkerMessage::default()
        };
        self.messages.push(to_raw_json(&message, 256));
        Ok(())
    }
}

/// The texts and the URLs of images in a content, which is a string or a list of parts.
fn parts(content: &RawValue, field: impl Fn() -> String) -> Result<(Vec<String>, Vec<String>), Failure> {
    if content.get().starts_with('"') {
        return Ok((vec![parse_part(content, field)?], Vec::new()));
    }
    let (mut texts, mut images) = (Vec::new(), Vec::new());
    for part in parse_part::<Vec<Part>>(content, field)? {
        match part {
            Part::InputText { text } | Part::OutputText { text } | Part::Refusal { refusal: text } => {
                texts.push(text);
            }
            Part::InputImage { image_url } => images.push(image_url),
        }
    }
    Ok((texts, images))
}

//! Translates the messages of a request and their content blocks.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::api::worker_chat::{WorkerCall, WorkerContent, WorkerFunction, WorkerMessage, to_raw_json};
use crate::http::Failure;
use crate::http::extract::parse_part;

/// The system prompt.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of blocks of type text")]
pub(super) enum System {
    Text(String),
    Blocks(Vec<SystemBlock>),
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum SystemBlock {
    Text { text: String },
}

impl System {
    pub(super) fn message(&self) -> Box<RawValue> {
        let content = match self {
            System::Text(text) => text.clone(),
            System::Blocks(blocks) => {
                let texts: Vec<&str> = blocks.iter().map(|SystemBlock::Text { text }| &**text).collect();
                texts.join("\n")
            }
        };
        let message = WorkerMessage {
            role: "system",
            content: WorkerContent::Joined(content),
            ..WorkerMessage::default()
        };
        to_raw_json(&message, 256)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
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
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Block {
    Text {
        text: String,
    },
    Image {
        source: ImageSource,
    },
    ToolUse {
        id: String,
        name: String,
        #[serde(default)]
        input: Map<String, Value>,
    },
    ToolResult {
        tool_use_id: String,
        content: Option<ResultContent>,
        is_error: Option<bool>,
    },
    Thinking {
        thinking: String,
    },
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum ImageSource {
    Base64 { data: String },
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of blocks of type text or image")]
enum ResultContent {
    Text(String),
    Blocks(Vec<ResultBlock>),
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum ResultBlock {
    Text { text: String },
    Image { source: ImageSource },
}

/// Adds the messages for the worker that a message becomes. `called` has the names of the tools by the ids of
/// earlier calls: a result has only the id. Returns whether the message is the model's.
pub(super) fn translate(
    at: usize,
    json: &RawValue,
    called: &mut HashMap<String, String>,
    messages: &mut Vec<Box<RawValue>>,
) -> Result<bool, Failure> {
    let message: Message<'_> = parse_part(json, || format!("messages[{at}]"))?;
    let field = || format!("messages[{at}].content");
    let blocks = if message.content.get().starts_with('"') {
        vec![Block::Text { text: parse_part(message.content, field)? }]
    } else {
        parse_part(message.content, field)?
    };
    match message.role {
        Role::User => user(at, &blocks, called, messages)?,
        Role::Assistant => messages.push(assistant(at, &blocks, called)?),
        Role::System => messages.push(system(at, &blocks)?),
    }
    Ok(message.role == Role::Assistant)
}

/// A system message within the conversation.
fn system(at: usize, blocks: &[Block]) -> Result<Box<RawValue>, Failure> {
    let texts = blocks.iter().enumerate().map(|(index, block)| match block {
        Block::Text { text } => Ok(text.as_str()),
        _ => Err(Failure::field(
            format!("messages[{at}].content[{index}].type"),
            "must be `text` in a message with the role `system`",
        )),
    });
    let texts = texts.collect::<Result<Vec<_>, Failure>>()?;
    let content = WorkerContent::Joined(texts.join("\n"));
    Ok(to_raw_json(&WorkerMessage { role: "system", content, ..WorkerMessage::default() }, 256))
}

/// Results of tools are messages of their own, in the order of the blocks.
fn user(
    at: usize,
    blocks: &[Block],
    called: &HashMap<String, String>,
    messages: &mut Vec<Box<RawValue>>,
) -> Result<(), Failure> {
    let (mut texts, mut images) = (Vec::new(), Vec::new());
    for (index, block) in blocks.iter().enumerate() {
        match block {
            Block::Text { text } => texts.push(text.as_str()),
            Block::Image { source: ImageSource::Base64 { data } } => images.push(data.as_str()),
            Block::ToolResult { tool_use_id, content, is_error } => {
                write_turn(&mut texts, &mut images, messages);
                let name = called.get(tool_use_id).cloned();
                messages.push(tool_result(tool_use_id, name, content.as_ref(), *is_error == Some(true)));
            }
            Block::ToolUse { .. } | Block::Thinking { .. } => return Err(wrong_role(at, index, "assistant")),
        }
    }
    write_turn(&mut texts, &mut images, messages);
    Ok(())
}

/// Adds a message of the user with these parts, if there are any.
fn write_turn(texts: &mut Vec<&str>, images: &mut Vec<&str>, messages: &mut Vec<Box<RawValue>>) {
    if texts.is_empty() && images.is_empty() {
        return;
    }
    let content = WorkerContent::Joined(texts.join("\n"));
    let message = WorkerMessage { role: "user", content, images: images.clone(), ..WorkerMessage::default() };
    messages.push(to_raw_json(&message, 256));
    texts.clear();
    images.clear();
}

fn tool_result(
    id: &str,
    name: Option<String>,
    content: Option<&ResultContent>,
    is_error: bool,
) -> Box<RawValue> {
    let (mut texts, mut images) = (Vec::new(), Vec::new());
    match content {
        None => {}
        Some(ResultContent::Text(text)) => texts.push(text.as_str()),
        Some(ResultContent::Blocks(blocks)) => {
            for block in blocks {
                match block {
                    ResultBlock::Text { text } => texts.push(text),
                    ResultBlock::Image { source: ImageSource::Base64 { data } } => images.push(&**data),
                }
            }
        }
    }
    let text = texts.join("\n");
    // Chat templates have no mark for a failed call.
    let text = if is_error { format!("Error: {text}") } else { text };
    let message = WorkerMessage {
        role: "tool",
        content: WorkerContent::Joined(text),
        images,
        tool_call_id: Some(WorkerContent::Joined(id.to_owned())),
        tool_name: name.map(WorkerContent::Joined),
        ..WorkerMessage::default()
    };
    to_raw_json(&message, 256)
}

fn assistant(
    at: usize,
    blocks: &[Block],
    called: &mut HashMap<String, String>,
) -> Result<Box<RawValue>, Failure> {
    let (mut texts, mut thinking, mut tool_calls) = (Vec::new(), Vec::new(), Vec::new());
    for (index, block) in blocks.iter().enumerate() {
        match block {
            Block::Text { text } => texts.push(text.as_str()),
            Block::Thinking { thinking: text } => thinking.push(text.as_str()),
            Block::ToolUse { id, name, input } => {
                called.entry(id.clone()).or_insert_with(|| name.clone());
                let arguments = to_raw_json(input, 64);
                tool_calls.push(WorkerCall { id, function: WorkerFunction { name, arguments } });
            }
            Block::Image { .. } | Block::ToolResult { .. } => return Err(wrong_role(at, index, "user")),
        }
    }
    let message = WorkerMessage {
        role: "assistant",
        content: WorkerContent::Joined(texts.join("\n")),
        tool_calls,
        thinking: (!thinking.is_empty()).then(|| WorkerContent::Joined(thinking.join("\n"))),
        ..WorkerMessage::default()
    };
    Ok(to_raw_json(&message, 256))
}

fn wrong_role(at: usize, index: usize, role: &str) -> Failure {
    Failure::field(
        format!("messages[{at}].content[{index}].type"),
        format!("belongs into a message with the role `{role}`"),
    )
}

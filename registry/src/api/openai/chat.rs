//! `POST /v1/chat/completions`, by way of `/api/chat`.

use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::reply::{Reply, Shape};
use super::{Asked, StreamOptions, ask};
use crate::Registry;
use crate::auth::Caller;
use crate::http::Failure;
use crate::http::extract::{null_as_default, parse};

#[derive(Deserialize)]
pub(crate) struct Chat {
    #[serde(default, deserialize_with = "null_as_default")]
    model: String,
    #[serde(default, deserialize_with = "null_as_default")]
    messages: Vec<Message>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    response_format: Option<ResponseFormat>,
    tools: Option<Value>,
    /// Only `none` has an effect: a model cannot be made to call.
    tool_choice: Option<Value>,
    reasoning_effort: Option<String>,
    reasoning: Option<Reasoning>,
    logprobs: Option<bool>,
    top_logprobs: Option<u32>,
}

#[derive(Deserialize)]
struct Reasoning {
    effort: Option<String>,
}

#[derive(Deserialize)]
struct Message {
    role: String,
    content: Option<Content>,
    #[serde(default, deserialize_with = "null_as_default")]
    tool_calls: Vec<ToolCall>,
    tool_call_id: Option<String>,
    name: Option<String>,
    /// What the model thought, as these answers say it, and as others do.
    reasoning: Option<String>,
    reasoning_content: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a text or a list of parts of type text or image_url")]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Part {
    Text { text: String },
    ImageUrl { image_url: ImageUrl },
}

#[derive(Deserialize)]
#[serde(untagged)]
enum ImageUrl {
    Plain(String),
    Object { url: String },
}

#[derive(Deserialize)]
struct ToolCall {
    #[serde(default, deserialize_with = "null_as_default")]
    id: String,
    function: Function,
}

#[derive(Deserialize)]
struct Function {
    name: String,
    /// JSON in a string.
    #[serde(default, deserialize_with = "null_as_default")]
    arguments: String,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum ResponseFormat {
    Text,
    JsonObject,
    JsonSchema { json_schema: Schema },
}

#[derive(Deserialize)]
struct Schema {
    schema: Value,
}

pub(crate) async fn post(
    State(registry): State<Registry>,
    caller: Caller,
    asked: Asked<Chat>,
) -> Result<Response, Failure> {
    let body = asked.request.for_worker(asked.sampling.options()?)?;
    let Chat { model, stream, stream_options, .. } = asked.request;
    let answer = ask(&registry, &caller, &model, "/api/chat", body).await?;
    let include_usage = stream_options.unwrap_or_default().include_usage;
    Reply::new(Shape::Chat, model, include_usage).answer(answer, stream.unwrap_or(false)).await
}

impl Chat {
    fn for_worker(&self, options: Value) -> Result<Value, Failure> {
        // For a worker a conversation without any is no more than a wish to have the model loaded.
        if self.messages.is_empty() {
            return Err(Failure::Unsupported("messages is missing or empty"));
        }
        let messages = self.messages.iter().map(|message| message.for_worker(&self.messages));
        let messages = messages.collect::<Result<Vec<_>, _>>()?;
        let mut body = json!({
            "model": self.model,
            "messages": messages,
            "stream": self.stream.unwrap_or(false),
            "options": options,
        });
        let format = match &self.response_format {
            Some(ResponseFormat::JsonObject) => Some(json!("json")),
            Some(ResponseFormat::JsonSchema { json_schema }) => Some(json_schema.schema.clone()),
            Some(ResponseFormat::Text) | None => None,
        };
        let effort = self.reasoning.as_ref().and_then(|reasoning| reasoning.effort.as_ref());
        let think = effort.or(self.reasoning_effort.as_ref()).map(|effort| think(effort)).transpose()?;
        let may_call = self.tool_choice.as_ref().is_none_or(|choice| choice != "none");
        let logprobs = self.logprobs.filter(|is_wanted| *is_wanted).map(Value::from);
        let top_logprobs = logprobs.as_ref().map(|_| json!(self.top_logprobs.unwrap_or(0)));
        for (name, value) in [
            ("format", format),
            ("tools", self.tools.clone().filter(|_| may_call)),
            ("think", think),
            ("logprobs", logprobs),
            ("top_logprobs", top_logprobs),
        ] {
            if let Some(value) = value {
                body[name] = value;
            }
        }
        Ok(body)
    }
}

impl Message {
    /// The message in ollama's words. A tool's result says only which call it answers; `all` tells which tool that was.
    fn for_worker(&self, all: &[Message]) -> Result<Value, Failure> {
        let (mut texts, mut images) = (Vec::new(), Vec::new());
        match &self.content {
            Some(Content::Text(text)) => texts.push(text.as_str()),
            Some(Content::Parts(parts)) => {
                for part in parts {
                    match part {
                        Part::Text { text } => texts.push(text),
                        Part::ImageUrl { image_url: ImageUrl::Plain(url) | ImageUrl::Object { url } } => {
                            images.push(image_data(url)?);
                        }
                    }
                }
            }
            None => {}
        }
        let mut message = Map::new();
        // OpenAI's newer name for the system's voice.
        let role = if self.role == "developer" { "system" } else { &self.role };
        message.insert("role".to_owned(), json!(role));
        message.insert("content".to_owned(), json!(texts.join("\n")));
        if !images.is_empty() {
            message.insert("images".to_owned(), json!(images));
        }
        if !self.tool_calls.is_empty() {
            let calls = self.tool_calls.iter().map(ToolCall::for_worker).collect::<Result<Vec<_>, _>>()?;
            message.insert("tool_calls".to_owned(), json!(calls));
        }
        let thinking = self.reasoning.as_ref().or(self.reasoning_content.as_ref());
        let called = self.tool_call_id.as_ref().and_then(|id| {
            let call = all.iter().flat_map(|message| &message.tool_calls).find(|call| call.id == *id)?;
            Some(&call.function.name)
        });
        let tool_name = self.name.as_ref().filter(|_| self.role == "tool").or(called);
        let named =
            [("thinking", thinking), ("tool_call_id", self.tool_call_id.as_ref()), ("tool_name", tool_name)];
        message.extend(named.into_iter().filter_map(|(key, value)| Some((key.to_owned(), json!(value?)))));
        Ok(Value::Object(message))
    }
}

impl ToolCall {
    fn for_worker(&self) -> Result<Value, Failure> {
        let arguments = if self.function.arguments.is_empty() { "{}" } else { &self.function.arguments };
        let arguments: Value = parse(arguments.as_bytes())?;
        Ok(json!({ "id": self.id, "function": { "name": self.function.name, "arguments": arguments } }))
    }
}

/// The bytes of an image that came along, in base64. Nothing is fetched for a caller.
fn image_data(url: &str) -> Result<&str, Failure> {
    let data = url.strip_prefix("data:").and_then(|rest| rest.split_once(";base64,"));
    data.map(|(_, data)| data).ok_or_else(|| {
        Failure::Unsupported("images come as `data:` addresses with base64; others are not fetched")
    })
}

fn think(effort: &str) -> Result<Value, Failure> {
    match effort {
        "none" => Ok(json!(false)),
        "minimal" | "low" => Ok(json!("low")),
        "medium" | "high" | "max" => Ok(json!(effort)),
        "xhigh" | "ultra" => Ok(json!("max")),
        _ => Err(Failure::Unsupported(
            "reasoning_effort is one of none, minimal, low, medium, high, xhigh, max",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_translate() {
        let chat: Chat = serde_json::from_value(json!({
            "model": "mini",
            "messages": [
                {"role": "developer", "content": "Be brief."},
                {"role": "user", "content": [
                    {"type": "text", "text": "What is this?"},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
                ]},
                {"role": "assistant", "content": null, "reasoning": "Look first.", "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{\"at\":1}"}},
                ]},
                {"role": "tool", "tool_call_id": "c1", "content": "a cat"},
            ],
            "response_format": {"type": "json_object"}, "logprobs": true, "top_logprobs": 2, "user": "x",
        }))
        .unwrap();
        assert_eq!(
            chat.for_worker(json!({"num_predict": 5})).unwrap(),
            json!({
                "model": "mini",
                "messages": [
                    {"role": "system", "content": "Be brief."},
                    {"role": "user", "content": "What is this?", "images": ["AAAA"]},
                    {"role": "assistant", "content": "", "tool_calls": [
                        {"id": "c1", "function": {"name": "look", "arguments": {"at": 1}}},
                    ], "thinking": "Look first."},
                    {"role": "tool", "content": "a cat", "tool_call_id": "c1", "tool_name": "look"},
                ],
                "stream": false,
                "options": {"num_predict": 5},
                "format": "json", "logprobs": true, "top_logprobs": 2,
            })
        );
    }

    #[test]
    fn tools_and_thinking() {
        let translated = |more: Value| {
            let messages = json!([{"role": "user", "content": "?"}]);
            let mut request = json!({"model": "m", "messages": messages, "tools": [{"type": "function"}]});
            request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let chat: Chat = serde_json::from_value(request).unwrap();
            chat.for_worker(json!({})).unwrap()
        };
        let auto = translated(json!({"tool_choice": "auto", "reasoning_effort": "minimal"}));
        assert_eq!((&auto["tools"], &auto["think"]), (&json!([{"type": "function"}]), &json!("low")));
        let none = translated(json!({"tool_choice": "none", "reasoning": {"effort": "none"}}));
        assert_eq!((none.get("tools"), &none["think"]), (None, &json!(false)));
        let plain = translated(json!({"tools": null, "tool_choice": null}));
        assert_eq!((plain.get("tools"), plain.get("think")), (None, None));
    }

    #[test]
    fn what_cannot_be_done_is_refused() {
        for message in [
            json!({"role": "user", "content": [{"type": "image_url", "image_url": "http://example.com/x.png"}]}),
            json!({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}),
        ] {
            let message: Message = serde_json::from_value(message).unwrap();
            assert!(message.for_worker(&[]).is_err());
        }
        assert!(think("a lot").is_err());
    }
}

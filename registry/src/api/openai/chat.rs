//! `POST /v1/chat/completions`, implemented with `/api/chat`.

use std::borrow::Cow;
use std::collections::HashMap;

use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::choices::{choices_of_each, respond, write_requests};
use super::reply::{Reply, Shape};
use super::{ResponseOptions, Sampling, StreamOptions, text};
use crate::api::worker_chat::{
    FunctionKind, FunctionName, Target, ToolChoice, WorkerCall, WorkerChat, WorkerContent, WorkerFormat,
    WorkerFunction, WorkerMessage, image_data, think, to_json, to_raw_json,
};
use crate::auth::Caller;
use crate::http::Failure;
use crate::http::extract::{InferenceBody, null_as_default, parse, parse_part};
use crate::http::forwarded::RequestOrigin;
use crate::http::state::ServerState;

/// A request. Messages, schemas and tools stay text: a long conversation is parsed one message at a time.
#[derive(Deserialize)]
struct Chat<'a> {
    #[serde(default, deserialize_with = "null_as_default")]
    model: String,
    #[serde(borrow, default, deserialize_with = "null_as_default")]
    messages: Vec<&'a RawValue>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    #[serde(borrow)]
    response_format: Option<ResponseFormat<'a>>,
    #[serde(borrow)]
    tools: Option<&'a RawValue>,
    #[serde(borrow)]
    tool_choice: Option<&'a RawValue>,
    parallel_tool_calls: Option<bool>,
    reasoning_effort: Option<String>,
    reasoning: Option<Reasoning>,
    logprobs: Option<bool>,
    top_logprobs: Option<u32>,
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected `none`, `auto`, `required`, or an object with type `function` and a function's name"
)]
enum ChoiceField {
    Mode(ChoiceMode),
    Named {
        #[serde(rename = "type")]
        _kind: FunctionKind,
        function: FunctionName,
    },
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ChoiceMode {
    None,
    Auto,
    Required,
}

#[derive(Deserialize)]
struct Reasoning {
    effort: Option<String>,
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    role: Cow<'a, str>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "null_as_default")]
    tool_calls: Vec<ToolCall<'a>>,
    #[serde(borrow)]
    tool_call_id: Option<&'a RawValue>,
    #[serde(borrow)]
    name: Option<&'a RawValue>,
    /// The model's reasoning, under the name in our responses, and under the one of other servers.
    #[serde(borrow)]
    reasoning: Option<&'a RawValue>,
    #[serde(borrow)]
    reasoning_content: Option<&'a RawValue>,
}

/// Content that is not one string.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of parts of type text or image_url")]
enum Content<'a> {
    Parts(#[serde(borrow)] Vec<Part<'a>>),
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Part<'a> {
    Text {
        #[serde(borrow)]
        text: Cow<'a, str>,
    },
    ImageUrl {
        #[serde(borrow)]
        image_url: ImageUrl<'a>,
    },
}

#[derive(Deserialize)]
#[serde(untagged)]
enum ImageUrl<'a> {
    Plain(#[serde(borrow)] Cow<'a, str>),
    Object {
        #[serde(borrow)]
        url: Cow<'a, str>,
    },
}

#[derive(Deserialize)]
struct ToolCall<'a> {
    #[serde(default, deserialize_with = "null_as_default")]
    id: String,
    #[serde(borrow)]
    function: Function<'a>,
}

#[derive(Deserialize)]
struct Function<'a> {
    name: String,
    /// JSON in a string.
    #[serde(borrow, default)]
    arguments: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct ResponseFormat<'a> {
    #[serde(rename = "type")]
    kind: FormatKind,
    #[serde(borrow)]
    json_schema: Option<&'a RawValue>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum FormatKind {
    Text,
    JsonObject,
    JsonSchema,
}

#[derive(Deserialize)]
struct Schema<'a> {
    #[serde(borrow)]
    schema: &'a RawValue,
}

pub(crate) async fn post(
    State(server): State<ServerState>,
    caller: Caller,
    client: RequestOrigin,
    body: InferenceBody,
) -> Result<Response, Failure> {
    let (bodies, options) = body.translate_each(translate).await?;
    let (model, is_stream) = (options.model.clone(), options.stream);
    let target = Target::resolve(&server, (&caller, client), &model, "/api/chat").await?;
    let reply = Reply::new(Shape::Chat, options, bodies.len());
    respond(target, bodies, reply, is_stream).await
}

/// Translates the request to ollama's format: a request for each choice.
fn translate(body: &[u8]) -> Result<(Vec<Bytes>, ResponseOptions), Failure> {
    let chat: Chat<'_> = parse(body)?;
    // Parsed separately, so that an error can name its field.
    let sampling: Sampling = parse(body)?;
    let options = sampling.options();
    let choices_of_each = choices_of_each(sampling.n, 1)?;
    // OpenAI has the field for completions only.
    if sampling.best_of.is_some_and(|best_of| usize::try_from(best_of) != Ok(choices_of_each)) {
        return Err(Failure::field("best_of", "must be equal to `n` in a chat"));
    }
    // A worker would treat a chat without messages as a request to load the model.
    if chat.messages.is_empty() {
        return Err(Failure::Unsupported("messages is missing or empty"));
    }
    // A tool's result has only the id of its call, and the call has the tool's name.
    let mut called = HashMap::new();
    let messages = chat.messages.iter().enumerate();
    let messages = messages.map(|(at, message)| translate_message(at, message, &mut called));
    let messages = messages.collect::<Result<Vec<_>, _>>()?;
    let effort = chat.reasoning.as_ref().and_then(|reasoning| reasoning.effort.as_ref());
    let effort = effort.or(chat.reasoning_effort.as_ref());
    let choice =
        chat.tool_choice.map(|choice| parse_part(choice, || "tool_choice".to_owned())).transpose()?;
    let (may_call, tool_choice) = match choice {
        Some(ChoiceField::Mode(ChoiceMode::None)) => (false, None),
        None | Some(ChoiceField::Mode(ChoiceMode::Auto)) => (true, None),
        Some(ChoiceField::Mode(ChoiceMode::Required)) => (true, Some(ToolChoice::REQUIRED)),
        Some(ChoiceField::Named { function, .. }) => (true, Some(ToolChoice::function(function.name))),
    };
    if tool_choice.is_some() && chat.tools.is_none() {
        return Err(Failure::field("tools", "is missing, which `tool_choice` needs"));
    }
    let logprobs = chat.logprobs.filter(|is_wanted| *is_wanted);
    let stream = chat.stream.unwrap_or(false);
    let format = chat.response_format.as_ref().map(format).transpose()?.flatten();
    let mut request = WorkerChat {
        model: &chat.model,
        messages: &messages,
        stream,
        format,
        tools: chat.tools.filter(|_| may_call),
        tool_choice,
        think: effort.map(|effort| think(effort)).transpose()?,
        logprobs,
        top_logprobs: logprobs.map(|_| chat.top_logprobs.unwrap_or(0)),
        ..WorkerChat::default()
    };
    let requests = write_requests(&options, choices_of_each, &mut 0, |options| {
        request.options = options.into();
        to_json(&request, body.len())
    })?;
    let include_usage = chat.stream_options.unwrap_or_default().include_usage;
    let is_single_call = chat.parallel_tool_calls == Some(false);
    let options = ResponseOptions {
        model: chat.model,
        stream,
        include_usage,
        choices_of_each,
        best_of: None,
        is_single_call,
    };
    Ok((requests, options))
}

fn format<'a>(format: &ResponseFormat<'a>) -> Result<Option<WorkerFormat<'a>>, Failure> {
    let part = || "response_format.json_schema".to_owned();
    match (format.kind, format.json_schema) {
        (FormatKind::Text, _) => Ok(None),
        (FormatKind::JsonObject, _) => Ok(Some(WorkerFormat::Any("json"))),
        (FormatKind::JsonSchema, None) => Err(Failure::Unsupported("response_format.json_schema is missing")),
        (FormatKind::JsonSchema, Some(json)) => {
            let Schema { schema } = parse_part(json, part)?;
            Ok(Some(WorkerFormat::Schema(schema)))
        }
    }
}

/// Translates a message to ollama's format; adds its tool calls to `called`.
fn translate_message(
    at: usize,
    json: &RawValue,
    called: &mut HashMap<String, String>,
) -> Result<Box<RawValue>, Failure> {
    let field = |name: &str| format!("messages[{at}].{name}");
    let message: Message<'_> = parse_part(json, || format!("messages[{at}]"))?;
    let parts = match message.content {
        Some(content) if !content.get().starts_with('"') => {
            let Content::Parts(parts) = parse_part(content, || field("content"))?;
            parts
        }
        _ => Vec::new(),
    };
    let mut images = Vec::new();
    let mut texts = Vec::new();
    for part in &parts {
        match part {
            Part::Text { text } => texts.push(&**text),
            Part::ImageUrl { image_url: ImageUrl::Plain(url) | ImageUrl::Object { url } } => {
                images.push(image_data(url)?);
            }
        }
    }
    let content = message.content.filter(|content| content.get().starts_with('"'));
    let content = content.map_or_else(|| WorkerContent::Joined(texts.join("\n")), WorkerContent::Written);
    let tool_calls = message.tool_calls.iter().map(ToolCall::for_worker).collect::<Result<Vec<_>, _>>()?;
    for call in &message.tool_calls {
        called.entry(call.id.clone()).or_insert_with(|| call.function.name.clone());
    }
    let tool_call_id = text(message.tool_call_id, || field("tool_call_id"))?;
    let name = text(message.name, || field("name"))?.filter(|_| message.role == "tool");
    let call = tool_call_id.map(|id| parse_part::<String>(id, || field("tool_call_id"))).transpose()?;
    let named = call.and_then(|id| called.get(&id).cloned()).map(WorkerContent::Joined);
    let thinking = text(message.reasoning, || field("reasoning"))?;
    let thinking = thinking.or(text(message.reasoning_content, || field("reasoning_content"))?);
    let translated = WorkerMessage {
        // OpenAI's newer name for the system role.
        role: if message.role == "developer" { "system" } else { &message.role },
        content,
        images,
        tool_calls,
        thinking: thinking.map(WorkerContent::Written),
        tool_call_id: tool_call_id.map(WorkerContent::Written),
        tool_name: name.map(WorkerContent::Written).or(named),
    };
    Ok(to_raw_json(&translated, json.get().len() + 64))
}

impl ToolCall<'_> {
    fn for_worker(&self) -> Result<WorkerCall<'_>, Failure> {
        let arguments: Option<Cow<'_, str>> = match self.function.arguments {
            Some(arguments) => Some(parse_part(arguments, || "tool_calls.function.arguments".to_owned())?),
            None => None,
        };
        let arguments = arguments.as_deref().filter(|arguments| !arguments.is_empty()).unwrap_or("{}");
        Ok(WorkerCall {
            id: &self.id,
            function: WorkerFunction { name: &self.function.name, arguments: parse(arguments.as_bytes())? },
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn translated(request: &Value) -> Result<Value, Failure> {
        let (requests, _) = translate(request.to_string().as_bytes())?;
        Ok(serde_json::from_slice(&requests[0]).unwrap())
    }

    #[test]
    fn requests_translate() {
        let request = json!({
            "model": "mini",
            "messages": [
                {"role": "developer", "content": "Be \"brief\"."},
                {"role": "user", "content": [
                    {"type": "text", "text": "What is this?"},
                    {"type": "text", "text": "A \"cat\"?"},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
                ]},
                {"role": "assistant", "content": null, "reasoning": "Look first.", "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{\"at\":1}"}},
                ]},
                {"role": "tool", "tool_call_id": "c1", "content": "a cat"},
            ],
            "max_tokens": 5, "response_format": {"type": "json_object"}, "logprobs": true, "top_logprobs": 2, "user": "x",
        });
        assert_eq!(
            translated(&request).unwrap(),
            json!({
                "model": "mini",
                "messages": [
                    {"role": "system", "content": "Be \"brief\"."},
                    {"role": "user", "content": "What is this?\nA \"cat\"?", "images": ["AAAA"]},
                    {"role": "assistant", "content": "", "tool_calls": [
                        {"id": "c1", "function": {"name": "look", "arguments": {"at": 1}}},
                    ], "thinking": "Look first."},
                    {"role": "tool", "content": "a cat", "tool_call_id": "c1", "tool_name": "look"},
                ],
                "stream": false,
                "options": {"temperature": 1.0, "top_p": 1.0, "num_predict": 5},
                "format": "json", "logprobs": true, "top_logprobs": 2,
            })
        );
    }

    #[test]
    fn tools_schemas_and_thinking() {
        let translated = |more: Value| {
            let messages = json!([{"role": "user", "content": "?"}]);
            let mut request = json!({"model": "m", "messages": messages, "tools": [{"type": "function"}]});
            request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            translated(&request).unwrap()
        };
        let auto = translated(json!({"tool_choice": "auto", "reasoning_effort": "minimal"}));
        assert_eq!((&auto["tools"], &auto["think"]), (&json!([{"type": "function"}]), &json!("low")));
        let named = json!({"type": "function", "function": {"name": "f"}});
        assert_eq!(translated(json!({"tool_choice": named}))["tool_choice"], named);
        assert_eq!(translated(json!({"tool_choice": "required"}))["tool_choice"], "required");
        let none = translated(json!({"tool_choice": "none", "reasoning": {"effort": "none"}}));
        assert_eq!((none.get("tools"), &none["think"]), (None, &json!(false)));
        let plain = translated(json!({"tools": null, "tool_choice": null}));
        assert_eq!((plain.get("tools"), plain.get("think")), (None, None));
        let schema =
            json!({"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}});
        assert_eq!(translated(json!({"response_format": schema}))["format"], json!({"type": "object"}));
        assert_eq!(translated(json!({"response_format": {"type": "text"}})).get("format"), None);
    }

    #[test]
    fn bad_messages_are_refused_with_their_path() {
        for (message, expect) in [
            (
                json!({"role": "user", "content": [{"type": "image_url", "image_url": "http://example.com/x.png"}]}),
                "images must be",
            ),
            (
                json!({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}),
                "EOF while parsing",
            ),
            (json!({"role": "user", "content": 7}), "messages[1].content: expected a string or a list"),
            (json!({"role": "user", "reasoning": 7}), "messages[1].reasoning: invalid type: integer `7`"),
            (json!({"role": 7}), "messages[1].role: invalid type: integer `7`"),
            (
                json!({"role": "assistant", "tool_calls": [{"id": 7}]}),
                "messages[1].tool_calls[0].id: invalid type",
            ),
            (json!(7), "messages[1]: invalid type: integer `7`"),
        ] {
            let request = json!({"messages": [{"role": "user", "content": "?"}, message]});
            let error = translated(&request).unwrap_err().to_string();
            assert!(error.contains(expect), "{message}: {error}");
        }
        assert!(think("a lot").is_err());
        let request = json!({"messages": [{"role": "user"}], "response_format": {"type": "json_schema"}});
        assert!(translated(&request).unwrap_err().to_string().contains("json_schema is missing"));
    }
}

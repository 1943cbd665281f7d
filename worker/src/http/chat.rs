//! `POST /api/chat`: continue a conversation, or load and unload a model with an empty one.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::Api;
use super::generate::{format, load_or_unload, merge_options, model_messages, think};
use super::options::{Options, SharedFields};
use super::request::{ModelRequest, is_json_string, run_with_model};
use super::stream::{self, Records, Shape};
use crate::error::Error;
use crate::runner::protocol::{Input, SharedJson, ToolChoice};
use crate::scheduler::KeepAlive;

#[derive(Deserialize)]
pub(super) struct Body {
    /// Unparsed: a long conversation is read one message at a time.
    messages: Option<Vec<Box<RawValue>>>,
    tools: Option<Vec<Box<RawValue>>>,
    stream: Option<bool>,
    format: Option<Value>,
    keep_alive: Option<KeepAlive>,
    options: Option<Map<String, Value>>,
    think: Option<Value>,
    tool_choice: Option<ToolChoiceField>,
    truncate: Option<bool>,
    shift: Option<bool>,
    logprobs: Option<bool>,
    top_logprobs: Option<i64>,
    #[serde(rename = "_debug_render_only")]
    debug_render_only: Option<bool>,
}

/// `tool_choice`, as in OpenAI's API.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected `auto`, `none`, `required`, or an object with type `function` and a function's name"
)]
enum ToolChoiceField {
    Mode(ToolChoiceMode),
    Named { function: NamedFunction },
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ToolChoiceMode {
    Auto,
    None,
    Required,
}

#[derive(Deserialize)]
struct NamedFunction {
    name: String,
}

impl ToolChoiceField {
    fn choice(&self) -> Option<ToolChoice> {
        match self {
            ToolChoiceField::Mode(ToolChoiceMode::Auto | ToolChoiceMode::None) => None,
            ToolChoiceField::Mode(ToolChoiceMode::Required) => Some(ToolChoice::Required),
            ToolChoiceField::Named { function } => Some(ToolChoice::Named(function.name.clone())),
        }
    }
}

pub(super) async fn chat(State(api): State<Api>, mut request: ModelRequest<Body>) -> Result<Response, Error> {
    let started = Instant::now();
    let messages = request.body.messages.take().unwrap_or_default();
    let mut tools = request.body.tools.take().unwrap_or_default();
    if matches!(request.body.tool_choice, Some(ToolChoiceField::Mode(ToolChoiceMode::None))) {
        tools.clear();
    }
    let body = &request.body;
    let mut options = Options::default();
    let request_options = body.options.as_ref();
    request_options.map(|given| options.apply(given)).transpose()?;
    let records = Records { shape: Shape::Chat, model: request.name.clone(), started, load: Duration::ZERO };
    if messages.is_empty() {
        return load_or_unload(&api, &request, options.context(), body.keep_alive, records).await;
    }
    let name = request.name.clone();
    let (messages, tools) = prepare(messages, tools, name).await?;

    let common = SharedFields {
        truncate: body.truncate,
        shift: body.shift,
        logprobs: body.logprobs,
        top_logprobs: body.top_logprobs,
        think: think(&body.think)?,
        format: format(&body.format)?,
        tool_choice: body.tool_choice.as_ref().and_then(ToolChoiceField::choice),
        echo: false,
    };
    let (common, records, messages, tools) = (&common, &records, &messages, &tools);
    run_with_model(&api, request.wanted(options.context(), body.keep_alive), move |ticket| {
        Box::pin(async move {
            let model = ticket.model().model();
            // The model's own messages come first, after its system prompt unless the request has one.
            let has_system = messages.first().is_some_and(|message| message.is_system);
            let system = model.system.as_ref().filter(|_| !has_system);
            let system = system.map(|system| json!({"role": "system", "content": system}));
            let mut all = model_messages(system.as_slice())?;
            all.extend(model_messages(&model.messages)?);
            all.extend(messages.iter().map(|message| message.json.clone()));
            let input = Input::Chat { messages: all, tools: tools.clone() };
            let outgoing = merge_options(&model.params, request_options)?.request(input, common)?;
            let records = Records { load: ticket.load_duration(), ..records.clone() };
            if body.debug_render_only == Some(true) {
                return stream::render_prompt(ticket, &outgoing, &records).await;
            }
            stream::run_generation(ticket, outgoing, records, body.stream.unwrap_or(true)).await
        })
    })
    .await
}

/// A message for the runner.
#[derive(Debug)]
struct Message {
    json: SharedJson,
    is_system: bool,
}

/// Long conversations are checked off the async threads.
const LARGE_BYTES: usize = 256 << 10;

/// Converts the messages to the form that templates expect, and checks the tools.
async fn prepare(
    messages: Vec<Box<RawValue>>,
    tools: Vec<Box<RawValue>>,
    name: String,
) -> Result<(Vec<Message>, Vec<SharedJson>), Error> {
    let len: usize = messages.iter().map(|message| message.get().len()).sum();
    let work = move || {
        let messages = messages.into_iter().enumerate();
        let messages = messages.map(|(at, message)| self::message(&name, at, message));
        let messages = messages.collect::<Result<Vec<_>, _>>()?;
        for (at, tool) in tools.iter().enumerate() {
            if !tool.get().starts_with('{') {
                return Err(Error::Invalid(format!("tools[{at}] must be an object")));
            }
        }
        Ok((messages, tools.into_iter().map(SharedJson::from).collect()))
    };
    if len <= LARGE_BYTES {
        return work();
    }
    match tokio::task::spawn_blocking(work).await {
        Ok(prepared) => prepared,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// A message in the form that templates expect: a known role, a `content`, and no null or empty members. A
/// message that already has this form is kept as it was written.
fn message(model: &str, at: usize, json: Box<RawValue>) -> Result<Message, Error> {
    let not_an_object =
        |error: serde_json::Error| Error::Invalid(format!("messages[{at}] is not a message: {error}"));
    let mut members: BTreeMap<String, &RawValue> = serde_json::from_str(json.get()).map_err(not_an_object)?;
    let written = members.len();
    // Templates that test whether a key is present treat an empty list of tool calls as a tool call.
    members.retain(|_, value| value.get() != "null" && !is_empty_list(value));
    let role = members.get("role").and_then(|role| serde_json::from_str::<String>(role.get()).ok());
    let role = role.unwrap_or_default();
    let known = ["system", "user", "assistant", "tool"];
    let Some(known) = known.into_iter().find(|known| role.to_lowercase() == *known) else {
        return Err(Error::Invalid(format!(
            "invalid role {:?}: must be system, user, assistant or tool",
            role.to_lowercase()
        )));
    };
    if members.contains_key("images") {
        return Err(Error::Invalid(format!("{model:?} does not support images")));
    }
    for key in ["content", "thinking", "tool_name", "tool_call_id"] {
        if members.get(key).is_some_and(|value| !is_json_string(value)) {
            return Err(Error::Invalid(format!("messages[{at}].{key} must be a string")));
        }
    }
    if let Some(calls) = members.get("tool_calls")
        && !serde_json::from_str(calls.get()).is_ok_and(|calls| are_tool_calls(&calls))
    {
        return Err(Error::Invalid(format!(
            "messages[{at}].tool_calls must be a list of tool calls, each with a function that has a name and arguments"
        )));
    }
    let is_system = known == "system";
    if members.len() == written && members.contains_key("content") && role == known {
        return Ok(Message { json: json.into(), is_system });
    }
    let (role, empty) = (text(known)?, text("")?);
    members.insert("role".to_owned(), &role);
    members.entry("content".to_owned()).or_insert(&empty);
    let rewritten = to_raw_value(&members).map_err(not_an_object)?;
    Ok(Message { json: rewritten.into(), is_system })
}

fn text(text: &str) -> Result<Box<RawValue>, Error> {
    to_raw_value(text).map_err(|error| Error::Invalid(error.to_string()))
}

fn is_empty_list(json: &RawValue) -> bool {
    let inner = json.get().strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    inner.is_some_and(|inner| inner.trim_ascii().is_empty())
}

/// Arguments are an object, or its JSON as a string.
fn are_tool_calls(calls: &Value) -> bool {
    let is_call = |call: &Value| {
        let arguments = call.pointer("/function/arguments");
        call.pointer("/function/name").is_some_and(Value::is_string)
            && arguments
                .is_none_or(|arguments| arguments.is_object() || arguments.is_string() || arguments.is_null())
    };
    calls.as_array().is_some_and(|calls| calls.iter().all(is_call))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages() {
        let check = |json: Value| {
            let message = message("m", 3, to_raw_value(&json).unwrap()).map_err(|error| error.to_string())?;
            assert_eq!(message.is_system, json["role"] == "system");
            Ok::<_, String>(serde_json::to_value(message.json).unwrap())
        };
        assert_eq!(
            check(json!({"role": "User", "content": "x"})),
            Ok(json!({"role": "user", "content": "x"}))
        );
        let calls = json!({"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f"}}], "images": []});
        let expect = json!({"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f"}}]});
        assert_eq!(check(calls), Ok(expect));
        let empty =
            json!({"role": "assistant", "content": "x", "tool_calls": [], "thinking": null, "images": []});
        assert_eq!(check(empty), Ok(json!({"role": "assistant", "content": "x"})));
        let plain = json!({"role": "system", "content": "x", "more": {"a": [null]}});
        assert_eq!(check(plain.clone()), Ok(plain));
        for bad in [json!({}), json!(7), json!({"role": "root"}), json!({"role": "user", "images": ["x"]})] {
            assert!(check(bad.clone()).is_err(), "{bad}");
        }
        for (key, value) in [
            ("content", json!(1)),
            ("content", json!(["x"])),
            ("thinking", json!({})),
            ("tool_name", json!(1)),
            ("tool_calls", json!("f")),
            ("tool_calls", json!([1])),
            ("tool_calls", json!([{"name": "f"}])),
            ("tool_calls", json!([{"function": {"name": "f", "arguments": 1}}])),
        ] {
            let mut bad = json!({"role": "assistant", "content": ""});
            bad[key] = value;
            let error = check(bad).unwrap_err();
            assert!(error.starts_with(&format!("messages[3].{key} must be")), "{error}");
        }
    }
}

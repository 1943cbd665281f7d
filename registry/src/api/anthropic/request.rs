//! Translates a request to `/v1/messages` to one to a worker's `/api/chat`.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::content::{System, translate};
use crate::api::worker_chat::{
    ToolChoice, WorkerChat, WorkerFormat, WorkerTool, think, to_json, to_raw_json,
};
use crate::http::Failure;
use crate::http::extract::{Members, Translated, parse, parse_part};

/// The settings of a response.
pub(super) struct ReplyOptions {
    pub(super) model: String,
    pub(super) stream: bool,
    pub(super) max_tokens: u64,
    pub(super) stop_sequences: Vec<String>,
    /// Whether the response has at most one tool call.
    pub(super) is_single_call: bool,
}

/// The fields of a request. Those that have no effect on a response are not here.
#[derive(Default)]
struct Form<'a> {
    model: String,
    messages: Vec<&'a RawValue>,
    max_tokens: Option<u64>,
    system: Option<System>,
    stream: bool,
    options: Map<String, Value>,
    stop_sequences: Vec<String>,
    tools: Vec<&'a RawValue>,
    tool_choice: Option<ChoiceField>,
    thinking: Option<ThinkingField>,
    output: OutputField<'a>,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum ThinkingField {
    Enabled { budget_tokens: u64 },
    Adaptive {},
    Disabled {},
}

#[derive(Deserialize)]
struct ChoiceField {
    #[serde(rename = "type")]
    kind: ChoiceKind,
    name: Option<String>,
    disable_parallel_tool_use: Option<bool>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ChoiceKind {
    Auto,
    Any,
    Tool,
    None,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct OutputField<'a> {
    effort: Option<String>,
    #[serde(borrow)]
    format: Option<FormatField<'a>>,
}

#[derive(Deserialize)]
struct FormatField<'a> {
    #[serde(rename = "type")]
    _kind: FormatKind,
    #[serde(borrow)]
    schema: &'a RawValue,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum FormatKind {
    JsonSchema,
}

#[derive(Deserialize)]
struct ToolField<'a> {
    #[serde(rename = "type")]
    kind: Option<String>,
    name: String,
    description: Option<String>,
    #[serde(borrow)]
    input_schema: Option<&'a RawValue>,
}

impl<'a> Form<'a> {
    fn parse(members: &Members<'a>) -> Result<Form<'a>, Failure> {
        let mut form = Form::default();
        for (key, value) in &members.0 {
            if value.get() != "null" {
                form.set(key, value)?;
            }
        }
        Ok(form)
    }

    fn set(&mut self, key: &str, value: &'a RawValue) -> Result<(), Failure> {
        let field = || key.to_owned();
        match key {
            "model" => self.model = parse_part(value, field)?,
            "messages" => self.messages = parse_part(value, field)?,
            "max_tokens" => self.max_tokens = Some(parse_part(value, field)?),
            "system" => self.system = Some(parse_part(value, field)?),
            "stream" => self.stream = parse_part(value, field)?,
            "temperature" | "top_p" => {
                self.options.insert(field(), json!(parse_part::<f64>(value, field)?));
            }
            "top_k" => {
                self.options.insert(field(), json!(parse_part::<u32>(value, field)?));
            }
            "stop_sequences" => self.stop_sequences = parse_part(value, field)?,
            "tools" => self.tools = parse_part(value, field)?,
            "tool_choice" => self.tool_choice = Some(parse_part(value, field)?),
            "thinking" => self.thinking = Some(parse_part(value, field)?),
            "output_config" => self.output = parse_part(value, field)?,
            // Prefixes are cached anyway; the others concern accounting.
            "cache_control" | "metadata" | "service_tier" => {}
            _ => return Err(Failure::field(key, "is not supported by this server")),
        }
        Ok(())
    }

    /// What the worker gets as `think`. As in Anthropic's API, a model reasons only if the request says so.
    fn think(&self) -> Result<Option<Value>, Failure> {
        let effort = self.output.effort.as_deref();
        let effort = effort.map(think).transpose().map_err(|_| {
            Failure::field("output_config.effort", "must be one of low, medium, high, xhigh, max")
        })?;
        match &self.thinking {
            None | Some(ThinkingField::Disabled {}) => Ok(Some(json!(false))),
            Some(ThinkingField::Adaptive {}) => Ok(effort),
            Some(ThinkingField::Enabled { budget_tokens }) => match self.max_tokens {
                Some(max_tokens) if *budget_tokens >= max_tokens => {
                    Err(Failure::field("thinking.budget_tokens", "must be less than `max_tokens`"))
                }
                _ => Ok(Some(effort.unwrap_or(json!(true)))),
            },
        }
    }

    /// The tools for the worker, and which of them the response has to call.
    fn tools(&self) -> Result<(Option<Box<RawValue>>, Option<ToolChoice>), Failure> {
        let fields = self.tools.iter().enumerate().map(|(at, tool)| {
            let tool: ToolField<'_> = parse_part(tool, || format!("tools[{at}]"))?;
            match tool.kind.as_deref() {
                None | Some("custom") => Ok(tool),
                Some(kind) => Err(Failure::field(
                    format!("tools[{at}].type"),
                    format!("is `{kind}`, which this server does not have; expected `custom`"),
                )),
            }
        });
        let fields = fields.collect::<Result<Vec<_>, _>>()?;
        let choice = match &self.tool_choice {
            None => None,
            Some(choice) => match (choice.kind, &choice.name) {
                (ChoiceKind::None, _) => return Ok((None, None)),
                (ChoiceKind::Auto, _) => None,
                (ChoiceKind::Any, _) => Some(ToolChoice::REQUIRED),
                (ChoiceKind::Tool, Some(name)) => Some(ToolChoice::function(name.clone())),
                (ChoiceKind::Tool, None) => return Err(Failure::field("tool_choice.name", "is missing")),
            },
        };
        if fields.is_empty() {
            return match choice {
                Some(_) => Err(Failure::field("tools", "is missing, which `tool_choice` needs")),
                None => Ok((None, None)),
            };
        }
        let tools = fields
            .iter()
            .map(|tool| WorkerTool::new(&tool.name, tool.description.as_deref(), tool.input_schema));
        let tools: Vec<_> = tools.collect();
        Ok((Some(to_raw_json(&tools, 1024)), choice))
    }
}

/// Translates a request for a message.
pub(super) fn translate_message(body: &[u8]) -> Translated<ReplyOptions> {
    let form = Form::parse(&parse(body)?)?;
    let Some(max_tokens) = form.max_tokens else {
        return Err(Failure::field("max_tokens", "is required"));
    };
    let json = form.worker_request(body.len(), false)?;
    let is_single_call =
        form.tool_choice.as_ref().is_some_and(|choice| choice.disable_parallel_tool_use == Some(true));
    let Form { model, stream, stop_sequences, .. } = form;
    Ok((json, ReplyOptions { model, stream, max_tokens, stop_sequences, is_single_call }))
}

/// Translates a request for the number of its tokens.
pub(super) fn translate_count(body: &[u8]) -> Translated<ReplyOptions> {
    let form = Form::parse(&parse(body)?)?;
    let json = form.worker_request(body.len(), true)?;
    let Form { model, stop_sequences, .. } = form;
    Ok((json, ReplyOptions { model, stream: false, max_tokens: 0, stop_sequences, is_single_call: false }))
}

impl Form<'_> {
    fn worker_request(&self, len: usize, is_count: bool) -> Result<Vec<u8>, Failure> {
        // A worker would treat a chat without messages as a request to load the model.
        if self.messages.is_empty() {
            return Err(Failure::field("messages", "is missing or empty"));
        }
        let mut messages = Vec::with_capacity(self.messages.len() + 1);
        messages.extend(self.system.as_ref().map(System::message));
        let mut called = HashMap::new();
        let mut is_last_of_model = false;
        for (at, message) in self.messages.iter().enumerate() {
            is_last_of_model = translate(at, message, &mut called, &mut messages)?;
        }
        if is_last_of_model {
            return Err(Failure::field(
                format!("messages[{}].role", self.messages.len() - 1),
                "is `assistant`: the last message must be the user's, since responses cannot be prefilled",
            ));
        }
        let mut options = self.options.clone();
        // The API's defaults.
        for setting in ["temperature", "top_p"] {
            options.entry(setting).or_insert(json!(1.0));
        }
        options.extend(self.max_tokens.map(|tokens| ("num_predict".to_owned(), json!(tokens))));
        if !self.stop_sequences.is_empty() {
            options.insert("stop".to_owned(), json!(self.stop_sequences));
        }
        let (tools, tool_choice) = self.tools()?;
        let request = WorkerChat {
            model: &self.model,
            messages: &messages,
            stream: self.stream && !is_count,
            options: options.into(),
            format: self.output.format.as_ref().map(|format| WorkerFormat::Schema(format.schema)),
            tools: tools.as_deref(),
            tool_choice,
            think: self.think()?,
            // A prompt that is too long is refused, except to count it.
            truncate: (!is_count).then_some(false),
            shift: (!is_count).then_some(false),
            render_only: is_count,
            ..WorkerChat::default()
        };
        Ok(to_json(&request, len))
    }
}

//! Translates a request to `/v1/responses` to one to a worker's `/api/chat`.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::input::{Input, message_of_system};
use crate::api::worker_chat::{
    FunctionKind, ToolChoice, WorkerChat, WorkerFormat, WorkerTool, think, to_json, to_raw_json,
};
use crate::http::Failure;
use crate::http::extract::{Members, Translated, parse, parse_part};

/// The output that `include` adds.
const LOGPROBS: &str = "message.output_text.logprobs";

/// The settings of a response, which repeats most of them.
#[derive(Default)]
pub(super) struct Settings {
    pub(super) model: String,
    pub(super) stream: bool,
    pub(super) instructions: Option<Box<RawValue>>,
    pub(super) max_output_tokens: Option<u64>,
    pub(super) metadata: Option<Box<RawValue>>,
    pub(super) parallel_tool_calls: bool,
    pub(super) reasoning: Option<Box<RawValue>>,
    pub(super) temperature: f64,
    pub(super) text: Option<Box<RawValue>>,
    pub(super) tool_choice: Option<Box<RawValue>>,
    pub(super) tools: Option<Box<RawValue>>,
    pub(super) top_logprobs: Option<u32>,
    pub(super) top_p: f64,
    pub(super) truncate: bool,
    pub(super) user: Option<Box<RawValue>>,
}

impl Settings {
    /// The size of the fields that the response repeats.
    pub(super) fn repeated_bytes(&self) -> usize {
        let fields = [
            &self.instructions,
            &self.metadata,
            &self.reasoning,
            &self.text,
            &self.tool_choice,
            &self.tools,
            &self.user,
        ];
        fields.into_iter().flatten().map(|field| field.get().len()).sum()
    }
}

/// The fields of a request that are translated.
#[derive(Default)]
struct Form<'a> {
    settings: Settings,
    input: Option<&'a RawValue>,
    instructions: Option<String>,
    tools: Vec<&'a RawValue>,
    tool_choice: Option<ChoiceField>,
    effort: Option<String>,
    format: Option<FormatField<'a>>,
    has_logprobs: bool,
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected `none`, `auto`, `required`, or an object with type `function` and a name"
)]
enum ChoiceField {
    Mode(ChoiceMode),
    Named {
        #[serde(rename = "type")]
        _kind: FunctionKind,
        name: String,
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
#[serde(deny_unknown_fields)]
struct ReasoningField {
    effort: Option<String>,
    summary: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TextField<'a> {
    #[serde(borrow)]
    format: Option<FormatField<'a>>,
    verbosity: Option<String>,
}

#[derive(Deserialize)]
struct FormatField<'a> {
    #[serde(rename = "type")]
    kind: FormatKind,
    #[serde(borrow)]
    schema: Option<&'a RawValue>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum FormatKind {
    Text,
    JsonObject,
    JsonSchema,
}

#[derive(Deserialize)]
struct ToolField<'a> {
    #[serde(rename = "type")]
    kind: String,
    name: Option<String>,
    description: Option<String>,
    #[serde(borrow)]
    parameters: Option<&'a RawValue>,
}

impl<'a> Form<'a> {
    fn parse(members: &Members<'a>) -> Result<Form<'a>, Failure> {
        let mut form = Form::default();
        form.settings.parallel_tool_calls = true;
        (form.settings.temperature, form.settings.top_p) = (1.0, 1.0);
        let mut top_logprobs = None;
        for (key, value) in &members.0 {
            match &**key {
                _ if value.get() == "null" => {}
                "top_logprobs" => top_logprobs = Some(parse_part::<u32>(value, || key.to_string())?),
                key => form.set(key, value)?,
            }
        }
        if form.has_logprobs {
            form.settings.top_logprobs = Some(top_logprobs.unwrap_or(0));
        } else if top_logprobs.is_some_and(|count| count > 0) {
            return Err(Failure::field("top_logprobs", format!("needs `include` with `{LOGPROBS}`")));
        }
        Ok(form)
    }

    fn set(&mut self, key: &str, value: &'a RawValue) -> Result<(), Failure> {
        let field = || key.to_owned();
        let kept = || Some(value.to_owned());
        let settings = &mut self.settings;
        match key {
            "model" => settings.model = parse_part(value, field)?,
            "stream" => settings.stream = parse_part(value, field)?,
            "input" => self.input = Some(value),
            "instructions" => {
                self.instructions = Some(parse_part(value, field)?);
                settings.instructions = kept();
            }
            "max_output_tokens" => settings.max_output_tokens = Some(parse_part(value, field)?),
            "temperature" => settings.temperature = parse_part(value, field)?,
            "top_p" => settings.top_p = parse_part(value, field)?,
            "parallel_tool_calls" => settings.parallel_tool_calls = parse_part(value, field)?,
            "tools" => {
                self.tools = parse_part(value, field)?;
                settings.tools = kept();
            }
            "tool_choice" => {
                self.tool_choice = Some(parse_part(value, field)?);
                settings.tool_choice = kept();
            }
            "reasoning" => {
                let ReasoningField { effort, summary } = parse_part(value, field)?;
                if summary.is_some_and(|summary| summary != "auto") {
                    return Err(Failure::field(
                        "reasoning.summary",
                        "must be `auto`: there are no summaries",
                    ));
                }
                self.effort = effort;
                settings.reasoning = kept();
            }
            "text" => {
                let TextField { format, verbosity } = parse_part(value, field)?;
                if verbosity.is_some_and(|verbosity| verbosity != "medium") {
                    return Err(Failure::field("text.verbosity", "must be `medium`, the default"));
                }
                self.format = format;
                settings.text = kept();
            }
            "truncation" => {
                settings.truncate = match &*parse_part::<String>(value, field)? {
                    "auto" => true,
                    "disabled" => false,
                    _ => return Err(Failure::field(key, "must be `auto` or `disabled`")),
                }
            }
            "include" => {
                for output in parse_part::<Vec<String>>(value, field)? {
                    match &*output {
                        LOGPROBS => self.has_logprobs = true,
                        // Items of reasoning have their text, which clients send back as well.
                        "reasoning.encrypted_content" => {}
                        _ => {
                            return Err(Failure::field(
                                key,
                                format!("contains `{output}`, which is not supported"),
                            ));
                        }
                    }
                }
            }
            "metadata" => settings.metadata = kept(),
            "user" => settings.user = kept(),
            "background" => {
                if parse_part::<bool>(value, field)? {
                    return Err(Failure::field(key, "must be false: this server stores no responses"));
                }
            }
            "previous_response_id" | "conversation" => {
                let reason =
                    "is not supported: this server stores no responses; send the earlier items in `input`";
                return Err(Failure::field(key, reason));
            }
            "service_tier" => match &*parse_part::<String>(value, field)? {
                "auto" | "default" => {}
                _ => return Err(Failure::field(key, "must be `auto` or `default`")),
            },
            // `store`: nothing is stored, as the response says. The others concern accounting, caches, and
            // built-in tools, of which there are none.
            "store"
            | "safety_identifier"
            | "prompt_cache_key"
            | "prompt_cache_retention"
            | "stream_options"
            | "max_tool_calls" => {}
            _ => return Err(Failure::field(key, "is not supported by this server")),
        }
        Ok(())
    }

    fn format(&self) -> Result<Option<WorkerFormat<'a>>, Failure> {
        let Some(format) = &self.format else { return Ok(None) };
        match (format.kind, format.schema) {
            (FormatKind::Text, _) => Ok(None),
            (FormatKind::JsonObject, _) => Ok(Some(WorkerFormat::Any("json"))),
            (FormatKind::JsonSchema, Some(schema)) => Ok(Some(WorkerFormat::Schema(schema))),
            (FormatKind::JsonSchema, None) => Err(Failure::field("text.format.schema", "is missing")),
        }
    }

    /// The tools for the worker, and which of them the response has to call.
    fn tools(&self) -> Result<(Option<Box<RawValue>>, Option<ToolChoice>), Failure> {
        let fields = self.tools.iter().enumerate().map(|(at, tool)| {
            let tool: ToolField<'_> = parse_part(tool, || format!("tools[{at}]"))?;
            if tool.kind != "function" {
                return Err(Failure::field(
                    format!("tools[{at}].type"),
                    format!("is `{}`, which this server does not have; expected `function`", tool.kind),
                ));
            }
            let name = tool.name.clone();
            let name = name.ok_or_else(|| Failure::field(format!("tools[{at}].name"), "is missing"))?;
            Ok((name, tool))
        });
        let fields = fields.collect::<Result<Vec<_>, _>>()?;
        let choice = match &self.tool_choice {
            Some(ChoiceField::Mode(ChoiceMode::None)) => return Ok((None, None)),
            None | Some(ChoiceField::Mode(ChoiceMode::Auto)) => None,
            Some(ChoiceField::Mode(ChoiceMode::Required)) => Some(ToolChoice::REQUIRED),
            Some(ChoiceField::Named { name, .. }) => Some(ToolChoice::function(name.clone())),
        };
        if fields.is_empty() {
            return match choice {
                Some(_) => Err(Failure::field("tools", "is missing, which `tool_choice` needs")),
                None => Ok((None, None)),
            };
        }
        let tools: Vec<_> = fields
            .iter()
            .map(|(name, tool)| WorkerTool::new(name, tool.description.as_deref(), tool.parameters))
            .collect();
        Ok((Some(to_raw_json(&tools, 1024)), choice))
    }

    fn options(&self) -> Value {
        let settings = &self.settings;
        let mut options = Map::new();
        options.insert("temperature".to_owned(), json!(settings.temperature));
        options.insert("top_p".to_owned(), json!(settings.top_p));
        options.extend(settings.max_output_tokens.map(|tokens| ("num_predict".to_owned(), json!(tokens))));
        options.into()
    }
}

/// Translates a request for a response.
pub(super) fn translate_response(body: &[u8]) -> Translated<Settings> {
    translate(body, false)
}

/// Translates a request for the number of its tokens.
pub(super) fn translate_count(body: &[u8]) -> Translated<Settings> {
    translate(body, true)
}

fn translate(body: &[u8], is_count: bool) -> Translated<Settings> {
    let form = Form::parse(&parse(body)?)?;
    let mut input = Input::default();
    input.messages.extend(form.instructions.as_deref().map(message_of_system));
    let Some(given) = form.input else { return Err(Failure::field("input", "is missing")) };
    input.read(given)?;
    let messages = input.finish()?;
    let (tools, tool_choice) = form.tools()?;
    let (settings, effort) = (&form.settings, form.effort.as_deref());
    let effort = effort.map(think).transpose().map_err(|_| {
        Failure::field("reasoning.effort", "must be one of none, minimal, low, medium, high, xhigh")
    })?;
    let request = WorkerChat {
        model: &settings.model,
        messages: &messages,
        stream: settings.stream && !is_count,
        options: form.options(),
        format: form.format()?,
        tools: tools.as_deref(),
        tool_choice,
        think: effort,
        logprobs: form.has_logprobs.then_some(true),
        top_logprobs: settings.top_logprobs,
        // A prompt that is too long is refused unless the request says otherwise, except to count it.
        truncate: (!is_count).then_some(settings.truncate),
        shift: (!is_count).then_some(settings.truncate),
        render_only: is_count,
    };
    let json = to_json(&request, body.len());
    Ok((json, form.settings))
}

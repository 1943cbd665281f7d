//! The response object, which repeats the settings of its request.

use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::request::Settings;
use crate::api::worker_records::ChatRecord;

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Status {
    InProgress,
    Completed,
    Incomplete,
    Failed,
}

/// The state of a response.
pub(super) struct Progress<'a> {
    pub(super) status: Status,
    pub(super) output: &'a [Value],
    pub(super) usage: Option<Value>,
    pub(super) error: Option<&'a str>,
}

#[derive(Serialize)]
pub(super) struct ResponseObject<'a> {
    id: &'a str,
    object: &'static str,
    created_at: i64,
    status: Status,
    background: bool,
    error: Option<ResponseError<'a>>,
    incomplete_details: Option<IncompleteDetails>,
    instructions: Option<&'a RawValue>,
    max_output_tokens: Option<u64>,
    max_tool_calls: Option<u64>,
    metadata: Setting<'a>,
    model: &'a str,
    output: &'a [Value],
    parallel_tool_calls: bool,
    previous_response_id: Option<&'a str>,
    reasoning: Setting<'a>,
    service_tier: &'static str,
    store: bool,
    temperature: f64,
    text: Setting<'a>,
    tool_choice: Setting<'a>,
    tools: Setting<'a>,
    top_logprobs: u32,
    top_p: f64,
    truncation: &'static str,
    usage: Option<Value>,
    user: Option<&'a RawValue>,
}

#[derive(Serialize)]
struct ResponseError<'a> {
    code: &'static str,
    message: &'a str,
}

#[derive(Serialize)]
struct IncompleteDetails {
    reason: &'static str,
}

/// A field as in the request, or its default.
#[derive(Serialize)]
#[serde(untagged)]
enum Setting<'a> {
    Given(&'a RawValue),
    Default(Value),
}

impl<'a> Setting<'a> {
    fn new(given: &'a Option<Box<RawValue>>, default: Value) -> Setting<'a> {
        given.as_deref().map_or(Setting::Default(default), Setting::Given)
    }
}

impl<'a> ResponseObject<'a> {
    pub(super) fn new(
        (id, created_at): (&'a str, i64),
        settings: &'a Settings,
        progress: Progress<'a>,
    ) -> ResponseObject<'a> {
        let Progress { status, output, usage, error } = progress;
        let is_incomplete = status == Status::Incomplete;
        ResponseObject {
            id,
            object: "response",
            created_at,
            status,
            background: false,
            error: error.map(|message| ResponseError { code: "server_error", message }),
            incomplete_details: is_incomplete.then_some(IncompleteDetails { reason: "max_output_tokens" }),
            instructions: settings.instructions.as_deref(),
            max_output_tokens: settings.max_output_tokens,
            max_tool_calls: None,
            metadata: Setting::new(&settings.metadata, json!({})),
            model: &settings.model,
            output,
            parallel_tool_calls: settings.parallel_tool_calls,
            previous_response_id: None,
            reasoning: Setting::new(&settings.reasoning, json!({ "effort": null, "summary": null })),
            service_tier: "default",
            store: false,
            temperature: settings.temperature,
            text: Setting::new(&settings.text, json!({ "format": { "type": "text" } })),
            tool_choice: Setting::new(&settings.tool_choice, json!("auto")),
            tools: Setting::new(&settings.tools, json!([])),
            top_logprobs: settings.top_logprobs.unwrap_or(0),
            top_p: settings.top_p,
            truncation: if settings.truncate { "auto" } else { "disabled" },
            usage,
            user: settings.user.as_deref(),
        }
    }
}

pub(super) fn usage(record: &ChatRecord) -> Value {
    json!({
        "input_tokens": record.prompt_eval_count,
        "input_tokens_details": { "cached_tokens": record.prompt_cached_count, "cache_write_tokens": 0 },
        "output_tokens": record.eval_count,
        "output_tokens_details": { "reasoning_tokens": record.thinking_count },
        "total_tokens": record.prompt_eval_count + record.eval_count,
    })
}

//! The chat request for a worker, into which other servers' APIs are translated, and its sending. Messages,
//! schemas and tools stay text where they need no translation.

use lode_model::digest::Digest;
use lode_model::reference::Repository;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::inference::{ForwardedBody, forward, read_json, resolve};
use crate::auth::Caller;
use crate::gateway::{RequestClient, WorkerResponse};
use crate::http::Failure;
use crate::http::extract::InferenceBody;
use crate::http::forwarded::RequestOrigin;
use crate::http::model_name;
use crate::http::state::ServerState;

/// The request for a worker's `/api/chat`.
#[derive(Default, Serialize)]
pub(super) struct WorkerChat<'a> {
    pub(super) model: &'a str,
    pub(super) messages: &'a [Box<RawValue>],
    pub(super) stream: bool,
    pub(super) options: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) format: Option<WorkerFormat<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tools: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tool_choice: Option<ToolChoice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) think: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) logprobs: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) top_logprobs: Option<u32>,
    /// Whether a prompt that is too long is truncated, which is the worker's default, or refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) truncate: Option<bool>,
    /// Whether a response that fills the context continues, which is the worker's default, or ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) shift: Option<bool>,
    /// Whether to return the prompt and its number of tokens instead of a response.
    #[serde(rename = "_debug_render_only", skip_serializing_if = "std::ops::Not::not")]
    pub(super) render_only: bool,
}

/// Which tools the response has to call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub(super) enum ToolChoice {
    Mode(ToolMode),
    Function {
        #[serde(rename = "type")]
        kind: FunctionKind,
        function: FunctionName,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ToolMode {
    Required,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum FunctionKind {
    Function,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct FunctionName {
    pub(super) name: String,
}

impl ToolChoice {
    pub(super) const REQUIRED: ToolChoice = ToolChoice::Mode(ToolMode::Required);

    pub(super) fn function(name: String) -> ToolChoice {
        ToolChoice::Function { kind: FunctionKind::Function, function: FunctionName { name } }
    }
}

#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum WorkerFormat<'a> {
    Any(&'static str),
    Schema(&'a RawValue),
}

#[derive(Default, Serialize)]
pub(super) struct WorkerMessage<'a> {
    pub(super) role: &'a str,
    pub(super) content: WorkerContent<'a>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) images: Vec<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) tool_calls: Vec<WorkerCall<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) thinking: Option<WorkerContent<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tool_call_id: Option<WorkerContent<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tool_name: Option<WorkerContent<'a>>,
}

/// A JSON string copied from the request, or a new one.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum WorkerContent<'a> {
    Written(&'a RawValue),
    Joined(String),
}

impl Default for WorkerContent<'_> {
    fn default() -> Self {
        WorkerContent::Joined(String::new())
    }
}

#[derive(Serialize)]
pub(super) struct WorkerCall<'a> {
    pub(super) id: &'a str,
    pub(super) function: WorkerFunction<'a>,
}

#[derive(Serialize)]
pub(super) struct WorkerFunction<'a> {
    pub(super) name: &'a str,
    pub(super) arguments: Box<RawValue>,
}

/// A tool, as in OpenAI's API.
#[derive(Serialize)]
pub(super) struct WorkerTool<'a> {
    #[serde(rename = "type")]
    kind: FunctionKind,
    function: WorkerToolFunction<'a>,
}

#[derive(Serialize)]
struct WorkerToolFunction<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<&'a RawValue>,
}

impl<'a> WorkerTool<'a> {
    pub(super) fn new(
        name: &'a str,
        description: Option<&'a str>,
        parameters: Option<&'a RawValue>,
    ) -> WorkerTool<'a> {
        let function = WorkerToolFunction { name, description, parameters };
        WorkerTool { kind: FunctionKind::Function, function }
    }
}

/// Serialises a translated request.
pub(super) fn to_json(request: &impl Serialize, capacity: usize) -> Vec<u8> {
    let mut json = Vec::with_capacity(capacity);
    serde_json::to_writer(&mut json, request).expect("strings, numbers and JSON are JSON");
    json
}

/// Serialises a part of a translated request.
pub(super) fn to_raw_json(part: &impl Serialize, capacity: usize) -> Box<RawValue> {
    let json = String::from_utf8(to_json(part, capacity)).expect("JSON is UTF-8");
    RawValue::from_string(json).expect("serialised JSON is JSON")
}

/// The base64 data of an inline image. Nothing is fetched for a caller.
pub(super) fn image_data(url: &str) -> Result<&str, Failure> {
    let data = url.strip_prefix("data:").and_then(|rest| rest.split_once(";base64,"));
    data.map(|(_, data)| data).ok_or_else(|| {
        Failure::Unsupported("images must be `data:` URLs with base64; other URLs are not fetched")
    })
}

/// The worker's `think` for OpenAI's `reasoning_effort`.
pub(super) fn think(effort: &str) -> Result<Value, Failure> {
    match effort {
        "none" => Ok(json!(false)),
        "minimal" | "low" => Ok(json!("low")),
        "medium" | "high" | "max" => Ok(json!(effort)),
        "xhigh" | "ultra" => Ok(json!("max")),
        _ => Err(Failure::Unsupported(
            "reasoning_effort must be one of none, minimal, low, medium, high, xhigh, max",
        )),
    }
}

/// A model and a path of the workers that serve it, for the requests of one client.
#[derive(Clone)]
pub(super) struct Target {
    server: ServerState,
    model: (Repository, Digest),
    /// As the caller wrote it.
    name: String,
    client: Option<RequestClient>,
    path: &'static str,
}

impl Target {
    /// Resolves a model's name with the rights of the caller.
    pub(super) async fn resolve(
        server: &ServerState,
        (caller, client): (&Caller, RequestOrigin),
        name: &str,
        path: &'static str,
    ) -> Result<Target, Failure> {
        let model = resolve(&server.registry, caller, name, model_name::parse_exact(name)?).await?;
        let client = RequestClient::of(caller, client.address, client.urgency);
        Ok(Target { server: server.clone(), model, name: name.to_owned(), client, path })
    }

    /// Sends a translated request to a worker. A refusal becomes a failure with the worker's message.
    pub(super) async fn request(self, body: InferenceBody) -> Result<WorkerResponse, Failure> {
        let Target { server, model, name, client, path } = self;
        let response = forward(&server, model, ForwardedBody { name, client, path, body }).await?;
        if response.status.is_success() {
            return Ok(response);
        }
        let status = response.status;
        let refusal: Value = read_json(response).await?;
        let message = refusal["error"].as_str().unwrap_or("the worker refused the request").to_owned();
        Err(Failure::Worker { status, message })
    }
}

/// Resolves a model's name, and sends a translated request to a worker.
pub(super) async fn request_worker(
    server: &ServerState,
    caller: (&Caller, RequestOrigin),
    model: &str,
    path: &'static str,
    body: InferenceBody,
) -> Result<WorkerResponse, Failure> {
    Target::resolve(server, caller, model, path).await?.request(body).await
}

//! `POST /v1/completions`, implemented with `/api/generate`.

use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::reply::{Reply, Shape};
use super::{ResponseOptions, Sampling, StreamOptions, text};
use crate::api::worker_chat::{request_worker, to_json};
use crate::auth::Caller;
use crate::http::Failure;
use crate::http::extract::{InferenceBody, null_as_default, parse, parse_part};
use crate::http::forwarded::ClientAddress;
use crate::http::state::ServerState;

#[derive(Deserialize)]
struct Completion<'a> {
    #[serde(default, deserialize_with = "null_as_default")]
    model: String,
    #[serde(borrow)]
    prompt: Option<&'a RawValue>,
    #[serde(borrow)]
    suffix: Option<&'a RawValue>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    logprobs: Option<u32>,
    echo: Option<bool>,
}

/// A prompt that is not one string.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a string, or a list with one string")]
enum Prompt {
    Listed([String; 1]),
}

/// The request for a worker.
#[derive(Serialize)]
struct WorkerGenerate<'a> {
    model: &'a str,
    prompt: WorkerPrompt<'a>,
    raw: bool,
    stream: bool,
    options: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    suffix: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_logprobs: Option<u32>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum WorkerPrompt<'a> {
    Written(&'a RawValue),
    Listed(String),
}

pub(crate) async fn post(
    State(server): State<ServerState>,
    caller: Caller,
    client: ClientAddress,
    body: InferenceBody,
) -> Result<Response, Failure> {
    let (body, form) = body.translate(translate).await?;
    let response = request_worker(&server, (&caller, client), &form.model, "/api/generate", body).await?;
    Reply::new(Shape::Completion, form.model, form.include_usage)
        .into_http_response(response, form.stream)
        .await
}

/// Translates the request to ollama's format.
fn translate(body: &[u8]) -> Result<(Vec<u8>, ResponseOptions), Failure> {
    let completion: Completion<'_> = parse(body)?;
    let sampling: Sampling = parse(body)?;
    let options = sampling.options()?;
    if completion.echo == Some(true) {
        return Err(Failure::Unsupported("echo is not supported"));
    }
    let prompt = match completion.prompt {
        None => WorkerPrompt::Listed(String::new()),
        Some(text) if text.get().starts_with('"') => WorkerPrompt::Written(text),
        Some(list) => {
            let Prompt::Listed([text]) = parse_part(list, || "prompt".to_owned())?;
            WorkerPrompt::Listed(text)
        }
    };
    let suffix = text(completion.suffix, || "suffix".to_owned())?.filter(|suffix| suffix.get() != "\"\"");
    let stream = completion.stream.unwrap_or(false);
    let request = WorkerGenerate {
        model: &completion.model,
        prompt,
        // The prompt is continued, so no template is applied, except for a suffix.
        raw: suffix.is_none(),
        stream,
        options,
        suffix,
        logprobs: completion.logprobs.map(|_| true),
        top_logprobs: completion.logprobs,
    };
    let json = to_json(&request, body.len() + 128);
    let include_usage = completion.stream_options.unwrap_or_default().include_usage;
    Ok((json, ResponseOptions { model: completion.model, stream, include_usage }))
}

//! `POST /v1/completions`, implemented with `/api/generate`.

use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::choices::{candidates_of_each, choices_of_each, respond, write_requests};
use super::reply::{Reply, Shape};
use super::{BestOf, ResponseOptions, Sampling, StreamOptions, text};
use crate::api::worker_chat::{Target, to_json};
use crate::auth::Caller;
use crate::http::Failure;
use crate::http::extract::{InferenceBody, null_as_default, parse, parse_part};
use crate::http::forwarded::RequestOrigin;
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

/// Prompts that are not one string.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected a string, a list of strings, a list of token ids, or a list of such lists"
)]
enum Prompts {
    Texts(Vec<String>),
    Ids(Vec<u32>),
    IdLists(Vec<Vec<u32>>),
}

/// The request for a worker.
#[derive(Serialize)]
struct WorkerGenerate<'a> {
    model: &'a str,
    #[serde(flatten)]
    prompt: WorkerPrompt<'a>,
    raw: bool,
    stream: bool,
    options: Value,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    echo: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    suffix: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_logprobs: Option<u32>,
}

#[derive(Clone, Serialize)]
enum WorkerPrompt<'a> {
    #[serde(rename = "prompt")]
    Written(&'a RawValue),
    #[serde(rename = "prompt")]
    Listed(String),
    #[serde(rename = "prompt_ids")]
    Ids(Vec<u32>),
}

impl WorkerPrompt<'_> {
    fn is_empty(&self) -> bool {
        match self {
            WorkerPrompt::Written(json) => json.get() == "\"\"",
            WorkerPrompt::Listed(text) => text.is_empty(),
            WorkerPrompt::Ids(ids) => ids.is_empty(),
        }
    }
}

pub(crate) async fn post(
    State(server): State<ServerState>,
    caller: Caller,
    client: RequestOrigin,
    body: InferenceBody,
) -> Result<Response, Failure> {
    let (bodies, options) = body.translate_each(translate).await?;
    let (model, is_stream) = (options.model.clone(), options.stream);
    let target = Target::resolve(&server, (&caller, client), &model, "/api/generate").await?;
    let reply = Reply::new(Shape::Completion, options, bodies.len());
    respond(target, bodies, reply, is_stream).await
}

/// Translates the request to ollama's format: a request for each candidate of each prompt.
fn translate(body: &[u8]) -> Result<(Vec<Bytes>, ResponseOptions), Failure> {
    let completion: Completion<'_> = parse(body)?;
    let sampling: Sampling = parse(body)?;
    let options = sampling.options();
    let prompts = prompts(completion.prompt)?;
    let choices_of_each = choices_of_each(sampling.n, prompts.len())?;
    let candidates = candidates_of_each(sampling.best_of, choices_of_each, prompts.len())?;
    let suffix = text(completion.suffix, || "suffix".to_owned())?.filter(|suffix| suffix.get() != "\"\"");
    let echo = completion.echo == Some(true);
    if echo && suffix.is_some() {
        return Err(Failure::field("echo", "is not supported with `suffix`"));
    }
    let stream = completion.stream.unwrap_or(false);
    let with_logprobs = completion.logprobs.is_some();
    let best_of = BestOf { candidates, with_logprobs, echo };
    let best_of = Some(best_of).filter(|_| candidates > choices_of_each);
    if stream && best_of.is_some() {
        return Err(Failure::field("best_of", "must be equal to `n` in a stream: all candidates are sent"));
    }
    let (mut requests, mut copied_bytes) = (Vec::new(), 0);
    for prompt in prompts {
        if matches!(prompt, WorkerPrompt::Ids(_)) && suffix.is_some() {
            return Err(Failure::field("suffix", "is not supported with token ids"));
        }
        let mut request = WorkerGenerate {
            model: &completion.model,
            prompt,
            // The prompt is continued, so no template is applied, except for a suffix.
            raw: suffix.is_none(),
            stream,
            options: Value::Null,
            echo,
            suffix,
            logprobs: Some(true).filter(|_| with_logprobs || best_of.is_some()),
            top_logprobs: completion.logprobs,
        };
        requests.extend(write_requests(&options, candidates, &mut copied_bytes, |options| {
            request.options = options.into();
            to_json(&request, 1024)
        })?);
    }
    let include_usage = completion.stream_options.unwrap_or_default().include_usage;
    let options = ResponseOptions {
        model: completion.model,
        stream,
        include_usage,
        choices_of_each,
        best_of,
        is_single_call: false,
    };
    Ok((requests, options))
}

/// The prompts of a request; at least one.
fn prompts(prompt: Option<&RawValue>) -> Result<Vec<WorkerPrompt<'_>>, Failure> {
    let listed = match prompt {
        None => return Ok(vec![WorkerPrompt::Listed(String::new())]),
        Some(text) if text.get().starts_with('"') => return Ok(vec![WorkerPrompt::Written(text)]),
        Some(list) => parse_part(list, || "prompt".to_owned())?,
    };
    let prompts: Vec<WorkerPrompt<'_>> = match listed {
        Prompts::Texts(texts) => texts.into_iter().map(WorkerPrompt::Listed).collect(),
        Prompts::Ids(ids) => vec![WorkerPrompt::Ids(ids)],
        Prompts::IdLists(lists) => lists.into_iter().map(WorkerPrompt::Ids).collect(),
    };
    // One empty text loads the model, as for ollama's clients.
    let is_load = matches!(&prompts[..], [WorkerPrompt::Listed(_)]);
    match prompts.iter().position(WorkerPrompt::is_empty) {
        _ if prompts.is_empty() => Err(Failure::field("prompt", "is an empty list")),
        Some(at) if !is_load => Err(Failure::field(format!("prompt[{at}]"), "is empty")),
        _ => Ok(prompts),
    }
}

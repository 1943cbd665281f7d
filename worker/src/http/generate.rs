//! `POST /api/generate`: continue a prompt, or load and unload a model with an empty one.

use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use serde_json::value::to_raw_value;
use serde_json::{Map, Value};
use tokio::time::Instant;

use super::Api;
use super::options::{Options, SharedFields};
use super::request::{ModelRequest, run_with_model};
use super::stream::{self, Records, Shape};
use crate::error::Error;
use crate::runner::protocol::{Input, SharedJson, SharedText};
use crate::scheduler::KeepAlive;
use crate::text::Think;

#[derive(Deserialize)]
pub(super) struct Body {
    prompt: Option<String>,
    /// Token ids instead of a prompt; with `raw`.
    prompt_ids: Option<Vec<u32>>,
    /// Whether the response begins with the prompt.
    echo: Option<bool>,
    suffix: Option<String>,
    system: Option<String>,
    template: Option<String>,
    context: Option<Vec<u32>>,
    stream: Option<bool>,
    raw: Option<bool>,
    format: Option<Value>,
    keep_alive: Option<KeepAlive>,
    images: Option<Vec<Value>>,
    options: Option<Map<String, Value>>,
    think: Option<Value>,
    truncate: Option<bool>,
    shift: Option<bool>,
    logprobs: Option<bool>,
    top_logprobs: Option<i64>,
    #[serde(rename = "_debug_render_only")]
    debug_render_only: Option<bool>,
}

pub(super) async fn generate(
    State(api): State<Api>,
    mut request: ModelRequest<Body>,
) -> Result<Response, Error> {
    let started = Instant::now();
    let prompt = SharedText::from(request.body.prompt.take().unwrap_or_default());
    let prompt_ids = request.body.prompt_ids.take().unwrap_or_default();
    let is_load = prompt.is_empty() && prompt_ids.is_empty();
    let body = &request.body;
    let name = &request.name;
    let is_set = |text: &Option<String>| text.as_deref().is_some_and(|text| !text.is_empty());
    let raw = body.raw.unwrap_or(false);
    let context = body.context.as_deref().unwrap_or_default();
    if raw && (is_set(&body.template) || is_set(&body.system) || !context.is_empty()) {
        return Err(Error::Invalid("raw mode does not support template, system, or context".into()));
    }
    let is_alone = raw && prompt.is_empty();
    if !prompt_ids.is_empty() && !is_alone {
        return Err(Error::Invalid("prompt_ids requires raw, and no prompt".into()));
    }
    if body.images.as_ref().is_some_and(|images| !images.is_empty()) {
        return Err(Error::Invalid(format!("{name:?} does not support images")));
    }

    let mut options = Options::default();
    let request_options = body.options.as_ref();
    request_options.map(|given| options.apply(given)).transpose()?;
    let records = Records { shape: Shape::Generate, model: name.clone(), started, load: Duration::ZERO };
    if is_load {
        return load_or_unload(&api, &request, options.context(), body.keep_alive, records).await;
    }

    let common = SharedFields {
        truncate: body.truncate,
        shift: body.shift,
        logprobs: body.logprobs,
        top_logprobs: body.top_logprobs,
        think: think(&body.think)?,
        format: format(&body.format)?,
        tool_choice: None,
        echo: body.echo.unwrap_or(false),
    };
    let (common, records, prompt, prompt_ids) = (&common, &records, &prompt, &prompt_ids);
    run_with_model(&api, request.wanted(options.context(), body.keep_alive), move |ticket| {
        Box::pin(async move {
            let model = ticket.model().model();
            let prompt = prompt.clone();
            let input = match raw {
                true if !prompt_ids.is_empty() => Input::Ids { ids: prompt_ids.clone() },
                true => Input::Raw { prompt },
                false => Input::Prompt {
                    system: body.system.clone().or_else(|| model.system.clone()),
                    messages: if context.is_empty() { model_messages(&model.messages)? } else { Vec::new() },
                    prompt,
                    context: context.to_vec(),
                    template: body.template.clone(),
                    suffix: body.suffix.clone().unwrap_or_default(),
                },
            };
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

/// The model's own messages, as JSON.
pub(super) fn model_messages(messages: &[Value]) -> Result<Vec<SharedJson>, Error> {
    let written = messages.iter().map(|message| to_raw_value(message).map(SharedJson::from));
    written.collect::<Result<_, _>>().map_err(|error| Error::Invalid(error.to_string()))
}

/// The model's options, overridden by the request's.
pub(super) fn merge_options(
    params: &Map<String, Value>,
    given: Option<&Map<String, Value>>,
) -> Result<Options, Error> {
    let mut options = Options::default();
    options.apply(params)?;
    given.map(|given| options.apply(given)).transpose()?;
    Ok(options)
}

/// The JSON schema for structured output, if any: `"json"` means any object.
pub(super) fn format(value: &Option<Value>) -> Result<Option<Map<String, Value>>, Error> {
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text.is_empty() => Ok(None),
        Some(Value::String(text)) if text == "json" => {
            Ok(Some(Map::from_iter([("type".to_owned(), Value::from("object"))])))
        }
        Some(Value::Object(schema)) => Ok(Some(schema.clone())),
        Some(other) => Err(Error::Invalid(format!(
            "invalid format: {other}; expected \"json\" or a valid JSON Schema object"
        ))),
    }
}

/// The request's `think` setting, if any.
pub(super) fn think(value: &Option<Value>) -> Result<Option<Think>, Error> {
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text.is_empty() => Ok(None),
        Some(value) => {
            Think::try_from(value.clone()).map(Some).map_err(|error| Error::Invalid(error.to_string()))
        }
    }
}

/// An empty prompt loads the model; with a keep_alive of zero it unloads it.
pub(super) async fn load_or_unload<T>(
    api: &Api,
    request: &ModelRequest<T>,
    num_ctx: Option<usize>,
    keep_alive: Option<KeepAlive>,
    records: Records,
) -> Result<Response, Error> {
    if keep_alive == Some(KeepAlive::For(Duration::ZERO)) {
        api.scheduler.unload(&request.digest);
        return Ok(records.empty("unload"));
    }
    api.scheduler.preload(request.wanted(num_ctx, keep_alive)).await?;
    Ok(records.empty("load"))
}

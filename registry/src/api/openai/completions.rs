//! `POST /v1/completions`, by way of `/api/generate`.

use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};

use super::reply::{Reply, Shape};
use super::{Asked, StreamOptions, ask};
use crate::Registry;
use crate::auth::Caller;
use crate::http::Failure;
use crate::http::extract::null_as_default;

#[derive(Deserialize)]
pub(crate) struct Completion {
    #[serde(default, deserialize_with = "null_as_default")]
    model: String,
    #[serde(default, deserialize_with = "null_as_default")]
    prompt: Prompt,
    suffix: Option<String>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    logprobs: Option<u32>,
    echo: Option<bool>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a text, or one in a list")]
enum Prompt {
    One(String),
    Listed([String; 1]),
}

impl Default for Prompt {
    fn default() -> Prompt {
        Prompt::One(String::new())
    }
}

pub(crate) async fn post(
    State(registry): State<Registry>,
    caller: Caller,
    asked: Asked<Completion>,
) -> Result<Response, Failure> {
    let body = asked.request.for_worker(asked.sampling.options()?)?;
    let Completion { model, stream, stream_options, .. } = asked.request;
    let answer = ask(&registry, &caller, &model, "/api/generate", body).await?;
    let include_usage = stream_options.unwrap_or_default().include_usage;
    Reply::new(Shape::Completion, model, include_usage).answer(answer, stream.unwrap_or(false)).await
}

impl Completion {
    fn for_worker(&self, options: Value) -> Result<Value, Failure> {
        if self.echo == Some(true) {
            return Err(Failure::Unsupported("echo is not supported"));
        }
        let (Prompt::One(prompt) | Prompt::Listed([prompt])) = &self.prompt;
        let suffix = self.suffix.as_ref().filter(|suffix| !suffix.is_empty());
        let mut body = json!({
            "model": self.model,
            "prompt": prompt,
            // The prompt is continued, not answered: no template goes around it but one that is made for a suffix.
            "raw": suffix.is_none(),
            "stream": self.stream.unwrap_or(false),
            "options": options,
        });
        if let Some(suffix) = suffix {
            body["suffix"] = json!(suffix);
        }
        if let Some(top_logprobs) = self.logprobs {
            body["logprobs"] = json!(true);
            body["top_logprobs"] = json!(top_logprobs);
        }
        Ok(body)
    }
}

//! OpenAI's API, turned into ollama's on the way to a worker and back on the way out; and the list of models.
//! Unknown fields are ignored, as its clients expect of servers that are not OpenAI.

pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod embeddings;
pub(crate) mod error;
pub(crate) mod models;
mod records;
mod reply;

use axum::extract::{FromRequest, Request};
use bytes::Bytes;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::model_name;
use crate::Registry;
use crate::auth::Caller;
use crate::gateway::{Answer, Ask, forward, read_json, resolve};
use crate::http::Failure;
use crate::http::extract::{RawJson, null_as_default, parse};

/// A request, and the sampling settings in it. They are read one after the other, so that a wrong field can be named.
pub(crate) struct Asked<T> {
    request: T,
    sampling: Sampling,
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Asked<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, state: &S) -> Result<Self, Failure> {
        let RawJson(body) = RawJson::from_request(request, state).await?;
        Ok(Asked { request: parse(&body)?, sampling: parse(&body)? })
    }
}

/// The sampling settings that chat and completions share.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Sampling {
    max_tokens: Option<i64>,
    max_completion_tokens: Option<i64>,
    temperature: Option<f64>,
    top_p: Option<f64>,
    frequency_penalty: Option<f64>,
    presence_penalty: Option<f64>,
    seed: Option<i64>,
    stop: Option<Stop>,
    /// Answers wanted, and answers made to choose from.
    n: Option<i64>,
    best_of: Option<i64>,
    logit_bias: Option<Map<String, Value>>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a text or a list of texts")]
enum Stop {
    One(String),
    Many(Vec<String>),
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct StreamOptions {
    #[serde(deserialize_with = "null_as_default")]
    include_usage: bool,
}

impl Sampling {
    /// As ollama's `options`, with OpenAI's defaults. What would change the answer and cannot be done is refused.
    fn options(&self) -> Result<Value, Failure> {
        if [self.n, self.best_of].into_iter().flatten().any(|answers| answers != 1) {
            return Err(Failure::Unsupported("n and best_of must be 1: a request gets one answer"));
        }
        if self.logit_bias.as_ref().is_some_and(|bias| !bias.is_empty()) {
            return Err(Failure::Unsupported("logit_bias is not supported"));
        }
        let stop = match &self.stop {
            Some(Stop::One(text)) => vec![text.clone()],
            Some(Stop::Many(texts)) => texts.clone(),
            None => Vec::new(),
        };
        let optional = [
            ("num_predict", self.max_completion_tokens.or(self.max_tokens).map(Value::from)),
            ("frequency_penalty", self.frequency_penalty.map(Value::from)),
            ("presence_penalty", self.presence_penalty.map(Value::from)),
            ("seed", self.seed.map(Value::from)),
            ("stop", Some(stop).filter(|stop| !stop.is_empty()).map(Value::from)),
        ];
        let mut options = Map::new();
        options.insert("temperature".to_owned(), json!(self.temperature.unwrap_or(1.0)));
        options.insert("top_p".to_owned(), json!(self.top_p.unwrap_or(1.0)));
        options.extend(optional.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
        Ok(Value::Object(options))
    }
}

/// Sends a translated request to a worker. What it refuses comes back as a failure, in its words.
async fn ask(
    registry: &Registry,
    caller: &Caller,
    model: &str,
    path: &'static str,
    body: Value,
) -> Result<Answer, Failure> {
    let (repository, digest) = resolve(registry, caller, model, model_name::parse_exact(model)?).await?;
    let body = Bytes::from(body.to_string());
    let answer = forward(registry, Ask { repository, digest, name: model.to_owned(), path, body }).await?;
    if answer.status.is_success() {
        return Ok(answer);
    }
    let status = answer.status;
    let said: Value = read_json(answer).await?;
    let message = said["error"].as_str().unwrap_or("the worker refused the request").to_owned();
    Err(Failure::Worker { status, message })
}

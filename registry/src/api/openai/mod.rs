//! OpenAI's API, translated to ollama's for a worker, and back; and the list of models.
//! Unknown fields are ignored, as its clients expect of servers other than OpenAI's, except by the Responses API.

pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod embeddings;
pub(crate) mod error;
pub(crate) mod models;
mod reply;
pub(crate) mod responses;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::http::Failure;
use crate::http::extract::{null_as_default, parse_part};

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
    /// The number of choices to return, and the number of candidates to generate.
    n: Option<i64>,
    best_of: Option<i64>,
    logit_bias: Option<Map<String, Value>>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of strings")]
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
    /// Converts to ollama's `options`, with OpenAI's defaults. Unsupported settings that would change the
    /// response are refused.
    fn options(&self) -> Result<Value, Failure> {
        if [self.n, self.best_of].into_iter().flatten().any(|choices| choices != 1) {
            return Err(Failure::Unsupported("n and best_of must be 1: a request gets one choice"));
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

/// The settings of a response.
struct ResponseOptions {
    model: String,
    stream: bool,
    include_usage: bool,
}

/// A field that must be a JSON string, unparsed. `field` returns its path.
fn text(value: Option<&RawValue>, field: impl FnOnce() -> String) -> Result<Option<&RawValue>, Failure> {
    match value {
        Some(value) if !value.get().starts_with('"') => parse_part::<String>(value, field).map(|_| None),
        value => Ok(value),
    }
}

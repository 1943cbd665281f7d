//! OpenAI's API, translated to ollama's for a worker, and back; and the list of models.
//! Unknown fields are ignored, as its clients expect of servers other than OpenAI's, except by the Responses API.

pub(crate) mod chat;
mod choices;
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
    /// The number of choices to return.
    n: Option<i64>,
    /// The number of candidates from which the choices are selected.
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
    /// Converts to ollama's `options`, with OpenAI's defaults.
    fn options(&self) -> Map<String, Value> {
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
            ("logit_bias", self.logit_bias.clone().filter(|bias| !bias.is_empty()).map(Value::from)),
            ("stop", Some(stop).filter(|stop| !stop.is_empty()).map(Value::from)),
        ];
        let mut options = Map::new();
        options.insert("temperature".to_owned(), json!(self.temperature.unwrap_or(1.0)));
        options.insert("top_p".to_owned(), json!(self.top_p.unwrap_or(1.0)));
        options.extend(optional.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
        options
    }
}

/// The settings of a response.
struct ResponseOptions {
    model: String,
    stream: bool,
    include_usage: bool,
    /// The number of choices for each prompt.
    choices_of_each: usize,
    /// How the choices are selected if there are more candidates than choices.
    best_of: Option<BestOf>,
    /// Whether a choice has at most one tool call.
    is_single_call: bool,
}

/// The selection of the likeliest candidates.
#[derive(Clone, Copy)]
struct BestOf {
    /// The number of candidates for each prompt.
    candidates: usize,
    /// Whether the response has log-probabilities. Candidates always have them.
    with_logprobs: bool,
    /// Whether the prompt's log-probabilities precede those of a candidate.
    echo: bool,
}

/// A field that must be a JSON string, unparsed. `field` returns its path.
fn text(value: Option<&RawValue>, field: impl FnOnce() -> String) -> Result<Option<&RawValue>, Failure> {
    match value {
        Some(value) if !value.get().starts_with('"') => parse_part::<String>(value, field).map(|_| None),
        value => Ok(value),
    }
}

//! Merges the `options` of a request with those of the model and ollama's defaults; the request's take
//! precedence. Unknown keys are ignored; wrong types are errors with ollama's messages.

use serde_json::{Map, Value};

use crate::error::Error;
use crate::runner::protocol::{Input, OutgoingRequest, SharedJson, SharedText, ToolChoice};
use crate::text::stop::{MAX_STOP_BYTES, MAX_STOPS};
use crate::text::{SamplerOptions, Think};

/// Maximum number of alternatives reported per token.
const MAX_TOP_LOGPROBS: i64 = 20;

/// Limits of `logit_bias`, as in OpenAI's API.
const MAX_BIASED_IDS: usize = 1024;
const MAX_BIAS: f32 = 100.0;

/// The options that this worker supports.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Options {
    pub(super) sampling: SamplerOptions,
    /// As given; see [`Options::context`].
    pub(super) num_ctx: Option<usize>,
    /// `None`: no limit.
    pub(super) num_predict: Option<usize>,
    pub(super) num_keep: usize,
    pub(super) stop: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            sampling: SamplerOptions::default(),
            num_ctx: None,
            num_predict: None,
            num_keep: 4,
            stop: Vec::new(),
        }
    }
}

/// The fields that generate and chat have in common.
pub(super) struct SharedFields {
    pub(super) truncate: Option<bool>,
    pub(super) shift: Option<bool>,
    pub(super) logprobs: Option<bool>,
    pub(super) top_logprobs: Option<i64>,
    pub(super) think: Option<Think>,
    pub(super) format: Option<Map<String, Value>>,
    pub(super) tool_choice: Option<ToolChoice>,
    pub(super) echo: bool,
}

impl Options {
    /// Applies options on top of these.
    pub(super) fn apply(&mut self, options: &Map<String, Value>) -> Result<(), Error> {
        for (key, value) in options {
            if value.is_null() {
                continue;
            }
            let sampling = &mut self.sampling;
            match key.as_str() {
                "temperature" => sampling.temperature = float(key, value)?,
                "top_k" => sampling.top_k = clamp(integer(key, value)?),
                "top_p" => sampling.top_p = float(key, value)?,
                "min_p" => sampling.min_p = float(key, value)?,
                "typical_p" => sampling.typical_p = float(key, value)?,
                "repeat_penalty" => sampling.repeat_penalty = float(key, value)?,
                "presence_penalty" => sampling.presence_penalty = float(key, value)?,
                "frequency_penalty" => sampling.frequency_penalty = float(key, value)?,
                "repeat_last_n" => sampling.repeat_last_n = clamp(integer(key, value)?),
                "seed" => sampling.seed = integer(key, value)?,
                "num_ctx" => self.num_ctx = Some(usize::try_from(integer(key, value)?).unwrap_or(0)),
                "num_predict" => self.num_predict = usize::try_from(integer(key, value)?).ok(),
                "num_keep" => self.num_keep = usize::try_from(integer(key, value)?).unwrap_or(usize::MAX),
                "logit_bias" => sampling.logit_bias = parse_bias(key, value)?,
                "stop" => self.stop = parse_strings(key, value)?,
                _ => tracing::debug!(option = key, "ignored"),
            }
        }
        Ok(())
    }

    /// The requested context length, if any: 0 and negative values mean the default.
    pub(super) fn context(&self) -> Option<usize> {
        self.num_ctx.filter(|length| *length > 0)
    }

    /// Builds the request for the runner.
    pub(super) fn request(
        self,
        input: Input<SharedJson, SharedText>,
        common: &SharedFields,
    ) -> Result<OutgoingRequest, Error> {
        let top_logprobs = common.top_logprobs.unwrap_or(0);
        if !(0..=MAX_TOP_LOGPROBS).contains(&top_logprobs) {
            return Err(Error::Invalid("top_logprobs must be between 0 and 20".into()));
        }
        let num_ctx = self.context();
        Ok(OutgoingRequest {
            input,
            sampling: self.sampling,
            num_predict: self.num_predict,
            num_ctx,
            num_keep: self.num_keep,
            stop: self.stop,
            truncate: common.truncate.unwrap_or(true),
            shift: common.shift.unwrap_or(true),
            whole: false,
            logprobs: common.logprobs.unwrap_or(false),
            top_logprobs: top_logprobs as usize,
            think: common.think,
            format: common.format.clone(),
            tool_choice: common.tool_choice.clone(),
            echo: common.echo,
        })
    }
}

fn wrong_type_error(key: &str, kind: &str) -> Error {
    Error::Invalid(format!("option \"{key}\" must be of type {kind}"))
}

fn float(key: &str, value: &Value) -> Result<f32, Error> {
    let number = value.as_f64().map(|value| value as f32);
    number.filter(|number| number.is_finite()).ok_or_else(|| wrong_type_error(key, "float32"))
}

fn integer(key: &str, value: &Value) -> Result<i64, Error> {
    let whole = || {
        value.as_f64().filter(|value| value.fract() == 0.0 && value.abs() < 9e15).map(|value| value as i64)
    };
    value.as_i64().or_else(whole).ok_or_else(|| wrong_type_error(key, "integer"))
}

fn parse_strings(key: &str, value: &Value) -> Result<Vec<String>, Error> {
    let texts = match value {
        Value::String(text) => Some(vec![text.clone()]),
        Value::Array(values) => values.iter().map(|value| value.as_str().map(ToOwned::to_owned)).collect(),
        _ => None,
    };
    let texts: Vec<String> = texts.ok_or_else(|| wrong_type_error(key, "string array"))?;
    if texts.len() > MAX_STOPS || texts.iter().any(|text| text.len() > MAX_STOP_BYTES) {
        return Err(Error::Invalid(format!(
            "option \"{key}\" takes at most {MAX_STOPS} texts of {MAX_STOP_BYTES} bytes"
        )));
    }
    Ok(texts)
}

/// Token ids, as text or numbers, with what is added to their logits.
fn parse_bias(key: &str, value: &Value) -> Result<Vec<(u32, f32)>, Error> {
    let entry = |(id, bias): (&String, &Value)| {
        let bias = bias.as_f64().map(|bias| bias as f32).filter(|bias| bias.abs() <= MAX_BIAS)?;
        Some((id.parse().ok()?, bias))
    };
    let biases: Option<Vec<_>> = value.as_object().and_then(|biases| biases.iter().map(entry).collect());
    biases.filter(|biases| biases.len() <= MAX_BIASED_IDS).ok_or_else(|| {
        Error::Invalid(format!(
            "option \"{key}\" must be an object of at most {MAX_BIASED_IDS} token ids, each with a number from -{MAX_BIAS} to {MAX_BIAS}"
        ))
    })
}

fn clamp(value: i64) -> i32 {
    value.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn options(layers: &[Value]) -> Result<Options, String> {
        let mut options = Options::default();
        for layer in layers {
            options.apply(layer.as_object().unwrap()).map_err(|error| error.to_string())?;
        }
        Ok(options)
    }

    #[test]
    fn later_layers_win() {
        let got = options(&[
            json!({"temperature": 0.1, "stop": ["a"], "num_ctx": 100, "seed": 5}),
            json!({"temperature": 0, "stop": "b", "unknown": {}, "top_k": 7.0, "seed": null}),
        ])
        .unwrap();
        assert_eq!((got.sampling.temperature, got.sampling.top_k, got.sampling.seed), (0.0, 7, 5));
        assert_eq!((got.context(), got.stop), (Some(100), vec!["b".to_owned()]));
        for default in [0, -1, i64::MIN] {
            let got = options(&[json!({"num_ctx": default})]).unwrap();
            assert_eq!((got.context(), got.num_ctx), (None, Some(0)), "{default}");
        }
        assert_eq!(
            options(&[json!({"num_predict": -1, "num_ctx": 0, "num_keep": -1})]).unwrap().num_predict,
            None
        );
        assert_eq!(options(&[json!({"num_predict": 0})]).unwrap().num_predict, Some(0));
        assert_eq!(options(&[json!({"top_k": 1e12})]).unwrap().sampling.top_k, i32::MAX);
    }

    #[test]
    fn wrong_types_are_named() {
        let check = |layer: Value, expect: &str| assert_eq!(options(&[layer]).unwrap_err(), expect);
        check(json!({"num_ctx": "x"}), "option \"num_ctx\" must be of type integer");
        check(json!({"seed": 1.5}), "option \"seed\" must be of type integer");
        check(json!({"top_p": "0.9"}), "option \"top_p\" must be of type float32");
        check(json!({"temperature": 1e300}), "option \"temperature\" must be of type float32");
        check(json!({"stop": [1]}), "option \"stop\" must be of type string array");
        assert!(options(&[json!({"stop": vec!["x"; 65]})]).is_err());
        for bias in [json!([1]), json!({"a": 1}), json!({"-1": 1}), json!({"1": 101}), json!({"1": "1"})] {
            let error = options(&[json!({"logit_bias": bias})]).unwrap_err();
            assert!(error.starts_with("option \"logit_bias\" must be an object"), "{error}");
        }
        let got = options(&[json!({"logit_bias": {"7": -100, "9": 0.5}})]).unwrap();
        assert_eq!(got.sampling.logit_bias, [(7, -100.0), (9, 0.5)]);
    }
}

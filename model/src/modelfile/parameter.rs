//! The options that a Modelfile may set, and their valid values (ollama `api/types.go`).

use serde_json::{Number, Value};

/// The only option that may be set several times; each value is appended.
pub(super) const STOP: &str = "stop";

#[derive(Clone, Copy)]
enum Kind {
    Integer,
    Number,
    Boolean,
    Text,
}

const OPTIONS: &[(&str, Kind)] = &[
    ("num_ctx", Kind::Integer),
    ("num_batch", Kind::Integer),
    ("num_gpu", Kind::Integer),
    ("main_gpu", Kind::Integer),
    ("use_mmap", Kind::Boolean),
    ("num_thread", Kind::Integer),
    ("draft_num_predict", Kind::Integer),
    ("num_keep", Kind::Integer),
    ("seed", Kind::Integer),
    ("num_predict", Kind::Integer),
    ("top_k", Kind::Integer),
    ("top_p", Kind::Number),
    ("min_p", Kind::Number),
    ("typical_p", Kind::Number),
    ("temperature", Kind::Number),
    ("repeat_last_n", Kind::Integer),
    ("repeat_penalty", Kind::Number),
    ("presence_penalty", Kind::Number),
    ("frequency_penalty", Kind::Number),
    (STOP, Kind::Text),
];

/// Accepted and ignored.
const DEPRECATED: &[&str] = &[
    "penalize_newline",
    "low_vram",
    "f16_kv",
    "logits_all",
    "vocab_only",
    "use_mlock",
    "mirostat",
    "mirostat_tau",
    "mirostat_eta",
];

/// Why an option cannot be set to a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParameterError {
    #[error("unknown parameter '{name}'")]
    Unknown { name: String },
    #[error("parameter '{name}' is `{value}`, expected {expected}")]
    Value { name: String, value: String, expected: &'static str },
}

/// The names of the options, without the deprecated ones.
pub fn parameter_names() -> impl Iterator<Item = &'static str> {
    OPTIONS.iter().map(|(name, _)| *name)
}

pub fn is_deprecated(name: &str) -> bool {
    DEPRECATED.contains(&name)
}

fn kind(name: &str) -> Option<Kind> {
    OPTIONS.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind)
}

fn expected(kind: Kind) -> &'static str {
    match kind {
        Kind::Integer => "an integer",
        Kind::Number => "a number",
        Kind::Boolean => "true or false",
        Kind::Text => "a text",
    }
}

/// Parses the value of an option; `None` for a deprecated option.
pub fn read_value(name: &str, text: &str) -> Result<Option<Value>, ParameterError> {
    if is_deprecated(name) {
        return Ok(None);
    }
    let kind = kind(name).ok_or_else(|| ParameterError::Unknown { name: name.to_owned() })?;
    let value = match kind {
        Kind::Integer => text.parse::<i64>().ok().map(Value::from),
        Kind::Number => text.parse::<f64>().ok().and_then(Number::from_f64).map(Value::Number),
        Kind::Boolean => text.parse::<bool>().ok().map(Value::Bool),
        Kind::Text => Some(Value::String(text.to_owned())),
    };
    value.map(Some).ok_or_else(|| ParameterError::Value {
        name: name.to_owned(),
        value: text.to_owned(),
        expected: expected(kind),
    })
}

/// Checks that a JSON value has the type of its option. Options that are unknown here are not checked.
pub fn check_value(name: &str, value: &Value) -> Result<(), ParameterError> {
    let Some(kind) = kind(name) else { return Ok(()) };
    let fits = match kind {
        // Clients without an integer type write 40.0.
        Kind::Integer => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        Kind::Number => value.is_number(),
        Kind::Boolean => value.is_boolean(),
        Kind::Text => match value {
            Value::Array(all) => all.iter().all(Value::is_string),
            other => other.is_string(),
        },
    };
    match fits || value.is_null() {
        true => Ok(()),
        false => Err(ParameterError::Value {
            name: name.to_owned(),
            value: value.to_string(),
            expected: expected(kind),
        }),
    }
}

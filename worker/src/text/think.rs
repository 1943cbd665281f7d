//! Whether and how much a model should think before it responds: `true`, `false`, or a level (ollama
//! api/types.go, ThinkValue).

use serde::{Deserialize, Serialize};
use serde_json::Value;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Value", into = "Value")]
pub enum Think {
    Off,
    On,
    Low,
    Medium,
    High,
    Max,
}

/// An invalid think value.
#[derive(Debug, thiserror::Error)]
#[error("invalid think value: {0} (must be \"high\", \"medium\", \"low\", \"max\", true, or false)")]
pub struct InvalidThink(Value);

impl Think {
    pub fn is_on(self) -> bool {
        self != Think::Off
    }

    /// The level, if one was given.
    pub fn level(self) -> Option<&'static str> {
        match self {
            Think::Off | Think::On => None,
            Think::Low => Some("low"),
            Think::Medium => Some("medium"),
            Think::High => Some("high"),
            Think::Max => Some("max"),
        }
    }
}

impl TryFrom<Value> for Think {
    type Error = InvalidThink;

    fn try_from(value: Value) -> Result<Think, InvalidThink> {
        match &value {
            Value::Bool(true) => Ok(Think::On),
            Value::Bool(false) => Ok(Think::Off),
            Value::String(level) => [Think::Low, Think::Medium, Think::High, Think::Max]
                .into_iter()
                .find(|think| think.level() == Some(level))
                .ok_or(InvalidThink(value)),
            _ => Err(InvalidThink(value)),
        }
    }
}

impl From<Think> for Value {
    fn from(think: Think) -> Value {
        think.level().map_or(Value::Bool(think.is_on()), Value::from)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn parses_request_values() {
        for (json, expect) in
            [(json!(true), Think::On), (json!(false), Think::Off), (json!("max"), Think::Max)]
        {
            let think: Think = serde_json::from_value(json.clone()).unwrap();
            assert_eq!((think, serde_json::to_value(think).unwrap()), (expect, json));
        }
        let error = serde_json::from_value::<Think>(json!("a lot")).unwrap_err().to_string();
        assert!(error.starts_with("invalid think value: \"a lot\" (must be"), "{error}");
        assert!(serde_json::from_value::<Think>(json!(1)).is_err());
    }
}

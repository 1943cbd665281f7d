//! The tools of a request, as far as reading a response needs them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The tools of a request, with the types of their parameters as far as parsing a call needs them.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct KnownTools(pub(super) BTreeMap<String, BTreeMap<String, ParameterKind>>);

/// The format of a parameter's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParameterKind {
    Text,
    TextOrNull,
    Json,
}

impl KnownTools {
    /// `None` without tools.
    pub fn of(tools: &[Value]) -> Option<KnownTools> {
        let named = |tool: &Value| {
            let function = tool.get("function")?;
            let parameters = function.pointer("/parameters/properties").and_then(Value::as_object);
            let kinds = parameters.into_iter().flatten();
            let kinds = kinds.map(|(key, schema)| (key.clone(), ParameterKind::of(schema)));
            Some((function.get("name")?.as_str()?.to_owned(), kinds.collect()))
        };
        (!tools.is_empty()).then(|| KnownTools(tools.iter().filter_map(named).collect()))
    }
}

impl ParameterKind {
    fn of(schema: &Value) -> ParameterKind {
        match schema.get("type") {
            Some(Value::String(kind)) if kind != "string" => ParameterKind::Json,
            Some(Value::Array(kinds)) if kinds.iter().any(|kind| kind == "string") => {
                ParameterKind::TextOrNull
            }
            Some(Value::Array(_)) => ParameterKind::Json,
            _ => ParameterKind::Text,
        }
    }
}

//! The form in which a Jinja template expects earlier tool calls. Templates differ, and with the wrong form a
//! template fails or omits the call. The form is determined by trial once, when the template is loaded.

use std::borrow::Cow;
use std::collections::VecDeque;

use serde_json::{Map, Value, json};

use super::python_json::python_json;

/// The form of the messages for a template. The default is that of transformers' documentation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Dialect {
    /// Whether arguments are JSON in a string rather than an object.
    text_arguments: bool,
    /// Whether a message with tool calls and no text has null content rather than empty content.
    null_content: bool,
    /// Whether tool call ids are nine letters and digits (Mistral).
    short_ids: bool,
}

const SHORT_ID: usize = 9;

impl Dialect {
    /// All forms, the most common first.
    pub(super) fn all() -> impl Iterator<Item = Dialect> {
        (0..8).map(|bits| Dialect {
            text_arguments: bits & 1 != 0,
            null_content: bits & 2 != 0,
            short_ids: bits & 4 != 0,
        })
    }

    /// A conversation with a tool call, for [`Dialect::is_understood`].
    pub(super) fn trial_messages() -> [Value; 3] {
        [
            json!({"role": "user", "content": "trial-question"}),
            json!({"role": "assistant", "content": "", "tool_calls": [{"id": "call_12345678", "type": "function",
                "function": {"name": "trial_name", "arguments": {"key": "trial-value"}}}]}),
            json!({"role": "tool", "content": "trial-result", "tool_call_id": "call_12345678", "tool_name": "trial_name"}),
        ]
    }

    /// Whether the output of a template contains the trial's tool call.
    pub(super) fn is_understood(text: &str) -> bool {
        text.contains("trial_name") && text.contains("trial-value")
    }

    /// Converts messages to this form.
    pub(super) fn adapt<'a>(self, messages: &'a [Value]) -> Cow<'a, [Value]> {
        let concerns = |message: &Value| {
            message["role"] == "tool"
                || ["tool_calls", "thinking"].iter().any(|key| message.get(key).is_some())
        };
        if !messages.iter().any(concerns) {
            return Cow::Borrowed(messages);
        }
        // Ids of calls without a result so far.
        let mut open = VecDeque::new();
        let mut calls = 0;
        let adapted = messages.iter().map(|message| match message {
            Value::Object(message) => Value::Object(self.message(message.clone(), &mut open, &mut calls)),
            other => other.clone(),
        });
        Cow::Owned(adapted.collect())
    }

    fn message(
        self,
        mut message: Map<String, Value>,
        open: &mut VecDeque<String>,
        calls: &mut usize,
    ) -> Map<String, Value> {
        // Fields with different names in ollama and transformers.
        for (ours, theirs) in [("thinking", "reasoning_content"), ("tool_name", "name")] {
            if let Some(value) = message.get(ours).cloned() {
                message.entry(theirs).or_insert(value);
            }
        }
        if message.get("role").is_some_and(|role| role == "tool") {
            let first = open.pop_front();
            let id = message.get("tool_call_id").and_then(Value::as_str).map(|id| self.id(id)).or(first);
            message.extend(id.map(|id| ("tool_call_id".to_owned(), Value::from(id))));
        }
        if let Some(Value::Array(listed)) = message.get_mut("tool_calls")
            && !listed.is_empty()
        {
            for call in listed {
                *calls += 1;
                let id = call.get("id").and_then(Value::as_str).filter(|id| !id.is_empty());
                let id = id.map_or_else(|| format!("{calls:0SHORT_ID$}"), |id| self.id(id));
                open.push_back(id.clone());
                if let Value::Object(call) = call {
                    call.insert("id".into(), id.into());
                    call.entry("type").or_insert_with(|| "function".into());
                }
                if let Some(arguments) = call.pointer_mut("/function/arguments") {
                    self.arguments(arguments);
                }
            }
            if self.null_content && message.get("content").is_some_and(|content| content == "") {
                message.insert("content".into(), Value::Null);
            }
        }
        message
    }

    fn id(self, id: &str) -> String {
        if !self.short_ids {
            return id.to_owned();
        }
        let letters: String = id.chars().filter(char::is_ascii_alphanumeric).collect();
        format!("{:0>SHORT_ID$}", &letters[letters.len().saturating_sub(SHORT_ID)..])
    }

    fn arguments(self, arguments: &mut Value) {
        match arguments {
            Value::String(text) if !self.text_arguments => {
                if let Ok(object @ Value::Object(_)) = serde_json::from_str(text) {
                    *arguments = object;
                }
            }
            Value::Object(_) if self.text_arguments => *arguments = Value::String(python_json(arguments)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adapted(dialect: Dialect, messages: Value) -> Value {
        Value::Array(dialect.adapt(messages.as_array().unwrap()).into_owned())
    }

    #[test]
    fn forms() {
        let call = |id: Value, arguments: Value| json!({"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}});
        let messages = json!([
            {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": [
                {"function": {"name": "f", "arguments": {"a": 1}}}, call(json!("call_ab-12"), json!("{\"a\":1}"))]},
            {"role": "tool", "content": "x", "tool_name": "f"},
            {"role": "tool", "content": "y", "tool_call_id": "call_ab-12"},
        ]);
        let usual = json!([
            {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": [
                call(json!("000000001"), json!({"a": 1})), call(json!("call_ab-12"), json!({"a": 1}))], "reasoning_content": "hm"},
            {"role": "tool", "content": "x", "tool_name": "f", "name": "f", "tool_call_id": "000000001"},
            {"role": "tool", "content": "y", "tool_call_id": "call_ab-12"},
        ]);
        assert_eq!(adapted(Dialect::default(), messages.clone()), usual);
        let dialect = Dialect { text_arguments: true, null_content: true, short_ids: true };
        let other = adapted(dialect, messages);
        assert_eq!(other[0]["content"], Value::Null);
        assert_eq!(other[0]["tool_calls"][0]["function"]["arguments"], "{\"a\": 1}");
        assert_eq!(other[0]["tool_calls"][1]["id"], "0callab12");
        assert_eq!(other[2]["tool_call_id"], "0callab12");
        let plain = [json!({"role": "user", "content": "x"})];
        assert!(matches!(dialect.adapt(&plain), Cow::Borrowed(_)));
    }
}

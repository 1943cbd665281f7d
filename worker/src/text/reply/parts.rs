//! The parts of a response.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A tool call of a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Call {
    pub name: String,
    /// In the model's order.
    pub arguments: Map<String, Value>,
}

/// The parts of one or more pieces of a response.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OutputParts {
    pub thinking: String,
    pub text: String,
    pub calls: Vec<Call>,
}

impl OutputParts {
    pub fn is_empty(&self) -> bool {
        self.thinking.is_empty() && self.text.is_empty() && self.calls.is_empty()
    }

    /// Appends the parts that follow.
    pub fn extend(&mut self, next: OutputParts) {
        self.thinking.push_str(&next.thinking);
        self.text.push_str(&next.text);
        self.calls.extend(next.calls);
    }
}

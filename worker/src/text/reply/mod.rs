//! Splits a model's response as it arrives into reasoning, content and tool calls. Pure: takes pieces of text
//! and returns the three parts. Only text that may belong to another part is held back.
//!
//! The markers of the parts are derived from the model's template ([`ReplyFormat::of`]), which writes them
//! for earlier turns.

mod calls;
mod json;
mod probe;
mod tagged;
mod thinking;

#[cfg(test)]
mod probe_tests;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use self::calls::CallFormat;
use self::calls::CallParser;
use self::thinking::SplitText;
pub use self::thinking::Tags;
pub(super) use self::thinking::{Phase, ReasoningParser};
use super::prompt::PromptTemplate;
use super::tokenizer::Tokenizer;

/// Maximum whitespace that is held back until the text after it is known.
const MAX_BLANKS: usize = 256;

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

/// The format of a model's reasoning and tool calls.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplyFormat {
    /// `None` for a model without reasoning.
    pub thinking: Option<Tags>,
    pub calls: CallFormat,
    /// Special tokens in the tags of reasoning and in the markers of calls. They are returned as text only if
    /// the reader looks for them.
    thinking_ids: Vec<u32>,
    call_ids: Vec<u32>,
}

impl ReplyFormat {
    /// Derives the format from a template.
    pub fn of(template: &PromptTemplate, tokenizer: &Tokenizer) -> ReplyFormat {
        let (thinking, calls) = probe::read(template);
        let thinking_ids = match &thinking {
            Some(tags) => tokenizer.special_in(&[&tags.open, &tags.close]),
            None => Vec::new(),
        };
        let call_ids = tokenizer.special_in(&calls.marks());
        ReplyFormat { thinking, calls, thinking_ids, call_ids }
    }

    /// The format of a model with reasoning and without tool calls.
    #[cfg(test)]
    pub(super) fn reasoning_only(tags: Tags) -> ReplyFormat {
        ReplyFormat { thinking: Some(tags), ..ReplyFormat::default() }
    }

    /// Whether a prompt ends with the opening tag, so that the response begins with reasoning.
    pub fn ends_in_reasoning(&self, prompt: &str) -> bool {
        self.thinking.as_ref().is_some_and(|tags| prompt.trim_end().ends_with(&tags.open))
    }

    /// Creates the reader of a response. `in_thoughts`: the prompt ends with the opening tag. Tool calls are
    /// extracted if the request has tools.
    pub fn reader(&self, in_thoughts: bool, tools: Option<KnownTools>) -> Reader {
        let thinking = self.thinking.as_ref().map(|tags| ReasoningParser::new(tags.clone(), in_thoughts));
        let calls = tools.map(|tools| CallParser::new(self.calls.clone(), tools.0));
        let mut shown = Vec::new();
        shown.extend(thinking.iter().flat_map(|_| &self.thinking_ids));
        shown.extend(calls.iter().flat_map(|_| &self.call_ids));
        Reader { thinking, calls, shown }
    }
}

/// The tools of a request, with the types of their parameters as far as parsing a call needs them.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct KnownTools(BTreeMap<String, BTreeMap<String, ParameterKind>>);

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

/// Splits one response into its parts.
#[derive(Debug, Default)]
pub struct Reader {
    thinking: Option<ReasoningParser>,
    calls: Option<CallParser>,
    shown: Vec<u32>,
}

impl Reader {
    /// The special tokens that this reader has to see as text.
    pub fn shown(&self) -> &[u32] {
        &self.shown
    }

    /// A copy of its reasoning parser, if the model has reasoning, to find the end of the reasoning.
    pub(super) fn reasoning_parser(&self) -> Option<ReasoningParser> {
        self.thinking.clone()
    }

    pub fn push(&mut self, piece: String) -> OutputParts {
        let SplitText { thinking, text } = match &mut self.thinking {
            Some(thinking) => thinking.push(&piece),
            None => SplitText { text: piece, ..SplitText::default() },
        };
        let (text, calls) = match &mut self.calls {
            Some(calls) => calls.push(&text),
            None => (text, Vec::new()),
        };
        OutputParts { thinking, text, calls }
    }

    /// Returns the text that was held back, at the end of the response.
    pub fn finish(&mut self) -> OutputParts {
        let SplitText { thinking, mut text } =
            self.thinking.as_mut().map(ReasoningParser::finish).unwrap_or_default();
        let mut calls = Vec::new();
        if let Some(reader) = &mut self.calls {
            (text, calls) = reader.push(&text);
            let (rest, more) = reader.finish();
            text.push_str(&rest);
            calls.extend(more);
        }
        OutputParts { thinking, text, calls }
    }
}

/// The length of the longest suffix of `text` that is a proper prefix of `mark`.
fn partial_suffix_len(text: &str, mark: &str) -> usize {
    let longest = mark.len().saturating_sub(1).min(text.len());
    (1..=longest)
        .rev()
        .find(|&len| text.as_bytes()[text.len() - len..] == mark.as_bytes()[..len])
        .unwrap_or(0)
}

/// The length of a text's trailing whitespace, up to the limit for holding it back.
fn trailing_blanks(text: &str) -> usize {
    text.bytes().rev().take(MAX_BLANKS).take_while(u8::is_ascii_whitespace).count()
}

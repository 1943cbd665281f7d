//! A model's answer taken apart while it comes: what it thinks, what it says, and which tools it calls. Pure: pieces of text in, the
//! same text in its three parts out, with no more held back than may still turn out to be something else.
//!
//! How a model marks the parts is read off its own template ([`ReplyFormat::of`]), which has to write them for earlier turns.

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
use self::calls::Calls;
use self::thinking::Split;
pub use self::thinking::Tags;
pub(super) use self::thinking::{Phase, Thinking};
use super::prompt::PromptTemplate;
use super::tokenizer::Tokenizer;

/// Blanks that are held back to see what follows them.
const MAX_BLANKS: usize = 256;

/// A tool as a model called it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Call {
    pub name: String,
    /// In the order in which the model wrote them.
    pub arguments: Map<String, Value>,
}

/// What one or more pieces of an answer came to.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Said {
    pub thinking: String,
    pub text: String,
    pub calls: Vec<Call>,
}

impl Said {
    pub fn is_empty(&self) -> bool {
        self.thinking.is_empty() && self.text.is_empty() && self.calls.is_empty()
    }

    /// Adds what was said next.
    pub fn extend(&mut self, next: Said) {
        self.thinking.push_str(&next.thinking);
        self.text.push_str(&next.text);
        self.calls.extend(next.calls);
    }
}

/// How a model writes thoughts and calls.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplyFormat {
    /// `None` for a model that does not think.
    pub thinking: Option<Tags>,
    pub calls: CallFormat,
    /// Special tokens that the tags of thoughts, and of calls, consist of: silent in any other answer.
    thinking_ids: Vec<u32>,
    call_ids: Vec<u32>,
}

impl ReplyFormat {
    /// The format that a template writes.
    pub fn of(template: &PromptTemplate, tokenizer: &Tokenizer) -> ReplyFormat {
        let (thinking, calls) = probe::read(template);
        let thinking_ids = match &thinking {
            Some(tags) => tokenizer.special_in(&[&tags.open, &tags.close]),
            None => Vec::new(),
        };
        let call_ids = tokenizer.special_in(&calls.marks());
        ReplyFormat { thinking, calls, thinking_ids, call_ids }
    }

    /// Of a model that thinks and does no more.
    #[cfg(test)]
    pub(super) fn of_thoughts(tags: Tags) -> ReplyFormat {
        ReplyFormat { thinking: Some(tags), ..ReplyFormat::default() }
    }

    /// Whether a prompt ends within thoughts, so that the answer begins with them.
    pub fn ends_in_thoughts(&self, prompt: &str) -> bool {
        self.thinking.as_ref().is_some_and(|tags| prompt.trim_end().ends_with(&tags.open))
    }

    /// Reads the answer to a prompt that ends within thoughts, or does not. Calls are looked for where the request names tools.
    pub fn reader(&self, in_thoughts: bool, tools: Option<KnownTools>) -> Reader {
        let thinking = self.thinking.as_ref().map(|tags| Thinking::new(tags.clone(), in_thoughts));
        let calls = tools.map(|tools| Calls::new(self.calls.clone(), tools.0));
        let mut shown = Vec::new();
        shown.extend(thinking.iter().flat_map(|_| &self.thinking_ids));
        shown.extend(calls.iter().flat_map(|_| &self.call_ids));
        Reader { thinking, calls, shown }
    }
}

/// The tools that a request has, with as much of their parameters as it takes to read a call.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct KnownTools(BTreeMap<String, BTreeMap<String, ParameterKind>>);

/// What a parameter's value is written as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParameterKind {
    Text,
    TextOrNull,
    Json,
}

impl KnownTools {
    /// `None` where there are no tools.
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

/// Takes one answer apart.
#[derive(Debug, Default)]
pub struct Reader {
    thinking: Option<Thinking>,
    calls: Option<Calls>,
    shown: Vec<u32>,
}

impl Reader {
    /// The special tokens that it has to see as text.
    pub fn shown(&self) -> &[u32] {
        &self.shown
    }

    /// What takes the thoughts out of it, where the model has any: for whoever asks where they end.
    pub(super) fn thoughts(&self) -> Option<Thinking> {
        self.thinking.clone()
    }

    pub fn push(&mut self, piece: String) -> Said {
        let Split { thinking, text } = match &mut self.thinking {
            Some(thinking) => thinking.push(&piece),
            None => Split { text: piece, ..Split::default() },
        };
        let (text, calls) = match &mut self.calls {
            Some(calls) => calls.push(&text),
            None => (text, Vec::new()),
        };
        Said { thinking, text, calls }
    }

    /// What was held back, at the end of the answer.
    pub fn finish(&mut self) -> Said {
        let Split { thinking, mut text } = self.thinking.as_mut().map(Thinking::finish).unwrap_or_default();
        let mut calls = Vec::new();
        if let Some(reader) = &mut self.calls {
            (text, calls) = reader.push(&text);
            let (rest, more) = reader.finish();
            text.push_str(&rest);
            calls.extend(more);
        }
        Said { thinking, text, calls }
    }
}

/// The length of the longest end of `text` that is a proper beginning of `mark`.
fn overlap(text: &str, mark: &str) -> usize {
    let longest = mark.len().saturating_sub(1).min(text.len());
    (1..=longest)
        .rev()
        .find(|&len| text.as_bytes()[text.len() - len..] == mark.as_bytes()[..len])
        .unwrap_or(0)
}

/// The length of the blanks that a text ends with, as far as they are held back.
fn blanks_before(text: &str) -> usize {
    text.bytes().rev().take(MAX_BLANKS).take_while(u8::is_ascii_whitespace).count()
}

//! Splits a model's response as it arrives into reasoning, content and tool calls. Pure: takes pieces of text
//! and returns the three parts. Only text that may belong to another part is held back.
//!
//! The markers of the parts are derived from the model's template ([`ReplyFormat::of`]), which writes them
//! for earlier turns.

mod calls;
mod held_back;
mod json;
mod parts;
mod probe;
mod required;
mod tagged;
mod thinking;
mod tools;

#[cfg(test)]
mod probe_tests;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub use self::calls::CallFormat;
use self::calls::CallParser;
pub use self::parts::{Call, OutputParts};
pub use self::required::{RequiredCall, RequiredCallError};
use self::thinking::SplitText;
pub use self::thinking::Tags;
pub(super) use self::thinking::{Phase, ReasoningParser};
pub use self::tools::{KnownTools, ParameterKind};
use super::prompt::PromptTemplate;
use super::tokenizer::Tokenizer;

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

//! Structured output: determines which ids may come next so that the response is JSON that matches a schema.
//! llguidance provides the grammars and the masks. Schemas are untrusted input, so this runs in the text
//! helper.

use std::collections::BTreeSet;
use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, INVALID_TOKEN, TokEnv, TokRxInfo, TokTrie};
use llguidance::{JsonCompileOptions, Matcher, ParserFactory};
use serde_json::{Map, Value};

use super::schema;
use super::vocabulary::Vocabulary;

/// Whitespace between JSON tokens: a space, or line ends and an indent. With more allowed, some models
/// generate whitespace without end.
const BLANKS: &str = r" |\n{1,2}[ \t]{0,20}";

/// A lexer state takes one or two kilobytes, for every response in progress.
const MAX_LEXER_STATES: usize = 50_000;

/// The token trie has at most one node per byte. It counts nodes in 22 bits and the parents of a node in 10
/// bits.
const MAX_VOCABULARY_BYTES: usize = (1 << 22) - 1;
const MAX_TOKEN_BYTES: usize = 1 << 10;

/// Compiling a schema can take time quadratic in its length: seconds at this limit.
const MAX_SCHEMA_BYTES: usize = 128 << 10;

/// Error messages of llguidance may contain much of the schema.
const MAX_REASON_BYTES: usize = 500;

/// Why a response cannot be constrained to a format.
#[derive(Debug, Clone, thiserror::Error)]
pub enum GrammarError {
    #[error("the vocabulary of the model is too large for structured output")]
    Vocabulary,
    #[error("invalid format: {0}")]
    Schema(String),
    /// In the middle of a response.
    #[error("the response cannot be constrained to its format: {0}")]
    GrammarFailed(String),
}

/// Compiles grammars for one vocabulary.
pub struct GrammarCompiler {
    factory: ParserFactory,
}

impl GrammarCompiler {
    /// Slow for a large vocabulary, which is sorted into a trie.
    pub fn new(vocabulary: &Vocabulary, eos: &BTreeSet<u32>) -> Result<GrammarCompiler, GrammarError> {
        let len = u32::try_from(vocabulary.len()).map_err(|_| GrammarError::Vocabulary)?;
        // Structured output has no special tokens and no invalid UTF-8; 0xFF marks special tokens for
        // llguidance.
        let text = |id: u32| {
            let bytes = vocabulary.bytes(id);
            let is_text =
                !vocabulary.is_special(id) && bytes.len() < MAX_TOKEN_BYTES && !bytes.contains(&0xff);
            if is_text { bytes.to_vec() } else { Vec::new() }
        };
        let words: Vec<Vec<u8>> = (0..len).map(text).collect();
        if words.iter().map(Vec::len).sum::<usize>() > MAX_VOCABULARY_BYTES {
            return Err(GrammarError::Vocabulary);
        }
        let mut trie = TokTrie::from(&TokRxInfo::new(len, INVALID_TOKEN), &words);
        let ends: Vec<u32> = eos.iter().copied().filter(|id| *id < len).collect();
        if !ends.is_empty() {
            trie = trie.with_eos_tokens(&ends);
        }
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&environment)
            .map_err(|error| GrammarError::GrammarFailed(reason(&error)))?;
        factory.quiet();
        factory.limits_mut().max_lexer_states = MAX_LEXER_STATES;
        factory.limits_mut().verbose_errors = false;
        Ok(GrammarCompiler { factory })
    }

    /// Starts the grammar of one response: JSON for this schema. Also returns the ids that may come first.
    pub fn begin(&self, schema: Map<String, Value>) -> Result<(GrammarState, AllowedIds), GrammarError> {
        let failed = |error: serde_json::Error| GrammarError::Schema(error.to_string());
        let len = serde_json::to_vec(&schema).map_err(failed)?.len();
        if len > MAX_SCHEMA_BYTES {
            return Err(GrammarError::Schema(format!(
                "the schema has {len} bytes, expected at most {MAX_SCHEMA_BYTES}"
            )));
        }
        let mut schema = schema::close(schema);
        let options = JsonCompileOptions {
            whitespace_pattern: Some(BLANKS.to_owned()),
            json_allow_general_unicode_escapes: true,
            ..JsonCompileOptions::default()
        };
        schema.insert("x-guidance".into(), serde_json::to_value(&options).map_err(failed)?);
        let schema = TopLevelGrammar::from_json_schema(Value::Object(schema));
        let parser =
            self.factory.create_parser(schema).map_err(|error| GrammarError::Schema(reason(&error)))?;
        let mut matching = GrammarState { matcher: Matcher::new(Ok(parser)) };
        // A schema without valid values fails with its first mask.
        let allowed = matching.allowed().map_err(|error| match error {
            GrammarError::GrammarFailed(reason) => GrammarError::Schema(reason),
            other => other,
        })?;
        Ok((matching, allowed))
    }
}

/// The grammar state of one response.
pub struct GrammarState {
    matcher: Matcher,
}

/// The ids that may come next in a response.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct AllowedIds {
    /// One bit per id, the lowest first; ids beyond the end are not allowed.
    pub mask: Vec<u32>,
    /// Whether the response is complete and nothing more is allowed.
    pub is_complete: bool,
}

impl GrammarState {
    /// Accepts the next id of the response.
    pub fn take(&mut self, id: u32) -> Result<AllowedIds, GrammarError> {
        self.matcher.consume_token(id).map_err(failed_error)?;
        self.allowed()
    }

    fn allowed(&mut self) -> Result<AllowedIds, GrammarError> {
        if self.matcher.is_stopped() {
            return Ok(AllowedIds { mask: Vec::new(), is_complete: true });
        }
        let mask = self.matcher.compute_mask().map_err(failed_error)?;
        Ok(AllowedIds { mask: mask.as_slice().to_vec(), is_complete: self.matcher.is_stopped() })
    }
}

fn failed_error(error: impl std::fmt::Display) -> GrammarError {
    GrammarError::GrammarFailed(reason(&error))
}

/// The first line of an error of llguidance.
fn reason(error: &impl std::fmt::Display) -> String {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    line.chars().take(MAX_REASON_BYTES).collect()
}

#[cfg(test)]
#[path = "grammar_tests.rs"]
mod tests;

//! Answers in a format: of all ids that may come next, those that keep the answer on its way to JSON of a schema. The grammars, and
//! what they allow of a vocabulary, are llguidance's.

use std::collections::BTreeSet;
use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, INVALID_TOKEN, SimpleVob, TokEnv, TokRxInfo, TokTrie};
use llguidance::{JsonCompileOptions, Matcher, ParserFactory};
use serde_json::{Map, Value};

use super::reply::{Phase, Reader, Thinking};
use super::sampler::{NoFiniteLogit, Sampler};
use super::{Detokenizer, Tokenizer};

/// Between two parts of JSON: a blank, or a line end and an indent. Models that may write more of it do not always find an end.
const BLANKS: &str = r" |\n{1,2}[ \t]{0,20}";

/// A lexer's states take a kilobyte or two each, of every answer under way.
const MAX_LEXER_STATES: usize = 50_000;

/// The trie of tokens counts its nodes, of which there is at most one a byte, in 22 bits, and the parents of one in 10.
const MAX_VOCABULARY_BYTES: usize = (1 << 22) - 1;
const MAX_TOKEN_BYTES: usize = 1 << 10;

/// A schema takes time to be made a grammar, up to the square of its length: seconds, for as much as this.
const MAX_SCHEMA_BYTES: usize = 128 << 10;

/// Tokens of nothing but blanks that may stand between thoughts and the answer.
const MAX_BLANK_TOKENS: usize = 4;

/// What llguidance says of a schema may hold much of the schema.
const MAX_REASON_BYTES: usize = 500;

/// Why an answer cannot be held to a format.
#[derive(Debug, Clone, thiserror::Error)]
pub enum GrammarError {
    #[error("the vocabulary of the model is too large for answers in a format")]
    Vocabulary,
    #[error("invalid format: {0}")]
    Schema(String),
    /// In the middle of an answer.
    #[error("the answer cannot be held to its format: {0}")]
    Lost(String),
    #[error(transparent)]
    NoFiniteLogit(#[from] NoFiniteLogit),
}

/// Makes grammars for one vocabulary.
pub struct Grammars {
    factory: ParserFactory,
    tokenizer: Arc<Tokenizer>,
    eos: Arc<BTreeSet<u32>>,
}

impl Grammars {
    /// Takes a while for a large vocabulary: it is sorted into a trie.
    pub fn new(tokenizer: Arc<Tokenizer>, eos: Arc<BTreeSet<u32>>) -> Result<Grammars, GrammarError> {
        let len = u32::try_from(tokenizer.len()).map_err(|_| GrammarError::Vocabulary)?;
        // No format has special tokens in it, nor bytes of no character; 0xFF marks what is special to llguidance.
        let text = |id: u32| {
            let bytes = tokenizer.token_bytes(id);
            let is_text =
                !tokenizer.is_special(id) && bytes.len() < MAX_TOKEN_BYTES && !bytes.contains(&0xff);
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
        let mut factory =
            ParserFactory::new_simple(&environment).map_err(|error| GrammarError::Lost(reason(&error)))?;
        factory.quiet();
        factory.limits_mut().max_lexer_states = MAX_LEXER_STATES;
        factory.limits_mut().verbose_errors = false;
        Ok(Grammars { factory, tokenizer, eos })
    }

    /// The grammar of one answer: JSON of this schema, behind the thoughts that `reader` takes out of it. A model that is not to think
    /// begins none.
    pub fn grammar(
        &self,
        mut schema: Map<String, Value>,
        reader: &Reader,
        may_think: bool,
    ) -> Result<Grammar, GrammarError> {
        let failed = |error: serde_json::Error| GrammarError::Schema(error.to_string());
        let len = serde_json::to_vec(&schema).map_err(failed)?.len();
        if len > MAX_SCHEMA_BYTES {
            return Err(GrammarError::Schema(format!(
                "the schema has {len} bytes, expected at most {MAX_SCHEMA_BYTES}"
            )));
        }
        let options = JsonCompileOptions {
            whitespace_pattern: Some(BLANKS.to_owned()),
            json_allow_general_unicode_escapes: true,
            ..JsonCompileOptions::default()
        };
        schema.insert("x-guidance".into(), serde_json::to_value(&options).map_err(failed)?);
        let schema = TopLevelGrammar::from_json_schema(Value::Object(schema));
        let parser =
            self.factory.create_parser(schema).map_err(|error| GrammarError::Schema(reason(&error)))?;
        let mut matcher = Matcher::new(Ok(parser));
        // A schema that nothing meets is known by its first mask.
        matcher.compute_mask().map_err(|error| GrammarError::Schema(reason(&error)))?;
        let thinking = reader.thoughts().filter(|thinking| may_think || thinking.phase() == Phase::Inside);
        let detokenizer = || self.tokenizer.detokenizer(reader.shown());
        Ok(Grammar {
            matcher,
            thoughts: thinking.map(|thinking| Thoughts { thinking, detokenizer: detokenizer(), blanks: 0 }),
            tokenizer: self.tokenizer.clone(),
            eos: self.eos.clone(),
        })
    }
}

/// Holds one answer to its format.
pub struct Grammar {
    matcher: Matcher,
    /// Not over yet: what is thought has no format.
    thoughts: Option<Thoughts>,
    tokenizer: Arc<Tokenizer>,
    eos: Arc<BTreeSet<u32>>,
}

#[derive(Clone)]
struct Thoughts {
    thinking: Thinking,
    detokenizer: Detokenizer,
    /// Tokens of blanks behind them.
    blanks: usize,
}

impl Thoughts {
    /// Takes the next id; false where text of the answer came with it.
    fn push(&mut self, id: u32) -> bool {
        let piece = self.detokenizer.push(id);
        self.thinking.push(&piece).text.is_empty()
    }
}

impl Grammar {
    /// The next id, as the sampler picks it from those that may come.
    pub fn sample(&mut self, sampler: &mut Sampler, logits: &[f32]) -> Result<u32, GrammarError> {
        let mut row = logits.to_vec();
        let Some(thoughts) = &self.thoughts else {
            keep(&mut row, &self.matcher.compute_mask().map_err(lost)?);
            let id = sampler.sample(&row)?;
            self.take(id)?;
            return Ok(id);
        };
        match thoughts.thinking.phase() {
            Phase::Before { open, begun } => {
                let token = |id: u32| self.tokenizer.token_bytes(id);
                // A tag that has begun has to end.
                let mut mask = match begun {
                    "" => self.matcher.compute_mask().map_err(lost)?,
                    _ => SimpleVob::alloc(self.tokenizer.len()),
                };
                allow(&mut mask, |id| continues(open, begun, token(id)));
                keep(&mut row, &mask);
                let id = sampler.sample(&row)?;
                if !continues(open, begun, token(id)) || !self.think(id) {
                    self.thoughts = None;
                    self.take(id)?;
                }
                Ok(id)
            }
            Phase::Inside => {
                // The answer is still to come.
                self.eos.iter().for_each(|&id| refuse(&mut row, id));
                loop {
                    let id = sampler.sample(&row)?;
                    if self.think(id) {
                        return Ok(id);
                    }
                    refuse(&mut row, id);
                }
            }
            Phase::Behind => {
                let may_go_on = thoughts.blanks < MAX_BLANK_TOKENS;
                let is_blank = |id: u32| {
                    let token = self.tokenizer.token_bytes(id);
                    may_go_on && !token.is_empty() && token.trim_ascii().is_empty()
                };
                let mut mask = self.matcher.compute_mask().map_err(lost)?;
                allow(&mut mask, is_blank);
                keep(&mut row, &mask);
                let id = sampler.sample(&row)?;
                match &mut self.thoughts {
                    Some(thoughts) if is_blank(id) => thoughts.blanks += 1,
                    _ => {
                        self.thoughts = None;
                        self.take(id)?;
                    }
                }
                Ok(id)
            }
            Phase::Over => {
                self.thoughts = None;
                self.sample(sampler, logits)
            }
        }
    }

    /// Whether the answer is whole and cannot go on.
    pub fn is_complete(&self) -> bool {
        self.matcher.is_stopped()
    }

    fn take(&mut self, id: u32) -> Result<(), GrammarError> {
        if self.eos.contains(&id) {
            return Ok(());
        }
        self.matcher.consume_token(id).map_err(lost)
    }

    /// Takes a part of the thoughts, unless it has text of the answer in it.
    fn think(&mut self, id: u32) -> bool {
        let Some(mut thoughts) = self.thoughts.clone() else { return false };
        let is_thought = thoughts.push(id);
        if is_thought {
            self.thoughts = Some(thoughts);
        }
        is_thought
    }
}

/// Whether a token goes on with an opening tag of which `begun` is there. A part of a character does not: how much of the tag is there
/// is told in text.
fn continues(open: &str, begun: &str, token: &[u8]) -> bool {
    let (Some(rest), Ok(token)) = (open.strip_prefix(begun), std::str::from_utf8(token)) else {
        return false;
    };
    let token = if begun.is_empty() { token.trim_ascii_start() } else { token };
    !token.is_empty() && (rest.starts_with(token) || token.starts_with(rest))
}

/// Adds more ids to those of a mask.
fn allow(mask: &mut SimpleVob, allows: impl Fn(u32) -> bool) {
    (0..mask.len() as u32).filter(|id| allows(*id)).for_each(|id| mask.allow_token(id));
}

/// Rules out what a mask does not allow, and what is beyond its end.
fn keep(row: &mut [f32], mask: &SimpleVob) {
    let words = mask.as_slice().iter().copied().chain(std::iter::repeat(0));
    for (word, logits) in words.zip(row.chunks_mut(u32::BITS as usize)) {
        match word {
            0 => logits.fill(f32::NEG_INFINITY),
            u32::MAX => {}
            _ => {
                let ruled_out = |at: &usize| word >> at & 1 == 0;
                (0..logits.len()).filter(ruled_out).for_each(|at| logits[at] = f32::NEG_INFINITY);
            }
        }
    }
}

fn refuse(row: &mut [f32], id: u32) {
    if let Some(logit) = row.get_mut(id as usize) {
        *logit = f32::NEG_INFINITY;
    }
}

fn lost(error: impl std::fmt::Display) -> GrammarError {
    GrammarError::Lost(reason(&error))
}

/// The first line of what llguidance says.
fn reason(error: &impl std::fmt::Display) -> String {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    line.chars().take(MAX_REASON_BYTES).collect()
}

#[cfg(test)]
#[path = "grammar_tests.rs"]
mod tests;

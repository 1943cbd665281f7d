//! SentencePiece's unigram model, in a GGUF the vocabulary `t5`: of all ways to split a text into tokens, the
//! one with the highest sum of scores. Before, the text is normalised by the file's table of replacements.

use lode_model::gguf::{Array, Metadata};

use super::charsmap::Charsmap;
use super::tokens::{BLANK, Kind, Tokens, read_scores};
use crate::text::tokenizer_error::TokenizerError;

/// How far the score of an unknown character is below that of every token.
const UNKNOWN_PENALTY: f32 = 10.0;

pub(super) struct UnigramModel {
    scores: Vec<f32>,
    /// Length of the longest token in bytes.
    longest: usize,
    /// The id for characters without a token, and its score.
    unknown: (u32, f64),
    charsmap: Charsmap,
    adds_blank: bool,
    /// Whether several spaces count as one, and spaces at both ends are removed.
    merges_blanks: bool,
}

/// The best way to reach an offset of the text: its last token, where that begins, and the sum of all scores.
#[derive(Clone, Copy)]
struct Best {
    id: u32,
    start: usize,
    score: f64,
}

impl UnigramModel {
    pub(super) fn read(
        metadata: &Metadata,
        tokens: &Tokens,
        unknown: u32,
    ) -> Result<UnigramModel, TokenizerError> {
        const CHARSMAP: &str = "tokenizer.ggml.precompiled_charsmap";
        let flag = |key: &str| metadata.bool(&format!("tokenizer.ggml.{key}")).unwrap_or(false);
        let scores = read_scores(metadata, tokens)?;
        let score = |id: u32| scores.get(id as usize).copied().unwrap_or_default();
        let normal = tokens.all().filter(|(id, _)| tokens.kind(*id) == Kind::Normal);
        let lowest = normal.map(|(id, _)| score(id)).fold(f32::MAX, f32::min);
        let longest = tokens.all().map(|(_, text)| text.len()).max().unwrap_or_default();
        let charsmap = match metadata.get(CHARSMAP) {
            None => Charsmap::default(),
            Some(value) => {
                let bytes: Option<Vec<u8>> = match value.as_array() {
                    Some(Array::U8(bytes)) => Some(bytes.clone()),
                    Some(Array::I8(bytes)) => Some(bytes.iter().map(|byte| byte.cast_unsigned()).collect()),
                    _ => None,
                };
                let expected = "a table of replacements of SentencePiece";
                let charsmap = bytes.and_then(|bytes| Charsmap::read(&bytes));
                charsmap.ok_or(TokenizerError::BadKey { key: CHARSMAP, expected })?
            }
        };
        Ok(UnigramModel {
            unknown: (unknown, f64::from(lowest - UNKNOWN_PENALTY)),
            scores,
            longest,
            charsmap,
            adds_blank: flag("add_space_prefix"),
            merges_blanks: flag("remove_extra_whitespaces"),
        })
    }

    pub(super) fn adds_blank(&self) -> bool {
        self.adds_blank
    }

    pub(super) fn encode(&self, tokens: &Tokens, text: &str, ids: &mut Vec<u32>) {
        let text = self.normalise(text);
        let best = self.split(tokens, &text);
        let (first, mut end) = (ids.len(), text.len());
        while end > 0 {
            let Best { id, start, .. } = best[end];
            // Adjacent unknown characters are one token.
            if id != self.unknown.0 || ids[first..].last() != Some(&id) {
                ids.push(id);
            }
            end = start;
        }
        ids[first..].reverse();
    }

    /// Replaces characters as the file says, and spaces by [`BLANK`].
    fn normalise(&self, text: &str) -> String {
        let mut normalised = String::with_capacity(text.len() + text.len() / 2);
        let (mut has_begun, mut in_word) = (false, false);
        self.charsmap.replace(text, |part| {
            for c in part.chars() {
                if c == ' ' {
                    in_word = false;
                    if !self.merges_blanks {
                        normalised.push(BLANK);
                    }
                    continue;
                }
                if !in_word && (self.merges_blanks || self.adds_blank && !has_begun) {
                    normalised.push(BLANK);
                }
                (in_word, has_begun) = (true, true);
                normalised.push(c);
            }
        });
        normalised
    }

    /// The best way to reach each offset of the text.
    fn split(&self, tokens: &Tokens, text: &str) -> Vec<Best> {
        let (unknown, unknown_score) = self.unknown;
        let mut best = vec![Best { id: unknown, start: 0, score: f64::MIN }; text.len() + 1];
        best[0].score = 0.0;
        for (start, c) in text.char_indices() {
            let (before, one) = (best[start].score, start + c.len_utf8());
            let mut offer = |end: usize, id: u32, score: f64| {
                let score = before + score;
                if score > best[end].score {
                    best[end] = Best { id, start, score };
                }
            };
            let last = text.floor_char_boundary(text.len().min(start + self.longest));
            let mut has_token = false;
            for end in (one..=last).filter(|end| text.is_char_boundary(*end)) {
                let Some(id) = tokens.id(&text[start..end]) else { continue };
                let score = match tokens.kind(id) {
                    Kind::Normal | Kind::Unused => self.scores.get(id as usize).copied().unwrap_or_default(),
                    Kind::UserDefined => 0.0,
                    Kind::Unknown | Kind::Control | Kind::Byte => continue,
                };
                has_token |= end == one;
                offer(end, id, f64::from(score));
            }
            if !has_token {
                offer(one, unknown, unknown_score);
            }
        }
        best
    }
}

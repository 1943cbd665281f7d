//! Encodes a text with the tokenizer of a GGUF.

use super::characters::CharacterBpeModel;
use super::cut::{Fragment, SpecialTokenSplitter};
use super::merges::BpeModel;
use super::tokens::Tokens;
use super::unigram::UnigramModel;
use super::words::WordPieceModel;
use crate::text::special::Special;
use crate::text::tokenizer_error::TokenizerError;

/// Splits a text at special tokens, then encodes the text between them with the model.
pub(crate) struct GgufTokenizer {
    pub(super) model: Model,
    pub(super) cutter: SpecialTokenSplitter,
    pub(super) tokens: Tokens,
    pub(super) begin: Option<u32>,
    pub(super) end: Option<u32>,
}

pub(super) enum Model {
    Merges(BpeModel),
    Characters(CharacterBpeModel),
    Unigrams(UnigramModel),
    Words(WordPieceModel),
}

impl GgufTokenizer {
    pub(crate) fn encode(&self, text: &str, special: Special) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = Vec::new();
        ids.extend(self.begin.filter(|_| special.add));
        // A leading space is added at the beginning and after a special token.
        let mut begins = true;
        for fragment in self.cutter.split_at_special(text, special.parse) {
            match fragment {
                Fragment::Id(id) => ids.push(id),
                Fragment::Text(text) => match &self.model {
                    Model::Merges(merges) => merges.encode(&self.tokens, text, &mut ids)?,
                    Model::Characters(characters) => characters.encode(&self.tokens, text, begins, &mut ids),
                    Model::Unigrams(unigrams) => unigrams.encode(&self.tokens, text, &mut ids),
                    Model::Words(words) => words.encode(&self.tokens, text, &mut ids)?,
                },
            }
            begins = matches!(fragment, Fragment::Id(_));
        }
        ids.extend(self.end.filter(|_| special.add));
        Ok(ids)
    }

    /// The ids of two texts with special tokens around and between them, as BERT has them, or XLM-RoBERTa with two
    /// between them; and the index of the second text's first one.
    pub(crate) fn join_pair(&self, first: &[u32], second: &[u32]) -> (Vec<u32>, usize) {
        let mut ids: Vec<u32> = self.begin.into_iter().chain(first.iter().copied()).chain(self.end).collect();
        ids.extend(self.end.filter(|_| matches!(self.model, Model::Unigrams(_))));
        let start = ids.len();
        ids.extend(second.iter().copied().chain(self.end));
        (ids, start)
    }

    pub(crate) fn token_id(&self, token: &str) -> Option<u32> {
        self.tokens.id(token)
    }

    pub(crate) fn begin(&self) -> Option<u32> {
        self.begin
    }
}

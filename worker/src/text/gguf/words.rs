//! WordPiece: a text is normalised and split into words as in BERT, and each word is split from its beginning
//! into the longest matching tokens. In a GGUF the first token of a word starts with `U+2581`; continuations
//! have no prefix.

use tokenizers::normalizers::BertNormalizer;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::{
    NormalizedString, Normalizer, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer,
};

use super::tokens::{BLANK, Tokens};
use crate::text::tokenizer_error::TokenizerError;

pub(super) struct WordPieceModel {
    longest: usize,
    /// The id for a word that has no tokens.
    unknown: u32,
    normalizer: BertNormalizer,
}

impl WordPieceModel {
    pub(super) fn new(tokens: &Tokens, unknown: u32, lowercase: bool, strip_accents: bool) -> WordPieceModel {
        let longest = tokens.all().map(|(_, text)| text.len()).max().unwrap_or_default();
        let normalizer = BertNormalizer::new(true, true, Some(strip_accents), lowercase);
        WordPieceModel { longest, unknown, normalizer }
    }

    pub(super) fn encode(
        &self,
        tokens: &Tokens,
        text: &str,
        ids: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        let mut normalized = NormalizedString::from(text);
        self.normalizer.normalize(&mut normalized).map_err(TokenizerError::Encode)?;
        let mut words = PreTokenizedString::from(normalized);
        BertPreTokenizer.pre_tokenize(&mut words).map_err(TokenizerError::Encode)?;
        for (word, _, _) in words.get_splits(OffsetReferential::Normalized, OffsetType::Byte) {
            if !word.is_empty() {
                self.word(tokens, &format!("{BLANK}{word}"), ids);
            }
        }
        Ok(())
    }

    fn word(&self, tokens: &Tokens, word: &str, ids: &mut Vec<u32>) {
        let before = ids.len();
        let mut rest = word;
        while !rest.is_empty() {
            let longest = rest.floor_char_boundary(self.longest.min(rest.len()));
            let mut ends = (1..=longest).rev().filter(|end| rest.is_char_boundary(*end));
            let found = ends.find_map(|end| Some((end, tokens.id(&rest[..end])?)));
            let Some((end, id)) = found else {
                ids.truncate(before);
                ids.push(self.unknown);
                return;
            };
            ids.push(id);
            rest = &rest[end..];
        }
    }
}

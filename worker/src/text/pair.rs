//! Pairs of texts as the ids of one sequence, for models that compare a query with documents.

use tokenizers::{Encoding, PostProcessor, TruncationDirection};

use super::gguf::encoder::GgufTokenizer;
use super::special::Special;
use super::tokenizer::{FileTokenizer, Inner, Tokenizer};
use super::tokenizer_error::TokenizerError;

/// A pair of texts with the tokenizer's special tokens. The ids from `second` on have token type 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedPair {
    pub ids: Vec<u32>,
    pub second: usize,
}

/// Why a pair cannot be encoded within a limit.
#[derive(Debug, thiserror::Error)]
pub enum PairError {
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The second text does not fit, and must not be truncated.
    #[error("the input length exceeds the context length")]
    TooLong,
    #[error(
        "the query has {tokens} tokens, which leaves no space for a document within the limit of {limit}"
    )]
    NoSpace { tokens: usize, limit: usize },
    /// The types of a pair's tokens are not zeros followed by ones.
    #[error("the token types of the tokenizer's pairs are not supported")]
    TokenTypes,
}

/// Pairs with the same first text, which is encoded once.
pub struct PairEncoder<'a> {
    first: First<'a>,
    /// Maximum number of ids of the second text.
    space: usize,
}

/// The first text, and the tokenizer that encoded it.
enum First<'a> {
    File(&'a FileTokenizer, Box<Encoding>),
    Gguf(&'a GgufTokenizer, Vec<u32>),
}

impl<'a> PairEncoder<'a> {
    /// For pairs of at most `limit` ids, with at least one of the second text.
    pub fn new(tokenizer: &'a Tokenizer, first: &str, limit: usize) -> Result<PairEncoder<'a>, PairError> {
        let (first, tokens, added) = match &tokenizer.inner {
            Inner::File(file) => {
                let first = file.parsing.encode_fast(first, false).map_err(TokenizerError::Encode)?;
                let added =
                    file.parsing.get_post_processor().map_or(0, |processor| processor.added_tokens(true));
                let tokens = first.len();
                (First::File(file, Box::new(first)), tokens, added)
            }
            Inner::Gguf(gguf) => {
                let first = gguf.encode(first, Special::PARSE)?;
                let tokens = first.len();
                (First::Gguf(gguf, first), tokens, gguf.join_pair(&[], &[]).0.len())
            }
        };
        let space = limit.saturating_sub(tokens.saturating_add(added));
        if space == 0 {
            return Err(PairError::NoSpace { tokens, limit });
        }
        Ok(PairEncoder { first, space })
    }

    /// Encodes a pair. If it is too long, the end of the second text is removed if `truncate` is set.
    pub fn encode(&self, second: &str, truncate: bool) -> Result<EncodedPair, PairError> {
        let fits = |len: usize| if len <= self.space || truncate { Ok(()) } else { Err(PairError::TooLong) };
        match &self.first {
            First::File(file, first) => {
                let mut second = file.parsing.encode_fast(second, false).map_err(TokenizerError::Encode)?;
                fits(second.len())?;
                second.truncate(self.space, 0, TruncationDirection::Right);
                // The removed parts, which the post-processor would process as well.
                second.set_overflowing(Vec::new());
                second.set_type_ids(vec![1; second.len()]);
                let pair = file.parsing.post_process(Encoding::clone(first), Some(second), true);
                let pair = pair.map_err(TokenizerError::Encode)?;
                let types = pair.get_type_ids();
                let second = types.iter().position(|kind| *kind != 0).unwrap_or(types.len());
                if types[second..].iter().any(|kind| *kind != 1) {
                    return Err(PairError::TokenTypes);
                }
                Ok(EncodedPair { ids: pair.get_ids().to_vec(), second })
            }
            First::Gguf(gguf, first) => {
                let mut second = gguf.encode(second, Special::PARSE)?;
                fits(second.len())?;
                second.truncate(self.space);
                let (ids, second) = gguf.join_pair(first, &second);
                Ok(EncodedPair { ids, second })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn fixture(name: &str) -> (Tokenizer, Value) {
        let folder = format!("{}/../tests/fixtures/reranker/{name}", env!("CARGO_MANIFEST_DIR"));
        let read = |file: &str| std::fs::read(format!("{folder}/{file}")).unwrap();
        let tokenizer = Tokenizer::from_json(&read("tokenizer.json")).unwrap();
        (tokenizer, serde_json::from_slice(&read("expected.json")).unwrap())
    }

    /// The ids and types of the tokenizers library, which truncates only the second text.
    #[test]
    fn pairs_of_the_reference() {
        for name in ["bert", "xlm-roberta"] {
            let (tokenizer, expected) = fixture(name);
            let mut truncated = 0;
            for case in expected["cases"].as_array().unwrap() {
                let ids: Vec<u32> = serde_json::from_value(case["token_ids"].clone()).unwrap();
                let types: Vec<u32> = serde_json::from_value(case["type_ids"].clone()).unwrap();
                let encoder = PairEncoder::new(&tokenizer, case["query"].as_str().unwrap(), 96).unwrap();
                let found = encoder.encode(case["document"].as_str().unwrap(), true).unwrap();
                assert_eq!(found.ids, ids, "{case}");
                assert_eq!(found.second, types.iter().filter(|kind| **kind == 0).count(), "{case}");
                truncated += usize::from(ids.len() == 96);
            }
            assert!(truncated >= 2, "{name}");
        }
    }

    /// The same pairs by the vocabulary of a GGUF.
    #[test]
    fn pairs_of_a_gguf() {
        let (_, expected) = fixture("xlm-roberta");
        let path = format!("{}/../tests/fixtures/reranker/xlm-roberta.gguf", env!("CARGO_MANIFEST_DIR"));
        let file = std::fs::read(path).unwrap();
        let header = lode_model::gguf::Header::parse(&file, file.len() as u64).unwrap();
        let (tokenizer, _) = super::super::gguf::read(&header.metadata).unwrap();
        for case in expected["cases"].as_array().unwrap() {
            let ids: Vec<u32> = serde_json::from_value(case["token_ids"].clone()).unwrap();
            let encoder = PairEncoder::new(&tokenizer, case["query"].as_str().unwrap(), 96).unwrap();
            assert_eq!(encoder.encode(case["document"].as_str().unwrap(), true).unwrap().ids, ids, "{case}");
        }
    }

    #[test]
    fn limits() {
        let (tokenizer, _) = fixture("bert");
        // Four tokens, and three special tokens.
        let query = "What is water?";
        let error = |limit| PairEncoder::new(&tokenizer, query, limit).err().unwrap().to_string();
        let tokens = tokenizer.encode_with(query, Special::PARSE).unwrap().len();
        for limit in [0, 1, tokens + 3] {
            let expect = format!(
                "the query has {tokens} tokens, which leaves no space for a document within the limit of {limit}"
            );
            assert_eq!(error(limit), expect);
        }
        let encoder = PairEncoder::new(&tokenizer, query, tokens + 4).unwrap();
        assert_eq!(encoder.encode("two cats", true).unwrap().ids.len(), tokens + 4);
        assert!(matches!(encoder.encode("two cats", false), Err(PairError::TooLong)));
        assert_eq!(encoder.encode("", false).unwrap().ids.len(), tokens + 3);
    }
}

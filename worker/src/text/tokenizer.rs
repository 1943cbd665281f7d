//! Converts text to ids and ids to text, and has the exact bytes of every id. Reads a checkpoint's
//! `tokenizer.json` or a GGUF. Truncation and padding stored in a `tokenizer.json` are training settings and
//! are ignored.

use std::sync::{Arc, OnceLock};

use serde::Deserialize;
use serde_json::Value;

use super::gguf::encoder::GgufTokenizer;
use super::special::{Special, SpecialTokens};
use super::tokenizer_error::TokenizerError;
use super::vocabulary::Vocabulary;

/// A loaded tokenizer; cheap to share behind an [`Arc`].
pub struct Tokenizer {
    pub(super) inner: Inner,
    vocabulary: Arc<Vocabulary>,
}

pub(super) enum Inner {
    File(Box<FileTokenizer>),
    Gguf(Box<GgufTokenizer>),
}

pub(super) struct FileTokenizer {
    pub(super) parsing: tokenizers::Tokenizer,
    // The same tokenizer, set to read special tokens in the text as plain characters; built on first use.
    plain: OnceLock<tokenizers::Tokenizer>,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("ids", &self.vocabulary.len()).finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Reads the bytes of a `tokenizer.json`.
    pub fn from_json(bytes: &[u8]) -> Result<Tokenizer, TokenizerError> {
        let Decoding { decoder } = serde_json::from_slice(bytes).map_err(TokenizerError::Json)?;
        // The library panics on some invalid files, and this file is untrusted.
        let read = std::panic::catch_unwind(|| tokenizers::Tokenizer::from_bytes(bytes));
        let read =
            read.unwrap_or_else(|_| Err("the file violates an assumption of the tokenizers library".into()));
        let mut inner = read.map_err(TokenizerError::Format)?;
        inner.with_truncation(None).map_err(TokenizerError::Format)?;
        inner.with_padding(None);
        let vocabulary = Arc::new(Vocabulary::read(&inner, &decoder));
        let inner = Inner::File(Box::new(FileTokenizer { parsing: inner, plain: OnceLock::new() }));
        Ok(Tokenizer { inner, vocabulary })
    }

    pub(super) fn of_gguf(tokenizer: GgufTokenizer, vocabulary: Arc<Vocabulary>) -> Tokenizer {
        Tokenizer { inner: Inner::Gguf(Box::new(tokenizer)), vocabulary }
    }

    /// Text to ids. `special` both adds the tokenizer's own special tokens and parses those in the text.
    pub fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>, TokenizerError> {
        self.encode_with(text, if special { Special::ALL } else { Special::NONE })
    }

    /// Text to ids, with separate settings for adding and parsing special tokens.
    pub fn encode_with(&self, text: &str, special: Special) -> Result<Vec<u32>, TokenizerError> {
        let file = match &self.inner {
            Inner::File(file) => file,
            Inner::Gguf(gguf) => return gguf.encode(text, special),
        };
        let tokenizer = if special.parse {
            &file.parsing
        } else {
            file.plain.get_or_init(|| {
                let mut plain = file.parsing.clone();
                plain.set_encode_special_tokens(true);
                plain
            })
        };
        let encoding = tokenizer.encode_fast(text, special.add).map_err(TokenizerError::Encode)?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Ids to their bytes, with special tokens as text; the reverse of [`Tokenizer::encode`].
    ///
    /// For a byte-level vocabulary this returns exactly the encoded bytes.
    pub fn decode(&self, ids: &[u32]) -> Result<Vec<u8>, TokenizerError> {
        let len = self.len();
        if let Some(&id) = ids.iter().find(|&&id| self.vocabulary.entry(id).is_none()) {
            return Err(TokenizerError::UnknownId { id, len });
        }
        if let Inner::File(file) = &self.inner
            && self.vocabulary.whole_text
        {
            return Ok(file.parsing.decode(ids, false).map_err(TokenizerError::Encode)?.into_bytes());
        }
        let mut bytes = Vec::new();
        for &id in ids {
            bytes.extend_from_slice(self.vocabulary.bytes(id));
        }
        if self.vocabulary.strip_first && bytes.first() == Some(&b' ') {
            bytes.remove(0);
        }
        Ok(bytes)
    }

    /// The bytes of every id, for converting generated ids to text.
    pub fn vocabulary(&self) -> &Arc<Vocabulary> {
        &self.vocabulary
    }

    /// The special tokens that occur in these texts.
    pub fn special_in(&self, texts: &[&str]) -> Vec<u32> {
        let is_spelled = |bytes: &[u8]| match std::str::from_utf8(bytes) {
            Ok(token) if !token.is_empty() => texts.iter().any(|text| text.contains(token)),
            _ => false,
        };
        let ids = 0..u32::try_from(self.len()).unwrap_or(u32::MAX);
        let spelled = ids.filter(|&id| self.is_special(id) && is_spelled(self.vocabulary.bytes(id)));
        spelled.take(MAX_MARKER_TOKENS).collect()
    }

    /// The bytes of an id within text: the name of a special token, and no bytes for an unknown id.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.vocabulary.bytes(id)
    }

    /// The id of a token by its spelling in the vocabulary.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        match &self.inner {
            Inner::File(file) => file.parsing.token_to_id(token),
            Inner::Gguf(gguf) => gguf.token_id(token),
        }
    }

    /// The special tokens that the files of a checkpoint name. Any of the files may be absent.
    pub fn special_tokens(
        &self,
        config: Option<&Value>,
        generation_config: Option<&Value>,
        tokenizer_config: Option<&Value>,
    ) -> SpecialTokens {
        let token_id = |token: &str| self.token_id(token);
        SpecialTokens::read(self.len(), token_id, config, generation_config, tokenizer_config)
    }

    /// The id that every text has to begin with, even a rendered template. GGUF files specify it separately;
    /// a checkpoint's template contains it.
    pub fn begin(&self) -> Option<u32> {
        match &self.inner {
            Inner::File(_) => None,
            Inner::Gguf(gguf) => gguf.begin(),
        }
    }

    /// True for tokens such as `<|im_end|>` that are never part of a response's text.
    pub fn is_special(&self, id: u32) -> bool {
        self.vocabulary.is_special(id)
    }

    /// One more than the highest id.
    pub fn len(&self) -> usize {
        self.vocabulary.len()
    }

    /// True for a vocabulary without ids.
    pub fn is_empty(&self) -> bool {
        self.vocabulary.is_empty()
    }
}

/// Maximum number of special tokens in the markers of a response.
const MAX_MARKER_TOKENS: usize = 256;

/// The part of a tokenizer.json that is read here; the library reads the rest.
#[derive(Deserialize)]
struct Decoding {
    #[serde(default)]
    decoder: Value,
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn demo() -> Tokenizer {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/models/lode-demo/tokenizer.json");
        Tokenizer::from_json(&std::fs::read(path).unwrap()).unwrap()
    }

    #[test]
    fn round_trips() {
        let tokenizer = demo();
        for text in [
            "",
            " ",
            "In the beginning",
            "tabs\tand\r\nlines\n\n",
            "caf\u{e9} \u{4f60}\u{597d} \u{1f600}",
            "  two  blanks  ",
            "a\0b",
            "\n",
        ] {
            let ids = tokenizer.encode(text, false).unwrap();
            assert_eq!(tokenizer.decode(&ids).unwrap(), text.as_bytes(), "{text:?}");
        }
        assert!(tokenizer.encode("", true).unwrap().is_empty());
    }

    #[test]
    fn special_tokens_are_read_only_when_asked() {
        let tokenizer = demo();
        assert_eq!(tokenizer.encode("<|im_start|>", true).unwrap(), [1]);
        let plain = tokenizer.encode("<|im_start|>", false).unwrap();
        assert!(plain.len() > 1 && !plain.contains(&1));
        assert_eq!(tokenizer.decode(&plain).unwrap(), b"<|im_start|>");
        assert_eq!(tokenizer.decode(&[1]).unwrap(), b"<|im_start|>");
        assert!(tokenizer.is_special(1) && !tokenizer.is_special(3269));
    }

    #[test]
    fn stored_truncation_and_padding_are_ignored() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/models/lode-demo/tokenizer.json");
        let mut json: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        json["truncation"] = serde_json::json!({"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0});
        json["padding"] = serde_json::json!({"strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0, "pad_type_id": 0, "pad_token": "<|endoftext|>"});
        let tokenizer = Tokenizer::from_json(json.to_string().as_bytes()).unwrap();
        let text = "one two three four five";
        assert_eq!(tokenizer.encode(text, true).unwrap(), demo().encode(text, true).unwrap());
    }

    #[test]
    fn invalid_tokenizers_are_refused() {
        for bytes in [
            &b""[..],
            b"{",
            b"[]",
            b"{}",
            b"{\"model\": 3}",
            b"{\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[\"a\"]}}",
        ] {
            assert!(Tokenizer::from_json(bytes).is_err(), "{:?}", String::from_utf8_lossy(bytes));
        }
        assert!(matches!(demo().decode(&[4096]), Err(TokenizerError::UnknownId { id: 4096, .. })));
    }

    #[test]
    fn a_vocabulary_on_the_wire() {
        let vocabulary = demo().vocabulary().clone();
        let wire = vocabulary.to_wire();
        let back = Vocabulary::from_wire(&wire).unwrap();
        assert_eq!((back.len(), back.is_special(1)), (vocabulary.len(), true));
        assert!((0..back.len() as u32).all(|id| back.bytes(id) == vocabulary.bytes(id)));
        for broken in
            [&wire[..wire.len() - 1], &wire[..3], &[], &[0, 9, 0, 0, 0], &[0, 1, 0, 0, 0, 3, 0, 0, 0]]
        {
            assert!(Vocabulary::from_wire(broken).is_none());
        }
    }
}

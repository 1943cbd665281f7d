//! The tokens of a GGUF: their texts, their kinds, and which of them are special. Files often omit this or
//! have it wrong, so some tokens are recognised by their texts, as in llama.cpp.

use std::collections::BTreeSet;

use lode_model::gguf::{Array, END_TOKENS, Metadata, Strings};

use super::super::special::SpecialTokens;
use super::super::tokenizer_error::TokenizerError;
use super::texts::TextTable;

/// SentencePiece's character for a space.
pub(super) const BLANK: char = '\u{2581}';

/// The kind of a token, from `tokenizer.ggml.token_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

/// Fill-in-the-middle tokens by metadata key: control tokens even if the file has another kind. Those with
/// `true` also end a response.
const FILL_IN_MIDDLE_TOKENS: [(&str, bool, &[&str]); 6] = [
    (
        "fim_pre",
        false,
        &[
            "<|fim_prefix|>",
            "<fim-prefix>",
            "<fim_prefix>",
            "<\u{ff5c}fim\u{2581}begin\u{ff5c}>",
            "<PRE>",
            "\u{2581}<PRE>",
            "<|code_prefix|>",
            "<|prefix|>",
        ],
    ),
    (
        "fim_suf",
        false,
        &[
            "<|fim_suffix|>",
            "<fim-suffix>",
            "<fim_suffix>",
            "<\u{ff5c}fim\u{2581}hole\u{ff5c}>",
            "<SUF>",
            "\u{2581}<SUF>",
            "<|code_suffix|>",
            "<|suffix|>",
        ],
    ),
    (
        "fim_mid",
        false,
        &[
            "<|fim_middle|>",
            "<fim-middle>",
            "<fim_middle>",
            "<\u{ff5c}fim\u{2581}end\u{ff5c}>",
            "<MID>",
            "\u{2581}<MID>",
            "<|code_middle|>",
            "<|middle|>",
        ],
    ),
    ("fim_pad", true, &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"]),
    ("fim_rep", true, &["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"]),
    ("fim_sep", true, &["<|file_sep|>"]),
];

/// The names of special tokens in templates, and the keys of their ids.
const NAMES: [(&str, &str); 7] = [
    ("bos_token", "bos"),
    ("eos_token", "eos"),
    ("unk_token", "unknown"),
    ("sep_token", "seperator"),
    ("pad_token", "padding"),
    ("cls_token", "cls"),
    ("mask_token", "mask"),
];

pub(super) struct Tokens {
    /// All are UTF-8.
    texts: TextTable,
    kinds: Vec<Kind>,
    /// Generating one of these ends the response.
    ends: BTreeSet<u32>,
}

impl Tokens {
    pub(super) fn read(metadata: &Metadata) -> Result<Tokens, TokenizerError> {
        const TOKENS: &str = "tokenizer.ggml.tokens";
        const TYPES: &str = "tokenizer.ggml.token_type";
        let list = metadata.get(TOKENS).ok_or(TokenizerError::MissingKey { key: TOKENS })?;
        let list = list.as_array().and_then(Array::as_strings);
        let list = list.ok_or(TokenizerError::BadKey { key: TOKENS, expected: "a list of strings" })?;
        let mut texts = Strings::default();
        list.iter().for_each(|text| texts.push(&*String::from_utf8_lossy(text)));
        let types = match metadata.get(TYPES) {
            None => None,
            Some(types) => {
                let types = types.as_array().filter(|types| types.len() >= texts.len());
                Some(types.ok_or(TokenizerError::BadKey {
                    key: TYPES,
                    expected: "a list of one number per token",
                })?)
            }
        };
        let kind = |at: usize| match types.and_then(|types| types.get(at)?.as_i64()) {
            Some(2) => Kind::Unknown,
            Some(3) => Kind::Control,
            Some(4) => Kind::UserDefined,
            Some(0 | 5) => Kind::Unused,
            Some(6) => Kind::Byte,
            _ => Kind::Normal,
        };
        let kinds = (0..texts.len()).map(kind).collect();
        let mut tokens = Tokens { texts: TextTable::new(texts), kinds, ends: BTreeSet::new() };
        tokens.mark_special_tokens(metadata);
        Ok(tokens)
    }

    /// Marks the tokens that are special because of their text.
    fn mark_special_tokens(&mut self, metadata: &Metadata) {
        for (key, ends, texts) in FILL_IN_MIDDLE_TOKENS {
            let named = self.id_of_key(metadata, key);
            let id = named.or_else(|| texts.iter().find_map(|text| self.id(text)));
            if let Some(id) = id {
                if named.is_none() {
                    self.kinds[id as usize] = Kind::Control;
                }
                if ends {
                    self.ends.insert(id);
                }
            }
        }
        for text in END_TOKENS {
            if let Some(id) = self.id(text) {
                self.kinds[id as usize] = Kind::Control;
                self.ends.insert(id);
            }
        }
        // Parts of a message in OpenAI's harmony format, which have to be in the text.
        for text in ["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"] {
            if let Some(id) = self.id(text) {
                self.kinds[id as usize] = Kind::UserDefined;
            }
        }
        let has = |tokens: &Tokens, text: &str| tokens.id(text).is_some();
        // In that format `<|end|>` ends a message, but not the response.
        let calls = has(self, "<|call|>") || has(self, "<|calls|>");
        if calls
            && (has(self, "<|return|>") || has(self, "<|flush|>"))
            && let Some(id) = self.id("<|end|>")
        {
            self.ends.remove(&id);
            self.kinds[id as usize] = Kind::UserDefined;
        }
        if has(self, "<|tool_response>")
            && let Some(id) = self.id("</s>")
        {
            self.ends.remove(&id);
            self.kinds[id as usize] = Kind::Normal;
        }
        for key in ["eot", "eom"] {
            let id = self.id_of_key(metadata, key);
            self.ends.extend(id);
        }
    }

    /// The tokens that end a response, and those that templates may name.
    pub(super) fn special(&self, metadata: &Metadata, bos: Option<u32>, eos: Option<u32>) -> SpecialTokens {
        let mut special = SpecialTokens { eos: self.ends.clone(), bos, ..SpecialTokens::default() };
        special.eos.extend(eos);
        for (name, key) in NAMES {
            let id = match key {
                "bos" => bos,
                "eos" => eos,
                key => self.id_of_key(metadata, key),
            };
            if let Some(text) = id.and_then(|id| self.text(id)) {
                special.names.insert(name.to_owned(), text.to_owned());
            }
        }
        special
    }

    pub(super) fn len(&self) -> usize {
        self.texts.len()
    }

    pub(super) fn id(&self, text: &str) -> Option<u32> {
        self.texts.find(text.as_bytes())
    }

    pub(super) fn text(&self, id: u32) -> Option<&str> {
        let text = ((id as usize) < self.len()).then(|| self.texts.bytes(id))?;
        std::str::from_utf8(text).ok()
    }

    pub(super) fn kind(&self, id: u32) -> Kind {
        self.kinds.get(id as usize).copied().unwrap_or(Kind::Unused)
    }

    /// Every id with its text.
    pub(super) fn all(&self) -> impl Iterator<Item = (u32, &str)> {
        (0..self.len() as u32).map(|id| (id, self.text(id).unwrap_or_default()))
    }

    /// Every text with its id; of several tokens with the same text, the last.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &str)> {
        self.all().filter(|(id, _)| !self.texts.is_replaced(*id))
    }

    /// The id in `tokenizer.ggml.KEY_token_id`, if it is a token's.
    pub(super) fn id_of_key(&self, metadata: &Metadata, key: &str) -> Option<u32> {
        let id = metadata.u64(&format!("tokenizer.ggml.{key}_token_id"))?;
        u32::try_from(id).ok().filter(|id| (*id as usize) < self.len())
    }
}

/// The score of each token; zeros if the file has none.
pub(super) fn read_scores(metadata: &Metadata, tokens: &Tokens) -> Result<Vec<f32>, TokenizerError> {
    const SCORES: &str = "tokenizer.ggml.scores";
    let scores = match metadata.get(SCORES) {
        None => None,
        Some(scores) => {
            let scores = scores.as_array().filter(|scores| scores.len() >= tokens.len());
            let expected = "a list of one number per token";
            Some(scores.ok_or(TokenizerError::BadKey { key: SCORES, expected })?)
        }
    };
    let score = |id: usize| {
        let score = scores.and_then(|scores| scores.get(id)?.as_f64()).unwrap_or_default();
        // Makes -0 and 0 the same score.
        score as f32 + 0.0
    };
    Ok((0..tokens.len()).map(score).collect())
}

/// The byte of a token such as `<0xE2>`.
pub(super) fn byte_of_token(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>').filter(|digits| digits.len() == 2)?;
    u8::from_str_radix(digits, 16).ok()
}

//! Special tokens: how they are handled while encoding, and those of a model. For a checkpoint, the ids that
//! end a response and the tokens that templates name are in small JSON files: generation_config.json,
//! config.json and tokenizer_config.json. The ids of all files are used.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// How special tokens (`<|im_start|>`, `<s>`) are handled while encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Special {
    /// Add the tokens of the tokenizer's post-processor, such as a leading `<s>`.
    pub add: bool,
    /// Parse special tokens in the text, instead of reading them as ordinary characters.
    pub parse: bool,
}

impl Special {
    /// For a plain completion: add the tokenizer's own, and parse those in the text.
    pub const ALL: Special = Special { add: true, parse: true };
    /// For a rendered chat template, which contains its special tokens.
    pub const PARSE: Special = Special { add: false, parse: true };
    /// Ordinary text only.
    pub const NONE: Special = Special { add: false, parse: false };
}

/// The special tokens of a checkpoint.
#[derive(Debug, Clone, Default)]
pub struct SpecialTokens {
    /// Generating one of these ends the response.
    pub eos: BTreeSet<u32>,
    pub bos: Option<u32>,
    /// `bos_token`, `eos_token`, ... with the names used in templates.
    pub names: BTreeMap<String, String>,
}

impl SpecialTokens {
    /// Reads the files for a vocabulary of `len` ids. Unknown values are ignored, as in other loaders.
    pub(super) fn read(
        len: usize,
        token_id: impl Fn(&str) -> Option<u32>,
        config: Option<&Value>,
        generation_config: Option<&Value>,
        tokenizer_config: Option<&Value>,
    ) -> SpecialTokens {
        let mut special = SpecialTokens::default();
        let text_config = config.and_then(|config| config.get("text_config"));
        for file in [generation_config, config, text_config].into_iter().flatten() {
            special.eos.extend(ids(file.get("eos_token_id")));
            special.bos = special.bos.or_else(|| ids(file.get("bos_token_id")).first().copied());
        }
        for (key, value) in tokenizer_config.and_then(Value::as_object).into_iter().flatten() {
            // A token is written as its text or as an object with `content`.
            let text = value.as_str().or_else(|| value.get("content").and_then(Value::as_str));
            if let (true, Some(text)) = (key.ends_with("_token"), text) {
                special.names.insert(key.clone(), text.to_owned());
            }
        }
        let named = |key: &str| special.names.get(key).and_then(|text| token_id(text));
        special.eos.extend(named("eos_token"));
        special.bos = special.bos.or_else(|| named("bos_token"));
        special.eos.retain(|&id| (id as usize) < len);
        special.bos = special.bos.filter(|&id| (id as usize) < len);
        special
    }
}

fn ids(value: Option<&Value>) -> Vec<u32> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match value {
        Some(Value::Array(values)) => values.iter().filter_map(id).collect(),
        Some(value) => id(value).into_iter().collect(),
        None => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::text::Tokenizer;

    #[test]
    fn every_file_counts() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/models/lode-demo/tokenizer.json");
        let tokenizer = Tokenizer::from_json(&std::fs::read(path).unwrap()).unwrap();
        let special = tokenizer.special_tokens(
            Some(&json!({"eos_token_id": 7, "bos_token_id": 0})),
            Some(&json!({"eos_token_id": [8, 9, 99_999_999, -1, "x"]})),
            Some(
                &json!({"eos_token": {"content": "<|im_end|>"}, "bos_token": "<|endoftext|>", "pad_token": null}),
            ),
        );
        assert_eq!(special.eos, BTreeSet::from([2, 7, 8, 9]));
        assert_eq!(special.bos, Some(0));
        assert_eq!(special.names["bos_token"], "<|endoftext|>");
        assert!(!special.names.contains_key("pad_token"));
        let none = tokenizer.special_tokens(None, None, None);
        assert!(none.eos.is_empty() && none.bos.is_none());
    }
}

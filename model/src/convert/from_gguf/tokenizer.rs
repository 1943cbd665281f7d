//! Writes the tokenizer.json and tokenizer_config.json of a GGUF's vocabulary: the reverse of
//! `super::super::vocabulary`. The ids are those that the vocabulary gives in llama.cpp; a vocabulary for which
//! that is not possible is refused.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;
use serde_json::{Map, Value as Json, json};

use super::pieces;
use crate::convert::error::ConvertError;
use crate::convert::pieces::{BLANK, parse_byte_token};
use crate::convert::vocabulary::{BYTE, CONTROL, MAX_ROWS, NORMAL, UNKNOWN, UNUSED, USER_DEFINED};
use crate::gguf::pre_tokeniser::{self, GPT_2};
use crate::gguf::{Array, END_TOKENS, Metadata, Strings, Value};

/// The longest list of texts, in bytes.
const MAX_TEXT_BYTES: usize = 24 << 20;

/// The longest tokenizer.json, in bytes; longer ones are not read.
const MAX_FILE_BYTES: usize = 64 << 20;

/// The roles of tokens: the key of the GGUF, and the name in the JSON files.
const ROLES: [(&str, &str); 6] = [
    ("bos", "bos"),
    ("eos", "eos"),
    ("unknown", "unk"),
    ("seperator", "sep"),
    ("padding", "pad"),
    ("mask", "mask"),
];

pub(super) struct ConvertedTokenizer {
    /// The bytes of tokenizer.json.
    pub(super) tokenizer: Vec<u8>,
    /// tokenizer_config.json.
    pub(super) config: Json,
    /// `bos_token_id` and the like, for config.json and generation_config.json.
    pub(super) ids: BTreeMap<&'static str, u32>,
    /// The tokens that end a response; the first is `eos_token_id`.
    pub(super) ends: Vec<u32>,
}

#[derive(Serialize)]
struct TokenizerFile<'a> {
    version: &'static str,
    truncation: Json,
    padding: Json,
    added_tokens: Vec<AddedToken<'a>>,
    normalizer: Json,
    pre_tokenizer: Json,
    post_processor: Json,
    decoder: Json,
    model: Model<'a>,
}

#[derive(Serialize)]
struct AddedToken<'a> {
    id: u32,
    content: &'a str,
    single_word: bool,
    lstrip: bool,
    rstrip: bool,
    normalized: bool,
    special: bool,
}

#[derive(Serialize)]
struct Model<'a> {
    r#type: &'static str,
    dropout: Json,
    unk_token: Option<&'a str>,
    continuing_subword_prefix: Json,
    end_of_word_suffix: Json,
    fuse_unk: bool,
    byte_fallback: bool,
    ignore_merges: bool,
    #[serde(serialize_with = "in_order")]
    vocab: Vec<(&'a str, u32)>,
    merges: Vec<String>,
}

fn in_order<S: serde::Serializer>(vocab: &[(&str, u32)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(vocab.iter().copied())
}

/// The tokens of the GGUF.
struct Tokens<'a> {
    texts: Vec<&'a str>,
    kinds: Vec<i32>,
    /// Of several tokens with the same text, the last.
    ids: HashMap<&'a str, u32>,
}

/// The parts of the files that depend on the kind of vocabulary.
struct Parts {
    byte_fallback: bool,
    ignore_merges: bool,
    merges: Vec<String>,
    normalizer: Json,
    pre_tokenizer: Json,
    decoder: Json,
    add_bos: bool,
    /// The ids of the roles without a key.
    default_ids: &'static [(&'static str, u32)],
}

pub(super) fn write(
    metadata: &Metadata,
    vocab_size: u64,
    context_length: u64,
) -> Result<ConvertedTokenizer, ConvertError> {
    let refused = |reason: String| ConvertError::Vocabulary { reason };
    let tokens = Tokens::read(metadata, vocab_size)?;
    let kind = metadata.str("tokenizer.ggml.model").ok_or_else(|| missing("model"))?;
    let parts = match kind {
        "gpt2" => byte_level(metadata, &tokens),
        "llama" => sentence_pieces(metadata, &tokens),
        kind => {
            let kind: String = kind.chars().take(40).collect();
            Err(refused(format!("its kind is `{kind}`, expected gpt2 or llama")))
        }
    }?;
    let role = |key: &str| {
        let default = parts.default_ids.iter().find(|(role, _)| *role == key).map(|(_, id)| *id);
        let id =
            metadata.u64(&format!("tokenizer.ggml.{key}_token_id")).and_then(|id| u32::try_from(id).ok());
        let is_token = |id: &u32| (*id as usize) < tokens.texts.len();
        id.filter(is_token).or(default.filter(is_token))
    };
    let flag = |key: &str| metadata.bool(&format!("tokenizer.ggml.{key}"));
    let adds = |key: &str, role: Option<u32>, default: bool| role.filter(|_| flag(key).unwrap_or(default));
    let (begin, end) =
        (adds("add_bos_token", role("bos"), parts.add_bos), adds("add_eos_token", role("eos"), false));
    let unk_token = role("unknown").filter(|_| parts.byte_fallback);
    let file = TokenizerFile {
        version: "1.0",
        truncation: Json::Null,
        padding: Json::Null,
        added_tokens: tokens.added(metadata),
        normalizer: parts.normalizer,
        pre_tokenizer: parts.pre_tokenizer,
        post_processor: post_processor(&tokens, begin, end),
        decoder: parts.decoder,
        model: Model {
            r#type: "BPE",
            dropout: Json::Null,
            unk_token: unk_token.map(|id| tokens.texts[id as usize]),
            continuing_subword_prefix: Json::Null,
            end_of_word_suffix: Json::Null,
            fuse_unk: parts.byte_fallback,
            byte_fallback: parts.byte_fallback,
            ignore_merges: parts.ignore_merges,
            vocab: tokens.vocab(),
            merges: parts.merges,
        },
    };
    let tokenizer = serde_json::to_vec(&file)
        .map_err(|source| ConvertError::Json { path: "tokenizer.json".to_owned(), source })?;
    if tokenizer.len() > MAX_FILE_BYTES {
        return Err(refused(format!("it would have {} bytes, expected at most 64 MiB", tokenizer.len())));
    }

    let mut config = Map::new();
    let mut ids = BTreeMap::new();
    config.insert("tokenizer_class".to_owned(), "PreTrainedTokenizerFast".into());
    config.insert("clean_up_tokenization_spaces".to_owned(), false.into());
    config.insert("model_max_length".to_owned(), context_length.into());
    // Otherwise transformers adds token types, which generation refuses.
    config.insert("model_input_names".to_owned(), json!(["input_ids", "attention_mask"]));
    config.insert("add_bos_token".to_owned(), begin.is_some().into());
    if flag("add_eos_token").is_some() {
        config.insert("add_eos_token".to_owned(), end.is_some().into());
    }
    for (key, name) in ROLES {
        let Some(id) = role(key) else { continue };
        config.insert(format!("{name}_token"), tokens.texts[id as usize].into());
        let key = match name {
            "bos" => "bos_token_id",
            "eos" => "eos_token_id",
            "pad" => "pad_token_id",
            _ => continue,
        };
        ids.insert(key, id);
    }
    let also = ["eot", "eom"].into_iter().filter_map(role);
    let by_text = END_TOKENS.iter().filter_map(|text| tokens.ids.get(text).copied());
    let mut ends: Vec<u32> = role("eos").into_iter().collect();
    for id in also.chain(by_text) {
        if !ends.contains(&id) {
            ends.push(id);
        }
    }
    if let Some(template) = chat_template(metadata) {
        config.insert("chat_template".to_owned(), template);
    }
    Ok(ConvertedTokenizer { tokenizer, config: Json::Object(config), ids, ends })
}

fn missing(key: &str) -> ConvertError {
    ConvertError::MissingGgufKey { key: format!("tokenizer.ggml.{key}") }
}

fn invalid(key: &str, found: impl ToString, expected: &'static str) -> ConvertError {
    ConvertError::GgufKey { key: format!("tokenizer.ggml.{key}"), found: found.to_string(), expected }
}

/// Returns a list of texts, with a limit for their bytes.
fn strings<'a>(metadata: &'a Metadata, key: &str) -> Result<&'a Strings, ConvertError> {
    let value = metadata.get(&format!("tokenizer.ggml.{key}")).ok_or_else(|| missing(key))?;
    let list = value.as_array().and_then(Array::as_strings);
    let list = list.ok_or_else(|| invalid(key, "of another type", "a list of strings"))?;
    if list.total_bytes() > MAX_TEXT_BYTES {
        let found = format!("of {} bytes", list.total_bytes());
        return Err(invalid(key, found, "at most 24 MiB of text"));
    }
    Ok(list)
}

impl<'a> Tokens<'a> {
    fn read(metadata: &'a Metadata, vocab_size: u64) -> Result<Tokens<'a>, ConvertError> {
        let list = strings(metadata, "tokens")?;
        if list.len() as u64 != vocab_size || list.is_empty() || vocab_size > MAX_ROWS {
            let found = format!("of {} tokens, and `token_embd.weight` of {vocab_size} rows", list.len());
            return Err(invalid("tokens", found, "a token for each row, and at most 4194304"));
        }
        let text = |bytes: &'a [u8]| std::str::from_utf8(bytes);
        let texts: Result<Vec<&str>, _> = list.iter().map(text).collect();
        let texts = texts.map_err(|_| invalid("tokens", "with invalid text", "UTF-8"))?;
        let types = metadata.get("tokenizer.ggml.token_type").map(|types| {
            let types = types.as_array().filter(|types| types.len() >= texts.len());
            types.ok_or_else(|| invalid("token_type", "of another length", "a number for each token"))
        });
        let types = types.transpose()?;
        let kind = |at: usize| {
            let kind =
                types.and_then(|types| types.get(at)?.as_i64()).and_then(|kind| i32::try_from(kind).ok());
            match kind {
                // Files often have another type for a token that ends a response.
                _ if END_TOKENS.contains(&texts[at]) => CONTROL,
                Some(0) => UNUSED,
                Some(kind @ (UNKNOWN | CONTROL | USER_DEFINED | UNUSED | BYTE)) => kind,
                _ => NORMAL,
            }
        };
        let kinds = (0..texts.len()).map(kind).collect();
        let ids = texts.iter().copied().zip(0..).collect();
        Ok(Tokens { texts, kinds, ids })
    }

    /// Every token once, in the order of the ids. Placeholders of ids without a token are left out.
    fn vocab(&self) -> Vec<(&'a str, u32)> {
        let all = self.texts.iter().copied().zip(0u32..);
        let is_last = |(text, id): &(&str, u32)| self.ids.get(text) == Some(id);
        let is_placeholder =
            |(text, id): &(&str, u32)| self.kinds[*id as usize] == UNUSED && *text == format!("[PAD{id}]");
        all.filter(|one| is_last(one) && !is_placeholder(one)).collect()
    }

    /// The tokens that are cut out of a text before it is split.
    fn added(&self, metadata: &Metadata) -> Vec<AddedToken<'a>> {
        // Phi-3's tokens include the blanks after them, which a GGUF does not say. As in llama.cpp, its name does.
        let name = metadata.str("general.name").unwrap_or_default().to_lowercase();
        let takes_blanks = name.contains("phi-3") || name.contains("phi3");
        let added = self.vocab().into_iter().filter_map(|(content, id)| {
            let kind = self.kinds[id as usize];
            let is_added = matches!(kind, UNKNOWN | CONTROL | USER_DEFINED) && !content.is_empty();
            is_added.then(|| AddedToken {
                id,
                content,
                single_word: false,
                lstrip: false,
                rstrip: takes_blanks && !["<unk>", "<s>", "<|endoftext|>"].contains(&content),
                normalized: false,
                special: kind != USER_DEFINED,
            })
        });
        added.collect()
    }
}

/// Byte-level BPE: the pre-tokeniser has a name, and the merges are a list.
fn byte_level(metadata: &Metadata, tokens: &Tokens) -> Result<Parts, ConvertError> {
    let name = metadata.str("tokenizer.ggml.pre").unwrap_or_default();
    let pre = pre_tokeniser::find(name).ok_or_else(|| ConvertError::Vocabulary {
        reason: format!(
            "its pre-tokeniser is `{}`, which is unknown",
            name.chars().take(40).collect::<String>()
        ),
    })?;
    let bytes = |splits: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": splits});
    let sequence = |steps: Vec<Json>| json!({"type": "Sequence", "pretokenizers": steps});
    let split = |pattern: &&str| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
    let pre_tokenizer = match pre.patterns {
        [GPT_2] => bytes(true),
        [r"\p{N}", GPT_2] => {
            sequence(vec![json!({"type": "Digits", "individual_digits": true}), bytes(true)])
        }
        patterns => sequence(patterns.iter().map(split).chain([bytes(false)]).collect()),
    };
    // Merges whose parts or whose result are no tokens have no effect. A repeated one has its first place.
    let mut seen = std::collections::HashSet::new();
    let is_effective = |merge: &&str| match merge.split_once(' ') {
        Some((left, right)) => {
            let is_token = |text: &str| tokens.ids.contains_key(text);
            !right.contains(' ') && is_token(left) && is_token(right) && is_token(&format!("{left}{right}"))
        }
        None => false,
    };
    let list = strings(metadata, "merges")?.iter();
    let merges = list.filter_map(|merge| std::str::from_utf8(merge).ok()).filter(is_effective);
    let merges = merges.filter(|merge| seen.insert(*merge)).map(str::to_owned).collect();
    Ok(Parts {
        byte_fallback: false,
        ignore_merges: pre.ignore_merges,
        merges,
        normalizer: Json::Null,
        pre_tokenizer,
        decoder: json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}),
        add_bos: pre.add_bos,
        default_ids: &[],
    })
}

/// SentencePiece's BPE over characters, with scores and bytes for unknown characters.
fn sentence_pieces(metadata: &Metadata, tokens: &Tokens) -> Result<Parts, ConvertError> {
    let refused = |reason: String| ConvertError::Vocabulary { reason };
    let is_byte = |byte: u8| tokens.ids.contains_key(format!("<0x{byte:02X}>").as_str());
    if let Some(byte) = (0..=u8::MAX).find(|byte| !is_byte(*byte)) {
        return Err(refused(format!("it has no token `<0x{byte:02X}>` for unknown characters")));
    }
    // A merge is of two tokens, so a token has to be made of them.
    let is_unknown = |c: char| !tokens.ids.contains_key(c.encode_utf8(&mut [0; 4]) as &str);
    for (text, kind) in tokens.texts.iter().zip(&tokens.kinds) {
        if *kind == NORMAL
            && parse_byte_token(text).is_none()
            && let Some(c) = text.chars().find(|c| is_unknown(*c))
        {
            let token: String = text.chars().take(32).collect();
            return Err(refused(format!("`{token}` is a token, but its character `{c}` is not")));
        }
    }
    let scores = metadata.get("tokenizer.ggml.scores").and_then(Value::as_array);
    let scores = scores.filter(|scores| scores.len() >= tokens.texts.len());
    let scores =
        scores.ok_or_else(|| invalid("scores", "missing or of another length", "a number for each token"))?;
    let score = |id: usize| match scores.get(id).and_then(|score| score.as_f64()) {
        // Makes -0 and 0 the same score.
        Some(score) if score.is_finite() => Ok(score as f32 + 0.0),
        _ => Err(invalid("scores", "without a finite number", "a number for each token")),
    };
    let scores: Vec<f32> = (0..tokens.texts.len()).map(score).collect::<Result<_, _>>()?;
    let merges = pieces::merges(&tokens.ids, &scores).map_err(refused)?;
    let adds_blank = metadata.bool("tokenizer.ggml.add_space_prefix").unwrap_or(true);
    let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": BLANK});
    let restore = json!({"type": "Replace", "pattern": {"String": BLANK}, "content": " "});
    let mut decoders = vec![restore, json!({"type": "ByteFallback"}), json!({"type": "Fuse"})];
    let normalizer = match adds_blank {
        true => {
            decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
            json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": BLANK}, replace]})
        }
        false => replace,
    };
    Ok(Parts {
        byte_fallback: true,
        ignore_merges: false,
        merges,
        normalizer,
        pre_tokenizer: Json::Null,
        decoder: json!({"type": "Sequence", "decoders": decoders}),
        add_bos: true,
        default_ids: &[("bos", 1), ("eos", 2), ("unknown", 0)],
    })
}

/// Adds special tokens around a text, and around each of two texts.
fn post_processor(tokens: &Tokens, begin: Option<u32>, end: Option<u32>) -> Json {
    if begin.or(end).is_none() {
        return Json::Null;
    }
    let special = |id: Option<u32>, of: u32| {
        let token = id.map(|id| tokens.texts[id as usize]);
        token.map(|token| json!({"SpecialToken": {"id": token, "type_id": of}}))
    };
    let part = |name: &str, of: u32| {
        let text = json!({"Sequence": {"id": name, "type_id": of}});
        [special(begin, of), Some(text), special(end, of)].into_iter().flatten().collect::<Vec<Json>>()
    };
    let described = |id: u32| {
        let token = tokens.texts[id as usize];
        (token.to_owned(), json!({"id": token, "ids": [id], "tokens": [token]}))
    };
    let special_tokens: Map<String, Json> = begin.into_iter().chain(end).map(described).collect();
    let pair = [part("A", 0), part("B", 1)].concat();
    json!({
        "type": "TemplateProcessing",
        "single": part("A", 0),
        "pair": pair,
        "special_tokens": special_tokens,
    })
}

/// The chat template, or a list of them if they have names.
fn chat_template(metadata: &Metadata) -> Option<Json> {
    let default = metadata.str("tokenizer.chat_template");
    let named = metadata.iter().filter_map(|(key, value)| {
        let name = key.strip_prefix("tokenizer.chat_template.")?;
        Some(json!({"name": name, "template": value.as_str()?}))
    });
    let mut named: Vec<Json> = named.collect();
    match (default, named.is_empty()) {
        (default, true) => default.map(Json::from),
        (default, false) => {
            if let Some(template) = default {
                named.insert(0, json!({"name": "default", "template": template}));
            }
            Some(Json::Array(named))
        }
    }
}

//! Converts a checkpoint's tokenizer.json to the tokenizer keys of a GGUF. Supported are byte-level BPE with
//! a pre-tokeniser that llama.cpp knows by name, and SentencePiece-style pieces. Any other tokenizer is
//! refused, because a wrong split silently gives wrong ids.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::Deserialize;
use serde_json::Value as Json;

use super::error::ConvertError;
use super::pieces;
use crate::gguf::pre_tokeniser::{GPT_4O, LLAMA_3, QWEN_2, QWEN_35, TEKKEN};
use crate::gguf::{Array, Metadata, Strings};

const TOKENIZER: &str = "tokenizer.json";

/// The values of `tokenizer.ggml.token_type`.
pub(super) const NORMAL: i32 = 1;
pub(super) const UNKNOWN: i32 = 2;
pub(super) const CONTROL: i32 = 3;
pub(super) const USER_DEFINED: i32 = 4;
pub(super) const UNUSED: i32 = 5;
pub(super) const BYTE: i32 = 6;

/// The JSON files that describe the tokenizer; absent ones are null.
pub(super) struct Files {
    pub(super) tokenizer: Vec<u8>,
    pub(super) tokenizer_config: Json,
    pub(super) generation_config: Json,
    pub(super) config: Json,
    /// The text of `chat_template.jinja`.
    pub(super) chat_template: Option<String>,
}

#[derive(Deserialize)]
struct Tokenizer {
    model: Model,
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    #[serde(default)]
    normalizer: Json,
    #[serde(default)]
    pre_tokenizer: Json,
    #[serde(default)]
    post_processor: Json,
}

#[derive(Deserialize)]
struct Model {
    #[serde(rename = "type", default)]
    kind: Option<String>,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    unk_token: Option<String>,
    #[serde(default)]
    ignore_merges: bool,
    #[serde(default)]
    vocab: Json,
    #[serde(default)]
    merges: Vec<Merge>,
}

/// `"a b"` in older files, `["a", "b"]` in newer ones.
#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Text(String),
    Pair(String, String),
}

#[derive(Deserialize)]
struct AddedToken {
    id: u64,
    content: String,
    #[serde(default)]
    special: bool,
}

/// Writes the tokenizer keys. `rows` is the number of ids in the embedding; ids without a token get a
/// placeholder.
pub(super) fn write(metadata: &mut Metadata, files: &Files, rows: u64) -> Result<(), ConvertError> {
    let parsed: Tokenizer = serde_json::from_slice(&files.tokenizer)
        .map_err(|source| ConvertError::Json { path: TOKENIZER.to_owned(), source })?;
    let refused = |reason: String| ConvertError::Tokenizer { reason };
    if let Some(kind) = parsed.model.kind.as_deref().filter(|kind| *kind != "BPE") {
        return Err(refused(format!("its model is `{kind}`, expected BPE")));
    }
    let (tokens, types) = tokens(&parsed, rows)?;
    let ids: HashMap<&str, u64> =
        parsed.added_tokens.iter().map(|token| (token.content.as_str(), token.id)).collect();

    if parsed.model.byte_fallback {
        write_pieces(metadata, &parsed, tokens, types).map_err(refused)?;
    } else {
        let pre = pre_tokeniser(&parsed.pre_tokenizer, parsed.model.ignore_merges)
            .ok_or_else(|| refused("llama.cpp has no name for its pre-tokeniser".to_owned()))?;
        metadata.set("tokenizer.ggml.model", "gpt2");
        metadata.set("tokenizer.ggml.pre", pre);
        metadata.set("tokenizer.ggml.tokens", Array::String(tokens));
        metadata.set("tokenizer.ggml.token_type", Array::I32(types));
        let merges = parsed.model.merges.iter();
        let merges: Strings = merges
            .map(|merge| match merge {
                Merge::Text(text) => text.clone(),
                Merge::Pair(left, right) => format!("{left} {right}"),
            })
            .collect();
        metadata.set("tokenizer.ggml.merges", Array::String(merges));
    }
    for (role, key) in [
        ("bos", "bos_token_id"),
        ("eos", "eos_token_id"),
        ("unk", "unknown_token_id"),
        ("sep", "seperator_token_id"),
        ("pad", "padding_token_id"),
        ("mask", "mask_token_id"),
    ] {
        let id = special_id(files, &ids, role).filter(|id| *id < rows);
        if let Some(id) = id.and_then(|id| u32::try_from(id).ok()) {
            metadata.set(format!("tokenizer.ggml.{key}"), id);
        }
    }
    let begins = files.tokenizer_config.get("add_bos_token").and_then(Json::as_bool);
    metadata.set(
        "tokenizer.ggml.add_bos_token",
        begins.unwrap_or_else(|| adds_begin_token(&parsed.post_processor)),
    );
    if let Some(ends) = files.tokenizer_config.get("add_eos_token").and_then(Json::as_bool) {
        metadata.set("tokenizer.ggml.add_eos_token", ends);
    }
    for (name, template) in chat_templates(files) {
        let key = match name {
            None => "tokenizer.chat_template".to_owned(),
            Some(name) => format!("tokenizer.chat_template.{name}"),
        };
        metadata.set(key, template);
    }
    Ok(())
}

/// Writes the keys of a vocabulary of pieces with scores.
fn write_pieces(
    metadata: &mut Metadata,
    parsed: &Tokenizer,
    tokens: Strings,
    mut types: Vec<i32>,
) -> Result<(), String> {
    let adds_blank = pieces::adds_blank(&parsed.normalizer, &parsed.pre_tokenizer)?;
    if parsed.model.ignore_merges {
        return Err(
            "it sets `ignore_merges`, which llama.cpp does not support for such a vocabulary".to_owned()
        );
    }
    let texts: Vec<&str> = tokens.iter().map(|text| std::str::from_utf8(text).unwrap_or_default()).collect();
    // 1. The type of each token.
    let mut bytes = HashSet::new();
    for (text, kind) in texts.iter().zip(&mut types) {
        if Some(*text) == parsed.model.unk_token.as_deref() {
            *kind = UNKNOWN;
        } else if let Some(byte) = pieces::parse_byte_token(text).filter(|_| *kind == NORMAL) {
            *kind = BYTE;
            bytes.insert(byte);
        }
    }
    if let Some(byte) = (0..=u8::MAX).find(|byte| !bytes.contains(byte)) {
        return Err(format!("it falls back to bytes, but has no token `<0x{byte:02X}>`"));
    }
    // 2. The scores that the merges give to the normal tokens.
    let normal = texts.iter().zip(&types).filter(|(_, kind)| **kind == NORMAL);
    let normal: HashSet<&str> = normal.map(|(text, _)| *text).collect();
    let pair = |merge: &'_ Merge| match merge {
        Merge::Text(text) => text.split_once(' ').map(|(left, right)| (left.to_owned(), right.to_owned())),
        Merge::Pair(left, right) => Some((left.clone(), right.clone())),
    };
    let merges: Vec<(String, String)> = parsed.model.merges.iter().filter_map(pair).collect();
    let merges: Vec<(&str, &str)> =
        merges.iter().map(|(left, right)| (left.as_str(), right.as_str())).collect();
    let scores = pieces::merge_scores(&merges, &normal)?;
    // 3. Pieces that no merge produces score lowest. Tokens that are not pieces have no score.
    let last = -(scores.len() as f32);
    let scores = texts.iter().zip(&types).map(|(text, kind)| match kind {
        &NORMAL => scores.get(*text).copied().unwrap_or(last),
        _ => 0.0,
    });
    metadata.set("tokenizer.ggml.model", "llama");
    metadata.set("tokenizer.ggml.pre", "default");
    metadata.set("tokenizer.ggml.scores", Array::F32(scores.collect()));
    metadata.set("tokenizer.ggml.tokens", Array::String(tokens));
    metadata.set("tokenizer.ggml.token_type", Array::I32(types));
    metadata.set("tokenizer.ggml.add_space_prefix", adds_blank);
    Ok(())
}

/// The largest embedding, in rows. Every row needs a token in memory, and a small file can declare billions.
pub(super) const MAX_ROWS: u64 = 4_194_304;

/// Returns the token and the type of every id.
fn tokens(parsed: &Tokenizer, rows: u64) -> Result<(Strings, Vec<i32>), ConvertError> {
    let refused = |reason: String| ConvertError::Tokenizer { reason };
    if rows > MAX_ROWS {
        return Err(refused(format!("the embedding has {rows} rows, expected at most {MAX_ROWS}")));
    }
    let vocab = parsed.model.vocab.as_object().ok_or_else(|| refused("it has no vocabulary".to_owned()))?;
    let mut by_id: BTreeMap<u64, (&str, i32)> = BTreeMap::new();
    for (token, id) in vocab {
        let id = id.as_u64().filter(|id| *id < rows);
        let id =
            id.ok_or_else(|| refused(format!("token `{token}` has no row in the embedding of {rows}")))?;
        if by_id.insert(id, (token, NORMAL)).is_some() {
            return Err(refused(format!("two tokens have id {id}")));
        }
    }
    for AddedToken { id, content, special } in &parsed.added_tokens {
        // Published checkpoints add tokens that have no row; they can never be used.
        if *id < rows {
            by_id.insert(*id, (content, if *special { CONTROL } else { USER_DEFINED }));
        }
    }
    let mut tokens = Strings::default();
    let mut types = Vec::new();
    for id in 0..rows {
        match by_id.get(&id) {
            Some((token, kind)) => {
                tokens.push(token);
                types.push(*kind);
            }
            None => {
                tokens.push(format!("[PAD{id}]"));
                types.push(UNUSED);
            }
        }
    }
    Ok((tokens, types))
}

/// Returns the id of a special token: by its name in tokenizer_config.json, else by its number in
/// config.json.
fn special_id(files: &Files, ids: &HashMap<&str, u64>, role: &str) -> Option<u64> {
    let named = files.tokenizer_config.get(format!("{role}_token"));
    let named = named.and_then(|token| token.as_str().or_else(|| token.get("content")?.as_str()));
    let number = |file: &Json| {
        let value = file.get(format!("{role}_token_id"))?;
        value.as_u64().or_else(|| value.get(0)?.as_u64())
    };
    named
        .and_then(|name| ids.get(name).copied())
        .or_else(|| number(&files.config))
        .or_else(|| number(&files.generation_config))
}

/// Whether a post-processor puts a special token before the text.
fn adds_begin_token(post_processor: &Json) -> bool {
    let kind = post_processor.get("type").and_then(Json::as_str);
    let parts = |key: &str| post_processor.get(key).and_then(Json::as_array);
    match kind {
        Some("TemplateProcessing") => parts("single")
            .and_then(|single| single.first())
            .is_some_and(|first| first.get("SpecialToken").is_some()),
        Some("Sequence") => parts("processors").is_some_and(|all| all.iter().any(adds_begin_token)),
        _ => false,
    }
}

/// Returns the chat templates with their names; the one without a name is the default.
fn chat_templates(files: &Files) -> Vec<(Option<String>, String)> {
    let text = |value: &Json| value.as_str().map(str::to_owned);
    let mut templates = Vec::new();
    match files.tokenizer_config.get("chat_template") {
        Some(Json::String(template)) => templates.push((None, template.clone())),
        Some(Json::Array(named)) => {
            for one in named {
                if let (Some(name), Some(template)) =
                    (one.get("name").and_then(text), one.get("template").and_then(text))
                {
                    templates.push((Some(name).filter(|name| name != "default"), template));
                }
            }
        }
        _ => {}
    }
    if let Some(template) = &files.chat_template {
        templates.retain(|(name, _)| name.is_some());
        templates.push((None, template.clone()));
    }
    templates
}

/// One step of a pre-tokeniser.
#[derive(Debug, PartialEq)]
enum Step<'a> {
    Split(&'a str),
    Digits,
    /// Maps bytes to letters, optionally after a split by GPT-2's pattern.
    Bytes {
        splits: bool,
    },
}

fn collect_steps<'a>(pre_tokenizer: &'a Json, steps_so_far: &mut Vec<Step<'a>>) -> Option<()> {
    let is = |key: &str| pre_tokenizer.get(key).and_then(Json::as_bool);
    match pre_tokenizer.get("type")?.as_str()? {
        "Sequence" => {
            pre_tokenizer
                .get("pretokenizers")?
                .as_array()?
                .iter()
                .try_for_each(|one| collect_steps(one, steps_so_far))?;
        }
        "Split" => {
            let isolated = pre_tokenizer.get("behavior")?.as_str()? == "Isolated";
            let pattern = pre_tokenizer.get("pattern")?.get("Regex")?.as_str()?;
            // Some files isolate the matches, others remove the text between inverted matches; the result is
            // the same.
            let same = isolated || is("invert") == Some(true);
            steps_so_far.push(Step::Split(same.then_some(pattern)?));
        }
        "Digits" => steps_so_far.push((is("individual_digits") == Some(true)).then_some(Step::Digits)?),
        "ByteLevel" if is("add_prefix_space") != Some(true) => {
            steps_so_far.push(Step::Bytes { splits: is("use_regex").unwrap_or(true) });
        }
        _ => return None,
    }
    Some(())
}

/// Returns llama.cpp's name for a pre-tokeniser (`src/llama-vocab.cpp`), matched by its steps rather than by
/// its name.
fn pre_tokeniser(pre_tokenizer: &Json, ignore_merges: bool) -> Option<&'static str> {
    let mut found = Vec::new();
    collect_steps(pre_tokenizer, &mut found)?;
    match found.as_slice() {
        [Step::Bytes { splits: true }] => Some("gpt-2"),
        [Step::Digits, Step::Bytes { splits: true }] => Some("smollm"),
        [Step::Split(pattern), Step::Bytes { splits: false }] => match *pattern {
            // Both split alike; only the first looks for a whole token before it applies merges.
            LLAMA_3 if ignore_merges => Some("llama-bpe"),
            LLAMA_3 => Some("smaug-bpe"),
            QWEN_2 => Some("qwen2"),
            QWEN_35 => Some("qwen35"),
            TEKKEN => Some("tekken"),
            GPT_4O => Some("gpt-4o"),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn split(pattern: &str) -> Json {
        json!({"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        ]})
    }

    #[test]
    fn pre_tokenisers_are_known_by_what_they_do() {
        let bytes = json!({"type": "ByteLevel", "add_prefix_space": false});
        let digits = json!({"type": "Digits", "individual_digits": true});
        for (pre_tokenizer, ignore_merges, expect) in [
            (split(QWEN_2), false, Some("qwen2")),
            (split(LLAMA_3), true, Some("llama-bpe")),
            (split(LLAMA_3), false, Some("smaug-bpe")),
            (split(TEKKEN), false, Some("tekken")),
            (split(r"\p{L}+"), false, None),
            (bytes.clone(), false, Some("gpt-2")),
            (json!({"type": "Sequence", "pretokenizers": [digits, bytes]}), false, Some("smollm")),
            (json!({"type": "Metaspace"}), false, None),
            (json!({"type": "ByteLevel", "add_prefix_space": true}), false, None),
            (Json::Null, false, None),
        ] {
            assert_eq!(pre_tokeniser(&pre_tokenizer, ignore_merges), expect, "{pre_tokenizer}");
        }
    }

    fn written(tokenizer: Json, tokenizer_config: Json, rows: u64) -> Result<Metadata, String> {
        let files = Files {
            tokenizer: tokenizer.to_string().into_bytes(),
            tokenizer_config,
            generation_config: json!({"pad_token_id": [1]}),
            config: json!({"bos_token_id": 0, "eos_token_id": 2}),
            chat_template: None,
        };
        let mut metadata = Metadata::new();
        write(&mut metadata, &files, rows).map(|()| metadata).map_err(|error| error.to_string())
    }

    #[test]
    fn embeddings_with_too_many_rows_are_refused() {
        let tokenizer = json!({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}});
        let error = written(tokenizer, Json::Null, MAX_ROWS + 1).unwrap_err();
        assert!(error.contains("4194305 rows, expected at most 4194304"), "{error}");
    }

    #[test]
    fn ids_kinds_and_templates() {
        let tokenizer = json!({
            "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": [["a", "b"], "b a"]},
            "added_tokens": [{"id": 2, "content": "<s>", "special": true}, {"id": 3, "content": "<t>"},
                             {"id": 9, "content": "<beyond>"}],
            "pre_tokenizer": split(QWEN_2),
            "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}]},
        });
        let config = json!({"bos_token": {"content": "<s>"}, "chat_template": [
            {"name": "default", "template": "D"}, {"name": "tools", "template": "T"}]});
        let metadata = written(tokenizer, config, 5).unwrap();
        let strings = |key: &str| -> Vec<String> {
            let strings = metadata.get(key).and_then(|value| value.as_array()?.as_strings()).unwrap();
            strings.iter().map(|token| String::from_utf8(token.to_vec()).unwrap()).collect()
        };
        assert_eq!(strings("tokenizer.ggml.tokens"), ["a", "b", "<s>", "<t>", "[PAD4]"]);
        assert_eq!(strings("tokenizer.ggml.merges"), ["a b", "b a"]);
        assert_eq!(
            metadata.get("tokenizer.ggml.token_type").unwrap().as_array(),
            Some(&Array::I32(vec![NORMAL, NORMAL, CONTROL, USER_DEFINED, UNUSED]))
        );
        let id = |key: &str| metadata.u64(&format!("tokenizer.ggml.{key}_token_id"));
        assert_eq!((id("bos"), id("eos"), id("padding"), id("unknown")), (Some(2), Some(2), Some(1), None));
        assert_eq!(metadata.bool("tokenizer.ggml.add_bos_token"), Some(true));
        assert_eq!(metadata.str("tokenizer.chat_template"), Some("D"));
        assert_eq!(metadata.str("tokenizer.chat_template.tools"), Some("T"));
    }

    #[test]
    fn pieces_have_scores() {
        let mut vocab = serde_json::Map::new();
        for token in
            ["<unk>", "<s>"].map(str::to_owned).into_iter().chain((0..=255u8).map(|b| format!("<0x{b:02X}>")))
        {
            let id = vocab.len();
            vocab.insert(token, json!(id));
        }
        for token in ["\u{2581}", "a", "b", "\u{2581}a", "ab", "\u{2581}ab"] {
            let id = vocab.len();
            vocab.insert(token.to_owned(), json!(id));
        }
        let tokenizer = json!({
            "model": {"type": "BPE", "byte_fallback": true, "unk_token": "<unk>", "vocab": vocab,
                "merges": ["\u{2581} a", ["a", "b"], "\u{2581}a b", "\u{2581} ab"]},
            "added_tokens": [{"id": 0, "content": "<unk>", "special": true}, {"id": 1, "content": "<s>", "special": true}],
            "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u{2581}"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"}]},
        });
        let metadata = written(tokenizer, json!({"add_bos_token": true}), 265).unwrap();
        assert_eq!(metadata.str("tokenizer.ggml.model"), Some("llama"));
        assert_eq!(metadata.bool("tokenizer.ggml.add_space_prefix"), Some(true));
        let Some(Array::F32(scores)) = metadata.get("tokenizer.ggml.scores").unwrap().as_array() else {
            panic!("scores are numbers")
        };
        assert_eq!(scores[256..], [0.0, 0.0, -3.0, -3.0, -3.0, -0.0, -1.0, -2.0, 0.0]);
        let Some(Array::I32(types)) = metadata.get("tokenizer.ggml.token_type").unwrap().as_array() else {
            panic!("types are numbers")
        };
        assert_eq!(
            (types[0], types[1], types[2], types[257], types[258]),
            (UNKNOWN, CONTROL, BYTE, BYTE, NORMAL)
        );
        assert_eq!(types[264], UNUSED);
    }

    #[test]
    fn unsupported_tokenizers_are_refused() {
        let with = |model: Json, pre_tokenizer: Json| {
            written(json!({"model": model, "pre_tokenizer": pre_tokenizer}), Json::Null, 2).unwrap_err()
        };
        let pieces = json!({"type": "BPE", "byte_fallback": true, "vocab": {}, "merges": []});
        assert!(with(pieces, Json::Null).contains("SentencePiece"));
        let bare = json!({"type": "BPE", "byte_fallback": true, "vocab": {}, "merges": []});
        let space = json!({"type": "Metaspace", "replacement": "\u{2581}", "split": false});
        assert!(with(bare, space).contains("`<0x00>`"));
        assert!(with(json!({"type": "WordPiece", "vocab": {}}), Json::Null).contains("WordPiece"));
        let sound = |vocab: Json| json!({"type": "BPE", "vocab": vocab, "merges": []});
        assert!(with(sound(json!({})), split("x")).contains("pre-tokeniser"));
        let beyond = with(sound(json!({"a": 7})), split(QWEN_2));
        assert!(beyond.contains("token `a` has no row in the embedding of 2"), "{beyond}");
    }
}

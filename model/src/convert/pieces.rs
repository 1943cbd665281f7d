//! SentencePiece-style vocabularies, which a tokenizer.json stores as BPE over characters with byte fallback.
//! llama.cpp merges by the score of the resulting piece, so the order of the merges is converted to scores.
//! If scores cannot express the order, the vocabulary is refused.

use std::collections::{HashMap, HashSet};

use serde_json::Value as Json;

/// The character that replaces a blank.
pub(super) const BLANK: &str = "\u{2581}";

/// The longest piece, in bytes. Checking a piece takes time quadratic in its length.
const MAX_PIECE_LEN: usize = 1024;

/// Whether the normaliser or the pre-tokeniser puts a blank before the text. Returns the reason as an error
/// if they do something that llama.cpp does not do.
pub(super) fn adds_blank(normalizer: &Json, pre_tokenizer: &Json) -> Result<bool, &'static str> {
    let mut steps = Vec::new();
    flatten(normalizer, &mut steps);
    let replaces = |step: &Json| {
        has_type(step, "Replace") && step["pattern"]["String"] == " " && step["content"] == BLANK
    };
    let prepends = |step: &Json| has_type(step, "Prepend") && step["prepend"] == BLANK;
    let begins = match steps.as_slice() {
        [] => None,
        [one] if replaces(one) => Some(false),
        [first, second] if prepends(first) && replaces(second) => Some(true),
        _ => return Err("its normaliser does more than replace blanks with `\u{2581}`"),
    };
    match (begins, pre_tokenizer) {
        (Some(begins), Json::Null) => Ok(begins),
        // The normaliser replaces every blank, so this split never matches.
        (Some(begins), step) if has_type(step, "Split") && step["pattern"]["String"] == " " => Ok(begins),
        (None, step)
            if has_type(step, "Metaspace") && step["replacement"] == BLANK && step["split"] == false =>
        {
            match step["prepend_scheme"].as_str() {
                Some("never") => Ok(false),
                Some(_) => Ok(true),
                None => Ok(step["add_prefix_space"] != false),
            }
        }
        _ => Err("its pre-tokeniser splits text, unlike SentencePiece's"),
    }
}

fn has_type(step: &Json, kind: &str) -> bool {
    step["type"] == kind
}

fn flatten<'a>(step: &'a Json, steps: &mut Vec<&'a Json>) {
    match step["normalizers"].as_array() {
        Some(all) if has_type(step, "Sequence") => all.iter().for_each(|one| flatten(one, steps)),
        _ if step.is_null() => {}
        _ => steps.push(step),
    }
}

/// Returns the byte that a token such as `<0x0A>` represents.
pub(super) fn parse_byte_token(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    let is_one = digits.len() == 2 && digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'A'..=b'F'));
    u8::from_str_radix(digits, 16).ok().filter(|_| is_one)
}

/// Returns the score of every piece that a merge produces; earlier merges score higher. `pieces` are all
/// tokens that merging can encounter.
pub(super) fn merge_scores<'a>(
    merges: &[(&'a str, &'a str)],
    pieces: &HashSet<&'a str>,
) -> Result<HashMap<String, f32>, String> {
    if let Some(piece) = pieces.iter().find(|piece| piece.len() > MAX_PIECE_LEN) {
        let (start, len) = (piece.chars().take(32).collect::<String>(), piece.len());
        return Err(format!("token `{start}...` has {len} bytes, expected at most {MAX_PIECE_LEN}"));
    }
    let mut scores: HashMap<String, f32> = HashMap::new();
    let mut last = String::new();
    for (left, right) in merges {
        let piece = format!("{left}{right}");
        if piece == last {
            continue;
        }
        // 1. All merges that produce a piece must be adjacent, so that the piece has one score.
        let score = -(scores.len() as f32);
        if pieces.contains(piece.as_str()) && scores.insert(piece.clone(), score).is_some() {
            return Err(format!("the merges that give `{piece}` are not adjacent"));
        }
        last = piece;
    }
    // 2. llama.cpp joins any two pieces whose concatenation is a piece, so every such pair must be among the
    // merges.
    let known: HashSet<(&str, &str)> = merges.iter().copied().collect();
    for piece in pieces {
        for (at, _) in piece.char_indices().skip(1) {
            let (left, right) = piece.split_at(at);
            if pieces.contains(left) && pieces.contains(right) && !known.contains(&(left, right)) {
                return Err(format!("`{left}` and `{right}` are not merged, although `{piece}` is a token"));
            }
        }
    }
    Ok(scores)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn prefix_blanks_are_detected() {
        let prepend = json!({"type": "Prepend", "prepend": "\u{2581}"});
        let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"});
        let both = json!({"type": "Sequence", "normalizers": [prepend, replace]});
        let split = json!({"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious"});
        let space = |scheme: &str, split: bool| json!({"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": scheme, "split": split});
        for (normalizer, pre_tokenizer, expect) in [
            (both.clone(), Json::Null, Some(true)),
            (replace.clone(), split.clone(), Some(false)),
            (Json::Null, space("first", false), Some(true)),
            (Json::Null, space("never", false), Some(false)),
            (Json::Null, space("first", true), None),
            (json!({"type": "NFKC"}), Json::Null, None),
            (Json::Null, Json::Null, None),
            (both, json!({"type": "Digits"}), None),
        ] {
            let found = adds_blank(&normalizer, &pre_tokenizer);
            assert_eq!(found.ok(), expect, "{normalizer} {pre_tokenizer}");
        }
    }

    #[test]
    fn the_order_of_merges_becomes_scores() {
        let pieces: HashSet<&str> = ["a", "b", "c", "ab", "bc", "abc"].into();
        let merges = [("b", "c"), ("a", "b"), ("ab", "c"), ("a", "bc")];
        let found = merge_scores(&merges, &pieces).unwrap();
        assert_eq!((found["bc"], found["ab"], found["abc"], found.len()), (0.0, -1.0, -2.0, 3));
        let apart = [("b", "c"), ("ab", "c"), ("a", "b"), ("a", "bc")];
        assert!(merge_scores(&apart, &pieces).unwrap_err().contains("`abc`"));
        assert!(merge_scores(&merges[..3], &pieces).unwrap_err().contains("`a` and `bc`"));
        // Tokens that are cut out of the text before merging are not pieces.
        assert!(merge_scores(&merges[..2], &["a", "b", "c", "ab", "bc"].into()).is_ok());
    }

    #[test]
    fn long_pieces_are_refused() {
        let longest = "a".repeat(MAX_PIECE_LEN);
        assert!(merge_scores(&[], &[longest.as_str()].into()).is_ok());
        let too_long = longest + "a";
        let error = merge_scores(&[], &[too_long.as_str()].into()).unwrap_err();
        assert_eq!(error, format!("token `{}...` has 1025 bytes, expected at most 1024", "a".repeat(32)));
    }

    #[test]
    fn byte_tokens() {
        for (token, expect) in
            [("<0x0A>", Some(10)), ("<0xFF>", Some(255)), ("<0xff>", None), ("<0x+1>", None), ("a", None)]
        {
            assert_eq!(parse_byte_token(token), expect, "{token}");
        }
    }
}

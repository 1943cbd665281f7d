//! The merges of a SentencePiece vocabulary, which has scores instead: the reverse of `super::super::pieces`.

use std::collections::HashMap;

/// Limit for the sum of squared token lengths, in bytes: the time for finding the merges and their length grow
/// with it. Published vocabularies have some 30 million.
const MAX_WORK: u64 = 1 << 27;

/// Returns the merges `left right` in the order of SentencePiece: the highest score of the merged token first.
/// Of equal scores the longest left part is first, as in transformers, so that a run of one character is split
/// from the left into the longest tokens.
pub(super) fn merges(tokens: &HashMap<&str, u32>, scores: &[f32]) -> Result<Vec<String>, String> {
    let work = tokens.keys().fold(0u64, |sum, token| sum.saturating_add((token.len() as u64).pow(2)));
    if work > MAX_WORK {
        return Err("its tokens are too long to find their merges".to_owned());
    }
    let mut merges: Vec<(f32, &str, usize)> = Vec::new();
    for (token, id) in tokens {
        // The text of a vocabulary has no blanks, so such a token is never merged.
        if token.contains(' ') {
            continue;
        }
        let score = scores.get(*id as usize).copied().unwrap_or_default();
        for (at, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(at);
            if tokens.contains_key(left) && tokens.contains_key(right) {
                merges.push((score, token, at));
            }
        }
    }
    merges.sort_unstable_by(|(a, left, a_at), (b, right, b_at)| {
        let lengths = |token: &str, at: usize| (token[..at].chars().count(), token[at..].chars().count());
        b.total_cmp(a)
            .then_with(|| lengths(right, *b_at).cmp(&lengths(left, *a_at)))
            .then_with(|| left.cmp(right))
    });
    Ok(merges.into_iter().map(|(_, token, at)| format!("{} {}", &token[..at], &token[at..])).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merges_have_the_order_of_scores() {
        let texts = ["a", "b", "c", "ab", "bc", "abc", "x y", "<0x0A>"];
        let tokens: HashMap<&str, u32> = texts.into_iter().zip(0..).collect();
        let scores = [0.0, 0.0, 0.0, -1.0, 0.0, -2.0, 0.0, 0.0];
        assert_eq!(merges(&tokens, &scores).unwrap(), ["b c", "a b", "ab c", "a bc"]);
        let runs: Vec<String> = (1..=4).map(|n| "-".repeat(n)).collect();
        let tokens: HashMap<&str, u32> = runs.iter().map(String::as_str).zip(0..).collect();
        let runs = merges(&tokens, &[0.0; 4]).unwrap();
        assert_eq!(runs, ["--- -", "-- --", "-- -", "- ---", "- --", "- -"]);
        let long = "-".repeat(60_000);
        let error = merges(&HashMap::from([(long.as_str(), 0)]), &[0.0]).unwrap_err();
        assert!(error.contains("too long"), "{error}");
    }
}

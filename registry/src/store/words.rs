//! The words of the search: how names, texts and queries are split and folded. Both database engines get words of ASCII
//! letters and digits, so that neither splits or folds anything by rules of its own. Pure.

use std::collections::BTreeSet;
use std::iter::{self, Peekable};

use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

use super::lineage::without_tag;

/// Longer words are cut, in texts and in queries.
const MAX_WORD_CHARS: usize = 32;
/// The most words of a query that count.
pub(crate) const MAX_QUERY_WORDS: usize = 12;

/// Begins the word of an origin, and stands for each of its characters other than letters and digits.
const ORIGIN_MARK: char = '→';
/// Longer names of origins are cut.
const MAX_ORIGIN_CHARS: usize = 128;

/// A character's place in a word.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Letter,
    Digit,
    /// Writing without spaces: each character is a word.
    Single,
}

fn kind(c: char) -> Option<Kind> {
    match u32::from(c) {
        0x3040..=0x30ff | 0x3400..=0x9fff | 0xf900..=0xfaff | 0x2_0000..=0x3_ffff => Some(Kind::Single),
        _ if c.is_numeric() => Some(Kind::Digit),
        _ if c.is_alphanumeric() => Some(Kind::Letter),
        _ => None,
    }
}

/// Characters without others between them, in parts of either letters or digits.
type Run = Vec<String>;

struct Runs<I: Iterator<Item = char>>(Peekable<I>);

impl<I: Iterator<Item = char>> Iterator for Runs<I> {
    type Item = Run;

    fn next(&mut self) -> Option<Run> {
        while self.0.next_if(|c| kind(*c).is_none()).is_some() {}
        let mut run: Run = Vec::new();
        let (mut before, mut chars) = (None, 0);
        while let Some((c, now)) = self.0.peek().and_then(|c| Some((*c, kind(*c)?))) {
            if before.is_some() && (before == Some(Kind::Single) || now == Kind::Single) {
                break;
            }
            self.0.next();
            chars += 1;
            if chars <= MAX_WORD_CHARS {
                if before != Some(now) {
                    run.push(String::new());
                }
                if let Some(part) = run.last_mut() {
                    push_ascii(part, c);
                }
            }
            before = Some(now);
        }
        (!run.is_empty()).then_some(run)
    }
}

/// Appends a character as ASCII letters and digits, so that the beginning of a word stays one.
fn push_ascii(word: &mut String, c: char) {
    match c.is_ascii() {
        true => word.push(c),
        false => word.push_str(&format!("0u{:06x}", u32::from(c))),
    }
}

/// The runs of a text in lower case, without accents.
fn runs(text: &str) -> Runs<impl Iterator<Item = char>> {
    let lower = text.nfkd().flat_map(char::to_lowercase).nfkd();
    Runs(lower.filter(|c| !is_combining_mark(*c)).peekable())
}

/// Adds the words of a text, and the parts of words that have letters and digits, at most `limit` in all.
pub(crate) fn add_text_words(words: &mut BTreeSet<String>, text: &str, limit: usize) {
    for run in runs(text) {
        if words.len() >= limit {
            return;
        }
        words.insert(run.concat());
        if run.len() > 1 {
            words.extend(run);
        }
    }
}

/// Adds the words of a repository's name. Neighbours are also one word: `llama-3` is found as `llama3`.
pub(super) fn add_name_words(words: &mut BTreeSet<String>, name: &str) {
    let all: Vec<Run> = runs(name).collect();
    for pair in all.windows(2) {
        words.insert(pair.concat().concat());
    }
    add_text_words(words, name, usize::MAX);
}

/// The word of a repository whose models name this one as their origin. It begins with a character that is in no word of
/// a query, and both engines take it as one word. Several names can have the same.
pub(super) fn origin_word(name: &str) -> String {
    let name = without_tag(name).chars().take(MAX_ORIGIN_CHARS);
    let name = name.map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { ORIGIN_MARK });
    iter::once(ORIGIN_MARK).chain(name).collect()
}

/// The words of a query. A repository fits if each of them is the beginning of one of its words.
pub(crate) fn query_words(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for run in runs(text) {
        let word = run.concat();
        if !words.contains(&word) {
            words.push(word);
        }
        if words.len() == MAX_QUERY_WORDS {
            break;
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn named(name: &str) -> Vec<String> {
        let mut words = BTreeSet::new();
        add_name_words(&mut words, name);
        words.into_iter().collect()
    }

    fn is_found(text: &str, query: &str) -> bool {
        let mut words = BTreeSet::new();
        add_text_words(&mut words, text, usize::MAX);
        query_words(query).iter().all(|word| words.iter().any(|other| other.starts_with(word)))
    }

    #[test]
    fn names_are_split_at_borders() {
        assert_eq!(
            named("team/Qwen2.5-7B"),
            ["2", "5", "57b", "7", "7b", "b", "qwen", "qwen2", "qwen25", "team", "teamqwen2"]
        );
        assert_eq!(query_words("  qwen2.5 7B qwen2"), ["qwen2", "5", "7b"]);
        assert!(named("org/llama-3-8b").contains(&"llama3".to_owned()));
    }

    #[test]
    fn other_scripts_keep_the_beginnings_of_words() {
        for (text, query, expect) in [
            ("Größe", "GRÖS", false),
            ("Größe", "größ", true),
            ("Größe", "grö", true),
            ("Größe", "gro", true),
            ("Cafe\u{301}", "café", true),
            ("café", "cafe", true),
            ("ΣΊΣΥΦΟΣ", "σίσυ", true),
            ("Модель", "мод", true),
            ("日本語のモデル", "本", true),
            ("日本語のモデル", "モデ", true),
            ("日本語のモデル", "中", false),
            ("ﬁne", "fin", true),
        ] {
            assert_eq!(is_found(text, query), expect, "{text} {query}");
        }
    }

    #[test]
    fn queries_are_bounded() {
        let many: String = (0..1000).map(|n| format!("w{n} ")).collect();
        assert_eq!(query_words(&many).len(), MAX_QUERY_WORDS);
        let long = query_words(&"x".repeat(10_000));
        assert_eq!(long, ["x".repeat(MAX_WORD_CHARS)]);
        assert!(is_found(&"x".repeat(500), &"x".repeat(10_000)));
        for nothing in ["", " \0\u{7f}", "%_'\"*()", "- / :"] {
            assert!(query_words(nothing).is_empty(), "{nothing}");
        }
    }

    proptest! {
        #[test]
        fn words_are_ascii_and_bounded(text in any::<String>()) {
            let mut words = BTreeSet::new();
            add_text_words(&mut words, &text, 100);
            add_name_words(&mut words, &text);
            for word in words.iter().chain(&query_words(&text)) {
                prop_assert!(!word.is_empty() && word.len() <= 2 * 8 * MAX_WORD_CHARS);
                prop_assert!(word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit()), "{}", word);
            }
        }

        /// A text is found by each of its own words.
        #[test]
        fn a_text_is_found_by_itself(text in "\\PC{0,40}") {
            prop_assert!(is_found(&text, &text));
        }
    }
}

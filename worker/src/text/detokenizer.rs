//! Converts generated ids to text one at a time, in whole characters. Invalid bytes become U+FFFD, as in a
//! lossy decode of the whole text.

use std::sync::Arc;

use super::vocabulary::Vocabulary;

/// Decodes the text of one response.
#[derive(Debug, Clone)]
pub struct Detokenizer {
    vocabulary: Arc<Vocabulary>,
    // The first bytes of an incomplete character: fewer than four.
    pending: Vec<u8>,
    /// Special tokens that are returned as text.
    shown: Vec<u32>,
}

impl Detokenizer {
    /// Decodes a response that continues a prompt, so no leading space is dropped. Special tokens produce no
    /// text, except those in `shown`.
    pub fn new(vocabulary: Arc<Vocabulary>, shown: &[u32]) -> Detokenizer {
        Detokenizer { vocabulary, pending: Vec::new(), shown: shown.to_owned() }
    }

    /// Adds an id and returns the text that it completes; empty for most special tokens and within a
    /// character.
    pub fn push(&mut self, id: u32) -> String {
        match self.vocabulary.entry(id) {
            Some(entry) if !entry.special || self.shown.contains(&id) => {
                self.pending.extend_from_slice(entry.bytes);
                self.take(false)
            }
            _ => String::new(),
        }
    }

    /// Returns the rest when the response ends within a character.
    pub fn finish(&mut self) -> String {
        self.take(true)
    }

    fn take(&mut self, end: bool) -> String {
        let bytes = std::mem::take(&mut self.pending);
        let mut text = String::new();
        let mut chunks = bytes.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            text.push_str(chunk.valid());
            let rest = chunk.invalid();
            if rest.is_empty() {
                continue;
            }
            // Only bytes at the end can still become a character.
            if !end && chunks.peek().is_none() && is_incomplete(rest) {
                self.pending = rest.to_vec();
            } else {
                text.push(char::REPLACEMENT_CHARACTER);
            }
        }
        text
    }
}

fn is_incomplete(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).err().is_some_and(|error| error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn stream(tokens: &[(&[u8], bool)]) -> Vec<String> {
        stream_showing(tokens, &[])
    }

    fn stream_showing(tokens: &[(&[u8], bool)], shown: &[u32]) -> Vec<String> {
        let mut detokenizer = Detokenizer::new(Arc::new(Vocabulary::of(tokens)), shown);
        let mut texts: Vec<String> = (0..tokens.len()).map(|id| detokenizer.push(id as u32)).collect();
        texts.push(detokenizer.finish());
        texts
    }

    #[test]
    fn a_character_comes_whole() {
        assert_eq!(
            stream(&[(b"a\xE2", false), (b"\x82", false), (b"\xAC!", false)]),
            ["a", "", "\u{20AC}!", ""]
        );
        assert_eq!(stream(&[(b"\xF0\x9F", false), (b"x", false)]), ["", "\u{FFFD}x", ""]);
        assert_eq!(stream(&[(b"x\xF0\x9F\x98", false)]), ["x", "\u{FFFD}"]);
        assert_eq!(stream(&[(b"a", false), (b"<|im_end|>", true), (b"b", false)]), ["a", "", "b", ""]);
        let called = stream_showing(&[(b"<s>", true), (b"[TOOL_CALLS]", true), (b"a", false)], &[1]);
        assert_eq!(called, ["", "[TOOL_CALLS]", "a", ""]);
    }

    proptest! {
        #[test]
        fn streaming_equals_decoding_the_whole(
            tokens in proptest::collection::vec(proptest::collection::vec(
                prop_oneof![any::<u8>(), 0x80u8..0xC0, Just(0xE2), Just(0xF0), Just(0x9F), b'a'..=b'z'], 0..5), 0..24),
        ) {
            let borrowed: Vec<(&[u8], bool)> = tokens.iter().map(|token| (token.as_slice(), false)).collect();
            let whole: Vec<u8> = tokens.concat();
            prop_assert_eq!(stream(&borrowed).concat(), String::from_utf8_lossy(&whole));
        }
    }
}

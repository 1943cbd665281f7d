//! The end of a text that may belong to a marker and is held back until more of the text is known.

use std::ops::Deref;

/// Maximum whitespace that is held back until the text after it is known.
pub(super) const MAX_BLANKS: usize = 256;

/// A text from whose beginning parts are removed, in time that is proportional to the text in total.
#[derive(Debug, Default)]
pub(super) struct PendingText {
    text: String,
    /// The length of the removed part.
    start: usize,
}

impl PendingText {
    pub(super) fn push_str(&mut self, piece: &str) {
        self.text.push_str(piece);
    }

    /// Removes the first `len` bytes.
    pub(super) fn skip(&mut self, len: usize) {
        self.start += len;
        if self.start > self.text.len() / 2 {
            self.text.drain(..self.start);
            self.start = 0;
        }
    }

    /// Removes the first `len` bytes, and appends them to another text.
    pub(super) fn move_to(&mut self, text: &mut String, len: usize) {
        text.push_str(&self[..len]);
        self.skip(len);
    }
}

impl Deref for PendingText {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text[self.start..]
    }
}

/// The length of the longest suffix of `text` that is a proper prefix of `mark`.
pub(super) fn partial_suffix_len(text: &str, mark: &str) -> usize {
    let longest = mark.len().saturating_sub(1).min(text.len());
    (1..=longest)
        .rev()
        .find(|&len| text.as_bytes()[text.len() - len..] == mark.as_bytes()[..len])
        .unwrap_or(0)
}

/// The length of a text's trailing whitespace, up to the limit for holding it back.
pub(super) fn trailing_blanks(text: &str) -> usize {
    text.bytes().rev().take(MAX_BLANKS).take_while(u8::is_ascii_whitespace).count()
}

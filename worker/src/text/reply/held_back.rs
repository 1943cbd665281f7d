//! The end of a text that may belong to a marker and is held back until more of the text is known.

/// Maximum whitespace that is held back until the text after it is known.
pub(super) const MAX_BLANKS: usize = 256;

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

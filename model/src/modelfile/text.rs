//! The values of a Modelfile and their quoting. Each value gets the first quoting that preserves it.

use std::fmt;

/// A value that a Modelfile can hold. Its quotes have no escapes, so some texts cannot be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text(pub(super) String);

/// The error for a text that no quoting preserves.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a Modelfile cannot hold this text: one of its lines ends with a quote that would end the value, or it has control characters"
)]
pub struct UnquotableText;

impl Text {
    pub fn new(text: impl Into<String>) -> Result<Text, UnquotableText> {
        let text = text.into();
        match quotes(&text) {
            Some(_) => Ok(Text(text)),
            None => Err(UnquotableText),
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quotes = quotes(&self.0).unwrap_or_default();
        write!(f, "{quotes}{}{quotes}", self.0)
    }
}

/// The line endings. Each character ends a line, and so do both together.
pub(super) const NEWLINES: [char; 2] = ['\n', '\r'];

const QUOTES: &str = "\"\"\"";

/// Characters that parsing drops.
pub(super) fn is_dropped(c: char) -> bool {
    c == '\u{feff}' || c.is_control() && !matches!(c, '\n' | '\r' | '\t')
}

/// Returns the quotes around a text; `None` if no quoting preserves it.
fn quotes(text: &str) -> Option<&'static str> {
    if text.contains(is_dropped) {
        return None;
    }
    let is_bare =
        !text.is_empty() && text.trim() == text && !text.starts_with('"') && !text.contains(NEWLINES);
    if is_bare {
        return Some("");
    }
    // A line that ends with the closing quotes would end the value. A single quote is no better than three:
    // more lines end with one.
    let mut lines = text.split(NEWLINES);
    lines.next_back();
    let ends_early = lines.any(|line| line.trim_end().ends_with(QUOTES));
    if ends_early { None } else { Some(QUOTES) }
}

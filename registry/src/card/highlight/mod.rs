//! Colours of source text. A lexer with a table for each language splits a text into comments, strings, numbers, words
//! and the rest. It reads each byte a bounded number of times, whatever the text is, and uses no regular expression.

mod languages;
mod lexer;
#[cfg(test)]
mod tests;

use std::ops::Range;

pub(super) use languages::Language;
use lexer::Lexer;

/// The most marked parts of one page, each about 30 bytes of HTML. The text after them has no colours.
const MAX_MARKS: usize = 32 * 1024;
/// A longer text has no colours.
const MAX_BYTES: usize = 1024 * 1024;

/// What a part of a text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Comment,
    Keyword,
    String,
    /// Numbers, and words such as `true`.
    Constant,
    /// Functions, types, keys and variables.
    Name,
}

impl Class {
    fn attribute(self) -> &'static str {
        match self {
            Class::Comment => "hl-comment",
            Class::Keyword => "hl-keyword",
            Class::String => "hl-string",
            Class::Constant => "hl-constant",
            Class::Name => "hl-name",
        }
    }
}

/// The marks that are left for one page.
pub(super) struct Highlighter {
    marks_left: usize,
}

impl Default for Highlighter {
    fn default() -> Highlighter {
        Highlighter { marks_left: MAX_MARKS }
    }
}

impl Highlighter {
    /// The text as HTML of `span` elements with classes. `None` if nothing in it is marked.
    pub(super) fn highlight(&mut self, language: Language, text: &str) -> Option<String> {
        if text.len() > MAX_BYTES || self.marks_left == 0 {
            return None;
        }
        let mut html = Html { text, html: String::with_capacity(text.len() * 2), at: 0 };
        let mut pending: Option<(Range<usize>, Class)> = None;
        for (range, class) in Lexer::new(language, text) {
            match &mut pending {
                // One element for neighbours that are alike.
                Some((last, known)) if *known == class && last.end == range.start => last.end = range.end,
                _ => {
                    if let Some(mark) = pending.replace((range, class)) {
                        html.push(mark);
                        self.marks_left -= 1;
                    }
                    if self.marks_left == 0 {
                        pending = None;
                        break;
                    }
                }
            }
        }
        if let Some(mark) = pending {
            html.push(mark);
            self.marks_left -= 1;
        }
        html.finish()
    }
}

struct Html<'a> {
    text: &'a str,
    html: String,
    /// How much of the text is written.
    at: usize,
}

impl Html<'_> {
    fn push(&mut self, (range, class): (Range<usize>, Class)) {
        escape(&self.text[self.at..range.start], &mut self.html);
        self.html.push_str("<span class=\"");
        self.html.push_str(class.attribute());
        self.html.push_str("\">");
        escape(&self.text[range.clone()], &mut self.html);
        self.html.push_str("</span>");
        self.at = range.end;
    }

    fn finish(mut self) -> Option<String> {
        if self.at == 0 {
            return None;
        }
        escape(&self.text[self.at..], &mut self.html);
        Some(self.html)
    }
}

/// Appends text to HTML.
pub(super) fn escape(text: &str, html: &mut String) {
    for c in text.chars() {
        match c {
            '&' => html.push_str("&amp;"),
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '"' => html.push_str("&quot;"),
            // Not a character of HTML.
            '\0' => html.push('\u{fffd}'),
            c => html.push(c),
        }
    }
}

//! Splits a text into the parts that have a colour. Each step consumes what it has looked at, except for a look ahead
//! within one line, once for each word or line.

use std::ops::Range;

use super::Class;
use super::languages::{Language, Quote, Rules, Shape};

/// The most bytes that are looked at ahead of a part that may not be one.
const MAX_AHEAD: usize = 256;
/// The longest character literal: `'\u{10ffff}'`.
const MAX_LITERAL_BYTES: usize = 12;

/// Where a text ends that begins with a digit.
enum NumberEnd {
    Number(usize),
    /// A word, a version or an address, which has no colour.
    Word(usize),
}

pub(super) struct Lexer<'a> {
    text: &'a str,
    rules: &'static Rules,
    at: usize,
    /// Only blanks precede the position on its line.
    is_line_start: bool,
    /// Where the part ends that has colours, for languages within other text.
    island_end: usize,
}

impl<'a> Lexer<'a> {
    pub(super) fn new(language: Language, text: &'a str) -> Lexer<'a> {
        let rules = language.rules();
        let island_end = if rules.shape.has_islands() { 0 } else { text.len() };
        Lexer { text, rules, at: 0, is_line_start: true, island_end }
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn before(&self) -> Option<char> {
        self.text[..self.at].chars().next_back()
    }

    /// The end of the line, from the position.
    fn line_end(&self) -> usize {
        self.rest().find('\n').map_or(self.text.len(), |length| self.at + length)
    }

    /// The beginning of the rest of the line.
    fn ahead(&self) -> &'a str {
        let rest = self.rest();
        let near = &rest[..rest.floor_char_boundary(MAX_AHEAD)];
        near.split('\n').next().unwrap_or(near)
    }

    fn take(&mut self, end: usize, class: Class) -> Option<(Range<usize>, Class)> {
        let start = std::mem::replace(&mut self.at, end);
        self.is_line_start = self.text[start..end].ends_with('\n');
        (start < end).then_some((start..end, class))
    }

    fn skip(&mut self, end: usize) {
        self.at = end;
        self.is_line_start = false;
    }

    /// Moves to the next part that has colours; false at the end.
    fn enter_island(&mut self) -> bool {
        match self.rules.shape {
            Shape::Console => {
                while self.at < self.text.len() {
                    let end = self.line_end();
                    if let Some(prompt) = prompt_length(&self.text[self.at..end]) {
                        self.at += prompt;
                        self.is_line_start = true;
                        self.island_end = self.command_end();
                        return true;
                    }
                    self.at = (end + 1).min(self.text.len());
                }
                false
            }
            Shape::Template => {
                let rest = self.rest();
                let is_tag = |at: &usize| rest[at + 1..].starts_with(['%', '{', '#']);
                let Some(begin) = rest.match_indices('{').map(|(at, _)| at).find(is_tag) else {
                    return false;
                };
                self.at += begin;
                self.island_end = self.at + 2;
                true
            }
            _ => false,
        }
    }

    /// The end of a command: of the first line that no backslash continues.
    fn command_end(&self) -> usize {
        let mut end = self.at;
        for line in self.rest().split_inclusive('\n') {
            end += line.len();
            if !line.trim_end().ends_with('\\') {
                break;
            }
        }
        end
    }

    fn comment(&self) -> Option<usize> {
        let rest = self.rest();
        if let Some((open, close)) = self.rules.block_comment
            && rest.starts_with(open)
        {
            let body = self.at + open.len();
            return Some(self.text[body..].find(close).map_or(self.text.len(), |n| body + n + close.len()));
        }
        let begins = self.rules.line_comments.iter().any(|open| rest.starts_with(open));
        // In these, `#` within a word is a part of it.
        let is_word_bound = self.rules.shape.separates_words()
            && self.before().is_some_and(|before| !before.is_whitespace() && !";&|(){".contains(before));
        (begins && !is_word_bound).then(|| self.line_end())
    }

    fn string(&self) -> Option<usize> {
        let rest = self.rest();
        let quote = self.rules.quotes.iter().find(|quote| rest.starts_with(quote.open))?;
        let is_apostrophe = self.rules.shape.separates_words()
            && self.before().is_some_and(|before| before.is_alphanumeric());
        if is_apostrophe {
            return None;
        }
        let body = self.at + quote.open.len();
        match quote.is_literal {
            true => self.character_end(body),
            false => Some(self.string_end(body, quote)),
        }
    }

    fn string_end(&self, body: usize, quote: &Quote) -> usize {
        let mut chars = self.text[body..].char_indices();
        while let Some((offset, c)) = chars.next() {
            if c == '\n' && !quote.is_multiline {
                return body + offset;
            }
            if self.text[body + offset..].starts_with(quote.close) {
                return body + offset + quote.close.len();
            }
            if c == '\\' && quote.has_escapes {
                chars.next();
            }
        }
        self.text.len()
    }

    /// The end of `'x'`. A lifetime is none.
    fn character_end(&self, body: usize) -> Option<usize> {
        let mut chars =
            self.text[body..].char_indices().take_while(|(offset, _)| *offset < MAX_LITERAL_BYTES);
        let (_, first) = chars.next()?;
        if first == '\\' {
            chars.next()?;
            return chars.find(|(_, c)| *c == '\'').map(|(offset, _)| body + offset + 1);
        }
        let (offset, close) = chars.next()?;
        (close == '\'').then_some(body + offset + 1)
    }

    /// A raw string of Rust: `r#"..."#`.
    fn raw_string(&self) -> Option<usize> {
        let rest = self.rest();
        let hashes = rest.strip_prefix("br").or_else(|| rest.strip_prefix('r'))?;
        let count = hashes.bytes().take(16).take_while(|byte| *byte == b'#').count();
        let body = hashes[count..].strip_prefix('"')?;
        let close = format!("\"{}", "#".repeat(count));
        let start = self.text.len() - body.len();
        Some(body.find(&close).map_or(self.text.len(), |n| start + n + close.len()))
    }

    /// `$NAME` and `${...}`.
    fn variable(&self) -> Option<usize> {
        let rest = self.ahead().strip_prefix('$')?;
        let length = match rest.strip_prefix('{') {
            Some(inner) => inner.find('}')? + 2,
            None => rest.find(|c: char| !is_word(c)).unwrap_or(rest.len()),
        };
        (length > 0).then_some(self.at + 1 + length)
    }

    /// The end of a number, or of a word that begins like one.
    fn number(&self) -> Option<NumberEnd> {
        let rest = self.rest();
        if !rest.starts_with(|c: char| c.is_ascii_digit()) {
            return None;
        }
        let mut chars = rest.char_indices().peekable();
        let mut last = '0';
        let mut end = rest.len();
        while let Some((at, c)) = chars.next() {
            let is_part = match c {
                // It may end a sentence, or begin a range.
                '.' => chars.peek().is_some_and(|(_, next)| next.is_ascii_alphanumeric()),
                '+' | '-' => matches!(last, 'e' | 'E'),
                c => is_word(c),
            };
            if !is_part {
                end = at;
                break;
            }
            last = c;
        }
        let after = &rest[end..];
        if !self.rules.shape.separates_words() || !after.starts_with(['-', '.', '/', ':', '@']) {
            return Some(NumberEnd::Number(self.at + end));
        }
        // `7b-chat` is a word. All of it is skipped: if only a part were, the next step would read the rest again.
        let is_part = |c: char| is_word(c) || c == '-';
        let length = after.find(|c: char| !is_part(c)).unwrap_or(after.len());
        Some(NumberEnd::Word(self.at + end + length))
    }

    /// The end of a key at the beginning of a line: of YAML `a key:`, of TOML `a.key =` and `[table]`.
    fn key(&self) -> Option<usize> {
        let line = self.ahead();
        let length = match self.rules.shape {
            Shape::Yaml => {
                let end = line.find(": ").or_else(|| line.trim_end().strip_suffix(':').map(str::len))?;
                let is_plain = !line[..end].contains(['"', '\'', '#', '{', '[', '&', '*', '!', '|', '>']);
                is_plain.then_some(end)?
            }
            Shape::Toml if line.starts_with('[') => {
                let end = line.rfind(']')? + 1;
                (!line[..end].contains(',')).then_some(end)?
            }
            Shape::Toml => {
                let key = line.split_once('=')?.0.trim_end();
                let is_plain = key.chars().all(|c| is_word(c) || " .-\"'".contains(c));
                is_plain.then_some(key.len())?
            }
            _ => return None,
        };
        (length > 0).then_some(self.at + length)
    }

    fn word(&mut self) -> Option<(Range<usize>, Class)> {
        let rest = self.rest();
        let is_part = |c: char| is_word(c) || (c == '-' && self.rules.shape.separates_words());
        let end = self.at + rest.find(|c: char| !is_part(c)).unwrap_or(rest.len());
        let (word, after) = (&self.text[self.at..end], &self.text[end..]);
        let is_instruction = self.is_line_start || !self.rules.shape.has_instructions();
        let class = if is_instruction && self.rules.is_keyword(word) {
            Some(Class::Keyword)
        } else if self.rules.constants.contains(&word) {
            Some(Class::Constant)
        } else if self.rules.names.contains(&word) || (self.rules.has_calls && after.starts_with(['(', '!']))
        {
            // `a != b` is no macro.
            (!after.starts_with("!=")).then_some(Class::Name)
        } else if self.rules.has_types && word.starts_with(|c: char| c.is_uppercase()) {
            Some(Class::Name)
        } else {
            None
        };
        match class {
            Some(class) => self.take(end, class),
            None => {
                self.skip(end);
                None
            }
        }
    }

    /// Whether the string that ends at `end` is a key of JSON.
    fn is_json_key(&self, end: usize) -> bool {
        self.rules.shape == Shape::Json && self.text[end..].trim_start_matches([' ', '\t']).starts_with(':')
    }

    /// One step within a part that has colours. It moves the position forward.
    fn step(&mut self) -> Option<(Range<usize>, Class)> {
        let next = self.rest().chars().next()?;
        if next.is_whitespace() {
            self.is_line_start |= next == '\n';
            self.at += next.len_utf8();
            return None;
        }
        if let Some(end) = self.comment() {
            return self.take(end, Class::Comment);
        }
        if self.is_line_start {
            // An item of a list has keys, too.
            if self.rules.shape == Shape::Yaml && self.rest().starts_with("- ") {
                self.at += 1;
                return None;
            }
            if let Some(end) = self.key() {
                return self.take(end, Class::Name);
            }
        }
        if self.rules.shape == Shape::Rust
            && !self.before().is_some_and(is_word)
            && let Some(end) = self.raw_string()
        {
            return self.take(end, Class::String);
        }
        if let Some(end) = self.string() {
            let class = if self.is_json_key(end) { Class::Name } else { Class::String };
            return self.take(end, class);
        }
        if self.rules.shape.has_variables()
            && let Some(end) = self.variable()
        {
            return self.take(end, Class::Name);
        }
        if is_word(next) || (next == '-' && self.rules.shape.separates_words()) {
            return match self.number() {
                Some(NumberEnd::Number(end)) => self.take(end, Class::Constant),
                Some(NumberEnd::Word(end)) => {
                    self.skip(end);
                    None
                }
                None => self.word(),
            };
        }
        self.skip(self.at + next.len_utf8());
        None
    }

    /// One step within the tags of a template: `{%` and `{{` are keywords, and so are their ends.
    fn step_in_tag(&mut self) -> Option<(Range<usize>, Class)> {
        let rest = self.rest();
        if let Some(end) = self.comment() {
            return self.take(end, Class::Comment);
        }
        let is_open = rest.starts_with("{%") || rest.starts_with("{{");
        let is_close = rest.starts_with("%}") || rest.starts_with("}}");
        if is_open || is_close {
            self.island_end = if is_close { self.at } else { self.text.len() };
            return self.take(self.at + 2, Class::Keyword);
        }
        self.step()
    }
}

impl Iterator for Lexer<'_> {
    type Item = (Range<usize>, Class);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if self.at >= self.island_end && !(self.rules.shape.has_islands() && self.enter_island()) {
                return None;
            }
            let mark = match self.rules.shape {
                Shape::Template => self.step_in_tag(),
                _ => self.step(),
            };
            if mark.is_some() {
                return mark;
            }
        }
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The length of a shell's prompt at the beginning of a line: `$ `, `% `, or `> `, or `name@host:~$ `.
fn prompt_length(line: &str) -> Option<usize> {
    let blank = line.len() - line.trim_start().len();
    let (prompt, _) = line[blank..].split_once(' ')?;
    let is_prompt = prompt.ends_with('$') || ["%", ">", "#", ">>>"].contains(&prompt);
    is_prompt.then_some(blank + prompt.len() + 1)
}

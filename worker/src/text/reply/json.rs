//! Finds the end of a JSON object or list in a text that arrives in pieces. Invalid JSON is detected at its
//! first wrong character, so that the text after it is not delayed. Numbers and literals are left to the
//! parser.

use serde_json::Value;

/// Maximum nesting depth, here and in the parser.
const MAX_DEPTH: usize = 100;

/// The progress of a value.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// The value continues.
    More,
    /// The value ends after this many bytes of the last piece.
    Complete(usize),
    /// The text is not JSON.
    Broken,
}

/// Scans one value from its first character.
#[derive(Debug)]
pub(super) struct Scanner {
    /// The closing characters of the open objects and lists.
    open: Vec<u8>,
    expects: Expects,
}

#[derive(Debug, Clone, Copy)]
enum Expects {
    Value,
    ValueOrEnd,
    Key,
    KeyOrEnd,
    Colon,
    CommaOrEnd,
    /// The rest of a string.
    Text {
        is_key: bool,
        is_escaped: bool,
    },
    /// The rest of a number or of `true`, `false`, `null`.
    Word,
}

impl Scanner {
    pub(super) fn new() -> Scanner {
        Scanner { open: Vec::new(), expects: Expects::Value }
    }

    /// Reads the next piece.
    pub(super) fn read(&mut self, text: &str) -> Progress {
        for (at, byte) in text.bytes().enumerate() {
            match self.step(byte) {
                Some(true) => return Progress::Complete(at + 1),
                Some(false) => {}
                None => return Progress::Broken,
            }
        }
        Progress::More
    }

    /// Whether the value ends with this byte; `None` if the byte is not valid here.
    fn step(&mut self, byte: u8) -> Option<bool> {
        match self.expects {
            Expects::Text { is_key, is_escaped } => {
                self.expects = match byte {
                    b'"' if !is_escaped && is_key => Expects::Colon,
                    b'"' if !is_escaped => Expects::CommaOrEnd,
                    _ => Expects::Text { is_key, is_escaped: byte == b'\\' && !is_escaped },
                };
                return Some(false);
            }
            Expects::Word if byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.') => {
                return Some(false);
            }
            Expects::Word => self.expects = Expects::CommaOrEnd,
            _ => {}
        }
        if byte.is_ascii_whitespace() {
            return Some(false);
        }
        let closes = self.open.last() == Some(&byte);
        match (self.expects, byte) {
            (Expects::ValueOrEnd | Expects::KeyOrEnd | Expects::CommaOrEnd, _) if closes => {
                self.open.pop();
                self.expects = Expects::CommaOrEnd;
                return Some(self.open.is_empty());
            }
            (Expects::Value | Expects::ValueOrEnd, b'{') => self.begin(b'}', Expects::KeyOrEnd)?,
            (Expects::Value | Expects::ValueOrEnd, b'[') => self.begin(b']', Expects::ValueOrEnd)?,
            // A string or a literal is not a call.
            _ if self.open.is_empty() => return None,
            (Expects::Value | Expects::ValueOrEnd, b'"') => {
                self.expects = Expects::Text { is_key: false, is_escaped: false };
            }
            (Expects::Value | Expects::ValueOrEnd, b'-' | b'0'..=b'9' | b't' | b'f' | b'n') => {
                self.expects = Expects::Word;
            }
            (Expects::Key | Expects::KeyOrEnd, b'"') => {
                self.expects = Expects::Text { is_key: true, is_escaped: false };
            }
            (Expects::Colon, b':') => self.expects = Expects::Value,
            (Expects::CommaOrEnd, b',') => {
                self.expects = if self.open.last() == Some(&b'}') { Expects::Key } else { Expects::Value };
            }
            _ => return None,
        }
        Some(false)
    }

    fn begin(&mut self, end: u8, expects: Expects) -> Option<()> {
        self.expects = expects;
        self.open.push(end);
        (self.open.len() <= MAX_DEPTH).then_some(())
    }
}

/// Parses a complete JSON text. Accepts unescaped line ends in strings, which models write although JSON
/// forbids them.
pub(super) fn parse(text: &str) -> Option<Value> {
    serde_json::from_str(text).or_else(|_| serde_json::from_str(&with_escapes(text))).ok()
}

fn with_escapes(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len() + 16);
    let (mut in_string, mut is_escaped) = (false, false);
    for c in text.chars() {
        match c {
            '\n' if in_string => escaped.push_str("\\n"),
            '\r' if in_string => escaped.push_str("\\r"),
            '\t' if in_string => escaped.push_str("\\t"),
            c if in_string && c < ' ' => escaped.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => escaped.push(c),
        }
        in_string ^= c == '"' && !is_escaped;
        is_escaped = in_string && c == '\\' && !is_escaped;
    }
    escaped
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> Progress {
        Scanner::new().read(text)
    }

    #[test]
    fn where_values_end() {
        for whole in [
            "{}",
            "[]",
            r#"{"a": {"b": [1, -2.5e+3, true, null, {"c": "}]\"{"}]}}"#,
            r#"[ {"a" : "\\"} , [ [ ] ] ]"#,
            "{\"a\": \"line\nend\"}",
        ] {
            for text in [whole.to_owned(), format!("{whole}}}] rest")] {
                assert_eq!(read(&text), Progress::Complete(whole.len()), "{text}");
            }
            for cut in 1..whole.len() {
                let mut scanner = Scanner::new();
                assert_eq!(scanner.read(&whole[..cut]), Progress::More, "{}", &whole[..cut]);
                assert_eq!(scanner.read(&whole[cut..]), Progress::Complete(whole.len() - cut));
            }
        }
    }

    #[test]
    fn invalid_json_is_detected() {
        for text in [
            "x",
            "\"a\"",
            "1",
            "{a",
            "{\"a\" 1",
            "{\"a\":1 2",
            "[1,]",
            "{\"a\":1,}",
            "[}",
            "{]",
            "{\"a\"}",
            "[:",
        ] {
            assert_eq!(read(text), Progress::Broken, "{text}");
        }
        assert_eq!(read(&"[".repeat(MAX_DEPTH)), Progress::More);
        assert_eq!(read(&"[".repeat(MAX_DEPTH + 1)), Progress::Broken);
        assert_eq!(parse("[tru]"), None);
    }

    #[test]
    fn line_ends_in_strings() {
        assert_eq!(parse("{\"a\":\n\"x\n\\\"\ty\u{1}\"\n}"), Some(json!({"a": "x\n\"\ty\u{1}"})));
        assert_eq!(parse(r#"{"a": "\\", "b": 1}"#), Some(json!({"a": "\\", "b": 1})));
    }
}

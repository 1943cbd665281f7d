//! Parses text to commands. Errors give the line and the column, both counted from 1.

use std::borrow::Cow;

use super::command::{Command, Modelfile, Role, UnknownRole};
use super::parameter::{ParameterError, read_value};
use super::text::{NEWLINES, Text, is_dropped};

const INSTRUCTIONS: &str =
    "FROM, ADAPTER, DRAFT, TEMPLATE, SYSTEM, LICENSE, PARAMETER, MESSAGE, RENDERER, PARSER or REQUIRES";

/// The longest word that an error quotes.
const MAX_SHOWN: usize = 40;

/// An error and its position in a Modelfile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {problem}")]
pub struct ParseError {
    pub line: usize,
    /// Counted in characters.
    pub column: usize,
    pub problem: Problem,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    #[error("`{found}` is not an instruction: command must be one of {INSTRUCTIONS}")]
    Instruction { found: String },
    #[error("{instruction} has no value")]
    NoValue { instruction: &'static str },
    #[error("the quote that begins here is not closed (unexpected end of file)")]
    Unterminated,
    #[error(transparent)]
    Role(UnknownRole),
    #[error(transparent)]
    Parameter(ParameterError),
    #[error("`{found}` is not a version, expected one such as 0.19.0")]
    Version { found: String },
    #[error("there is no FROM line")]
    NoFrom,
    #[error("the file is neither UTF-8 nor UTF-16 with a byte order mark")]
    Encoding,
}

impl Modelfile {
    /// Reads a Modelfile, which needs a FROM.
    pub fn parse(bytes: &[u8]) -> Result<Modelfile, ParseError> {
        let modelfile = Modelfile::parse_settings(bytes)?;
        if modelfile.sources().next().is_none() {
            return Err(ParseError { line: 1, column: 1, problem: Problem::NoFrom });
        }
        Ok(modelfile)
    }

    /// Reads a Modelfile whose FROM may be given elsewhere.
    pub fn parse_settings(bytes: &[u8]) -> Result<Modelfile, ParseError> {
        let text = decode(bytes)?;
        let text = match text.contains(is_dropped) {
            true => Cow::Owned(text.chars().filter(|c| !is_dropped(*c)).collect()),
            false => text,
        };
        let mut cursor = Cursor { rest: &text, line: 1, column: 1 };
        let mut commands = Vec::new();
        while let Some(command) = cursor.command()? {
            commands.push(command);
        }
        Ok(Modelfile { commands })
    }
}

/// Decodes UTF-8 or UTF-16, according to the byte order mark.
fn decode(bytes: &[u8]) -> Result<Cow<'_, str>, ParseError> {
    let invalid = |before: &str| {
        let line = before.matches(NEWLINES).count() + 1;
        let column = before.rsplit(NEWLINES).next().map_or(0, |line| line.chars().count()) + 1;
        ParseError { line, column, problem: Problem::Encoding }
    };
    let wide = |read: fn([u8; 2]) -> u16| {
        let (pairs, left) = bytes[2..].as_chunks::<2>();
        let units: Vec<u16> = pairs.iter().map(|pair| read(*pair)).collect();
        match String::from_utf16(&units) {
            Ok(text) if left.is_empty() => Ok(Cow::Owned(text)),
            _ => Err(invalid("")),
        }
    };
    match bytes {
        [0xff, 0xfe, ..] => wide(u16::from_le_bytes),
        [0xfe, 0xff, ..] => wide(u16::from_be_bytes),
        _ => match std::str::from_utf8(bytes) {
            Ok(text) => Ok(Cow::Borrowed(text)),
            Err(error) => Err(invalid(&String::from_utf8_lossy(&bytes[..error.valid_up_to()]))),
        },
    }
}

/// The unread text and its position.
struct Cursor<'a> {
    rest: &'a str,
    line: usize,
    column: usize,
}

impl<'a> Cursor<'a> {
    fn command(&mut self) -> Result<Option<Command>, ParseError> {
        // 1. Skip to the next line with an instruction.
        loop {
            self.skip_while(char::is_whitespace);
            match self.rest.chars().next() {
                None => return Ok(None),
                Some('#') => self.skip_while(|c| !NEWLINES.contains(&c)),
                Some(_) => break,
            }
        }
        // 2. Read the instruction.
        let start = (self.line, self.column);
        let word = self.word();
        let at = |problem| ParseError { line: start.0, column: start.1, problem };
        let instruction = match word.to_ascii_uppercase().as_str() {
            "FROM" => "FROM",
            "ADAPTER" => "ADAPTER",
            "DRAFT" => "DRAFT",
            "TEMPLATE" => "TEMPLATE",
            "SYSTEM" => "SYSTEM",
            "LICENSE" => "LICENSE",
            "PARAMETER" => "PARAMETER",
            "MESSAGE" => "MESSAGE",
            "RENDERER" => "RENDERER",
            "PARSER" => "PARSER",
            "REQUIRES" => "REQUIRES",
            _ => return Err(at(Problem::Instruction { found: word.chars().take(MAX_SHOWN).collect() })),
        };
        // 3. Read its value.
        let command = match instruction {
            "PARAMETER" => {
                let name_at = self.skip_blanks();
                let name = self.word().to_ascii_lowercase();
                if name.is_empty() {
                    return Err(self.error_at(name_at, Problem::NoValue { instruction }));
                }
                let value_at = self.skip_blanks();
                let value = self.value(instruction)?;
                read_value(&name, value.as_str()).map_err(|error| {
                    let at = if matches!(error, ParameterError::Unknown { .. }) { name_at } else { value_at };
                    self.error_at(at, Problem::Parameter(error))
                })?;
                Command::Parameter { name, value }
            }
            "MESSAGE" => {
                let role_at = self.skip_blanks();
                let word = self.word();
                if word.is_empty() {
                    return Err(self.error_at(role_at, Problem::NoValue { instruction }));
                }
                let role: Role =
                    word.parse().map_err(|error| self.error_at(role_at, Problem::Role(error)))?;
                Command::Message { role, text: self.value(instruction)? }
            }
            _ => {
                let value_at = self.skip_blanks();
                let text = self.value(instruction)?;
                let empty = Problem::NoValue { instruction };
                match instruction {
                    // An empty text removes the base's text; an empty name is an error.
                    "TEMPLATE" => Command::Template(text),
                    "SYSTEM" => Command::System(text),
                    "LICENSE" => Command::License(text),
                    _ if text.as_str().trim().is_empty() => return Err(self.error_at(value_at, empty)),
                    "FROM" => Command::From(text),
                    "ADAPTER" => Command::Adapter(text),
                    "DRAFT" => Command::Draft(text),
                    "RENDERER" => Command::Renderer(text),
                    "PARSER" => Command::Parser(text),
                    _ if is_version(text.as_str()) => Command::Requires(text),
                    _ => {
                        let found = text.as_str().chars().take(MAX_SHOWN).collect();
                        return Err(self.error_at(value_at, Problem::Version { found }));
                    }
                }
            }
        };
        Ok(Some(command))
    }

    /// Reads the rest of the line, or the quoted text from here on.
    fn value(&mut self, instruction: &'static str) -> Result<Text, ParseError> {
        let start = self.skip_blanks();
        let quotes = ["\"\"\"", "\""].into_iter().find(|quotes| self.rest.starts_with(quotes));
        let Some(quotes) = quotes else {
            let line = self.rest.split(NEWLINES).next().unwrap_or_default();
            let value = line.trim();
            if value.is_empty() {
                return Err(self.error_at(start, Problem::NoValue { instruction }));
            }
            self.skip(line.len());
            return Ok(Text(value.to_owned()));
        };
        let mut end = 0;
        for line in self.rest.split_inclusive(NEWLINES) {
            end += line.len();
            let quoted = &self.rest[..end - line.len() + line.trim_end().len()];
            // A blank line cannot end a value that the previous line did not end.
            if !line.trim_end().is_empty() && quoted.len() >= 2 * quotes.len() && quoted.ends_with(quotes) {
                let value = quoted[quotes.len()..quoted.len() - quotes.len()].to_owned();
                self.skip(quoted.len());
                return Ok(Text(value));
            }
        }
        Err(self.error_at(start, Problem::Unterminated))
    }

    /// Reads up to the next whitespace.
    fn word(&mut self) -> &'a str {
        let length = self.rest.find(char::is_whitespace).unwrap_or(self.rest.len());
        let word = &self.rest[..length];
        self.skip(length);
        word
    }

    /// Skips spaces within the line and returns the new position.
    fn skip_blanks(&mut self) -> (usize, usize) {
        self.skip_while(|c| c.is_whitespace() && !NEWLINES.contains(&c));
        (self.line, self.column)
    }

    fn skip_while(&mut self, skipped: impl Fn(char) -> bool) {
        let length = self.rest.find(|c| !skipped(c)).unwrap_or(self.rest.len());
        self.skip(length);
    }

    fn skip(&mut self, length: usize) {
        let (passed, rest) = self.rest.split_at(length);
        let mut before = '\0';
        for c in passed.chars() {
            match c {
                '\n' if before == '\r' => {}
                '\n' | '\r' => (self.line, self.column) = (self.line + 1, 1),
                _ => self.column += 1,
            }
            before = c;
        }
        self.rest = rest;
    }

    fn error_at(&self, (line, column): (usize, usize), problem: Problem) -> ParseError {
        ParseError { line, column, problem }
    }
}

/// Whether a text is `[v]major.minor.patch`, with an optional suffix.
pub fn is_version(text: &str) -> bool {
    let bare = text.strip_prefix('v').unwrap_or(text);
    let numbers = bare.split(['-', '+']).next().unwrap_or_default();
    let parts: Vec<&str> = numbers.split('.').collect();
    let is_number = |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    parts.len() == 3 && parts.iter().all(is_number) && !text.contains(char::is_whitespace)
}

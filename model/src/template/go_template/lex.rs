//! The tokens of a template: text, and inside `{{ }}` words, fields, strings, numbers and signs. Trim markers
//! and comments are resolved here. Only the parser uses this module.

use super::error::SyntaxError;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    Text(String),
    Open,
    Close,
    /// Between operands; distinguishes `$x .Y` from `$x.Y`.
    Space,
    Assign,
    Declare,
    Pipe,
    Comma,
    ParenOpen,
    ParenClose,
    Str(String),
    Int(i64),
    Float(f64),
    /// `.Name`, without the dot.
    Field(String),
    /// `$name`, with the `$`.
    Variable(String),
    /// A keyword, a constant or a function.
    Word(String),
    Dot,
}

/// A position. Both numbers count from 1, columns in characters.
#[derive(Clone, Copy, Debug)]
pub(super) struct Position {
    pub(super) line: usize,
    pub(super) column: usize,
}

impl Position {
    pub(super) const START: Position = Position { line: 1, column: 1 };

    pub(super) fn error(self, what: impl Into<String>) -> SyntaxError {
        SyntaxError { line: self.line, column: self.column, what: what.into() }
    }
}

/// Returns all tokens, each with its position.
pub(super) fn tokens(source: &str) -> Result<Vec<(Token, Position)>, SyntaxError> {
    let mut lexer =
        Lexer { rest: source, place: Position::START, start: Position::START, tokens: Vec::new() };
    lexer.text()?;
    Ok(lexer.tokens)
}

struct Lexer<'a> {
    rest: &'a str,
    place: Position,
    /// Where the current token begins.
    start: Position,
    tokens: Vec<(Token, Position)>,
}

fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r' | '\n')
}

fn is_word(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

impl<'a> Lexer<'a> {
    fn text(&mut self) -> Result<(), SyntaxError> {
        while let Some(at) = self.rest.find("{{") {
            self.start = self.place;
            let text = self.take(at);
            let open = self.place;
            self.take(2);
            let trims = self.rest.strip_prefix('-').is_some_and(|rest| rest.starts_with(is_space));
            let text = if trims { text.trim_end_matches(is_space) } else { text };
            if !text.is_empty() {
                self.push(Token::Text(text.to_owned()));
            }
            if trims {
                self.take(2);
            }
            self.start = open;
            if self.rest.starts_with("/*") {
                let end = self.rest.find("*/").ok_or_else(|| self.error("unclosed comment"))?;
                self.take(end + 2);
                if !self.at_close() {
                    return Err(self.error("comment ends before closing delimiter"));
                }
                self.close();
                continue;
            }
            self.push(Token::Open);
            self.action()?;
        }
        if !self.rest.is_empty() {
            self.start = self.place;
            let text = self.take(self.rest.len()).to_owned();
            self.push(Token::Text(text));
        }
        Ok(())
    }

    /// Reads everything up to and including the closing delimiter.
    fn action(&mut self) -> Result<(), SyntaxError> {
        let mut depth = 0usize;
        loop {
            self.start = self.place;
            if self.at_close() {
                if depth > 0 {
                    return Err(self.error("unclosed left paren"));
                }
                self.push(Token::Close);
                self.close();
                return Ok(());
            }
            let Some(c) = self.rest.chars().next() else { return Err(self.error("unclosed action")) };
            match c {
                c if is_space(c) => {
                    // One space before ` -}}` belongs to the delimiter.
                    let mut len = 0;
                    while self.rest[len..].starts_with(is_space)
                        && !starts_with_trimming_close(&self.rest[len..])
                    {
                        len += 1;
                    }
                    self.take(len);
                    self.push(Token::Space);
                }
                '=' => self.sign(Token::Assign),
                ':' if self.rest.starts_with(":=") => {
                    self.take(1);
                    self.sign(Token::Declare);
                }
                '|' => self.sign(Token::Pipe),
                ',' => self.sign(Token::Comma),
                '(' => {
                    depth += 1;
                    self.sign(Token::ParenOpen);
                }
                ')' => {
                    depth = depth.checked_sub(1).ok_or_else(|| self.error("unexpected right paren"))?;
                    self.sign(Token::ParenClose);
                }
                '"' | '`' | '\'' => self.quoted(c)?,
                '$' => {
                    self.take(1);
                    let name = format!("${}", self.word());
                    self.check_terminated()?;
                    self.push(Token::Variable(name));
                }
                '.' if !self.rest[1..].starts_with(|c: char| c.is_ascii_digit()) => {
                    self.take(1);
                    let name = self.word().to_owned();
                    self.check_terminated()?;
                    self.push(if name.is_empty() { Token::Dot } else { Token::Field(name) });
                }
                '+' | '-' | '.' | '0'..='9' => self.number()?,
                c if is_word(c) => {
                    let word = self.word().to_owned();
                    self.check_terminated()?;
                    self.push(Token::Word(word));
                }
                c => return Err(self.error(format!("unexpected {c:?} in action"))),
            }
        }
    }

    fn at_close(&self) -> bool {
        self.rest.starts_with("}}") || starts_with_trimming_close(self.rest)
    }

    fn close(&mut self) {
        if self.rest.starts_with("}}") {
            self.take(2);
        } else {
            self.take(4);
            let spaces = self.rest.len() - self.rest.trim_start_matches(is_space).len();
            self.take(spaces);
        }
    }

    fn sign(&mut self, token: Token) {
        self.take(1);
        self.push(token);
    }

    fn word(&mut self) -> &'a str {
        let len = self.rest.find(|c| !is_word(c)).unwrap_or(self.rest.len());
        self.take(len)
    }

    /// Checks that a name ends where another token can begin.
    fn check_terminated(&self) -> Result<(), SyntaxError> {
        match self.rest.chars().next() {
            None | Some('.' | ',' | '|' | ':' | ')' | '(') => Ok(()),
            Some(c) if is_space(c) || self.rest.starts_with("}}") => Ok(()),
            Some(c) => Err(self.error(format!("bad character {c:?}"))),
        }
    }

    fn number(&mut self) -> Result<(), SyntaxError> {
        let mut last = '\0';
        let len = self.rest.find(|c: char| {
            let goes_on =
                is_word(c) || c == '.' || (matches!(c, '+' | '-') && matches!(last, '\0' | 'e' | 'E'));
            last = c;
            !goes_on
        });
        let text = self.take(len.unwrap_or(self.rest.len()));
        let token = number(text).ok_or_else(|| self.error(format!("bad number syntax: {text:?}")))?;
        self.push(token);
        Ok(())
    }

    fn quoted(&mut self, quote: char) -> Result<(), SyntaxError> {
        let unterminated = match quote {
            '"' => "unterminated quoted string",
            '`' => "unterminated raw quoted string",
            _ => "unterminated character constant",
        };
        let mut escaped = false;
        let end = self.rest.char_indices().skip(1).find(|&(_, c)| {
            let ends = !escaped && (c == quote || (c == '\n' && quote != '`'));
            escaped = !escaped && c == '\\' && quote != '`';
            ends
        });
        let end = match end {
            Some((end, c)) if c == quote => end,
            _ => return Err(self.error(unterminated)),
        };
        let inside = &self.take(end + 1)[1..end];
        let token = match quote {
            '`' => Token::Str(inside.replace('\r', "")),
            quote => {
                let bytes = unquote(inside, quote).ok_or_else(|| self.error("invalid syntax in a string"))?;
                let text = String::from_utf8_lossy(&bytes).into_owned();
                let mut chars = text.chars();
                match (quote, chars.next(), chars.next()) {
                    ('\'', Some(c), None) => Token::Int(i64::from(u32::from(c))),
                    ('\'', ..) => return Err(self.error("malformed character constant")),
                    _ => Token::Str(text),
                }
            }
        };
        self.push(token);
        Ok(())
    }

    fn take(&mut self, len: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(len);
        self.place = match taken.rsplit_once('\n') {
            None => Position { column: self.place.column + taken.chars().count(), ..self.place },
            Some((_, last)) => Position {
                line: self.place.line + taken.matches('\n').count(),
                column: last.chars().count() + 1,
            },
        };
        self.rest = rest;
        taken
    }

    fn push(&mut self, token: Token) {
        self.tokens.push((token, self.start));
    }

    fn error(&self, what: impl Into<String>) -> SyntaxError {
        self.start.error(what)
    }
}

fn starts_with_trimming_close(rest: &str) -> bool {
    rest.starts_with(is_space) && rest[1..].starts_with("-}}")
}

fn number(text: &str) -> Option<Token> {
    let (sign, digits) = match text.strip_prefix(['-', '+']) {
        Some(digits) => (if text.starts_with('-') { "-" } else { "" }, digits),
        None => ("", text),
    };
    let lower = digits.to_ascii_lowercase().replace('_', "");
    let radix = |prefix: &str, radix| {
        lower.strip_prefix(prefix).map(|digits| i64::from_str_radix(&format!("{sign}{digits}"), radix).ok())
    };
    if let Some(number) = radix("0x", 16).or_else(|| radix("0o", 8)).or_else(|| radix("0b", 2)) {
        return number.map(Token::Int);
    }
    if lower.contains(['.', 'e']) {
        return format!("{sign}{lower}").parse().ok().map(Token::Float);
    }
    // A leading zero means octal, as in C.
    let radix = if lower.len() > 1 && lower.starts_with('0') { 8 } else { 10 };
    i64::from_str_radix(&format!("{sign}{lower}"), radix).ok().map(Token::Int)
}

/// Decodes the content of an interpreted string literal of Go.
fn unquote(inside: &str, quote: char) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(inside.len());
    let mut chars = inside.chars();
    while let Some(c) = chars.next() {
        let c = match c {
            '\\' => match chars.next()? {
                'a' => '\x07',
                'b' => '\x08',
                'f' => '\x0c',
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                'v' => '\x0b',
                digit @ '0'..='7' => {
                    bytes.push(u8::try_from(read_code(&mut chars, 2, 8, digit.to_digit(8)?)?).ok()?);
                    continue;
                }
                'x' => {
                    bytes.push(u8::try_from(read_code(&mut chars, 2, 16, 0)?).ok()?);
                    continue;
                }
                'u' => char::from_u32(read_code(&mut chars, 4, 16, 0)?)?,
                'U' => char::from_u32(read_code(&mut chars, 8, 16, 0)?)?,
                c if c == '\\' || c == quote => c,
                _ => return None,
            },
            c => c,
        };
        bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
    }
    Some(bytes)
}

/// Reads this many more digits of a character code, whose first digits are in `start`.
fn read_code(chars: &mut std::str::Chars<'_>, digits: usize, radix: u32, start: u32) -> Option<u32> {
    (0..digits)
        .try_fold(start, |code, _| code.checked_mul(radix)?.checked_add(chars.next()?.to_digit(radix)?))
}

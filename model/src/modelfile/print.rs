//! Prints commands as text. Each value gets the first quoting that preserves it.

use std::fmt;

use super::{Command, Modelfile, Text};

/// The line endings. Each character ends a line, and so do both together.
pub(super) const NEWLINES: [char; 2] = ['\n', '\r'];

const QUOTES: &str = "\"\"\"";

/// Characters that parsing drops.
pub(super) fn is_dropped(c: char) -> bool {
    c == '\u{feff}' || c.is_control() && !matches!(c, '\n' | '\r' | '\t')
}

/// Returns the quotes around a text; `None` if no quoting preserves it.
pub(super) fn quotes(text: &str) -> Option<&'static str> {
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

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quotes = quotes(&self.0).unwrap_or_default();
        write!(f, "{quotes}{}{quotes}", self.0)
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Command::From(text) => write!(f, "FROM {text}"),
            Command::Adapter(text) => write!(f, "ADAPTER {text}"),
            Command::Draft(text) => write!(f, "DRAFT {text}"),
            Command::Template(text) => write!(f, "TEMPLATE {text}"),
            Command::System(text) => write!(f, "SYSTEM {text}"),
            Command::License(text) => write!(f, "LICENSE {text}"),
            Command::Parameter { name, value } => write!(f, "PARAMETER {name} {value}"),
            Command::Message { role, text } => write!(f, "MESSAGE {role} {text}"),
            Command::Renderer(text) => write!(f, "RENDERER {text}"),
            Command::Parser(text) => write!(f, "PARSER {text}"),
            Command::Requires(text) => write!(f, "REQUIRES {text}"),
        }
    }
}

impl fmt::Display for Modelfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.commands.iter().try_for_each(|command| writeln!(f, "{command}"))
    }
}

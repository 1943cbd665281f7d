//! TeX formulas as MathML. pulldown-latex parses a formula, within limits on its size and shape; its own writer is not
//! used, because it writes some texts of a formula as they are.

mod fonts;
#[cfg(test)]
mod tests;
mod write;

use std::panic;

use pulldown_latex::{Parser, Storage};

use write::Writer;

/// A longer formula is shown as its source.
const MAX_FORMULA_BYTES: usize = 8 * 1024;
/// The most MathML of one page.
const MAX_BYTES: usize = 1024 * 1024;
/// Groups may be nested this deeply. The parser reads the content of a group once for each group around it.
const MAX_GROUPS: usize = 32;
/// The most commands without a brace between them. The parser recurses for a command that is an argument.
const MAX_COMMANDS: usize = 100;
/// Commands that define others could write texts of any length.
const DEFINITIONS: [&str; 6] = ["def", "futurelet", "let", "newcommand", "providecommand", "renewcommand"];

/// Commands whose argument is text. Without braces, the parser takes all that follows for it.
const TEXTS: [&str; 7] = ["operatorname", "text", "textbf", "textit", "textrm", "textsf", "texttt"];

/// The MathML that is left for one page.
pub(super) struct Formulas {
    bytes_left: usize,
}

impl Default for Formulas {
    fn default() -> Formulas {
        Formulas { bytes_left: MAX_BYTES }
    }
}

impl Formulas {
    /// A formula as MathML. `None` if it is not one, or over a limit: show its source.
    pub(super) fn render(&mut self, source: &str, is_display: bool) -> Option<String> {
        if self.bytes_left == 0 || !is_simple(source) {
            return None;
        }
        let source = &with_limits(source);
        // The parser panics on some texts after commands that expect a number.
        let Ok(html) = panic::catch_unwind(|| write(source, is_display, self.bytes_left)) else {
            // One panic a page: each one writes to the log.
            self.bytes_left = 0;
            return None;
        };
        let html = html?;
        self.bytes_left = self.bytes_left.saturating_sub(html.len());
        Some(html)
    }
}

fn write(source: &str, is_display: bool, max_bytes: usize) -> Option<String> {
    let storage = Storage::new();
    let mut writer = Writer::new(is_display, max_bytes);
    for event in Parser::new(source, &storage) {
        writer.write(event.ok()?)?;
    }
    writer.finish()
}

/// Writes `\operatorname*{name}`, which the parser does not know, as `\operatorname{name}\limits`.
fn with_limits(source: &str) -> String {
    let mut parts = source.split("\\operatorname*");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        plain.push_str("\\operatorname");
        match part.split_once('}') {
            Some((name, rest)) => plain.extend([name, "}\\limits", rest]),
            None => plain.push_str(part),
        }
    }
    plain
}

/// Whether a formula is within the limits and defines no commands.
fn is_simple(source: &str) -> bool {
    if source.len() > MAX_FORMULA_BYTES {
        return false;
    }
    let (mut groups, mut commands) = (0_usize, 0);
    let mut rest = source;
    while let Some(at) = rest.find(['\\', '{', '}']) {
        let found = rest.as_bytes()[at];
        rest = &rest[at + 1..];
        match found {
            b'{' => (groups, commands) = (groups + 1, 0),
            b'}' => (groups, commands) = (groups.saturating_sub(1), 0),
            _ => {
                let end = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
                let name = &rest[..end];
                // An escaped character is part of the command.
                let length = if end == 0 { rest.chars().next().map_or(0, char::len_utf8) } else { end };
                rest = &rest[length..];
                commands += 1;
                match name {
                    "left" | "begin" | "begingroup" => groups += 1,
                    "right" | "end" | "endgroup" => groups = groups.saturating_sub(1),
                    name if TEXTS.contains(&name) => {
                        let argument = rest.strip_prefix('*').unwrap_or(rest);
                        if !argument.trim_start().starts_with('{') {
                            return false;
                        }
                    }
                    name if DEFINITIONS.contains(&name) => return false,
                    _ => {}
                }
            }
        }
        if groups > MAX_GROUPS || commands > MAX_COMMANDS {
            return false;
        }
    }
    true
}

//! Output to the user. This is the only file that writes to the standard streams: data goes to stdout,
//! messages to stderr, progress bars to stderr if it is a terminal.

use std::{
    borrow::Cow,
    io::{self, IsTerminal, Write},
    sync::{Arc, LazyLock},
    time::Duration,
};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use lode_client::Progress;

use crate::error::{Failure, Outcome};

/// Prints one or more lines of text.
pub(crate) fn print_line(text: impl AsRef<str>) -> Outcome {
    print_bytes(format!("{}\n", escape_control_except(text.as_ref(), &['\n', '\t'])).as_bytes())
}

/// Prints a line of valid JSON.
pub(crate) fn json_line(text: &str) -> Outcome {
    print_bytes(format!("{}\n", escape_json_control(text)).as_bytes())
}

/// Escapes the control characters that JSON allows in strings (U+007F to U+009F). Valid JSON contains others only
/// as whitespace between tokens; they become spaces.
fn escape_json_control(text: &str) -> Cow<'_, str> {
    if !text.contains(char::is_control) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '\0'..='\x1f' => escaped.push(' '),
            '\x7f'..='\u{9f}' => escaped.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => escaped.push(c),
        }
    }
    Cow::Owned(escaped)
}

/// Escapes untrusted text for display on one line: tensor names come from files and may contain terminal
/// control characters.
pub(crate) fn escape_control(text: &str) -> Cow<'_, str> {
    escape_control_except(text, &[])
}

fn escape_control_except<'a>(text: &'a str, kept: &[char]) -> Cow<'a, str> {
    let steers = |c: char| c.is_control() && !kept.contains(&c);
    if !text.contains(steers) {
        return Cow::Borrowed(text);
    }
    let mut spelled = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if steers(c) { spelled.extend(c.escape_default()) } else { spelled.push(c) }
    }
    Cow::Owned(spelled)
}

/// Prints data and flushes it.
pub(crate) fn print_bytes(bytes: &[u8]) -> Outcome {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    Ok(out.flush()?)
}

/// Prints a value as one line of JSON.
pub(crate) fn json(value: &impl serde::Serialize) -> Outcome {
    let text = serde_json::to_string(value).map_err(|error| crate::error::Failure::new(error.to_string()))?;
    json_line(&text)
}

/// Prints a message to standard error, above the progress bars.
pub(crate) fn print_message(text: impl AsRef<str>) {
    BARS.suspend(|| {
        // There is nowhere to report that stderr is closed.
        let _lost = writeln!(io::stderr().lock(), "{}", escape_control_except(text.as_ref(), &['\n', '\t']));
    });
}

/// Prints a part of a streamed text: unchanged to a file or pipe, with escaped control characters to a terminal.
pub(crate) fn print_text(text: &str) -> Outcome {
    match io::stdout().is_terminal() {
        true => print_bytes(escape_control_except(text, &['\n', '\t']).as_bytes()),
        false => print_bytes(text.as_bytes()),
    }
}

/// Prints a part of a streamed text to standard error, if that is a terminal.
pub(crate) fn print_to_terminal(text: &str) {
    if stderr_is_terminal() {
        write_to_stderr(&escape_control_except(text, &['\n', '\t']));
    }
}

/// Starts or ends dimmed text on standard error. The caller checks [`has_styles`].
pub(crate) fn set_dimmed(is_dimmed: bool) {
    write_to_stderr(if is_dimmed { "\x1b[2m" } else { "\x1b[0m" });
}

fn write_to_stderr(text: &str) {
    let mut err = io::stderr().lock();
    // There is nowhere to report that stderr is closed.
    let _lost = err.write_all(text.as_bytes()).and_then(|()| err.flush());
}

pub(crate) fn stderr_is_terminal() -> bool {
    io::stderr().is_terminal()
}

/// Whether standard error shows styles and spinners: it is a terminal, and the user has not disabled them
/// (<https://no-color.org>).
pub(crate) fn has_styles() -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    stderr_is_terminal() && !is_set("NO_COLOR") && std::env::var_os("TERM").is_some_and(|term| term != "dumb")
}

/// Asks for a password on the terminal, which does not show it.
pub(crate) fn ask_password(question: &str) -> Outcome<String> {
    Ok(rpassword::prompt_password(question)?)
}

/// Asks twice for a new password, because the terminal does not show it.
pub(crate) fn ask_new_password() -> Outcome<String> {
    let password = ask_password("New password: ")?;
    match ask_password("The same again: ")? == password {
        true => Ok(password),
        false => Err(Failure::new("the two passwords differ: nothing was changed")),
    }
}

pub(crate) fn stdin_is_terminal() -> bool {
    io::stdin().is_terminal()
}

pub(crate) fn stdout_is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// The width of the terminal at standard output, 80 if it does not report one; `None` if standard output is not
/// a terminal.
pub(crate) fn terminal_width() -> Option<usize> {
    const DEFAULT: usize = 80;
    let stdout = io::stdout();
    let measured = || terminal_size::terminal_size_of(&stdout).map(|(width, _)| usize::from(width.0));
    stdout.is_terminal().then(|| measured().filter(|width| *width > 0).unwrap_or(DEFAULT))
}

/// `1 tensor`, `2 tensors`.
pub(crate) fn counted(number: u64, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

/// All progress bars, one per line; hidden if stderr is not a terminal.
static BARS: LazyLock<MultiProgress> = LazyLock::new(|| {
    MultiProgress::with_draw_target(match io::stderr().is_terminal() {
        true => ProgressDrawTarget::stderr_with_hz(10),
        false => ProgressDrawTarget::hidden(),
    })
});

/// A progress bar. It disappears when it is dropped.
pub(crate) struct Meter(ProgressBar);

impl Meter {
    pub(crate) fn bytes(what: &str, total: u64) -> Arc<Meter> {
        const TEMPLATE: &str =
            "{msg:>10} {wide_bar} {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} {eta}";
        Meter::bar(what, total, TEMPLATE)
    }

    pub(crate) fn count(what: &str, total: u64) -> Arc<Meter> {
        Meter::bar(what, total, "{msg:>10} {wide_bar} {pos}/{len}")
    }

    fn bar(what: &str, total: u64, template: &str) -> Arc<Meter> {
        let bar = BARS.add(ProgressBar::new(total));
        let style = ProgressStyle::with_template(template);
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_message(what.to_owned());
        Arc::new(Meter(bar))
    }

    /// A spinner for work without a known total.
    pub(crate) fn wait(what: &str) -> Arc<Meter> {
        let bar = BARS.add(ProgressBar::no_length());
        bar.set_style(ProgressStyle::default_spinner());
        bar.set_message(what.to_owned());
        bar.enable_steady_tick(Duration::from_millis(120));
        Arc::new(Meter(bar))
    }

    /// Sets the message.
    pub(crate) fn set_message(&self, text: String) {
        self.0.set_message(escape_control(&text).into_owned());
    }

    /// Increases the total.
    pub(crate) fn expect(&self, more: u64) {
        self.0.inc_length(more);
    }

    pub(crate) fn end(&self) {
        self.0.finish_and_clear();
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.end();
        BARS.remove(&self.0);
    }
}

impl Progress for Meter {
    fn transferred(&self, bytes: u64) {
        self.0.inc(bytes);
    }

    fn retracted(&self, bytes: u64) {
        self.0.dec(bytes);
    }
}

/// Formats a size as `8.4 MB`: decimal units, at most three digits.
pub(crate) fn format_size(bytes: u64) -> String {
    scaled(bytes, &[" B", " kB", " MB", " GB", " TB", " PB", " EB"])
}

/// Formats a count as `4.2M`, the form in model names.
pub(crate) fn format_count(number: u64) -> String {
    scaled(number, &["", "K", "M", "B", "T", "Q", "QQ"])
}

/// The first twelve digits of a digest.
pub(crate) fn short_digest(digest: &str) -> String {
    digest.split_once(':').map_or(digest, |(_, hex)| hex).chars().take(12).collect()
}

fn scaled(number: u64, units: &[&str]) -> String {
    let mut value = number as f64;
    let mut unit = 0;
    // From 999.5 on, rounding would print 1000.
    while value >= 999.5 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    if unit == 0 || value >= 99.95 {
        format!("{value:.0}{}", units[unit])
    } else {
        format!("{value:.1}{}", units[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(escape_control("blk.0.attn_q.weight ü"), "blk.0.attn_q.weight ü");
        assert_eq!(escape_control("a\nb\x1b[2J\u{9b}31m"), "a\\nb\\u{1b}[2J\\u{9b}31m");
        assert_eq!(escape_control_except("hint:\n\tx\r", &['\n', '\t']), "hint:\n\tx\\r");
    }

    #[test]
    fn control_characters_in_json_are_escaped() {
        assert_eq!(escape_json_control("{\"a\":\"ü\"}"), "{\"a\":\"ü\"}");
        let escaped = escape_json_control("{\"a\":\r\"\x7f\u{9b}31m\"}");
        assert_eq!(escaped, "{\"a\": \"\\u007f\\u009b31m\"}");
        let value: serde_json::Value = serde_json::from_str(&escaped).unwrap();
        assert_eq!(value["a"], "\x7f\u{9b}31m");
    }

    #[test]
    fn messages_of_progress_bars_are_escaped() {
        let meter = Meter::wait("copying");
        meter.set_message("copying: \x1b[2J".into());
        assert_eq!(meter.0.message(), "copying: \\u{1b}[2J");
    }

    #[test]
    fn one_thing_is_singular() {
        assert_eq!([0, 1, 2].map(|number| counted(number, "tensor")), ["0 tensors", "1 tensor", "2 tensors"]);
    }

    #[test]
    fn sizes_and_amounts() {
        let check = |number: u64, as_size: &str, as_amount: &str| {
            assert_eq!((format_size(number).as_str(), format_count(number).as_str()), (as_size, as_amount));
        };
        check(0, "0 B", "0");
        check(999, "999 B", "999");
        check(1000, "1.0 kB", "1.0K");
        check(999_999, "1.0 MB", "1.0M");
        check(8_397_312, "8.4 MB", "8.4M");
        check(123_456_789, "123 MB", "123M");
        check(u64::MAX, "18.4 EB", "18.4QQ");
    }
}

//! Values as text: as Go's `fmt` and `encoding/json` print them, and `printf`.

use std::fmt::Write;

use super::limits::MAX_OUTPUT_BYTES;
use super::value::{OmitRule, PrintStyle, Value};

/// The smallest decimal exponent that `fmt` prints.
const EXPONENT: i32 = 6;
/// The largest width and precision of `printf`.
const MAX_WIDTH: usize = 1000;

/// Whether a text is already too long, so that nothing more needs to be added: its caller returns an error. A
/// short template can print one value many times.
fn is_full(out: &str) -> bool {
    out.len() > MAX_OUTPUT_BYTES
}

/// `%v`, truncated somewhere after [`MAX_OUTPUT_BYTES`].
pub(super) fn format_plain(value: &Value) -> String {
    let mut out = String::new();
    write_plain(&mut out, value);
    out
}

fn write_plain(out: &mut String, value: &Value) {
    match value {
        _ if is_full(out) => {}
        Value::Nil => out.push_str("<nil>"),
        Value::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
        Value::Int(number) => out.push_str(&number.to_string()),
        Value::Float(number) => out.push_str(&format_float(*number)),
        Value::Text(text) => out.push_str(text),
        Value::List(list) if list.printed == PrintStyle::Json => out.push_str(&format_json(value)),
        Value::List(list) if list.printed == PrintStyle::UnwrapSingle && list.items.len() < 2 => {
            if let Some(item) = list.items.first() {
                write_plain(out, item);
            }
        }
        Value::List(list) => write_separated(out, ("[", "]"), &list.items, write_plain),
        Value::Map(map) if map.printed == PrintStyle::Json && map.is_nil => out.push_str("{}"),
        Value::Map(map) if map.printed == PrintStyle::Json => out.push_str(&format_json(value)),
        Value::Map(map) => write_separated(out, ("map[", "]"), &map.entries, |out, (key, item)| {
            out.push_str(key);
            out.push(':');
            write_plain(out, item);
        }),
        Value::Record(record) if record.printed == PrintStyle::Json => out.push_str(&format_json(value)),
        Value::Record(record) => {
            write_separated(out, ("{", "}"), &record.fields, |out, field| write_plain(out, &field.value));
        }
    }
}

fn write_separated<T>(
    out: &mut String,
    (open, close): (&str, &str),
    items: impl IntoIterator<Item = T>,
    mut write: impl FnMut(&mut String, T),
) {
    out.push_str(open);
    for (at, item) in items.into_iter().enumerate() {
        if at > 0 {
            out.push(' ');
        }
        write(out, item);
    }
    out.push_str(close);
}

/// `%g`: the shortest text of the number, with an exponent where Go prints one.
fn format_float(number: f64) -> String {
    format_general(number, -4, EXPONENT)
}

/// Formats a number, with an exponent if its decimal exponent is outside `least..most`.
fn format_general(number: f64, least: i32, most: i32) -> String {
    if number.is_nan() {
        return "NaN".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    let (text, exponent) = with_exponent(&format!("{number:e}"));
    if (least..most).contains(&exponent) || number == 0.0 { format!("{number}") } else { text }
}

/// Formats an exponent as Go does: with a sign and at least two digits.
fn with_exponent(text: &str) -> (String, i32) {
    let (digits, exponent) = text.split_once('e').unwrap_or((text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    let sign = if exponent < 0 { '-' } else { '+' };
    (format!("{digits}e{sign}{:02}", exponent.unsigned_abs()), exponent)
}

/// `json.Marshal`.
pub(super) fn format_json(value: &Value) -> String {
    let mut out = String::new();
    write_json(&mut out, value);
    out
}

fn write_json(out: &mut String, value: &Value) {
    match value {
        _ if is_full(out) => {}
        Value::Nil => out.push_str("null"),
        Value::Bool(_) | Value::Int(_) => write_plain(out, value),
        // Unlike `fmt`, an exponent has no leading zero.
        Value::Float(number) => out.push_str(&format_general(*number, -6, 21).replace("e-0", "e-")),
        Value::Text(text) => write_json_text(out, text),
        Value::List(list) if list.is_nil => out.push_str("null"),
        Value::List(list) if list.printed == PrintStyle::UnwrapSingle && list.items.len() == 1 => {
            write_json(out, &list.items[0]);
        }
        Value::List(list) => {
            out.push('[');
            for (at, item) in list.items.iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                write_json(out, item);
            }
            out.push(']');
        }
        Value::Map(map) if map.is_nil => out.push_str("null"),
        Value::Map(map) if !map.json_order.is_empty() => {
            let entry = |key: &'_ String| map.entries.get_key_value(key);
            write_entries(
                out,
                map.json_order.iter().filter_map(entry).map(|(key, value)| (key.as_str(), value)),
            );
        }
        Value::Map(map) => {
            write_entries(out, map.entries.iter().map(|(key, value)| (key.as_str(), value)));
        }
        Value::Record(record) => {
            let fields = record.fields.iter().filter(|field| match field.omitted {
                OmitRule::Never => true,
                OmitRule::Nil => !matches!(field.value, Value::Nil),
                OmitRule::Empty => !field.value.is_empty(),
            });
            write_entries(out, fields.map(|field| (field.json, &field.value)));
        }
    }
}

fn write_entries<'a>(out: &mut String, entries: impl Iterator<Item = (&'a str, &'a Value)>) {
    out.push('{');
    for (at, (key, value)) in entries.enumerate() {
        if at > 0 {
            out.push(',');
        }
        write_json_text(out, key);
        out.push(':');
        write_json(out, value);
    }
    out.push('}');
}

fn write_json_text(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\x08' => out.push_str("\\b"),
            '\x0c' => out.push_str("\\f"),
            // Go escapes these characters so that the JSON can be embedded in HTML and JavaScript.
            '\0'..='\x1f' | '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// `%q`.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\x07' => out.push_str("\\a"),
            '\x08' => out.push_str("\\b"),
            '\x0c' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\x0b' => out.push_str("\\v"),
            '\0'..='\x1f' | '\x7f' => {
                let _ = write!(out, "\\x{:02x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// `fmt.Sprint`: adds a space between operands if neither is a string.
pub(super) fn print(values: &[Value]) -> String {
    let mut out = String::new();
    for (at, value) in values.iter().enumerate() {
        let is_text = |value: &Value| matches!(value, Value::Text(_));
        if at > 0 && !is_text(value) && !is_text(&values[at - 1]) {
            out.push(' ');
        }
        write_plain(&mut out, value);
    }
    out
}

/// `fmt.Sprintln`.
pub(super) fn println(values: &[Value]) -> String {
    let mut out = String::new();
    write_separated(&mut out, ("", "\n"), values, write_plain);
    out
}

#[derive(Clone, Copy, Default)]
struct Spec {
    minus: bool,
    plus: bool,
    zero: bool,
    space: bool,
    width: usize,
    precision: Option<usize>,
}

/// `fmt.Sprintf` for the verbs that apply to these values. Other verbs are reported as `fmt` reports a wrong
/// verb.
pub(super) fn printf(format: &str, values: &[Value]) -> String {
    let mut out = String::new();
    let mut values = values.iter();
    let mut chars = format.chars().peekable();
    while let Some(c) = chars.next().filter(|_| !is_full(&out)) {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut spec = Spec::default();
        while let Some(&flag) = chars.peek() {
            match flag {
                '-' => spec.minus = true,
                '+' => spec.plus = true,
                '0' => spec.zero = true,
                ' ' => spec.space = true,
                '#' => {}
                _ => break,
            }
            chars.next();
        }
        spec.width = digits(&mut chars);
        if chars.next_if_eq(&'.').is_some() {
            spec.precision = Some(digits(&mut chars));
        }
        match chars.next() {
            None => out.push_str("%!(NOVERB)"),
            Some('%') => out.push('%'),
            Some(verb) => match values.next() {
                None => out.extend(["%!", verb.encode_utf8(&mut [0; 4]), "(MISSING)"]),
                Some(value) => verb_of(&mut out, verb, spec, value),
            },
        }
    }
    let mut separator = "%!(EXTRA ";
    for value in values {
        out.extend([separator, value.kind(), "="]);
        write_plain(&mut out, value);
        separator = ", ";
    }
    if separator == ", " {
        out.push(')');
    }
    out
}

fn digits(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) -> usize {
    let mut number = 0;
    while let Some(digit) = chars.next_if(char::is_ascii_digit) {
        number = (number * 10 + digit.to_digit(10).unwrap_or_default() as usize).min(MAX_WIDTH);
    }
    number
}

fn verb_of(out: &mut String, verb: char, spec: Spec, value: &Value) {
    let cut = |text: String| match spec.precision {
        Some(most) => text.chars().take(most).collect(),
        None => text,
    };
    let signed = |number: i64, text: String| match number {
        0.. if spec.plus => format!("+{text}"),
        0.. if spec.space => format!(" {text}"),
        _ => text,
    };
    let is_number = matches!(value, Value::Int(_) | Value::Float(_));
    let text = match (verb, value) {
        ('v', Value::Int(number)) | ('d', Value::Int(number)) => signed(*number, number.to_string()),
        ('v', Value::Text(text)) | ('s', Value::Text(text)) => cut(text.to_string()),
        ('v', value) => format_plain(value),
        ('q', Value::Text(text)) => quoted(&cut(text.to_string())),
        ('q', Value::Int(number)) => {
            let c = u32::try_from(*number).ok().and_then(char::from_u32).unwrap_or('\u{fffd}');
            format!("'{c}'")
        }
        ('t', Value::Bool(value)) => value.to_string(),
        ('c', Value::Int(number)) => {
            u32::try_from(*number).ok().and_then(char::from_u32).unwrap_or('\u{fffd}').to_string()
        }
        ('x', Value::Int(number)) => {
            format!("{}{:x}", if *number < 0 { "-" } else { "" }, number.unsigned_abs())
        }
        ('X', Value::Int(number)) => {
            format!("{}{:X}", if *number < 0 { "-" } else { "" }, number.unsigned_abs())
        }
        ('x', Value::Text(text)) => text.bytes().map(|byte| format!("{byte:02x}")).collect(),
        ('f' | 'F', Value::Float(number)) => {
            let text = format!("{number:.*}", spec.precision.unwrap_or(6));
            if *number >= 0.0 { signed(0, text) } else { text }
        }
        ('e', Value::Float(number)) => with_exponent(&format!("{number:.*e}", spec.precision.unwrap_or(6))).0,
        ('g', Value::Float(number)) if spec.precision.is_none() => format_float(*number),
        ('s', Value::List(_) | Value::Map(_) | Value::Record(_)) => cut(format_plain(value)),
        (verb, Value::Nil) => format!("%!{verb}(<nil>)"),
        (verb, value) => format!("%!{verb}({}={})", value.kind(), format_plain(value)),
    };
    let fill = spec.width.saturating_sub(text.chars().count());
    if spec.minus {
        out.push_str(&text);
        out.extend(std::iter::repeat_n(' ', fill));
    } else if spec.zero && is_number {
        let at = usize::from(text.starts_with(['-', '+']));
        out.push_str(&text[..at]);
        out.extend(std::iter::repeat_n('0', fill));
        out.push_str(&text[at..]);
    } else {
        out.extend(std::iter::repeat_n(' ', fill));
        out.push_str(&text);
    }
}

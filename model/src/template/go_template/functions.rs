//! The functions that a template can call: those of Go's text/template and those that ollama adds.

use std::cmp::Ordering;
use std::fmt::Write;
use std::sync::Arc;

use super::print;
use super::value::{List, Value};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Function {
    And,
    Or,
    Not,
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    Len,
    Index,
    Slice,
    Print,
    Printf,
    Println,
    Html,
    Js,
    UrlQuery,
    Call,
    Json,
    CurrentDate,
    YesterdayDate,
    ToTypeScriptType,
}

/// Dates as a template prints them.
#[derive(Clone, Debug, Default)]
pub struct Dates {
    /// `2006-01-02`
    pub today: String,
    pub yesterday: String,
}

impl Function {
    pub(super) fn by_name(name: &str) -> Option<Function> {
        Some(match name {
            "and" => Function::And,
            "or" => Function::Or,
            "not" => Function::Not,
            "eq" => Function::Eq,
            "ne" => Function::Ne,
            "lt" => Function::Lt,
            "le" => Function::Le,
            "gt" => Function::Gt,
            "ge" => Function::Ge,
            "len" => Function::Len,
            "index" => Function::Index,
            "slice" => Function::Slice,
            "print" => Function::Print,
            "printf" => Function::Printf,
            "println" => Function::Println,
            "html" => Function::Html,
            "js" => Function::Js,
            "urlquery" => Function::UrlQuery,
            "call" => Function::Call,
            "json" => Function::Json,
            "currentDate" => Function::CurrentDate,
            "yesterdayDate" => Function::YesterdayDate,
            "toTypeScriptType" => Function::ToTypeScriptType,
            _ => return None,
        })
    }

    /// Calls the function. The evaluator handles `and` and `or`, which may not need all their arguments.
    pub(super) fn call(self, arguments: &[Value], dates: &Dates) -> Result<Value, String> {
        let wanted = match self {
            Function::Not | Function::Len | Function::Json | Function::ToTypeScriptType => 1..=1,
            Function::Ne | Function::Lt | Function::Le | Function::Gt | Function::Ge => 2..=2,
            Function::Print
            | Function::Println
            | Function::Html
            | Function::Js
            | Function::UrlQuery
            | Function::CurrentDate
            | Function::YesterdayDate => 0..=usize::MAX,
            _ => 1..=usize::MAX,
        };
        if !wanted.contains(&arguments.len()) {
            return Err(format!("wrong number of args for {self:?}: {}", arguments.len()));
        }
        Ok(match self {
            // The evaluator has handled the other arguments; only the last one is left.
            Function::And | Function::Or => arguments[arguments.len() - 1].clone(),
            Function::Not => Value::Bool(!arguments[0].is_true()),
            Function::Eq => Value::Bool(equals_any(&arguments[0], &arguments[1..])?),
            Function::Ne => Value::Bool(!equals_any(&arguments[0], &arguments[1..])?),
            Function::Lt => Value::Bool(less(arguments)?),
            Function::Le => Value::Bool(less(arguments)? || equals_any(&arguments[0], &arguments[1..])?),
            Function::Gt => Value::Bool(!(less(arguments)? || equals_any(&arguments[0], &arguments[1..])?)),
            Function::Ge => Value::Bool(!less(arguments)?),
            Function::Len => Value::Int(len(&arguments[0])? as i64),
            Function::Index => index(&arguments[0], &arguments[1..])?,
            Function::Slice => slice(&arguments[0], &arguments[1..])?,
            Function::Print => print::print(arguments).into(),
            Function::Println => print::println(arguments).into(),
            Function::Printf => match &arguments[0] {
                Value::Text(format) => print::printf(format, &arguments[1..]).into(),
                other => return Err(format!("printf expects a string first, got a {}", other.kind())),
            },
            Function::Html => html(&text_of(arguments)).into(),
            Function::Js => js(&text_of(arguments)).into(),
            Function::UrlQuery => url_query(&text_of(arguments)).into(),
            Function::Call => return Err(format!("non-function of type {}", arguments[0].kind())),
            Function::Json => print::format_json(&arguments[0]).into(),
            Function::CurrentDate => dates.today.as_str().into(),
            Function::YesterdayDate => dates.yesterday.as_str().into(),
            Function::ToTypeScriptType => match &arguments[0] {
                Value::Record(record) => {
                    let method = record.methods.iter().find(|(name, _)| *name == "ToTypeScriptType");
                    method.map_or_else(|| Value::from("any"), |(_, value)| value.clone())
                }
                _ => Value::from("any"),
            },
        })
    }
}

fn incompatible(a: &Value, b: &Value) -> String {
    format!("incompatible types for comparison: {} and {}", a.kind(), b.kind())
}

fn equals_any(value: &Value, others: &[Value]) -> Result<bool, String> {
    if others.is_empty() {
        return Err("missing argument for comparison".to_owned());
    }
    for other in others {
        let equal = match (value, other) {
            (Value::Bool(a), Value::Bool(b)) => a == b,
            (Value::Int(a), Value::Int(b)) => a == b,
            (Value::Float(a), Value::Float(b)) => a == b,
            (Value::Text(a), Value::Text(b)) => a == b,
            (a, b) if a.is_nil() || b.is_nil() => a.is_nil() && b.is_nil(),
            (Value::List(_), Value::List(_)) | (Value::Map(_), Value::Map(_)) => {
                return Err(format!("non-comparable type {}", value.kind()));
            }
            (Value::Record(a), Value::Record(b)) => Arc::ptr_eq(a, b),
            (a, b) => return Err(incompatible(a, b)),
        };
        if equal {
            return Ok(true);
        }
    }
    Ok(false)
}

fn less(arguments: &[Value]) -> Result<bool, String> {
    let ordering = match (&arguments[0], &arguments[1]) {
        (Value::Int(a), Value::Int(b)) => a.cmp(b),
        (Value::Float(a), Value::Float(b)) => a.partial_cmp(b).unwrap_or(Ordering::Equal),
        (Value::Text(a), Value::Text(b)) => a.cmp(b),
        (a, b) if a.kind() == b.kind() => return Err(format!("invalid type for comparison: {}", a.kind())),
        (a, b) => return Err(incompatible(a, b)),
    };
    Ok(ordering == Ordering::Less)
}

fn len(value: &Value) -> Result<usize, String> {
    match value {
        Value::Text(text) => Ok(text.len()),
        Value::List(list) => Ok(list.items.len()),
        Value::Map(map) => Ok(map.entries.len()),
        other => Err(format!("len of type {}", other.kind())),
    }
}

/// Converts a value to a position in a sequence of `len` items; `len` itself is valid.
fn position(value: &Value, len: usize) -> Result<usize, String> {
    match value {
        Value::Int(at) => usize::try_from(*at)
            .ok()
            .filter(|at| *at <= len)
            .ok_or_else(|| format!("index out of range: {at}")),
        other => Err(format!("cannot index slice/array with type {}", other.kind())),
    }
}

fn index(value: &Value, indexes: &[Value]) -> Result<Value, String> {
    if matches!(value, Value::Nil) {
        return Err("index of untyped nil".to_owned());
    }
    let mut value = value.clone();
    for index in indexes {
        let out_of_range = || format!("index out of range: {}", print::format_plain(index));
        value = match &value {
            Value::List(list) => {
                let at = position(index, list.items.len())?;
                list.items.get(at).cloned().ok_or_else(out_of_range)?
            }
            Value::Text(text) => {
                let at = position(index, text.len())?;
                Value::Int(i64::from(*text.as_bytes().get(at).ok_or_else(out_of_range)?))
            }
            Value::Map(map) => match index {
                Value::Text(key) => map.entries.get(&**key).unwrap_or(&map.missing).clone(),
                other => return Err(format!("value has type {}; should be string", other.kind())),
            },
            other => return Err(format!("can't index item of type {}", other.kind())),
        };
    }
    Ok(value)
}

fn slice(value: &Value, indexes: &[Value]) -> Result<Value, String> {
    let len = match value {
        Value::Text(text) if indexes.len() < 3 => text.len(),
        Value::List(list) if indexes.len() <= 3 => list.items.len(),
        Value::Text(_) | Value::List(_) => return Err(format!("too many slice indexes: {}", indexes.len())),
        Value::Nil => return Err("slice of untyped nil".to_owned()),
        other => return Err(format!("can't slice item of type {}", other.kind())),
    };
    let indexes: Vec<usize> =
        indexes.iter().map(|index| position(index, len)).collect::<Result<_, String>>()?;
    let from = indexes.first().copied().unwrap_or(0);
    let to = indexes.get(1).copied().unwrap_or(len);
    if from > to || indexes.get(2).is_some_and(|most| to > *most) {
        return Err(format!("invalid slice index: {from} > {to}"));
    }
    Ok(match value {
        Value::Text(text) => String::from_utf8_lossy(&text.as_bytes()[from..to]).into_owned().into(),
        Value::List(list) => Value::List(Arc::new(List {
            items: list.items[from..to].to_vec(),
            printed: list.printed,
            is_nil: list.is_nil,
        })),
        _ => Value::Nil,
    })
}

/// Returns the text that an escaping function escapes.
fn text_of(arguments: &[Value]) -> String {
    match arguments {
        [Value::Text(text)] => text.to_string(),
        arguments => print::print(arguments),
    }
}

fn html(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\0' => out.push('\u{fffd}'),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            c => out.push(c),
        }
    }
    out
}

fn js(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' | '\'' | '"' => out.extend(['\\', c]),
            '<' | '>' | '&' | '=' | '\0'..='\x1f' => {
                let _ = write!(out, "\\u{:04X}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out
}

fn url_query(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(char::from(byte)),
            b' ' => out.push('+'),
            byte => {
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
    out
}

//! JSON as Python prints it, which templates and models expect.

use serde_json::Value;

/// JSON on one line, as Python prints it.
pub(super) fn python_json(value: &Value) -> String {
    let mut text = String::new();
    write_json(&mut text, value, None, 0);
    text
}

/// JSON on several lines if there is an indent.
pub(super) fn write_json(out: &mut String, value: &Value, indent: Option<usize>, depth: usize) {
    let newline = |out: &mut String, depth: usize| {
        if let Some(width) = indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', width * depth));
        }
    };
    let comma = if indent.is_some() { "," } else { ", " };
    match value {
        Value::Array(values) if !values.is_empty() => {
            out.push('[');
            for (at, value) in values.iter().enumerate() {
                if at > 0 {
                    out.push_str(comma);
                }
                newline(out, depth + 1);
                write_json(out, value, indent, depth + 1);
            }
            newline(out, depth);
            out.push(']');
        }
        Value::Object(entries) if !entries.is_empty() => {
            out.push('{');
            for (at, (key, value)) in entries.iter().enumerate() {
                if at > 0 {
                    out.push_str(comma);
                }
                newline(out, depth + 1);
                out.push_str(&Value::String(key.clone()).to_string());
                out.push_str(": ");
                write_json(out, value, indent, depth + 1);
            }
            newline(out, depth);
            out.push('}');
        }
        other => out.push_str(&other.to_string()),
    }
}

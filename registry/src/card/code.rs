//! The text of a file as HTML with colours.

use std::io::{self, Write};

use super::highlight::{Highlighter, Language, escape};

/// The longest JSON that is indented. Deeply nested lists grow to hundreds of times their length.
const MAX_INDENTED_BYTES: usize = 4 * 1024 * 1024;

/// Whether the name of a file tells a language that has colours.
pub(crate) fn has_colours(path: &str) -> bool {
    Language::from_path(path).is_some()
}

/// The text of a file as HTML, with colours if its name tells a language that has them. It is expensive: run it off the
/// async threads.
pub(crate) fn render_code(path: &str, text: &str) -> String {
    let indented = indent_json(path, text);
    let text = indented.as_deref().unwrap_or(text);
    let language = Language::from_path(path);
    let coloured = language.and_then(|language| Highlighter::default().highlight(language, text));
    coloured.unwrap_or_else(|| {
        let mut html = String::with_capacity(text.len());
        escape(text, &mut html);
        html
    })
}

/// Indents JSON that is written on one line. `None` if it is none, or becomes too long.
fn indent_json(path: &str, text: &str) -> Option<String> {
    if !path.to_ascii_lowercase().ends_with(".json") || text.trim_end().contains('\n') {
        return None;
    }
    let value: serde_json::Value = serde_json::from_str(text).ok()?;
    let mut indented = LimitedText(Vec::new());
    serde_json::to_writer_pretty(&mut indented, &value).ok()?;
    String::from_utf8(indented.0).ok()
}

/// A text of at most [`MAX_INDENTED_BYTES`].
struct LimitedText(Vec<u8>);

impl Write for LimitedText {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_INDENTED_BYTES {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_on_one_line_is_indented() {
        let check = |path: &str, text: &str, expect: Option<&str>| {
            assert_eq!(indent_json(path, text).as_deref(), expect, "{path}");
        };
        check("a.json", r#"{"b":1,"a":2}"#, Some("{\n  \"b\": 1,\n  \"a\": 2\n}"));
        check("a.txt", r#"{"b":1}"#, None);
        check("a.json", "{", None);
        check("a.json", "{\n}", None);
        // Each number would have 240 blanks before it.
        let deep = format!("{}{}1{}", "[".repeat(120), "1,".repeat(100_000), "]".repeat(120));
        check("a.json", &deep, None);
    }

    #[test]
    fn code_is_escaped() {
        assert_eq!(render_code("a.json", "<b>"), "&lt;b&gt;");
        let coloured = "<span class=\"hl-keyword\">echo</span> <span class=\"hl-string\">'&lt;b&gt;'</span>";
        assert_eq!(render_code("a.sh", "echo '<b>'"), coloured);
        assert!(has_colours("a/b.JSON") && !has_colours("LICENSE"));
    }
}

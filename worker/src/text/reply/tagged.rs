//! Tool calls with each argument in its own tags, as in Qwen3-Coder and GLM: not JSON, and with unescaped
//! values.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::held_back::partial_suffix_len;
use super::json;
use super::tools::ParameterKind;

/// Maximum length of a name or a key.
const MAX_NAME_BYTES: usize = 256;

/// The tags around name, keys and values. Whitespace is allowed between any two of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CallTags {
    /// After the name; empty if whitespace or a tag ends it.
    pub(super) name_end: String,
    pub(super) key: String,
    /// Between a key and its value: at least one.
    pub(super) key_end: Vec<String>,
    pub(super) value_end: String,
    pub(super) end: String,
}

impl CallTags {
    pub(super) fn marks(&self) -> impl Iterator<Item = &str> {
        let one = [&self.name_end, &self.key, &self.value_end, &self.end];
        one.into_iter().chain(&self.key_end).map(String::as_str)
    }
}

/// The parsed part of a call.
#[derive(Debug, Default)]
pub(super) struct TaggedCall {
    /// Length of the parsed text.
    at: usize,
    name: Option<String>,
    /// The key whose value is being read.
    key: Option<String>,
    /// Offset after `at` before which no value ends.
    searched: usize,
    arguments: Vec<(String, String)>,
}

pub(super) enum Reading {
    More,
    Broken,
    /// The end of the call.
    Complete(usize),
}

impl TaggedCall {
    /// Continues parsing a text that begins with the name.
    pub(super) fn read(&mut self, text: &str, tags: &CallTags) -> Reading {
        loop {
            let rest = &text[self.at..];
            if self.name.is_none() {
                let end = match tags.name_end.as_str() {
                    "" => rest.trim_start().find(|c: char| c.is_whitespace() || c == '<' || c == '['),
                    mark => rest.trim_start().find(mark),
                };
                let blanks = rest.len() - rest.trim_start().len();
                let Some(end) = end.map(|end| blanks + end) else { return read_more(rest) };
                let name = rest[..end].trim();
                if !is_name(name) {
                    return Reading::Broken;
                }
                self.name = Some(name.to_owned());
                self.at += end + tags.name_end.len();
            } else if self.key.is_some() {
                match rest[self.searched..].find(&tags.value_end) {
                    Some(end) => {
                        let end = self.searched + end;
                        let value = rest[..end].strip_prefix('\n').unwrap_or(&rest[..end]);
                        let value = value.strip_suffix('\n').unwrap_or(value).to_owned();
                        self.arguments.extend(self.key.take().map(|key| (key, value)));
                        self.at += end + tags.value_end.len();
                    }
                    None => {
                        self.searched = rest.len() - partial_suffix_len(rest, &tags.value_end);
                        return Reading::More;
                    }
                }
            } else {
                self.at += rest.len() - rest.trim_start().len();
                let rest = rest.trim_start();
                if let Some(behind) = rest.strip_prefix(&tags.key) {
                    match key(behind, tags) {
                        Key::More => return read_more(rest),
                        Key::Broken => return Reading::Broken,
                        Key::Read { key, len } => {
                            self.key = Some(key);
                            self.searched = 0;
                            self.at += tags.key.len() + len;
                        }
                    }
                } else if rest.starts_with(&tags.end) {
                    return Reading::Complete(self.at + tags.end.len());
                } else if tags.key.starts_with(rest) || tags.end.starts_with(rest) {
                    return Reading::More;
                } else {
                    return Reading::Broken;
                }
            }
        }
    }

    /// Returns name and arguments. `known` are the parameters of the tools: values that are not strings are
    /// parsed as JSON.
    pub(super) fn finish(
        self,
        known: &BTreeMap<String, BTreeMap<String, ParameterKind>>,
    ) -> (String, Map<String, Value>) {
        let name = self.name.unwrap_or_default();
        let kinds = known.get(&name);
        let value = |(key, text): (String, String)| {
            let is_text = match kinds.and_then(|kinds| kinds.get(&key)) {
                Some(ParameterKind::Text) | None => true,
                Some(ParameterKind::TextOrNull) => text != "null",
                Some(ParameterKind::Json) => false,
            };
            let value = if is_text { None } else { json::parse(text.trim()) };
            (key, value.unwrap_or(Value::String(text)))
        };
        (name, self.arguments.into_iter().map(value).collect())
    }
}

fn read_more(rest: &str) -> Reading {
    if rest.len() > 2 * MAX_NAME_BYTES { Reading::Broken } else { Reading::More }
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= MAX_NAME_BYTES && !name.contains(['<', '\n'])
}

enum Key {
    More,
    Broken,
    Read { key: String, len: usize },
}

/// A key, and the length of the text before its value.
fn key(text: &str, tags: &CallTags) -> Key {
    let Some((first, others)) = tags.key_end.split_first() else { return Key::Broken };
    let Some(end) = text.find(first) else { return Key::More };
    let key = text[..end].trim();
    if !is_name(key) {
        return Key::Broken;
    }
    let mut len = end + first.len();
    for mark in others {
        let rest = text[len..].trim_start();
        if !rest.starts_with(mark) {
            return if mark.starts_with(rest) { Key::More } else { Key::Broken };
        }
        len = text.len() - rest.len() + mark.len();
    }
    Key::Read { key: key.to_owned(), len }
}

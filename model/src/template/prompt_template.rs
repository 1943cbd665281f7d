//! Facts about a model's prompt templates that their text alone gives: where a checkpoint keeps its template,
//! what it supports, and which of two templates is used. The worker and the model description that clients
//! see must agree on these facts.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::go_template::Template;

/// The text that ends reasoning, for templates that do not write it in earlier turns.
pub const REASONING_END: &str = "</think>";

/// A Jinja template, and an optional second one for conversations with tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JinjaSource<'a> {
    pub chat: &'a str,
    pub tool_use: Option<&'a str>,
}

/// The files of a checkpoint that may hold a Jinja template, in order of precedence.
#[derive(Debug, Default, Clone, Copy)]
pub struct TemplateFiles<'a> {
    /// `chat_template.jinja`
    pub jinja: Option<&'a str>,
    /// `chat_template.json`: `{"chat_template": ...}`
    pub json: Option<&'a Value>,
    /// `tokenizer_config.json`
    pub tokenizer_config: Option<&'a Value>,
}

impl<'a> TemplateFiles<'a> {
    /// Returns the template that the files hold; `None` if none of them holds one.
    pub fn find(self) -> Option<JinjaSource<'a>> {
        let alone = |chat| Some(JinjaSource { chat, tool_use: None });
        if let Some(chat) = self.jinja {
            return alone(chat);
        }
        [self.json, self.tokenizer_config].into_iter().flatten().find_map(|file| {
            match file.get("chat_template")? {
                Value::String(chat) => alone(chat),
                // A list of {name, template}. `default` is used, or `tool_use` if there are tools.
                Value::Array(named) => {
                    let template = |entry: &'a Value| entry.get("template").and_then(Value::as_str);
                    let find = |name: &str| {
                        let is_it = |entry: &&Value| entry.get("name").and_then(Value::as_str) == Some(name);
                        named.iter().find(is_it).and_then(template)
                    };
                    let chat = find("default").or_else(|| named.first().and_then(template))?;
                    Some(JinjaSource { chat, tool_use: find("tool_use") })
                }
                _ => None,
            }
        })
    }
}

/// The features that a template supports, as far as its text shows.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct TemplateFeatures {
    pub tools: bool,
    pub thinking: bool,
    /// Generates the text between a prompt and a suffix.
    pub insert: bool,
    /// Renders both tool calls and their results.
    pub tool_results: bool,
}

impl TemplateFeatures {
    pub fn from_go(template: &Template, source: &str) -> TemplateFeatures {
        let mentions: BTreeSet<String> =
            template.mentioned_names().into_iter().map(str::to_lowercase).collect();
        let tools = mentions.contains("tools");
        let takes_results =
            ["eq .Role \"tool\"", "tool_response", "TOOL_RESULTS"].iter().any(|mark| source.contains(mark));
        TemplateFeatures {
            tools,
            thinking: mentions.contains("thinking"),
            insert: mentions.contains("suffix"),
            tool_results: tools && mentions.contains("toolcalls") && takes_results,
        }
    }

    pub fn from_jinja(source: JinjaSource<'_>) -> TemplateFeatures {
        let JinjaSource { chat, tool_use } = source;
        let mentions = |text: &str| chat.contains(text) || tool_use.is_some_and(|other| other.contains(text));
        let tools = tool_use.is_some() || chat.contains("tools");
        let results = ["tool_response", "tool_results", "'tool'", "\"tool\"", "ipython"];
        TemplateFeatures {
            tools,
            thinking: mentions(REASONING_END),
            insert: false,
            tool_results: tools && mentions("tool_calls") && results.into_iter().any(mentions),
        }
    }

    fn count(self) -> u8 {
        [self.tools, self.thinking, self.insert].into_iter().map(u8::from).sum()
    }
}

/// Whether ollama would use a model's Jinja template although there is a Go template: if it supports more, or
/// only it supports tool results. `rendered` is whether the model requests one of ollama's built-in
/// renderers; such models often carry an empty Go template.
pub fn prefers_jinja(go: TemplateFeatures, jinja: TemplateFeatures, rendered: bool) -> bool {
    let is_same =
        TemplateFeatures { tool_results: false, ..go } == TemplateFeatures { tool_results: false, ..jinja };
    let can_more = jinja.count() > go.count() && (!go.tool_results || jinja.tool_results);
    let knows_results = is_same && go.tools && jinja.tool_results && !go.tool_results;
    rendered || can_more || knows_results
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn templates_are_found_in_checkpoints() {
        let list = json!({"chat_template": [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]});
        let unnamed = json!({"chat_template": [{"name": "rag", "template": "R"}]});
        let text = json!({"chat_template": "C"});
        let nothing = json!({"chat_template": null});
        let files = |jinja, json, tokenizer_config| {
            TemplateFiles { jinja, json, tokenizer_config }.find().map(|found| (found.chat, found.tool_use))
        };
        assert_eq!(files(Some("J"), Some(&text), Some(&list)), Some(("J", None)));
        assert_eq!(files(None, Some(&text), Some(&list)), Some(("C", None)));
        assert_eq!(files(None, None, Some(&list)), Some(("D", Some("T"))));
        assert_eq!(files(None, Some(&nothing), Some(&unnamed)), Some(("R", None)));
        assert_eq!(files(None, Some(&nothing), None), None);
    }

    #[test]
    fn features_are_read_from_templates() {
        let jinja = |chat, tool_use| TemplateFeatures::from_jinja(JinjaSource { chat, tool_use });
        assert_eq!(jinja("{{ messages[0].content }}", None), TemplateFeatures::default());
        let thinks = TemplateFeatures { thinking: true, ..TemplateFeatures::default() };
        assert_eq!(jinja("{{ messages[0].content.split('</think>')[-1] }}", None), thinks);
        let calls = TemplateFeatures { tools: true, tool_results: true, ..TemplateFeatures::default() };
        assert_eq!(jinja("{{ tools }}{{ message.tool_calls }}{% if role == 'tool' %}", None), calls);
        assert_eq!(jinja("", Some("")), TemplateFeatures { tools: true, ..TemplateFeatures::default() });
    }
}

//! What can be told of a model's prompt templates from their text alone: where a checkpoint keeps its own, what it can say, and which of two
//! is used. A worker and the description of a model that its clients go by have to agree on it.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::go_template::Template;

/// What ends a thought, for templates that do not write it for earlier turns.
pub const THOUGHT_END: &str = "</think>";

/// A Jinja template, and another one for conversations with tools.
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
    /// The template that the files hold, `None` when none of them holds one.
    pub fn find(self) -> Option<JinjaSource<'a>> {
        let alone = |chat| Some(JinjaSource { chat, tool_use: None });
        if let Some(chat) = self.jinja {
            return alone(chat);
        }
        [self.json, self.tokenizer_config].into_iter().flatten().find_map(|file| {
            match file.get("chat_template")? {
                Value::String(chat) => alone(chat),
                // A list of {name, template}; `default` is used, or `tool_use` when there are tools.
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

/// What a template can say, as far as its text tells.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Abilities {
    pub tools: bool,
    pub thinking: bool,
    /// What stands between a prompt and a suffix can be asked for.
    pub insert: bool,
    /// Calls of tools and their results can both be said.
    pub tool_results: bool,
}

impl Abilities {
    pub fn of_go(template: &Template, source: &str) -> Abilities {
        let mentions: BTreeSet<String> = template.mentions().into_iter().map(str::to_lowercase).collect();
        let tools = mentions.contains("tools");
        let takes_results =
            ["eq .Role \"tool\"", "tool_response", "TOOL_RESULTS"].iter().any(|mark| source.contains(mark));
        Abilities {
            tools,
            thinking: mentions.contains("thinking"),
            insert: mentions.contains("suffix"),
            tool_results: tools && mentions.contains("toolcalls") && takes_results,
        }
    }

    pub fn of_jinja(source: JinjaSource<'_>) -> Abilities {
        let JinjaSource { chat, tool_use } = source;
        let mentions = |text: &str| chat.contains(text) || tool_use.is_some_and(|other| other.contains(text));
        let tools = tool_use.is_some() || chat.contains("tools");
        let results = ["tool_response", "tool_results", "'tool'", "\"tool\"", "ipython"];
        Abilities {
            tools,
            thinking: mentions(THOUGHT_END),
            insert: false,
            tool_results: tools && mentions("tool_calls") && results.into_iter().any(mentions),
        }
    }

    fn count(self) -> u8 {
        [self.tools, self.thinking, self.insert].into_iter().map(u8::from).sum()
    }
}

/// Whether ollama would use a model's Jinja template although there is a Go template: where it can do more, or knows of the results of
/// tools and the other does not. `rendered` says that the model asks for a renderer that is built into ollama: such models often carry a Go
/// template that says nothing.
pub fn prefers_jinja(go: Abilities, jinja: Abilities, rendered: bool) -> bool {
    let is_same = Abilities { tool_results: false, ..go } == Abilities { tool_results: false, ..jinja };
    let can_more = jinja.count() > go.count() && (!go.tool_results || jinja.tool_results);
    let knows_results = is_same && go.tools && jinja.tool_results && !go.tool_results;
    rendered || can_more || knows_results
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn where_a_checkpoint_keeps_it() {
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
    fn what_a_text_tells() {
        let jinja = |chat, tool_use| Abilities::of_jinja(JinjaSource { chat, tool_use });
        assert_eq!(jinja("{{ messages[0].content }}", None), Abilities::default());
        let thinks = Abilities { thinking: true, ..Abilities::default() };
        assert_eq!(jinja("{{ messages[0].content.split('</think>')[-1] }}", None), thinks);
        let calls = Abilities { tools: true, tool_results: true, ..Abilities::default() };
        assert_eq!(jinja("{{ tools }}{{ message.tool_calls }}{% if role == 'tool' %}", None), calls);
        assert_eq!(jinja("", Some("")), Abilities { tools: true, ..Abilities::default() });
    }
}

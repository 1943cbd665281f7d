//! A model's way from a conversation to text: the Jinja template of its checkpoint, or the Go template that ollama put on top.

use super::go_chat::GoChat;
use super::template::{ChatTemplate, Conversation, TemplateError};

#[derive(Debug)]
pub enum PromptTemplate {
    Jinja(Box<ChatTemplate>),
    Go(Box<GoChat>),
}

impl PromptTemplate {
    /// The one of two that ollama would use: the Go template, unless the Jinja template can do more, or knows of the results of tools
    /// where the other does not. `rendered` says that the model asks for a renderer that is built into ollama: such models often
    /// carry a Go template that says nothing.
    pub fn choose(go: Option<GoChat>, jinja: Option<ChatTemplate>, rendered: bool) -> Option<PromptTemplate> {
        let (go, jinja) = match (go, jinja) {
            (Some(go), Some(jinja)) => (go, jinja),
            (go, jinja) => {
                return go
                    .map(|go| PromptTemplate::Go(Box::new(go)))
                    .or_else(|| jinja.map(|jinja| PromptTemplate::Jinja(Box::new(jinja))));
            }
        };
        let of_go = [go.has_tools(), go.has_thinking(), go.has_insert()];
        let of_jinja = [jinja.has_tools(), jinja.has_thinking(), false];
        let count = |can: &[bool]| can.iter().filter(|can| **can).count();
        let prefers_jinja = if count(&of_jinja) > count(&of_go) {
            !go.has_tool_results() || jinja.has_tool_results()
        } else {
            of_jinja == of_go && go.has_tools() && jinja.has_tool_results() && !go.has_tool_results()
        };
        Some(match rendered || prefers_jinja {
            true => PromptTemplate::Jinja(Box::new(jinja)),
            false => PromptTemplate::Go(Box::new(go)),
        })
    }

    /// Whether it mentions tools at all.
    pub fn has_tools(&self) -> bool {
        match self {
            PromptTemplate::Jinja(jinja) => jinja.has_tools(),
            PromptTemplate::Go(go) => go.has_tools(),
        }
    }

    /// Whether this mark stands in the source of a Jinja template. A Go template has to write it to have it.
    pub fn mentions(&self, mark: &str) -> bool {
        match self {
            PromptTemplate::Jinja(jinja) => jinja.mentions(mark),
            PromptTemplate::Go(_) => false,
        }
    }

    /// The prompt text for a conversation.
    pub fn render(&self, conversation: &Conversation<'_>) -> Result<String, TemplateError> {
        match self {
            PromptTemplate::Jinja(jinja) => jinja.render(conversation),
            PromptTemplate::Go(go) => go.render(conversation).map_err(TemplateError::Go),
        }
    }

    /// The Go template, for what only such a one can do.
    pub fn go(&self) -> Option<&GoChat> {
        match self {
            PromptTemplate::Go(go) => Some(go),
            PromptTemplate::Jinja(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::SpecialTokens;

    #[test]
    fn which_template_is_used() {
        let check = |go: &str, jinja: &str, rendered: bool, expect: &str| {
            let go = Some(go).filter(|go| !go.is_empty()).map(|go| GoChat::new(go).unwrap());
            let jinja = Some(jinja).filter(|jinja| !jinja.is_empty());
            let jinja = jinja.map(|jinja| ChatTemplate::new(jinja, None, &SpecialTokens::default()).unwrap());
            let chosen = match PromptTemplate::choose(go, jinja, rendered) {
                None => "none",
                Some(PromptTemplate::Go(_)) => "go",
                Some(PromptTemplate::Jinja(_)) => "jinja",
            };
            assert_eq!(chosen, expect);
        };
        check("", "", false, "none");
        check("{{ .Prompt }}", "", false, "go");
        check("", "{{ messages[0].content }}", false, "jinja");
        check("{{ .Prompt }}", "{{ messages[0].content }}", false, "go");
        check("{{ .Prompt }}", "{{ messages[0].content }}", true, "jinja");
        check("{{ .Prompt }}", "{{ tools }}", false, "jinja");
        let full =
            "{{ .Tools }}{{ range .Messages }}{{ .ToolCalls }}{{ if eq .Role \"tool\" }}{{ end }}{{ end }}";
        check(full, "{{ tools }}", false, "go");
        check(
            "{{ .Tools }}{{ range .Messages }}{{ .Content }}{{ end }}",
            "{{ tools }} tool_calls ipython",
            false,
            "jinja",
        );
    }
}

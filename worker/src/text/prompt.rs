//! The prompt template of a model: the Jinja template of its checkpoint, or ollama's Go template.

use lode_model::prompt_template::{TemplateFeatures, prefers_jinja};

use super::go_chat::GoChat;
use super::template::{ChatTemplate, Conversation, TemplateError};

#[derive(Debug)]
pub enum PromptTemplate {
    Jinja(Box<ChatTemplate>),
    Go(Box<GoChat>),
}

impl PromptTemplate {
    /// Chooses the template that ollama would use.
    pub fn choose(go: Option<GoChat>, jinja: Option<ChatTemplate>, rendered: bool) -> Option<PromptTemplate> {
        let (go, jinja) = match (go, jinja) {
            (Some(go), Some(jinja)) => (go, jinja),
            (go, jinja) => {
                return go
                    .map(|go| PromptTemplate::Go(Box::new(go)))
                    .or_else(|| jinja.map(|jinja| PromptTemplate::Jinja(Box::new(jinja))));
            }
        };
        Some(match prefers_jinja(go.abilities(), jinja.abilities(), rendered) {
            true => PromptTemplate::Jinja(Box::new(jinja)),
            false => PromptTemplate::Go(Box::new(go)),
        })
    }

    /// The features that it supports, according to its text.
    pub fn abilities(&self) -> TemplateFeatures {
        match self {
            PromptTemplate::Jinja(jinja) => jinja.abilities(),
            PromptTemplate::Go(go) => go.abilities(),
        }
    }

    /// Whether the source of a Jinja template contains this marker. Always false for a Go template, where
    /// only its output counts.
    pub fn mentions(&self, mark: &str) -> bool {
        match self {
            PromptTemplate::Jinja(jinja) => jinja.mentions(mark),
            PromptTemplate::Go(_) => false,
        }
    }

    /// Renders the prompt for a conversation.
    pub fn render(&self, conversation: &Conversation<'_>) -> Result<String, TemplateError> {
        match self {
            PromptTemplate::Jinja(jinja) => jinja.render(conversation),
            PromptTemplate::Go(go) => go.render(conversation).map_err(TemplateError::Go),
        }
    }

    /// The Go template, for features that only Go templates have.
    pub fn go(&self) -> Option<&GoChat> {
        match self {
            PromptTemplate::Go(go) => Some(go),
            PromptTemplate::Jinja(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use lode_model::prompt_template::JinjaSource;

    use super::*;
    use crate::text::SpecialTokens;

    #[test]
    fn which_template_is_used() {
        let check = |go: &str, jinja: &str, rendered: bool, expect: &str| {
            let go = Some(go).filter(|go| !go.is_empty()).map(|go| GoChat::new(go).unwrap());
            let jinja = Some(jinja).filter(|jinja| !jinja.is_empty());
            let jinja = jinja.map(|chat| {
                let source = JinjaSource { chat, tool_use: None };
                ChatTemplate::new(source, &SpecialTokens::default()).unwrap()
            });
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

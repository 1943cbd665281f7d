//! Chat templates: render a conversation to the exact text that a model was trained on. Templates are
//! untrusted, so they run with bounded fuel, bounded output and no access except to their input.

use std::io;

use lode_model::prompt_template::{JinjaSource, TemplateFeatures};
use minijinja::value::{Kwargs, Serde, Value as Jinja};
use minijinja::{Environment, Error, ErrorKind};
use serde::Serialize;
use serde_json::{Value, json};

use super::dialect::Dialect;
use super::python_json::write_json;
use super::special::SpecialTokens;
use super::think::Think;

/// Limits on the cost of a template.
const MAX_SOURCE_BYTES: usize = 1 << 20;
const MAX_OUTPUT_BYTES: usize = 16 << 20;
const FUEL: u64 = 20_000_000;

/// An error of a template, or of rendering a conversation.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    #[error("the chat template is larger than {MAX_SOURCE_BYTES} bytes")]
    TooLarge,
    #[error("cannot parse the chat template: {}", describe(.0))]
    Syntax(#[source] Error),
    #[error("the chat template rejects this conversation: {0}")]
    Raised(String),
    #[error("the chat template failed: {}", describe(.0))]
    Render(#[source] Error),
    #[error("the output of the chat template is longer than {MAX_OUTPUT_BYTES} bytes")]
    TooLong,
    #[error("the prompt template failed: {0}")]
    Go(#[source] lode_model::go_template::ExecError),
}

/// The template(s) of one model.
pub struct ChatTemplate {
    environment: Environment<'static>,
    special: SpecialTokens,
    abilities: TemplateFeatures,
    dialect: Dialect,
    source: String,
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChatTemplate").field("abilities", &self.abilities).finish_non_exhaustive()
    }
}

/// The input of a template. Messages and tools are passed unchanged, so templates see every key.
#[derive(Debug, Default)]
pub struct Conversation<'a> {
    pub messages: &'a [Value],
    pub tools: Option<&'a [Value]>,
    /// Whether the prompt ends with the beginning of the assistant's turn.
    pub add_generation_prompt: bool,
    /// Whether the model should think, if specified.
    pub think: Option<Think>,
}

impl ChatTemplate {
    /// Compiles a Jinja template, and another one for conversations with tools.
    pub fn new(source: JinjaSource<'_>, special: &SpecialTokens) -> Result<ChatTemplate, TemplateError> {
        let mut environment = environment()?;
        let JinjaSource { chat, tool_use } = source;
        for (name, source) in [("chat", Some(chat)), ("tool_use", tool_use)] {
            let Some(source) = source else { continue };
            if source.len() > MAX_SOURCE_BYTES {
                return Err(TemplateError::TooLarge);
            }
            environment
                .add_template_owned(name.to_owned(), without_generation_tags(source))
                .map_err(TemplateError::Syntax)?;
        }
        let mut template = ChatTemplate {
            environment,
            special: special.clone(),
            abilities: TemplateFeatures::from_jinja(source),
            dialect: Dialect::default(),
            source: format!("{chat}{}", tool_use.unwrap_or_default()),
        };
        if template.abilities.tools && template.mentions("tool_calls") {
            template.dialect =
                Dialect::all().find(|dialect| template.understands(*dialect)).unwrap_or_default();
        }
        Ok(template)
    }

    /// Whether earlier calls in this form are in the output.
    fn understands(&self, dialect: Dialect) -> bool {
        let messages = Dialect::trial_messages();
        let tools = [
            json!({"type": "function", "function": {"name": "trial", "parameters": {"type": "object", "properties": {}}}}),
        ];
        let conversation =
            Conversation { messages: &messages, tools: Some(&tools), ..Conversation::default() };
        self.render_in(dialect, &conversation).is_ok_and(|text| Dialect::is_understood(&text))
    }

    /// Whether the source contains this text.
    pub fn mentions(&self, text: &str) -> bool {
        self.source.contains(text)
    }

    /// The features that it supports.
    pub fn abilities(&self) -> TemplateFeatures {
        self.abilities
    }

    /// Renders the prompt for a conversation.
    pub fn render(&self, conversation: &Conversation<'_>) -> Result<String, TemplateError> {
        self.render_in(self.dialect, conversation)
    }

    fn render_in(&self, dialect: Dialect, conversation: &Conversation<'_>) -> Result<String, TemplateError> {
        /// Templates use two names for whether to think, and a third for the level.
        #[derive(Serialize)]
        struct Context<'a> {
            #[serde(flatten)]
            special: &'a std::collections::BTreeMap<String, String>,
            messages: &'a [Value],
            tools: Option<&'a [Value]>,
            add_generation_prompt: bool,
            #[serde(skip_serializing_if = "Option::is_none")]
            enable_thinking: Option<bool>,
            #[serde(skip_serializing_if = "Option::is_none")]
            thinking: Option<bool>,
            #[serde(skip_serializing_if = "Option::is_none")]
            reasoning_effort: Option<&'static str>,
        }
        let name = match conversation.tools {
            Some(tools) if !tools.is_empty() => "tool_use",
            _ => "chat",
        };
        let template = self.environment.get_template(name).or_else(|_| self.environment.get_template("chat"));
        let template = template.map_err(TemplateError::Render)?;
        let mut output = BoundedOutput(Vec::new());
        let Conversation { messages, tools, add_generation_prompt, think } = *conversation;
        let is_on = think.map(Think::is_on);
        let messages = dialect.adapt(messages);
        let context = Serde(Context {
            special: &self.special.names,
            messages: &messages,
            tools,
            add_generation_prompt,
            enable_thinking: is_on,
            thinking: is_on,
            reasoning_effort: think.and_then(Think::level),
        });
        match template.render_captured_to(context, &mut output) {
            Ok(_) => Ok(String::from_utf8_lossy(&output.0).into_owned()),
            Err(error) => Err(match raised_message(&error) {
                Some(message) => TemplateError::Raised(message),
                None if error.kind() == ErrorKind::WriteFailure => TemplateError::TooLong,
                None => TemplateError::Render(error),
            }),
        }
    }
}

/// Jinja with the settings of transformers: block tags remove their line, and values have Python's methods.
fn environment() -> Result<Environment<'static>, TemplateError> {
    let mut environment = Environment::new();
    let syntax = minijinja::syntax::SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()
        .map_err(TemplateError::Syntax)?;
    environment.set_syntax(syntax);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.set_fuel(Some(FUEL));
    environment.add_filter("tojson", to_json);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    Ok(environment)
}

const RAISED_PREFIX: &str = "raise_exception: ";

fn raise_exception(message: String) -> Result<String, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, format!("{RAISED_PREFIX}{message}")))
}

fn raised_message(error: &Error) -> Option<String> {
    error.detail()?.strip_prefix(RAISED_PREFIX).map(ToOwned::to_owned)
}

fn describe(error: &Error) -> String {
    match error.line() {
        Some(line) => format!("{} (line {line})", error.detail().unwrap_or(&error.kind().to_string())),
        None => error.detail().map_or_else(|| error.kind().to_string(), ToOwned::to_owned),
    }
}

/// `json.dumps(value, ensure_ascii=False, indent=...)` as Python prints it.
fn to_json(value: &Jinja, indent: Option<Jinja>, options: Kwargs) -> Result<String, Error> {
    let indent: Option<Jinja> = indent.or(options.get("indent")?);
    let indent = match indent {
        Some(indent) if !indent.is_none() && !indent.is_undefined() => Some(usize::try_from(indent)?.min(16)),
        _ => None,
    };
    let json = serde_json::to_value(value).map_err(|error| {
        Error::new(ErrorKind::InvalidOperation, "cannot be serialised as JSON").with_source(error)
    })?;
    let mut text = String::new();
    write_json(&mut text, &json, indent, 0);
    Ok(text)
}

/// The current UTC time in Python's `strftime` format.
fn strftime_now(format: String) -> String {
    strftime(&format, time::OffsetDateTime::now_utc())
}

fn strftime(format: &str, now: time::OffsetDateTime) -> String {
    let month = now.month().to_string();
    let weekday = now.weekday().to_string();
    let hour12 = (now.hour() + 11) % 12 + 1;
    let mut text = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            text.push(c);
            continue;
        }
        match chars.next() {
            Some('Y') => text.push_str(&now.year().to_string()),
            Some('y') => text.push_str(&format!("{:02}", now.year().rem_euclid(100))),
            Some('m') => text.push_str(&format!("{:02}", u8::from(now.month()))),
            Some('B') => text.push_str(&month),
            Some('b') => text.push_str(month.get(..3).unwrap_or(&month)),
            Some('d') => text.push_str(&format!("{:02}", now.day())),
            Some('j') => text.push_str(&format!("{:03}", now.ordinal())),
            Some('A') => text.push_str(&weekday),
            Some('a') => text.push_str(weekday.get(..3).unwrap_or(&weekday)),
            Some('H') => text.push_str(&format!("{:02}", now.hour())),
            Some('I') => text.push_str(&format!("{hour12:02}")),
            Some('M') => text.push_str(&format!("{:02}", now.minute())),
            Some('S') => text.push_str(&format!("{:02}", now.second())),
            Some('p') => text.push_str(if now.hour() < 12 { "AM" } else { "PM" }),
            Some('Z') => text.push_str("UTC"),
            Some('z') => text.push_str("+0000"),
            Some('F') => text.push_str(&strftime("%Y-%m-%d", now)),
            Some('T') => text.push_str(&strftime("%H:%M:%S", now)),
            Some('-') => {
                // glibc: the next field without its leading zero.
                let field: String = strftime(&chars.next().map(|c| format!("%{c}")).unwrap_or_default(), now);
                let stripped = field.trim_start_matches('0');
                text.push_str(if stripped.is_empty() && !field.is_empty() { "0" } else { stripped });
            }
            Some('%') => text.push('%'),
            Some(other) => text.extend(['%', other]),
            None => text.push('%'),
        }
    }
    text
}

/// `{% generation %}` marks the assistant's text for training and prints nothing. Jinja does not support it.
fn without_generation_tags(source: &str) -> String {
    let mut text = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(len) = rest[start + 2..].find("%}") else { break };
        let tag = &rest[start..start + len + 4];
        let inner = tag[2..tag.len() - 2].trim_matches(['-', '+']).trim();
        text.push_str(&rest[..start]);
        match inner {
            "generation" => text.push_str(&tag.replace("generation", "if true")),
            "endgeneration" => text.push_str(&tag.replace("endgeneration", "endif")),
            _ => text.push_str(tag),
        }
        rest = &rest[start + len + 4..];
    }
    text.push_str(rest);
    text
}

struct BoundedOutput(Vec<u8>);

impl io::Write for BoundedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_OUTPUT_BYTES {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "too long"));
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
    use lode_model::prompt_template::TemplateFiles;
    use serde_json::json;

    use super::*;
    use crate::text::Tokenizer;

    fn file(name: &str) -> Vec<u8> {
        std::fs::read(format!("{}/../tests/models/lode-demo/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
    }

    fn render(source: &str, messages: Value) -> Result<String, TemplateError> {
        let names = [("bos_token".to_owned(), "<s>".to_owned())].into();
        let source = JinjaSource { chat: source, tool_use: None };
        let template = ChatTemplate::new(source, &SpecialTokens { names, ..Default::default() })?;
        let messages: Vec<Value> = serde_json::from_value(messages).unwrap();
        template.render(&Conversation {
            messages: &messages,
            tools: None,
            add_generation_prompt: true,
            think: None,
        })
    }

    #[test]
    fn the_demo_model_s_prompts() {
        let tokenizer = Tokenizer::from_json(&file("tokenizer.json")).unwrap();
        let config: Value = serde_json::from_slice(&file("tokenizer_config.json")).unwrap();
        let special = tokenizer.special_tokens(None, None, Some(&config));
        let files = TemplateFiles { tokenizer_config: Some(&config), ..TemplateFiles::default() };
        let template =
            ChatTemplate::new(files.find().expect("the demo model has a template"), &special).unwrap();
        let expected: Value = serde_json::from_slice(&file("expected.json")).unwrap();
        for case in expected["cases"].as_array().unwrap() {
            let messages = [json!({"role": "user", "content": case["user"]})];
            let conversation =
                Conversation { messages: &messages, tools: None, add_generation_prompt: true, think: None };
            let text = template.render(&conversation).unwrap();
            let ids = tokenizer.encode_with(&text, crate::text::Special::PARSE).unwrap();
            assert_eq!(json!(ids), case["prompt_ids"], "{}", case["user"]);
        }
    }

    #[test]
    fn table() {
        let hi = || json!([{"role": "user", "content": "hi <b>"}]);
        let check =
            |source: &str, expect: &str| assert_eq!(render(source, hi()).unwrap(), expect, "{source}");
        check("{{ bos_token }}{{ messages[0]['content'] }}", "<s>hi <b>");
        check(
            "{% for m in messages %}\n  {% if true %}\n[{{ m.role }}]\n  {% endif %}\n{% endfor %}\n",
            "[user]\n",
        );
        check("{{ messages[0].content.strip().split(' ')[0].upper() }}", "HI");
        check("{{ messages | tojson }}", r#"[{"role": "user", "content": "hi <b>"}]"#);
        check("{{ [1, {}, []] | tojson(indent=2) }}", "[\n  1,\n  {},\n  []\n]");
        check("{{ {'a': 1.5, 'e': 'é\n'} | tojson }}", r#"{"a": 1.5, "e": "é\n"}"#);
        check(
            "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
            "1",
        );
        check("{% for m in messages %}{% if loop.last %}{% break %}{% endif %}{% endfor %}x", "x");
        check("a{% generation %}{{ messages[0].role }}{%- endgeneration -%} b", "auserb");
        check("a{# {%} #}b{{ '{%}' }}", "ab{%}");
        check("{{ tools is defined }}{{ tools is none }}{% if not tools %}none{% endif %}", "TrueTruenone");
        check("{% macro f(x) %}<{{ x }}>{% endmacro %}{{ f(1) }}", "<1>");
        check("{{ messages[0].nothing }}{{ messages[0].get('nothing', 'd') }}", "d");
    }

    #[test]
    fn refusals() {
        let check = |source: &str, expect: &str| {
            let error = render(source, json!([])).unwrap_err().to_string();
            assert!(error.contains(expect), "{source}: {error}");
        };
        check(
            "{{ raise_exception('roles must alternate') }}",
            "rejects this conversation: roles must alternate",
        );
        check("{% for", "cannot parse the chat template");
        check("{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}", "fuel");
        check("{% include '/etc/passwd' %}", "failed");
        check("{% for i in range(60000) %}{{ 'x' * 1000 }}{% endfor %}", "is longer than 16777216 bytes");
        check("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion");
    }

    #[test]
    fn dates() {
        let now = time::OffsetDateTime::from_unix_timestamp(1_709_618_767).unwrap();
        let check = |format: &str, expect: &str| assert_eq!(strftime(format, now), expect, "{format}");
        check("%d %b %Y", "05 Mar 2024");
        check("%A, %B %-d, %F %T %j", "Tuesday, March 5, 2024-03-05 06:06:07 065");
        check("%I:%M %p %% %q %", "06:06 AM % %q %");
    }

    #[test]
    fn named_templates() {
        let source = JinjaSource { chat: "D", tool_use: Some("T{{ tools | length }}") };
        let template = ChatTemplate::new(source, &SpecialTokens::default()).unwrap();
        let tools = [json!({})];
        let with =
            Conversation { messages: &[], tools: Some(&tools), add_generation_prompt: true, think: None };
        assert_eq!(template.render(&with).unwrap(), "T1");
        assert_eq!(template.render(&Conversation::default()).unwrap(), "D");
    }
}

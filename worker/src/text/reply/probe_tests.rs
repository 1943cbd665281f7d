//! The formats derived from templates in the style of several families.

use lode_model::prompt_template::JinjaSource;
use serde_json::json;

use super::calls::Shape;
use super::tagged::CallTags;
use super::tests::coder_tags;
use super::*;
use crate::text::{ChatTemplate, GoChat, SpecialTokens};

fn jinja(source: &str) -> PromptTemplate {
    let names =
        [("bos_token", "<s>"), ("eos_token", "</s>")].map(|(key, text)| (key.to_owned(), text.to_owned()));
    let special = SpecialTokens { names: names.into(), ..SpecialTokens::default() };
    PromptTemplate::Jinja(Box::new(
        ChatTemplate::new(JinjaSource { chat: source, tool_use: None }, &special).unwrap(),
    ))
}

fn go(source: &str) -> PromptTemplate {
    PromptTemplate::Go(Box::new(GoChat::new(source).unwrap()))
}

fn check(
    template: &PromptTemplate,
    thinking: Option<(&str, &str)>,
    open: &str,
    each: &str,
    shape: Shape,
    closers: &[&str],
) {
    let (found, calls) = probe::read(template);
    let found = found.as_ref().map(|tags| (tags.open.as_str(), tags.close.as_str()));
    assert_eq!(found, thinking);
    let closers = closers.iter().map(ToString::to_string).collect();
    assert_eq!(calls, CallFormat { open: open.into(), each: each.into(), shape, closers });
}

const THINK: Option<(&str, &str)> = Some(("<think>", "</think>"));

fn named(between: &str, behind_id: &str) -> Shape {
    Shape::Named { between: between.into(), behind_id: behind_id.into() }
}

/// Hermes' markers, with reasoning only in the last turn, or an empty one.
const QWEN: &str = r#"
{%- if tools %}<|im_start|>system
# Tools: call as <tool_call>
{"name": <name>, "arguments": <arguments>}
</tool_call>{% for tool in tools %}{{ tool | tojson }}{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == "user" %}
{{- '<|im_start|>user\n' + message.content + '<|im_end|>\n' }}
{%- elif message.role == "assistant" %}
{{- '<|im_start|>assistant\n' }}
{%- if loop.last or message.reasoning_content %}
{{- '<think>\n' + (message.reasoning_content or '') + '\n</think>\n\n' }}
{%- endif %}
{{- message.content }}
{%- for call in message.tool_calls %}
{%- if not loop.first or message.content %}{{- '\n' }}{% endif %}
{{- '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) + '}\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- else %}
{{- '<|im_start|>user\n<tool_response>\n' + message.content + '\n</tool_response><|im_end|>\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is false %}<think>

</think>

{% endif %}
{%- endif %}"#;

#[test]
fn qwen() {
    check(&jinja(QWEN), THINK, "<tool_call>", "", Shape::Json, &["</tool_call>"]);
    // A prompt that ends with the opening tag, and a template that fails on tool results.
    let thinks =
        QWEN.replace("assistant\n{% if enable_thinking", "assistant\n<think>\n{% if enable_thinking");
    let thinks = thinks
        .replace("{{- '<|im_start|>user\\n<tool_response>", "{{- raise_exception('no') + '<tool_response>");
    check(&jinja(&thinks), THINK, "<tool_call>", "", Shape::Json, &["</tool_call>"]);
    let plain = QWEN.replace("<think>", "").replace("</think>", "");
    let plain = plain.replace("(message.reasoning_content or '')", "''");
    check(&jinja(&plain), None, "<tool_call>", "", Shape::Json, &["</tool_call>"]);
}

#[test]
fn llama() {
    let source = r#"{{- bos_token }}
{%- for message in messages %}
{%- if message.tool_calls %}
{%- if message.tool_calls | length != 1 %}{{- raise_exception("one call at a time") }}{% endif %}
{%- set call = message.tool_calls[0].function %}
{{- '<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "' + call.name + '", "parameters": ' }}
{{- call.arguments | tojson }}
{{- "}<|eot_id|>" }}
{%- else %}
{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' }}
{%- if tools and loop.first %}{{ tools | tojson(indent=4) }}{% endif %}
{{- message.content + '<|eot_id|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"#;
    check(&jinja(source), None, "", "", Shape::Json, &[]);
}

#[test]
fn mistral() {
    // Ids of nine letters; a list of calls.
    let list = r#"{{- bos_token }}
{%- for message in messages %}
{%- if message.role == "user" %}
{%- if tools and loop.last %}{{ "[AVAILABLE_TOOLS] " + (tools | tojson) + "[/AVAILABLE_TOOLS]" }}{% endif %}
{{- "[INST] " + message.content + "[/INST]" }}
{%- elif message.tool_calls %}
{{- "[TOOL_CALLS] [" }}
{%- for call in message.tool_calls %}
{%- if call.id | length != 9 %}{{ raise_exception("nine") }}{% endif %}
{{- (call.function | tojson)[:-1] + ', "id": "' + call.id + '"}' }}
{%- if not loop.last %}{{ ", " }}{% else %}{{ "]" + eos_token }}{% endif %}
{%- endfor %}
{%- elif message.role == "assistant" %}
{{- " " + message.content + eos_token }}
{%- else %}
{{- '[TOOL_RESULTS] {"content": ' + message.content + ', "call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
{%- endif %}
{%- endfor %}"#;
    check(&jinja(list), None, "[TOOL_CALLS]", "", Shape::Json, &[]);
    // Names outside of the JSON, and arguments as a string.
    let named_calls = r#"{{- bos_token }}{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}
{%- for message in messages %}
{%- if message.role == "user" %}
{{- "[INST]" + message.content + "[/INST]" }}
{%- elif message.role == "assistant" %}
{{- message.content }}
{%- for call in message.tool_calls %}
{{- "[TOOL_CALLS]" + call.function.name + "[CALL_ID]" + call.id + "[ARGS]" + call.function.arguments }}
{%- endfor %}
{{- eos_token }}
{%- else %}
{{- "[TOOL_RESULTS]" + message.content + "[/TOOL_RESULTS]" }}
{%- endif %}
{%- endfor %}"#;
    check(&jinja(named_calls), None, "[TOOL_CALLS]", "", named("[CALL_ID]", "[ARGS]"), &[]);
}

#[test]
fn deepseek() {
    // Calls in messages with null content, with arguments as a string; the prompt ends with the opening tag.
    let source = r#"{{- bos_token }}{% if tools %}{{ tools | tojson }}{% endif %}
{%- for message in messages %}
{%- if message.role == "user" %}{{ "<｜User｜>" + message.content }}{% endif %}
{%- if message.role == "assistant" and message.content is none %}
{{- "<｜Assistant｜>" }}
{%- for call in message.tool_calls %}
{%- if loop.first %}{{ "<｜tool▁calls▁begin｜>" }}{% else %}{{ "\n" }}{% endif %}
{{- "<｜tool▁call▁begin｜>" + call.type + "<｜tool▁sep｜>" + call.function.name + "\n```json\n" + call.function.arguments + "\n```<｜tool▁call▁end｜>" }}
{%- endfor %}
{{- "<｜tool▁calls▁end｜><｜end▁of▁sentence｜>" }}
{%- elif message.role == "assistant" %}
{%- set content = message.content.split("</think>")[-1] %}
{{- "<｜Assistant｜>" + content + "<｜end▁of▁sentence｜>" }}
{%- endif %}
{%- if message.role == "tool" %}{{ "<｜tool▁outputs▁begin｜>" + message.content + "<｜tool▁outputs▁end｜>" }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ "<｜Assistant｜><think>\n" }}{% endif %}"#;
    let each = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>";
    let closers = ["```", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"];
    check(&jinja(source), THINK, "<｜tool▁calls▁begin｜>", each, named("```json", ""), &closers);
}

#[test]
fn arguments_between_tags() {
    let frame = |call: &str| {
        format!(
            r#"{{% if tools %}}{{{{ tools | tojson }}}}{{% endif %}}
{{%- for message in messages %}}
{{{{- '<|im_start|>' + message.role + '\n' + message.content }}}}
{{%- for call in message.tool_calls %}}{call}{{% endfor %}}
{{{{- '<|im_end|>\n' }}}}
{{%- endfor %}}
{{%- if add_generation_prompt %}}{{{{ '<|im_start|>assistant\n' }}}}{{% endif %}}"#
        )
    };
    let coder = frame(
        r#"{{- '\n<tool_call>\n<function=' + call.function.name + '>\n' }}
{%- for key, value in call.function.arguments | items %}
{{- '<parameter=' + key + '>\n' + value + '\n</parameter>\n' }}
{%- endfor %}
{{- '</function>\n</tool_call>' }}"#,
    );
    let shape = Shape::Tagged(coder_tags());
    check(&jinja(&coder), None, "<tool_call>", "<function=", shape, &["</tool_call>"]);
    let glm = frame(
        r#"{{- '<tool_call>' + call.function.name }}
{%- for key, value in call.function.arguments | items %}
{{- '<arg_key>' + key + '</arg_key>\n<arg_value>' + value + '</arg_value>\n' }}
{%- endfor %}
{{- '</tool_call>' }}"#,
    );
    let tags = CallTags {
        key: "<arg_key>".into(),
        key_end: ["</arg_key>", "<arg_value>"].map(str::to_owned).into(),
        value_end: "</arg_value>".into(),
        end: "</tool_call>".into(),
        ..CallTags::default()
    };
    check(&jinja(&glm), None, "<tool_call>", "", Shape::Tagged(tags), &[]);
}

#[test]
fn markers_that_are_only_mentioned() {
    let source = r#"{% if tools %}Call as <tool_call>{{ tools | tojson }}</tool_call>{% endif %}
{%- for message in messages %}[{{ message.role }}]{{ message.content.split("</think>")[-1] }}{% endfor %}"#;
    check(&jinja(source), THINK, "<tool_call>", "", Shape::Json, &["</tool_call>"]);
    check(&jinja("{{ messages[0].content }}"), None, "", "", Shape::Json, &[]);
    check(&jinja("{{ raise_exception('never') }}{{ tools }}"), None, "", "", Shape::Json, &[]);
}

#[test]
fn go_templates() {
    let qwen = r#"{{- if .Tools }}<|im_start|>system
{{ range .Tools }}{{ . }}{{ end }}For each call: <tool_call>{"name": ..., "arguments": ...}</tool_call><|im_end|>
{{ end }}
{{- range $i, $_ := .Messages }}
{{- $last := eq (len (slice $.Messages $i)) 1 -}}
{{- if eq .Role "user" }}<|im_start|>user
{{ .Content }}<|im_end|>
{{ else if eq .Role "assistant" }}<|im_start|>assistant
{{ if and $.IsThinkSet .Thinking -}}
<think>
{{ .Thinking }}
</think>

{{ end -}}
{{ if .Content }}{{ .Content }}
{{- else if .ToolCalls }}<tool_call>
{{ range .ToolCalls }}{"name": "{{ .Function.Name }}", "arguments": {{ .Function.Arguments }}}
{{ end }}</tool_call>
{{- end }}{{ if not $last }}<|im_end|>
{{ end }}
{{- else if eq .Role "tool" }}<|im_start|>user
<tool_response>
{{ .Content }}
</tool_response><|im_end|>
{{ end }}
{{- if and (ne .Role "assistant") $last }}<|im_start|>assistant
{{ end }}
{{- end }}"#;
    check(&go(qwen), THINK, "<tool_call>", "", Shape::Json, &["</tool_call>"]);
    let plain = "{{ range .Messages }}[{{ .Role }}]{{ .Content }}{{ end }}{{ .Tools }}";
    check(&go(plain), None, "", "", Shape::Json, &[]);
    check(&go("{{ .Prompt }}"), None, "", "", Shape::Json, &[]);
}

#[test]
fn marks_of_special_tokens_are_shown() {
    let tokenizer = crate::runner::testing::demo_tokenizer();
    let source = QWEN.replace("tool_call>", "|im_start|>").replace("</|im_start|>", "<|endoftext|>");
    let format = ReplyFormat::of(&jinja(&source), &tokenizer);
    assert_eq!(format.calls.open, "<|im_start|>");
    assert_eq!(format.reader(false, None).shown(), [] as [u32; 0]);
    assert_eq!(format.reader(false, KnownTools::of(&[json!({})])).shown(), [1]);
}

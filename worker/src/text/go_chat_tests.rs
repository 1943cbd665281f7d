//! The expected texts are the output of ollama's template package for the same template and conversation.

use serde_json::json;

use super::*;

fn render(
    source: &str,
    messages: &Json,
    tools: Option<&Json>,
    think: Option<Think>,
) -> Result<String, String> {
    let template = GoChat::new(source).map_err(|error| error.to_string())?;
    let messages = messages.as_array().unwrap();
    let tools = tools.map(|tools| tools.as_array().unwrap().as_slice());
    let conversation = Conversation { messages, tools, add_generation_prompt: true, think };
    template.render(&conversation).map_err(|error| error.to_string())
}

fn turns() -> Json {
    let message = |role: &str, content: &str| json!({"role": role, "content": content});
    json!([
        message("system", "Be brief."),
        message("user", "a"),
        message("user", "b"),
        message("assistant", "c"),
        message("user", "d"),
    ])
}

fn check(source: &str, messages: &Json, tools: Option<&Json>, think: Option<Think>, expect: &str) {
    assert_eq!(render(source, messages, tools, think).as_deref(), Ok(expect), "{source}");
}

#[test]
fn a_conversation_at_once_or_turn_by_turn() {
    let at_once = "{{ .System }}|{{ range .Messages }}{{ .Role }}:{{ .Content }};{{ end }}{{ .Prompt }}";
    check(
        at_once,
        &turns(),
        None,
        None,
        "Be brief.|system:Be brief.;user:a\n\nb;assistant:c;user:d;<no value>",
    );
    let by_turns = "{{ if .System }}S:{{ .System }} {{ end }}{{ if .Prompt }}U:{{ .Prompt }} {{ end }}A:{{ .Response }}.";
    check(by_turns, &turns(), None, None, "S:Be brief. U:a\n\nb A:c.U:d A:");
    // The response is at the end if a template does not place it.
    let without_response = "{{ if .System }}[{{ .System }}]{{ end }}<{{ .Prompt }}>";
    check(without_response, &turns(), None, None, "[Be brief.]<a\n\nb>c<d>");
    let thinking = "{{ range .Messages }}{{ end }}{{ .Think }} {{ .IsThinkSet }}";
    check(thinking, &turns(), None, None, "false false");
    check(thinking, &turns(), None, Some(Think::Off), "false true");
    assert!(render("{{ range .Messages }}{{ .Nope }}{{ end }}", &turns(), None, None).is_err());
}

#[test]
fn calls_and_results_of_tools() {
    let call = json!({"id": "call_1", "function": {"index": 0, "name": "get_weather",
        "arguments": {"city": "Paris <x>", "days": 3}}});
    let messages = json!([
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": [call]},
        {"role": "tool", "content": "20", "tool_name": "get_weather", "tool_call_id": "call_1"},
        {"role": "tool", "content": "21"},
    ]);
    let source = "{{ range .Messages }}{{ .Role }}{{ .Content }}{{ .Thinking }}{{ range .ToolCalls }}<{{ .ID }} {{ .Function.Index }} \
        {{ .Function.Name }} {{ .Function.Arguments }}{{ range $k, $v := .Function.Arguments }} {{ $k }}={{ $v }}{{ end }}>{{ end }}\
        {{ .ToolName }}{{ .ToolCallID }};{{ end }}";
    let expect = "userWeather?;assistanthm<call_1 0 get_weather {\"city\":\"Paris \\u003cx\\u003e\",\"days\":3} city=Paris <x> days=3>;\
        tool20get_weathercall_1;tool21;";
    check(source, &messages, None, None, expect);
}

#[test]
fn tools_are_rendered() {
    let tools = json!([{"type": "function", "function": {"name": "f", "description": "d & e", "parameters": {
    "type": "object", "required": ["city"], "properties": {
        "city": {"type": "string", "description": "The city"},
        "days": {"type": ["integer", "null"], "enum": [1, 2.5]},
        "any": {"anyOf": [{"type": "string"}, {"type": "number"}]},
        "nest": {"type": "object", "properties": {"z": {"type": "string"}, "a": {"type": "boolean"}}},
    }}}}]);
    let source = "{{ range .Messages }}{{ end }}{{ .Tools }}";
    let expect = concat!(
        r#"[{"type":"function","function":{"name":"f","description":"d \u0026 e","parameters":{"type":"object","required":["city"],"#,
        r#""properties":{"any":{"anyOf":[{"type":"string"},{"type":"number"}]},"city":{"type":"string","description":"The city"},"#,
        r#""days":{"type":["integer","null"],"enum":[1,2.5]},"nest":{"type":"object","properties":{"z":{"type":"string"},"a":{"type":"boolean"}}}}}}}]"#
    );
    check(source, &turns(), Some(&tools), None, expect);
    check(source, &turns(), None, None, "null");
    let source = "{{ range .Messages }}{{ end }}{{ range .Tools }}{{ .Function.Name }}{{ range $n, $p := .Function.Parameters.Properties }} \
        {{ $n }}:{{ $p.Type }}:{{ toTypeScriptType $p }}:{{ $p.Description }}:{{ $p.Enum }}{{ end }}{{ end }}";
    let expect = "f any::string | number::[] city:string:string:The city:[] days:[integer null]:number | null::[1 2.5] \
        nest:object:Record<string, any>::[]";
    check(source, &turns(), Some(&tools), None, expect);
}

#[test]
fn abilities_of_a_template() {
    let can = |source: &str| {
        let template = GoChat::new(source).unwrap();
        {
            let can = template.abilities();
            [can.tools, can.thinking, can.insert, can.tool_results]
        }
    };
    assert_eq!(can("{{ .Prompt }}"), [false; 4]);
    assert_eq!(can("{{ if .Suffix }}{{ .Suffix }}{{ end }}{{ .Response }}"), [false, false, true, false]);
    let all = "{{ $.Tools }}{{ range .Messages }}{{ .Thinking }}{{ .ToolCalls }}{{ if eq .Role \"tool\" }}{{ end }}{{ end }}";
    assert_eq!(can(all), [true, true, false, true]);
    let fill = GoChat::new("<a>{{ .Prompt }}<b>{{ .Suffix }}<c>").unwrap();
    assert_eq!(fill.insert("x", "y", None).as_deref(), Ok("<a>x<b>y<c>"));
}

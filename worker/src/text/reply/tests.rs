//! Responses in the style of several families, whole and split into pieces.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::calls::Shape;
use super::tagged::CallTags;
use super::*;

fn hermes() -> CallFormat {
    CallFormat { open: "<tool_call>".into(), closers: vec!["</tool_call>".into()], ..CallFormat::default() }
}

fn mistral() -> CallFormat {
    CallFormat { open: "[TOOL_CALLS]".into(), ..CallFormat::default() }
}

fn mistral_named() -> CallFormat {
    let shape = Shape::Named { between: "[CALL_ID]".into(), behind_id: "[ARGS]".into() };
    CallFormat { open: "[TOOL_CALLS]".into(), shape, ..CallFormat::default() }
}

fn deepseek() -> CallFormat {
    CallFormat {
        open: "<｜tool▁calls▁begin｜>".into(),
        each: "<｜tool▁call▁begin｜>function<｜tool▁sep｜>".into(),
        shape: Shape::Named { between: "```json".into(), behind_id: String::new() },
        closers: ["```", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"].map(str::to_owned).into(),
    }
}

pub(super) fn coder_tags() -> CallTags {
    CallTags {
        name_end: ">".into(),
        key: "<parameter=".into(),
        key_end: vec![">".into()],
        value_end: "</parameter>".into(),
        end: "</function>".into(),
    }
}

fn coder() -> CallFormat {
    CallFormat {
        open: "<tool_call>".into(),
        each: "<function=".into(),
        shape: Shape::Tagged(coder_tags()),
        closers: vec!["</tool_call>".into()],
    }
}

fn glm() -> CallFormat {
    let tags = CallTags {
        name_end: String::new(),
        key: "<arg_key>".into(),
        key_end: ["</arg_key>", "<arg_value>"].map(str::to_owned).into(),
        value_end: "</arg_value>".into(),
        end: "</tool_call>".into(),
    };
    CallFormat { open: "<tool_call>".into(), shape: Shape::Tagged(tags), ..CallFormat::default() }
}

/// Reasoning in the tags of Qwen3; the tools are `look` and `add`.
fn reader(calls: CallFormat, prompt: &str) -> Reader {
    let tags = Tags { open: "<think>".into(), close: "</think>".into() };
    let format = ReplyFormat { thinking: Some(tags), calls, ..ReplyFormat::default() };
    let types =
        json!({"a": {"type": "integer"}, "b": {"type": ["number", "null"]}, "city": {"type": "string"}});
    let tools = ["look", "add"].map(|name| {
        json!({"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": types}}})
    });
    format.reader(format.ends_in_reasoning(prompt), KnownTools::of(&tools))
}

fn read(mut reader: Reader, pieces: impl IntoIterator<Item = String>) -> OutputParts {
    let mut output = OutputParts::default();
    for piece in pieces {
        output.extend(reader.push(piece));
    }
    output.extend(reader.finish());
    output
}

fn call(name: &str, arguments: Value) -> Call {
    Call { name: name.into(), arguments: arguments.as_object().unwrap().clone() }
}

/// Checks the text as a whole, character by character, and in pieces of three.
fn check(format: &CallFormat, response: &str, thinking: &str, text: &str, calls: &[Call]) {
    let expect = OutputParts { thinking: thinking.into(), text: text.into(), calls: calls.into() };
    let characters: Vec<char> = response.chars().collect();
    for size in [characters.len().max(1), 1, 3] {
        let pieces = characters.chunks(size).map(|piece| piece.iter().collect());
        assert_eq!(read(reader(format.clone(), ""), pieces), expect, "in pieces of {size}: {response}");
    }
}

#[test]
fn qwen() {
    let check =
        |response: &str, thinking, text, calls: &[Call]| check(&hermes(), response, thinking, text, calls);
    let paris = call("look", json!({"city": "Paris", "at": {"x": [1, "}"]}}));
    let response = "<think>\nA city.\n</think>\n\nI will look.\n<tool_call>\n{\"name\": \"look\", \"arguments\": {\"city\": \"Paris\", \
        \"at\": {\"x\": [1, \"}\"]}}}\n</tool_call>";
    check(response, "A city.", "I will look.", std::slice::from_ref(&paris));
    let both = "<tool_call>{\"name\": \"add\", \"arguments\": {\"b\": 1, \"a\": 2}}</tool_call>\n<tool_call>\n{\"name\": \"nobody\"}\n</tool_call>\nDone.";
    let calls = [call("add", json!({"b": 1, "a": 2})), call("nobody", json!({}))];
    assert_eq!(calls[0].arguments.keys().collect::<Vec<_>>(), ["b", "a"]);
    check(both, "", "Done.", &calls);
    // Arguments in a string, line ends in strings, a missing closing marker.
    let add = [call("add", json!({"a": "1\n2"}))];
    check("<tool_call>{\"name\":\"add\",\"arguments\":\"{\\\"a\\\": \\\"1\\\\n2\\\"}\"}", "", "", &add);
    check("<tool_call>{\"name\":\"add\",\"arguments\":{\"a\":\"1\n2\"}}\n</tool_ca", "", "</tool_ca", &add);
    // Braces and markers in strings.
    let add = [call("add", json!({"a": "</tool_call>{[\"<tool_call>"}))];
    check(
        "<tool_call>{\"name\":\"add\",\"arguments\":{\"a\":\"</tool_call>{[\\\"<tool_call>\"}}</tool_call>",
        "",
        "",
        &add,
    );
    // Invalid calls remain text unchanged, and a valid call may follow.
    for broken in [
        "say <tool_call> and </tool_call> ",
        "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}\n</tool_call>",
        "<tool_call>{\"name\": 3}</tool_call>",
        "<tool_call>{\"name\": \"add\", \"arguments\": [1]}</tool_call>",
        "<tool_call>[]</tool_call>",
        "\n <tool_call>\n{\"name\": \"add\", \"argu",
        " <tool_ca",
        "{\"name\": \"add\", \"arguments\": {}}",
    ] {
        check(broken, "", broken, &[]);
    }
    let mended = "<tool_call>{\"name\": add}</tool_call> <tool_call>{\"name\": \"add\"}</tool_call>";
    check(mended, "", "<tool_call>{\"name\": add}</tool_call>", &[call("add", json!({}))]);
    // Calls within reasoning are ignored.
    let thought = "<think>I could <tool_call>{\"name\": \"add\"}</tool_call>";
    check(thought, "I could <tool_call>{\"name\": \"add\"}</tool_call>", "", &[]);
}

#[test]
fn llama() {
    let check =
        |response: &str, text, calls: &[Call]| check(&CallFormat::default(), response, "", text, calls);
    let look = call("look", json!({"city": "Paris"}));
    check("{\"name\": \"look\", \"parameters\": {\"city\": \"Paris\"}}", "", std::slice::from_ref(&look));
    check(
        "\n{\"type\": \"function\", \"function\": {\"name\": \"look\", \"parameters\": {\"city\": \"Paris\"}}}\nDone.",
        "Done.",
        std::slice::from_ref(&look),
    );
    let two = "{\"name\": \"look\", \"parameters\": {\"city\": \"Paris\"}}; {\"name\": \"add\", \"parameters\": {}}";
    check(two, "", &[look.clone(), call("add", json!({}))]);
    check("[{\"name\": \"look\", \"parameters\": {\"city\": \"Paris\"}}]", "", std::slice::from_ref(&look));
    // JSON that names no tool of the request, or is not at the beginning, is content.
    for text in [
        "{\"name\": \"Ada\", \"parameters\": {}}",
        "{\"city\": \"Paris\"}",
        "[1, 2]",
        "Use {\"name\": \"look\", \"parameters\": {}}",
        "{look}",
        " [see",
        "{\"name\": \"look\", \"parameters\": {",
        "",
        " \n",
    ] {
        check(text, text, &[]);
    }
    check(
        "{\"name\": \"add\"}; {\"name\": \"Ada\"}; x",
        "; {\"name\": \"Ada\"}; x",
        &[call("add", json!({}))],
    );
}

#[test]
fn mistral_and_deepseek() {
    let list = "[TOOL_CALLS] [{\"name\": \"add\", \"arguments\": {\"a\": [1]}, \"id\": \"9charsid1\"}, {\"name\": \"look\", \"arguments\": {}}]";
    let calls = [call("add", json!({"a": [1]})), call("look", json!({}))];
    check(&mistral(), list, "", "", &calls);
    check(&mistral(), "A list: [1, 2] [TOOL", "", "A list: [1, 2] [TOOL", &[]);
    check(&mistral(), "[TOOL_CALLS]add{\"a\":1}", "", "[TOOL_CALLS]add{\"a\":1}", &[]);
    let named = "Wait.[TOOL_CALLS]add[CALL_ID]abc123def[ARGS]{\"a\": [1]}[TOOL_CALLS]look[CALL_ID]x[ARGS]{}";
    check(&mistral_named(), named, "", "Wait.", &calls);
    check(&mistral_named(), list, "", "", &calls);
    let response = "<think>Hm.</think>\n\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n{\"a\": [1]}\n```\
        <｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>look\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
    check(&deepseek(), response, "Hm.", "", &calls);
    let broken =
        "<｜tool▁calls▁begin｜> and <｜tool▁call▁begin｜>function<｜tool▁sep｜>two words\n```json\n{}";
    check(&deepseek(), broken, "", broken, &[]);
    let far = format!("[TOOL_CALLS]{}{{}}", "x".repeat(600));
    check(&mistral_named(), &far, "", &far, &[]);
}

#[test]
fn arguments_between_tags() {
    let calls = [call("look", json!({"city": "12\n<b>\"", "other": "3", "a": 4})), call("nobody", json!({}))];
    let response = "I look.\n\n<tool_call>\n<function=look>\n<parameter=city>\n12\n<b>\"\n</parameter>\n<parameter=other>3</parameter>\n\
        <parameter=a>\n4\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=nobody>\n</function>\n</tool_call>";
    check(&coder(), response, "", "I look.", &calls);
    // Models often omit the first marker.
    check(&coder(), &response.replace("<tool_call>\n", ""), "", "I look.", &calls);
    let response = "<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>-1</arg_value>\n<arg_key>b</arg_key><arg_value>null</arg_value>\n</tool_call>\
        <tool_call>look<arg_key>a</arg_key><arg_value>one</arg_value></tool_call>Done.";
    let calls = [call("add", json!({"a": -1, "b": null})), call("look", json!({"a": "one"}))];
    check(&glm(), response, "", "Done.", &calls);
    check(&glm(), "<tool_call>{\"name\": \"add\"}", "", "", &[call("add", json!({}))]);
    for broken in [
        "<tool_call>\n<function=look>\n<parameter=city>\n1",
        "<tool_call>\n<function=look>\nwhat? </function>",
        "<tool_call>\n<function>look</function>\n</tool_call>",
        "<tool_call> and <function=two\nlines></function>",
    ] {
        check(&coder(), broken, "", broken, &[]);
    }
    check(
        &glm(),
        "<tool_call>add\n<arg_key>a</arg_key> 1",
        "",
        "<tool_call>add\n<arg_key>a</arg_key> 1",
        &[],
    );
}

#[test]
fn text_comes_as_soon_as_it_is_known() {
    let mut reader = reader(hermes(), "...<think>\n");
    let mut push = |piece: &str| reader.push(piece.to_owned());
    assert_eq!(push("Hm").thinking, "Hm");
    assert_eq!(push(".\n</think>\n\nOne").text, "One");
    assert_eq!(push(" <b").text, " <b");
    assert!(push(" <tool_").is_empty());
    assert_eq!(push("x").text, " <tool_x");
    assert!(push("<tool_call>{\"name\": ").is_empty());
    assert_eq!(push("\"add\"}").calls, [call("add", json!({}))]);
    assert!(push("\n</tool_call>\n").is_empty());
    assert_eq!(push("two\n").text, "two");
    assert_eq!(push("three").text, "\nthree");
}

#[test]
fn without_tools_or_thoughts() {
    let mut reader = ReplyFormat { calls: hermes(), ..ReplyFormat::default() }.reader(false, None);
    let text = "<think><tool_call>{\"name\": \"add\"}";
    assert_eq!(reader.push(text.to_owned()).text, text);
    assert!(reader.finish().is_empty());
}

/// Many markers in a call that never ends: each is text in the end, and none may cost a pass over the rest.
#[test]
fn work_is_linear() {
    let two_markers = CallFormat { each: "<call>".into(), ..hermes() };
    for (format, start, marker) in
        [(hermes(), "<tool_call>{\"a\":\"", "<tool_call>"), (two_markers, "<tool_call>{\"a\":\"", "<call> ")]
    {
        let response = format!("{start}{}", marker.repeat(400_000));
        let started = std::time::Instant::now();
        let output = read(reader(format, ""), [response.clone()]);
        assert!(output.text == response && output.calls.is_empty());
        // Quadratic work takes minutes.
        assert!(started.elapsed().as_secs() < 30, "{:?}", started.elapsed());
    }
}

fn piece() -> impl Strategy<Value = &'static str> {
    prop_oneof![
        Just("<tool_call>"),
        Just("</tool_call>"),
        Just("<tool_"),
        Just("call>"),
        Just("<think>"),
        Just("</think>"),
        Just("{\"name\": \"add\"}"),
        Just("{\"name\": \"nobody\", \"arguments\": {\"a\": \"{\\\"\"}}"),
        Just("{\"name\": \"look\", \"arg"),
        Just("{"),
        Just("}"),
        Just("["),
        Just("]"),
        Just("\""),
        Just("; "),
        Just(" "),
        Just("\n"),
        Just("text"),
        Just("ä"),
        Just("[TOOL_CALLS]"),
        Just("add"),
        Just("[ARGS]"),
        Just("[CALL_ID]"),
        Just("<｜tool▁calls▁begin｜>"),
        Just("<｜tool▁call▁begin｜>function<｜tool▁sep｜>"),
        Just("\n```json\n"),
        Just("```"),
        Just("<function="),
        Just("</function>"),
        Just("<parameter=a>"),
        Just("</parameter>"),
        Just(">"),
        Just("<arg_key>a</arg_key>"),
        Just("<arg_value>"),
        Just("</arg_value>"),
    ]
}

proptest! {
    #[test]
    fn any_cut_reads_the_same(
        parts in proptest::collection::vec(piece(), 0..16), which in 0usize..7, is_open: bool,
        cuts in proptest::collection::vec(1usize..9, 1..8),
    ) {
        let format = [hermes(), mistral(), mistral_named(), deepseek(), coder(), glm(), CallFormat::default()][which].clone();
        let prompt = if is_open { "<think>" } else { "" };
        let text = parts.concat();
        let whole = read(reader(format.clone(), prompt), [text.clone()]);
        let characters: Vec<char> = text.chars().collect();
        let (mut pieces, mut at) = (Vec::new(), 0);
        for cut in cuts.iter().cycle() {
            if at >= characters.len() {
                break;
            }
            let end = (at + cut).min(characters.len());
            pieces.push(characters[at..end].iter().collect::<String>());
            at = end;
        }
        prop_assert_eq!(&read(reader(format, prompt), pieces), &whole);
        // Without other parts, the content is the unchanged response.
        if whole.calls.is_empty() && !is_open && !text.trim_start().starts_with("<think>") {
            prop_assert_eq!(&whole.text, &text);
        }
    }

    #[test]
    fn calls_between_texts_are_found_and_nothing_else_is_lost(
        turns in proptest::collection::vec((0usize..4, "[a-z{}\\[\\]\"<>;, ]{0,12}"), 0..6),
    ) {
        let (mut response, mut text, mut calls) = (String::new(), String::new(), Vec::new());
        for (kind, value) in turns {
            match kind {
                0 => {
                    let arguments = json!({"value": value, "list": [{"nested": value}]});
                    let json = json!({"name": "add", "arguments": arguments});
                    response.push_str(&format!("<tool_call>{json}</tool_call>"));
                    calls.push(call("add", arguments));
                }
                1 => {
                    response.push_str("<tool_call>{]");
                    text.push_str("<tool_call>{]");
                }
                _ => {
                    // JSON after a call would be another call.
                    let content = format!("x{value}x");
                    response.push_str(&content);
                    text.push_str(&content);
                }
            }
        }
        let output = read(reader(hermes(), ""), [response]);
        prop_assert_eq!(output.calls, calls);
        prop_assert_eq!(output.text.replace(' ', ""), text.replace(' ', ""));
    }
}

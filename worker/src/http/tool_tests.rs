//! Reasoning and tool calls over HTTP, from an engine with a scripted response.

use http::StatusCode;
use lode_model::media_type as mt;
use serde_json::{Value, json};

use super::tests::{Bench, bench};
use crate::testing::InProcess;

/// Tool calls in Hermes' tags, and optional reasoning.
const QWEN: &str = r#"{{- if .Tools }}<|im_start|>system
{{ .Tools }}<|im_end|>
{{ end }}
{{- range .Messages }}<|im_start|>{{ .Role }}
{{ if and $.IsThinkSet .Thinking }}<think>{{ .Thinking }}</think>{{ end }}
{{- .Content }}
{{- range .ToolCalls }}<tool_call>{"name": "{{ .Function.Name }}", "arguments": {{ .Function.Arguments }}}</tool_call>{{ end }}<|im_end|>
{{ end }}<|im_start|>assistant
{{ if and $.IsThinkSet (not $.Think) }}<think></think>{{ end }}"#;

/// Tool calls without tags.
const LLAMA: &str = r#"{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\n' }}
{%- if message.tool_calls %}
{{- '{"name": "' + message.tool_calls[0].function.name + '", "parameters": ' + (message.tool_calls[0].function.arguments | tojson) + '}' }}
{%- elif tools and loop.first %}{{ (tools | tojson) + message.content }}
{%- else %}{{ message.content }}
{%- endif %}
{{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"#;

/// A model with this template and a fixed response.
async fn model(template: &str, output: &str) -> Bench {
    let mut bench = bench(InProcess::scripted(output), false).await;
    let layer = match template.starts_with("{%") {
        true => (mt::OLLAMA_JSON, "chat_template.jinja", template.as_bytes().to_vec()),
        false => (mt::OLLAMA_TEMPLATE, "", template.as_bytes().to_vec()),
    };
    bench.digest = bench.tiny.put_demo_with(0, false, &[layer]);
    bench
}

fn request(more: Value) -> Value {
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    let tool = json!({"type": "function", "function": {"name": "look", "description": "looks", "parameters": parameters}});
    let mut body = json!({"messages": [{"role": "user", "content": "?"}], "tools": [tool], "options": {"temperature": 0}});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// Checks the form of the random tool call ids and removes them.
fn without_ids(calls: &Value) -> Vec<Value> {
    let mut calls = calls.as_array().unwrap().clone();
    for call in &mut calls {
        let id = call.as_object_mut().unwrap().remove("id").unwrap();
        let letters = id.as_str().unwrap().strip_prefix("call_").unwrap();
        assert!(
            letters.len() == 8
                && letters.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit()),
            "{id}"
        );
    }
    calls
}

const OUTPUT: &str = "<think>Where?</think>\n\nI look.\n<tool_call>\n{\"name\": \"look\", \"arguments\": {\"city\": \"Paris\", \"a\": [1]}}\n\
    </tool_call>\n<tool_call>{\"name\": \"look\", \"arguments\": {}}</tool_call>";

fn expected() -> [Value; 2] {
    [
        json!({"function": {"index": 0, "name": "look", "arguments": {"city": "Paris", "a": [1]}}}),
        json!({"function": {"index": 1, "name": "look", "arguments": {}}}),
    ]
}

#[tokio::test]
async fn chat_returns_tool_calls_and_reasoning() {
    let bench = model(QWEN, OUTPUT).await;
    let response = bench.post("/api/chat", request(json!({"stream": false}))).await;
    let message = &response["message"];
    assert_eq!((&message["thinking"], &message["content"]), (&json!("Where?"), &json!("I look.")));
    assert_eq!(without_ids(&message["tool_calls"]), expected());
    assert_eq!(message["tool_calls"][0]["function"]["arguments"].to_string(), r#"{"city":"Paris","a":[1]}"#);
    assert_eq!(response["done_reason"], "stop");

    for more in [json!({}), json!({"logprobs": true}), json!({"think": "low"})] {
        let records = bench.stream("/api/chat", request(more)).await;
        let text = |key: &str| {
            records.iter().filter_map(|record| record["message"][key].as_str()).collect::<String>()
        };
        assert_eq!((text("thinking").as_str(), text("content").as_str()), ("Where?", "I look."));
        let calls = records.iter().filter_map(|record| record["message"]["tool_calls"].as_array()).flatten();
        assert_eq!(without_ids(&calls.cloned().collect()), expected());
        let (last, pieces) = records.split_last().unwrap();
        assert_eq!((&last["message"]["content"], last["message"].get("tool_calls")), (&json!(""), None));
        assert!(pieces.iter().all(|piece| piece["done"] == false));
        let has_thought_first =
            pieces[0]["message"]["thinking"].is_string() || pieces[0]["logprobs"].is_array();
        assert!(has_thought_first, "{}", pieces[0]);
    }

    // Without tools a tool call is text. A stop text inside a tool call ends it.
    let response = bench.post("/api/chat", request(json!({"stream": false, "tools": []}))).await;
    let content = response["message"]["content"].as_str().unwrap();
    assert!(content.starts_with("I look.\n<tool_call>\n{") && content.ends_with("</tool_call>"), "{content}");
    let stopped = request(json!({"stream": false, "options": {"temperature": 0, "stop": ["Paris"]}}));
    let response = bench.post("/api/chat", stopped).await;
    let message = &response["message"];
    let broken = "I look.\n<tool_call>\n{\"name\": \"look\", \"arguments\": {\"city\": \"";
    assert_eq!((message["content"].as_str(), message.get("tool_calls")), (Some(broken), None));
    bench.worker.stop().await;
}

#[tokio::test]
async fn generate_returns_reasoning() {
    let bench = model(QWEN, "<think>\nHm.\n</think>\n\nYes.").await;
    let options = json!({"temperature": 0});
    let response =
        bench.post("/api/generate", json!({"prompt": "?", "stream": false, "options": options})).await;
    assert_eq!((&response["thinking"], &response["response"]), (&json!("Hm."), &json!("Yes.")));
    let records =
        bench.stream("/api/generate", json!({"prompt": "?", "think": true, "options": options})).await;
    let text = |key: &str| records.iter().filter_map(|record| record[key].as_str()).collect::<String>();
    assert_eq!((text("thinking").as_str(), text("response").as_str()), ("Hm.", "Yes."));
    let raw = json!({"prompt": "?", "raw": true, "stream": false, "options": options});
    let response = bench.post("/api/generate", raw).await;
    assert_eq!(
        (response.get("thinking"), &response["response"]),
        (None, &json!("<think>\nHm.\n</think>\n\nYes."))
    );
    // With `think: false` the template tells the model not to think, but this model does so anyway.
    let body = json!({"prompt": "?", "think": false, "stream": false, "options": options});
    assert_eq!(bench.post("/api/generate", body).await["response"], "Yes.");
    let prompt = async |think: Value| {
        let body = json!({"prompt": "?", "think": think, "_debug_render_only": true});
        bench.post("/api/generate", body).await["_debug_info"]["rendered_template"].clone()
    };
    let begins = "<|im_start|>user\n?<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(prompt(json!(false)).await, format!("{begins}<think></think>"));
    assert_eq!((prompt(json!(null)).await, prompt(json!("high")).await), (json!(begins), json!(begins)));
    let (status, error) = bench.refused("/api/generate", json!({"prompt": "?", "think": "a lot"})).await;
    assert!(
        status == StatusCode::BAD_REQUEST && error.starts_with("invalid think value: \"a lot\""),
        "{error}"
    );
    bench.worker.stop().await;
}

#[tokio::test]
async fn tool_calls_without_markers() {
    let bench = model(LLAMA, "{\"name\": \"look\", \"parameters\": {\"city\": \"Paris\"}}").await;
    let response = bench.post("/api/chat", request(json!({"stream": false}))).await;
    assert_eq!(response["message"]["content"], "");
    let call = json!({"function": {"index": 0, "name": "look", "arguments": {"city": "Paris"}}});
    assert_eq!(without_ids(&response["message"]["tool_calls"]), std::slice::from_ref(&call));
    // With an unknown tool name it is text.
    let other =
        request(json!({"stream": false, "tools": [{"type": "function", "function": {"name": "see"}}]}));
    let message = &bench.post("/api/chat", other).await["message"];
    assert!(
        message["content"].as_str().unwrap().starts_with("{\"name\": \"look\"")
            && message.get("tool_calls").is_none()
    );
    // Previous tool calls are in the next prompt.
    let messages = json!([{"role": "user", "content": "?"}, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "Sun."}]);
    let response = bench
        .post("/api/chat", request(json!({"messages": messages, "tools": [], "_debug_render_only": true})))
        .await;
    let prompt = response["_debug_info"]["rendered_template"].as_str().unwrap();
    assert!(prompt.contains("assistant\n{\"name\": \"look\", \"parameters\": {\"city\": \"Paris\"}}<|im_end|>\n<|im_start|>tool\nSun."), "{prompt}");
    let (status, error) = bench.refused("/api/chat", request(json!({"think": true}))).await;
    assert!(status == StatusCode::BAD_REQUEST && error.contains("does not support thinking"), "{error}");
    bench.worker.stop().await;
}

#[tokio::test]
async fn structured_output() {
    let city = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": false});
    let bench = model(QWEN, "<think>\n{Hm}.\n</think>\n\n{\"city\": \"Paris\"} and so on").await;
    let chat = json!({"messages": [{"role": "user", "content": "?"}], "format": city, "stream": false, "options": {"temperature": 0}});
    let response = bench.post("/api/chat", chat.clone()).await;
    let message = &response["message"];
    assert_eq!(
        (&message["thinking"], &message["content"]),
        (&json!("{Hm}."), &json!("{\"city\": \"Paris\"}"))
    );
    assert_eq!(response["done_reason"], "stop");
    let generate = |more: Value| {
        let mut body = json!({"prompt": "?", "format": city, "stream": false, "options": {"temperature": 0}});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let records = bench.stream("/api/generate", generate(json!({"stream": true, "logprobs": true}))).await;
    let text = |key: &str| records.iter().filter_map(|record| record[key].as_str()).collect::<String>();
    assert_eq!((text("thinking").as_str(), text("response").as_str()), ("{Hm}.", "{\"city\": \"Paris\"}"));
    // Without thinking, the output starts with the response. At the length limit it is cut in the middle.
    let options = json!({"temperature": 0, "num_predict": 3});
    let response = bench.post("/api/generate", generate(json!({"think": false, "options": options}))).await;
    assert_eq!((&response["done_reason"], &response["thinking"]), (&json!("length"), &Value::Null));
    assert!(response["response"].as_str().unwrap().starts_with('{'), "{response}");
    bench.worker.stop().await;

    let bench = model(LLAMA, "{\"a\": [1, 2]} Done.").await;
    let any = generate(json!({"format": "json"}));
    assert_eq!(bench.post("/api/generate", any).await["response"], "{\"a\": [1, 2]}");
    for none in [Value::Null, json!("")] {
        let response = bench.post("/api/generate", generate(json!({"format": none}))).await;
        assert_eq!(response["response"], "{\"a\": [1, 2]} Done.");
    }
    bench.worker.stop().await;
}

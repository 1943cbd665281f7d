//! Tests of the translation: requests to the worker's format, and records to objects and events.

use axum::body::to_bytes;
use bytes::Bytes;
use futures::{StreamExt, stream};
use http::{HeaderValue, StatusCode};
use lode_client::BodyBudget;
use serde_json::{Value, json};

use super::output::Reply;
use super::request::{translate_count, translate_response};
use crate::gateway::WorkerResponse;
use crate::http::Failure;

fn request(more: Value) -> Value {
    let mut request = json!({"model": "m", "input": "?"});
    request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    request
}

fn translated(more: Value) -> Result<Value, Failure> {
    let (json, _) = translate_response(request(more).to_string().as_bytes())?;
    Ok(serde_json::from_slice(&json).unwrap())
}

#[test]
fn requests_translate() {
    let translated = translated(json!({
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": "How is the weather in Paris?"},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Look first."}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
            {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{\"city\":\"Paris\"}"},
            {"type": "function_call", "call_id": "c2", "name": "wait", "arguments": ""},
            {"type": "function_call_output", "call_id": "c1", "output": "20 degrees"},
            {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "late"}]},
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be kind."}]},
            {"role": "user", "content": [
                {"type": "input_text", "text": "And now?"},
                {"type": "input_image", "image_url": "data:image/png;base64,AAAA"},
            ]},
        ],
        "tools": [{"type": "function", "name": "look", "description": "Looks.", "parameters": {"type": "object"}, "strict": true}],
        "tool_choice": {"type": "function", "name": "look"}, "reasoning": {"effort": "minimal", "summary": "auto"},
        "text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}},
        "max_output_tokens": 9, "temperature": 0, "truncation": "auto", "stream": true, "store": true, "metadata": {"a": "b"},
        "include": ["message.output_text.logprobs"], "top_logprobs": 2, "previous_response_id": null,
    }));
    assert_eq!(
        translated.unwrap(),
        json!({
            "model": "m",
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "How is the weather in Paris?"},
                {"role": "assistant", "content": "I look.", "tool_calls": [
                    {"id": "c1", "function": {"name": "look", "arguments": {"city": "Paris"}}},
                    {"id": "c2", "function": {"name": "wait", "arguments": {}}},
                ], "thinking": "Look first."},
                {"role": "tool", "content": "20 degrees", "tool_call_id": "c1", "tool_name": "look"},
                {"role": "tool", "content": "late", "tool_call_id": "c2", "tool_name": "wait"},
                {"role": "system", "content": "Be kind."},
                {"role": "user", "content": "And now?", "images": ["AAAA"]},
            ],
            "stream": true,
            "options": {"temperature": 0.0, "top_p": 1.0, "num_predict": 9},
            "format": {"type": "object"},
            "tools": [{"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object"}}}],
            "tool_choice": {"type": "function", "function": {"name": "look"}},
            "think": "low", "logprobs": true, "top_logprobs": 2, "truncate": true, "shift": true,
        })
    );
}

#[test]
fn turns_of_the_model_are_separate() {
    let call = json!({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"});
    let assistant = |text: &str| json!({"role": "assistant", "content": text});
    let reasoning = json!({"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]});
    let input = json!([call, assistant("a"), reasoning, assistant("b")]);
    let messages = translated(json!({"input": input})).unwrap()["messages"].clone();
    let calls = json!([{"id": "c", "function": {"name": "f", "arguments": {}}}]);
    assert_eq!(
        messages,
        json!([
            {"role": "assistant", "content": "", "tool_calls": calls},
            {"role": "assistant", "content": "a"},
            {"role": "assistant", "content": "b", "thinking": "hm"},
        ])
    );
}

#[test]
fn counting_renders_the_prompt() {
    let (json, _) = translate_count(request(json!({"stream": true})).to_string().as_bytes()).unwrap();
    let json: Value = serde_json::from_slice(&json).unwrap();
    assert_eq!((&json["_debug_render_only"], &json["stream"]), (&json!(true), &json!(false)));
}

#[test]
fn bad_requests_are_refused_with_their_field() {
    let item = |item: Value| json!({ "input": [item] });
    for (request, expect) in [
        (json!({"input": null}), "`input` is missing"),
        (json!({"input": []}), "`input` is empty"),
        (json!({"input": 7}), "input: invalid type: integer `7`"),
        (
            json!({"previous_response_id": "resp_1"}),
            "`previous_response_id` is not supported: this server stores no",
        ),
        (json!({"conversation": "c"}), "`conversation` is not supported"),
        (json!({"background": true}), "`background` must be false"),
        (json!({"prompt": {"id": "p"}}), "`prompt` is not supported"),
        (json!({"temprature": 1}), "`temprature` is not supported"),
        (json!({"include": ["file_search_call.results"]}), "`include` contains `file_search_call.results`"),
        (json!({"top_logprobs": 2}), "`top_logprobs` needs `include`"),
        (json!({"reasoning": {"effort": "a lot"}}), "`reasoning.effort` must be one of"),
        (json!({"reasoning": {"summary": "detailed"}}), "`reasoning.summary` must be `auto`"),
        (json!({"text": {"verbosity": "low"}}), "`text.verbosity` must be"),
        (json!({"text": {"format": {"type": "json_schema"}}}), "`text.format.schema` is missing"),
        (json!({"text": {"format": {"type": "grammar"}}}), "text.format.type: unknown variant `grammar`"),
        (json!({"tools": [{"type": "web_search"}]}), "`tools[0].type` is `web_search`"),
        (json!({"tools": [{"type": "function"}]}), "`tools[0].name` is missing"),
        (json!({"tool_choice": "required"}), "`tools` is missing"),
        (json!({"tool_choice": {"type": "web_search"}}), "tool_choice: expected `none`, `auto`"),
        (json!({"truncation": "some"}), "`truncation` must be"),
        (json!({"service_tier": "flex"}), "`service_tier` must be"),
        (json!({"max_output_tokens": "x"}), "max_output_tokens: invalid type"),
        (item(json!({"type": "item_reference", "id": "x"})), "`input[0].type` is `item_reference`, but"),
        (item(json!({"type": "web_search_call"})), "`input[0].type` is `web_search_call`"),
        (item(json!({"role": "owner", "content": "x"})), "input[0].role: unknown variant `owner`"),
        (item(json!({"role": "user", "content": [{"type": "input_file"}]})), "unknown variant `input_file`"),
        (
            item(
                json!({"role": "user", "content": [{"type": "input_image", "image_url": "http://x/y.png"}]}),
            ),
            "images must be `data:` URLs",
        ),
        (
            item(json!({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{"})),
            "`arguments` of call `c` is not JSON",
        ),
        (item(json!(7)), "input[0]: invalid type"),
    ] {
        let error = translated(request.clone());
        let error = error.map_or_else(|failure| failure.to_string(), |_| panic!("{request}: not refused"));
        assert!(error.contains(expect), "{request}: {error}");
    }
}

fn reply(more: Value) -> Reply {
    let (_, settings) = translate_response(request(more).to_string().as_bytes()).unwrap();
    Reply::new(settings, BodyBudget::new(1 << 20).charge())
}

fn call(name: &str) -> Value {
    json!({"id": format!("call_{name}"), "function": {"name": name, "arguments": {"a": 1}}})
}

#[test]
fn records_become_objects() {
    let message = json!({"content": "x", "thinking": "hm", "tool_calls": [call("one"), call("two")]});
    let done = json!({"message": message, "done": true, "done_reason": "stop", "prompt_eval_count": 12,
        "prompt_cached_count": 8, "eval_count": 5, "thinking_count": 2});
    let got = reply(json!({"metadata": {"a": "b"}, "store": true})).into_object(done.clone()).unwrap();
    assert_eq!(
        (&got["status"], &got["store"], &got["metadata"]["a"]),
        (&json!("completed"), &json!(false), &json!("b"))
    );
    let kinds: Vec<&str> =
        got["output"].as_array().unwrap().iter().map(|item| item["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["reasoning", "message", "function_call", "function_call"]);
    assert_eq!(got["output"][0]["content"][0]["text"], "hm");
    assert_eq!(got["output"][1]["content"][0]["text"], "x");
    assert_eq!(got["output"][2]["arguments"], "{\"a\":1}");
    assert_eq!(got["usage"]["output_tokens_details"]["reasoning_tokens"], 2);
    assert_eq!(got["usage"]["total_tokens"], 17);
    let single = reply(json!({"parallel_tool_calls": false})).into_object(done).unwrap();
    assert_eq!(single["output"].as_array().unwrap().len(), 3);
    let cut = json!({"message": {"content": "x"}, "done": true, "done_reason": "length"});
    let cut = reply(json!({})).into_object(cut).unwrap();
    assert_eq!((&cut["status"], &cut["output"][0]["status"]), (&json!("incomplete"), &json!("incomplete")));
    assert_eq!(cut["incomplete_details"]["reason"], "max_output_tokens");
}

/// The events for these lines of a worker; checks their names and numbers.
async fn events(lines: &[Value]) -> Vec<Value> {
    let lines: Vec<_> = lines.iter().map(|line| Ok(Bytes::from(format!("{line}\n")))).collect();
    let response = WorkerResponse {
        status: StatusCode::OK,
        content_type: HeaderValue::from_static("application/x-ndjson"),
        bytes: stream::iter(lines).boxed(),
    };
    let body = reply(json!({})).into_events(response).into_body();
    let text = String::from_utf8(to_bytes(body, usize::MAX).await.unwrap().to_vec()).unwrap();
    let events = text.split_terminator("\n\n").enumerate().map(|(number, event)| {
        let (name, data) = event.split_once('\n').unwrap();
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(name.strip_prefix("event: "), data["type"].as_str(), "{event}");
        assert_eq!(data["sequence_number"], number, "{event}");
        data
    });
    events.collect()
}

#[tokio::test]
async fn records_become_events() {
    let found = events(&[
        json!({"message": {"thinking": "h"}}),
        json!({"message": {"content": "a"}}),
        json!({"message": {"content": "b", "tool_calls": [call("one")]}}),
        json!({"message": {}, "done": true, "done_reason": "stop", "eval_count": 2}),
        json!({"message": {"content": "after the end"}}),
    ])
    .await;
    let kinds: Vec<String> = found
        .iter()
        .map(|event| {
            let index = event["output_index"].as_u64().map(|index| format!(" {index}")).unwrap_or_default();
            format!("{}{index}", event["type"].as_str().unwrap().trim_start_matches("response."))
        })
        .collect();
    assert_eq!(
        kinds,
        [
            "created",
            "in_progress",
            "output_item.added 0",
            "content_part.added 0",
            "reasoning_text.delta 0",
            "reasoning_text.done 0",
            "content_part.done 0",
            "output_item.done 0",
            "output_item.added 1",
            "content_part.added 1",
            "output_text.delta 1",
            "output_text.delta 1",
            "output_text.done 1",
            "content_part.done 1",
            "output_item.done 1",
            "output_item.added 2",
            "function_call_arguments.delta 2",
            "function_call_arguments.done 2",
            "output_item.done 2",
            "completed",
        ]
    );
    assert_eq!(found[12]["text"], "ab");
    let last = &found[19]["response"];
    assert_eq!((last["output"].as_array().unwrap().len(), &last["usage"]["output_tokens"]), (3, &json!(2)));
}

#[tokio::test]
async fn a_failure_ends_the_events() {
    let failed = events(&[json!({"message": {"content": "a"}}), json!({"error": "out of memory"})]).await;
    let last = failed.last().unwrap();
    assert_eq!((&last["type"], &last["response"]["status"]), (&json!("response.failed"), &json!("failed")));
    assert_eq!(last["response"]["error"], json!({"code": "server_error", "message": "out of memory"}));
    let cut = events(&[json!({"message": {"content": "a"}})]).await;
    assert_eq!(cut.last().unwrap()["response"]["error"]["message"], "the worker's response ended early");
}

//! Tests of the translation: requests to the worker's format, and records to messages and events.

use axum::body::to_bytes;
use bytes::Bytes;
use futures::{StreamExt, stream};
use http::{HeaderValue, StatusCode};
use serde_json::{Value, json};

use super::reply::MessageReply;
use super::request::{ReplyOptions, translate_count, translate_message};
use crate::gateway::WorkerResponse;
use crate::http::Failure;

fn translated(more: Value) -> Result<Value, Failure> {
    let messages = json!([{"role": "user", "content": "?"}]);
    let mut request = json!({"model": "m", "max_tokens": 100, "messages": messages});
    request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let (json, _) = translate_message(request.to_string().as_bytes())?;
    Ok(serde_json::from_slice(&json).unwrap())
}

fn refusal(more: Value) -> String {
    translated(more.clone()).map_or_else(|failure| failure.to_string(), |_| panic!("{more}: not refused"))
}

#[test]
fn requests_translate() {
    let request = translated(json!({
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "Be kind."}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "How is the weather"}, {"type": "text", "text": "in Paris?"}]},
            {"role": "system", "content": "Be quick."},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "Look first.", "signature": "x"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "t1", "name": "look", "input": {"city": "Paris"}},
                {"type": "tool_use", "id": "t2", "name": "wait", "input": {}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "20 degrees"},
                {"type": "tool_result", "tool_use_id": "t2", "content": [{"type": "text", "text": "late"}], "is_error": true},
                {"type": "text", "text": "And now?"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
            ]},
        ],
        "stream": true, "temperature": 0.5, "top_k": 7, "stop_sequences": ["END"], "metadata": {"user_id": "x"}, "service_tier": "auto",
        "tools": [{"name": "look", "description": "Looks.", "input_schema": {"type": "object"}}],
    }));
    assert_eq!(
        request.unwrap(),
        json!({
            "model": "m",
            "messages": [
                {"role": "system", "content": "Be brief.\nBe kind."},
                {"role": "user", "content": "How is the weather\nin Paris?"},
                {"role": "system", "content": "Be quick."},
                {"role": "assistant", "content": "I look.", "tool_calls": [
                    {"id": "t1", "function": {"name": "look", "arguments": {"city": "Paris"}}},
                    {"id": "t2", "function": {"name": "wait", "arguments": {}}},
                ], "thinking": "Look first."},
                {"role": "tool", "content": "20 degrees", "tool_call_id": "t1", "tool_name": "look"},
                {"role": "tool", "content": "Error: late", "tool_call_id": "t2", "tool_name": "wait"},
                {"role": "user", "content": "And now?", "images": ["AAAA"]},
            ],
            "stream": true,
            "options": {"temperature": 0.5, "top_k": 7, "top_p": 1.0, "num_predict": 100, "stop": ["END"]},
            "tools": [{"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object"}}}],
            "think": false, "truncate": false, "shift": false,
        })
    );
}

#[test]
fn choices_reasoning_and_formats() {
    let tools = json!([{"name": "look", "input_schema": {}}]);
    let choice = |choice: Value| translated(json!({"tools": tools, "tool_choice": choice})).unwrap();
    assert_eq!(choice(json!({"type": "auto"})).get("tool_choice"), None);
    assert_eq!(choice(json!({"type": "any"}))["tool_choice"], "required");
    let named = json!({"type": "function", "function": {"name": "look"}});
    assert_eq!(choice(json!({"type": "tool", "name": "look"}))["tool_choice"], named);
    assert_eq!(choice(json!({"type": "none"})).get("tools"), None);
    let think = |more: Value| translated(more).unwrap().get("think").cloned();
    assert_eq!(think(json!({"thinking": {"type": "enabled", "budget_tokens": 50}})), Some(json!(true)));
    assert_eq!(think(json!({"thinking": {"type": "disabled"}})), Some(json!(false)));
    assert_eq!(think(json!({"thinking": {"type": "adaptive"}})), None);
    let effort = json!({"thinking": {"type": "adaptive"}, "output_config": {"effort": "xhigh"}});
    assert_eq!(think(effort), Some(json!("max")));
    let format = json!({"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}});
    assert_eq!(translated(format).unwrap()["format"], json!({"type": "object"}));
}

#[test]
fn counting_renders_the_prompt() {
    let request = json!({"model": "m", "messages": [{"role": "user", "content": "?"}]});
    let (json, _) = translate_count(request.to_string().as_bytes()).unwrap();
    let json: Value = serde_json::from_slice(&json).unwrap();
    assert_eq!((&json["_debug_render_only"], json.get("truncate")), (&json!(true), None));
}

#[test]
fn bad_requests_are_refused_with_their_field() {
    let message = |role: &str, content: Value| json!({"messages": [{"role": role, "content": content}]});
    for (request, expect) in [
        (json!({"max_tokens": null}), "`max_tokens` is required"),
        (json!({"max_tokens": -1}), "max_tokens: invalid value: integer `-1`"),
        (json!({"messages": []}), "`messages` is missing or empty"),
        (json!({"container": "c"}), "`container` is not supported"),
        (json!({"mcp_servers": []}), "`mcp_servers` is not supported"),
        (json!({"temprature": 1}), "`temprature` is not supported"),
        (json!({"system": 7}), "system: expected a string or a list of blocks"),
        (json!({"thinking": {"type": "enabled"}}), "thinking: missing field `budget_tokens`"),
        (
            json!({"thinking": {"type": "enabled", "budget_tokens": 100}}),
            "`thinking.budget_tokens` must be less",
        ),
        (
            json!({"thinking": {"type": "adaptive", "display": "omitted"}}),
            "thinking: unknown field `display`",
        ),
        (json!({"output_config": {"effort": "a lot"}}), "`output_config.effort` must be one of"),
        (
            json!({"tools": [{"type": "web_search_20250305", "name": "w"}]}),
            "`tools[0].type` is `web_search_20250305`",
        ),
        (json!({"tool_choice": {"type": "any"}}), "`tools` is missing"),
        (json!({"tools": [{"name": "a"}], "tool_choice": {"type": "tool"}}), "`tool_choice.name` is missing"),
        (json!({"stop_sequences": "x"}), "stop_sequences: invalid type"),
        (message("assistant", json!("4")), "`messages[0].role` is `assistant`"),
        (message("owner", json!("4")), "messages[0].role: unknown variant `owner`"),
        (
            message("user", json!([{"type": "document"}])),
            "messages[0].content[0].type: unknown variant `document`",
        ),
        (
            message("user", json!([{"type": "tool_use", "id": "", "name": ""}])),
            "`messages[0].content[0].type` belongs",
        ),
        (
            message("user", json!([{"type": "image", "source": {"type": "url", "url": "http://x"}}])),
            "unknown variant `url`",
        ),
    ] {
        let error = refusal(request.clone());
        assert!(error.contains(expect), "{request}: {error}");
    }
}

fn reply(options: Value) -> MessageReply {
    MessageReply::new(ReplyOptions {
        model: "m".to_owned(),
        stream: true,
        max_tokens: 9,
        stop_sequences: vec!["END".to_owned()],
        is_single_call: options["is_single_call"] == true,
    })
}

fn call(name: &str) -> Value {
    json!({"id": format!("call_{name}"), "function": {"name": name, "arguments": {"a": 1}}})
}

#[test]
fn records_become_messages() {
    let message = json!({"content": "x", "thinking": "hm", "tool_calls": [call("one"), call("two")]});
    let done = json!({"message": message, "done": true, "done_reason": "stop", "prompt_eval_count": 12, "prompt_cached_count": 8, "eval_count": 5});
    let got = reply(json!({})).into_message(done.clone()).unwrap();
    assert_eq!(
        got["content"],
        json!([
            {"type": "thinking", "thinking": "hm", "signature": ""},
            {"type": "text", "text": "x"},
            {"type": "tool_use", "id": "call_one", "name": "one", "input": {"a": 1}},
            {"type": "tool_use", "id": "call_two", "name": "two", "input": {"a": 1}},
        ])
    );
    assert_eq!(got["stop_reason"], "tool_use");
    let usage = json!({"input_tokens": 4, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 8, "output_tokens": 5, "output_tokens_details": {"thinking_tokens": 0}});
    assert_eq!(got["usage"], usage);
    let single = reply(json!({"is_single_call": true})).into_message(done).unwrap();
    assert_eq!(single["content"].as_array().unwrap().len(), 3);
    for (record, expect) in [
        (json!({"done_reason": "length", "eval_count": 9}), ["max_tokens", ""]),
        (json!({"done_reason": "length", "eval_count": 8}), ["model_context_window_exceeded", ""]),
        (json!({"done_reason": "stop", "stop_text": "END"}), ["stop_sequence", "END"]),
        // One of the model's own.
        (json!({"done_reason": "stop", "stop_text": "<|im_end|>"}), ["end_turn", ""]),
    ] {
        let got = reply(json!({})).into_message(record).unwrap();
        let sequence = got["stop_sequence"].as_str().unwrap_or_default();
        assert_eq!([got["stop_reason"].as_str().unwrap(), sequence], expect);
    }
}

/// The types of the events for these lines of a worker.
async fn events(lines: &[Value]) -> Vec<Value> {
    let lines: Vec<_> = lines.iter().map(|line| Ok(Bytes::from(format!("{line}\n")))).collect();
    let response = WorkerResponse {
        status: StatusCode::OK,
        content_type: HeaderValue::from_static("application/x-ndjson"),
        bytes: stream::iter(lines).boxed(),
    };
    let body = reply(json!({})).into_events(response).into_body();
    let text = to_bytes(body, usize::MAX).await.unwrap_or_else(|never| panic!("{never}"));
    let text = String::from_utf8(text.to_vec()).unwrap();
    let events = text.split_terminator("\n\n").map(|event| {
        let (name, data) = event.split_once('\n').unwrap();
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(name.strip_prefix("event: "), data["type"].as_str(), "{event}");
        data
    });
    events.collect()
}

#[tokio::test]
async fn records_become_events() {
    let found = events(&[
        json!({"message": {"thinking": "h"}}),
        json!({"message": {"thinking": "m"}}),
        json!({"message": {"content": "a"}}),
        json!({"message": {"content": "b", "tool_calls": [call("one")]}}),
        json!({"message": {}, "done": true, "done_reason": "stop", "prompt_eval_count": 3, "eval_count": 2}),
        json!({"message": {"content": "after the end"}}),
    ])
    .await;
    let short: Vec<String> = found
        .iter()
        .map(|event| {
            let delta = ["text", "thinking", "partial_json", "stop_reason"];
            let delta = delta.iter().find_map(|key| event["delta"][key].as_str()).unwrap_or_default();
            let block = event["content_block"]["type"].as_str().unwrap_or_default();
            let index = event["index"].as_u64().map(|index| index.to_string()).unwrap_or_default();
            format!("{} {index}{block}{delta}", event["type"].as_str().unwrap())
        })
        .collect();
    assert_eq!(
        short,
        [
            "message_start ",
            "content_block_start 0thinking",
            "content_block_delta 0h",
            "content_block_delta 0m",
            "content_block_delta 0",
            "content_block_stop 0",
            "content_block_start 1text",
            "content_block_delta 1a",
            "content_block_delta 1b",
            "content_block_stop 1",
            "content_block_start 2tool_use",
            "content_block_delta 2{\"a\":1}",
            "content_block_stop 2",
            "message_delta tool_use",
            "message_stop ",
        ]
    );
    assert_eq!(found[13]["usage"]["output_tokens"], 2);
}

#[tokio::test]
async fn a_failure_ends_the_events() {
    let failed = events(&[json!({"message": {"content": "a"}}), json!({"error": "out of memory"})]).await;
    let last = failed.last().unwrap();
    assert_eq!(last, &json!({"type": "error", "error": {"type": "api_error", "message": "out of memory"}}));
    let cut = events(&[json!({"message": {"content": "a"}})]).await;
    assert_eq!(cut.last().unwrap()["error"]["message"], "the worker's response ended early");
}

//! Anthropic's Messages API: messages and events, tools, counts, limits, errors in Anthropic's format, keys, and
//! clients that disconnect.

use lode_tests::access::{create_token, start_closed};
use lode_tests::checkpoint::{demo, write_demo_with_tools};
use lode_tests::command::wait_until;
use lode_tests::oci::{Registry, Response};
use lode_tests::server::Options;
use serde_json::{Value, json};

use crate::text::with_model;

fn request(more: Value) -> Value {
    let messages = json!([{"role": "user", "content": "What is 40 plus 41?"}]);
    let mut request = json!({"model": "team/demo", "max_tokens": 50, "temperature": 0, "messages": messages});
    request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    request
}

async fn send(registry: &Registry, more: Value) -> Response {
    registry.post_json("/v1/messages", &request(more)).await
}

/// The data of the events in a response.
pub(crate) fn events(text: &str) -> Vec<Value> {
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    data.map(|data| serde_json::from_str(data).unwrap_or_else(|error| panic!("{error}: {data}"))).collect()
}

#[tokio::test]
async fn messages_are_answered() {
    let server = with_model().await;
    let registry = server.registry();
    let got = send(&registry, json!({})).await.expect(200);
    assert!(got.header("request-id").is_some());
    let got = got.json();
    assert_eq!(got["content"], json!([{"type": "text", "text": "81."}]));
    assert_eq!(
        (&got["type"], &got["role"], &got["model"]),
        (&json!("message"), &json!("assistant"), &json!("team/demo"))
    );
    assert_eq!((&got["stop_reason"], &got["stop_sequence"]), (&json!("end_turn"), &Value::Null));
    let input = |usage: &Value| {
        usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap()
    };
    let counted = json!({"model": "team/demo", "messages": request(json!({}))["messages"]});
    let counted = registry.post_json("/v1/messages/count_tokens", &counted).await.expect(200).json();
    assert_eq!(counted, json!({"input_tokens": input(&got["usage"])}));

    let response = send(&registry, json!({"stream": true})).await.expect(200);
    assert_eq!(response.header("content-type"), Some("text/event-stream"));
    let found = events(&response.text());
    let text: String = found.iter().filter_map(|event| event["delta"]["text"].as_str()).collect();
    assert_eq!(text, "81.");
    let kinds: Vec<&str> = found.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(kinds[..2], ["message_start", "content_block_start"]);
    assert_eq!(kinds[kinds.len() - 3..], ["content_block_stop", "message_delta", "message_stop"]);
    let last = &found[found.len() - 2];
    assert_eq!(
        (&last["delta"]["stop_reason"], input(&last["usage"])),
        (&json!("end_turn"), input(&got["usage"]))
    );

    let cut = send(&registry, json!({"max_tokens": 1})).await.expect(200).json();
    assert_eq!((&cut["stop_reason"], &cut["usage"]["output_tokens"]), (&json!("max_tokens"), &json!(1)));
    let stopped = send(&registry, json!({"stop_sequences": ["1", "2"]})).await.expect(200).json();
    assert_eq!((&stopped["stop_reason"], &stopped["stop_sequence"]), (&json!("stop_sequence"), &json!("1")));
    assert_eq!(stopped["content"][0]["text"], "8");
    let schema =
        json!({"type": "object", "properties": {"level": {"enum": ["low", "high"]}}, "required": ["level"]});
    let format = json!({"output_config": {"format": {"type": "json_schema", "schema": schema}}});
    let formatted = send(&registry, format).await.expect(200).json();
    let value: Value = serde_json::from_str(formatted["content"][0]["text"].as_str().unwrap()).unwrap();
    assert!(["low", "high"].contains(&value["level"].as_str().unwrap()), "{formatted}");
}

#[tokio::test]
async fn a_tool_call_can_be_required() {
    let server = with_model().await;
    let (registry, folder) = (server.registry(), server.folder().path().join("tools"));
    write_demo_with_tools(&folder);
    server.lode().create("team/tools", &folder, &[]).await.expect_success();
    let city = json!({"type": "object", "properties": {"city": {"$ref": "#/$defs/city"}}, "required": ["city"],
        "$defs": {"city": {"enum": ["Paris", "Rome"]}}});
    let tools = json!([
        {"name": "look", "description": "The weather.", "input_schema": city},
        {"name": "add", "input_schema": {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["n"]}},
    ]);
    let ask = |choice: Value, stream: bool| json!({"model": "team/tools", "tools": tools, "tool_choice": choice, "stream": stream, "max_tokens": 100});
    let check = |name: &str, input: &Value| match name {
        "look" => assert!(["Paris", "Rome"].contains(&input["city"].as_str().unwrap()), "{input}"),
        "add" => assert!((0..=9).contains(&input["n"].as_i64().unwrap()), "{input}"),
        other => panic!("{other}: {input}"),
    };
    for name in ["look", "add"] {
        let got = send(&registry, ask(json!({"type": "tool", "name": name}), false)).await.expect(200).json();
        let [block] = &got["content"].as_array().unwrap()[..] else { panic!("{got}") };
        assert_eq!(
            (&block["type"], &block["name"], &got["stop_reason"]),
            (&json!("tool_use"), &json!(name), &json!("tool_use"))
        );
        check(name, &block["input"]);
    }
    let got = send(&registry, ask(json!({"type": "any"}), true)).await.expect(200).text();
    let found = events(&got);
    let block = found.iter().find_map(|event| event["content_block"]["name"].as_str()).expect("a tool call");
    let input: String = found.iter().filter_map(|event| event["delta"]["partial_json"].as_str()).collect();
    check(block, &serde_json::from_str(&input).unwrap());
    // The same in OpenAI's API.
    let tools = json!([{"type": "function", "function": {"name": "look", "parameters": city}}]);
    let chat = json!({"model": "team/tools", "messages": request(json!({}))["messages"], "tools": tools, "tool_choice": "required"});
    let got = registry.post_json("/v1/chat/completions", &chat).await.expect(200).json();
    let call = &got["choices"][0]["message"]["tool_calls"][0]["function"];
    check(
        call["name"].as_str().unwrap(),
        &serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap(),
    );

    for (more, expect) in [
        (json!({"tool_choice": {"type": "tool", "name": "fly"}}), "tool_choice names \"fly\""),
        (
            json!({"tools": [{"name": "x", "input_schema": {"type": "object", "properties": {"a": {"type": "thing"}}}}]}),
            "invalid parameters of a tool",
        ),
        (json!({"model": "team/demo"}), "does not support tools"),
    ] {
        let mut asked = ask(json!({"type": "any"}), false);
        asked.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let refused = send(&registry, asked).await.expect(400).json();
        assert!(refused["error"]["message"].as_str().unwrap().contains(expect), "{refused}");
    }
}

#[tokio::test]
async fn errors_have_anthropics_format() {
    let server = with_model().await;
    let registry = server.registry();
    let check = |response: &Response, status: u16, kind: &str, expect: &str| {
        let got = response.json();
        assert_eq!(
            (response.status, &got["type"], &got["error"]["type"]),
            (status, &json!("error"), &json!(kind)),
            "{got}"
        );
        assert!(got["error"]["message"].as_str().unwrap().contains(expect), "{expect}: {got}");
        assert_eq!(got["request_id"].as_str(), response.header("request-id"), "{got}");
    };
    let invalid = "invalid_request_error";
    for (more, expect) in [
        (json!({"max_tokens": null}), "`max_tokens` is required"),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "video"}]}]}),
            "messages[0].content[0].type: unknown variant `video`",
        ),
        (json!({"mcp_servers": [{"url": "http://127.0.0.1:1"}]}), "`mcp_servers` is not supported"),
        (json!({"temperature": "hot"}), "temperature: invalid type"),
        (json!({"thinking": {"type": "enabled", "budget_tokens": 1}}), "does not support thinking"),
        (
            json!({"messages": [{"role": "user", "content": "word ".repeat(3000)}]}),
            "input length exceeds the context length",
        ),
        (json!({"stop_sequences": vec!["x"; 65]}), "takes at most 64 texts"),
    ] {
        check(&send(&registry, more).await, 400, invalid, expect);
    }
    check(
        &send(&registry, json!({"model": "team/absent"})).await,
        404,
        "not_found_error",
        "'team/absent' not found",
    );
    for body in ["", "hello", "[]", "{\"model\": 5}"] {
        let sent = registry.send(registry.request("POST", "/v1/messages").body(body)).await;
        check(&sent, 400, invalid, "");
    }
    check(&registry.get("/v1/messages").await, 405, invalid, "method");
    check(&registry.get("/v1/messages/batches").await, 404, "not_found_error", "no route");
    let huge = json!({"messages": [{"role": "user", "content": "x".repeat(17 << 20)}]});
    check(&send(&registry, huge).await, 413, "request_too_large", "bytes");
    let many = json!({"messages": vec![json!({"role": "user", "content": ""}); 10_001]});
    check(&send(&registry, many).await, 400, invalid, "more than 10000 entries");
    assert_eq!(send(&registry, json!({})).await.status, 200, "the server serves on");
}

async fn metric(registry: &Registry, name: &str) -> f64 {
    let page = registry.get("/metrics").await.text();
    let line = page.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.trim().parse().unwrap_or(0.0)
}

#[tokio::test]
async fn a_client_that_leaves_frees_its_sequence_and_requests_are_recorded() {
    let server = with_model().await;
    let registry = server.registry();
    let long = request(json!({"stream": true, "max_tokens": 100_000, "temperature": 1.0,
        "messages": [{"role": "user", "content": "Tell me everything."}],
        "output_config": {"format": {"type": "json_schema", "schema":
            {"type": "object", "properties": {"t": {"type": "array", "minItems": 10_000, "items": {"type": "string", "minLength": 20}}}, "required": ["t"]}}}}));
    let response = registry.request("POST", "/v1/messages").json(&long).send().await.unwrap();
    assert_eq!(response.status(), 200);
    drop(response);
    assert_eq!(send(&registry, json!({})).await.expect(200).json()["content"][0]["text"], "81.");
    wait_until("the abandoned response has ended", || async {
        metric(&registry, "lode_inference_running ").await == 0.0
    })
    .await;
    // Tokens are counted when a response is complete.
    let generated = metric(&registry, "lode_generated_tokens_total ").await;
    assert!((1.0..100.0).contains(&generated), "{generated}");
    let page = registry.get("/metrics").await.text();
    assert!(
        page.lines().any(|line| line.contains("route=\"/v1/messages\"") && line.contains("status=\"200\"")),
        "{page}"
    );
    server.wait_output("/v1/messages").await;
}

#[tokio::test]
async fn tokens_are_accepted_as_api_keys() {
    let server = start_closed(Options::new().worker()).await;
    let lode = server.lode();
    lode.create("team/demo", &demo(), &[]).await.expect_success();
    let token = create_token(&lode, &["sdk", "--access", "infer"]).await;
    let registry = Registry::new(server.url());
    let with = async |header: &str, value: &str| {
        let sent = registry.request("POST", "/v1/messages").header(header, value);
        registry.send(sent.header("anthropic-version", "2023-06-01").json(&request(json!({})))).await
    };
    assert_eq!(with("x-api-key", &token).await.expect(200).json()["content"][0]["text"], "81.");
    with("authorization", &format!("Bearer {token}")).await.expect(200);
    let listed = registry.send(registry.request("GET", "/v1/models").header("x-api-key", &token)).await;
    assert_eq!(listed.expect(200).json()["object"], "list");
    for (header, value) in [("x-api-key", "lode_wrong"), ("x-other", "")] {
        let refused = with(header, value).await.expect(401).json();
        assert_eq!(refused["error"]["type"], "authentication_error", "{refused}");
    }
    // Only under /v1.
    let pulled = registry.request("GET", "/v2/team/demo/tags/list").header("x-api-key", &token);
    assert_eq!(registry.send(pulled).await.status, 401);
}

//! OpenAI's Responses API: responses and events, tools, structured output, errors, and nothing that is stored.

use lode_tests::checkpoint::write_demo_with_tools;
use lode_tests::oci::{Registry, Response};
use serde_json::{Value, json};

use crate::anthropic::events;
use crate::text::with_model;

async fn send(registry: &Registry, more: Value) -> Response {
    let mut request = json!({"model": "team/demo", "input": "What is 40 plus 41?", "temperature": 0, "max_output_tokens": 50});
    request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    registry.post_json("/v1/responses", &request).await
}

#[tokio::test]
async fn responses_and_their_events() {
    let server = with_model().await;
    let registry = server.registry();
    let got = send(&registry, json!({"store": true, "metadata": {"a": "b"}})).await.expect(200).json();
    let [message] = &got["output"].as_array().unwrap()[..] else { panic!("{got}") };
    assert_eq!((&message["type"], &message["status"]), (&json!("message"), &json!("completed")));
    assert_eq!(
        message["content"],
        json!([{"type": "output_text", "text": "81.", "annotations": [], "logprobs": []}])
    );
    assert_eq!(
        (&got["object"], &got["status"], &got["store"]),
        (&json!("response"), &json!("completed"), &json!(false))
    );
    assert_eq!(got["metadata"], json!({"a": "b"}));
    let counted = json!({"model": "team/demo", "input": "What is 40 plus 41?"});
    let counted = registry.post_json("/v1/responses/input_tokens", &counted).await.expect(200).json();
    assert_eq!(counted["input_tokens"], got["usage"]["input_tokens"]);
    // Nothing is stored.
    let id = got["id"].as_str().unwrap();
    for path in [format!("/v1/responses/{id}"), format!("/v1/responses/{id}/input_items")] {
        let missing = registry.get(&path).await.expect(404).json();
        assert_eq!(missing["error"]["type"], "not_found_error");
        assert!(missing["error"]["message"].as_str().unwrap().contains("stores no responses"), "{missing}");
    }
    assert_eq!(registry.delete(&format!("/v1/responses/{id}")).await.status, 404);

    let response = send(&registry, json!({"stream": true})).await.expect(200);
    assert_eq!(response.header("content-type"), Some("text/event-stream"));
    let found = events(&response.text());
    for (number, event) in found.iter().enumerate() {
        assert_eq!(event["sequence_number"], number, "{event}");
    }
    let of = |kind: &str| found.iter().filter(|event| event["type"] == kind).collect::<Vec<_>>();
    let text: String =
        of("response.output_text.delta").iter().filter_map(|event| event["delta"].as_str()).collect();
    assert_eq!((&*text, &of("response.output_text.done")[0]["text"]), ("81.", &json!("81.")));
    let done = &of("response.completed")[0]["response"];
    assert_eq!(done["output"][0]["content"], message["content"]);
    assert_eq!(done["usage"]["output_tokens"], got["usage"]["output_tokens"]);

    let cut = send(&registry, json!({"max_output_tokens": 1})).await.expect(200).json();
    assert_eq!(
        (&cut["status"], &cut["incomplete_details"]["reason"]),
        (&json!("incomplete"), &json!("max_output_tokens"))
    );
    let include = json!({"include": ["message.output_text.logprobs"], "top_logprobs": 2});
    let got = send(&registry, include).await.expect(200).json();
    let logprobs = got["output"][0]["content"][0]["logprobs"].as_array().unwrap();
    assert!(logprobs.len() > 1 && logprobs[0]["top_logprobs"].as_array().unwrap().len() == 2, "{got}");
    let schema =
        json!({"type": "object", "properties": {"level": {"enum": ["low", "high"]}}, "required": ["level"]});
    let format = json!({"text": {"format": {"type": "json_schema", "name": "level", "schema": schema}}});
    let got = send(&registry, format).await.expect(200).json();
    let value: Value =
        serde_json::from_str(got["output"][0]["content"][0]["text"].as_str().unwrap()).unwrap();
    assert!(["low", "high"].contains(&value["level"].as_str().unwrap()), "{got}");
}

#[tokio::test]
async fn functions_are_called() {
    let server = with_model().await;
    let (registry, folder) = (server.registry(), server.folder().path().join("tools"));
    write_demo_with_tools(&folder);
    server.lode().create("team/tools", &folder, &[]).await.expect_success();
    let parameters =
        json!({"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]});
    let tools = json!([{"type": "function", "name": "look", "parameters": parameters}]);
    let ask = json!({"model": "team/tools", "tools": tools, "tool_choice": {"type": "function", "name": "look"},
            "max_output_tokens": 300});
    let got = send(&registry, ask.clone()).await.expect(200).json();
    let [call] = &got["output"].as_array().unwrap()[..] else { panic!("{got}") };
    assert_eq!((&call["type"], &call["name"]), (&json!("function_call"), &json!("look")));
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert!(["Paris", "Rome"].contains(&arguments["city"].as_str().unwrap()), "{got}");
    // The call and its output are sent back.
    let output = json!({"type": "function_call_output", "call_id": call["call_id"], "output": "20 degrees"});
    let input = json!([{"role": "user", "content": "How is the weather?"}, call, output]);
    let got = send(&registry, json!({"model": "team/tools", "tools": tools, "input": input}))
        .await
        .expect(200)
        .json();
    assert_eq!(got["object"], "response");
}

#[tokio::test]
async fn errors_have_openais_format() {
    let server = with_model().await;
    let registry = server.registry();
    for (more, status, param, expect) in [
        (
            json!({"previous_response_id": "resp_1"}),
            400,
            json!("previous_response_id"),
            "stores no responses",
        ),
        (json!({"surprise": 1}), 400, json!("surprise"), "is not supported"),
        (json!({"input": [{"type": "computer_call"}]}), 400, json!("input[0].type"), "`computer_call`"),
        (json!({"tools": [{"type": "web_search"}]}), 400, json!("tools[0].type"), "`web_search`"),
        (json!({"input": 7}), 400, Value::Null, "input: invalid type"),
        (json!({"input": "word ".repeat(3000)}), 400, Value::Null, "input length exceeds the context length"),
        (json!({"reasoning": {"effort": "high"}}), 400, Value::Null, "does not support thinking"),
        (json!({"model": "team/absent"}), 404, Value::Null, "'team/absent' not found"),
    ] {
        let response = send(&registry, more).await;
        let error = &response.json()["error"];
        assert_eq!((response.status, &error["param"]), (status, &param), "{error}");
        assert!(error["message"].as_str().unwrap().contains(expect), "{expect}: {error}");
    }
    // A prompt that is too long is truncated if the request says so.
    send(&registry, json!({"input": "word ".repeat(3000), "truncation": "auto", "max_output_tokens": 2}))
        .await
        .expect(200);
}

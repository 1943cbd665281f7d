//! Tool calls and reasoning in OpenAI's format, from a worker's records: as one object and as events.

use serde_json::{Value, json};

use super::App;
use super::gateway::{join, records, worker};

/// The response to a chat for the given worker records, and the request that the worker got.
async fn chat_with_worker_records(worker_records: &'static str, request: Value) -> (String, Value) {
    let app = App::new().await;
    app.push_image("mini", "latest", "x").await;
    let (address, heard) = worker(move || records(worker_records)).await;
    join(&app, address).await;
    let mut body = json!({"model": "mini", "messages": [{"role": "user", "content": "?"}]});
    body.as_object_mut().unwrap().extend(request.as_object().unwrap().clone());
    let text = app.post_json("/v1/chat/completions", body).await.text().to_owned();
    let heard = heard.lock().unwrap().pop().unwrap();
    (text, serde_json::from_str(heard["body"].as_str().unwrap()).unwrap())
}

#[tokio::test]
async fn tool_calls_in_one_response() {
    let record = r#"{"message":{"role":"assistant","content":"I look.","thinking":"Where?","tool_calls":[
        {"id":"call_a","function":{"index":0,"name":"look","arguments":{"z":1,"a":{"b":[]}}}},
        {"id":"call_b","function":{"index":1,"name":"add","arguments":{}}}]},"done":true,"done_reason":"stop"}"#;
    let tools = json!([{"type": "function", "function": {"name": "look"}}]);
    let (text, heard) =
        chat_with_worker_records(record, json!({"tools": tools, "reasoning_effort": "high"})).await;
    assert_eq!((&heard["tools"], &heard["think"]), (&tools, &json!("high")));
    let choice = serde_json::from_str::<Value>(&text).unwrap()["choices"][0].clone();
    let expect = json!({"index": 0, "message": {"role": "assistant", "content": "I look.", "reasoning": "Where?", "tool_calls": [
        {"id": "call_a", "index": 0, "type": "function", "function": {"name": "look", "arguments": "{\"z\":1,\"a\":{\"b\":[]}}"}},
        {"id": "call_b", "index": 1, "type": "function", "function": {"name": "add", "arguments": "{}"}},
    ]}, "finish_reason": "tool_calls"});
    assert_eq!(choice, expect);
}

#[tokio::test]
async fn tool_calls_as_events() {
    let worker_records = "{\"message\":{\"role\":\"assistant\",\"content\":\"\",\"thinking\":\"Where?\"},\"done\":false}\n\
        {\"message\":{\"content\":\"\",\"tool_calls\":[{\"id\":\"call_a\",\"function\":{\"index\":0,\"name\":\"look\",\"arguments\":{\"at\":1}}}]},\"done\":false}\n\
        {\"message\":{\"content\":\"\",\"tool_calls\":[{\"id\":\"call_b\",\"function\":{\"index\":1,\"name\":\"add\",\"arguments\":{}}}]},\"done\":false}\n\
        {\"message\":{\"content\":\"\"},\"done\":true,\"done_reason\":\"stop\"}\n";
    let (text, _) = chat_with_worker_records(worker_records, json!({"stream": true})).await;
    let data: Vec<&str> = text.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).collect();
    assert_eq!((data.len(), data[4]), (5, "[DONE]"));
    let choices: Vec<Value> = data[..4]
        .iter()
        .map(|chunk| serde_json::from_str::<Value>(chunk).unwrap()["choices"][0].clone())
        .collect();
    let call = |index: u64, id: &str, name: &str, arguments: &str| {
        let function = json!({"name": name, "arguments": arguments});
        json!({"content": "", "tool_calls": [{"id": id, "index": index, "type": "function", "function": function}]})
    };
    assert_eq!(choices[0]["delta"], json!({"role": "assistant", "content": "", "reasoning": "Where?"}));
    assert_eq!(choices[1]["delta"], call(0, "call_a", "look", "{\"at\":1}"));
    assert_eq!(choices[2]["delta"], call(1, "call_b", "add", "{}"));
    assert_eq!(choices[3], json!({"index": 0, "delta": {}, "finish_reason": "tool_calls"}));
}

#[tokio::test]
async fn a_truncated_response_reports_length() {
    let record = r#"{"message":{"content":"","tool_calls":[{"id":"c","function":{"index":0,"name":"f","arguments":{}}}]},
        "done":true,"done_reason":"length"}"#;
    let (text, _) = chat_with_worker_records(record, json!({})).await;
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["choices"][0]["finish_reason"], "length");
}

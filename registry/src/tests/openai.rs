//! Requests of OpenAI's libraries and their responses, with minimal fake workers.

use serde_json::{Value, json};

use super::App;
use super::gateway::{join, records, worker};

#[tokio::test]
async fn a_chat_streams_events() {
    let app = App::new().await;
    app.push_image("mini", "latest", "x").await;
    let worker_records = "{\"message\":{\"role\":\"assistant\",\"content\":\"4\"},\"done\":false}\n\
        {\"message\":{\"role\":\"assistant\",\"content\":\"2\"},\"done\":false}\n\
        {\"message\":{\"content\":\"\"},\"done\":true,\"done_reason\":\"stop\",\"prompt_eval_count\":3,\"eval_count\":2}\n";
    let (address, heard) = worker(move || records(worker_records)).await;
    join(&app, address).await;
    let request = json!({
        "model": "mini", "messages": [{"role": "user", "content": "?"}], "stream": true,
        "stream_options": {"include_usage": true},
    });
    let events = app.post_json("/v1/chat/completions", request).await;
    assert_eq!(events.header("content-type"), "text/event-stream");
    assert_eq!(events.header("x-accel-buffering"), "no");
    assert_eq!(heard.lock().unwrap().pop().unwrap()["path"], "/api/chat");
    let data: Vec<&str> =
        events.text().split("\n\n").filter_map(|event| event.strip_prefix("data: ")).collect();
    assert_eq!((data.len(), data[4]), (5, "[DONE]"));
    let chunks: Vec<Value> = data[..4].iter().map(|chunk| serde_json::from_str(chunk).unwrap()).collect();
    assert_eq!(chunks[0]["object"], "chat.completion.chunk");
    assert_eq!(chunks[0]["choices"][0]["delta"], json!({"role": "assistant", "content": "4"}));
    assert_eq!(chunks[1]["choices"][0]["delta"], json!({"content": "2"}));
    assert_eq!(chunks[2]["choices"][0], json!({"index": 0, "delta": {}, "finish_reason": "stop"}));
    assert_eq!(chunks[3]["choices"], json!([]));
    assert_eq!(chunks[3]["usage"], json!({"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}));
}

#[tokio::test]
async fn a_stream_without_text_has_the_role() {
    let app = App::new().await;
    app.push_image("mini", "latest", "x").await;
    let done =
        "{\"message\":{\"role\":\"assistant\",\"content\":\"\"},\"done\":true,\"done_reason\":\"stop\"}\n";
    let (address, _) = worker(move || records(done)).await;
    join(&app, address).await;
    let request = json!({"model": "mini", "messages": [{"role": "user", "content": "?"}], "stream": true});
    let events = app.post_json("/v1/chat/completions", request).await;
    let deltas: Vec<Value> = events
        .text()
        .split("\n\n")
        .filter_map(|event| serde_json::from_str::<Value>(event.strip_prefix("data: ")?).ok())
        .map(|chunk| chunk["choices"][0]["delta"].clone())
        .collect();
    assert_eq!(deltas, [json!({"role": "assistant", "content": ""}), json!({})]);
}

#[tokio::test]
async fn responses_without_streaming() {
    let app = App::new().await;
    app.push_image("mini", "latest", "x").await;
    let (address, heard) = worker(|| {
        let record = json!({
            "response": "42", "message": {"role": "assistant", "content": "4"},
            "embeddings": [[0.5]], "done": true, "done_reason": "length", "eval_count": 1,
        });
        axum::response::IntoResponse::into_response(record.to_string())
    })
    .await;
    join(&app, address).await;

    let request = json!({"model": "mini", "messages": [{"role": "user", "content": "6 x 7?"}]});
    let chat = app.post_json("/v1/chat/completions", request).await.json();
    let choice = &chat["choices"][0];
    assert_eq!((&chat["object"], &choice["finish_reason"]), (&json!("chat.completion"), &json!("length")));
    assert_eq!(choice["message"], json!({"role": "assistant", "content": "4"}));
    let text = app
        .post_json("/v1/completions", json!({"model": "mini", "prompt": "6 x 7 =", "max_tokens": 1}))
        .await
        .json();
    assert_eq!((&text["object"], &text["choices"][0]["text"]), (&json!("text_completion"), &json!("42")));
    assert_eq!(text["choices"][0]["finish_reason"], "length");
    let received = heard.lock().unwrap().pop().unwrap();
    assert!(received["body"].as_str().unwrap().contains("\"num_predict\":1"));

    for (format, expect) in [("float", json!([0.5])), ("base64", json!("AAAAPw=="))] {
        let request = json!({"model": "mini", "input": ["x"], "encoding_format": format});
        let vectors = app.post_json("/v1/embeddings", request).await.json();
        assert_eq!(vectors["data"][0]["embedding"], expect);
    }
    let empty = app.post_json("/v1/embeddings", json!({"model": "mini", "input": []})).await;
    assert_eq!(
        (empty.status.as_u16(), &empty.json()["error"]["type"]),
        (400, &json!("invalid_request_error"))
    );
    let unknown = app.post_json("/v1/completions", json!({"model": "nobody"})).await;
    assert_eq!(
        (unknown.status.as_u16(), &unknown.json()["error"]["message"]),
        (404, &json!("model 'nobody' not found"))
    );
}

#[tokio::test]
async fn null_fields_are_treated_as_absent() {
    let app = App::new().await;
    app.push_image("mini", "latest", "x").await;
    let (address, heard) =
        worker(|| records("{\"message\":{\"content\":\"\"},\"embeddings\":[[0.5]],\"done\":true}\n")).await;
    join(&app, address).await;
    let received_body = || -> Value {
        let body = heard.lock().unwrap().pop().unwrap()["body"].clone();
        serde_json::from_str(body.as_str().unwrap()).unwrap()
    };
    // An earlier response as the Python library dumps it, and every setting that may be null.
    let call = json!({"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}});
    let messages = json!([
        {"role": "user", "content": "?", "name": null},
        {"role": "assistant", "content": "Hm.", "refusal": null, "annotations": null, "audio": null,
            "function_call": null, "tool_calls": null, "reasoning": null},
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "a cat"},
    ]);
    let mut chat = json!({"model": "mini", "messages": messages});
    for key in [
        "frequency_penalty",
        "logit_bias",
        "logprobs",
        "max_completion_tokens",
        "max_tokens",
        "n",
        "presence_penalty",
        "reasoning",
        "reasoning_effort",
        "response_format",
        "seed",
        "stop",
        "stream",
        "stream_options",
        "temperature",
        "tool_choice",
        "tools",
        "top_logprobs",
        "top_p",
    ] {
        chat[key] = Value::Null;
    }
    let response = app.post_json("/v1/chat/completions", chat).await;
    assert_eq!(response.status, 200, "{}", response.text());
    let called = json!({"role": "assistant", "content": "", "tool_calls": [
        {"id": "c1", "function": {"name": "look", "arguments": {}}}]});
    let expect = json!({
        "model": "mini",
        "messages": [
            {"role": "user", "content": "?"}, {"role": "assistant", "content": "Hm."}, called,
            {"role": "tool", "content": "a cat", "tool_call_id": "c1", "tool_name": "look"},
        ],
        "stream": false, "options": {"temperature": 1.0, "top_p": 1.0},
    });
    assert_eq!(received_body(), expect);

    let streamed = json!({"model": "mini", "messages": [{"role": "user", "content": "?"}], "stream": true,
        "stream_options": {"include_usage": null}});
    assert_eq!(app.post_json("/v1/chat/completions", streamed).await.status, 200);
    let completion = json!({"model": "mini", "prompt": ["6 x 7 ="], "suffix": "", "echo": null, "best_of": null,
        "logprobs": null, "stream": null});
    assert_eq!(app.post_json("/v1/completions", completion).await.status, 200);
    let body = received_body();
    assert_eq!((&body["prompt"], &body["raw"], body.get("suffix")), (&json!("6 x 7 ="), &json!(true), None));
    let embed =
        json!({"model": "mini", "input": "x", "dimensions": null, "encoding_format": null, "user": null});
    assert_eq!(app.post_json("/v1/embeddings", embed).await.json()["data"][0]["embedding"], json!([0.5]));
}

/// Of several candidates, those with the highest mean log-probability of a token are returned.
#[tokio::test]
async fn the_best_candidates_are_returned() {
    let app = App::new().await;
    app.push_image("mini", "latest", "x").await;
    let record = |text: &str, logprobs: &[f64]| {
        let tokens: Vec<Value> = logprobs
            .iter()
            .map(|logprob| json!({"token": text, "bytes": [], "logprob": logprob, "top_logprobs": []}))
            .collect();
        json!({"response": text, "logprobs": tokens, "done": true, "done_reason": "stop",
            "prompt_eval_count": 2, "eval_count": tokens.len()})
    };
    // The long one has the lowest sum, and not the lowest mean.
    let candidates = [
        record("none", &[]),
        record("poor", &[-0.1, -3.0]),
        record("best", &[-0.5]),
        record("long", &[-0.6, -0.6, -0.6, -0.6, -0.6, -0.6]),
    ];
    let next = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let (address, heard) = worker(move || {
        let at = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        axum::response::IntoResponse::into_response(candidates[at % candidates.len()].to_string())
    })
    .await;
    join(&app, address).await;
    let complete = async |extra: Value| {
        let mut request = json!({"model": "mini", "prompt": "6 x 7 =", "seed": 5});
        request.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let response = app.post_json("/v1/completions", request).await;
        assert_eq!(response.status, 200, "{}", response.text());
        let bodies = heard.lock().unwrap().split_off(0);
        let bodies = bodies.iter().map(|request| request["body"].as_str().unwrap());
        (response.json(), bodies.map(|body| serde_json::from_str(body).unwrap()).collect::<Vec<Value>>())
    };
    let choice = |index: u64, text: &str| json!({"index": index, "text": text, "finish_reason": "stop"});

    let (response, bodies) = complete(json!({"best_of": 4})).await;
    assert_eq!(response["choices"], json!([choice(0, "best")]));
    assert_eq!(
        response["usage"],
        json!({"prompt_tokens": 2, "completion_tokens": 9, "total_tokens": 11}),
        "all candidates count"
    );
    let mut seeds: Vec<u64> = bodies.iter().map(|body| body["options"]["seed"].as_u64().unwrap()).collect();
    seeds.sort_unstable();
    assert_eq!(seeds, [5, 6, 7, 8]);
    assert!(bodies.iter().all(|body| body["logprobs"] == true && body.get("top_logprobs").is_none()));

    let (response, bodies) = complete(json!({"n": 3, "best_of": 4, "logprobs": 0})).await;
    let texts = |response: &Value| -> Vec<String> {
        let choices = response["choices"].as_array().unwrap().iter();
        choices.map(|choice| choice["text"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(texts(&response), ["best", "long", "poor"]);
    assert_eq!(response["choices"][0]["logprobs"]["token_logprobs"], json!([-0.5]));
    assert_eq!(bodies[0]["top_logprobs"], 0);
    // With `echo`, the first two log-probabilities are those of the prompt.
    let (response, _) = complete(json!({"n": 2, "best_of": 4, "echo": true})).await;
    assert_eq!(texts(&response)[0], "long");
    let (response, _) = complete(json!({"prompt": ["a", "b"], "best_of": 2})).await;
    assert_eq!((texts(&response).len(), &response["usage"]["prompt_tokens"]), (2, &json!(4)));
    // All candidates are returned, in their order, and may be streamed.
    let (response, bodies) = complete(json!({"n": 4, "best_of": 4})).await;
    assert_eq!((texts(&response).len(), bodies[0].get("logprobs")), (4, None));
    let streamed = json!({"model": "mini", "prompt": "?", "best_of": 1, "stream": true});
    assert_eq!(app.post_json("/v1/completions", streamed).await.status, 200);
    heard.lock().unwrap().clear();

    let refused = [
        (json!({"n": 2, "best_of": 1}), "`best_of` must be from 2 to 32, as `n` is 2"),
        (json!({"best_of": 2, "stream": true}), "`best_of` must be equal to `n` in a stream"),
        (json!({"best_of": 17, "prompt": ["a", "b"]}), "`best_of` is 17 for each of 2 prompts"),
    ];
    for (extra, expect) in refused {
        let mut request = json!({"model": "mini", "prompt": "?"});
        request.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let response = app.post_json("/v1/completions", request).await;
        let error = response.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(response.status == 400 && error.contains(expect), "{error}");
    }
    assert!(heard.lock().unwrap().is_empty(), "no worker got a request");
}

#[tokio::test]
async fn unsupported_fields_are_refused_by_name() {
    let app = App::new().await;
    app.push_image("mini", "latest", "x").await;
    let (address, heard) = worker(|| records("{\"done\":true}\n")).await;
    join(&app, address).await;
    let (chat, text) = ("/v1/chat/completions", "/v1/completions");
    for (path, key, value, expect) in [
        (chat, "n", json!(0), "`n` must be from 1 to 32"),
        (chat, "n", json!(33), "`n` must be from 1 to 32"),
        (chat, "best_of", json!(3), "`best_of` must be equal to `n`"),
        (text, "best_of", json!(0), "`best_of` must be from 1 to 32"),
        (text, "best_of", json!(33), "`best_of` must be from 1 to 32"),
        (chat, "logit_bias", json!([1]), "logit_bias: invalid type: sequence"),
        (chat, "tool_choice", json!("required"), "`tools` is missing, which `tool_choice` needs"),
        (chat, "tool_choice", json!("any"), "tool_choice: expected `none`, `auto`, `required`"),
        (chat, "messages", json!([]), "messages is missing or empty"),
        (chat, "messages", json!(null), "messages is missing or empty"),
        (chat, "temperature", json!("hot"), "temperature: invalid type: string \"hot\", expected a number"),
        (chat, "max_tokens", json!(1e30), "max_tokens: invalid type: floating point"),
        (chat, "stop", json!(5), "stop: expected a string or a list of strings"),
        (chat, "stream", json!("yes"), "stream: invalid type: string \"yes\", expected a boolean"),
        (chat, "messages", json!("Hi"), "messages: invalid type: string \"Hi\", expected a list"),
        (
            chat,
            "messages",
            json!([{"role": "user", "content": 5}]),
            "messages[0].content: expected a string or a list",
        ),
        (chat, "messages", json!([{"content": "x"}]), "messages[0]: missing field `role`"),
        (chat, "response_format", json!({"type": "yaml"}), "response_format.type: unknown variant `yaml`"),
        (text, "prompt", json!([]), "`prompt` is an empty list"),
        (text, "prompt", json!(["a", ""]), "`prompt[1]` is empty"),
        (text, "prompt", json!([[1], []]), "`prompt[1]` is empty"),
        (
            text,
            "prompt",
            json!(["a", 1]),
            "prompt: expected a string, a list of strings, a list of token ids",
        ),
        (text, "prompt", json!([-1]), "prompt: expected a string, a list of strings, a list of token ids"),
        (text, "prompt", json!(vec!["a"; 33]), "`prompt` has 33 entries with 1 choices each"),
        (text, "logprobs", json!(-1), "logprobs: invalid value: integer `-1`"),
        ("/v1/embeddings", "dimensions", json!(-1), "dimensions: invalid value: integer `-1`"),
    ] {
        let mut body = json!({"model": "mini", "input": "x"});
        if path == chat {
            body["messages"] = json!([{"role": "user", "content": "?"}]);
        }
        body[key] = value;
        let response = app.post_json(path, body).await;
        let error = response.json()["error"].clone();
        assert_eq!(
            (response.status.as_u16(), &error["type"]),
            (400, &json!("invalid_request_error")),
            "{key}"
        );
        assert!(error["message"].as_str().unwrap().contains(expect), "{key}: {error}");
    }
    assert!(heard.lock().unwrap().is_empty(), "no worker got a request");
}

#[tokio::test]
async fn log_probabilities_of_a_completion() {
    let app = App::new().await;
    app.push_image("mini", "latest", "x").await;
    let token = |token: &str, bytes: &[u8], others: Value| json!({"token": token, "logprob": -0.5, "bytes": bytes, "top_logprobs": others});
    let first = [token(
        "4",
        b"4",
        json!([{"token": "4", "logprob": -0.5, "bytes": [52]}, {"token": "\u{FFFD}", "logprob": -1.5}, {"token": "\u{FFFD}", "logprob": -2.5}]),
    )];
    // A character in two tokens.
    let rest = [
        token("\u{FFFD}", b"\xC3", json!([])),
        token("\u{FFFD}", b"\xA4", json!([])),
        token("b", b"b", json!([])),
    ];
    let lines = [
        json!({"response": "4", "done": false, "logprobs": first}),
        json!({"response": "\u{E4}b", "done": false, "logprobs": rest}),
        json!({"response": "", "done": true, "done_reason": "stop"}),
    ];
    let lines = lines.map(|line| format!("{line}\n")).concat();
    let (address, heard) = worker(move || axum::response::IntoResponse::into_response(lines.clone())).await;
    join(&app, address).await;
    let request = json!({"model": "mini", "prompt": "x", "logprobs": 3, "stream": true});
    let events = app.post_json("/v1/completions", request).await;
    let body = heard.lock().unwrap().pop().unwrap()["body"].clone();
    assert!(body.as_str().unwrap().contains("\"logprobs\":true,\"top_logprobs\":3"), "{body}");
    let chunks: Vec<Value> = events
        .text()
        .split("\n\n")
        .filter_map(|event| serde_json::from_str(event.strip_prefix("data: ")?).ok())
        .collect();
    let expect = json!({
        "tokens": ["4"], "token_logprobs": [-0.5], "top_logprobs": [{"4": -0.5, "\u{FFFD}": -1.5}], "text_offset": [0],
    });
    assert_eq!(chunks[0]["choices"][0]["logprobs"], expect);
    assert_eq!(chunks[1]["choices"][0]["logprobs"]["text_offset"], json!([1, 2, 2]));
    assert_eq!(chunks[2]["choices"][0].get("logprobs"), None);
}

//! Sharing a worker: a model that is too large is refused with sizes, a long prompt does not delay other
//! requests, a client with many requests does not keep others out, a client that disconnects frees its
//! sequence, and a common prefix of prompts is computed once.
//! Checked by token counts, never by time.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use lode_tests::checkpoint::{copy_folder, demo};
use lode_tests::command::wait_until;
use lode_tests::oci::Registry;
use lode_tests::server::{Folder, Options, Server};
use serde_json::{Value, json};

/// Writes the demo model with a longer context in its config than it was trained with.
fn with_context(server: &Server, tokens: u64) -> PathBuf {
    let path = server.folder().path().join(format!("context-{tokens}"));
    copy_folder(&demo(), &path);
    let config = std::fs::read(path.join("config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&config).unwrap();
    config["max_position_embeddings"] = tokens.into();
    std::fs::write(path.join("config.json"), config.to_string()).unwrap();
    path
}

/// Generates eight tokens.
async fn generate(registry: &Registry, model: &str, prompt: &str) -> Value {
    let body = json!({"model": model, "prompt": prompt, "raw": true, "stream": false,
        "options": {"temperature": 0, "num_predict": 8}});
    registry.post_json("/api/generate", &body).await.expect(200).json()
}

/// The number of requests without a response so far, including this one.
async fn in_flight(registry: &Registry) -> f64 {
    let metrics = registry.get("/metrics").await.expect(200).text();
    let line = metrics.lines().find_map(|line| line.strip_prefix("lode_http_requests_in_flight "));
    line.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{metrics}"))
}

#[tokio::test]
async fn a_model_larger_than_the_memory_is_refused_and_the_node_serves_on() {
    let server = Folder::new().start(Options::new().worker().env("LODE_NUM_PARALLEL", "64")).await;
    let (registry, lode) = (server.registry(), server.lode());
    lode.create("team/demo", &demo(), &[]).await.expect_success();
    lode.create("team/vast", &with_context(&server, 1 << 26), &[]).await.expect_success();
    // The smallest KV cache has space for one of the 64 sequences: 2 KiB per token, so 128 GiB.
    let body = json!({"model": "team/vast", "prompt": "x", "stream": false, "options": {"num_ctx": 1 << 26}});
    let generate_vast = async || registry.post_json("/api/generate", &body).await.expect(503);
    for _ in 0..2 {
        let refused = generate_vast().await.json();
        let text = refused["error"].as_str().unwrap();
        let (before, after) = text.split_once(" than is available ").unwrap_or_else(|| panic!("{text}"));
        let gibibytes = |text: &str| {
            let number = text.rsplit_once('(').and_then(|(_, rest)| rest.split_once(" GiB)"));
            number.and_then(|(number, _)| number.parse::<f64>().ok()).unwrap_or_else(|| panic!("{text}"))
        };
        assert!(
            (128.0..129.0).contains(&gibibytes(before)) && gibibytes(before) > gibibytes(after),
            "{text}"
        );
        assert_eq!(generate(&registry, "team/demo", "Water is").await["eval_count"], 8);
    }
    // With the default context the model fits.
    assert_eq!(generate(&registry, "team/vast", "Water is").await["eval_count"], 8);
}

#[tokio::test]
async fn a_long_prompt_does_not_delay_others_and_disconnecting_frees_its_sequence() {
    const CONTEXT: u64 = 1 << 17;
    let options = Options::new().worker().env("LODE_NUM_PARALLEL", "2");
    let server = Folder::new().start(options.env("LODE_CONTEXT_LENGTH", CONTEXT.to_string())).await;
    let registry = server.registry();
    server.lode().create("team/long", &with_context(&server, CONTEXT), &[]).await.expect_success();
    let short = generate(&registry, "team/long", "Water is").await;
    // Prefill of each takes minutes, and together they occupy both sequences.
    let long = |word: &str| {
        let (registry, prompt) = (registry.clone(), format!(" {word}").repeat(120_000));
        tokio::spawn(async move { generate(&registry, "team/long", &prompt).await })
    };
    let (leaves, stays) = (long("one"), long("two"));
    wait_until("both requests are in progress", || async { in_flight(&registry).await >= 3.0 }).await;
    let short_request = tokio::spawn({
        let registry = registry.clone();
        async move { generate(&registry, "team/long", "Water is").await }
    });
    leaves.abort();
    assert_eq!(short_request.await.unwrap()["response"], short["response"]);
    assert!(!stays.is_finished(), "the other long prompt has finished");
    stays.abort();
    for _ in 0..2 {
        assert_eq!(generate(&registry, "team/long", "Water is").await["response"], short["response"]);
    }
}

#[tokio::test]
async fn common_prompt_prefixes_are_computed_once() {
    let server = Folder::new().start(Options::new().worker()).await;
    let registry = server.registry();
    server.lode().create("team/demo", &demo(), &[]).await.expect_success();
    let text =
        "In the beginning God created the heaven and the earth, and the earth was without form. ".repeat(8);
    let cached = |response: &Value| response["prompt_cached_count"].as_u64().unwrap_or(0);
    let first = generate(&registry, "team/demo", &format!("{text} And")).await;
    let again = generate(&registry, "team/demo", &format!("{text} But the darkness")).await;
    let tokens = first["prompt_eval_count"].as_u64().unwrap();
    assert_eq!(cached(&first), 0, "{first}");
    assert!(tokens > 100 && cached(&again) + 4 > tokens, "{again}");
    assert!(cached(&again) < again["prompt_eval_count"].as_u64().unwrap(), "{again}");

    // The same with the OpenAI API: a conversation reuses the KV cache of its earlier turns.
    let turn = json!({"role": "user", "content": "What is 40 plus 41?"});
    let chat = async |messages: Value| {
        let body = json!({"model": "team/demo", "messages": messages, "temperature": 0, "max_tokens": 20});
        registry.post_json("/v1/chat/completions", &body).await.expect(200).json()
    };
    let first = chat(json!([turn])).await;
    let message = &first["choices"][0]["message"];
    let second = chat(json!([turn, message, {"role": "user", "content": "And 5 plus 5?"}])).await;
    let in_common = second["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0);
    assert!(in_common >= first["usage"]["prompt_tokens"].as_u64().unwrap(), "{second}");
}

#[tokio::test]
async fn a_client_with_many_requests_does_not_keep_others_out() {
    let options = Options::new().worker().arg("--trusted-proxy").arg("127.0.0.1");
    let options = options.env("LODE_NUM_PARALLEL", "1").env("LODE_MAX_QUEUE", "4");
    let server = Folder::new().start(options).await;
    server.lode().create("team/demo", &demo(), &[]).await.expect_success();
    let registry = server.registry();
    let send = |client: &'static str, seed: u64| {
        let body = json!({"model": "team/demo", "prompt": "Water is", "raw": true, "stream": false,
            "options": {"seed": seed, "num_predict": 50}});
        let request = registry.request("POST", "/api/generate").header("x-forwarded-for", client).json(&body);
        let registry = registry.clone();
        async move { registry.send(request).await.status }
    };
    // More requests than the queue holds, all at once, and repeated: the queue stays full.
    let is_over = AtomicBool::new(false);
    let crowd = (0..16).map(async |seed| {
        let (mut served, mut refused) = (0, 0);
        while !is_over.load(Ordering::Relaxed) {
            match send("192.0.2.1", seed).await {
                200 => served += 1,
                503 => refused += 1,
                other => panic!("{other}"),
            }
        }
        (served, refused)
    });
    let other = async {
        wait_until("the queue is full", || async {
            let metrics = registry.get("/metrics").await.text();
            let waiting = metrics.lines().find_map(|line| line.strip_prefix("lode_inference_queue_length "));
            waiting.and_then(|waiting| waiting.parse::<u32>().ok()).is_some_and(|waiting| waiting >= 4)
        })
        .await;
        for seed in 0..3 {
            assert_eq!(send("192.0.2.2", seed).await, 200, "request {seed} of the other client");
        }
        is_over.store(true, Ordering::Relaxed);
    };
    let (crowd, ()) = tokio::join!(futures::future::join_all(crowd), other);
    let refused: u32 = crowd.iter().map(|(_, refused)| refused).sum();
    let served: u32 = crowd.iter().map(|(served, _)| served).sum();
    assert!(refused > 0 && served > 0, "{served} served, {refused} refused");
}

#[tokio::test]
async fn structured_output_matches_its_schema() {
    let server = Folder::new().start(Options::new().worker()).await;
    let registry = server.registry();
    server.lode().create("team/demo", &demo(), &[]).await.expect_success();
    // A schema as pydantic and OpenAI's library write it, with short values, so that any model completes it.
    let schema = json!({
        "$defs": {"Level": {"enum": ["low", "high"], "type": "string"}},
        "type": "object",
        "properties": {
            "level": {"$ref": "#/$defs/Level"},
            "count": {"type": "integer", "minimum": 0, "maximum": 99},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 5}, "maxItems": 3},
        },
        "required": ["level", "count", "tags"],
        "additionalProperties": false,
    });
    let check = |text: &str| {
        let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
        assert!(["low", "high"].contains(&value["level"].as_str().unwrap()), "{text}");
        assert!((0..=99).contains(&value["count"].as_i64().unwrap()), "{text}");
        let tags = value["tags"].as_array().unwrap();
        assert!(
            tags.len() <= 3 && tags.iter().all(|tag| tag.as_str().unwrap().chars().count() <= 5),
            "{text}"
        );
        assert_eq!(value.as_object().unwrap().len(), 3, "{text}");
    };
    for seed in 0..4 {
        let body = json!({"model": "team/demo", "prompt": "Water", "format": schema, "stream": false, "options": {"seed": seed}});
        let response = registry.post_json("/api/generate", &body).await.expect(200).json();
        assert_eq!(response["done_reason"], "stop", "{response}");
        check(response["response"].as_str().unwrap());
    }
    let file = server.folder().path().join("schema.json");
    std::fs::write(&file, schema.to_string()).unwrap();
    let run = async |format: &str| {
        server.lode().run(&["run", "team/demo", "Water", "--seed", "5", "--format", format]).await
    };
    check(&run(file.to_str().unwrap()).await.expect_success().stdout);
    run("no such file").await.expect_failure(&["no such file", "a file with a JSON schema"]);
    let format = |format: Value| {
        json!({"model": "team/demo", "messages": [{"role": "user", "content": "How deep is the sea?"}],
            "seed": 1, "response_format": format})
    };
    let schema =
        json!({"type": "json_schema", "json_schema": {"name": "sea", "strict": true, "schema": schema}});
    let response = registry.post_json("/v1/chat/completions", &format(schema)).await.expect(200).json();
    let choice = &response["choices"][0];
    assert_eq!(choice["finish_reason"], "stop");
    check(choice["message"]["content"].as_str().unwrap());
    // Concurrently with a request without a format and one with an invalid schema.
    let plain =
        json!({"model": "team/demo", "prompt": "Water is", "stream": false, "options": {"temperature": 0}});
    let alone = registry.post_json("/api/generate", &plain).await.expect(200).json();
    let any = format(json!({"type": "json_object"}));
    let impossible = format(json!({"type": "json_schema", "json_schema": {"schema": {"type": "thing"}}}));
    let (any, concurrent, refused) = tokio::join!(
        registry.post_json("/v1/chat/completions", &any),
        registry.post_json("/api/generate", &plain),
        registry.post_json("/v1/chat/completions", &impossible),
    );
    let any = any.expect(200).json();
    let choice = &any["choices"][0];
    let text = choice["message"]["content"].as_str().unwrap();
    let is_object = serde_json::from_str::<Value>(text).is_ok_and(|value| value.is_object());
    assert!(text.starts_with('{') && (is_object || choice["finish_reason"] == "length"), "{any}");
    assert_eq!(concurrent.expect(200).json()["response"], alone["response"]);
    let refused = refused.expect(400).json();
    assert_eq!(refused["error"]["type"], "invalid_request_error");
    assert!(refused["error"]["message"].as_str().unwrap().starts_with("invalid format: "), "{refused}");
}
